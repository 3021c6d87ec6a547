// The language of specs, case by case: what is read, what is refused, and what
// the refusals say.
#include "proto/spec_reader.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "proto/effective_spec.h"
#include "proto/spec_writer.h"
#include "proto/testing/spec_texts.h"
#include "proto/validator.h"
#include "proto/violations.h"

namespace ebb {
namespace {

using google::protobuf::util::MessageDifferencer;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

absl::StatusOr<v1::JobSpec> Read(const std::string& text,
                                 std::vector<std::string> sets = {}) {
  return ReadSpec(text, "spec.yaml", sets);
}

// kShortYaml with its last line replaced or more lines added.
std::string With(const std::string& lines) {
  return absl::StrCat(kShortYaml, lines, "\n");
}

// The only violation of a text; a violation of its own if there are others.
v1::Violation OnlyViolation(const absl::StatusOr<v1::JobSpec>& spec) {
  const std::vector<v1::Violation> violations = GetViolations(spec.status());
  if (violations.size() == 1) return violations[0];
  v1::Violation wrong;
  wrong.set_rule(absl::StrCat("expected one violation, got ", violations.size(),
                              ": ", std::string(spec.status().message())));
  return wrong;
}

// Expects that `lines` beside a good spec give one error, on `field`, and that
// its one line holds `text`.
void ExpectRefused(const std::string& lines, const std::string& field,
                   const std::string& text) {
  const absl::StatusOr<v1::JobSpec> spec = Read(With(lines));
  ASSERT_FALSE(spec.ok()) << lines;
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  const v1::Violation violation = OnlyViolation(spec);
  EXPECT_EQ(violation.field(), field) << lines << "\n"
                                      << spec.status().message();
  EXPECT_THAT(FormatViolation(violation), HasSubstr(text)) << lines;
  EXPECT_EQ(violation.file(), "spec.yaml");
  EXPECT_GT(violation.line(), 0);
  EXPECT_GT(violation.column(), 0);
}

TEST(SpecReader, ReadsTheWholeLanguage) {
  const auto spec = Read(kGoodYaml);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->name(), "quickstart");
  EXPECT_EQ(spec->model().hidden(), 128);
  EXPECT_EQ(spec->model().norm_eps(), 1e-5);
  EXPECT_EQ(spec->model().norm(), v1::NORM_LAYERNORM);
  EXPECT_EQ(spec->data().train(), "/corpus.txt");
  EXPECT_TRUE(spec->data().has_validation());
  EXPECT_EQ(spec->parallel().schedule(), v1::PIPELINE_SCHEDULE_1F1B);
  EXPECT_EQ(spec->memory().budget(), int64_t{2} << 30);
  EXPECT_EQ(spec->resources().timeout().seconds(), 300);
  EXPECT_EQ(spec->restart().max(), 3);
}

TEST(SpecReader, ReadsJsonAndYamlAlike) {
  const auto yaml = Read(kShortYaml);
  const auto json = Read(kShortJson);
  ASSERT_TRUE(yaml.ok()) << yaml.status();
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_TRUE(MessageDifferencer::Equals(*yaml, *json));
}

TEST(SpecReader, ReadsBackWhatTheWriterWrites) {
  for (const std::string& text :
       {std::string(kGoodYaml), std::string(kShortYaml),
        With("name: 'a \"quoted\" \\ back\U0001F600slash'\n"
             "seed: 18446744073709551615\n"
             "optimizer: {lr: 0.1, beta1: 0.30000000000000004, eps: 5e-324}\n"
             "memory: {policy: custom, recompute: [gelu, L*.mlp_act.y], "
             "budget: 1.5GiB}\n"
             "resources: {timeout: 1500ms}")}) {
    const auto spec = Read(text);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto effective =
        EffectiveSpec(*spec, {.threads = 2,
                              .budget_bytes = int64_t{1} << 32,
                              .host_budget_bytes = 12345});
    ASSERT_TRUE(effective.ok()) << effective.status();
    for (const v1::JobSpec& written : {*spec, *effective}) {
      for (int indent : {-1, 2}) {
        const auto again = Read(SpecToJson(written, indent));
        ASSERT_TRUE(again.ok()) << again.status();
        EXPECT_TRUE(MessageDifferencer::Equals(written, *again))
            << SpecToJson(written, 2) << "\n"
            << SpecToJson(*again, 2);
      }
    }
  }
}

TEST(SpecReader, ReadsEscapesOfJson) {
  // Escaped quotes and slashes, a pair of surrogates, an escaped backslash
  // before a u.
  const std::string json = absl::StrReplaceAll(
      kShortJson, {{"\"steps\": 200",
                    "\"steps\":200,\"name\":\"\\\"a\\/b\\\\u0041 "
                    "\\ud83d\\ude00\\u00e9\""}});
  const auto spec = Read(json);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->name(), "\"a/b\\u0041 \U0001F600\u00e9");
}

