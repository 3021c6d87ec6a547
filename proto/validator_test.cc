// Specs that come as raw messages: the same rules as for texts, and those that
// a text cannot break.
#include "proto/validator.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/effective_spec.h"
#include "proto/field_rules.h"
#include "proto/presets.h"
#include "proto/spec_reader.h"
#include "proto/testing/spec_texts.h"
#include "proto/violations.h"

namespace ebb {
namespace {

using google::protobuf::util::MessageDifferencer;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using Change = std::function<void(v1::JobSpec*)>;

v1::JobSpec GoodSpec() {
  auto spec = ReadSpec(kShortYaml, "spec.yaml", {});
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *spec;
}

absl::Status Validate(const Change& change) {
  v1::JobSpec spec = GoodSpec();
  change(&spec);
  return ValidateSpec(spec);
}

// Expects that a change of the good spec gives just one mistake.
void ExpectMistake(const std::string& field, const std::string& says,
                   const Change& change,
                   absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  const absl::Status status = Validate(change);
  EXPECT_EQ(status.code(), code) << status;
  const auto violations = GetViolations(status);
  ASSERT_EQ(violations.size(), 1u) << status;
  EXPECT_EQ(violations[0].field(), field);
  EXPECT_THAT(FormatViolation(violations[0]), HasSubstr(says));
  EXPECT_EQ(violations[0].file(), "");
}

void AskForEncoding(v1::EncodeFormat format, v1::JobSpec* spec) {
  spec->mutable_memory()->mutable_encode()->set_format(format);
  spec->mutable_memory()->mutable_encode()->add_values("gelu");
}

TEST(Validator, AcceptsGoodSpecs) {
  EXPECT_TRUE(ValidateSpec(GoodSpec()).ok()) << ValidateSpec(GoodSpec());
  EXPECT_TRUE(Validate([](v1::JobSpec* spec) {
                spec->mutable_model()->set_bias(false);
                spec->mutable_model()->set_tied_embeddings(false);
                spec->mutable_model()->set_dropout(0.1);
                spec->mutable_model()->set_attention(v1::ATTENTION_UNFUSED);
                spec->mutable_restart()->set_max(0);
                spec->mutable_memory()->set_policy(v1::POLICY_FULL);
                spec->mutable_memory()->set_group(4);
              }).ok());
  // UNSPECIFIED is "not set".
  EXPECT_TRUE(Validate([](v1::JobSpec* spec) {
                spec->set_precision(v1::PRECISION_UNSPECIFIED);
                spec->mutable_memory()->set_policy(v1::POLICY_UNSPECIFIED);
              }).ok());
}

TEST(Validator, EmptyMessageLacksEverythingRequired) {
  const absl::Status status = ValidateSpec(v1::JobSpec());
  std::vector<std::string> fields;
  for (const auto& v : GetViolations(status)) fields.push_back(v.field());
  EXPECT_THAT(fields, ::testing::UnorderedElementsAre(
                          "steps", "data.train", "batch.global", "batch.micro",
                          "model.layers", "model.hidden", "model.heads",
                          "model.vocab", "model.seq_len"));
}

TEST(Validator, RefusesNumbersOutOfBounds) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  for (double lr : {-1.0, nan, inf, -inf, 1e300}) {
    ExpectMistake("optimizer.lr", "number", [&](v1::JobSpec* spec) {
      spec->mutable_optimizer()->set_lr(lr);
    });
  }
  for (double dropout : {-0.1, 1.0, 1.5, nan}) {
    ExpectMistake("model.dropout", "number", [&](v1::JobSpec* spec) {
      spec->mutable_model()->set_dropout(dropout);
    });
  }
  ExpectMistake("optimizer.beta1", "must be a number at least 0 and below 1",
                [](auto* s) { s->mutable_optimizer()->set_beta1(1); });
  ExpectMistake("optimizer.eps", "above 0",
                [](auto* s) { s->mutable_optimizer()->set_eps(0); });
  ExpectMistake("optimizer.weight_decay", "from 0",
                [](auto* s) { s->mutable_optimizer()->set_weight_decay(-1); });
  ExpectMistake("optimizer.clip", "at least 0",
                [](auto* s) { s->mutable_optimizer()->set_clip(-1); });
  ExpectMistake("optimizer.clip", "finite",
                [&](auto* s) { s->mutable_optimizer()->set_clip(inf); });
  ExpectMistake("steps", "got 0", [](auto* s) { s->set_steps(0); });
  ExpectMistake("steps", "got -5", [](auto* s) { s->set_steps(-5); });
  ExpectMistake("batch.micro", "got 0",
                [](auto* s) { s->mutable_batch()->set_micro(0); });
  ExpectMistake("memory.budget", "got 0",
                [](auto* s) { s->mutable_memory()->set_budget(0); });
  EXPECT_TRUE(
      Validate([](auto* s) { s->mutable_optimizer()->set_lr(0); }).ok());
}

// cases.md C2: every size 0.
TEST(Validator, RefusesEverySizeZero) {
  for (const char* name :
       {"layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len"}) {
    ExpectMistake(
        absl::StrCat("model.", name), "got 0", [&](v1::JobSpec* spec) {
          v1::ModelSpec* model = spec->mutable_model();
          model->GetReflection()->SetInt32(
              model, model->GetDescriptor()->FindFieldByName(name), 0);
        });
  }
}

TEST(Validator, RefusesUnknownEnumNumbers) {
  ExpectMistake(
      "optimizer.name",
      "got 99: OptimizerName has no value of this number; use one of "
      "adamw",
      [](v1::JobSpec* spec) {
        spec->mutable_optimizer()->set_name(static_cast<v1::OptimizerName>(99));
      });
  ExpectMistake(
      "memory.policy", "use one of none, selective, cheap",
      [](v1::JobSpec* spec) {
        spec->mutable_memory()->set_policy(static_cast<v1::Policy>(-1));
      });
}

TEST(Validator, RefusesUnknownFieldsByNumber) {
  ExpectMistake("model", "got field number 77: ModelSpec has no field",
                [](v1::JobSpec* spec) {
                  v1::ModelSpec* model = spec->mutable_model();
                  auto* unknown =
                      model->GetReflection()->MutableUnknownFields(model);
                  unknown->AddVarint(77, 1);
                  unknown->AddVarint(77, 2);
                });
  // Only so many are told one by one.
  const absl::Status many = Validate([](v1::JobSpec* spec) {
    auto* unknown = spec->GetReflection()->MutableUnknownFields(spec);
    for (int i = 0; i < 100000; ++i) unknown->AddVarint(1000 + i, 1);
  });
  EXPECT_EQ(GetViolations(many).size(), 16u);
  EXPECT_THAT(std::string(many.message()),
              HasSubstr("got field number 1015 and 99984 more"));
  // The rest is checked all the same.
  const absl::Status status = Validate([](v1::JobSpec* spec) {
    spec->GetReflection()->MutableUnknownFields(spec)->AddLengthDelimited(
        900, "text");
    spec->set_steps(0);
    spec->mutable_resources()->mutable_timeout()->set_seconds(5);
    auto* timeout = spec->mutable_resources()->mutable_timeout();
    timeout->GetReflection()->MutableUnknownFields(timeout)->AddFixed32(9, 9);
  });
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("got field number 900: JobSpec"),
                    HasSubstr("steps: got 0"),
                    HasSubstr("resources.timeout: got field number 9")));
}

