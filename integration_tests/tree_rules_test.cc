// The rules of the tree that a compiler does not see: which folder may include
// which, words that file names must not use, and what every file begins with.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace ebb {
namespace {

namespace fs = std::filesystem;

struct SourceFile {
  std::string path;  // from the root: "worker/model/graph.h"
  std::string text;
};

const std::vector<std::string> kFolders = {
    "proto",  "kernels",    "worker",           "server",
    "client", "monitoring", "integration_tests"};

const std::vector<SourceFile>& Sources() {
  static const auto* const kSources = [] {
    auto* sources = new std::vector<SourceFile>;
    const fs::path root = EBB_SOURCE_DIR;
    for (const std::string& folder : kFolders) {
      for (const auto& entry :
           fs::recursive_directory_iterator(root / folder)) {
        const std::string extension = entry.path().extension();
        if (extension != ".h" && extension != ".cc" && extension != ".cu" &&
            extension != ".cuh") {
          continue;
        }
        std::ifstream file(entry.path());
        std::stringstream text;
        text << file.rdbuf();
        sources->push_back(
            {fs::relative(entry.path(), root).string(), text.str()});
      }
    }
    return sources;
  }();
  return *kSources;
}

bool IsTest(const std::string& path) {
  return path.ends_with("_test.cc") ||
         path.find("testing/") != std::string::npos ||
         path.find("_benchmark.cc") != std::string::npos ||
         path.starts_with("integration_tests/");
}

// The part of the tree that a file belongs to; the longest prefix wins.
const std::map<std::string, std::set<std::string>>& AllowedIncludes() {
  static const std::set<std::string> kPure = {"kernels", "worker/model",
                                              "worker/program"};
  static const auto* const kAllowed = [] {
    auto* allowed = new std::map<std::string, std::set<std::string>>;
    auto& a = *allowed;
    a["kernels"] = {};
    a["worker/model"] = {"kernels"};
    a["worker/program"] = {"kernels", "worker/model"};
    a["worker/optimizer"] = kPure;
    a["worker/data"] = kPure;
    a["worker/data"].insert("worker/runtime/batch_source.h");
    a["worker/checkpoint"] = kPure;
    a["worker/runtime"] = kPure;
    a["worker/runtime"].insert(
        {"worker/optimizer", "worker/data", "worker/checkpoint"});
    a["worker/supervisor"] = {"kernels", "monitoring"};
    a["worker"] = kPure;
    a["worker"].insert({"worker/optimizer", "worker/data", "worker/checkpoint",
                        "worker/runtime", "worker/supervisor", "proto",
                        "monitoring"});
    a["monitoring"] = {"kernels"};
    a["proto"] = kPure;
    a["server/planner"] = kPure;
    a["server"] = kPure;
    a["server"].insert({"server/planner", "proto", "monitoring", "worker/data",
                        "worker/checkpoint"});
    a["client"] = {"proto", "kernels/status.h"};
    return allowed;
  }();
  return *kAllowed;
}

std::string PartOf(const std::string& path) {
  std::string best;
  for (const auto& [part, allowed] : AllowedIncludes()) {
    if (path.starts_with(part + "/") && part.size() > best.size()) best = part;
  }
  return best;
}

std::vector<std::string> OwnIncludes(const std::string& text) {
  std::vector<std::string> includes;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("#include \"")) continue;
    const size_t end = line.find('"', 10);
    includes.push_back(line.substr(10, end - 10));
  }
  return includes;
}

TEST(TreeRules, FoldersIncludeOnlyWhatTheyMay) {
  ASSERT_GT(Sources().size(), 50u);
  for (const SourceFile& source : Sources()) {
    if (IsTest(source.path)) continue;
    const std::string from = PartOf(source.path);
    ASSERT_FALSE(from.empty()) << source.path;
    const std::set<std::string>& allowed = AllowedIncludes().at(from);
    for (const std::string& include : OwnIncludes(source.text)) {
      const std::string to = PartOf(include);
      if (to.empty()) continue;  // another library's
      EXPECT_TRUE(to == from || allowed.count(to) || allowed.count(include))
          << source.path << " includes " << include;
    }
  }
}

TEST(TreeRules, PureHalfKnowsNoProtobufAndNoLog) {
  for (const SourceFile& source : Sources()) {
    const std::string part = PartOf(source.path);
    if (part != "kernels" && part != "worker/model" &&
        part != "worker/program" && part != "worker/runtime") {
      continue;
    }
    for (const char* word :
         {"google/protobuf", "grpcpp", ".pb.h", "monitoring/log.h"}) {
      EXPECT_EQ(source.text.find(word), std::string::npos)
          << source.path << " mentions " << word;
    }
  }
}

TEST(TreeRules, FilesAreNamedByNounsOfTheDomain) {
  for (const SourceFile& source : Sources()) {
    for (const char* word :
         {"utils", "util.", "helper", "common", "misc", "manager", "handler"}) {
      EXPECT_EQ(source.path.find(word), std::string::npos) << source.path;
    }
  }
}

TEST(TreeRules, EveryFileSaysWhatItIs) {
  for (const SourceFile& source : Sources()) {
    if (source.path.ends_with(".cc")) {
      // A body whose header says it may begin with that header.
      const fs::path header =
          fs::path(EBB_SOURCE_DIR) /
          (source.path.substr(0, source.path.size() - 2) + "h");
      if (fs::exists(header)) continue;
    }
    EXPECT_TRUE(source.text.starts_with("//")) << source.path;
  }
}

TEST(TreeRules, HeadersHaveOneGuard) {
  for (const SourceFile& source : Sources()) {
    if (!source.path.ends_with(".h") && !source.path.ends_with(".cuh"))
      continue;
    if (source.path.find("-inl.h") != std::string::npos) continue;  // Highway's
    EXPECT_NE(source.text.find("#pragma once"), std::string::npos)
        << source.path;
  }
}

// Every header is compiled by something: some source includes it.
TEST(TreeRules, EveryHeaderIsIncluded) {
  std::set<std::string> included;
  for (const SourceFile& source : Sources()) {
    for (const std::string& include : OwnIncludes(source.text)) {
      included.insert(include);
    }
  }
  for (const SourceFile& source : Sources()) {
    if (!source.path.ends_with(".h")) continue;
    EXPECT_TRUE(included.count(source.path)) << source.path;
  }
}

TEST(TreeRules, NoConditionalCodeForDevicesAndNothingDisabled) {
  for (const SourceFile& source : Sources()) {
    if (source.path == "integration_tests/tree_rules_test.cc") continue;
    for (const char* word : {"#if 0", "#ifdef EBB_CUDA", "#if EBB_CUDA",
                             "DISABLED_", "throw ", "usleep(", "sleep_for("}) {
      EXPECT_EQ(source.text.find(word), std::string::npos)
          << source.path << " has " << word;
    }
  }
}

}  // namespace
}  // namespace ebb