// ---- cases.md J1 ----

TEST(SpecReader, ReadsEveryFormOfARate) {
  for (const char* text :
       {"1e-4", "1E-4", "1.e-4", ".0001", "+1e-4", "1e-4 "}) {
    const auto spec = Read(With(absl::StrCat("optimizer:\n  lr: ", text)));
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->optimizer().lr(), 0.0001) << text;
  }
  ExpectRefused("optimizer: {lr: \"1e-4\"}", "optimizer.lr",
                "got \"1e-4\": must be a number from 0 to 1000, not text; "
                "remove the quotes");
  ExpectRefused("optimizer:\n  lr: 1,0e-4", "optimizer.lr", "no commas");
}

TEST(SpecReader, ReadsWholeNumbersInEveryForm) {
  for (const char* text : {"1e3", "1000.0", "1000", "+1000", "1.0E+3"}) {
    const auto spec = Read(absl::StrReplaceAll(kShortYaml, {{"200", text}}));
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->steps(), 1000) << text;
  }
  const auto quoted = Read(absl::StrReplaceAll(kShortYaml, {{"200", "\"6\""}}));
  EXPECT_THAT(OnlyViolation(quoted).fix(), HasSubstr("remove the quotes"));
}

// ---- cases.md J2 ----

TEST(SpecReader, TextKeepsItsText) {
  for (const char* text : {"no", "on", "~", "1.10", "0123", "2024-01-01",
                           "true", "1e3", "0x10", "NaN", "=", "off", "y"}) {
    const auto spec = Read(With(absl::StrCat("name: ", text)));
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->name(), text);
    const auto flow =
        Read(With(absl::StrCat("restart: {max: 1}\nname: ", text, " # x")));
    ASSERT_TRUE(flow.ok()) << flow.status();
    EXPECT_EQ(flow->name(), text);
  }
  EXPECT_EQ(Read(With("name: 'null'"))->name(), "null");
  EXPECT_EQ(Read(With("name: \"\""))->name(), "");
}

TEST(SpecReader, NothingIsNoText) {
  ExpectRefused("name: null", "name", "got null: must be text; write a value");
  ExpectRefused("name: Null", "name", "write a value");
  ExpectRefused("name:", "name", "write a value");
  // Where nothing stands, what comes next is not taken for it.
  const auto spec = Read("name:\n~: 3\n");
  EXPECT_THAT(std::string(spec.status().message()),
              AllOf(HasSubstr("name: got null"), HasSubstr("keys are names")));
}

TEST(SpecReader, BoolsAreTrueAndFalse) {
  for (const char* text : {"yes", "no", "on", "off", "y", "n", "0", "1", "True",
                           "FALSE", "\"false\"", "~", "null", "", "[]", "{}"}) {
    ExpectRefused(
        std::string() + "optimizer: {lr: 1e-3}\nparallel:\n  sequence: " + text,
        "parallel.sequence", "must be true or false");
  }
}

TEST(SpecReader, IntegersAreDecimal) {
  for (const char* text :
       {"010", "08", "0x10", "0o17", "1_000", "1:30", "080", "~", "''", "true",
        "[1]", "{a: 1}", "-1", "2.5", "18446744073709551616"}) {
    ExpectRefused(absl::StrCat("seed: ", text), "seed",
                  "must be a whole number from 0 to 18446744073709551615");
  }
  EXPECT_EQ(Read(With("seed: 18446744073709551615"))->seed(),
            18446744073709551615u);
}

// ---- cases.md J3 ----

TEST(SpecReader, RefusesDuplicateKeys) {
  ExpectRefused("optimizer:\n  lr: 1e-3\n  beta1: 0.9\n  lr: 1e-4",
                "optimizer.lr", "key stands twice, first in spec.yaml line 14");
  ExpectRefused("optimizer:\n  lr: 1e-3\n  \"lr\": 1e-4", "optimizer.lr",
                "spec.yaml:15: optimizer.lr: got lr: key stands twice");
  ExpectRefused("optimizer: {lr: 1e-3}\noptimizer: {beta1: 0.8}", "optimizer",
                "key stands twice");
  ExpectRefused("optimizer: {lr: 1e-3, \"lr\": 1e-3}", "optimizer.lr",
                "key stands twice");
  const auto json = Read(absl::StrReplaceAll(
      kShortJson, {{"\"steps\": 200", "\"steps\": 200,\n\"steps\": 201"}}));
  EXPECT_EQ(OnlyViolation(json).field(), "steps");
  EXPECT_EQ(OnlyViolation(json).line(), 7);
  EXPECT_THAT(OnlyViolation(json).rule(), HasSubstr("twice"));
}

