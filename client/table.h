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
};

class Table {
 public:
  explicit Table(std::vector<Column> columns);

  // As many cells as columns.
  void AddRow(std::vector<std::string> cells);

  bool empty() const { return rows_.empty(); }

  // Header and rows, each line after `indent` spaces and with a newline.
  std::string Render(int indent = 0) const;

  // For streams: the header line, or one row, with the minimum widths.
  std::string RenderHeader() const;
  std::string RenderRow(const std::vector<std::string>& cells) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace ebb
