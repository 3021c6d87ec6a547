// Names, keys and the fingerprint of a graph.
#include "worker/model/graph.h"

#include <bit>

#include "absl/strings/str_cat.h"
#include "kernels/philox.h"

namespace ebb {
namespace {

// FNV-1a over bytes, 64 bits; fed with numbers by their value so that the
// result is the same on every machine.
class Hash {
 public:
  void Add(absl::string_view text) {
    Add(static_cast<int64_t>(text.size()));
    for (char c : text) AddByte(static_cast<uint8_t>(c));
  }
  void Add(int64_t number) {
    for (int i = 0; i < 8; ++i) {
      AddByte(static_cast<uint8_t>(static_cast<uint64_t>(number) >> (8 * i)));
    }
  }
  void Add(double number) {
    Add(static_cast<int64_t>(std::bit_cast<uint64_t>(number)));
  }
  uint64_t value() const { return value_; }

 private:
  void AddByte(uint8_t byte) { value_ = (value_ ^ byte) * 0x100000001B3ull; }
  uint64_t value_ = 0xCBF29CE484222325ull;
};

void AddNodes(const std::vector<Node>& nodes, Hash& hash) {
  hash.Add(static_cast<int64_t>(nodes.size()));
  for (const Node& node : nodes) {
    hash.Add(node.name);
    hash.Add(node.random_name);
    hash.Add(static_cast<int64_t>(node.op));
    const OpAttrs& a = node.attrs;
    for (int64_t number : {a.num_heads, a.num_kv_heads, a.seq_len}) {
      hash.Add(number);
    }
    hash.Add(a.rope_theta);
    for (double number : {a.epsilon, a.dropout, a.loss_scale, a.beta1, a.beta2,
                          a.weight_decay, a.clip}) {
      hash.Add(number);
    }
    for (const ValueRef& ref : node.slots) {
      hash.Add(int64_t{ref.value});
      hash.Add(int64_t{ref.shift});
    }
  }
}

}  // namespace

int64_t Graph::num_parameters() const {
  int64_t sum = 0;
  for (const Value& value : values) {
    if (value.kind != ValueKind::kParameter) continue;
    sum += value.type.num_elements() * (value.per_layer ? num_layers : 1);
  }
  return sum;
}

uint64_t Graph::Fingerprint() const {
  Hash hash;
  for (const Value& value : values) {
    hash.Add(value.name);
    hash.Add(static_cast<int64_t>(value.type.dtype));
    for (int64_t dim : value.type.dims) hash.Add(dim);
    hash.Add(static_cast<int64_t>(value.kind));
    hash.Add(static_cast<int64_t>(value.init));
    hash.Add(value.init_std);
    hash.Add(static_cast<int64_t>(value.decays));
    hash.Add(int64_t{value.view_of});
    hash.Add(value.view_column);
  }
  AddNodes(prologue, hash);
  AddNodes(layer, hash);
  AddNodes(epilogue, hash);
  for (int64_t number : {int64_t{num_layers}, micro_batch, seq_len}) {
    hash.Add(number);
  }
  return hash.value();
}

std::string InstanceName(absl::string_view name, int layer) {
  const size_t star = name.find('*');
  if (star == absl::string_view::npos) return std::string(name);
  return absl::StrCat(name.substr(0, star), layer, name.substr(star + 1));
}

uint64_t ValueKey(absl::string_view name, int layer) {
  Hash hash;
  hash.Add(name);
  const bool per_layer = name.find('*') != absl::string_view::npos;
  return philox::Mix(hash.value() +
                     static_cast<uint64_t>(per_layer ? layer + 1 : 0));
}

}  // namespace ebb