TEST(SpecReader, RefusesAnchorsAliasesTagsAndMergeKeys) {
  EXPECT_THAT(std::string(Read(With("optimizer: &o {lr: 1e-3}\n"
                                    "lr_schedule: *o"))
                              .status()
                              .message()),
              AllOf(HasSubstr("optimizer: got an anchor (&)"),
                    HasSubstr("lr_schedule: got an alias (*)")));
  EXPECT_THAT(
      std::string(Read(With("base: &b {lr: 1e-3}\n"
                            "optimizer:\n  <<: *b\n  lr: 1e-4"))
                      .status()
                      .message()),
      AllOf(HasSubstr("optimizer.<<: got <<: anchors, aliases, tags and merge "
                      "keys are not read"),
            HasSubstr("base: got base: unknown key")));
  ExpectRefused("seed: !!int 5", "seed", "got a tag");
  ExpectRefused("memory: {policy: custom, recompute: [gelu, &x mul]}",
                "memory.recompute[1]", "got an anchor");
}

TEST(SpecReader, RefusesASecondDocument) {
  const auto spec = Read(absl::StrCat(kShortYaml, "---\n", kShortYaml));
  const v1::Violation violation = OnlyViolation(spec);
  EXPECT_THAT(violation.rule(), HasSubstr("one document"));
  EXPECT_EQ(violation.line(), 13);
  EXPECT_TRUE(Read(absl::StrCat("---\n", kShortYaml)).ok());
  EXPECT_TRUE(Read(absl::StrCat(kShortYaml, "...\n")).ok());
}

// ---- cases.md J4 ----

TEST(SpecReader, SuggestsNamesForUnknownKeys) {
  ExpectRefused("learning_rate: 1e-3", "learning_rate",
                "unknown key; write lr in the section optimizer "
                "(optimizer.lr)");
  ExpectRefused("num-layers: 3", "num-layers",
                "write layers in the section model (model.layers)");
  ExpectRefused("paralellism: {}", "paralellism", "did you mean parallel?");
  ExpectRefused("lr: 1e-3", "lr", "in the section optimizer (optimizer.lr)");
  ExpectRefused("optimizer: {wieght_decay: 0}", "optimizer.wieght_decay",
                "did you mean weight_decay?");
  ExpectRefused("optimizer: {weight-decay: 0}", "optimizer.weight-decay",
                "did you mean weight_decay?");
  ExpectRefused("optimizer: {steps: 3}", "optimizer.steps",
                "write steps at the top level");
  ExpectRefused("Seed: 3", "Seed", "did you mean seed?");
  ExpectRefused("xylophone: 3", "xylophone", "keys here are name, priority");
  ExpectRefused("yes: 3", "yes", "unknown key");
  ExpectRefused("? [a, b]\n: 3", "", "keys are names");
  ExpectRefused("~: 3", "", "got null: keys are names");
}

TEST(SpecReader, ByteOrderMarkAndCarriageReturnsChangeNothing) {
  const auto plain = Read(kGoodYaml);
  ASSERT_TRUE(plain.ok());
  const std::string crlf = absl::StrReplaceAll(kGoodYaml, {{"\n", "\r\n"}});
  for (const std::string& text : {absl::StrCat("\xef\xbb\xbf", kGoodYaml), crlf,
                                  absl::StrCat("\xef\xbb\xbf", crlf)}) {
    const auto spec = Read(text);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_TRUE(MessageDifferencer::Equals(*plain, *spec));
  }
  const auto json = Read(absl::StrCat(
      "\xef\xbb\xbf", absl::StrReplaceAll(kShortJson, {{"\n", "\r\n"}})));
  ASSERT_TRUE(json.ok()) << json.status();
  // An error stands in the same place.
  const auto wrong =
      Read(absl::StrReplaceAll(absl::StrCat("\xef\xbb\xbf", kShortYaml),
                               {{"\n", "\r\n"}, {"model:", "modell:"}}));
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(GetViolations(wrong.status())[0].line(), 1);
  EXPECT_EQ(GetViolations(wrong.status())[0].column(), 1);
}

struct Broken {
  std::string text;
  std::string says;
  int line;
};

