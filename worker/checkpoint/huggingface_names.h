// Ebb's parameters and the tensors of Hugging Face files: one table of plain
// data a family, read by import and export alike.
//
// A row says which tensors of the file, one behind the other, are the rows of
// an Ebb parameter. GPT-2 files store the weight of a linear as [in, out]
// ("Conv1D"), Ebb and Llama files as [out, in]. Stars stand for the layer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/tensor.h"
#include "worker/model/job_spec.h"

namespace ebb {

enum class HuggingFaceFamily : uint8_t { kGpt2, kLlama };

// Which rows of the parameter a tensor holds.
enum class HuggingFaceRows : uint8_t {
  kAll,
  kHidden,    // model.hidden of them: q
  kKeyValue,  // kv_heads times the width of a head: k, v
  kFfn,       // model.ffn: gate, up
};

struct HuggingFacePart {
  const char* name = nullptr;  // "transformer.h.*.attn.c_attn.weight"
  HuggingFaceRows rows = HuggingFaceRows::kAll;
};

struct HuggingFaceRow {
  const char* parameter;     // "L*.qkv.weight"
  bool transposed = false;   // stored as [in, out]
  HuggingFacePart parts[3];  // up to the first without a name
};

struct HuggingFaceTable {
  HuggingFaceFamily family;
  const char* model_type;    // in config.json
  const char* architecture;  // there, too
  const char* prefix;        // files of the bare model lack it
  const char* head;          // the head's weight, where it is not tied
  absl::Span<const HuggingFaceRow> rows;
  absl::Span<const char* const> buffers;  // in old files; nothing to read
};

const HuggingFaceTable& TableOf(HuggingFaceFamily family);
absl::Span<const HuggingFaceTable> HuggingFaceTables();

// One tensor of a file as a part of a parameter.
struct HuggingFaceTensor {
  std::string name;            // with the prefix
  std::vector<int64_t> shape;  // as stored
  bool transposed = false;
  int64_t first_row = 0;  // of the parameter's rows
  int64_t rows = 0;
};

// The tensors that are the parameter of this name ("L3.qkv.weight") and type.
// Errors: UNIMPLEMENTED for a parameter that the family does not have, or not
// of so many rows.
absl::StatusOr<std::vector<HuggingFaceTensor>> HuggingFaceTensorsOf(
    HuggingFaceFamily family, const ModelSpec& model,
    absl::string_view parameter, const TensorType& type);

// The name without the family's prefix, or as it is.
std::string WithoutPrefix(const HuggingFaceTable& table,
                          absl::string_view name);

// Whether a tensor is one of the family's buffers.
bool IsHuggingFaceBuffer(const HuggingFaceTable& table, absl::string_view name);

}  // namespace ebb
