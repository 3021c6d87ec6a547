// Builds the decoder graph node by node. The model knows one layer; that there
// are many, and what is recomputed, is the program's business.
#include "worker/model/transformer.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/ops/op_def.h"
#include "kernels/status.h"

namespace ebb {
namespace {

// Standard deviation of GPT-2's initial weights (Radford et al. 2019; the
// released configuration's initializer_range).
constexpr double kInitStd = 0.02;

// Adds values and nodes to one section of a graph. Types of outputs come from
// the op's own inference.
class Section {
 public:
  Section(Graph& graph, std::vector<Node>& nodes, bool per_layer)
      : graph_(graph), nodes_(nodes), per_layer_(per_layer) {}

  // Name of a node or value of this section: "L*.qkv" in the layer.
  std::string Name(absl::string_view name) const {
    return absl::StrCat(per_layer_ ? "L*." : "", name);
  }

  int Parameter(absl::string_view name, TensorType type, Init init,
                double std = 0) {
    Value value;
    value.name = Name(name);
    value.type = type;
    value.kind = ValueKind::kParameter;
    value.per_layer = per_layer_;
    value.init = init;
    value.init_std = std;
    value.decays = type.rank > 1;
    return Append(std::move(value));
  }

  // Columns [column, column + width) of each row of `of`.
  int View(absl::string_view name, int of, int64_t column, int64_t width) {
    Value value;
    value.name = Name(name);
    value.type = graph_.values[of].type;
    value.type.dims[1] = width;
    value.per_layer = per_layer_;
    value.view_of = of;
    value.view_column = column;
    return Append(std::move(value));
  }

  // Adds a node whose input and param slots are `inputs`, in the op's order,
  // makes its outputs and returns the first. `into` gives the first output's
  // place instead (the stream).
  int Apply(absl::string_view name, Op op, const OpAttrs& attrs,
            std::vector<ValueRef> inputs, ValueRef into = {}) {
    const OpDef& def = GetOpDef(op);
    Node node;
    node.name = Name(name);
    node.op = op;
    node.attrs = attrs;
    std::vector<TensorType> types(def.num_slots());
    size_t next = 0;
    for (const SlotDef& slot : def.slots) {
      ValueRef ref;
      if (slot.role != Role::kOutput && slot.role != Role::kAux) {
        ref = inputs[next++];
      }
      if (ref.value >= 0) {
        types[node.slots.size()] = graph_.values[ref.value].type;
      }
      node.slots.push_back(ref);
    }
    if (absl::Status s = def.infer(attrs, types); !s.ok()) {
      if (status_.ok()) status_ = Annotate(s, node.name);
      return 0;
    }
    int first = -1;
    for (int slot = 0; slot < def.num_slots(); ++slot) {
      const Role role = def.slots[slot].role;
      if (role != Role::kOutput && role != Role::kAux) continue;
      if (first < 0 && into.value >= 0) {
        node.slots[slot] = into;
        first = into.value;
        continue;
      }
      Value value;
      value.name = absl::StrCat(node.name, ".", def.slots[slot].name);
      value.type = types[slot];
      value.per_layer = per_layer_;
      node.slots[slot].value = Append(std::move(value));
      if (first < 0) first = node.slots[slot].value;
    }
    // Fused attention and the dropout of unfused attention draw the same mask.
    if (attrs.dropout > 0) {
      node.random_name =
          op == Op::kAttention ? Name("attention_dropout") : node.name;
    }
    nodes_.push_back(std::move(node));
    return first;
  }

  const absl::Status& status() const { return status_; }

 private:
  int Append(Value value) {
    graph_.values.push_back(std::move(value));
    return static_cast<int>(graph_.values.size()) - 1;
  }

  Graph& graph_;
  std::vector<Node>& nodes_;
  bool per_layer_;
  absl::Status status_;
};

// Weights and biases of the parts of a model, by its options.
class Builder {
 public:
  Builder(const ModelSpec& model, int64_t micro_batch, int64_t seq_len,
          int64_t loss_tokens, bool training, DType dtype)
      : model_(model),
        num_tokens_(micro_batch * seq_len),
        loss_tokens_(loss_tokens),
        dropout_(training ? static_cast<float>(model.dropout) : 0.0f),
        dtype_(dtype) {
    graph_.num_layers = model.layers;
    graph_.micro_batch = micro_batch;
    graph_.seq_len = seq_len;
  }