TEST(SpecReader, SaysOneLineWithPlaceForTextsThatAreNoSpec) {
  const std::string json = kShortJson;
  const std::vector<Broken> cases = {
      {"", "must not be empty", 1},
      {"\n\n", "must not be empty", 1},
      {"# only\n# comments\n", "must not be empty", 1},
      {"null\n", "a spec must be a section", 1},
      {"~\n", "a spec must be a section", 1},
      {"---\n", "a spec must be a section", 2},
      {"hello\n", "a spec must be a section", 1},
      {"- a\n- b\n", "a spec must be a section", 1},
      {"[1, 2]\n", "a spec must be a section", 1},
      {"\"text\"\n", "a spec must be a section", 1},
      {"model:\n\tlayers: 4\n", "tabs do not indent", 2},
      {absl::StrReplaceAll(kShortYaml, {{"  ", "\t"}}), "tabs do not indent",
       2},
      {std::string("\xff\xfe"
                   "a\0:\0",
                   6),
       "specs are UTF-8", 1},
      {std::string("\xfe\xff\0a\0:", 6), "specs are UTF-8", 1},
      {std::string("a\0:\0 \0", 6), "specs are UTF-8", 1},
      {"steps: 3\nname: \xff\n", "specs are UTF-8", 2},
      {"steps: 3\nname: \xed\xa0\x80\n", "specs are UTF-8", 2},
      {"steps: 3\nname: a\x01"
       "b\n",
       "control characters", 2},
      {absl::StrReplaceAll(json, {{"\"micro\": 2}", "\"micro\": 2,}"}}),
       "no comma before a closing bracket", 5},
      {absl::StrReplaceAll(json, {{"200\n", "200,\n"}}),
       "no comma before a closing bracket", 7},
      {absl::StrReplaceAll(json, {{"200\n", "200 // c\n"}}),
       "JSON has no comments", 6},
      {absl::StrReplaceAll(json, {{"200\n", "200 /* c */\n"}}),
       "JSON has no comments", 6},
      {absl::StrReplaceAll(json, {{"200\n", "200 # c\n"}}),
       "JSON has no comments", 6},
      {absl::StrReplaceAll(json, {{"\"steps\"", "steps"}}), "double quotes", 6},
      {absl::StrReplaceAll(json, {{"\"steps\"", "'steps'"}}), "double quotes",
       6},
      {json.substr(0, 60), "JSON ends too early", 2},
      {json + "x", "not JSON", 8},
      {absl::StrReplaceAll(json, {{"200", "010"}}), "not JSON", 6},
      {absl::StrReplaceAll(json, {{"200", "NaN"}}), "not JSON", 6},
      {absl::StrReplaceAll(json, {{"200", ".5"}}), "not JSON", 6},
      {"model: {layers: 4\n", "not YAML", 2},
      {"name: \"abc\n", "a quote is not closed", 1},
      {"name: 'it''s\n", "a quote is not closed", 1},
      {"name: \"abc\\\"\nsteps: 3\n", "a quote is not closed", 1},
      {"name: \"abc", "not YAML", 1},
      {"a: b: c\n", "not YAML", 1},
  };
  for (const Broken& broken : cases) {
    const auto spec = Read(broken.text);
    ASSERT_FALSE(spec.ok()) << broken.text;
    EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
    const v1::Violation violation = OnlyViolation(spec);
    EXPECT_THAT(violation.rule(), HasSubstr(broken.says)) << broken.text;
    EXPECT_EQ(violation.line(), broken.line) << broken.text << "\n"
                                             << spec.status().message();
    EXPECT_GT(violation.column(), 0);
    EXPECT_THAT(std::string(spec.status().message()), Not(HasSubstr("\n")));
    EXPECT_THAT(std::string(spec.status().message()),
                HasSubstr(absl::StrCat("spec.yaml:", broken.line, ": ")));
  }
}

TEST(SpecReader, AnErrorOfSyntaxKeepsTheMistakesBeforeIt) {
  const auto spec = Read("steps: abc\nseed: 010\nmodel: {layers: 4\n");
  EXPECT_THAT(std::string(spec.status().message()),
              AllOf(HasSubstr("spec.yaml:1: steps: got abc"),
                    HasSubstr("spec.yaml:2: seed: got 010"),
                    HasSubstr("not YAML"), Not(HasSubstr("is required"))));
}

