#include "server/planner/paper_accounting.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/ops/op_def.h"
#include "kernels/status.h"
#include "worker/program/job_programs.h"
#include "worker/program/lower.h"
#include "worker/program/policy.h"

namespace ebb {
namespace {

constexpr int64_t kPaperElementBytes = 2;
constexpr int64_t kPaperLogitBytes = 4;
constexpr int64_t kPaperMaskBytes = 1;

bool IsMade(Role role) { return role == Role::kOutput || role == Role::kAux; }

std::vector<TensorType> TypesOf(const Graph& graph, const Node& node) {
  std::vector<TensorType> types;
  for (const ValueRef& ref : node.slots) {
    types.push_back(ref.value < 0 ? TensorType()
                                  : graph.values[ref.value].type);
  }
  return types;
}

// Calls `visit(value)` for each activation that the node's backward reads, as
// the node sees it: a part of a value by its own index.
template <typename Visit>
void ForEachRead(const Graph& graph, const Node& node, const Visit& visit) {
  const OpDef& def = GetOpDef(node.op);
  uint32_t reads = 0;
  for (int slot = 0; slot < def.num_slots(); ++slot) {
    if (node.slots[slot].value >= 0) reads |= def.slots[slot].grad_reads;
  }
  for (int slot = 0; slot < def.num_slots(); ++slot) {
    const int value = node.slots[slot].value;
    if (!HasSlot(reads, slot) || value < 0) continue;
    if (graph.values[value].kind == ValueKind::kActivation) visit(value);
  }
}

// Matrix products of one run of the node.
double ForwardProducts(const Graph& graph, const Node& node) {
  const OpDef& def = GetOpDef(node.op);
  if (def.product_flops == nullptr) return 0;
  return static_cast<double>(
      def.product_flops(node.attrs, TypesOf(graph, node), 0));
}

// Of its gradients, all that training needs.
double BackwardProducts(const Graph& graph, const Node& node) {
  const OpDef& def = GetOpDef(node.op);
  if (def.product_flops == nullptr) return 0;
  uint32_t bound = 0;
  for (int slot = 0; slot < def.num_slots(); ++slot) {
    const Role role = def.slots[slot].role;
    if (node.slots[slot].value < 0) continue;
    if (role == Role::kInput || role == Role::kParam) bound |= Reads(slot);
  }
  return static_cast<double>(
      def.product_flops(node.attrs, TypesOf(graph, node), bound));
}

double ModelProducts(const Graph& graph, const std::vector<Node>& nodes) {
  double flops = 0;
  for (const Node& node : nodes) {
    flops += ForwardProducts(graph, node) + BackwardProducts(graph, node);
  }
  return flops;
}

// What a policy drops, by value: the same in every layer.
class Dropped {
 public:
  Dropped(const Graph& graph, const Plan& plan) : graph_(graph) {
    std::set<std::string> names;
    for (const Decision& decision : plan.decisions) {
      if (decision.decision == ActivationDecision::kRecompute) {
        names.insert(decision.value);
      }
    }
    for (const Value& value : graph.values) {
      dropped_.push_back(names.count(value.name) != 0);
    }
  }

  bool Has(int value) const { return dropped_[graph_.Storage(value)]; }

  // Whether the paper runs the node again.
  bool RunsAgain(const Node& node) const {
    const OpDef& def = GetOpDef(node.op);
    bool again = false;
    for (int slot = 0; slot < def.num_slots(); ++slot) {
      const int value = node.slots[slot].value;
      again = again || (IsMade(def.slots[slot].role) && value >= 0 &&
                        value != graph_.stream && Has(value));
    }
    ForEachRead(graph_, node, [&](int value) { again = again || Has(value); });
    return again;
  }

