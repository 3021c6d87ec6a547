// The timeline as text and as a picture.
#include "client/timeline.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/plan.pb.h"
#include "proto/plan_views.pb.h"

namespace ebb {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

void AddPoint(int64_t saved, int64_t recompute, int64_t num_recompute,
              v1::Timeline* timeline) {
  v1::TimelinePoint* const point = timeline->add_points();
  point->set_first_instruction(timeline->num_instructions());
  point->set_num_instructions(2);
  point->set_num_recompute(num_recompute);
  (*point->mutable_memory())["parameters"] = 40 << 20;
  (*point->mutable_memory())["saved"] = saved << 20;
  (*point->mutable_memory())["recompute"] = recompute << 20;
  timeline->set_num_instructions(timeline->num_instructions() + 2);
}

// `layer`: the first of two; -1: outside the microbatch.
void AddBlock(const char* name, int64_t num_instructions, int layer,
              v1::Timeline* timeline) {
  v1::TimelineBlock* const block = timeline->add_blocks();
  int64_t next = 0;
  for (const v1::TimelineBlock& before : timeline->blocks()) {
    next += before.num_instructions();
  }
  block->set_name(name);
  block->set_first_instruction(next);
  block->set_num_instructions(num_instructions);
  block->set_in_microbatch(layer >= 0);
  block->set_first_layer(layer);
  block->set_last_layer(layer < 0 ? -1 : layer + 1);
}

// 20 instructions: zero, forward, backward, update.
v1::Timeline SmallTimeline() {
  v1::Timeline timeline;
  timeline.set_num_microbatches(4);
  AddPoint(0, 0, 0, &timeline);
  for (int64_t saved : {10, 20, 30, 40}) AddPoint(saved, 0, 0, &timeline);
  for (int64_t saved : {40, 30, 20}) AddPoint(saved, 20, 1, &timeline);
  AddPoint(0, 0, 0, &timeline);
  AddPoint(0, 0, 0, &timeline);
  AddBlock("zero_layer", 2, -1, &timeline);
  AddBlock("forward_layer", 4, 0, &timeline);
  AddBlock("forward_layer", 4, 2, &timeline);
  AddBlock("backward_layer", 3, 2, &timeline);
  AddBlock("backward_layer", 3, 0, &timeline);
  AddBlock("update_layer", 4, -1, &timeline);
  return timeline;
}

v1::Plan SmallPlan() {
  v1::Plan plan;
  plan.set_policy("cheap");
  plan.set_fits(true);
  plan.set_budget_bytes(128 << 20);
  plan.set_model_flops(3e9);
  plan.set_recompute_flops(1e9);
  v1::RankPlan* const rank = plan.add_ranks();
  rank->set_peak_bytes(102 << 20);
  return plan;
}

TEST(TimelineText, DrawsClassesAsLetters) {
  EXPECT_EQ(TimelineText(SmallTimeline(), 53),
            "   100 MiB |                    rrrr\n"
            "           |                    rrrrrrrr\n"
            "           |                ssssssssrrrrrrrr\n"
            "           |            ssssssssssssssssrrrr\n"
            "           |        ssssssssssssssssssssssss\n"
            "  50.0 MiB |    ssssssssssssssssssssssssssss\n"
            "           |pppppppppppppppppppppppppppppppppppppppp\n"
            "           |pppppppppppppppppppppppppppppppppppppppp\n"
            "           |pppppppppppppppppppppppppppppppppppppppp\n"
            "           |pppppppppppppppppppppppppppppppppppppppp\n"
            "       0 B +--------------------^^^^^^^^^^^^--------\n"
            "            |   |forward 0-3    |backward   |update\n"
            "            p parameters  s saved  r recompute\n");
}

TEST(TimelineText, EveryLineFits) {
  for (int columns : {40, 57, 80, 120}) {
    for (absl::string_view line :
         absl::StrSplit(TimelineText(SmallTimeline(), columns), '\n')) {
      EXPECT_LE(line.size(), static_cast<size_t>(columns)) << line;
      for (const char c : line) EXPECT_TRUE(c >= ' ' && c < 127);
    }
  }
  EXPECT_EQ(TimelineText(v1::Timeline(), 80), "");
}

// A moment that is one of a thousand still is a column's largest.
TEST(TimelineText, ThinningOutKeepsThePeak) {
  v1::Timeline timeline;
  timeline.set_num_microbatches(1);
  for (int n = 0; n < 1000; ++n) AddPoint(n == 637 ? 400 : 1, 0, 0, &timeline);
  EXPECT_THAT(TimelineText(timeline, 80), HasSubstr("   440 MiB |"));
  EXPECT_THAT(TimelineText(timeline, 80), ContainsRegex("\\| +s\n"));
}

TEST(TimelineSvg, HasClassesLinesAndMarks) {
  const std::string svg = TimelineSvg(SmallTimeline(), SmallPlan(), "small");
  for (const char* expected :
       {"Memory of a training step of small", ">parameters</text>",
        ">saved</text>", ">recompute</text>", "one of 4 microbatches",
        ">3 more</text>", ">forward 0-3</text>", ">backward 0-3</text>",
        "instructions of a step", "bytes in use", ">40 MiB</text>",
        ">20.0 MiB</text>", "budget: 128 MiB", "peak: 102 MiB",
        "25.0 % of all FLOPs"}) {
    EXPECT_THAT(svg, HasSubstr(expected));
  }
  EXPECT_THAT(svg, Not(HasSubstr(">workspace</text>")));
  EXPECT_THAT(svg, Not(HasSubstr("above the picture")));
}

TEST(TimelineSvg, ABudgetFarAboveIsToldNotDrawn) {
  v1::Plan plan = SmallPlan();
  plan.set_budget_bytes(int64_t{64} << 30);
  EXPECT_THAT(TimelineSvg(SmallTimeline(), plan, ""),
              HasSubstr("(above the picture)"));
}

TEST(TimelineSvg, EscapesForeignText) {
  v1::Plan plan = SmallPlan();
  plan.set_policy("<b>\"&");
  const std::string svg =
      TimelineSvg(SmallTimeline(), plan, "a<script>&\x01\xff\xef\xbf\xbf");
  EXPECT_THAT(svg, HasSubstr("a&lt;script&gt;&amp;\\x01\\xff?"));
  EXPECT_THAT(svg, HasSubstr("&lt;b&gt;&quot;&amp;"));
  EXPECT_THAT(svg, Not(HasSubstr("<script>")));
}

// Nothing that a coordinator might send breaks the picture.
TEST(TimelineSvg, TakesAnEmptyTimeline) {
  EXPECT_THAT(TimelineSvg(v1::Timeline(), v1::Plan(), ""), HasSubstr("</svg>"));
}

}  // namespace
}  // namespace ebb