TEST(SpecReader, RefusesHugeAndDeepTexts) {
  const std::string huge = "# " + std::string(kMaxSpecBytes, 'x');
  EXPECT_THAT(OnlyViolation(Read(huge)).rule(),
              HasSubstr("at most 1048576 bytes"));
  for (const std::string part : {"[", "{a: ", "- ", "{\"a\":", "? "}) {
    std::string deep = "name: ";
    if (part == "- " || part == "? ") deep = "";
    if (part == "{\"a\":") deep = "";
    for (int i = 0; i < 20000; ++i) deep += part;
    const auto spec = Read(deep);
    ASSERT_FALSE(spec.ok()) << part;
    EXPECT_LT(std::string(spec.status().message()).size(), 100000u);
    if (part != "{\"a\":") {
      EXPECT_THAT(std::string(spec.status().message()),
                  HasSubstr("at most 500 levels"));
    }
  }
  std::string wide = "memory:\n  recompute:\n";
  for (int i = 0; i < 20000; ++i) wide += "  - gelu\n";
  EXPECT_THAT(std::string(Read(wide).status().message()),
              HasSubstr("at most 256 entries"));
}

TEST(SpecReader, TellsSoManyMistakesAndNoMore) {
  std::string text;
  for (int i = 0; text.size() < kMaxSpecBytes - 100; ++i) {
    absl::StrAppend(&text, "key", i, ": ", i, "\n");
  }
  EXPECT_EQ(GetViolations(Read(text).status()).size(), 500u);
}

// ---- cases.md H9 ----

TEST(SpecReader, RefusesValuesThatMakeNoSense) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"optimizer.lr", "-1"},
      {"optimizer.lr", "nan"},
      {"optimizer.lr", ".nan"},
      {"optimizer.lr", "inf"},
      {"optimizer.lr", "-.inf"},
      {"optimizer.lr", "\"abc\""},
      {"optimizer.lr", "abc"},
      {"optimizer.lr", "1e400"},
      {"optimizer.lr", "null"},
      {"optimizer.lr", "\"\""},
      {"optimizer.lr", "[1]"},
      {"optimizer.lr", "{a: 1}"},
      {"optimizer.lr", "true"},
      {"steps", "0"},
      {"steps", "-5"},
      {"steps", "2.7"},
      {"steps", "true"},
      {"steps", "9223372036854775808"},
      {"steps", "null"},
      {"batch.micro", "0"},
      {"batch.micro", "true"},
      {"batch.global", "true"},
      {"batch.global", "99999999999"},
      {"model.dropout", "-0.1"},
      {"model.dropout", "1.0"},
      {"model.dropout", "1.5"},
      {"optimizer.beta1", "1.0"},
      {"optimizer.beta2", "1.0"},
      {"optimizer.beta2", "-0.1"},
      {"optimizer.eps", "0"},
      {"optimizer.weight_decay", "-1"},
      {"optimizer.clip", "-1"},
      {"seed", "-1"},
      {"seed", "18446744073709551616"},
      {"optimizer.name", "99"},
      {"optimizer.name", "ADAMM"},
      {"optimizer.name", "\"\""},
      {"optimizer.name", "adamm"},
      {"optimizer.name", "null"},
      {"optimizer.name", "[adamw]"},
      {"precision", "FP32"},
      {"precision", "float32"},
      {"memory.policy", "4"},
      {"memory.policy", "unspecified"},
      {"memory.policy", "FULL"},
      {"model.layers", "0"},
      {"model.layers", "-2"},
      {"model.layers", "[4]"},
      {"model.layers", "4 4"},
      {"data.train", "\"\""},
      {"data.train", "null"},
      {"data.train", "[a]"},
      {"data.train", "{a: b}"},
      {"memory.budget", "2GB"},
      {"memory.budget", "2G"},
      {"memory.budget", "0"},
      {"memory.budget", "-1"},
      {"memory.budget", "1.5"},
      {"memory.budget", "9000000TiB"},
      {"resources.timeout", "300"},
      {"resources.timeout", "0s"},
      {"resources.timeout", "-5s"},
      {"resources.timeout", "9999h"},
      {"resources.timeout", "5 min"},
      {"model", "null"},
      {"model", "3"},
      {"model", "[]"},
      {"memory.recompute", "gelu"},
      {"memory.recompute", "null"},
      {"memory.recompute", "{a: b}"},
      {"checkpoint.keep", "0"},
      {"restart.max", "-1"},
      {"priority", "2147483648"},
      {"model.norm_eps", "0"},
  };
  for (const auto& [path, value] : cases) {
    const auto spec = Read(kGoodYaml, {absl::StrCat(path, "=", value)});
    ASSERT_FALSE(spec.ok()) << path << "=" << value;
    EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
    const v1::Violation violation = OnlyViolation(spec);
    EXPECT_EQ(violation.field(), path) << spec.status().message();
    EXPECT_EQ(violation.file(), absl::StrCat("--set ", path));
    EXPECT_FALSE(violation.rule().empty());
  }
}