 private:
  const Graph& graph_;
  std::vector<bool> dropped_;
};

// Bytes that the program keeps of each value of a layer, by name.
std::map<std::string, int64_t> KeptByProgram(const Program& program) {
  std::map<std::string, int64_t> kept;
  for (const Block& block : program.blocks) {
    if (block.name != "forward_layer") continue;
    for (const Buffer& buffer : block.buffers) {
      // The next layer's input is that layer's.
      if (buffer.memory_class != MemoryClass::kSaved ||
          buffer.layer_offset != 0) {
        continue;
      }
      kept[buffer.name] = buffer.bytes;
    }
  }
  return kept;
}

// Matrix products that the program runs again in one microbatch.
double ProductsRunAgain(const Program& program) {
  double flops = 0;
  for (const Block& block : program.blocks) {
    for (const Instruction& instruction : block.instructions) {
      if (instruction.phase != Phase::kRecompute) continue;
      const OpDef& def = GetOpDef(instruction.op);
      if (def.product_flops == nullptr) continue;
      std::vector<TensorType> types(def.num_slots());
      for (const Operand& operand : instruction.operands) {
        types[operand.slot] = operand.type;
      }
      flops +=
          static_cast<double>(block.count) *
          static_cast<double>(def.product_flops(instruction.attrs, types, 0));
    }
  }
  return flops;
}

// What a layer of a graph keeps, tensor by tensor.
class LayerTensors {
 public:
  explicit LayerTensors(const Graph& graph)
      : graph_(graph), rows_(graph.values.size()) {
    std::set<int> read;
    for (const Node& node : graph.layer) {
      ForEachRead(graph, node, [&](int value) { read.insert(value); });
    }
    for (const int value : read) {
      // A part that is read beside the whole is no tensor of its own.
      const int storage = graph.Storage(value);
      if (value != storage && read.count(storage) != 0) continue;
      rows_[storage].push_back(value);
    }
    for (const Node& node : graph.layer) {
      const OpDef& def = GetOpDef(node.op);
      for (int slot = 0; slot < def.num_slots(); ++slot) {
        const int value = node.slots[slot].value;
        if (def.slots[slot].role == Role::kAux) statistics_.insert(value);
        if (def.slots[slot].role == Role::kOutput && node.op == Op::kDropout) {
          dropouts_[value] = &node;
        }
      }
    }
  }

  // Calls `visit(tensor, value, bytes of the paper, is a mask)` in the order of
  // the graph; `value` as in the graph, of a mask the dropout's output.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (size_t v = 0; v < rows_.size(); ++v) {
      const int value = static_cast<int>(v);
      if (const auto dropout = dropouts_.find(value);
          dropout != dropouts_.end()) {
        visit(absl::StrCat(dropout->second->name, ".mask"), value,
              kPaperMaskBytes * graph_.values[v].type.num_elements(), true);
      }
      for (const int part : rows_[v]) {
        const Value& tensor = graph_.values[part];
        visit(tensor.name, part,
              statistics_.count(part) != 0
                  ? 0
                  : kPaperElementBytes * tensor.type.num_elements(),
              false);
      }
    }
  }

  // Bytes of the tensor within a storage of `kept` bytes: the last part has
  // what rounding up adds to the whole.
  int64_t PartOf(int value, int64_t kept) const {
    const std::vector<int>& parts = rows_[graph_.Storage(value)];
    if (kept == 0 || value != parts.back()) {
      return kept == 0 ? 0 : graph_.values[value].type.bytes();
    }
    for (const int part : parts) {
      if (part != value) kept -= graph_.values[part].type.bytes();
    }
    return kept;
  }

 private:
  const Graph& graph_;
  std::vector<std::vector<int>> rows_;  // by storage: what is read of it
  std::set<int> statistics_;
  std::map<int, const Node*> dropouts_;  // by output
};

// What the paper counts of embedding, final norm and head.
int64_t PaperOutsideBytes(const Graph& graph) {
  std::map<int, int64_t> bytes;  // by value
  for (const auto* nodes : {&graph.prologue, &graph.epilogue}) {
    for (const Node& node : *nodes) {
      const OpDef& def = GetOpDef(node.op);
      ForEachRead(graph, node, [&](int value) {
        bytes[value] = graph.values[value].type.num_elements() *
                       (node.op == Op::kCrossEntropy ? kPaperLogitBytes
                                                     : kPaperElementBytes);
      });
      for (int slot = 0; slot < def.num_slots(); ++slot) {
        if (def.slots[slot].role == Role::kAux) {
          bytes[node.slots[slot].value] = 0;
        }
      }
    }
  }
  int64_t sum = 0;
  for (const auto& [value, count] : bytes) sum += count;
  for (const Node& node : graph.prologue) {
    if (node.op != Op::kDropout) continue;
    sum +=
        kPaperMaskBytes * graph.values[node.slots[0].value].type.num_elements();
  }
  return sum;
}

}  // namespace

const char* FlopConventionName(FlopConvention convention) {
  switch (convention) {
    case FlopConvention::kCausal:
      return "causal";
    case FlopConvention::kFullSquare:
      return "full_square";
    case FlopConvention::kAllParameters:
      return "all_parameters";
    case FlopConvention::kParametersOnly:
      return "parameters_only";
  }
  return "?";
}

const char* FlopConventionText(FlopConvention convention) {
  switch (convention) {
    case FlopConvention::kCausal:
      return "6 x parameters but input embeddings, half the attention square";
    case FlopConvention::kFullSquare:
      return "6 x parameters but input embeddings, the full square";
    case FlopConvention::kAllParameters:
      return "6 x all parameters, the full square";
    case FlopConvention::kParametersOnly:
      return "6 x all parameters, no attention";
  }
  return "?";
}

