// Reading graphs and schedules: what is right, and every kind of mistake.
#include "server/planner/graph_problem.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ebb {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

constexpr char kGraph[] = R"({
  "nodes": [
    {"name": "x", "seconds": 0.5, "bytes": 100, "inputs": [],
     "recomputable": false},
    {"name": "a b", "seconds": 1e-3, "bytes": 2e2, "inputs": ["x", "x"]},
    {"name": "y", "seconds": 2, "bytes": "300", "inputs": ["a b", "x"],
     "workspace_bytes": 7}
  ],
  "outputs": ["y", "x"],
  "resident_bytes": 11
})";

// "field: got value: rule" of each mistake.
std::vector<std::string> Mistakes(const std::vector<TextMistake>& mistakes) {
  std::vector<std::string> lines;
  for (const TextMistake& mistake : mistakes) {
    lines.push_back(mistake.field + ": got " + mistake.value + ": " +
                    mistake.rule);
  }
  return lines;
}

std::vector<std::string> GraphMistakes(const std::string& text) {
  return Mistakes(ReadGraphProblem(text).mistakes);
}

TEST(GraphProblem, ReadsEveryField) {
  const ReadProblem read = ReadGraphProblem(kGraph);
  EXPECT_THAT(Mistakes(read.mistakes), IsEmpty());
  const GraphProblem& problem = read.problem;
  ASSERT_THAT(problem.nodes, SizeIs(3));
  EXPECT_EQ(problem.nodes[0].name, "x");
  EXPECT_EQ(problem.nodes[0].seconds, 0.5);
  EXPECT_EQ(problem.nodes[0].bytes, 100);
  EXPECT_FALSE(problem.nodes[0].recomputable);
  EXPECT_TRUE(problem.nodes[1].recomputable);
  EXPECT_EQ(problem.nodes[1].bytes, 200);
  EXPECT_THAT(problem.nodes[1].inputs, ElementsAre(0));
  EXPECT_EQ(problem.nodes[1].workspace_bytes, 0);
  EXPECT_THAT(problem.nodes[2].inputs, ElementsAre(0, 1));
  EXPECT_EQ(problem.nodes[2].bytes, 300);
  EXPECT_EQ(problem.nodes[2].workspace_bytes, 7);
  EXPECT_THAT(problem.outputs, ElementsAre(2, 0));
  EXPECT_EQ(problem.resident_bytes, 11);
}

TEST(GraphProblem, GivesAllMistakesAtOnce) {
  EXPECT_THAT(
      GraphMistakes(R"({
        "nodes": [
          {"name": "a", "seconds": -1, "bytes": 1.5, "inputs": ["b", "a", "q"]},
          {"name": "b", "seconds": "NaN", "bytes": -3, "inputs": "a",
           "recomputable": 1, "workspace_bytes": null, "flops": 3},
          {"name": "a", "seconds": 1e10, "bytes": 1e18},
          {"seconds": 1, "bytes": 1, "inputs": [3]},
          {"name": "", "seconds": 1, "bytes": 1, "inputs": []},
          5
        ],
        "outputs": ["a", "z", "a"], "resident_bytes": true, "budget": 7})"),
      UnorderedElementsAre(
          "nodes[0] (a).seconds: got -1: must be a number of seconds from 0 to "
          "1e+09",
          "nodes[0] (a).bytes: got 1.5: must be a whole number of bytes from 0 "
          "to 281474976710656",
          "nodes[0] (a).inputs[0]: got b: stands later, as nodes[1]: inputs "
          "must stand before the node",
          "nodes[0] (a).inputs[1]: got a: a node cannot read its own output",
          "nodes[0] (a).inputs[2]: got \"q\": must be the name of a node",
          "nodes[1] (b).seconds: got \"NaN\": must be a number of seconds from "
          "0 to 1e+09",
          "nodes[1] (b).bytes: got -3: must be a whole number of bytes from 0 "
          "to 281474976710656",
          "nodes[1] (b).inputs: got \"a\": must be a list of names of nodes",
          "nodes[1] (b).recomputable: got 1: must be true or false",
          "nodes[1] (b).workspace_bytes: got null: must be a whole number of "
          "bytes from 0 to 281474976710656",
          "nodes[1] (b).flops: got 3: there is no such field",
          "nodes[2].name: got a: is the name of nodes[0] already",
          "nodes[2] (a).seconds: got 10000000000.0: must be a number of "
          "seconds from 0 to 1e+09",
          "nodes[2] (a).bytes: got 1e+18: must be a whole number of bytes from "
          "0 to 281474976710656",
          "nodes[2] (a).inputs: got : is required",
          "nodes[3].name: got : is required",
          "nodes[3].inputs[0]: got 3: must be the name of a node",
          "nodes[4].name: got \"\": must not be empty",
          "nodes[5]: got 5: must be an object",
          "outputs[1]: got \"z\": must be the name of a node",
          "outputs[2]: got \"a\": is named before",
          "resident_bytes: got true: must be a whole number of bytes from 0 to "
          "281474976710656",
          "budget: got 7: there is no such field"));
}