TEST(SpecReader, RefusesTheSameInJson) {
  for (const char* value : {"-1", "1e400", "\"abc\"", "\"1e-3\"", "null",
                            "\"\"", "[1]", "{}", "true"}) {
    const auto spec = Read(absl::StrReplaceAll(
        kShortJson,
        {{"200", absl::StrCat("200, \"optimizer\": {\"lr\": ", value, "}")}}));
    EXPECT_EQ(OnlyViolation(spec).field(), "optimizer.lr")
        << value << spec.status();
    EXPECT_EQ(OnlyViolation(spec).line(), 6);
  }
}

TEST(SpecReader, AllowsRateAndClipZero) {
  const auto spec = Read(With("optimizer: {lr: 0, clip: 0}"));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->optimizer().lr(), 0);
  EXPECT_TRUE(spec->optimizer().has_clip());
}

// ---- All at once ----

TEST(SpecReader, GivesAllMistakesInOneAnswer) {
  const auto spec = Read(
      "name: x\n"
      "model: {layers: 0, hidden: 66, heads: 4, vocab: abc, seq_len: 128}\n"
      "batch: {global: 8, micro: 3}\n"
      "learning_rate: 1\n"
      "steps: 10\n"
      "lr_schedule: {warmup: 11}\n"
      "precision: fp16\n");
  ASSERT_FALSE(spec.ok());
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  const std::vector<std::string> lines =
      absl::StrSplit(spec.status().message(), '\n');
  EXPECT_THAT(
      lines,
      ::testing::ElementsAre(
          HasSubstr("spec.yaml:1: data.train: got nothing: is required; set"),
          HasSubstr("spec.yaml:2: model.vocab: got abc: must be a whole"),
          HasSubstr("spec.yaml:2: model.layers: got 0: must be a whole number "
                    "from 1 to 10000"),
          HasSubstr("spec.yaml:2: model.hidden: got 66: must be a multiple of "
                    "model.heads, which is 4"),
          HasSubstr("spec.yaml:3: batch.global: got 8: must be a multiple of "
                    "batch.micro, which is 3; for example 9"),
          HasSubstr("spec.yaml:4: learning_rate: got learning_rate: unknown"),
          HasSubstr("spec.yaml:6: lr_schedule.warmup: got 11: must be at most "
                    "steps, which is 10"),
          HasSubstr("spec.yaml:7: precision: got fp16: fp16 is not built "
                    "yet; use fp32, bf16")));
  EXPECT_EQ(GetViolations(spec.status()).size(), lines.size());
}

TEST(SpecReader, OnlyThingsNotBuiltAreUnimplemented) {
  const auto spec = Read(With("precision: fp16\nresources: {device: cuda}"));
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(GetViolations(spec.status()).size(), 2);
}

TEST(SpecReader, OffersWhatIsBuilt) {
  const std::string policies =
      "must be one of none, selective, cheap, full, sqrt, custom, auto";
  const v1::Violation wrong =
      OnlyViolation(Read(With("memory: {policy: autoo}")));
  EXPECT_EQ(wrong.rule(), policies);
  EXPECT_EQ(wrong.fix(), "did you mean auto?");
  EXPECT_EQ(OnlyViolation(Read(With("memory: {policy: [none]}"))).rule(),
            policies);
  const v1::Violation known = OnlyViolation(Read(With("precision: fp16")));
  EXPECT_EQ(known.rule(), "fp16 is not built yet");
  EXPECT_EQ(known.fix(), "use fp32, bf16");
  EXPECT_EQ(OnlyViolation(Read(With("memory: {offload: ram}"))).rule(),
            "must be one of none, host, disk");
}

