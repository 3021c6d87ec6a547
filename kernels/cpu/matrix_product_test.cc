// Products against sums in double; scratch against its bound; bits against
// threads and the cut of rows.
#include "kernels/cpu/matrix_product.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/cpu/thread_team.h"
#include "kernels/device.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/op_def.h"

namespace ebb::cpu {
namespace {

enum class Form { kForward, kInputGradient, kWeightGradient };
constexpr Form kForms[] = {Form::kForward, Form::kInputGradient,
                           Form::kWeightGradient};

// A linear of `rows` x `inputs` -> `outputs` and one of its products.
struct Case {
  Form form;
  int64_t rows, inputs, outputs;
  DType dtype = DType::kF32;

  StridedProduct product() const {
    StridedProduct product = OfFp32();
    product.dtype = dtype;
    if (!product.add) product.c_dtype = dtype;
    return product;
  }
  StridedProduct OfFp32() const {
    switch (form) {
      case Form::kForward:
        return {.m = rows,
                .n = outputs,
                .k = inputs,
                .a_stride = inputs,
                .b_stride = inputs,
                .b_transposed = true,
                .c_stride = outputs};
      case Form::kInputGradient:
        return {.m = rows,
                .n = inputs,
                .k = outputs,
                .a_stride = outputs,
                .b_stride = inputs,
                .c_stride = inputs};
      case Form::kWeightGradient:
        return {.m = outputs,
                .n = inputs,
                .k = rows,
                .a_stride = outputs,
                .a_transposed = true,
                .b_stride = inputs,
                .c_stride = inputs,
                .add = true};
    }
    return {};
  }
  int64_t workspace_bytes(const Backend& backend) const {
    const std::vector<TensorType> types = {{dtype, rows, inputs},
                                           {dtype, outputs, inputs},
                                           {dtype, outputs},
                                           {dtype, rows, outputs}};
    const uint32_t bound = form == Form::kForward ? 0
                           : form == Form::kInputGradient
                               ? Reads(linear::kX)
                               : Reads(linear::kWeight);
    return GetOpDef(Op::kLinear).workspace_bytes({}, types, bound, backend);
  }
  std::string name() const {
    return std::to_string(static_cast<int>(form)) + ": " +
           std::to_string(rows) + " x " + std::to_string(inputs) + " -> " +
           std::to_string(outputs);
  }
};

std::vector<float> Draw(int64_t size, uint32_t seed) {
  std::vector<float> values(size);
  for (float& value : values) {
    seed = seed * 1664525u + 1013904223u;
    value = static_cast<float>(seed >> 8) / (1 << 23) - 1;
  }
  return values;
}

// Runs the product in a workspace of `bytes`; a guard behind it must stay.
void MultiplyIn(const StridedProduct& product, int64_t bytes) {
  constexpr int64_t kGuard = 256;
  auto* workspace =
      static_cast<char*>(std::aligned_alloc(64, AlignUp(bytes) + kGuard));
  std::memset(workspace, 0x5a, bytes + kGuard);
  MultiplyMatrices(product, workspace, bytes);
  for (int64_t i = 0; i < kGuard; ++i) {
    EXPECT_EQ(workspace[bytes + i], 0x5a) << "byte " << i << " behind it";
  }
  std::free(workspace);
}

std::vector<float> Multiply(StridedProduct product, const std::vector<float>& a,
                            const std::vector<float>& b, int64_t bytes) {
  std::vector<float> c = Draw(product.m * product.n, 3);
  product.a = a.data();
  product.b = b.data();
  product.c = c.data();
  MultiplyIn(product, bytes);
  return c;
}

double Expected(const StridedProduct& p, const std::vector<float>& a,
                const std::vector<float>& b, int64_t row, int64_t column) {
  double sum = p.add ? Draw(p.m * p.n, 3)[row * p.n + column] : 0;
  for (int64_t k = 0; k < p.k; ++k) {
    sum += static_cast<double>(p.a_transposed ? a[k * p.a_stride + row]
                                              : a[row * p.a_stride + k]) *
           (p.b_transposed ? b[column * p.b_stride + k]
                           : b[k * p.b_stride + column]);
  }
  return sum;
}

class MatrixProduct : public testing::Test {
 protected:
  void SetUp() override { Use(2); }
  void Use(int threads) {
    backend_ = DescribeCpu(threads);
    omp_set_num_threads(threads);
  }
  Backend backend_;
};

TEST_F(MatrixProduct, AgreesWithSumsInDouble) {
  for (const Form form : kForms) {
    for (auto [rows, inputs, outputs] :
         std::vector<std::array<int64_t, 3>>{{1, 1, 1},
                                             {7, 129, 33},
                                             {65, 64, 257},
                                             {200, 300, 31},
                                             {40, 1536, 64},
                                             {33, 70, 1536}}) {
      const Case one = {form, rows, inputs, outputs};
      SCOPED_TRACE(one.name());
      const StridedProduct p = one.product();
      const std::vector<float> a = Draw(p.m * p.k, 1);
      const std::vector<float> b = Draw(p.k * p.n, 2);
      const std::vector<float> c =
          Multiply(p, a, b, one.workspace_bytes(backend_));
      for (int64_t i = 0; i < p.m * p.n; i += 1 + p.m * p.n / 97) {
        ASSERT_NEAR(c[i], Expected(p, a, b, i / p.n, i % p.n),
                    1e-6 * std::sqrt(p.k) + 1e-6)
            << i;
      }
    }
  }
}

// The description's bound holds oneDNN's scratch, so that its kernels do run
// where there are some; and it stays within a factor of what is needed.
TEST_F(MatrixProduct, ScratchKeepsToItsBound) {
  if (!HasBf16Products(backend_.instruction_set)) {
    const Case one = {Form::kForward, 64, 64, 64, DType::kBf16};
    EXPECT_EQ(OneDnnScratchBytes(one.product()), -1);
    return;
  }
  const int64_t sizes[] = {1, 5, 31, 64, 257, 512, 769, 1000, 2048, 3001};
  for (const int team : {1, 2}) {
    Use(team);
    const int threads = NumThreads();
    int64_t largest = 0;
    for (const Form form : kForms) {
      for (const int64_t rows : sizes) {
        for (const int64_t inputs : sizes) {
          for (const int64_t outputs : sizes) {
            // A third of the grid, spread evenly: making a primitive takes a
            // millisecond.
            if ((rows + 3 * inputs + 7 * outputs + static_cast<int>(form)) %
                    11 !=
                0) {
              continue;
            }
            const Case one = {form, rows, inputs, outputs, DType::kBf16};
            const int64_t wanted = OneDnnScratchBytes(one.product());
            const int64_t parts = form == Form::kWeightGradient ? threads : 1;
            const int64_t given = one.workspace_bytes(backend_) / team * parts;
            EXPECT_LE(wanted, given) << one.name() << " threads " << threads;
            largest = std::max(largest, wanted / parts);
          }
        }
      }
    }
    EXPECT_GT(largest, int64_t{1} << 20) << "the bound is far too high";
  }
}

std::vector<Bf16> InBf16(const std::vector<float>& values) {
  std::vector<Bf16> rounded(values.size());
  std::transform(values.begin(), values.end(), rounded.begin(), RoundToBf16);
  return rounded;
}

std::vector<float> Widened(const std::vector<Bf16>& values) {
  std::vector<float> wide(values.size());
  std::transform(values.begin(), values.end(), wide.begin(),
                 [](Bf16 value) { return ToFloat(value); });
  return wide;
}

// Operands in bf16: every sum in fp32, rounded once where the result is stored
// in bf16 (forward, input gradient), not at all where it accumulates.
TEST_F(MatrixProduct, OfBf16AgreesWithSumsInDouble) {
  for (const int threads : {1, 2}) {
    Use(threads);
    for (Case one : std::vector<Case>{{Form::kForward, 65, 300, 257},
                                      {Form::kForward, 1000, 70, 33},
                                      {Form::kInputGradient, 33, 500, 1536},
                                      {Form::kInputGradient, 450, 31, 129},
                                      {Form::kWeightGradient, 257, 385, 130}}) {
      SCOPED_TRACE(one.name());
      one.dtype = DType::kBf16;
      StridedProduct p = one.product();
      const std::vector<Bf16> a = InBf16(Draw(p.m * p.k, 1));
      const std::vector<Bf16> b = InBf16(Draw(p.k * p.n, 2));
      const std::vector<Bf16> bias = InBf16(Draw(p.n, 4));
      p.a = a.data();
      p.b = b.data();
      if (one.form == Form::kForward) p.bias = bias.data();
      std::vector<float> sums = Draw(p.m * p.n, 3);
      std::vector<Bf16> rounded(p.m * p.n);
      p.c = p.add ? static_cast<void*>(sums.data()) : rounded.data();
      MultiplyIn(p, one.workspace_bytes(backend_));
      if (!p.add) sums = Widened(rounded);
      const std::vector<float> a_exact = Widened(a), b_exact = Widened(b);
      for (int64_t i = 0; i < p.m * p.n; i += 1 + p.m * p.n / 997) {
        const int64_t column = i % p.n;
        const double expected = Expected(p, a_exact, b_exact, i / p.n, column) +
                                (p.bias != nullptr ? ToFloat(bias[column]) : 0);
        const double rounding = p.add ? 0 : std::abs(expected) / 256;
        ASSERT_NEAR(sums[i], expected, 1e-6 * std::sqrt(p.k) + rounding) << i;
      }
    }
  }
}

TEST_F(MatrixProduct, OfBf16GivesTheSameBitsOnOneAndTwoThreads) {
  for (Case one : std::vector<Case>{{Form::kForward, 200, 257, 131},
                                    {Form::kInputGradient, 97, 64, 1536},
                                    {Form::kWeightGradient, 200, 257, 131}}) {
    one.dtype = DType::kBf16;
    StridedProduct p = one.product();
    const std::vector<Bf16> a = InBf16(Draw(p.m * p.k, 1));
    const std::vector<Bf16> b = InBf16(Draw(p.k * p.n, 2));
    p.a = a.data();
    p.b = b.data();
    std::vector<std::vector<char>> results;
    for (const int threads : {1, 2}) {
      Use(threads);
      results.emplace_back(p.m * p.n * DTypeBytes(p.c_dtype));
      p.c = results.back().data();
      MultiplyIn(p, one.workspace_bytes(backend_));
    }
    // oneDNN splits the weight gradient among the team as it likes.
    if (one.form == Form::kWeightGradient &&
        HasBf16Products(backend_.instruction_set))
      continue;
    EXPECT_EQ(results[0], results[1]) << one.name();
  }
}

TEST_F(MatrixProduct, RepeatsItsBits) {
  for (const Form form : kForms) {
    const Case one = {form, 200, 257, 131};
    const StridedProduct p = one.product();
    const std::vector<float> a = Draw(p.m * p.k, 1);
    const std::vector<float> b = Draw(p.k * p.n, 2);
    const int64_t bytes = one.workspace_bytes(backend_);
    EXPECT_EQ(Multiply(p, a, b, bytes), Multiply(p, a, b, bytes)) << one.name();
  }
}

// Parts of the result are cut for threads, sums are not.
TEST_F(MatrixProduct, GivesTheSameBitsOnAnyNumberOfThreads) {
  for (const Form form : kForms) {
    for (auto [rows, inputs, outputs] : std::vector<std::array<int64_t, 3>>{
             {200, 257, 131}, {128, 512, 512}, {97, 64, 1536}, {5, 300, 700}}) {
      const Case one = {form, rows, inputs, outputs};
      const StridedProduct p = one.product();
      const std::vector<float> a = Draw(p.m * p.k, 1);
      const std::vector<float> b = Draw(p.k * p.n, 2);
      Use(1);
      const std::vector<float> alone =
          Multiply(p, a, b, one.workspace_bytes(backend_));
      for (const int threads : {2, 3, 7}) {
        Use(threads);
        EXPECT_EQ(Multiply(p, a, b, one.workspace_bytes(backend_)), alone)
            << one.name() << " threads " << threads;
      }
    }
  }
}

}  // namespace
}  // namespace ebb::cpu