TEST(Validator, RefusesTextsThatHarmOutputs) {
  const auto name = [](const std::string& text) {
    return [text](v1::JobSpec* spec) { spec->set_name(text); };
  };
  for (const char* good : {"", "a\"b", "a\\b", "{}", "\U0001F600", "$(touch x)",
                           "; id", "`x`", "grün"}) {
    EXPECT_TRUE(Validate(name(good)).ok()) << good;
  }
  EXPECT_TRUE(Validate(name(std::string(200, 'x'))).ok());
  ExpectMistake("name", "at most 200 bytes, has 201",
                name(std::string(201, 'x')));
  ExpectMistake("name", "got a\\nb: must have no control characters",
                name("a\nb"));
  ExpectMistake("name", "control", name(std::string("a\0b", 3)));
  ExpectMistake("name", "control", name("a\x7f"));
  ExpectMistake("name", "control",
                name("a\xc2\x9b"
                     "b"));
  ExpectMistake("name", "got a\\xff: must be UTF-8", name("a\xff"));
  ExpectMistake("name", "UTF-8", name("\xc0\xaf"));
  ExpectMistake("name", "UTF-8", name("\xed\xa0\x80"));
  ExpectMistake("data.train", "at most 4096 bytes", [](v1::JobSpec* spec) {
    spec->mutable_data()->set_train("/" + std::string(4096, 'x'));
  });
  ExpectMistake("data.train", "must not be empty",
                [](auto* s) { s->mutable_data()->set_train(""); });
  ExpectMistake("data.train", "got corpus.txt: must be an absolute path",
                [](auto* s) { s->mutable_data()->set_train("corpus.txt"); });
  ExpectMistake("checkpoint.init_from", "absolute",
                [](auto* s) { s->mutable_checkpoint()->set_init_from("x"); });
  ExpectMistake("memory.recompute", "at most 256 entries", [](auto* s) {
    s->mutable_memory()->set_policy(v1::POLICY_CUSTOM);
    for (int i = 0; i < 1001; ++i) s->mutable_memory()->add_recompute("gelu");
  });
  ExpectMistake("memory.recompute[1]", "must be an op name", [](auto* s) {
    s->mutable_memory()->set_policy(v1::POLICY_CUSTOM);
    s->mutable_memory()->add_recompute("gelu");
    s->mutable_memory()->add_recompute("a b");
  });
}

