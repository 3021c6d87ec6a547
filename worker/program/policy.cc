#include "worker/program/policy.h"

#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/ops/attention_context.h"
#include "kernels/ops/dropout.h"
#include "kernels/ops/encode.h"
#include "kernels/ops/op_def.h"
#include "kernels/status.h"

namespace ebb {
namespace {

// The layer node that makes each value, or null.
std::vector<const Node*> Producers(const Graph& graph) {
  std::vector<const Node*> producers(graph.values.size(), nullptr);
  for (const Node& node : graph.layer) {
    const OpDef& def = GetOpDef(node.op);
    for (int slot = 0; slot < def.num_slots(); ++slot) {
      const Role role = def.slots[slot].role;
      if (role == Role::kOutput || role == Role::kAux) {
        producers[node.slots[slot].value] = &node;
      }
    }
  }
  return producers;
}

// Whether `node` makes the value for others to read, not for its own backward
// pass alone (statistics, masks).
bool IsOutputOf(const Graph& graph, const Node* node, int value) {
  if (node == nullptr) return false;
  const OpDef& def = GetOpDef(node->op);
  for (int slot = 0; slot < def.num_slots(); ++slot) {
    if (def.slots[slot].role == Role::kOutput && node->slots[slot].value >= 0 &&
        graph.Storage(node->slots[slot].value) == value) {
      return true;
    }
  }
  return false;
}

int ValueIndex(const Graph& graph, const std::string& name) {
  size_t v = 0;
  while (graph.values[v].name != name) ++v;
  return static_cast<int>(v);
}

// Scores, softmax and the dropout of its result: tensors 5 to 7 of Korthikanti
// et al. 2022, the attention core.
std::set<int> AttentionCore(const Graph& graph) {
  const std::vector<const Node*> producers = Producers(graph);
  std::set<int> core;
  for (const Node& node : graph.layer) {
    if (node.op != Op::kAttentionContext) continue;
    int value = node.slots[attention_context::kProbs].value;
    while (value >= 0 && producers[value] != nullptr) {
      const Node& producer = *producers[value];
      core.insert(value);
      if (producer.op == Op::kAttentionScores) break;
      value = producer.slots[0].value;  // x of softmax and dropout
    }
  }
  return core;
}

// `text` matches `pattern`, in which * stands for any characters. At most
// pattern times text: where what follows a star does not match, the star takes
// one character more, and earlier stars need no second try.
bool Matches(absl::string_view pattern, absl::string_view text) {
  size_t p = 0;
  size_t t = 0;
  size_t star = absl::string_view::npos;  // the last one passed
  size_t star_text = 0;                   // where what follows it was tried
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_text = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != absl::string_view::npos) {
      p = star + 1;
      t = ++star_text;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

// Keeps the values for which `keep(value, layer)` says so, computes the others
// again.
template <typename Keep>
std::vector<Decision> KeepWhere(const Graph& graph, const Keep& keep) {
  return DecideEach(graph, [&keep](int value, int layer) {
    return keep(value, layer) ? ActivationDecision::kKeep
                              : ActivationDecision::kRecompute;
  });
}

// What a list of names in a spec may name.
std::string KnownNames(const Graph& graph) {
  std::set<std::string> known;
  for (const Node& node : graph.layer) known.insert(GetOpDef(node.op).name);
  return absl::StrCat("must name an op or a value of the layers; ops are ",
                      absl::StrJoin(known, " "), ", values are like ",
                      graph.layer.front().name);
}

absl::StatusOr<std::vector<Decision>> DecideCustom(
    const Graph& graph, const std::vector<std::string>& names) {
  const std::vector<const Node*> producers = Producers(graph);
  std::vector<bool> used(names.size(), false);
  const auto keep = [&](int v, int layer) {
    const Node* node = producers[v];
    const std::string value = InstanceName(graph.values[v].name, layer);
    bool kept = true;
    for (size_t i = 0; i < names.size(); ++i) {
      const bool matches =
          (node != nullptr && names[i] == GetOpDef(node->op).name) ||
          (node != nullptr && v != graph.stream &&
           Matches(names[i], InstanceName(node->name, layer))) ||
          Matches(names[i], value);
      if (!matches) continue;
      used[i] = true;
      kept = false;
    }
    return kept;
  };
  std::vector<Decision> decisions = KeepWhere(graph, keep);
  for (size_t i = 0; i < names.size(); ++i) {
    if (used[i]) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "memory.recompute: got ", names[i], ": ", KnownNames(graph)));
  }
  return decisions;
}

}  // namespace

