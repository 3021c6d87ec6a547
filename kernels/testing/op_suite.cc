// Holds the kernels of a backend to the double-precision reference.
//
// A `Stage` owns the storage of one call. Buffers of results and workspace
// start with a garbage byte that differs between the two runs of a case, so a
// kernel that reads what it should write gives other bits or NaN.
#include "kernels/testing/op_suite.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/op_call.h"
#include "kernels/ops/op_def.h"
#include "kernels/testing/guarded_buffer.h"
#include "kernels/testing/op_cases.h"
#include "kernels/testing/reference.h"
#include "kernels/testing/tensor_elements.h"

namespace ebb {
namespace {

constexpr double kTolerance = 1e-5;         // of fp32 results, relative to the
                                            // largest magnitude
constexpr double kDoubleTolerance = 1e-12;  // of fp64 results
// Relative error of a rounding to bf16, which keeps 8 bits of mantissa.
constexpr double kBf16Rounding = 1.0 / 256;
// A result below this is 0 in real arithmetic: what is left is the rounding of
// terms of size 1, held to kTolerance of a tenth of them.
constexpr double kCancelled = 1e-6;
constexpr double kCancelledScale = 0.1;

constexpr uint8_t kNanFill = 0xff;  // NaN as fp32 and fp64
constexpr uint8_t kOtherFill = 0x41;

using Values = std::vector<std::vector<double>>;

bool HasGradient(Role role) {
  return role == Role::kInput || role == Role::kParam;
}

std::vector<TensorType> GradientTypes(const OpCase& op_case) {
  std::vector<TensorType> types = op_case.types;
  for (size_t slot = 0; slot < types.size(); ++slot) {
    types[slot] =
        GradientType(GetOpDef(op_case.op).slots[slot].role, types[slot]);
  }
  return types;
}

// Storage of the slots, or of the gradients, of one call.
class Stage {
 public:
  // Binds every slot of `set` as `types` says: with `values` where there are
  // some, otherwise filled with `fill`. Views share one buffer.
  Stage(const OpCase& op_case, const std::vector<TensorType>& types,
        uint32_t set, const Values& values, uint8_t fill)
      : tensors_(types.size()), places_(types.size()) {
    int viewed = -1;
    for (int slot = 0; slot < static_cast<int>(tensors_.size()); ++slot) {
      const TensorType& type = types[slot];
      if (!HasSlot(set, slot) || !type.bound()) continue;
      const OpCase::View& view = op_case.views[slot];
      const int64_t element_bytes = DTypeBytes(type.dtype);
      Place& place = places_[slot];
      Tensor& tensor = tensors_[slot];
      tensor.type = type;
      if (view.row_stride == 0) {
        tensor.row_stride = type.row_elements();
        place.buffer = Add(type.bytes(), fill);
      } else {
        tensor.row_stride = view.row_stride;
        if (viewed < 0) {
          viewed = Add(type.dims[0] * view.row_stride * element_bytes, fill);
        }
        place.buffer = viewed;
        place.offset = view.column * element_bytes;
      }
      tensor.data =
          static_cast<uint8_t*>(buffers_[place.buffer].data()) + place.offset;
      if (!values[slot].empty()) WriteElements(values[slot], tensor);
    }
    for (const GuardedBuffer& buffer : buffers_) {
      before_.push_back(buffer.Bytes());
      may_change_.emplace_back(before_.back().size(), false);
    }
  }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  const Tensor* tensors() const { return tensors_.data(); }

  // Lets `slot` lie where slot `other_slot` of `other` does.
  void Share(int slot, Stage& other, int other_slot) {
    tensors_[slot] = other.tensors_[other_slot];
    other.AllowWrites(other_slot);
  }

  // Marks the elements of `slot` as what the call may change.
  void AllowWrites(int slot) {
    const Tensor& tensor = tensors_[slot];
    if (!tensor.bound()) return;
    const int64_t element_bytes = DTypeBytes(tensor.type.dtype);
    for (int64_t row = 0; row < tensor.type.dims[0]; ++row) {
      const auto begin = may_change_[places_[slot].buffer].begin() +
                         places_[slot].offset +
                         row * tensor.row_stride * element_bytes;
      std::fill(begin, begin + tensor.type.row_elements() * element_bytes,
                true);
    }
  }