  absl::StatusOr<Graph> Build() && {
    AddBatch();
    Section prologue(graph_, graph_.prologue, false);
    Section layer(graph_, graph_.layer, true);
    Section epilogue(graph_, graph_.epilogue, false);
    AddEmbedding(prologue);
    AddLayer(layer);
    AddHead(epilogue);
    EBB_RETURN_IF_ERROR(prologue.status());
    EBB_RETURN_IF_ERROR(layer.status());
    EBB_RETURN_IF_ERROR(epilogue.status());
    return std::move(graph_);
  }

 private:
  void AddBatch() {
    Value tokens;
    tokens.name = "tokens";
    tokens.type = TensorType(DType::kI32, num_tokens_);
    tokens.kind = ValueKind::kBatch;
    Value targets = tokens;
    targets.name = "targets";
    Value stream;
    stream.name = "L*.input";
    stream.type = TensorType(dtype_, num_tokens_, model_.hidden);
    stream.per_layer = true;
    graph_.tokens = 0;
    graph_.targets = 1;
    graph_.stream = 2;
    graph_.values = {tokens, targets, stream};
  }

  OpAttrs Attrs() const {
    OpAttrs attrs;
    attrs.seq_len = static_cast<int32_t>(graph_.seq_len);
    return attrs;
  }

  OpAttrs HeadAttrs() const {
    OpAttrs attrs = Attrs();
    attrs.num_heads = model_.heads;
    attrs.num_kv_heads = model_.kv_heads;
    return attrs;
  }

  int Linear(Section& section, absl::string_view name, ValueRef x, int64_t in,
             int64_t out, double std) {
    const int weight =
        section.Parameter(absl::StrCat(name, ".weight"),
                          TensorType(dtype_, out, in), Init::kNormal, std);
    ValueRef bias;
    if (model_.bias) {
      bias.value = section.Parameter(absl::StrCat(name, ".bias"),
                                     TensorType(dtype_, out), Init::kZeros);
    }
    return section.Apply(name, Op::kLinear, Attrs(), {x, {weight}, bias});
  }

  int Norm(Section& section, absl::string_view name, ValueRef x) {
    const TensorType type(dtype_, model_.hidden);
    const int gain =
        section.Parameter(absl::StrCat(name, ".gain"), type, Init::kOnes);
    OpAttrs attrs = Attrs();
    attrs.epsilon = static_cast<float>(model_.norm_eps);
    if (model_.norm == Norm::kRmsNorm) {
      return section.Apply(name, Op::kRmsNorm, attrs, {x, {gain}});
    }
    ValueRef bias;
    if (model_.bias) {
      bias.value =
          section.Parameter(absl::StrCat(name, ".bias"), type, Init::kZeros);
    }
    return section.Apply(name, Op::kLayerNorm, attrs, {x, {gain}, bias});
  }

  // Dropout of x, or x itself where the model has none.
  int Dropout(Section& section, absl::string_view name, int x) {
    if (dropout_ == 0) return x;
    OpAttrs attrs = HeadAttrs();
    attrs.dropout = dropout_;
    return section.Apply(name, Op::kDropout, attrs, {{x}});
  }

  void AddEmbedding(Section& section) {
    token_weight_ = section.Parameter(
        "embedding.weight", TensorType(dtype_, model_.vocab, model_.hidden),
        Init::kNormal, kInitStd);
    const bool learned = model_.positions == Positions::kLearned;
    int positions = -1;
    if (learned) {
      positions =
          section.Parameter("position_embedding.weight",
                            TensorType(dtype_, model_.seq_len, model_.hidden),
                            Init::kNormal, kInitStd);
    }
    // The last of the nodes writes the layers' first input.
    const ValueRef first_input = {graph_.stream, 0};
    const ValueRef if_last = dropout_ == 0 ? first_input : ValueRef();
    int y = section.Apply("embedding", Op::kEmbedding, Attrs(),
                          {{graph_.tokens}, {token_weight_}},
                          learned ? ValueRef() : if_last);
    if (learned) {
      y = section.Apply("position_embedding", Op::kPositionEmbedding, Attrs(),
                        {{y}, {positions}}, if_last);
    }
    if (dropout_ == 0) return;
    OpAttrs attrs = Attrs();
    attrs.dropout = dropout_;
    section.Apply("embedding_dropout", Op::kDropout, attrs, {{y}}, first_input);
  }

