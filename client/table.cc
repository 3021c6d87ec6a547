// See table.h.
#include "client/table.h"

#include <algorithm>

#include "client/format.h"
#include "kernels/status.h"

namespace ebb {
namespace {

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
    line += "  ";
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line + "\n";
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

std::string Table::Render(int indent) const {
  std::vector<int> widths = MinWidths(columns_);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], DisplayWidth(row[i]));
    }
  }
  std::string text = RenderLine(columns_, widths, Headers(columns_), indent);
  for (const auto& row : rows_) {
    text += RenderLine(columns_, widths, row, indent);
  }
  return text;
}

std::string Table::RenderHeader() const { return RenderRow(Headers(columns_)); }

std::string Table::RenderRow(const std::vector<std::string>& cells) const {
  EBB_CHECK(cells.size() == columns_.size());
  return RenderLine(columns_, MinWidths(columns_), cells, 0);
}

}  // namespace ebb
