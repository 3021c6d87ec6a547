// A model's logits, computed from its graph node by node with the kernels of a
// device: no program, no chunks, everything kept. For tests of what weights
// mean.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "worker/model/job_spec.h"

namespace ebb {

// Logits of every position of one sequence, [tokens, vocab]. `weights` has
// every parameter by its instance name ("L1.qkv.weight").
std::vector<float> ForwardLogits(
    const ModelSpec& model,
    const std::map<std::string, std::vector<float>>& weights,
    std::span<const int32_t> tokens, Device& device);

}  // namespace ebb
