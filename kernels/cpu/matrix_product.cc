// The cut among threads, and primitives of oneDNN 2.6 cached by shape.
#include "kernels/cpu/matrix_product.h"

#include <omp.h>

#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "kernels/cpu/instruction_set.h"
#include "kernels/cpu/row_loop.h"
#include "kernels/cpu/thread_team.h"
#include "kernels/tensor.h"

namespace ebb::cpu {
namespace {

// Rows and columns of C that one thread takes at least.
constexpr int64_t kRowGrain = 32;
constexpr int64_t kColumnGrain = 64;
constexpr int kMaxParts = 256;

const dnnl::engine& Engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

struct Shape {
  DType c_dtype;
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
              static_cast<int64_t>(shape.c_dtype) << 4}) {
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
  entry->a = matrix(DType::kBf16, shape.m, shape.k, shape.a_transposed);
  entry->b = matrix(DType::kBf16, shape.k, shape.n, shape.b_transposed);
  entry->c = matrix(shape.c_dtype, shape.m, shape.n, false);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (shape.add) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  if (shape.bias) entry->bias = matrix(DType::kBf16, 1, shape.n, false);
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

// What oneDNN's fast kernels take: stored rows side by side.
bool OneDnnFits(const StridedProduct& product) {
  return product.dtype == DType::kBf16 && HasBf16Instructions() &&
         product.factor == 1 && product.num_terms == 1 &&
         product.a_stride == (product.a_transposed ? product.m : product.k) &&
         product.b_stride == (product.b_transposed ? product.k : product.n) &&
         product.c_stride == product.n;
}

// The rows and columns of the product's result.
StridedProduct Part(const StridedProduct& product, Range rows, Range columns) {
  const auto moved = [](const void* data, int64_t elements, DType dtype) {
    return data == nullptr
               ? nullptr
               : static_cast<const char*>(data) + elements * DTypeBytes(dtype);
  };
  StridedProduct part = product;
  part.m = rows.end - rows.begin;
  part.n = columns.end - columns.begin;
  part.a = moved(product.a,
                 rows.begin * (product.a_transposed ? 1 : product.a_stride),
                 product.dtype);
  part.b = moved(product.b,
                 columns.begin * (product.b_transposed ? product.b_stride : 1),
                 product.dtype);
  part.c = const_cast<void*>(static_cast<const void*>(
      moved(product.c, rows.begin * product.c_stride + columns.begin,
            product.c_dtype)));
  part.bias = moved(product.bias, columns.begin, product.dtype);
  part.first_row += rows.begin;
  part.first_column += columns.begin;
  return part;
}

Shape ShapeOf(const StridedProduct& product, int threads) {
  return {.c_dtype = product.c_dtype,
          .m = product.m,
          .n = product.n,
          .k = product.k,
          .threads = threads,
          .a_transposed = product.a_transposed,
          .b_transposed = product.b_transposed,
          .bias = product.bias != nullptr,
          .add = product.add};
}

void FinishRows(const StridedProduct& product) {
  if (product.tail == nullptr) return;
  RunTail(*product.tail, {product.first_row, product.first_row + product.m},
          {product.first_column, product.first_column + product.n});
}

// The device turns the library's exception into a status.
void Check(dnnl_status_t status) {
  dnnl::error::wrap_c_api(status, "matrix product failed");
}

// Returns false, and has done nothing, where oneDNN has no kernel for the
// product or wants more scratch than there is.
bool MultiplyByOneDnn(const StridedProduct& product, void* workspace,
                      int64_t workspace_bytes) {
  if (!OneDnnFits(product)) return false;
  if (product.a_transposed) {
    // Some rows of a transposed A are not dense: one primitive for the team.
    Entry& entry = EntryFor(ShapeOf(product, NumThreads()));
    if (!entry.usable() || entry.scratch_bytes > workspace_bytes) return false;
    Check(Execute(entry, ArgumentsOf(entry, 0), product, workspace));
    FinishRows(product);
    return true;
  }
  const int num_parts = static_cast<int>(std::min<int64_t>(
      {NumThreads(), kMaxParts, (product.m + kRowGrain - 1) / kRowGrain}));
  const int64_t part_bytes =
      workspace_bytes / num_parts / kAlignment * kAlignment;
  const auto rows_of = [&](int part) {
    return Part(product, PartOf(product.m, kRowGrain, part, num_parts),
                {0, product.n});
  };
  // Found before the threads start: making one may throw.
  std::array<Entry*, kMaxParts> entries;
  for (int part = 0; part < num_parts; ++part) {
    Entry& entry = EntryFor(ShapeOf(rows_of(part), 1));
    if (!entry.usable() || entry.scratch_bytes > part_bytes) return false;
    ArgumentsOf(entry, part);
    entries[part] = &entry;
  }
  std::atomic<dnnl_status_t> failure = dnnl_success;
  ParallelFor(num_parts, 1, [&](int64_t begin, int64_t end) {
    for (int part = static_cast<int>(begin); part < end; ++part) {
      const dnnl_status_t status = Execute(
          *entries[part], *entries[part]->arguments[part], rows_of(part),
          static_cast<char*>(workspace) + part * part_bytes);
      if (status != dnnl_success) {
        failure = status;
      } else {
        FinishRows(rows_of(part));
      }
    }
  });
  Check(failure);
  return true;
}

// How a product is cut among threads.
struct Grid {
  int rows = 1, columns = 1;  // parts
};

// The cut whose slowest part takes the least time, in the multiply-adds that a
// core does meanwhile: packing an element of B takes as long as some 48, and
// every block of columns reads A again, which is packed where it is transposed
// or to be widened.
Grid GridOf(const StridedProduct& product) {
  constexpr int64_t kPackCost = 48;
  const int64_t read_cost =
      product.a_transposed || product.dtype == DType::kBf16 ? kPackCost / 2 : 8;
  const auto part_size = [](int64_t size, int64_t grain, int parts) {
    const int64_t grains = (size + grain - 1) / grain;
    return std::min(size, (grains + parts - 1) / parts * grain);
  };
  const int threads = std::min(NumThreads(), kMaxParts);
  Grid best;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int rows = 1; rows <= threads; ++rows) {
    const int columns = threads / rows;
    const int64_t m = part_size(product.m, kRowGrain, rows);
    const int64_t n = part_size(product.n, kColumnGrain, columns);
    const int64_t blocks =
        (n + kStridedBlockColumns - 1) / kStridedBlockColumns;
    const int64_t cost = m * n + kPackCost * n + read_cost * m * blocks;
    if (cost >= least) continue;
    least = cost;
    best = {rows, columns};
  }
  return best;
}

}  // namespace

int64_t OneDnnScratchBytes(const StridedProduct& product) {
  if (!OneDnnFits(product)) return -1;
  return EntryFor(ShapeOf(product, product.a_transposed ? NumThreads() : 1))
      .scratch_bytes;
}

void MultiplyMatrices(const StridedProduct& product, void* workspace,
                      int64_t workspace_bytes) {
  if (MultiplyByOneDnn(product, workspace, workspace_bytes)) return;
  const Grid grid = GridOf(product);
  const int num_parts = grid.rows * grid.columns;
  const int64_t part_bytes =
      workspace_bytes / num_parts / kAlignment * kAlignment;
  ParallelFor(num_parts, 1, [&](int64_t begin, int64_t end) {
    for (int part = static_cast<int>(begin); part < end; ++part) {
      const Range rows =
          PartOf(product.m, kRowGrain, part / grid.columns, grid.rows);
      const Range columns =
          PartOf(product.n, kColumnGrain, part % grid.columns, grid.columns);
      if (rows.begin == rows.end || columns.begin == columns.end) continue;
      MultiplyStrided(Part(product, rows, columns),
                      static_cast<char*>(workspace) + part * part_bytes);
    }
  });
}

}  // namespace ebb::cpu