std::vector<Decision> DecideEach(
    const Graph& graph,
    const std::function<ActivationDecision(int value, int layer)>& decide) {
  std::vector<Decision> decisions;
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const Value& value = graph.values[v];
    if (value.kind != ValueKind::kActivation || !value.per_layer ||
        value.view_of >= 0) {
      continue;
    }
    for (int layer = 0; layer < graph.num_layers; ++layer) {
      const ActivationDecision decision = decide(static_cast<int>(v), layer);
      if (layer > 0 && decisions.back().decision == decision) {
        decisions.back().last_layer = layer;
        continue;
      }
      Decision run;
      run.value = value.name;
      run.first_layer = layer;
      run.last_layer = layer;
      run.decision = decision;
      decisions.push_back(std::move(run));
    }
  }
  return decisions;
}

int SqrtGroup(int num_layers) {
  int k = static_cast<int>(std::sqrt(static_cast<double>(num_layers)));
  while (k * k < num_layers) ++k;
  return k;
}

std::vector<int> SavedValues(const Graph& graph) {
  std::set<int> saved;
  for (const Node& node : graph.layer) {
    const OpDef& def = GetOpDef(node.op);
    for (int slot = 0; slot < def.num_slots(); ++slot) {
      if (node.slots[slot].value < 0) continue;
      for (int read = 0; read < def.num_slots(); ++read) {
        if ((def.slots[slot].grad_reads & Reads(read)) == 0) continue;
        const int value = node.slots[read].value;
        if (value >= 0 && graph.values[value].kind == ValueKind::kActivation) {
          saved.insert(graph.Storage(value));
        }
      }
    }
  }
  return {saved.begin(), saved.end()};
}

namespace {

// [layer][value].
using DecisionTable = std::vector<std::vector<ActivationDecision>>;

DecisionTable TableOf(const Graph& graph,
                      const std::vector<Decision>& decisions) {
  DecisionTable table(graph.num_layers,
                      std::vector<ActivationDecision>(
                          graph.values.size(), ActivationDecision::kKeep));
  for (size_t v = 0; v < graph.values.size(); ++v) {
    for (const Decision& decision : decisions) {
      if (decision.value != graph.values[v].name) continue;
      for (int l = decision.first_layer; l <= decision.last_layer; ++l) {
        table[l][v] = decision.decision;
      }
    }
  }
  if (ActivationDecision& first = table[0][graph.stream]; IsRecompute(first)) {
    first = ActivationDecision::kKeep;
  }
  return table;
}

// Finds what the backward pass of the layers reads as forward left it: what
// gradients read and, of what is computed again for them, the inputs that are
// not.
class BackwardReads {
 public:
  BackwardReads(const Graph& graph, const DecisionTable& decisions)
      : graph_(graph),
        decisions_(decisions),
        producers_(Producers(graph)),
        seen_(graph.num_layers, std::vector<bool>(graph.values.size())),
        reads_(seen_) {
    for (int layer = 0; layer < graph.num_layers; ++layer) {
      for (const Node& node : graph.layer) ReadForGradients(node, layer);
    }
  }

  bool operator()(int value, int layer) const { return reads_[layer][value]; }

 private:
  void ReadForGradients(const Node& node, int layer) {
    const OpDef& def = GetOpDef(node.op);
    for (int slot = 0; slot < def.num_slots(); ++slot) {
      if (node.slots[slot].value < 0) continue;
      for (int read = 0; read < def.num_slots(); ++read) {
        if ((def.slots[slot].grad_reads & Reads(read)) != 0) {
          Read(node.slots[read], layer);
        }
      }
    }
  }