TEST(GraphProblem, NeedsNodesAndOutputs) {
  EXPECT_THAT(GraphMistakes("{}"), ElementsAre("nodes: got : is required",
                                               "outputs: got : is required"));
  EXPECT_THAT(GraphMistakes(R"({"nodes": [], "outputs": []})"),
              ElementsAre("nodes: got a list of 0: must be a list of 1 to 5000 "
                          "nodes",
                          "outputs: got a list of 0: must be a list of 1 to "
                          "5000 names"));
  EXPECT_THAT(GraphMistakes("[1, 2]"),
              ElementsAre(": got a list of 2: must be an object with nodes and "
                          "outputs"));
  EXPECT_THAT(GraphMistakes("null"), SizeIs(1));
}

TEST(GraphProblem, RefusesWhatIsNoJson) {
  const ReadProblem read = ReadGraphProblem("{\"nodes\": [\n  {\"name\" 3}]}");
  ASSERT_THAT(read.mistakes, SizeIs(1));
  EXPECT_EQ(read.mistakes[0].line, 2);
  EXPECT_EQ(read.mistakes[0].column, 11);
  EXPECT_THAT(read.mistakes[0].rule, HasSubstr("expected ':'"));
  for (const char* text : {"", "{", "nan", "{\"nodes\": NaN}", "\xff\xfe",
                           "{} {}", "1e999", "{\"a\": \"\xc3\x28\"}"}) {
    EXPECT_THAT(ReadGraphProblem(text).mistakes, SizeIs(1)) << text;
  }
  // Deep nesting ends nothing but the reading.
  EXPECT_THAT(ReadGraphProblem(std::string(100000, '[')).mistakes, SizeIs(1));
}

TEST(GraphProblem, RefusesFieldsGivenTwice) {
  EXPECT_THAT(
      GraphMistakes(R"({"nodes": [
        {"name": "a", "seconds": 1, "bytes": 1, "inputs": []},
        {"name": "b", "seconds": 1, "bytes": 1, "inputs": [], "bytes": 2}],
        "outputs": ["a"], "outputs": ["b"]})"),
      UnorderedElementsAre(
          "nodes[1].bytes: got the field twice: an object has each field once",
          "outputs: got the field twice: an object has each field once"));
}

