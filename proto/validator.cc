#include "proto/validator.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/unknown_field_set.h"
#include "kernels/status.h"
#include "proto/effective_spec.h"
#include "proto/field_rules.h"
#include "proto/name_suggestion.h"
#include "proto/presets.h"
#include "proto/utf8.h"
#include "proto/violations.h"

namespace ebb {

namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int kDefaultMaxBytes = 4096;
constexpr int kDefaultMaxItems = 1000;
// Unknown field numbers of one message that are told one by one.
constexpr int kMaxUnknownFields = 16;

// Bytes as tokens and one end-of-file token.
constexpr int kTextVocab = 257;

class Checker {
 public:
  Checker(const v1::JobSpec& spec, const SpecExemptions& exemptions)
      : spec_(spec),
        full_(WithDefaults(spec)),
        exemptions_(exemptions),
        bad_(exemptions.unreadable) {}

  std::vector<SpecMistake> Run() {
    CheckUnknownFields(spec_, "");
    VisitFields(spec_, "",
                [&](const std::string& path, const Message& section,
                    const FieldDescriptor& field) {
                  if (Usable({path})) CheckField(path, section, field);
                });
    CheckModelSizes();
    CheckModel();
    CheckBatch();
    CheckSchedule();
    CheckEval();
    CheckMemory();
    CheckParallel();
    CheckProducts();
    CheckBuilt();
    return std::move(mistakes_);
  }

 private:
  // ---- Reporting ----

  void Report(const std::string& path, std::string value, std::string rule,
              std::string fix, bool not_built = false) {
    SpecMistake& mistake = mistakes_.emplace_back();
    mistake.violation.set_field(path);
    mistake.violation.set_value(std::move(value));
    mistake.violation.set_rule(std::move(rule));
    mistake.violation.set_fix(std::move(fix));
    mistake.not_built = not_built;
  }

  // A mistake after which rules about the field make no sense.
  void Add(const std::string& path, std::string value, std::string rule,
           std::string fix) {
    Report(path, std::move(value), std::move(rule), std::move(fix));
    bad_.insert(path);
  }

  void AddNotBuilt(const std::string& path, std::string value,
                   absl::string_view what, std::string fix) {
    Report(path, std::move(value), absl::StrCat(what, " is not built yet"),
           std::move(fix), /*not_built=*/true);
  }

  // None of the paths, nor a section above one, could not be read or is wrong
  // by itself: rules that join them make sense.
  bool Usable(std::initializer_list<std::string> paths) const {
    for (const std::string& path : paths) {
      for (size_t end = path.size(); end != std::string::npos && end > 0;
           end = path.rfind('.', end - 1)) {
        if (bad_.count(path.substr(0, end)) > 0) return false;
      }
    }
    return true;
  }

  // ---- Single fields ----