double FlopsPerToken(const Graph& graph, FlopConvention convention) {
  // Parameters that rows are looked up in, and that no product reads.
  std::set<int> tables;
  std::set<int> others;
  double attention = 0;
  const auto look = [&](const std::vector<Node>& nodes, double times) {
    for (const Node& node : nodes) {
      const OpDef& def = GetOpDef(node.op);
      const bool is_lookup =
          node.op == Op::kEmbedding || node.op == Op::kPositionEmbedding;
      bool has_weight = false;
      for (int slot = 0; slot < def.num_slots(); ++slot) {
        if (def.slots[slot].role != Role::kParam) continue;
        has_weight = true;
        (is_lookup ? tables : others).insert(node.slots[slot].value);
      }
      if (has_weight) continue;
      attention += times * (ForwardProducts(graph, node) +
                            BackwardProducts(graph, node));
    }
  };
  look(graph.prologue, 1);
  look(graph.layer, graph.num_layers);
  look(graph.epilogue, 1);
  attention /= static_cast<double>(graph.micro_batch * graph.seq_len);

  const double all = static_cast<double>(graph.num_parameters());
  double without_tables = all;
  for (const int value : tables) {
    if (others.count(value) != 0) continue;
    without_tables -=
        static_cast<double>(graph.values[value].type.num_elements());
  }
  switch (convention) {
    case FlopConvention::kCausal:
      return 6 * without_tables + attention / 2;
    case FlopConvention::kFullSquare:
      return 6 * without_tables + attention;
    case FlopConvention::kAllParameters:
      return 6 * all + attention;
    case FlopConvention::kParametersOnly:
      return 6 * all;
  }
  return 0;
}

absl::StatusOr<PaperAccounting> AccountAsPaper(const JobSpec& spec,
                                               const Backend& backend) {
  EBB_ASSIGN_OR_RETURN(const Graph graph, BuildTrainingGraph(spec));
  const LayerTensors tensors(graph);
  const double num_microbatches = spec.num_microbatches();
  PaperAccounting accounting;
  accounting.layers_model_flops =
      num_microbatches * graph.num_layers * ModelProducts(graph, graph.layer);
  accounting.model_flops =
      accounting.layers_model_flops +
      num_microbatches * (ModelProducts(graph, graph.prologue) +
                          ModelProducts(graph, graph.epilogue));
  for (const FlopConvention convention : kFlopConventions) {
    accounting.token_flops.push_back(
        {convention, FlopsPerToken(graph, convention)});
  }
  tensors.ForEach([&](const std::string& name, int, int64_t, bool) {
    accounting.tensors.push_back({name, {}, {}});
  });
  for (size_t p = 0; p < kPaperPolicies.size(); ++p) {
    MemorySpec memory = spec.memory;
    memory.policy = kPaperPolicies[p];
    memory.group = 1;
    EBB_ASSIGN_OR_RETURN(const Plan plan, MakePolicyPlan(graph, memory));
    EBB_ASSIGN_OR_RETURN(const Program program,
                         LowerTraining(graph, plan, spec.optimizer,
                                       spec.num_microbatches(), backend));
    const Dropped dropped(graph, plan);
    const std::map<std::string, int64_t> kept = KeptByProgram(program);
    AccountedPolicy& sums = accounting.policies.emplace_back();
    sums.policy = kPaperPolicies[p];
    auto tensor = accounting.tensors.begin();
    tensors.ForEach(
        [&](const std::string&, int value, int64_t paper_bytes, bool is_mask) {
          if (!dropped.Has(value)) tensor->paper_bytes[p] = paper_bytes;
          const auto own = kept.find(graph.values[graph.Storage(value)].name);
          if (!is_mask && own != kept.end()) {
            tensor->ebb_bytes[p] = tensors.PartOf(value, own->second);
          }
          sums.paper.layer_bytes += tensor->paper_bytes[p];
          sums.ebb.layer_bytes += tensor->ebb_bytes[p];
          ++tensor;
        });
    sums.paper.layers_bytes = graph.num_layers * sums.paper.layer_bytes;
    sums.paper.outside_bytes = PaperOutsideBytes(graph);
    sums.ebb.layers_bytes = graph.num_layers * sums.ebb.layer_bytes;
    sums.ebb.outside_bytes =
        program.account.saved_bytes - sums.ebb.layers_bytes;
    double again = 0;  // of one layer and microbatch
    for (const Node& node : graph.layer) {
      if (dropped.RunsAgain(node)) again += ForwardProducts(graph, node);
    }
    sums.paper_recompute_flops = num_microbatches * graph.num_layers * again;
    sums.ebb_recompute_flops = num_microbatches * ProductsRunAgain(program);
  }
  return accounting;
}

}  // namespace ebb
