// A text table: a line of headers, then rows, columns as wide as their widest
// cell and two spaces apart. Cells are single lines of UTF-8. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace ebb {

struct Column {
  std::string header;
  // Numbers stand to the right.
  bool right = false;
  // Never narrower: rows that are printed one by one stay in line.
  int min_width = 0;
  // How soon it is left out of a table that is too wide: the largest first;
  // 0: never.
  int dispensable = 0;
  // Cells may be cut down to this before columns are left out; 0: never.
  int cut_width = 0;
};

class Table {
 public:
  explicit Table(std::vector<Column> columns);

  // As many cells as columns.
  void AddRow(std::vector<std::string> cells);

  bool empty() const { return rows_.empty(); }

  // Header and rows, each line after `indent` spaces and with a newline.
  std::string Render(int indent = 0) const;

  // No line wider than `columns`: cells are cut and columns left out as they
  // say; if that is not enough, lines end early.
  std::string RenderWithin(int columns) const;

  // For streams: the header line, or one row, with the minimum widths.
  std::string RenderHeader() const;
  std::string RenderRow(const std::vector<std::string>& cells) const;

 private:
  // The widths that show every cell whole.
  std::vector<int> Widths() const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace ebb
