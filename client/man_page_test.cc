// The pages' parts, and the pages that the build made: they tell everything,
// and groff finds nothing to complain about.
#include "client/man_page.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/command_line.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/field_rules.h"
#include "proto/spec.pb.h"

namespace ebb {
namespace {

using testing::HasSubstr;

std::string Page(const std::string& name) {
  const std::string path =
      absl::StrCat(EBB_MAN_DIR, "/man", std::string(1, name.back()), "/", name);
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(ManPage, TextIsNoCommandOfRoff) {
  EXPECT_EQ(RoffText(".x\n.y -1 \\ 'a' \"b\""),
            "\\&.x\n\\&.y \\-1 \\e \\(aqa\\(aq \\(dqb\\(dq");
}

TEST(ManPage, TemplatesAreFilled) {
  EXPECT_EQ(FillTemplate("a @X@ b\n@Y@\nc", {{"X", "1"}, {"Y", "lines\n"}}),
            "a 1 b\nlines\nc");
}

TEST(ManPage, HelpOfProgramsIsRead) {
  const auto options = ParseHelp(
      "A program.\nUsage: program [OPTIONS]\n\nOptions:\n"
      "  -h,--help                   Print this\n"
      "  --directory TEXT Needs: --supervise\n"
      "                              Directory of it\n"
      "  --ranks INT:INT in [1 - 5]  Ranks\n");
  ASSERT_EQ(options.size(), 3u);
  EXPECT_EQ(options[0].name, "-h, --help");
  EXPECT_EQ(options[0].value, "");
  EXPECT_EQ(options[1].name, "--directory");
  EXPECT_EQ(options[1].value, "TEXT");
  EXPECT_EQ(options[1].description, "Directory of it");
  EXPECT_EQ(options[2].description, "Ranks");
}

TEST(ManPage, EbbTellsEveryCommandAndOption) {
  const std::string page = Page("ebb.1");
  const ProgramDescription program = DescribeProgram();
  ASSERT_GT(program.commands.size(), 15u);
  for (const CommandDescription& command : program.commands) {
    const size_t begin =
        page.find(absl::StrCat(".SS \"ebb ", RoffText(command.name)));
    ASSERT_NE(begin, std::string::npos) << command.name;
    const std::string section =
        page.substr(begin, page.find("\n.S", begin + 1) - begin);
    EXPECT_THAT(section, HasSubstr(RoffText(command.description)));
    for (const OptionDescription& option : command.options) {
      EXPECT_THAT(section, HasSubstr(RoffText(option.name)));
      EXPECT_THAT(section, HasSubstr(RoffText(option.description)));
    }
  }
  for (const OptionDescription& option : program.options) {
    EXPECT_THAT(page, HasSubstr(RoffText(option.name)));
  }
  EXPECT_THAT(page, HasSubstr("103"));  // exit codes
}

TEST(ManPage, SpecTellsEveryFieldWithItsComment) {
  const std::string page = Page("ebb-spec.5");
  int num_fields = 0;
  VisitFields(v1::JobSpec::default_instance(), "",
              [&](const std::string& path, const google::protobuf::Message&,
                  const google::protobuf::FieldDescriptor&) {
                ++num_fields;
                const std::string entry =
                    absl::StrCat("\\fB", RoffText(path), "\\fR\n");
                EXPECT_NE(page.find(entry), std::string::npos) << path;
              });
  EXPECT_GT(num_fields, 70);
  EXPECT_THAT(page, HasSubstr("Feed\\-forward width. Default: 4 * hidden;"));
  EXPECT_THAT(page, HasSubstr("Must be one of none, selective, cheap"));
}

TEST(ManPage, ProgramsTellEveryOption) {
  for (const char* option : {"\\-\\-help", "\\-\\-state", "\\-\\-version"}) {
    EXPECT_THAT(Page("ebbd.8"), HasSubstr(option));
  }
  for (const char* option :
       {"\\-\\-supervise", "\\-\\-directory", "\\-\\-describe", "\\-\\-sample",
        "\\-\\-temperature", "\\-\\-ids"}) {
    EXPECT_THAT(Page("ebb-worker.8"), HasSubstr(option));
  }
}

TEST(ManPage, GroffFindsNothingToComplainAbout) {
  int num_pages = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(EBB_MAN_DIR)) {
    if (!entry.is_regular_file()) continue;
    ++num_pages;
    const std::string command = absl::StrCat("groff -man -Tutf8 -ww -z ",
                                             entry.path().string(), " 2>&1");
    std::FILE* const pipe = popen(command.c_str(), "r");
    std::string complaints;
    char block[4096];
    while (const size_t n = std::fread(block, 1, sizeof(block), pipe)) {
      complaints.append(block, n);
    }
    EXPECT_EQ(pclose(pipe), 0) << complaints;
    EXPECT_EQ(complaints, "");
  }
  EXPECT_EQ(num_pages, 4);
}

}  // namespace
}  // namespace ebb
