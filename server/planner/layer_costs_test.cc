// Prices of a layer's results beside one another.
#include "server/planner/layer_costs.h"

#include <gtest/gtest.h>

#include <bit>
#include <string>

#include "kernels/backend.h"
#include "worker/model/job_spec.h"
#include "worker/program/job_programs.h"

namespace ebb {
namespace {

constexpr int64_t kRows = 64, kHidden = 64;

JobSpec SmallGpt() {
  JobSpec spec;
  spec.precision = DType::kF32;
  spec.model.layers = 2;
  spec.model.hidden = kHidden;
  spec.model.heads = spec.model.kv_heads = 4;
  spec.model.ffn = 4 * kHidden;
  spec.model.vocab = 100;
  spec.model.seq_len = 32;
  spec.global_batch = spec.micro_batch = kRows / 32;
  return spec;
}

class LayerCostsTest : public ::testing::Test {
 protected:
  NodeSet NodeOf(const std::string& name) const {
    for (size_t n = 0; n < graph_.layer.size(); ++n) {
      if (graph_.layer[n].name == "L*." + name) return NodeSet{1} << n;
    }
    ADD_FAILURE() << "no node " << name;
    return 1;
  }
  LayerCosts::Price PriceOf(const std::string& name, NodeSet kept) const {
    return costs_.PriceOf(std::countr_zero(NodeOf(name)), kept);
  }

  const Graph graph_ = *BuildTrainingGraph(SmallGpt());
  const LayerCosts costs_{graph_, RooflineProfile(BuiltInCpuBackend()),
                          Encoding()};
};

// The sum after attention is an addition, but without it the product before it
// has to run again as well, which keeps nothing of its own.
TEST_F(LayerCostsTest, APriceCountsWhatOnlyThatResultNeeds) {
  const NodeSet all = costs_.Choosable() & ~NodeOf("attention_out");
  const LayerCosts::Price sum = PriceOf("attention_add", all);
  const int64_t product = kRows * kHidden * (2 * kHidden + 1);  // with bias
  EXPECT_EQ(sum.flops, product + kRows * kHidden);
  EXPECT_EQ(sum.bytes, kRows * kHidden * 4);
  // Where the product runs anyway there is only the addition to save.
  const LayerCosts::Price kept =
      PriceOf("attention_add", all | NodeOf("attention_out"));
  EXPECT_EQ(kept.flops, kRows * kHidden);
}

TEST_F(LayerCostsTest, WhatNobodyReadsIsWorthNothing) {
  const LayerCosts::Price product =
      PriceOf("attention_out", costs_.Choosable());
  EXPECT_EQ(product.seconds, 0);
  EXPECT_EQ(product.flops, 0);
  EXPECT_EQ(product.bytes, 0);
}

// Prices are differences: a set costs what its members' prices add up to, each
// beside those before it.
TEST_F(LayerCostsTest, PricesAddUpToTheCostOfASet) {
  const NodeSet all = costs_.Choosable();
  double seconds = costs_.CostOf(all, true, false).seconds;
  int64_t bytes = costs_.CostOf(all, true, false).bytes;
  NodeSet kept = all;
  for (int node = 0; node < costs_.num_nodes(); ++node) {
    const LayerCosts::Price price = costs_.PriceOf(node, kept);
    seconds += price.seconds;
    bytes -= price.bytes;
    kept &= ~(NodeSet{1} << node);
  }
  EXPECT_EQ(kept, 0u);
  EXPECT_DOUBLE_EQ(seconds, costs_.CostOf(0, true, false).seconds);
  EXPECT_EQ(bytes, 0);
  EXPECT_EQ(costs_.CostOf(0, true, false).bytes, 0);
}

}  // namespace
}  // namespace ebb