TEST(Validator, RefusesDurationsThatAreNone) {
  const auto timeout = [](int64_t seconds, int32_t nanos) {
    return [=](v1::JobSpec* spec) {
      auto* duration = spec->mutable_resources()->mutable_timeout();
      duration->set_seconds(seconds);
      duration->set_nanos(nanos);
    };
  };
  EXPECT_TRUE(Validate(timeout(0, 1)).ok());
  ExpectMistake("resources.timeout", "above 0s", timeout(0, 0));
  ExpectMistake("resources.timeout", "got -1s", timeout(-1, 0));
  ExpectMistake("resources.timeout", "at most 8760h", timeout(31536001, 0));
  ExpectMistake("resources.timeout", "nanos", timeout(1, -1));
  ExpectMistake("resources.timeout", "nanos", timeout(1, 1000000000));
  ExpectMistake("resources.timeout", "nanos",
                timeout(0, std::numeric_limits<int32_t>::min()));
}

// ---- Rules that join fields (cases.md C2, E3) ----

TEST(Validator, StatesBothNumbersOfWhatDoesNotDivide) {
  ExpectMistake("model.hidden",
                "got 66: must be a multiple of model.heads, which is 4; for "
                "example 68",
                [](auto* s) { s->mutable_model()->set_hidden(66); });
  ExpectMistake("batch.global",
                "got 8: must be a multiple of batch.micro, which is 3",
                [](auto* s) { s->mutable_batch()->set_micro(3); });
  const auto has = [](const std::string& text, const Change& change) {
    EXPECT_THAT(std::string(Validate(change).message()), HasSubstr(text));
  };
  has("model.heads: got 6: must be a multiple of parallel.tensor, which is 4",
      [](auto* s) {
        s->mutable_model()->set_hidden(120);
        s->mutable_model()->set_heads(6);
        s->mutable_parallel()->set_tensor(4);
      });
  has("model.heads: got 6: must be a multiple of model.kv_heads, which is 4",
      [](auto* s) {
        s->mutable_model()->set_hidden(120);
        s->mutable_model()->set_heads(6);
        s->mutable_model()->set_kv_heads(4);
      });
  has("model.kv_heads: got 2: must be a multiple of parallel.tensor, which is "
      "4",
      [](auto* s) {
        s->mutable_model()->set_kv_heads(2);
        s->mutable_parallel()->set_tensor(4);
      });
  has("model.ffn: got 255: must be a multiple of parallel.tensor, which is 2",
      [](auto* s) {
        s->mutable_model()->set_ffn(255);
        s->mutable_parallel()->set_tensor(2);
      });
  has("batch.global: got 4: must be a multiple of batch.micro * "
      "parallel.data, which is 2 * 4 = 8",
      [](auto* s) {
        s->mutable_batch()->set_global(4);
        s->mutable_batch()->set_micro(2);
        s->mutable_parallel()->set_data(4);
      });
  has("model.experts: got 6: must be a multiple of parallel.expert, which is 4",
      [](auto* s) {
        s->mutable_model()->set_experts(6);
        s->mutable_parallel()->set_expert(4);
      });
  has("model.top_k: got 5: must be at most model.experts, which is 4",
      [](auto* s) {
        s->mutable_model()->set_experts(4);
        s->mutable_model()->set_top_k(5);
      });
  has("parallel.pipeline: got 5: needs a layer for each of its 5 stages, and "
      "model.layers is 4",
      [](auto* s) { s->mutable_parallel()->set_pipeline(5); });
  has("model.seq_len: got 33: must be a multiple of parallel.tensor, which is "
      "2",
      [](auto* s) {
        s->mutable_model()->set_seq_len(33);
        s->mutable_parallel()->set_tensor(2);
        s->mutable_parallel()->set_sequence(true);
      });
  has("model.seq_len: got 128: must be a multiple of "
      "parallel.sequence_chunks, which is 3",
      [](auto* s) { s->mutable_parallel()->set_sequence_chunks(3); });
  has("parallel.virtual_stages: got 2: needs parallel.schedule interleaved, "
      "which is 1f1b",
      [](auto* s) { s->mutable_parallel()->set_virtual_stages(2); });
  has("parallel.pipeline: got 3: must divide the microbatches of a step for "
      "schedule interleaved, which are 4",
      [](auto* s) {
        s->mutable_parallel()->set_pipeline(3);
        s->mutable_parallel()->set_schedule(v1::PIPELINE_SCHEDULE_INTERLEAVED);
      });
  has("parallel.expert: got 2: needs experts",
      [](auto* s) { s->mutable_parallel()->set_expert(2); });
  has("must give heads of even width for rope: 12 / 4 is 3", [](auto* s) {
    s->mutable_model()->set_hidden(12);
    s->mutable_model()->set_positions(v1::POSITIONS_ROPE);
  });
}