  // Whether guards and all bytes but those of AllowWrites are as before.
  bool KeptTheRest() const {
    for (size_t i = 0; i < buffers_.size(); ++i) {
      if (!buffers_[i].GuardsAreIntact()) return false;
      const std::vector<uint8_t> now = buffers_[i].Bytes();
      for (size_t byte = 0; byte < now.size(); ++byte) {
        if (!may_change_[i][byte] && now[byte] != before_[i][byte]) {
          return false;
        }
      }
    }
    return true;
  }

 private:
  struct Place {
    int buffer = -1;
    int64_t offset = 0;  // bytes
  };

  int Add(int64_t bytes, uint8_t fill) {
    buffers_.emplace_back(bytes, fill);
    return static_cast<int>(buffers_.size()) - 1;
  }

  std::vector<Tensor> tensors_;
  std::vector<Place> places_;
  std::deque<GuardedBuffer> buffers_;
  std::vector<std::vector<uint8_t>> before_;
  std::vector<std::vector<bool>> may_change_;
};

// One kernel of one case, and what the reference says of it.
struct Trial {
  const OpDef& op;
  const OpCase& op_case;
  uint32_t bound;    // gradients to compute; 0: forward
  uint32_t results;  // slots (bound 0) or gradients that the kernel writes
  Values slots;      // before the call
  Values grads;      // before the call
  Values expected;   // of `results`
};

Trial MakeForwardTrial(const OpCase& op_case) {
  const OpDef& op = GetOpDef(op_case.op);
  Trial trial = {.op = op,
                 .op_case = op_case,
                 .bound = 0,
                 .results = 0,
                 .slots = DrawSlots(op_case),
                 .grads = {},
                 .expected = {}};
  for (int slot = 0; slot < op.num_slots(); ++slot) {
    const Role role = op.slots[slot].role;
    if (role == Role::kOutput || role == Role::kAux || role == Role::kState) {
      trial.results |= Reads(slot);
    }
  }
  reference::Call call = {.attrs = op_case.attrs,
                          .types = op_case.types,
                          .slots = trial.slots,
                          .grads = {},
                          .scalars = op_case.scalars,
                          .value_key = op_case.value_key,
                          .row_offset = op_case.row_offset};
  reference::RunForward(op_case.op, call);
  trial.expected = std::move(call.slots);
  return trial;
}

// The kernel and the reference are given the same: the results of the
// reference's forward pass, rounded to their types.
Trial MakeBackwardTrial(const Trial& forward, uint32_t bound) {
  const OpDef& op = forward.op;
  const OpCase& op_case = forward.op_case;
  Trial trial = {.op = op,
                 .op_case = op_case,
                 .bound = bound,
                 .results = bound,
                 .slots = forward.expected,
                 .grads = DrawGradients(op_case),
                 .expected = {}};
  for (int slot = 0; slot < op.num_slots(); ++slot) {
    for (double& element : trial.slots[slot]) {
      element = RoundedTo(op_case.types[slot].dtype, element);
    }
  }
  reference::Call call = {.attrs = op_case.attrs,
                          .types = op_case.types,
                          .slots = trial.slots,
                          .grads = trial.grads,
                          .scalars = op_case.scalars,
                          .value_key = op_case.value_key,
                          .row_offset = op_case.row_offset};
  for (int slot = 0; slot < op.num_slots(); ++slot) {
    if (!HasGradient(op.slots[slot].role)) continue;
    call.grads[slot].resize(
        HasSlot(bound, slot) ? op_case.types[slot].num_elements() : 0);
  }
  reference::GetKernels(op.op).backward(call);
  trial.expected = std::move(call.grads);
  return trial;
}

std::string TrialName(const Trial& trial) {
  std::string name = absl::StrCat(trial.op_case.name, ": ");
  if (trial.bound == 0) return name + "forward";
  absl::StrAppend(&name, "backward of");
  for (int slot = 0; slot < trial.op.num_slots(); ++slot) {
    if (HasSlot(trial.bound, slot)) {
      absl::StrAppend(&name, " ", trial.op.slots[slot].name);
    }
  }
  return name;
}

// Runs the kernel on fresh storage and returns its results. Appends to
// `failures` if it wrote where it should not.
Values RunKernel(const Trial& trial, Kernel kernel, const Backend& backend,
                 uint8_t fill, const Overwrite* overwrite,
                 std::vector<std::string>& failures) {
  const OpDef& op = trial.op;
  const OpCase& op_case = trial.op_case;
  const bool backward = trial.bound != 0;
  uint32_t slot_set = 0, grad_set = 0;
  for (int slot = 0; slot < op.num_slots(); ++slot) {
    if (!backward) {
      slot_set |= Reads(slot);
    } else if (HasSlot(trial.bound, slot)) {
      slot_set |= op.slots[slot].grad_reads;
      grad_set |= Reads(slot);
    } else if (op.slots[slot].role == Role::kOutput &&
               !trial.grads[slot].empty()) {
      grad_set |= Reads(slot);
    }
  }
  Stage slots(op_case, op_case.types, slot_set, trial.slots, fill);
  Stage grads(op_case, GradientTypes(op_case), grad_set,
              backward ? trial.grads : Values(op.num_slots()), fill);
  Stage& results = backward ? grads : slots;
  for (int slot = 0; slot < op.num_slots(); ++slot) {
    if (HasSlot(trial.results, slot)) results.AllowWrites(slot);
  }
  if (overwrite != nullptr) {
    results.Share(overwrite->written, overwrite->read_gradient ? grads : slots,
                  overwrite->read);
  }

  const int64_t workspace_bytes =
      op.workspace_bytes == nullptr
          ? 0
          : op.workspace_bytes(op_case.attrs, op_case.types, trial.bound,
                               backend);
  GuardedBuffer workspace(workspace_bytes, fill);
  const OpCall call = {
      .attrs = &op_case.attrs,
      .slots = slots.tensors(),
      .grads = backward ? grads.tensors() : nullptr,
      .workspace = workspace_bytes > 0 ? workspace.data() : nullptr,
      .workspace_bytes = workspace_bytes,
      .value_key = op_case.value_key,
      .row_offset = op_case.row_offset,
      .scalars = &op_case.scalars};
  kernel(call, nullptr);

  if (!slots.KeptTheRest()) {
    failures.push_back(
        "changes bytes that are not its results, in or around "
        "a slot");
  }
  if (!grads.KeptTheRest()) {
    failures.push_back(
        "changes bytes that are not its results, in or around "
        "a gradient");
  }
  if (!workspace.GuardsAreIntact()) {
    failures.push_back(absl::StrCat("writes beyond its workspace of ",
                                    workspace_bytes, " bytes"));
  }
  Values values(op.num_slots());
  for (int slot = 0; slot < op.num_slots(); ++slot) {
    if (HasSlot(trial.results, slot)) {
      values[slot] = ReadElements(results.tensors()[slot]);
    }
  }
  return values;
}

bool SameBits(const std::vector<double>& a, const std::vector<double>& b) {
  return std::equal(
      a.begin(), a.end(), b.begin(), b.end(), [](double one, double other) {
        return std::bit_cast<uint64_t>(one) == std::bit_cast<uint64_t>(other);
      });
}

// Describes the worst deviation of `got`, or returns an empty text. An element
// may be off by `tolerance` of the largest and by `rounding` of itself.
std::string Deviation(const std::vector<double>& got,
                      const std::vector<double>& expected, double tolerance,
                      double rounding) {
  double largest = 0;
  for (double x : expected) {
    if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
  }
  const double allowed =
      tolerance * (largest < kCancelled ? kCancelledScale : largest);
  const auto allowed_of = [&](double x) {
    return std::isfinite(x) ? allowed + rounding * std::abs(x) : 0;
  };
  double worst = 0;  // beyond what is allowed
  size_t at = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    double error = 0;
    if (std::isfinite(expected[i])) {
      error = std::abs(got[i] - expected[i]);
      if (std::isnan(error)) error = INFINITY;
    } else if (!(got[i] == expected[i] ||
                 (std::isnan(got[i]) && std::isnan(expected[i])))) {
      error = INFINITY;
    }
    if (error - allowed_of(expected[i]) > worst) {
      worst = error - allowed_of(expected[i]);
      at = i;
    }
  }
  if (worst == 0) return "";
  return absl::StrCat("element ", at, " is ", got[at], ", expected ",
                      expected[at], " within ", allowed_of(expected[at]));
}

void CompareWithReference(const Trial& trial, const Values& got,
                          std::vector<std::string>& failures) {
  const Values& before = trial.bound == 0 ? trial.slots : trial.grads;
  for (int slot = 0; slot < trial.op.num_slots(); ++slot) {
    if (!HasSlot(trial.results, slot)) continue;
    const SlotDef& def = trial.op.slots[slot];
    if (def.role == Role::kState &&
        SameBits(trial.expected[slot], before[slot])) {
      // State that is only read, or left alone.
      if (!SameBits(got[slot], before[slot])) {
        failures.push_back(absl::StrCat(def.name, ": should keep its bits"));
      }
      continue;
    }
    TensorType type = trial.op_case.types[slot];
    if (trial.bound != 0) type = GradientType(def.role, type);
    // Integers are exact.
    const double tolerance = type.dtype == DType::kI32   ? 0
                             : type.dtype == DType::kF64 ? kDoubleTolerance
                                                         : kTolerance;
    const std::string deviation =
        Deviation(got[slot], trial.expected[slot], tolerance,
                  type.dtype == DType::kBf16 ? kBf16Rounding : 0);
    if (!deviation.empty()) {
      failures.push_back(absl::StrCat(def.name, ": ", deviation));
    }
  }
}

void CompareBits(const Trial& trial, const Values& got, const Values& first,
                 const std::string& what, std::vector<std::string>& failures) {
  for (int slot = 0; slot < trial.op.num_slots(); ++slot) {
    if (HasSlot(trial.results, slot) && !SameBits(got[slot], first[slot])) {
      failures.push_back(absl::StrCat(trial.op.slots[slot].name, ": ", what));
    }
  }
}

// Whether the trial's kernel writes and reads what `overwrite` names.
bool Applies(const Overwrite& overwrite, const Trial& trial) {
  return overwrite.backward == (trial.bound != 0) &&
         HasSlot(trial.results, overwrite.written);
}

void RunTrial(const Trial& trial, Kernel kernel, const Backend& backend,
              std::vector<std::string>& all_failures) {
  std::vector<std::string> failures;
  const Values first =
      RunKernel(trial, kernel, backend, kNanFill, nullptr, failures);
  CompareWithReference(trial, first, failures);
  CompareBits(trial,
              RunKernel(trial, kernel, backend, kOtherFill, nullptr, failures),
              first, "a second run gives other bits", failures);
  for (const Overwrite& overwrite : trial.op.may_overwrite) {
    if (!Applies(overwrite, trial)) continue;
    CompareBits(
        trial,
        RunKernel(trial, kernel, backend, kNanFill, &overwrite, failures),
        first,
        absl::StrCat("other bits when ", trial.op.slots[overwrite.written].name,
                     " overwrites ",
                     overwrite.read_gradient ? "the gradient of " : "",
                     trial.op.slots[overwrite.read].name),
        failures);
  }
  const std::string name = TrialName(trial);
  for (const std::string& failure : failures) {
    all_failures.push_back(absl::StrCat(name, ": ", failure));
  }
}

}  // namespace

