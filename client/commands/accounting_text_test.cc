// What publications count, as people read it.
#include "client/commands/accounting_text.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/plan_views.pb.h"

namespace ebb {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

TEST(AccountingText, ShowsBothWaysOfCountingSideBySide) {
  v1::PaperAccounting accounting;
  accounting.set_model_flops(3e12);
  accounting.set_layers_model_flops(2e12);
  v1::AccountedTensor* const tensor = accounting.add_tensors();
  tensor->set_value("L*.attention_dropout.mask");
  (*tensor->mutable_paper_bytes())["none"] = 3 << 20;
  v1::AccountedTensor* const other = accounting.add_tensors();
  other->set_value("L*.q");
  for (const char* name : {"none", "selective"}) {
    (*other->mutable_paper_bytes())[name] = 2 << 20;
    (*other->mutable_ebb_bytes())[name] = 4 << 20;
    v1::AccountedPolicy* const policy = accounting.add_policies();
    policy->set_policy(name);
    policy->mutable_paper()->set_layer_bytes(5 << 20);
    policy->mutable_ebb()->set_layer_bytes(4 << 20);
    policy->mutable_paper()->set_recompute_flops(1e9);
  }
  v1::FlopConvention* const convention = accounting.add_conventions();
  convention->set_name("causal");
  convention->set_text("half the square");
  convention->set_flops_per_token(51.47e9);
  const std::string text = AccountingText(accounting);
  EXPECT_THAT(text, HasSubstr("model 3.00 TFLOP, of it in the layers 2.00"));
  EXPECT_THAT(text, ContainsRegex("KEPT +PAPER NONE +PAPER SELECTIVE +EBB NONE "
                                  "+EBB SELECTIVE\n"));
  EXPECT_THAT(text, ContainsRegex("attention_dropout.mask +3.00 MiB +- +- +-"));
  EXPECT_THAT(text, ContainsRegex("L\\*.q +2.00 MiB +2.00 MiB +4.00 MiB"));
  EXPECT_THAT(text, ContainsRegex("a layer +5.00 MiB +5.00 MiB +4.00 MiB"));
  EXPECT_THAT(text, ContainsRegex("products again +1.00 GFLOP"));
  EXPECT_THAT(text, ContainsRegex("causal +51.5 GFLOP +half the square"));
}

}  // namespace
}  // namespace ebb
