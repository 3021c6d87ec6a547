// Each product twice: by the kernel of `linear` and by oneDNN alone, so that a
// slow kernel cannot make its own share look good.
#include "integration_tests/bench/product_rates.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "kernels/backend.h"
#include "kernels/bf16.h"
#include "kernels/device.h"
#include "kernels/kernel_table.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/op_def.h"
#include "kernels/status.h"

namespace ebb::bench {
namespace {

using Kind = ProductShape::Kind;

double BestOfFive(const std::function<void()>& body) {
  double best = std::numeric_limits<double>::infinity();
  body();
  for (int n = 0; n < 5; ++n) {
    const auto start = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double> seconds =
        std::chrono::steady_clock::now() - start;
    best = std::min(best, seconds.count());
  }
  return best;
}

// Populated memory for the products, one after the other.
class Storage {
 public:
  explicit Storage(Device& device) : device_(device) {}
  ~Storage() { Clear(); }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  Tensor Make(const TensorType& type) {
    const Tensor tensor = {Bytes(type.bytes()), type, type.row_elements()};
    for (int64_t i = 0; i < type.num_elements(); ++i) {
      const float value = static_cast<float>(i * 7919 % 2003) / 1001 - 1;
      if (type.dtype == DType::kF32) tensor.as<float>()[i] = value;
      if (type.dtype == DType::kBf16) {
        tensor.as<Bf16>()[i] = RoundToBf16(value);
      }
    }
    return tensor;
  }
  void* Bytes(int64_t bytes) {
    if (bytes == 0) return nullptr;
    auto memory = device_.Allocate(bytes);
    EBB_CHECK(memory.ok());
    taken_.push_back({*memory, bytes});
    return *memory;
  }
  void Clear() {
    for (const auto& [memory, bytes] : taken_) device_.Free(memory, bytes);
    taken_.clear();
  }