std::vector<std::string> RunOpCases(Op op, const KernelTable& table,
                                    const Backend& backend, DType precision) {
  const OpDef& def = GetOpDef(op);
  const uint32_t gradients = KernelGradients(def);
  const KernelRow* row = FindKernels(table, op, precision);
  if (row == nullptr || row->forward == nullptr) {
    return {absl::StrCat(def.name, ": no ", DTypeName(precision),
                         " forward kernel")};
  }
  if ((row->backward != nullptr) != (gradients != 0)) {
    return {gradients != 0
                ? absl::StrCat(def.name, ": no ", DTypeName(precision),
                               " backward kernel")
                : absl::StrCat(def.name, ": a backward kernel without use")};
  }
  std::vector<std::string> failures;
  for (const OpCase& op_case : OpCases(op, precision)) {
    const Trial forward = MakeForwardTrial(op_case);
    RunTrial(forward, row->forward, backend, failures);
    for (uint32_t bound = 1; bound <= gradients; ++bound) {
      bool valid = (bound & ~gradients) == 0;
      for (int slot = 0; slot < def.num_slots(); ++slot) {
        valid = valid && (!HasSlot(bound, slot) || op_case.types[slot].bound());
      }
      if (!valid) continue;
      RunTrial(MakeBackwardTrial(forward, bound), row->backward, backend,
               failures);
    }
  }
  return failures;
}

}  // namespace ebb