  void CheckUnknownFields(const Message& message, const std::string& path) {
    const Reflection& reflection = *message.GetReflection();
    const auto& unknown = reflection.GetUnknownFields(message);
    std::set<int> numbers;
    for (int i = 0; i < unknown.field_count(); ++i) {
      numbers.insert(unknown.field(i).number());
    }
    int num_told = 0;
    for (int number : numbers) {
      // A message may hold a million of them; the first ones tell enough.
      const bool last = ++num_told == kMaxUnknownFields;
      const size_t num_more = numbers.size() - num_told;
      Report(path,
             absl::StrCat("field number ", number,
                          last && num_more > 0
                              ? absl::StrCat(" and ", num_more, " more")
                              : ""),
             absl::StrCat(message.GetDescriptor()->name(),
                          " has no field of this number"),
             "use a client of the server's version");
      if (last) break;
    }
    std::vector<const FieldDescriptor*> fields;
    reflection.ListFields(message, &fields);
    for (const FieldDescriptor* field : fields) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        CheckUnknownFields(reflection.GetMessage(message, field),
                           JoinFieldPath(path, field->name()));
      }
    }
  }

  void CheckField(const std::string& path, const Message& section,
                  const FieldDescriptor& field) {
    const Reflection& reflection = *section.GetReflection();
    if (field.is_repeated()) {
      CheckList(path, section, field);
      return;
    }
    if (!reflection.HasField(section, &field)) {
      if (RuleOf(field).required()) Add(path, "", "is required", "set it");
      return;
    }
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32: {
        const int32_t value = reflection.GetInt32(section, &field);
        CheckBounds(path, value, absl::StrCat(value), field);
        break;
      }
      case FieldDescriptor::CPPTYPE_INT64: {
        const int64_t value = reflection.GetInt64(section, &field);
        CheckBounds(path, static_cast<double>(value), absl::StrCat(value),
                    field);
        break;
      }
      case FieldDescriptor::CPPTYPE_DOUBLE: {
        const double value = reflection.GetDouble(section, &field);
        if (!std::isfinite(value)) {
          Add(path, NumberText(value), "must be a finite number",
              "write digits");
        } else {
          CheckBounds(path, value, NumberText(value), field);
        }
        break;
      }
      case FieldDescriptor::CPPTYPE_ENUM:
        CheckChoice(path, reflection.GetEnumValue(section, &field), field);
        break;
      case FieldDescriptor::CPPTYPE_STRING:
        CheckText(path, reflection.GetString(section, &field), field);
        break;
      case FieldDescriptor::CPPTYPE_MESSAGE:
        CheckDuration(path,
                      static_cast<const google::protobuf::Duration&>(
                          reflection.GetMessage(section, &field)),
                      field);
        break;
      default:  // bool, uint64: every value of the type is fine
        break;
    }
  }

  void CheckBounds(const std::string& path, double value, std::string text,
                   const FieldDescriptor& field) {
    const v1::FieldRule& rule = RuleOf(field);
    if ((rule.has_min() && value < rule.min()) ||
        (rule.has_max() && value > rule.max()) ||
        (rule.has_above() && value <= rule.above()) ||
        (rule.has_below() && value >= rule.below())) {
      Add(path, std::move(text), Requirement(field), "");
    }
  }

  void CheckChoice(const std::string& path, int number,
                   const FieldDescriptor& field) {
    if (field.enum_type()->FindValueByNumber(number) != nullptr) return;
    Add(path, absl::StrCat(number),
        absl::StrCat(field.enum_type()->name(), " has no value of this number"),
        absl::StrCat("use one of ",
                     absl::StrJoin(ChoiceWords(*field.enum_type()), ", ")));
  }

  void CheckDuration(const std::string& path,
                     const google::protobuf::Duration& value,
                     const FieldDescriptor& field) {
    const std::string text =
        absl::StrCat(value.seconds(), "s ", value.nanos(), "ns");
    if (value.nanos() <= -1000000000 || value.nanos() >= 1000000000 ||
        (value.seconds() < 0 && value.nanos() > 0) ||
        (value.seconds() > 0 && value.nanos() < 0)) {
      Add(path, text,
          "nanos must be below a second and have the sign of seconds", "");
      return;
    }
    CheckBounds(path, value.seconds() + value.nanos() * 1e-9,
                DurationText(value), field);
  }

  // What holds for every text; false: a mistake was added.
  bool CheckCharacters(const std::string& path, const std::string& text,
                       const FieldDescriptor& field) {
    const v1::FieldRule& rule = RuleOf(field);
    const size_t max_bytes =
        rule.has_max_bytes() ? rule.max_bytes() : kDefaultMaxBytes;
    if (FindInvalidUtf8(text) != std::string::npos) {
      // The text itself cannot travel in a message.
      Add(path, OneLine(text), "must be UTF-8", "");
    } else if (text.size() > max_bytes) {
      Add(path, text.substr(0, CharacterBoundary(text, 80)),
          absl::StrCat("must have at most ", max_bytes, " bytes, has ",
                       text.size()),
          "shorten it");
    } else if (FindControlCharacter(text) != std::string::npos) {
      Add(path, text, "must have no control characters (line breaks, tabs)",
          "remove them");
    } else {
      return true;
    }
    return false;
  }

  // The largest length up to max_bytes that cuts no character.
  static size_t CharacterBoundary(const std::string& text, size_t max_bytes) {
    size_t end = 0;
    while (end < text.size()) {
      const size_t next =
          end + Utf8CharacterBytes(absl::string_view(text).substr(end));
      if (next > max_bytes) break;
      end = next;
    }
    return end;
  }

  void CheckText(const std::string& path, const std::string& text,
                 const FieldDescriptor& field) {
    if (!CheckCharacters(path, text, field)) return;
    const v1::FieldRule& rule = RuleOf(field);
    if (text.empty()) {
      if (rule.required()) Add(path, "\"\"", "must not be empty", "set it");
    } else if (rule.path() && text[0] != '/' && !exemptions_.relative_paths) {
      Add(path, text, "must be an absolute path",
          absl::StrCat("write /.../", text));
    }
  }

  void CheckList(const std::string& path, const Message& section,
                 const FieldDescriptor& field) {
    const Reflection& reflection = *section.GetReflection();
    const v1::FieldRule& rule = RuleOf(field);
    const int size = reflection.FieldSize(section, &field);
    const int max_items =
        rule.has_max_items() ? rule.max_items() : kDefaultMaxItems;
    if (size > max_items) {
      Add(path, absl::StrCat(size, " entries"),
          absl::StrCat("must have at most ", max_items, " entries"),
          "join names with *");
      return;
    }
    for (int i = 0; i < size; ++i) {
      const std::string item = absl::StrCat(path, "[", i, "]");
      const std::string text = reflection.GetRepeatedString(section, &field, i);
      if (!CheckCharacters(item, text, field)) {
        bad_.insert(path);
      } else if (text.empty() ||
                 text.find_first_not_of(
                     "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                     "0123456789_.*") != std::string::npos) {
        Add(item, absl::StrCat("\"", text, "\""),
            "must be an op name or a value name, with * for any part",
            "write it as in gelu or L*.mlp.act.y");
        bad_.insert(path);
      }
    }
  }

  // ---- Rules that join fields ----

  std::string Number(int64_t value) const { return absl::StrCat(value); }

  // "must be a multiple of model.heads (4)" on `path`.
  void CheckMultiple(const std::string& path, int64_t value,
                     const std::string& of_path, int64_t of) {
    if (!Usable({path, of_path}) || of < 1 || value % of == 0) return;
    Add(path, Number(value),
        absl::StrCat("must be a multiple of ", of_path, ", which is ", of),
        absl::StrCat("for example ", (value / of + 1) * of));
  }

  // "must be at most steps (10)" on `path`.
  void CheckAtMost(const std::string& path, double value,
                   const std::string& of_path, double of) {
    if (!Usable({path, of_path}) || value <= of) return;
    Add(path, NumberText(value),
        absl::StrCat("must be at most ", of_path, ", which is ",
                     NumberText(of)),
        absl::StrCat("lower it, or raise ", of_path));
  }

  void CheckModelSizes() {
    const v1::ModelSpec& model = spec_.model();
    if (!Usable({"model.preset"})) {
      MarkModelUnusable();
      return;
    }
    const bool has_preset = FindPreset(model.preset()) != nullptr;
    if (!model.preset().empty() && !has_preset) {
      const std::string near = NearestName(model.preset(), PresetNames());
      Add("model.preset", model.preset(),
          absl::StrCat("must be one of ", absl::StrJoin(PresetNames(), ", ")),
          near.empty() ? "" : absl::StrCat("did you mean ", near, "?"));
      MarkModelUnusable();
      return;
    }
    if (has_preset) return;
    for (const char* name : {"layers", "hidden", "heads", "vocab", "seq_len"}) {
      const FieldDescriptor* field =
          model.GetDescriptor()->FindFieldByName(name);
      const std::string path = JoinFieldPath("model", name);
      if (!model.GetReflection()->HasField(model, field) && Usable({path})) {
        Add(path, "", "is required without a preset",
            "set it, or model.preset");
      }
    }
  }

  // Sizes that a wrong preset leaves open.
  void MarkModelUnusable() {
    for (const char* name : {"layers", "hidden", "heads", "vocab", "seq_len"}) {
      const FieldDescriptor* field =
          spec_.model().GetDescriptor()->FindFieldByName(name);
      if (!spec_.model().GetReflection()->HasField(spec_.model(), field)) {
        bad_.insert(JoinFieldPath("model", name));
      }
    }
  }

  void CheckModel() {
    const v1::ModelSpec& model = full_.model();
    CheckMultiple("model.hidden", model.hidden(), "model.heads", model.heads());
    CheckMultiple("model.heads", model.heads(), "model.kv_heads",
                  model.kv_heads());
    if (Usable({"model.hidden", "model.heads", "model.positions"}) &&
        model.positions() == v1::POSITIONS_ROPE &&
        model.hidden() / model.heads() % 2 != 0) {
      Add("model.hidden", Number(model.hidden()),
          absl::StrCat(
              "must give heads of even width for rope: ", model.hidden(), " / ",
              model.heads(), " is ", model.hidden() / model.heads()),
          "change model.hidden or model.heads");
    }
    if (model.experts() > 0) {
      CheckAtMost("model.top_k", model.top_k(), "model.experts",
                  model.experts());
    }
    if (Usable({"model.vocab", "data.format"}) &&
        full_.data().format() == v1::DATA_FORMAT_TEXT &&
        model.vocab() < kTextVocab) {
      Add("model.vocab", Number(model.vocab()),
          absl::StrCat("must be at least ", kTextVocab,
                       " for data.format text"),
          absl::StrCat("write ", kTextVocab));
    }
  }

  void CheckBatch() {
    const v1::BatchSpec& batch = full_.batch();
    const v1::ParallelSpec& parallel = full_.parallel();
    CheckMultiple("batch.global", batch.global(), "batch.micro", batch.micro());
    if (parallel.data() > 1 &&
        Usable({"batch.global", "batch.micro", "parallel.data"})) {
      const int64_t of = int64_t{batch.micro()} * parallel.data();
      if (batch.global() % of != 0) {
        Add("batch.global", Number(batch.global()),
            absl::StrCat("must be a multiple of batch.micro * parallel.data, "
                         "which is ",
                         batch.micro(), " * ", parallel.data(), " = ", of),
            absl::StrCat("for example ", (batch.global() / of + 1) * of));
      }
    }
  }

  void CheckSchedule() {
    if (spec_.lr_schedule().has_warmup()) {
      CheckAtMost("lr_schedule.warmup",
                  static_cast<double>(full_.lr_schedule().warmup()), "steps",
                  static_cast<double>(full_.steps()));
    }
    if (spec_.lr_schedule().has_min_lr()) {
      CheckAtMost("lr_schedule.min_lr", full_.lr_schedule().min_lr(),
                  "optimizer.lr", full_.optimizer().lr());
    }
  }

  void CheckEval() {
    const v1::EvalSpec& eval = full_.eval();
    if (Usable({"eval.every", "data.validation"}) && eval.every() > 0 &&
        full_.data().validation().empty()) {
      Add("eval.every", Number(eval.every()),
          "needs data.validation, which is not set",
          "set data.validation, or eval.every: 0");
    }
    if (spec_.eval().seq_len() > 0) {
      CheckAtMost("eval.seq_len", eval.seq_len(), "model.seq_len",
                  full_.model().seq_len());
    }
    if (spec_.eval().micro() > 0 && Usable({"eval.micro", "batch.global"}) &&
        full_.batch().global() % eval.micro() != 0) {
      Add("eval.micro", Number(eval.micro()),
          absl::StrCat("must divide batch.global, which is ",
                       full_.batch().global()),
          absl::StrCat("for example ", full_.batch().micro()));
    }
  }

  void CheckMemory() {
    const v1::MemorySpec& memory = full_.memory();
    const auto word = [](v1::Policy policy) {
      return ChoiceWord(*v1::Policy_descriptor()->FindValueByNumber(policy));
    };
    if (!Usable({"memory.policy"})) return;
    const v1::Policy policy = memory.policy();
    if (Usable({"memory.recompute"})) {
      if (policy == v1::POLICY_CUSTOM && memory.recompute().empty()) {
        Add("memory.recompute", "[]",
            "must name ops or values for policy custom",
            "write it as in [gelu, L*.mlp.act.y]");
      } else if (policy != v1::POLICY_CUSTOM && !memory.recompute().empty()) {
        Add("memory.recompute",
            absl::StrCat("[", absl::StrJoin(memory.recompute(), ", "), "]"),
            absl::StrCat("is for policy custom; memory.policy is ",
                         word(policy)),
            "set memory.policy: custom, or remove the list");
      }
    }
    if (Usable({"memory.group"})) {
      if (policy != v1::POLICY_FULL && memory.group() != 1) {
        Add("memory.group", Number(memory.group()),
            absl::StrCat("is for policy full; memory.policy is ", word(policy)),
            "set memory.policy: full, or remove it");
      } else if (policy == v1::POLICY_FULL && spec_.memory().has_group()) {
        CheckAtMost("memory.group", memory.group(), "model.layers",
                    full_.model().layers());
      }
    }
    if (Usable({"memory.offload_dir", "memory.offload",
                "memory.offload_optimizer"}) &&
        !memory.offload_dir().empty() && memory.offload() != v1::OFFLOAD_DISK &&
        memory.offload_optimizer() != v1::OFFLOAD_DISK) {
      Add("memory.offload_dir", memory.offload_dir(),
          "is for offloading to disk, and nothing is offloaded to disk",
          "set memory.offload or memory.offload_optimizer to disk, or remove "
          "it");
    }
    if (Usable({"memory.offload_parameters"}) &&
        memory.offload_parameters() == v1::OFFLOAD_DISK) {
      Add("memory.offload_parameters", "disk", "must be none or host",
          "write host");
    }
    if (Usable({"memory.encode.values", "memory.encode.format"})) {
      const v1::EncodeSpec& encode = memory.encode();
      const bool has_format = encode.format() != v1::ENCODE_FORMAT_NONE;
      if (has_format && encode.values().empty()) {
        Add("memory.encode.values", "[]",
            "must name values when memory.encode.format is set",
            "write it as in [L*.mlp.act.y]");
      } else if (!has_format && !encode.values().empty()) {
        Add("memory.encode.format", "none",
            "must be set when memory.encode.values names values",
            "write bf16 or fp8_e4m3");
      } else if (encode.format() == v1::ENCODE_FORMAT_BF16 &&
                 Usable({"precision"}) &&
                 full_.precision() == v1::PRECISION_BF16) {
        Add("memory.encode.format", "bf16",
            "saves nothing: with precision bf16 values are bf16 already",
            "write fp8_e4m3, or set precision: fp32");
      }
    }
  }

  void CheckParallel() {
    const v1::ParallelSpec& parallel = full_.parallel();
    const v1::ModelSpec& model = full_.model();
    if (parallel.tensor() > 1) {
      for (const auto& [path, value] :
           {std::pair<std::string, int64_t>{"model.heads", model.heads()},
            {"model.kv_heads", model.kv_heads()},
            {"model.hidden", model.hidden()},
            {"model.ffn", model.ffn()}}) {
        CheckMultiple(path, value, "parallel.tensor", parallel.tensor());
      }
      if (parallel.sequence()) {
        CheckMultiple("model.seq_len", model.seq_len(), "parallel.tensor",
                      parallel.tensor());
      }
    }
    if (parallel.sequence_chunks() > 1) {
      CheckMultiple("model.seq_len", model.seq_len(),
                    "parallel.sequence_chunks", parallel.sequence_chunks());
    }
    if (parallel.expert() > 1) {
      if (model.experts() > 0) {
        CheckMultiple("model.experts", model.experts(), "parallel.expert",
                      parallel.expert());
      } else if (Usable({"parallel.expert", "model.experts"})) {
        Add("parallel.expert", Number(parallel.expert()),
            "needs experts, and model.experts is 0",
            "set model.experts, or parallel.expert: 1");
      }
    }
    if (parallel.virtual_stages() > 1 &&
        Usable({"parallel.virtual_stages", "parallel.schedule"}) &&
        parallel.schedule() != v1::PIPELINE_SCHEDULE_INTERLEAVED) {
      Add("parallel.virtual_stages", Number(parallel.virtual_stages()),
          absl::StrCat(
              "needs parallel.schedule interleaved, which is ",
              ChoiceWord(*v1::PipelineSchedule_descriptor()->FindValueByNumber(
                  parallel.schedule()))),
          "set parallel.schedule: interleaved");
    }
    if (Usable(
            {"parallel.pipeline", "parallel.virtual_stages", "model.layers"})) {
      const int64_t stages =
          int64_t{parallel.pipeline()} * parallel.virtual_stages();
      if (stages > 1 && stages > model.layers()) {
        Add("parallel.pipeline", Number(parallel.pipeline()),
            absl::StrCat("needs a layer for each of its ", stages,
                         " stages, and model.layers is ", model.layers()),
            "lower it, or raise model.layers");
      }
    }
    if (Usable({"parallel.pipeline", "parallel.schedule", "batch.global",
                "batch.micro"}) &&
        parallel.pipeline() > 1 &&
        parallel.schedule() == v1::PIPELINE_SCHEDULE_INTERLEAVED) {
      const int64_t microbatches =
          full_.batch().global() / full_.batch().micro();
      if (microbatches % parallel.pipeline() != 0) {
        Add("parallel.pipeline", Number(parallel.pipeline()),
            absl::StrCat("must divide the microbatches of a step for schedule "
                         "interleaved, which are ",
                         microbatches),
            "change batch.global or parallel.pipeline");
      }
    }
  }

  // Products that must fit 64-bit integers wherever bytes and FLOPs are
  // counted. Double is exact enough: the bound is far from real jobs.
  void CheckProducts() {
    if (!Usable({"model.layers", "model.hidden", "model.heads", "model.ffn",
                 "model.vocab", "model.seq_len", "batch.global", "batch.micro",
                 "steps", "eval.micro", "eval.seq_len"})) {
      return;
    }
    // A factor of 2 below 2^63, for sums.
    constexpr double kMost = 4611686018427387904.0;
    const v1::ModelSpec& model = full_.model();
    const double layers = model.layers(), hidden = model.hidden(),
                 heads = model.heads(), ffn = model.ffn(),
                 vocab = model.vocab();
    const double seq_len = std::max(model.seq_len(), full_.eval().seq_len());
    const double micro = std::max(full_.batch().micro(), full_.eval().micro());
    const double experts = std::max(model.experts(), 1);

    // Weights, gradients and two moments, in 4 bytes each.
    const double layer_parameters =
        4 * hidden * hidden + 3 * hidden * ffn * experts + 16 * hidden;
    const double parameters =
        layers * layer_parameters + 2 * vocab * hidden + seq_len * hidden;
    if (16 * parameters >= kMost) {
      Add("model.layers", Number(model.layers()),
          absl::StrCat("makes, with hidden ", model.hidden(), ", ffn ",
                       model.ffn(), " and vocab ", model.vocab(),
                       ", a model of about ",
                       NumberText(std::round(parameters)),
                       " parameters: more than 64-bit byte counts hold"),
          "lower the sizes");
      return;
    }
    // FLOPs of one op, and bytes of one microbatch's activations in all layers,
    // the attention matrix included.
    const double tokens = micro * seq_len;
    const double op_flops =
        std::max(8 * tokens * hidden * std::max({4 * hidden, ffn, vocab}),
                 16 * tokens * seq_len * hidden);
    const double activation_bytes =
        8 * tokens * layers * (16 * hidden + 4 * ffn + 4 * heads * seq_len) +
        8 * tokens * vocab;
    if (op_flops >= kMost || activation_bytes >= kMost) {
      Add("batch.micro", Number(full_.batch().micro()),
          absl::StrCat("makes, with seq_len ", NumberText(seq_len), ", layers ",
                       model.layers(), " and hidden ", model.hidden(),
                       ", microbatches beyond 64-bit counts of bytes and "
                       "FLOPs"),
          "lower the sizes");
      return;
    }
    const double job_tokens = static_cast<double>(full_.steps()) *
                              full_.batch().global() * model.seq_len();
    if (job_tokens >= kMost) {
      Add("steps", Number(full_.steps()),
          absl::StrCat("makes, with batch.global ", full_.batch().global(),
                       " and seq_len ", model.seq_len(), ", about ",
                       NumberText(std::round(job_tokens)),
                       " tokens: more than 64-bit counts hold"),
          "lower steps");
    }
  }

  // ---- What this version cannot do ----

  // Refuses a choice that is not built; `what` is not, if not the word itself.
  void CheckBuiltChoice(const std::string& path, int value,
                        const google::protobuf::EnumDescriptor& type,
                        absl::string_view what = "") {
    if (!Usable({path})) return;
    const auto& choice = *type.FindValueByNumber(value);
    if (IsBuilt(choice)) return;
    const std::string word = ChoiceWord(choice);
    AddNotBuilt(path, word, what.empty() ? word : what,
                absl::StrCat("use ", absl::StrJoin(ChoiceWords(type), ", ")));
  }

  void CheckBuiltNumber(const std::string& path, int64_t value, int64_t built,
                        absl::string_view what) {
    if (!Usable({path}) || value == built) return;
    AddNotBuilt(path, Number(value), what, absl::StrCat("use ", built));
  }

  void CheckBuilt() {
    CheckBuiltChoice("precision", full_.precision(),
                     *v1::Precision_descriptor());
    const v1::ModelSpec& model = full_.model();
    CheckBuiltChoice("model.activation", model.activation(),
                     *v1::Activation_descriptor());
    CheckBuiltNumber("model.experts", model.experts(), 0, "mixture of experts");

    const v1::ParallelSpec& parallel = full_.parallel();
    CheckBuiltNumber("parallel.data", parallel.data(), 1, "data parallelism");
    CheckBuiltNumber("parallel.tensor", parallel.tensor(), 1,
                     "tensor parallelism");
    if (Usable({"parallel.sequence"}) && parallel.sequence()) {
      AddNotBuilt("parallel.sequence", "true", "sequence parallelism",
                  "use false");
    }
    CheckBuiltNumber("parallel.sequence_chunks", parallel.sequence_chunks(), 1,
                     "sequence chunking");
    CheckBuiltNumber("parallel.pipeline", parallel.pipeline(), 1,
                     "pipeline parallelism");
    CheckBuiltNumber("parallel.virtual_stages", parallel.virtual_stages(), 1,
                     "pipeline parallelism");
    CheckBuiltNumber("parallel.expert", parallel.expert(), 1,
                     "expert parallelism");
    CheckBuiltNumber("parallel.zero", parallel.zero(), 0, "ZeRO");

    const v1::MemorySpec& memory = full_.memory();
    CheckBuiltChoice("memory.policy", memory.policy(),
                     *v1::Policy_descriptor());
    const v1::ResourceSpec& resources = full_.resources();
    CheckBuiltChoice("resources.device", resources.device(),
                     *v1::DeviceKind_descriptor());
    if (Usable({"resources.device_model"}) &&
        !resources.device_model().empty()) {
      AddNotBuilt("resources.device_model", resources.device_model(),
                  "choosing a device by its model", "remove it");
    }
  }

  const v1::JobSpec& spec_;
  const v1::JobSpec full_;
  const SpecExemptions& exemptions_;
  // Paths that were not readable or have a mistake of their own.
  std::set<std::string> bad_;
  std::vector<SpecMistake> mistakes_;
};

}  // namespace

std::vector<SpecMistake> FindSpecMistakes(const v1::JobSpec& spec,
                                          const SpecExemptions& exemptions) {
  return Checker(spec, exemptions).Run();
}

absl::Status SpecMistakesStatus(const std::vector<SpecMistake>& mistakes) {
  if (mistakes.empty()) return absl::OkStatus();
  std::vector<v1::Violation> violations;
  bool all_not_built = true;
  for (const SpecMistake& mistake : mistakes) {
    violations.push_back(mistake.violation);
    all_not_built &= mistake.not_built;
  }
  return ViolationsStatus(all_not_built ? absl::StatusCode::kUnimplemented
                                        : absl::StatusCode::kInvalidArgument,
                          violations);
}

absl::Status ValidateSpec(const v1::JobSpec& spec) {
  return SpecMistakesStatus(FindSpecMistakes(spec, SpecExemptions()));
}

}  // namespace ebb