TEST(Validator, WarmupIsAtMostSteps) {
  for (int64_t warmup : {0, 1, 199, 200}) {
    EXPECT_TRUE(Validate([&](auto* s) {
                  s->mutable_lr_schedule()->set_warmup(warmup);
                }).ok());
  }
  ExpectMistake("lr_schedule.warmup",
                "got 201: must be at most steps, which is 200",
                [](auto* s) { s->mutable_lr_schedule()->set_warmup(201); });
  // The default gives way to fewer steps.
  EXPECT_TRUE(Validate([](auto* s) { s->set_steps(1); }).ok());
  ExpectMistake("lr_schedule.min_lr",
                "got 0.01: must be at most optimizer.lr, which is 0.001",
                [](auto* s) { s->mutable_lr_schedule()->set_min_lr(0.01); });
  EXPECT_TRUE(
      Validate([](auto* s) { s->mutable_optimizer()->set_lr(1e-5); }).ok());
}

TEST(Validator, EvaluationNeedsItsData) {
  ExpectMistake("eval.every", "got 5: needs data.validation",
                [](auto* s) { s->mutable_eval()->set_every(5); });
  EXPECT_TRUE(Validate([](auto* s) {
                s->mutable_eval()->set_every(5);
                s->mutable_data()->set_validation("/v.txt");
                s->mutable_eval()->set_micro(4);
                s->mutable_eval()->set_seq_len(128);
              }).ok());
  ExpectMistake("eval.seq_len",
                "got 129: must be at most model.seq_len, which is 128",
                [](auto* s) { s->mutable_eval()->set_seq_len(129); });
  ExpectMistake("eval.micro",
                "got 3: must divide batch.global, which is 8; for example 2",
                [](auto* s) { s->mutable_eval()->set_micro(3); });
}

