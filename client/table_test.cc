// Golden tables.
#include "client/table.h"

#include "gtest/gtest.h"

namespace ebb {
namespace {

TEST(Table, AlignsColumns) {
  Table table({{"ID"}, {"STEP", true}, {"NAME"}});
  table.AddRow({"a1b2c3d4", "7", "caf\xc3\xa9"});
  table.AddRow({"z", "12345", ""});
  EXPECT_EQ(table.Render(2),
            "  ID         STEP  NAME\n"
            "  a1b2c3d4      7  caf\xc3\xa9\n"
            "  z         12345\n");
}

TEST(Table, StreamedRowsKeepTheMinimumWidths) {
  const Table table({{"STEP", true, 6}, {"LOSS", true, 8}});
  EXPECT_EQ(table.RenderHeader(), "  STEP      LOSS\n");
  EXPECT_EQ(table.RenderRow({"1", "5.5452"}), "     1    5.5452\n");
  EXPECT_EQ(table.RenderRow({"12345678", "5.5452"}), "12345678    5.5452\n");
}

}  // namespace
}  // namespace ebb