  void Read(const ValueRef& ref, int layer) {
    if (ref.value < 0) return;
    const int value = graph_.Storage(ref.value);
    const int at = value == graph_.stream ? layer + ref.shift : layer;
    if (graph_.values[value].kind != ValueKind::kActivation ||
        !graph_.values[value].per_layer || at >= graph_.num_layers ||
        seen_[at][value]) {
      return;
    }
    seen_[at][value] = true;
    if (!IsRecompute(decisions_[at][value])) {
      reads_[at][value] = true;
      return;
    }
    // The input of a layer is made by the layer before.
    const Node& producer = *producers_[value];
    const OpDef& def = GetOpDef(producer.op);
    for (int slot = 0; slot < def.num_slots(); ++slot) {
      const Role role = def.slots[slot].role;
      if (role == Role::kOutput || role == Role::kAux) continue;
      Read(producer.slots[slot], value == graph_.stream ? at - 1 : at);
    }
  }

  const Graph& graph_;
  const DecisionTable& decisions_;
  const std::vector<const Node*> producers_;
  std::vector<std::vector<bool>> seen_;
  std::vector<std::vector<bool>> reads_;
};

void OffloadKept(const Graph& graph, ActivationDecision offload,
                 std::vector<Decision>& decisions) {
  const DecisionTable table = TableOf(graph, decisions);
  const BackwardReads reads(graph, table);
  int last_group = graph.num_layers - 1;
  while (IsRecompute(table[last_group][graph.stream])) {
    --last_group;
  }
  decisions = DecideEach(graph, [&](int v, int layer) {
    const bool goes = table[layer][v] == ActivationDecision::kKeep &&
                      layer < last_group && reads(v, layer);
    return goes ? offload : table[layer][v];
  });
}

absl::StatusOr<Plan> PlanOf(const Graph& graph, const MemorySpec& memory) {
  Plan plan;
  plan.policy = memory.policy;
  plan.graph_fingerprint = graph.Fingerprint();
  switch (memory.policy) {
    case Policy::kNone:
      plan.decisions = KeepWhere(graph, [](int, int) { return true; });
      return plan;
    case Policy::kSelective: {
      const std::set<int> core = AttentionCore(graph);
      plan.decisions =
          KeepWhere(graph, [&core](int v, int) { return core.count(v) == 0; });
      return plan;
    }
    case Policy::kCheap: {
      const std::vector<const Node*> producers = Producers(graph);
      plan.decisions = KeepWhere(graph, [&](int v, int) {
        return v == graph.stream || producers[v] == nullptr ||
               GetOpDef(producers[v]->op).is_product;
      });
      return plan;
    }
    case Policy::kFull:
    case Policy::kSqrt: {
      plan.group = memory.policy == Policy::kSqrt ? SqrtGroup(graph.num_layers)
                                                  : memory.group;
      if (plan.group < 1) {
        return absl::InvalidArgumentError(absl::StrCat(
            "memory.group: got ", plan.group, ": must be at least 1"));
      }
      plan.decisions = KeepWhere(graph, [&](int v, int layer) {
        return v == graph.stream && layer % plan.group == 0;
      });
      return plan;
    }
    case Policy::kCustom: {
      EBB_ASSIGN_OR_RETURN(plan.decisions,
                           DecideCustom(graph, memory.recompute));
      return plan;
    }
    case Policy::kAuto:
      break;
  }
  return absl::InternalError("memory.policy auto is a search, no rule");
}

// `offload` is not kNone.
ActivationDecision OffloadTo(Offload offload) {
  return offload == Offload::kDisk ? ActivationDecision::kOffloadDisk
                                   : ActivationDecision::kOffloadHost;
}

}  // namespace

absl::StatusOr<Plan> MakePolicyPlan(const Graph& graph,
                                    const MemorySpec& memory) {
  EBB_ASSIGN_OR_RETURN(Plan plan, PlanOf(graph, memory));
  if (memory.offload != Offload::kNone) {
    OffloadKept(graph, OffloadTo(memory.offload), plan.decisions);
  }
  EBB_ASSIGN_OR_RETURN(const Encoding encoding,
                       Encoding::Create(graph, memory.encode));
  if (encoding.encodes()) {
    plan.decisions = encoding.Apply(graph, plan.decisions);
  }
  DecideState(memory, plan.decisions);
  return plan;
}