TEST(Validator, MemoryRulesFollowThePolicy) {
  ExpectMistake(
      "memory.recompute", "must name ops or values for policy custom",
      [](auto* s) { s->mutable_memory()->set_policy(v1::POLICY_CUSTOM); });
  ExpectMistake("memory.recompute",
                "got [gelu]: is for policy custom; memory.policy is cheap",
                [](auto* s) {
                  s->mutable_memory()->set_policy(v1::POLICY_CHEAP);
                  s->mutable_memory()->add_recompute("gelu");
                });
  ExpectMistake("memory.group",
                "got 2: is for policy full; memory.policy is sqrt",
                [](auto* s) {
                  s->mutable_memory()->set_policy(v1::POLICY_SQRT);
                  s->mutable_memory()->set_group(2);
                });
  ExpectMistake("memory.group",
                "got 5: must be at most model.layers, which is 4", [](auto* s) {
                  s->mutable_memory()->set_policy(v1::POLICY_FULL);
                  s->mutable_memory()->set_group(5);
                });
  ExpectMistake("memory.offload_dir", "nothing is offloaded to disk",
                [](auto* s) { s->mutable_memory()->set_offload_dir("/d"); });
  ExpectMistake("memory.offload_parameters", "must be none or host",
                [](auto* s) {
                  s->mutable_memory()->set_offload_parameters(v1::OFFLOAD_DISK);
                });
  ExpectMistake("memory.encode.format", "must be set", [](auto* s) {
    s->mutable_memory()->mutable_encode()->add_values("gelu");
  });
  ExpectMistake("memory.encode.values", "must name values", [](auto* s) {
    s->mutable_memory()->mutable_encode()->set_format(v1::ENCODE_FORMAT_BF16);
  });
  ExpectMistake("memory.encode.format",
                "got bf16: saves nothing: with precision bf16 values are bf16 "
                "already",
                [](auto* s) { AskForEncoding(v1::ENCODE_FORMAT_BF16, s); });
}

TEST(Validator, TakesBothFormatsOfEncoding) {
  EXPECT_TRUE(Validate([](auto* s) {
                AskForEncoding(v1::ENCODE_FORMAT_FP8_E4M3, s);
              }).ok());
  EXPECT_TRUE(Validate([](auto* s) {
                AskForEncoding(v1::ENCODE_FORMAT_BF16, s);
                s->set_precision(v1::PRECISION_FP32);
              }).ok());
}

TEST(Validator, TextNeedsItsVocabulary) {
  const auto vocab = [](int size) {
    return [=](v1::JobSpec* spec) {
      spec->mutable_data()->set_format(v1::DATA_FORMAT_TEXT);
      spec->mutable_model()->set_vocab(size);
    };
  };
  EXPECT_TRUE(Validate(vocab(257)).ok());
  EXPECT_TRUE(Validate(vocab(50304)).ok());
  ExpectMistake("model.vocab",
                "got 256: must be at least 257 for data.format text",
                vocab(256));
}

TEST(Validator, RefusesProductsBeyondCounters) {
  // The largest dense model that the bounds of its fields allow still counts
  // in 64 bits.
  EXPECT_TRUE(Validate([](v1::JobSpec* spec) {
                v1::ModelSpec* model = spec->mutable_model();
                model->set_layers(10000);
                model->set_hidden(1048576);
                model->set_ffn(4194304);
              }).ok());
  ExpectMistake("model.layers", "from 1 to 10000", [](v1::JobSpec* spec) {
    spec->mutable_model()->set_layers(100000);
  });
  ExpectMistake("batch.micro", "64-bit counts", [](v1::JobSpec* spec) {
    spec->mutable_model()->set_seq_len(16777216);
    spec->mutable_batch()->set_global(16777216);
    spec->mutable_batch()->set_micro(16777216);
  });
  ExpectMistake("steps", "tokens", [](v1::JobSpec* spec) {
    spec->set_steps(std::numeric_limits<int64_t>::max());
  });
  // A trillion parameters are fine.
  EXPECT_TRUE(Validate([](v1::JobSpec* spec) {
                v1::ModelSpec* model = spec->mutable_model();
                model->set_layers(128);
                model->set_hidden(25600);
                model->set_heads(160);
                model->set_vocab(51200);
                model->set_seq_len(2048);
                spec->mutable_batch()->set_global(3072);
                spec->mutable_batch()->set_micro(1);
              }).ok());
}