TEST(GraphProblem, LimitsWhatItReads) {
  std::string nodes;
  for (int i = 0; i <= kMaxProblemNodes; ++i) {
    nodes += (i == 0 ? "" : ",") + std::string("3");
  }
  EXPECT_THAT(GraphMistakes("{\"nodes\": [" + nodes + "], \"outputs\": [1]}"),
              testing::Contains(HasSubstr("1 to 5000 nodes")));
  // Mistakes, too.
  nodes.resize(2 * 2000 - 1);
  EXPECT_THAT(GraphMistakes("{\"nodes\": [" + nodes + "], \"outputs\": [1]}"),
              SizeIs(1000));
  const std::string name(kMaxNodeNameBytes + 1, 'n');
  EXPECT_THAT(GraphMistakes(R"({"nodes": [{"name": ")" + name +
                            R"(", "seconds": 1, "bytes": 1, "inputs": []},
                               {"name": "a\nb", "seconds": 1, "bytes": 1,
                                "inputs": []}], "outputs": [3]})"),
              ElementsAre(HasSubstr("at most 200 bytes"),
                          HasSubstr("control characters"),
                          HasSubstr("must be the name of a node")));
}

std::string ScheduleText(const std::string& steps) {
  return std::string(R"({"graph": )") + kGraph +
         R"(, "budget_bytes": "1000", "total_seconds": 2.501,
             "peak_bytes": 618, "optimal": true, "schedule": )" +
         steps + "}";
}

TEST(GraphProblem, ReadsSchedules) {
  const ReadScheduleFile read = ReadSchedule(
      ScheduleText(R"(["compute x", "compute a b", "free a b"])"), "");
  EXPECT_THAT(Mistakes(read.mistakes), IsEmpty());
  EXPECT_EQ(read.budget_bytes, 1000);
  EXPECT_EQ(read.total_seconds, 2.501);
  EXPECT_EQ(read.peak_bytes, 618);
  EXPECT_THAT(read.steps,
              ElementsAre(ScheduleStep{ScheduleStep::Action::kCompute, 0},
                          ScheduleStep{ScheduleStep::Action::kCompute, 1},
                          ScheduleStep{ScheduleStep::Action::kFree, 1}));
  EXPECT_EQ(ScheduleStepText(read.problem, read.steps[2]), "free a b");
}

TEST(GraphProblem, AGraphBesideTheScheduleCounts) {
  const ReadScheduleFile read =
      ReadSchedule(R"({"schedule": ["compute x"]})", kGraph);
  EXPECT_THAT(Mistakes(read.mistakes), IsEmpty());
  EXPECT_THAT(read.problem.nodes, SizeIs(3));
  EXPECT_THAT(read.steps, SizeIs(1));
  EXPECT_FALSE(read.budget_bytes.has_value());
  EXPECT_THAT(Mistakes(ReadSchedule(R"({"schedule": []})", "{}").mistakes),
              ElementsAre("graph.nodes: got : is required",
                          "graph.outputs: got : is required"));
}

TEST(GraphProblem, SchedulesHaveMistakesToo) {
  EXPECT_THAT(
      Mistakes(ReadSchedule(
                   ScheduleText(R"(["compute q", "drop x", 3, "compute"])"), "")
                   .mistakes),
      ElementsAre("schedule[0]: got \"compute q\": the graph has no such node",
                  "schedule[1]: got \"drop x\": must be \"compute NAME\" or "
                  "\"free NAME\"",
                  "schedule[2]: got 3: must be \"compute NAME\" or \"free "
                  "NAME\"",
                  "schedule[3]: got \"compute\": must be \"compute NAME\" or "
                  "\"free NAME\""));
  EXPECT_THAT(Mistakes(ReadSchedule(ScheduleText("7"), "").mistakes),
              ElementsAre(HasSubstr("schedule: got 7: must be a list")));
  EXPECT_THAT(Mistakes(ReadSchedule(R"({"budget_bytes": -1})", "").mistakes),
              ElementsAre("graph: got : is required",
                          HasSubstr("budget_bytes: got -1")));
  EXPECT_THAT(ReadSchedule("[]", "").mistakes, SizeIs(1));
  EXPECT_THAT(ReadSchedule("[", "").mistakes, SizeIs(1));
}

}  // namespace
}  // namespace ebb
