// Counts and text of the two groups.
#include "worker/optimizer/decay_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ebb {
namespace {

using ::testing::ElementsAre;

Value Parameter(const char* name, TensorType type, bool per_layer,
                bool decays) {
  Value value;
  value.name = name;
  value.type = type;
  value.kind = ValueKind::kParameter;
  value.per_layer = per_layer;
  value.decays = decays;
  return value;
}

Graph SmallGraph() {
  Graph graph;
  graph.num_layers = 3;
  Value tokens;
  tokens.name = "tokens";
  tokens.type = TensorType(DType::kI32, 8);
  tokens.kind = ValueKind::kBatch;
  Value activation;
  activation.name = "L*.fc.y";
  activation.type = TensorType(DType::kF32, 8, 4);
  activation.per_layer = true;
  graph.values = {
      tokens,
      Parameter("embedding.weight", {DType::kF32, 10, 4}, false, true),
      activation,
      Parameter("L*.norm.gain", {DType::kF32, 4}, true, false),
      Parameter("L*.fc.weight", {DType::kF32, 4, 4}, true, true),
      Parameter("final_norm.gain", {DType::kF32, 4}, false, false),
  };
  return graph;
}

TEST(DecayGroups, CountsEveryLayer) {
  const DecayGroups groups = FindDecayGroups(SmallGraph());
  EXPECT_EQ(groups.decayed.values, 4);
  EXPECT_EQ(groups.decayed.elements, 40 + 3 * 16);
  EXPECT_THAT(groups.decayed.names,
              ElementsAre("embedding.weight", "L*.fc.weight"));
  EXPECT_EQ(groups.not_decayed.values, 4);
  EXPECT_EQ(groups.not_decayed.elements, 3 * 4 + 4);
  EXPECT_THAT(groups.not_decayed.names,
              ElementsAre("L*.norm.gain", "final_norm.gain"));
}

TEST(DecayGroups, PrintsBothGroups) {
  EXPECT_EQ(DescribeDecayGroups(FindDecayGroups(SmallGraph()), 0.1),
            "weight decay 0.1: 4 values, 88 elements: embedding.weight "
            "L*.fc.weight\n"
            "weight decay 0: 4 values, 16 elements: L*.norm.gain "
            "final_norm.gain\n");
  EXPECT_EQ(DescribeDecayGroups(DecayGroups(), 0.1),
            "weight decay 0.1: 0 values, 0 elements\n"
            "weight decay 0: 0 values, 0 elements\n");
}

}  // namespace
}  // namespace ebb