  // The feed-forward width doubles where the activation is gated.
  int Mlp(Section& layer, int x, double residual_std) {
    const bool gated = model_.activation == Activation::kSwiglu;
    const int64_t fc_width = gated ? 2 * model_.ffn : model_.ffn;
    const int fc =
        Linear(layer, "mlp.fc", {x}, model_.hidden, fc_width, kInitStd);
    const Op op = gated                                    ? Op::kSwiglu
                  : model_.activation == Activation::kRelu ? Op::kRelu
                                                           : Op::kGelu;
    const int act = layer.Apply("mlp.act", op, Attrs(), {{fc}});
    return Linear(layer, "mlp.out", {act}, model_.ffn, model_.hidden,
                  residual_std);
  }

  int Attention(Section& layer, int q, int k, int v) {
    OpAttrs attrs = HeadAttrs();
    if (model_.attention == AttentionKind::kFused) {
      attrs.dropout = dropout_;
      return layer.Apply("attention", Op::kAttention, attrs, {{q}, {k}, {v}});
    }
    const int scores = layer.Apply("attention_scores", Op::kAttentionScores,
                                   attrs, {{q}, {k}});
    int probs =
        layer.Apply("attention_softmax", Op::kCausalSoftmax, attrs, {{scores}});
    probs = Dropout(layer, "attention_dropout", probs);
    return layer.Apply("attention_context", Op::kAttentionContext, attrs,
                       {{probs}, {v}});
  }

  void AddLayer(Section& layer) {
    const int64_t hidden = model_.hidden;
    const int64_t kv_width = hidden / model_.heads * model_.kv_heads;
    // Radford et al. 2019, section 2.3: weights of residual layers are scaled
    // at initialisation by 1 / sqrt(number of residual layers), two a layer.
    const double residual_std = kInitStd / std::sqrt(2.0 * model_.layers);
    const ValueRef input = {graph_.stream, 0};

    const int norm = Norm(layer, "attention_norm", input);
    int qkv =
        Linear(layer, "qkv", {norm}, hidden, hidden + 2 * kv_width, kInitStd);
    if (model_.positions == Positions::kRope) {
      OpAttrs attrs = HeadAttrs();
      attrs.rope_theta = model_.rope_theta;
      qkv = layer.Apply("rope", Op::kRope, attrs, {{qkv}});
    }
    const int q = layer.View("q", qkv, 0, hidden);
    const int k = layer.View("k", qkv, hidden, kv_width);
    const int v = layer.View("v", qkv, hidden + kv_width, kv_width);
    const int context = Attention(layer, q, k, v);
    int out =
        Linear(layer, "attention_out", {context}, hidden, hidden, residual_std);
    out = Dropout(layer, "attention_out_dropout", out);
    const int middle =
        layer.Apply("attention_add", Op::kAdd, Attrs(), {input, {out}});

    const int mlp_norm = Norm(layer, "mlp_norm", {middle});
    int mlp_out = Mlp(layer, mlp_norm, residual_std);
    mlp_out = Dropout(layer, "mlp.out_dropout", mlp_out);
    layer.Apply("mlp_add", Op::kAdd, Attrs(), {{middle}, {mlp_out}},
                {graph_.stream, 1});
  }

  void AddHead(Section& section) {
    const int norm =
        Norm(section, "final_norm", {graph_.stream, graph_.num_layers});
    int weight = token_weight_;
    if (!model_.tied_embeddings) {
      weight = section.Parameter(
          "head.weight", TensorType(dtype_, model_.vocab, model_.hidden),
          Init::kNormal, kInitStd);
    }
    const int logits =
        section.Apply("head", Op::kLinear, Attrs(), {{norm}, {weight}, {}});
    OpAttrs attrs = Attrs();
    attrs.loss_scale =
        static_cast<float>(1.0 / static_cast<double>(loss_tokens_));
    graph_.losses = section.Apply("loss", Op::kCrossEntropy, attrs,
                                  {{logits}, {graph_.targets}});
  }

  const ModelSpec& model_;
  const int64_t num_tokens_;
  const int64_t loss_tokens_;
  const float dropout_;
  const DType dtype_;
  Graph graph_;
  int token_weight_ = -1;
};

}  // namespace

absl::StatusOr<Graph> BuildTransformer(const ModelSpec& model,
                                       int64_t micro_batch, int64_t seq_len,
                                       int64_t loss_tokens, bool training,
                                       DType dtype) {
  if (seq_len > model.seq_len) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequences of ", seq_len,
                     " tokens exceed model.seq_len: ", model.seq_len));
  }
  return Builder(model, micro_batch, seq_len, loss_tokens, training, dtype)
      .Build();
}

}  // namespace ebb