TEST(Validator, RefusesByNameWhatIsNotBuilt) {
  const std::vector<std::pair<std::string, Change>> cases = {
      {"precision", [](auto* s) { s->set_precision(v1::PRECISION_FP16); }},
      {"model.experts", [](auto* s) { s->mutable_model()->set_experts(4); }},
      {"parallel.data", [](auto* s) { s->mutable_parallel()->set_data(2); }},
      {"parallel.tensor",
       [](auto* s) { s->mutable_parallel()->set_tensor(2); }},
      {"parallel.sequence",
       [](auto* s) { s->mutable_parallel()->set_sequence(true); }},
      {"parallel.sequence_chunks",
       [](auto* s) { s->mutable_parallel()->set_sequence_chunks(2); }},
      {"parallel.pipeline",
       [](auto* s) { s->mutable_parallel()->set_pipeline(2); }},
      {"parallel.zero", [](auto* s) { s->mutable_parallel()->set_zero(1); }},
      {"resources.device",
       [](auto* s) {
         s->mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
       }},
      {"resources.device_model",
       [](auto* s) { s->mutable_resources()->set_device_model("x"); }},
  };
  v1::JobSpec all = GoodSpec();
  std::set<std::string> fields;
  for (const auto& [field, change] : cases) {
    ExpectMistake(field, "is not built yet", change,
                  absl::StatusCode::kUnimplemented);
    change(&all);
    fields.insert(field);
  }
  // All at once; one wrong value makes it the user's mistake.
  const absl::Status status = ValidateSpec(all);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_EQ(GetViolations(status).size(), fields.size());
  all.set_steps(0);
  EXPECT_EQ(ValidateSpec(all).code(), absl::StatusCode::kInvalidArgument);
}

TEST(Validator, KnowsPresets) {
  ExpectMistake("model.preset", "did you mean gpt2-124m?",
                [](auto* s) { s->mutable_model()->set_preset("gpt2-125m"); });
  v1::JobSpec spec = GoodSpec();
  spec.clear_model();
  spec.mutable_model()->set_preset("nonsense");
  EXPECT_EQ(GetViolations(ValidateSpec(spec)).size(), 1u);
  for (const std::string& name : PresetNames()) {
    spec.mutable_model()->set_preset(name);
    EXPECT_TRUE(ValidateSpec(spec).ok()) << name << ValidateSpec(spec);
  }
  EXPECT_EQ(FindPreset("gpt2"), nullptr);
}

TEST(Validator, TakesLlamaLikeModels) {
  const auto llama = [](v1::JobSpec* s) {
    s->mutable_model()->set_norm(v1::NORM_RMSNORM);
    s->mutable_model()->set_activation(v1::ACTIVATION_SWIGLU);
    s->mutable_model()->set_positions(v1::POSITIONS_ROPE);
    s->mutable_model()->set_kv_heads(1);
    s->mutable_model()->set_bias(false);
    s->mutable_model()->set_tied_embeddings(false);
  };
  EXPECT_TRUE(Validate(llama).ok()) << Validate(llama);
  // The options are independent.
  EXPECT_TRUE(Validate([](auto* s) {
                s->mutable_model()->set_norm(v1::NORM_RMSNORM);
              }).ok());
  EXPECT_TRUE(Validate([](auto* s) {
                s->mutable_model()->set_positions(v1::POSITIONS_ROPE);
              }).ok());
  for (const double theta : {0.0, 0.5, 1e13}) {
    ExpectMistake("model.rope_theta", "must be a number from 1 to",
                  [&](auto* s) { s->mutable_model()->set_rope_theta(theta); });
  }
}

// ---- Effective specs ----

constexpr MachineDefaults kMachine = {
    .threads = 2, .budget_bytes = 1000, .host_budget_bytes = 500};

