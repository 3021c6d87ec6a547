// See table.h.
#include "client/table.h"

#include <algorithm>
#include <numeric>

#include "client/format.h"
#include "kernels/status.h"

namespace ebb {
namespace {

// Spaces between columns.
constexpr int kGap = 2;

std::string RenderLine(const std::vector<Column>& columns,
                       const std::vector<int>& widths,
                       const std::vector<std::string>& cells, int indent) {
  std::string line(indent, ' ');
  for (size_t i = 0; i < columns.size(); ++i) {
    const int fill = std::max(0, widths[i] - DisplayWidth(cells[i]));
    if (columns[i].right) line.append(fill, ' ');
    line += cells[i];
    if (i + 1 == columns.size()) break;
    if (!columns[i].right) line.append(fill, ' ');
    line.append(kGap, ' ');
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line + "\n";
}

// At most `width` wide, with "..." for what is cut where there is room for it.
std::string Cut(const std::string& text, int width) {
  if (DisplayWidth(text) <= width) return text;
  const std::string mark = width > 6 ? "..." : "";
  std::string cut;
  for (const char c : text) {
    // The first byte of a character beyond the width.
    if (DisplayWidth(cut + c + mark) > width) break;
    cut += c;
  }
  return cut + mark;
}

std::vector<std::string> Headers(const std::vector<Column>& columns) {
  std::vector<std::string> headers;
  for (const Column& column : columns) headers.push_back(column.header);
  return headers;
}

std::vector<int> MinWidths(const std::vector<Column>& columns) {
  std::vector<int> widths;
  for (const Column& column : columns) {
    widths.push_back(std::max(column.min_width, DisplayWidth(column.header)));
  }
  return widths;
}

}  // namespace

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

void Table::AddRow(std::vector<std::string> cells) {
  EBB_CHECK(cells.size() == columns_.size());
  rows_.push_back(std::move(cells));
}

std::vector<int> Table::Widths() const {
  std::vector<int> widths = MinWidths(columns_);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], DisplayWidth(row[i]));
    }
  }
  return widths;
}

std::string Table::Render(int indent) const {
  const std::vector<int> widths = Widths();
  std::string text = RenderLine(columns_, widths, Headers(columns_), indent);
  for (const auto& row : rows_) {
    text += RenderLine(columns_, widths, row, indent);
  }
  return text;
}

std::string Table::RenderWithin(int columns) const {
  std::vector<int> widths = Widths();
  const auto least_width = [&](size_t i) {
    const Column& column = columns_[i];
    if (column.cut_width == 0) return widths[i];
    return std::min(widths[i],
                    std::max(column.cut_width, DisplayWidth(column.header)));
  };
  std::vector<size_t> kept(columns_.size());
  std::iota(kept.begin(), kept.end(), 0);
  const auto total = [&](const auto& width_of) {
    int sum = -kGap;
    for (const size_t i : kept) sum += width_of(i) + kGap;
    return sum;
  };
  while (total(least_width) > columns) {
    const auto last =
        std::max_element(kept.begin(), kept.end(), [&](size_t a, size_t b) {
          return columns_[a].dispensable < columns_[b].dispensable;
        });
    if (last == kept.end() || columns_[*last].dispensable == 0) break;
    kept.erase(last);
  }
  for (const size_t i : kept) {
    const int excess = total([&](size_t k) { return widths[k]; }) - columns;
    if (excess > 0) widths[i] = std::max(least_width(i), widths[i] - excess);
  }

  std::vector<Column> kept_columns;
  std::vector<int> kept_widths;
  for (const size_t i : kept) {
    kept_columns.push_back(columns_[i]);
    kept_widths.push_back(widths[i]);
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::vector<std::string> kept_cells;
    for (const size_t i : kept) kept_cells.push_back(Cut(cells[i], widths[i]));
    std::string text = RenderLine(kept_columns, kept_widths, kept_cells, 0);
    text.pop_back();
    return Cut(text, columns) + "\n";
  };
  std::string text = line(Headers(columns_));
  for (const auto& row : rows_) text += line(row);
  return text;
}

std::string Table::RenderHeader() const { return RenderRow(Headers(columns_)); }

std::string Table::RenderRow(const std::vector<std::string>& cells) const {
  EBB_CHECK(cells.size() == columns_.size());
  return RenderLine(columns_, MinWidths(columns_), cells, 0);
}

}  // namespace ebb
