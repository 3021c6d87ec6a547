// See accounting_text.h.
#include "client/commands/accounting_text.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/format.h"
#include "client/table.h"
#include "proto/plan_views.pb.h"
#include "proto/violations.h"

namespace ebb {
namespace {

int64_t Of(const google::protobuf::Map<std::string, int64_t>& bytes,
           const std::string& policy) {
  const auto it = bytes.find(policy);
  return it == bytes.end() ? 0 : it->second;
}

// Columns by policy, the paper's and then Ebb's.
Table ByPolicy(const v1::PaperAccounting& accounting, const char* first) {
  std::vector<Column> columns = {{first}};
  for (const char* whose : {"PAPER ", "EBB "}) {
    for (const v1::AccountedPolicy& policy : accounting.policies()) {
      columns.push_back(
          {absl::StrCat(whose, absl::AsciiStrToUpper(OneLine(policy.policy()))),
           true});
    }
  }
  return Table(columns);
}

template <typename Cell>
void AddRow(const v1::PaperAccounting& accounting, const std::string& name,
            const Cell& cell, Table* table) {
  std::vector<std::string> row = {name};
  for (const v1::AccountedPolicy& policy : accounting.policies()) {
    row.push_back(cell(policy.paper()));
  }
  for (const v1::AccountedPolicy& policy : accounting.policies()) {
    row.push_back(cell(policy.ebb()));
  }
  table->AddRow(row);
}

std::string BytesTable(const v1::PaperAccounting& accounting) {
  Table table = ByPolicy(accounting, "KEPT");
  for (const v1::AccountedTensor& tensor : accounting.tensors()) {
    std::vector<std::string> row = {OneLine(tensor.value(), 200)};
    for (const auto* bytes : {&tensor.paper_bytes(), &tensor.ebb_bytes()}) {
      for (const v1::AccountedPolicy& policy : accounting.policies()) {
        const int64_t of = Of(*bytes, policy.policy());
        row.push_back(of == 0 ? "-" : FormatBytes(of));
      }
    }
    table.AddRow(row);
  }
  using Sums = v1::AccountedSums;
  AddRow(
      accounting, "a layer",
      [](const Sums& sums) { return FormatBytes(sums.layer_bytes()); }, &table);
  AddRow(
      accounting, "all layers",
      [](const Sums& sums) { return FormatBytes(sums.layers_bytes()); },
      &table);
  AddRow(
      accounting, "outside the layers",
      [](const Sums& sums) { return FormatBytes(sums.outside_bytes()); },
      &table);
  AddRow(
      accounting, "products again",
      [](const Sums& sums) { return FormatFlops(sums.recompute_flops()); },
      &table);
  AddRow(
      accounting, "products in all",
      [](const Sums& sums) { return FormatFlops(sums.hardware_flops()); },
      &table);
  return table.Render(2);
}

}  // namespace

std::string AccountingText(const v1::PaperAccounting& accounting) {
  std::string text = absl::StrCat(
      "what Korthikanti et al. 2022 count, beside what Ebb stores and runs "
      "(bytes of one microbatch between forward and backward; FLOPs of the "
      "matrix products of a step, attention as full square: model ",
      FormatFlops(accounting.model_flops()), ", of it in the layers ",
      FormatFlops(accounting.layers_model_flops()), "):\n",
      BytesTable(accounting));
  absl::StrAppend(
      &text,
      "  The paper: 2 bytes an element of whatever backward reads, 4 of "
      "logits, 1 byte an element of a dropout's mask, no statistics of norms; "
      "what a policy drops runs again as a whole, its last product too.\n"
      "  Ebb: elements as the spec's precision stores them; masks are drawn "
      "again instead of stored; statistics are stored; the head runs in "
      "chunks, so that logits are never kept; only what backward reads runs "
      "again.\n");
  Table conventions(
      {{"CONVENTION"}, {"MODEL FLOPS A TOKEN", true}, {"COUNTS"}});
  for (const v1::FlopConvention& convention : accounting.conventions()) {
    conventions.AddRow({OneLine(convention.name()),
                        FormatFlops(convention.flops_per_token()),
                        OneLine(convention.text(), 200)});
  }
  absl::StrAppend(&text,
                  "\nMFU is tokens a second times one of these, over the "
                  "device's peak:\n",
                  conventions.Render(2));
  return text;
}

}  // namespace ebb