void DecideState(const MemorySpec& memory, std::vector<Decision>& decisions) {
  const auto decide = [&decisions](const char* state, Offload offload) {
    if (offload == Offload::kNone) return;
    Decision decision;
    decision.value = state;
    decision.decision = OffloadTo(offload);
    decisions.push_back(std::move(decision));
  };
  decide(kParameters, memory.offload_parameters);
  decide(kOptimizerState, memory.offload_optimizer);
}

absl::StatusOr<Encoding> Encoding::Create(const Graph& graph,
                                          const EncodeSpec& encode) {
  Encoding encoding;
  if (encode.format == DType::kNone) return encoding;
  encoding.formats_.assign(
      graph.num_layers, std::vector<DType>(graph.values.size(), DType::kNone));
  const std::vector<const Node*> producers = Producers(graph);
  for (const std::string& name : encode.values) {
    bool is_known = false, can_encode = false;
    for (size_t v = 0; v < graph.values.size(); ++v) {
      const Value& value = graph.values[v];
      if (value.kind != ValueKind::kActivation || !value.per_layer ||
          value.view_of >= 0) {
        continue;
      }
      const bool is_narrower =
          value.type.dtype == DType::kF32 ||
          (value.type.dtype == DType::kBf16 && encode.format != DType::kBf16);
      for (int layer = 0; layer < graph.num_layers; ++layer) {
        const bool by_maker =
            IsOutputOf(graph, producers[v], static_cast<int>(v)) &&
            (name == GetOpDef(producers[v]->op).name ||
             (static_cast<int>(v) != graph.stream &&
              Matches(name, InstanceName(producers[v]->name, layer))));
        if (!by_maker && !Matches(name, InstanceName(value.name, layer))) {
          continue;
        }
        is_known = true;
        if (!is_narrower) continue;
        can_encode = true;
        encoding.formats_[layer][v] = encode.format;
      }
    }
    if (!is_known) {
      return absl::InvalidArgumentError(absl::StrCat(
          "memory.encode.values: got ", name, ": ", KnownNames(graph)));
    }
    if (!can_encode) {
      return absl::InvalidArgumentError(absl::StrCat(
          "memory.encode.values: got ", name,
          ": must name values of elements that are wider than ",
          DTypeName(encode.format), "; what it names are bits, or ",
          DTypeName(DType::kBf16), " already"));
    }
  }
  return encoding;
}

int64_t Encoding::KeptBytes(const Graph& graph, int value, int layer) const {
  const TensorType& type = graph.values[value].type;
  const DType format = FormatOf(value, layer);
  return format == DType::kNone ? AlignUp(type.bytes())
                                : EncodedBytes(type, format);
}

int64_t EncodedBytes(const TensorType& type, DType format) {
  int64_t bytes = AlignUp(type.WithDType(format).bytes());
  if (format == DType::kF8E4M3) {
    bytes += AlignUp(encode::ScaleType(type).bytes());
  }
  return bytes;
}

std::vector<Decision> Encoding::Apply(
    const Graph& graph, const std::vector<Decision>& decisions) const {
  const DecisionTable table = TableOf(graph, decisions);
  const BackwardReads reads(graph, table);
  std::vector<Decision> marked;
  for (const Decision& run : DecideEach(
           graph, [&table](int v, int layer) { return table[layer][v]; })) {
    const int v = ValueIndex(graph, run.value);
    for (int layer = run.first_layer; layer <= run.last_layer; ++layer) {
      const DType encoded = !IsRecompute(run.decision) && reads(v, layer)
                                ? FormatOf(v, layer)
                                : DType::kNone;
      if (layer > run.first_layer && marked.back().encoded == encoded) {
        marked.back().last_layer = layer;
        continue;
      }
      Decision part = run;
      part.first_layer = part.last_layer = layer;
      part.encoded = encoded;
      marked.push_back(std::move(part));
    }
  }
  return marked;
}

}  // namespace ebb
