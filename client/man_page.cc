// See man_page.h.
#include "client/man_page.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "kernels/status.h"
#include "proto/field_rules.h"
#include "proto/spec.pb.h"

namespace ebb {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;

std::string Bold(absl::string_view text) {
  return absl::StrCat("\\fB", RoffText(text), "\\fR");
}
std::string Italic(absl::string_view text) {
  return absl::StrCat("\\fI", RoffText(text), "\\fR");
}

// The comment before a field or message as one paragraph.
template <typename Described>
std::string CommentOf(const Described& described) {
  google::protobuf::SourceLocation location;
  if (!described.GetSourceLocation(&location)) return "";
  std::vector<std::string> words = absl::StrSplit(
      location.leading_comments, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  std::string text;
  for (const std::string& word : words) {
    absl::StrAppend(&text, text.empty() ? "" : " ", word);
  }
  return text;
}

std::string CommentOf(const DescriptorPool& commented,
                      const FieldDescriptor& field) {
  const FieldDescriptor* const found =
      commented.FindFieldByName(field.full_name());
  return found == nullptr ? "" : CommentOf(*found);
}
std::string CommentOf(const DescriptorPool& commented,
                      const Descriptor& message) {
  const Descriptor* const found =
      commented.FindMessageTypeByName(message.full_name());
  return found == nullptr ? "" : CommentOf(*found);
}

void AddSection(const std::string& path, const Descriptor& section,
                const DescriptorPool& commented, std::string* roff) {
  absl::StrAppend(roff, ".SS \"", path.empty() ? "Top level" : RoffText(path),
                  "\"\n");
  const std::string comment = path.empty() ? "" : CommentOf(commented, section);
  if (!comment.empty()) absl::StrAppend(roff, RoffText(comment), "\n");
  std::vector<const FieldDescriptor*> sections;
  for (int f = 0; f < section.field_count(); ++f) {
    const FieldDescriptor& field = *section.field(f);
    if (IsSection(field)) {
      sections.push_back(&field);
      continue;
    }
    absl::StrAppend(roff, ".TP\n", Bold(JoinFieldPath(path, field.name())),
                    "\n");
    const std::string text = CommentOf(commented, field);
    if (!text.empty()) absl::StrAppend(roff, RoffText(text), "\n");
    std::string requirement = Requirement(field);
    if (requirement.empty()) continue;
    requirement[0] = absl::ascii_toupper(requirement[0]);
    absl::StrAppend(roff, ".br\n", RoffText(requirement), ".\n");
  }
  for (const FieldDescriptor* field : sections) {
    AddSection(JoinFieldPath(path, field->name()), *field->message_type(),
               commented, roff);
  }
}

}  // namespace

std::string RoffText(absl::string_view text) {
  std::string roff = absl::StrReplaceAll(text, {{"\\", "\\e"},
                                                {"-", "\\-"},
                                                {"\"", "\\(dq"},
                                                {"'", "\\(aq"},
                                                {"`", "\\(ga"},
                                                {"~", "\\(ti"},
                                                {"^", "\\(ha"}});
  // A line that begins with a dot would be a command.
  roff = absl::StrReplaceAll(roff, {{"\n.", "\n\\&."}});
  return absl::StartsWith(roff, ".") ? absl::StrCat("\\&", roff) : roff;
}

std::string FillTemplate(absl::string_view page,
                         const std::map<std::string, std::string>& texts) {
  std::string filled;
  while (!page.empty()) {
    const size_t begin = page.find('@');
    absl::StrAppend(&filled, page.substr(0, begin));
    if (begin == absl::string_view::npos) break;
    const size_t end = page.find('@', begin + 1);
    EBB_CHECK(end != absl::string_view::npos);
    const auto text =
        texts.find(std::string(page.substr(begin + 1, end - begin - 1)));
    EBB_CHECK(text != texts.end());
    absl::StrAppend(&filled, text->second);
    page.remove_prefix(end + 1);
    // A text that is whole lines stands alone in the template's line.
    if (absl::EndsWith(filled, "\n") && absl::StartsWith(page, "\n")) {
      page.remove_prefix(1);
    }
  }
  return filled;
}

std::string OptionsRoff(const std::vector<OptionDescription>& options) {
  std::string roff;
  for (const OptionDescription& option : options) {
    absl::StrAppend(&roff, ".TP\n");
    if (option.is_argument) {
      absl::StrAppend(&roff, Italic(option.name), option.repeated ? " ..." : "",
                      "\n");
    } else {
      absl::StrAppend(
          &roff, Bold(option.name),
          option.value.empty() ? "" : absl::StrCat(" ", Italic(option.value)),
          "\n");
    }
    absl::StrAppend(&roff, RoffText(option.description), ".\n");
  }
  return roff;
}

std::string CommandsRoff(const ProgramDescription& program) {
  std::string roff;
  for (const CommandDescription& command : program.commands) {
    std::string title = absl::StrCat("ebb ", command.name);
    for (const OptionDescription& option : command.options) {
      if (!option.is_argument) continue;
      const std::string name =
          absl::StrCat(option.name, option.repeated ? "..." : "");
      absl::StrAppend(&title, " ",
                      option.required ? name : absl::StrCat("[", name, "]"));
    }
    absl::StrAppend(&roff, ".SS \"", RoffText(title), "\"\n",
                    RoffText(command.description), ".\n",
                    OptionsRoff(command.options));
  }
  return roff;
}

std::vector<OptionDescription> ParseHelp(absl::string_view help) {
  std::vector<OptionDescription> options;
  for (const absl::string_view line : absl::StrSplit(help, '\n')) {
    const absl::string_view text = absl::StripAsciiWhitespace(line);
    if (absl::StartsWith(line, "  -")) {
      OptionDescription& option = options.emplace_back();
      // "-h,--help    TEXT", "--state TEXT Needs: --other    TEXT"
      const size_t gap = text.find("  ");
      absl::string_view left = text.substr(0, gap);
      if (gap != absl::string_view::npos) {
        option.description =
            std::string(absl::StripLeadingAsciiWhitespace(text.substr(gap)));
      }
      for (const absl::string_view end :
           {" Needs:", " Excludes:", " REQUIRED"}) {
        left = left.substr(0, left.find(end));
      }
      const size_t space = left.find(' ');
      option.name = absl::StrReplaceAll(left.substr(0, space), {{",", ", "}});
      if (space != absl::string_view::npos) {
        option.value = std::string(left.substr(space + 1));
      }
    } else if (!options.empty() && !text.empty() &&
               absl::StartsWith(line, "    ")) {
      std::string& description = options.back().description;
      absl::StrAppend(&description, description.empty() ? "" : " ", text);
    }
  }
  return options;
}

std::string FieldsRoff(const DescriptorPool& commented) {
  std::string roff;
  AddSection("", *v1::JobSpec::descriptor(), commented, &roff);
  return roff;
}

std::string LiteralRoff(absl::string_view text) {
  return absl::StrCat(".nf\n", RoffText(text),
                      absl::EndsWith(text, "\n") ? "" : "\n", ".fi\n");
}

}  // namespace ebb
