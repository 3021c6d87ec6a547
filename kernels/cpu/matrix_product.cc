// Primitives of oneDNN 2.6, cached by shape.
#include "kernels/cpu/matrix_product.h"

#include <omp.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "kernels/cpu/instruction_set.h"
#include "kernels/cpu/thread_team.h"
#include "kernels/tensor.h"

namespace ebb::cpu {
namespace {

// Rows of C that one thread takes at least: below, packing the other operand
// costs more than a second thread brings.
constexpr int64_t kRowGrain = 32;
constexpr int kMaxParts = 256;

const dnnl::engine& Engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

struct Shape {
  DType dtype, c_dtype;
  int64_t m, n, k;
  int threads;  // that the primitive is made for
  bool a_transposed, b_transposed, bias, add;
  bool operator==(const Shape&) const = default;
};

struct ShapeHash {
  size_t operator()(const Shape& shape) const {
    uint64_t hash = 0;
    for (const int64_t part :
         {shape.m, shape.n, shape.k, int64_t{shape.threads},
          int64_t{shape.a_transposed} | int64_t{shape.b_transposed} << 1 |
              int64_t{shape.bias} << 2 | int64_t{shape.add} << 3 |
              static_cast<int64_t>(shape.dtype) << 4 |
              static_cast<int64_t>(shape.c_dtype) << 8}) {
      hash = (hash ^ static_cast<uint64_t>(part)) * 0x9E3779B97F4A7C15ull;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

// What one part of a product hands to its primitive: made once, then only
// addresses change.
struct Arguments {
  dnnl::stream stream;
  dnnl::memory a, b, c, bias, scratch;
};

// One shape's primitive, empty where oneDNN has no kernel that keeps to the
// caller's scratch.
struct Entry {
  dnnl::primitive primitive;
  int64_t scratch_bytes = -1;
  dnnl::memory::desc a, b, c, bias, scratch;
  std::array<std::unique_ptr<Arguments>, kMaxParts> arguments;  // by part

  bool usable() const { return scratch_bytes >= 0; }
};

// Sets the size of the calling thread's team, for which oneDNN plans.
class TeamSize {
 public:
  explicit TeamSize(int threads) : before_(omp_get_max_threads()) {
    omp_set_num_threads(threads);
  }
  ~TeamSize() { omp_set_num_threads(before_); }
  TeamSize(const TeamSize&) = delete;
  TeamSize& operator=(const TeamSize&) = delete;

 private:
  const int before_;
};

dnnl::memory::data_type LibraryType(DType dtype) {
  return dtype == DType::kBf16 ? dnnl::memory::data_type::bf16
                               : dnnl::memory::data_type::f32;
}

std::unique_ptr<Entry> MakeEntry(const Shape& shape) {
  using dnnl::memory;
  auto entry = std::make_unique<Entry>();
  const auto matrix = [](DType dtype, int64_t rows, int64_t columns,
                         bool transposed) {
    return memory::desc(
        {rows, columns}, LibraryType(dtype),
        transposed ? memory::dims{1, rows} : memory::dims{columns, 1});
  };
  entry->a = matrix(shape.dtype, shape.m, shape.k, shape.a_transposed);
  entry->b = matrix(shape.dtype, shape.k, shape.n, shape.b_transposed);
  entry->c = matrix(shape.c_dtype, shape.m, shape.n, false);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (shape.add) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  if (shape.bias) entry->bias = matrix(shape.dtype, 1, shape.n, false);
  const auto description =
      shape.bias ? dnnl::matmul::desc(entry->a, entry->b, entry->bias, entry->c)
                 : dnnl::matmul::desc(entry->a, entry->b, entry->c);
  const TeamSize team_size(shape.threads);
  const dnnl::matmul::primitive_desc chosen(description, attributes, Engine());
  // The other implementations (gemm) allocate behind the scratchpad.
  if (std::strncmp(chosen.impl_info_str(), "brg", 3) != 0) return entry;
  entry->scratch = chosen.scratchpad_desc();
  entry->primitive = dnnl::matmul(chosen);
  entry->scratch_bytes = static_cast<int64_t>(entry->scratch.get_size());
  return entry;
}

// Finds or makes the entry of the calling thread: threads that launch kernels
// at once do not meet. The code behind equal primitives is shared by oneDNN.
Entry& EntryFor(const Shape& shape) {
  static thread_local std::unordered_map<Shape, std::unique_ptr<Entry>,
                                         ShapeHash>
      entries;
  std::unique_ptr<Entry>& entry = entries[shape];
  if (entry == nullptr) entry = MakeEntry(shape);
  return *entry;
}

Arguments& ArgumentsOf(Entry& entry, int part) {
  std::unique_ptr<Arguments>& arguments = entry.arguments[part];
  if (arguments == nullptr) {
    const auto unset = [](const dnnl::memory::desc& desc) {
      return dnnl::memory(desc, Engine(), DNNL_MEMORY_NONE);
    };
    arguments = std::make_unique<Arguments>();
    arguments->stream = dnnl::stream(Engine());
    arguments->a = unset(entry.a);
    arguments->b = unset(entry.b);
    arguments->c = unset(entry.c);
    arguments->scratch = unset(entry.scratch);
    if (entry.bias.get_size() != 0) arguments->bias = unset(entry.bias);
  }
  return *arguments;
}

dnnl_status_t Execute(const Entry& entry, const Arguments& arguments,
                      const StridedProduct& product, void* scratch) {
  struct Binding {
    int argument;
    const dnnl::memory& memory;
    void* data;
  };
  const Binding bindings[] = {
      {DNNL_ARG_SRC, arguments.a, const_cast<void*>(product.a)},
      {DNNL_ARG_WEIGHTS, arguments.b, const_cast<void*>(product.b)},
      {DNNL_ARG_DST, arguments.c, product.c},
      {DNNL_ARG_SCRATCHPAD, arguments.scratch, scratch},
      {DNNL_ARG_BIAS, arguments.bias, const_cast<void*>(product.bias)},
  };
  const int count = product.bias != nullptr ? 5 : 4;
  dnnl_exec_arg_t executed[5];
  for (int i = 0; i < count; ++i) {
    const dnnl_memory_t memory = bindings[i].memory.get();
    const dnnl_status_t status = dnnl_memory_set_data_handle_v2(
        memory, bindings[i].data, arguments.stream.get());
    if (status != dnnl_success) return status;
    executed[i] = {bindings[i].argument, memory};
  }
  return dnnl_primitive_execute(entry.primitive.get(), arguments.stream.get(),
                                count, executed);
}

// Whether stored rows lie side by side, which is all that oneDNN's fast
// kernels take.
bool IsDense(const StridedProduct& product) {
  return product.factor == 1 && product.num_terms == 1 &&
         product.a_stride == (product.a_transposed ? product.m : product.k) &&
         product.b_stride == (product.b_transposed ? product.k : product.n) &&
         product.c_stride == product.n;
}

// Whether rows of B lie so that columns fall into few sets of a cache and
// oneDNN, which copies B only where their length is a power of two, reads them
// in place: 3072 columns run at half the rate of 3008. MultiplyStrided packs.
// bf16 is always copied.
bool RowsCollide(const StridedProduct& product) {
  if (product.dtype == DType::kBf16) return false;
  const bool is_power = (product.n & (product.n - 1)) == 0;
  return !product.b_transposed && product.n % 512 == 0 && !is_power;
}

bool HasInstructions(DType dtype) {
  return dtype == DType::kF32 || HasBf16Instructions();
}

bool OneDnnFits(const StridedProduct& product) {
  return IsDense(product) && !RowsCollide(product) &&
         HasInstructions(product.dtype);
}

// Rows begin .. end - 1 of the product.
StridedProduct RowsOf(const StridedProduct& product, Range rows) {
  StridedProduct part = product;
  part.m = rows.end - rows.begin;
  part.a = static_cast<const char*>(part.a) +
           rows.begin * (product.a_transposed ? 1 : product.a_stride) *
               DTypeBytes(product.dtype);
  part.c = static_cast<char*>(part.c) +
           rows.begin * product.c_stride * DTypeBytes(product.c_dtype);
  return part;
}

Shape ShapeOf(const StridedProduct& product, int threads) {
  return {.dtype = product.dtype,
          .c_dtype = product.c_dtype,
          .m = product.m,
          .n = product.n,
          .k = product.k,
          .threads = threads,
          .a_transposed = product.a_transposed,
          .b_transposed = product.b_transposed,
          .bias = product.bias != nullptr,
          .add = product.add};
}

int PartsOf(const StridedProduct& product) {
  return static_cast<int>(std::min<int64_t>(
      {NumThreads(), kMaxParts, (product.m + kRowGrain - 1) / kRowGrain}));
}

// The device turns the library's exception into a status.
void Check(dnnl_status_t status) {
  dnnl::error::wrap_c_api(status, "matrix product failed");
}

}  // namespace

int64_t OneDnnScratchBytes(const StridedProduct& product) {
  if (!OneDnnFits(product)) return -1;
  if (product.a_transposed) {
    return EntryFor(ShapeOf(product, NumThreads())).scratch_bytes;
  }
  return EntryFor(ShapeOf(product, 1)).scratch_bytes;
}

void MultiplyMatrices(const StridedProduct& product, void* workspace,
                      int64_t workspace_bytes) {
  const bool fits = OneDnnFits(product);
  if (fits && product.a_transposed) {
    // Some rows of a transposed A are not dense: one primitive for the team.
    Entry& entry = EntryFor(ShapeOf(product, NumThreads()));
    if (entry.usable() && entry.scratch_bytes <= workspace_bytes) {
      Check(Execute(entry, ArgumentsOf(entry, 0), product, workspace));
      return;
    }
  }
  const int num_parts = PartsOf(product);
  const int64_t part_bytes =
      workspace_bytes / num_parts / kAlignment * kAlignment;
  const auto rows_of = [&](int64_t part) {
    return RowsOf(product, PartOf(product.m, kRowGrain, static_cast<int>(part),
                                  num_parts));
  };
  // Found before the threads start: making one may throw.
  std::array<Entry*, kMaxParts> entries = {};
  if (fits && !product.a_transposed) {
    for (int part = 0; part < num_parts; ++part) {
      Entry& entry = EntryFor(ShapeOf(rows_of(part), 1));
      if (!entry.usable() || entry.scratch_bytes > part_bytes) continue;
      ArgumentsOf(entry, part);
      entries[part] = &entry;
    }
  }
  std::atomic<dnnl_status_t> failure = dnnl_success;
  ParallelFor(num_parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      char* scratch = static_cast<char*>(workspace) + part * part_bytes;
      Entry* entry = entries[part];
      if (entry == nullptr) {
        MultiplyStrided(rows_of(part), scratch);
        continue;
      }
      const dnnl_status_t status =
          Execute(*entry, *entry->arguments[part], rows_of(part), scratch);
      if (status != dnnl_success) failure = status;
    }
  });
  Check(failure);
}

}  // namespace ebb::cpu