TEST(SpecReader, JoinsWhatACoordinatorFinds) {
  const std::vector<std::string> sets = {"data.validation=v.txt"};
  const auto read = [&](const std::string& text) {
    return ReadSpecWithPlaces(text, "spec.yaml", sets, {"/home", "/tmp"});
  };
  const auto found = [](std::initializer_list<const char*> fields) {
    std::vector<v1::Violation> violations;
    for (const char* field : fields) {
      violations.emplace_back().set_field(field);
      violations.back().set_rule("wrong");
    }
    return ViolationsStatus(absl::StatusCode::kNotFound, violations);
  };
  const auto places = [](const absl::Status& status) {
    std::vector<std::string> places;
    for (const v1::Violation& violation : GetViolations(status)) {
      places.push_back(absl::StrCat(violation.file(), ":", violation.line(),
                                    ":", violation.field()));
    }
    return places;
  };
  const SpecReading good = read(kShortYaml);
  ASSERT_TRUE(good.status.ok()) << good.status;
  EXPECT_TRUE(good.Join(absl::OkStatus()).ok());
  EXPECT_EQ(good.Join(absl::AbortedError("x")), absl::AbortedError("x"));
  const absl::Status joined =
      good.Join(found({"data.validation", "resources.threads", "steps"}));
  EXPECT_EQ(joined.code(), absl::StatusCode::kNotFound);
  const int steps_line = good.places.at("steps").line;
  EXPECT_GT(steps_line, 1);
  EXPECT_THAT(places(joined),
              ElementsAre("spec.yaml:0:resources.threads",
                          absl::StrCat("spec.yaml:", steps_line, ":steps"),
                          "--set data.validation:0:data.validation"));

  // Of a wrong text only what is set and right.
  const SpecReading bad = read(absl::StrReplaceAll(
      kShortYaml, {{"hidden: 128", "hidden: x"}, {"200", "no"}}));
  EXPECT_EQ(bad.Join(absl::AbortedError("x")), bad.status);
  EXPECT_EQ(bad.Join(found({"steps", "model.hidden", "seed", "model"})),
            bad.status);
  const absl::Status both = bad.Join(found({"steps", "data.validation"}));
  EXPECT_EQ(both.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(places(both),
              ElementsAre(HasSubstr("model.hidden"), HasSubstr("steps"),
                          "--set data.validation:0:data.validation"));
  EXPECT_EQ(bad.spec.data().validation(), "/tmp/v.txt");
}

TEST(SpecReader, OneMistakeIsSaidOnce) {
  // Neither "is required" nor a rule about other fields follows a text that
  // cannot be read.
  EXPECT_EQ(OnlyViolation(Read(absl::StrReplaceAll(
                              kShortYaml, {{"hidden: 128", "hidden: x"}})))
                .field(),
            "model.hidden");
  EXPECT_EQ(OnlyViolation(
                Read(absl::StrReplaceAll(kShortYaml, {{"/corpus.txt", "[]"}})))
                .field(),
            "data.train");
  EXPECT_EQ(OnlyViolation(Read(absl::StrReplaceAll(kShortYaml,
                                                   {{"micro: 2", "micro: 0"}})))
                .field(),
            "batch.micro");
}

// ---- --set and paths ----

TEST(SpecReader, AppliesSets) {
  const auto spec =
      Read(kShortYaml, {"optimizer.lr=1e-4", "memory.recompute=[gelu, dropout]",
                        "memory.policy=custom", "steps=5", "steps=6",
                        "name=a=b", "model={preset: tiny-2m}"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->optimizer().lr(), 1e-4);
  EXPECT_EQ(spec->memory().recompute(1), "dropout");
  EXPECT_EQ(spec->steps(), 6);
  EXPECT_EQ(spec->name(), "a=b");
  EXPECT_EQ(spec->model().preset(), "tiny-2m");
  EXPECT_FALSE(spec->model().has_layers());
  // A mistake in the file that --set replaces is gone.
  EXPECT_TRUE(
      Read(absl::StrReplaceAll(kShortYaml, {{"200", "x"}}), {"steps=5"}).ok());
}

TEST(SpecReader, ReadsTheSetsOfOneSection) {
  const std::vector<std::string> sets = {
      "memory.policy=custom", "memory.recompute=[gelu]", "memory.budget=2KiB",
      "memory.offload_dir=below"};
  const SpecReading reading = ReadSets("memory", sets, "/specs");
  ASSERT_TRUE(reading.status.ok()) << reading.status;
  EXPECT_EQ(reading.spec.memory().policy(), v1::POLICY_CUSTOM);
  EXPECT_EQ(reading.spec.memory().budget(), 2048);
  EXPECT_EQ(reading.spec.memory().offload_dir(), "/specs/below");
  EXPECT_FALSE(reading.spec.memory().has_group()) << "no defaults";
  EXPECT_EQ(reading.places.at("memory.budget").file, "--set memory.budget");

  const std::vector<std::string> wrong = {"memory.policy=ful", "steps=5",
                                          "memory.group", "memory.grp=1"};
  std::vector<std::string> texts;
  for (const v1::Violation& violation :
       GetViolations(ReadSets("memory", wrong, "/").status)) {
    texts.push_back(FormatViolation(violation));
  }
  EXPECT_THAT(texts, ::testing::UnorderedElementsAre(
                         HasSubstr("did you mean full?"),
                         HasSubstr("--set steps: steps: got 5: must be a field "
                                   "of memory"),
                         HasSubstr("must be PATH=VALUE"),
                         HasSubstr("unknown key; did you mean group?")));
}

TEST(SpecReader, SaysWhichSetIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"nonsense", "--set: got nonsense: must be PATH=VALUE"},
      {"=5", "must be PATH=VALUE"},
      {"a..b=5", "must be PATH=VALUE"},
      {"steps=", "--set steps: steps: got null"},
      {"steps=[1", "--set steps: steps: got [1: not YAML"},
      {"optimizer.lrr=5",
       "--set optimizer.lrr: optimizer.lrr: got lrr: "
       "unknown key; did you mean lr?"},
      {"steps.x=5", "--set steps.x: steps: got a section: must be a whole"},
      {"optimizer.lr=-1",
       "--set optimizer.lr: optimizer.lr: got -1: must be "
       "a number from 0 to 1000"},
      {"batch.micro=3", "batch.global: got 8: must be a multiple"},
      {"name=a: b", "--set name: name: got a section: must be text"},
      {"optimizer={lr: 1, lr: 2}",
       "key stands twice, first in --set optimizer"},
  };
  for (const auto& [argument, says] : cases) {
    const auto spec = Read(kShortYaml, {argument});
    ASSERT_FALSE(spec.ok()) << argument;
    EXPECT_THAT(FormatViolation(OnlyViolation(spec)), HasSubstr(says))
        << argument;
  }
}

