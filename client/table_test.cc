// Golden tables.
#include "client/table.h"

#include "absl/strings/str_split.h"
#include "client/format.h"
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

TEST(Table, NarrowTablesCutAndLeaveOut) {
  Table table({{"ID"},
               {.header = "NAME", .dispensable = 1, .cut_width = 8},
               {.header = "STEP", .right = true},
               {.header = "CREATED", .dispensable = 2}});
  table.AddRow({"a1", "a long caf\xc3\xa9 name", "7/10", "today"});
  table.AddRow({"b2", "short", "10/10", "yesterday"});
  EXPECT_EQ(table.RenderWithin(100), table.Render());
  EXPECT_EQ(table.RenderWithin(36),
            "ID  NAME             STEP  CREATED\n"
            "a1  a long caf\xc3\xa9...   7/10  today\n"
            "b2  short           10/10  yesterday\n");
  EXPECT_EQ(table.RenderWithin(20),
            "ID  NAME        STEP\n"
            "a1  a long...   7/10\n"
            "b2  short      10/10\n");
  EXPECT_EQ(table.RenderWithin(12),
            "ID   STEP\n"
            "a1   7/10\n"
            "b2  10/10\n");
  EXPECT_EQ(table.RenderWithin(6), "ID   S\na1   7\nb2  10\n");
  for (int columns = 0; columns < 50; ++columns) {
    for (const auto& line : absl::StrSplit(table.RenderWithin(columns), '\n')) {
      EXPECT_LE(DisplayWidth(line), columns);
    }
  }
}

}  // namespace
}  // namespace ebb