TEST(EffectiveSpec, FillsEveryDefault) {
  const auto spec = EffectiveSpec(GoodSpec(), kMachine);
  ASSERT_TRUE(spec.ok()) << spec.status();
  VisitFields(*spec, "",
              [](const std::string& path, const google::protobuf::Message& m,
                 const google::protobuf::FieldDescriptor& field) {
                if (field.is_repeated()) return;
                EXPECT_TRUE(m.GetReflection()->HasField(m, &field)) << path;
              });
  EXPECT_EQ(spec->model().ffn(), 512);
  EXPECT_EQ(spec->model().kv_heads(), 4);
  EXPECT_EQ(spec->lr_schedule().warmup(), 10);
  EXPECT_EQ(spec->lr_schedule().min_lr(), 1e-4);
  EXPECT_EQ(spec->eval().micro(), 2);
  EXPECT_EQ(spec->eval().seq_len(), 128);
  EXPECT_EQ(spec->resources().threads(), 2);
  EXPECT_EQ(spec->resources().device(), v1::DEVICE_KIND_CPU);
  EXPECT_EQ(spec->memory().budget(), 1000);
  EXPECT_EQ(spec->memory().host_budget(), 500);
  EXPECT_EQ(spec->precision(), v1::PRECISION_BF16);
}

// Grattafiori et al. 2024, table 3.
TEST(EffectiveSpec, TakesAllOfALlamaPreset) {
  v1::JobSpec spec = GoodSpec();
  spec.mutable_model()->Clear();
  spec.mutable_model()->set_preset("llama-3-70b");
  const auto full = EffectiveSpec(spec, kMachine);
  ASSERT_TRUE(full.ok()) << full.status();
  const v1::ModelSpec& model = full->model();
  EXPECT_EQ(model.layers(), 80);
  EXPECT_EQ(model.hidden(), 8192);
  EXPECT_EQ(model.heads(), 64);
  EXPECT_EQ(model.kv_heads(), 8);
  EXPECT_EQ(model.ffn(), 28672);
  EXPECT_EQ(model.vocab(), 128256);
  EXPECT_EQ(model.norm(), v1::NORM_RMSNORM);
  EXPECT_EQ(model.activation(), v1::ACTIVATION_SWIGLU);
  EXPECT_EQ(model.positions(), v1::POSITIONS_ROPE);
  EXPECT_EQ(model.rope_theta(), 500000);
  EXPECT_FALSE(model.bias());
  EXPECT_FALSE(model.tied_embeddings());
  // Without an ffn of its own: 8/3 of hidden, in multiples of 64.
  spec.mutable_model()->set_preset("llama-125m");
  EXPECT_EQ(EffectiveSpec(spec, kMachine)->model().ffn(), 2048);
  spec.mutable_model()->set_hidden(780);
  spec.mutable_model()->set_heads(6);
  spec.mutable_model()->set_kv_heads(2);
  EXPECT_EQ(EffectiveSpec(spec, kMachine)->model().ffn(), 2112);
}

TEST(EffectiveSpec, OfAnEffectiveSpecIsItself) {
  v1::JobSpec preset = GoodSpec();
  preset.mutable_model()->Clear();
  preset.mutable_model()->set_preset("tiny-2m");
  preset.mutable_model()->set_layers(3);
  preset.set_steps(4);
  preset.mutable_optimizer()->set_lr(1e-6);
  preset.mutable_resources()->mutable_timeout()->set_nanos(5);
  for (const v1::JobSpec& spec : {GoodSpec(), preset}) {
    const auto once = EffectiveSpec(spec, kMachine);
    ASSERT_TRUE(once.ok()) << once.status();
    const auto twice = EffectiveSpec(
        *once, {.threads = 9, .budget_bytes = 9, .host_budget_bytes = 9});
    ASSERT_TRUE(twice.ok()) << twice.status();
    EXPECT_TRUE(MessageDifferencer::Equals(*once, *twice));
  }
  const auto full = EffectiveSpec(preset, kMachine);
  EXPECT_EQ(full->model().layers(), 3);
  EXPECT_EQ(full->model().hidden(), 192);
  EXPECT_EQ(full->lr_schedule().warmup(), 4);
  EXPECT_EQ(full->lr_schedule().min_lr(), 1e-6);
  EXPECT_EQ(full->resources().timeout().seconds(), 0);
}

