// Reference of the ops outside attention. Formulas: kernels/ops/*.h; subscripts
// below are their letters.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/ops/add.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/dropout.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/gelu.h"
#include "kernels/ops/layer_norm.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/position_embedding.h"
#include "kernels/ops/relu.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/swiglu.h"
#include "kernels/philox.h"
#include "kernels/row_loop.h"
#include "kernels/testing/reference_kernels.h"

namespace ebb::reference {
namespace {

int64_t Size(const Elements& elements) {
  return static_cast<int64_t>(elements.size());
}

}  // namespace

void EmbeddingForward(Call& c) {
  using namespace embedding;
  const int64_t width = c.types[kWeight].dims[1];
  for (int64_t n = 0; n < Size(c.slots[kTokens]); ++n) {
    const auto token = static_cast<int64_t>(c.slots[kTokens][n]);
    for (int64_t d = 0; d < width; ++d) {
      c.slots[kY][n * width + d] = c.slots[kWeight][token * width + d];
    }
  }
}

void EmbeddingBackward(Call& c) {
  using namespace embedding;
  if (c.grads[kWeight].empty()) return;
  const int64_t width = c.types[kWeight].dims[1];
  for (int64_t n = 0; n < Size(c.slots[kTokens]); ++n) {
    const auto token = static_cast<int64_t>(c.slots[kTokens][n]);
    for (int64_t d = 0; d < width; ++d) {
      c.grads[kWeight][token * width + d] += c.grads[kY][n * width + d];
    }
  }
}

void PositionEmbeddingForward(Call& c) {
  using namespace position_embedding;
  const int64_t width = c.types[kWeight].dims[1];
  for (int64_t n = 0; n < c.types[kX].dims[0]; ++n) {
    const int64_t t = (c.row_offset + n) % c.attrs.seq_len;
    for (int64_t d = 0; d < width; ++d) {
      c.slots[kY][n * width + d] =
          c.slots[kX][n * width + d] + c.slots[kWeight][t * width + d];
    }
  }
}

// The gradient of x passes through.
void PositionEmbeddingBackward(Call& c) {
  using namespace position_embedding;
  if (c.grads[kWeight].empty()) return;
  const int64_t width = c.types[kWeight].dims[1];
  for (int64_t n = 0; n < c.types[kY].dims[0]; ++n) {
    const int64_t t = (c.row_offset + n) % c.attrs.seq_len;
    for (int64_t d = 0; d < width; ++d) {
      c.grads[kWeight][t * width + d] += c.grads[kY][n * width + d];
    }
  }
}

void LayerNormForward(Call& c) {
  using namespace layer_norm;
  const int64_t width = c.types[kX].dims[1];
  for (int64_t n = 0; n < c.types[kX].dims[0]; ++n) {
    const double* x = &c.slots[kX][n * width];
    double mean = 0, variance = 0;
    for (int64_t d = 0; d < width; ++d) mean += x[d] / width;
    for (int64_t d = 0; d < width; ++d) {
      variance += (x[d] - mean) * (x[d] - mean) / width;
    }
    const double rstd = 1 / std::sqrt(variance + c.attrs.epsilon);
    for (int64_t d = 0; d < width; ++d) {
      const double bias = c.slots[kBias].empty() ? 0 : c.slots[kBias][d];
      c.slots[kY][n * width + d] =
          (x[d] - mean) * rstd * c.slots[kGain][d] + bias;
    }
    c.slots[kMean][n] = mean;
    c.slots[kRstd][n] = rstd;
  }
}

// With xhat = (x - mean) * rstd and g = dy * gain:
//   dx = rstd * (g - mean_d(g) - xhat * mean_d(g * xhat))
//   dgain += sum_n dy * xhat   dbias += sum_n dy
void LayerNormBackward(Call& c) {
  using namespace layer_norm;
  const int64_t width = c.types[kY].dims[1];
  for (int64_t n = 0; n < c.types[kY].dims[0]; ++n) {
    const double* dy = &c.grads[kY][n * width];
    if (!c.grads[kBias].empty()) {
      for (int64_t d = 0; d < width; ++d) c.grads[kBias][d] += dy[d];
    }
    if (c.grads[kX].empty() && c.grads[kGain].empty()) continue;
    Elements xhat(width);
    for (int64_t d = 0; d < width; ++d) {
      xhat[d] =
          (c.slots[kX][n * width + d] - c.slots[kMean][n]) * c.slots[kRstd][n];
    }
    if (!c.grads[kGain].empty()) {
      for (int64_t d = 0; d < width; ++d) c.grads[kGain][d] += dy[d] * xhat[d];
    }
    if (c.grads[kX].empty()) continue;
    double mean_g = 0, mean_g_xhat = 0;
    for (int64_t d = 0; d < width; ++d) {
      const double g = dy[d] * c.slots[kGain][d];
      mean_g += g / width;
      mean_g_xhat += g * xhat[d] / width;
    }
    for (int64_t d = 0; d < width; ++d) {
      const double g = dy[d] * c.slots[kGain][d];
      c.grads[kX][n * width + d] =
          c.slots[kRstd][n] * (g - mean_g - xhat[d] * mean_g_xhat);
    }
  }
}

void RmsNormForward(Call& c) {
  using namespace rms_norm;
  const int64_t width = c.types[kX].dims[1];
  for (int64_t n = 0; n < c.types[kX].dims[0]; ++n) {
    const double* x = &c.slots[kX][n * width];
    double mean_square = 0;
    for (int64_t d = 0; d < width; ++d) mean_square += x[d] * x[d] / width;
    const double rstd = 1 / std::sqrt(mean_square + c.attrs.epsilon);
    for (int64_t d = 0; d < width; ++d) {
      c.slots[kY][n * width + d] = x[d] * rstd * c.slots[kGain][d];
    }
    c.slots[kRstd][n] = rstd;
  }
}

// With xhat = x * rstd and g = dy * gain:
//   dx = rstd * (g - xhat * mean_d(g * xhat))   dgain += sum_n dy * xhat
void RmsNormBackward(Call& c) {
  using namespace rms_norm;
  const int64_t width = c.types[kX].dims[1];
  for (int64_t n = 0; n < c.types[kX].dims[0]; ++n) {
    const double* dy = &c.grads[kY][n * width];
    Elements xhat(width);
    for (int64_t d = 0; d < width; ++d) {
      xhat[d] = c.slots[kX][n * width + d] * c.slots[kRstd][n];
    }
    if (!c.grads[kGain].empty()) {
      for (int64_t d = 0; d < width; ++d) c.grads[kGain][d] += dy[d] * xhat[d];
    }
    if (c.grads[kX].empty()) continue;
    double mean_g_xhat = 0;
    for (int64_t d = 0; d < width; ++d) {
      mean_g_xhat += dy[d] * c.slots[kGain][d] * xhat[d] / width;
    }
    for (int64_t d = 0; d < width; ++d) {
      c.grads[kX][n * width + d] =
          c.slots[kRstd][n] *
          (dy[d] * c.slots[kGain][d] - xhat[d] * mean_g_xhat);
    }
  }
}

namespace {

// Turns queries and keys of `from` by `sign` times their angles, copies values.
void Turn(const Call& c, const TensorType& type, const Elements& from,
          Elements& to, double sign) {
  const int64_t num_heads = c.attrs.num_heads + 2 * c.attrs.num_kv_heads;
  const int64_t num_turned = c.attrs.num_heads + c.attrs.num_kv_heads;
  const int64_t head_width = type.dims[1] / num_heads;
  to = from;
  for (int64_t n = 0; n < type.dims[0]; ++n) {
    const int64_t t = (c.row_offset + n) % c.attrs.seq_len;
    for (int64_t h = 0; h < num_turned; ++h) {
      const int64_t head = (n * num_heads + h) * head_width;
      for (int64_t i = 0; i < head_width / 2; ++i) {
        const double exponent = -2.0 * i / head_width;
        const double angle = t * std::pow(c.attrs.rope_theta, exponent);
        const double cosine = std::cos(angle), sine = sign * std::sin(angle);
        const double a = from[head + i], b = from[head + head_width / 2 + i];
        to[head + i] = a * cosine - b * sine;
        to[head + head_width / 2 + i] = b * cosine + a * sine;
      }
    }
  }
}

}  // namespace

void RopeForward(Call& c) {
  using namespace rope;
  Turn(c, c.types[kX], c.slots[kX], c.slots[kY], 1);
}

// The transpose of a rotation is the opposite one.
void RopeBackward(Call& c) {
  using namespace rope;
  if (c.grads[kX].empty()) return;
  Turn(c, c.types[kY], c.grads[kY], c.grads[kX], -1);
}

void LinearForward(Call& c) {
  using namespace linear;
  const int64_t num_inputs = c.types[kWeight].dims[1];
  const int64_t num_outputs = c.types[kWeight].dims[0];
  for (int64_t n = 0; n < c.types[kX].dims[0]; ++n) {
    for (int64_t o = 0; o < num_outputs; ++o) {
      double y = c.slots[kBias].empty() ? 0 : c.slots[kBias][o];
      for (int64_t i = 0; i < num_inputs; ++i) {
        y += c.slots[kX][n * num_inputs + i] *
             c.slots[kWeight][o * num_inputs + i];
      }
      c.slots[kY][n * num_outputs + o] = y;
    }
  }
}

void LinearBackward(Call& c) {
  using namespace linear;
  const int64_t num_rows = c.types[kY].dims[0];
  const int64_t num_outputs = c.types[kY].dims[1];
  if (!c.grads[kX].empty()) {
    const int64_t num_inputs = c.types[kX].dims[1];
    for (int64_t n = 0; n < num_rows; ++n) {
      for (int64_t i = 0; i < num_inputs; ++i) {
        double dx = 0;
        for (int64_t o = 0; o < num_outputs; ++o) {
          dx += c.grads[kY][n * num_outputs + o] *
                c.slots[kWeight][o * num_inputs + i];
        }
        c.grads[kX][n * num_inputs + i] = dx;
      }
    }
  }
  if (!c.grads[kWeight].empty()) {
    const int64_t num_inputs = c.types[kWeight].dims[1];
    for (int64_t n = 0; n < num_rows; ++n) {
      for (int64_t o = 0; o < num_outputs; ++o) {
        for (int64_t i = 0; i < num_inputs; ++i) {
          c.grads[kWeight][o * num_inputs + i] +=
              c.grads[kY][n * num_outputs + o] *
              c.slots[kX][n * num_inputs + i];
        }
      }
    }
  }
  if (!c.grads[kBias].empty()) {
    for (int64_t n = 0; n < num_rows; ++n) {
      for (int64_t o = 0; o < num_outputs; ++o) {
        c.grads[kBias][o] += c.grads[kY][n * num_outputs + o];
      }
    }
  }
}

namespace {

const double kGeluScale = std::sqrt(2 / std::numbers::pi);
constexpr double kGeluCubic = 0.044715;

}  // namespace

void GeluForward(Call& c) {
  using namespace gelu;
  for (int64_t i = 0; i < Size(c.slots[kX]); ++i) {
    const double x = c.slots[kX][i];
    c.slots[kY][i] =
        x / 2 * (1 + std::tanh(kGeluScale * (x + kGeluCubic * x * x * x)));
  }
}

void GeluBackward(Call& c) {
  using namespace gelu;
  if (c.grads[kX].empty()) return;
  for (int64_t i = 0; i < Size(c.slots[kX]); ++i) {
    const double x = c.slots[kX][i];
    const double t = std::tanh(kGeluScale * (x + kGeluCubic * x * x * x));
    const double du = kGeluScale * (1 + 3 * kGeluCubic * x * x);
    c.grads[kX][i] = c.grads[kY][i] * ((1 + t) / 2 + x / 2 * (1 - t * t) * du);
  }
}

void ReluForward(Call& c) {
  using namespace relu;
  const int64_t columns = c.types[kX].dims[1];
  const int64_t words = c.types[kMask].dims[1];
  for (int64_t n = 0; n < c.types[kX].dims[0]; ++n) {
    std::vector<uint32_t> mask(words, 0);
    for (int64_t f = 0; f < columns; ++f) {
      const double x = c.slots[kX][n * columns + f];
      const bool alive = !(x <= 0);
      c.slots[kY][n * columns + f] = alive ? x : 0;
      if (alive) mask[f / kMaskBits] |= uint32_t{1} << f % kMaskBits;
    }
    for (int64_t w = 0; w < words; ++w) {
      c.slots[kMask][n * words + w] = static_cast<int32_t>(mask[w]);
    }
  }
}

void ReluBackward(Call& c) {
  using namespace relu;
  if (c.grads[kX].empty()) return;
  const int64_t columns = c.types[kX].dims[1];
  const int64_t words = c.types[kMask].dims[1];
  for (int64_t i = 0; i < Size(c.grads[kX]); ++i) {
    const int64_t n = i / columns, f = i % columns;
    const auto word = static_cast<uint32_t>(
        static_cast<int32_t>(c.slots[kMask][n * words + f / kMaskBits]));
    c.grads[kX][i] = word >> f % kMaskBits & 1 ? c.grads[kY][i] : 0;
  }
}

void SwigluForward(Call& c) {
  using namespace swiglu;
  const int64_t width = c.types[kX].dims[1] / 2;
  for (int64_t n = 0; n < c.types[kX].dims[0]; ++n) {
    for (int64_t f = 0; f < width; ++f) {
      const double gate = c.slots[kX][2 * n * width + f];
      const double up = c.slots[kX][(2 * n + 1) * width + f];
      c.slots[kY][n * width + f] = gate / (1 + std::exp(-gate)) * up;
    }
  }
}

void SwigluBackward(Call& c) {
  using namespace swiglu;
  if (c.grads[kX].empty()) return;
  const int64_t width = c.types[kX].dims[1] / 2;
  for (int64_t n = 0; n < c.types[kX].dims[0]; ++n) {
    for (int64_t f = 0; f < width; ++f) {
      const int64_t gate_at = 2 * n * width + f;
      const int64_t up_at = gate_at + width;
      const double gate = c.slots[kX][gate_at];
      const double s = 1 / (1 + std::exp(-gate));
      const double dy = c.grads[kY][n * width + f];
      c.grads[kX][gate_at] = dy * c.slots[kX][up_at] * s * (1 + gate * (1 - s));
      c.grads[kX][up_at] = dy * gate * s;
    }
  }
}

namespace {

// Factor of element i of a dropout's value: 0 or 1 / (1 - dropout).
double KeepFactor(const Call& c, const TensorType& type, int64_t i) {
  const int64_t row_elements = type.num_elements() / NumLoopRows(type);
  const int64_t elements_per_sequence =
      (type.rank == 4 ? c.attrs.num_heads : 1) * c.attrs.seq_len * row_elements;
  const int64_t position = c.row_offset * row_elements + i;
  const int64_t sequence =
      c.scalars.first_sequence + position / elements_per_sequence;
  const int64_t element = position % elements_per_sequence;
  const philox::Block block = philox::Draw(
      philox::Key(c.scalars.seed, c.value_key),
      static_cast<uint64_t>(element / 4), static_cast<uint32_t>(sequence),
      static_cast<uint32_t>(c.scalars.step));
  return block[element % 4] < philox::DropThreshold(c.attrs.dropout)
             ? 0
             : philox::KeepScale(c.attrs.dropout);
}

}  // namespace

void DropoutForward(Call& c) {
  using namespace dropout;
  for (int64_t i = 0; i < Size(c.slots[kX]); ++i) {
    c.slots[kY][i] = c.slots[kX][i] * KeepFactor(c, c.types[kX], i);
  }
}

void DropoutBackward(Call& c) {
  using namespace dropout;
  for (int64_t i = 0; i < Size(c.grads[kX]); ++i) {
    c.grads[kX][i] = c.grads[kY][i] * KeepFactor(c, c.types[kX], i);
  }
}

// Both gradients pass through.
void AddForward(Call& c) {
  using namespace add;
  for (int64_t i = 0; i < Size(c.slots[kA]); ++i) {
    c.slots[kY][i] = c.slots[kA][i] + c.slots[kB][i];
  }
}

void CrossEntropyForward(Call& c) {
  using namespace cross_entropy;
  const int64_t vocab = c.types[kLogits].dims[1];
  for (int64_t n = 0; n < c.types[kLogits].dims[0]; ++n) {
    const double* logits = &c.slots[kLogits][n * vocab];
    const double max = *std::max_element(logits, logits + vocab);
    double sum = 0;
    for (int64_t v = 0; v < vocab; ++v) sum += std::exp(logits[v] - max);
    const double lse = max + std::log(sum);
    const auto target = static_cast<int64_t>(c.slots[kTargets][n]);
    c.slots[kLosses][n] = target < 0 ? 0 : lse - logits[target];
    c.slots[kLse][n] = lse;
  }
}

void CrossEntropyBackward(Call& c) {
  using namespace cross_entropy;
  if (c.grads[kLogits].empty()) return;
  const int64_t vocab = c.types[kLogits].dims[1];
  for (int64_t n = 0; n < c.types[kLogits].dims[0]; ++n) {
    const auto target = static_cast<int64_t>(c.slots[kTargets][n]);
    for (int64_t v = 0; v < vocab; ++v) {
      const double p =
          std::exp(c.slots[kLogits][n * vocab + v] - c.slots[kLse][n]);
      c.grads[kLogits][n * vocab + v] =
          target < 0 ? 0 : (p - (v == target ? 1 : 0)) * c.attrs.loss_scale;
    }
  }
}

}  // namespace ebb::reference