TEST(SpecReader, MakesPathsAbsolute) {
  const std::string text =
      absl::StrReplaceAll(kShortYaml, {{"/corpus.txt", "./shards/*.txt"}});
  const std::vector<std::string> sets = {"data.validation=v.txt",
                                         "checkpoint={init_from: c}"};
  const auto spec =
      ReadSpec(text, "s", sets, {.file = "/specs", .sets = "/home/me/"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->data().train(), "/specs/shards/*.txt");
  EXPECT_EQ(spec->data().validation(), "/home/me/v.txt");
  EXPECT_EQ(spec->checkpoint().init_from(), "/home/me/c");

  auto relative = Read(text);
  ASSERT_TRUE(relative.ok()) << relative.status();
  EXPECT_EQ(ValidateSpec(*relative).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(MakePathsAbsolute(&*relative, "here").ok());
  ASSERT_TRUE(MakePathsAbsolute(&*relative, "/x").ok());
  EXPECT_EQ(relative->data().train(), "/x/shards/*.txt");
  EXPECT_TRUE(ValidateSpec(*relative).ok()) << ValidateSpec(*relative);
  EXPECT_FALSE(relative->data().has_validation());
}

// ---- Random texts ----

// Whatever the text, reading ends with a spec or with violations.
TEST(SpecReader, SurvivesMutatedTexts) {
  std::mt19937 random(20240611);
  const std::vector<std::string> pieces = {
      "\n", "\t", "  ", ":",    "- ",  "[",     "]",     "{",  "}",
      ",",  "\"", "'",  "&a",   "*a",  "#",     "|",     ">",  "!!",
      "? ", "~",  "0",  "1e9",  "%",   "@",     "<<",    "\\", "\r",
      "`",  "--", "\0", "\xff", "...", "---\n", "\\u12", "é"};
  int num_ok = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text = i % 2 == 0 ? kShortYaml : kShortJson;
    if (i % 5 == 0) text = kGoodYaml;
    const int num_edits = 1 + random() % 2;
    for (int j = 0; j < num_edits; ++j) {
      const size_t at = random() % (text.size() + 1);
      switch (random() % 4) {
        case 0:
          text.insert(at, pieces[random() % pieces.size()]);
          break;
        case 1:
          text.erase(at, 1 + random() % 5);
          break;
        case 2:
          if (at < text.size()) text[at] = static_cast<char>(random() % 256);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 40));
      }
    }
    const auto spec = Read(text);
    if (spec.ok()) {
      ++num_ok;
      const auto again = Read(SpecToJson(*spec));
      ASSERT_TRUE(again.ok()) << text << again.status();
      EXPECT_TRUE(MessageDifferencer::Equals(*spec, *again)) << text;
    } else {
      EXPECT_FALSE(GetViolations(spec.status()).empty()) << text;
    }
  }
  // Both outcomes are met, or the test says nothing.
  EXPECT_GT(num_ok, 100);
  EXPECT_LT(num_ok, 2900);
}

}  // namespace
}  // namespace ebb