TEST(EffectiveSpec, UnspecifiedChoicesTakeTheDefault) {
  v1::JobSpec spec = GoodSpec();
  spec.mutable_model()->set_norm(v1::NORM_UNSPECIFIED);
  spec.mutable_lr_schedule()->set_decay(v1::LR_DECAY_UNSPECIFIED);
  const auto full = EffectiveSpec(spec, kMachine);
  ASSERT_TRUE(full.ok());
  EXPECT_EQ(full->model().norm(), v1::NORM_LAYERNORM);
  EXPECT_EQ(full->lr_schedule().decay(), v1::LR_DECAY_COSINE);
}

TEST(EffectiveSpec, GatedFeedForwardIsEightThirds) {
  v1::JobSpec spec;
  spec.mutable_model()->set_activation(v1::ACTIVATION_SWIGLU);
  spec.mutable_model()->set_hidden(768);
  EXPECT_EQ(WithDefaults(spec).model().ffn(), 2048);
  spec.mutable_model()->set_hidden(100);  // 266.7 -> 267 -> 320
  EXPECT_EQ(WithDefaults(spec).model().ffn(), 320);
}

TEST(EffectiveSpec, RefusesBadSpecs) {
  v1::JobSpec spec = GoodSpec();
  spec.set_steps(0);
  EXPECT_EQ(EffectiveSpec(spec, kMachine).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// ---- Random messages ----

// Sets every scalar field of the message to something with probability p.
void Scramble(google::protobuf::Message* message, std::mt19937& random,
              double p) {
  using google::protobuf::FieldDescriptor;
  const double doubles[] = {0,     -1,   1,   0.5, 1e-300,
                            1e300, -1e9, 1e9, NAN, INFINITY};
  const int64_t integers[] = {
      0,   1,   2,       3,         4,         7,         64,       -1,
      257, 128, 1 << 24, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN};
  const std::string texts[] = {
      "", "/x", "gelu", "\xff", "a\nb", "tiny-2m", std::string(5000, 'y')};
  const google::protobuf::Reflection& set = *message->GetReflection();
  const google::protobuf::Descriptor& type = *message->GetDescriptor();
  std::uniform_real_distribution<double> coin(0, 1);
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* field = type.field(i);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      if (coin(random) < 0.5) {
        Scramble(set.MutableMessage(message, field), random, p);
      }
      continue;
    }
    if (coin(random) > p) continue;
    const int64_t integer = integers[random() % std::size(integers)];
    const std::string text = texts[random() % std::size(texts)];
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_DOUBLE:
        set.SetDouble(message, field, doubles[random() % std::size(doubles)]);
        break;
      case FieldDescriptor::CPPTYPE_INT32:
        set.SetInt32(message, field, static_cast<int32_t>(integer));
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        set.SetInt64(message, field, integer);
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        set.SetUInt64(message, field, static_cast<uint64_t>(integer));
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        set.SetBool(message, field, random() % 2 == 0);
        break;
      case FieldDescriptor::CPPTYPE_ENUM:
        set.SetEnumValue(message, field, static_cast<int>(random() % 9) - 1);
        break;
      case FieldDescriptor::CPPTYPE_STRING:
        if (field->is_repeated()) {
          set.AddString(message, field, text);
        } else {
          set.SetString(message, field, text);
        }
        break;
      default:
        break;
    }
  }
}

TEST(Validator, SurvivesRandomMessages) {
  std::mt19937 random(7);
  int num_ok = 0;
  constexpr int kNumMessages = 3000;
  for (int i = 0; i < kNumMessages; ++i) {
    v1::JobSpec spec = GoodSpec();
    Scramble(&spec, random, i % 3 == 0 ? 0.5 : 0.02);
    const absl::Status status = ValidateSpec(spec);
    if (status.ok()) {
      ++num_ok;
      EXPECT_TRUE(EffectiveSpec(spec, kMachine).ok());
    } else {
      EXPECT_FALSE(GetViolations(status).empty());
    }
  }
  EXPECT_GT(num_ok, kNumMessages / 50);
  EXPECT_LT(num_ok, kNumMessages);
}

}  // namespace
}  // namespace ebb