 private:
  Device& device_;
  std::vector<std::pair<void*, int64_t>> taken_;
};

double KernelSeconds(const ProductShape& shape, DType precision,
                     Device& device) {
  Storage storage(device);
  const OpDef& def = GetOpDef(Op::kLinear);
  const KernelRow& row = *FindKernels(device.kernels(), Op::kLinear, precision);
  const OpAttrs attrs;
  const StepScalars scalars = {.seed = 1, .step = 1};
  std::vector<TensorType> types(linear::kNumSlots);
  types[linear::kX] = {precision, shape.rows, shape.inputs};
  types[linear::kWeight] = {precision, shape.outputs, shape.inputs};
  EBB_CHECK(def.infer(attrs, types).ok());
  std::vector<Tensor> slots(types.size()), grads(types.size());
  uint32_t bound = 0;
  switch (shape.kind) {
    case Kind::kForward:
      slots[linear::kX] = storage.Make(types[linear::kX]);
      slots[linear::kWeight] = storage.Make(types[linear::kWeight]);
      slots[linear::kY] = storage.Make(types[linear::kY]);
      break;
    case Kind::kInputGradient:
      bound = Reads(linear::kX);
      slots[linear::kWeight] = storage.Make(types[linear::kWeight]);
      grads[linear::kX] = storage.Make(types[linear::kX]);
      grads[linear::kY] = storage.Make(types[linear::kY]);
      break;
    case Kind::kWeightGradient: {
      bound = Reads(linear::kWeight);
      TensorType gradient = types[linear::kWeight];
      gradient.dtype = DType::kF32;
      slots[linear::kX] = storage.Make(types[linear::kX]);
      grads[linear::kWeight] = storage.Make(gradient);
      grads[linear::kY] = storage.Make(types[linear::kY]);
      break;
    }
  }
  OpCall call = {.attrs = &attrs,
                 .slots = slots.data(),
                 .grads = bound != 0 ? grads.data() : nullptr,
                 .scalars = &scalars};
  call.workspace_bytes =
      def.workspace_bytes(attrs, types, bound, device.backend());
  call.workspace = storage.Bytes(call.workspace_bytes);
  const Kernel kernel = bound != 0 ? row.backward : row.forward;
  return BestOfFive(
      [&] { EBB_CHECK(device.Launch(kernel, call, nullptr).ok()); });
}

// 0 where oneDNN has no such product on this machine.
double LibrarySeconds(const ProductShape& shape, DType precision,
                      Device& device) {
  using dnnl::memory;
  if (precision == DType::kBf16 &&
      !HasBf16Products(device.backend().instruction_set)) {
    return 0;
  }
  const auto element = precision == DType::kBf16 ? memory::data_type::bf16
                                                 : memory::data_type::f32;
  Storage storage(device);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const auto rows_first = memory::format_tag::ab;
  const auto columns_first = memory::format_tag::ba;
  const int64_t n = shape.rows, in = shape.inputs, out = shape.outputs;
  // A [m, k] times B [k, n], and whether B is a weight, which may be packed.
  memory::desc a, b, c;
  bool pack = false;
  dnnl::primitive_attr attributes;
  switch (shape.kind) {
    case Kind::kForward:
      a = {{n, in}, element, rows_first};
      b = {{in, out}, element, columns_first};
      c = {{n, out}, element, rows_first};
      pack = true;
      break;
    case Kind::kInputGradient:
      a = {{n, out}, element, rows_first};
      b = {{out, in}, element, rows_first};
      c = {{n, in}, element, rows_first};
      pack = true;
      break;
    case Kind::kWeightGradient: {
      a = {{out, n}, element, columns_first};
      b = {{n, in}, element, rows_first};
      c = {{out, in}, memory::data_type::f32, rows_first};
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
      break;
    }
  }
  try {
    const memory::desc any(b.dims(), element, memory::format_tag::any);
    const dnnl::matmul::primitive_desc chosen(
        dnnl::matmul::desc(a, pack ? any : b, c), attributes, engine);
    const auto make = [&](const memory::desc& desc) {
      const int64_t bytes = static_cast<int64_t>(desc.get_size());
      return memory(
          desc, engine,
          storage.Make(TensorType(DType::kF32, (bytes + 3) / 4)).data);
    };
    const memory source = make(a), plain = make(b), product = make(c);
    memory weights = plain;
    if (chosen.weights_desc() != b) {
      weights = make(chosen.weights_desc());
      dnnl::reorder(plain, weights)
          .execute(stream, const_cast<memory&>(plain), weights);
    }
    const dnnl::matmul matmul(chosen);
    const std::unordered_map<int, memory> arguments = {
        {DNNL_ARG_SRC, source},
        {DNNL_ARG_WEIGHTS, weights},
        {DNNL_ARG_DST, product}};
    return BestOfFive([&] {
      matmul.execute(stream, arguments);
      stream.wait();
    });
  } catch (const dnnl::error&) {
    return 0;
  }
}

}  // namespace

std::vector<ProductRate> MeasureProducts(
    const std::vector<CountedProduct>& products, DType precision, int threads) {
  auto device = MakeCpuDevice(DescribeCpu(threads));
  EBB_CHECK(device.ok());
  std::vector<ProductRate> rates;
  for (const CountedProduct& product : products) {
    rates.push_back(
        {.shape = product.shape,
         .count = product.count,
         .kernel_seconds = KernelSeconds(product.shape, precision, **device),
         .library_seconds =
             LibrarySeconds(product.shape, precision, **device)});
  }
  return rates;
}

double WeightedRate(const std::vector<ProductRate>& rates) {
  double flops = 0, seconds = 0;
  for (const ProductRate& rate : rates) {
    flops += static_cast<double>(rate.count) * rate.shape.flops();
    seconds += static_cast<double>(rate.count) * rate.best_seconds();
  }
  return seconds > 0 ? flops / seconds : 0;
}

}  // namespace ebb::bench
