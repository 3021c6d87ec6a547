#include "proto/spec_text.h"

#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/utf8.h"
#include "proto/violations.h"

namespace ebb {

namespace {

// Of a value or a line in errors.
constexpr size_t kMaxShownBytes = 200;

constexpr char kByteOrderMark[] = "\xef\xbb\xbf";

// The line around position, and where it is.
struct Place {
  int line = 1;
  int column = 1;
  std::string text;
};

Place PlaceOf(absl::string_view text, size_t position) {
  position = std::min(position, text.size());
  Place place;
  size_t begin = 0;
  for (size_t i = 0; i < position; ++i) {
    if (text[i] != '\n') continue;
    ++place.line;
    begin = i + 1;
  }
  place.column = static_cast<int>(position - begin) + 1;
  const size_t end = text.find('\n', begin);
  place.text = std::string(absl::StripAsciiWhitespace(
      text.substr(begin, end == absl::string_view::npos ? end : end - begin)));
  return place;
}

v1::Violation SyntaxViolation(absl::string_view file, const Place& place,
                              absl::string_view rule, absl::string_view fix) {
  v1::Violation violation;
  violation.set_file(std::string(file));
  violation.set_line(place.line);
  violation.set_column(place.column);
  // The text may be what is wrong: messages carry UTF-8 only.
  violation.set_value(OneLine(place.text, kMaxShownBytes));
  violation.set_rule(absl::StrCat(rule, " (column ", place.column, ")"));
  violation.set_fix(std::string(fix));
  return violation;
}

// Builds the tree from yaml-cpp's events. Positions are those of `text`, which
// has no byte-order mark and no carriage returns.
class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(absl::string_view text, std::shared_ptr<const std::string> file)
      : text_(text), file_(std::move(file)) {}

  void OnDocumentStart(const YAML::Mark& mark) override {
    ++num_documents_;
    last_document_ = mark;
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    SpecNode node = MakeNode(mark, "?", anchor);
    if (IsTilde(mark)) {
      node.kind = SpecNode::Kind::kScalar;
      node.text = "~";
    }
    Put(std::move(node));
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    SpecNode node = MakeNode(mark, "?", YAML::NullAnchor);
    node.feature = "an alias (*)";
    Put(std::move(node));
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag,
                YAML::anchor_t anchor, const std::string& value) override {
    SpecNode node = MakeNode(mark, tag, anchor);
    node.kind = SpecNode::Kind::kScalar;
    node.text = value;
    node.quoted = tag == "!";
    if (node.quoted && !IsClosed(mark)) unclosed_ = mark;
    Put(std::move(node));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag,
                       YAML::anchor_t anchor,
                       YAML::EmitterStyle::value style) override {
    SpecNode node = MakeNode(mark, tag, anchor);
    node.kind = SpecNode::Kind::kList;
    open_.push_back({std::move(node), {}, false, style});
  }
  void OnSequenceEnd() override { Close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag,
                  YAML::anchor_t anchor,
                  YAML::EmitterStyle::value style) override {
    SpecNode node = MakeNode(mark, tag, anchor);
    node.kind = SpecNode::Kind::kSection;
    open_.push_back({std::move(node), {}, false, style});
  }
  void OnMapEnd() override { Close(); }

  int num_documents() const { return num_documents_; }
  const YAML::Mark& last_document() const { return last_document_; }

  // Where a quote stands that nothing closes.
  const std::optional<YAML::Mark>& unclosed() const { return unclosed_; }

  // The tree; after an error of syntax, what was read of it. A value that is
  // not complete is left out, its key too.
  SpecNode TakeRoot() {
    while (!open_.empty()) Close();
    return std::move(root_);
  }

 private:
  struct Open {
    SpecNode node;
    SpecNode key;
    bool has_key;
    YAML::EmitterStyle::value style;
  };

  SpecNode MakeNode(const YAML::Mark& mark, const std::string& tag,
                    YAML::anchor_t anchor) const {
    SpecNode node;
    node.file = file_;
    node.line = mark.line + 1;
    node.column = mark.column + 1;
    if (anchor != YAML::NullAnchor) node.feature = "an anchor (&)";
    if (tag != "?" && tag != "!" && !tag.empty()) {
      node.feature = absl::StrCat("a tag (", tag, ")");
    }
    return node;
  }

  // yaml-cpp reports `~`, null and nothing alike; where there is nothing, the
  // mark stands on what comes next: in block style that cannot stand right of
  // the container's own column unless it is the value.
  bool IsTilde(const YAML::Mark& mark) const {
    if (mark.pos < 0 || static_cast<size_t>(mark.pos) >= text_.size() ||
        text_[mark.pos] != '~') {
      return false;
    }
    return open_.empty() || open_.back().style == YAML::EmitterStyle::Flow ||
           mark.column + 1 > open_.back().node.column;
  }

  // False if the scalar at mark starts with a quote that the text does not
  // close: yaml-cpp takes the end of the text for it where a line ends there.
  bool IsClosed(const YAML::Mark& mark) const {
    if (mark.pos < 0 || static_cast<size_t>(mark.pos) >= text_.size()) {
      return true;
    }
    const char quote = text_[mark.pos];
    if (quote != '"' && quote != '\'') return true;  // a block scalar
    for (size_t i = mark.pos + 1; i < text_.size(); ++i) {
      if (quote == '"' && text_[i] == '\\') {
        ++i;
      } else if (text_[i] == quote) {
        if (quote == '"' || i + 1 == text_.size() || text_[i + 1] != quote) {
          return true;
        }
        ++i;  // '' is one quote
      }
    }
    return false;
  }

  void Put(SpecNode node) {
    if (open_.empty()) {
      // A second document is an error of its own and does not replace the
      // first.
      if (num_documents_ == 1) root_ = std::move(node);
      return;
    }
    Open& open = open_.back();
    if (open.node.kind == SpecNode::Kind::kList) {
      open.node.items.push_back(std::move(node));
    } else if (!open.has_key) {
      open.key = std::move(node);
      open.has_key = true;
    } else {
      open.node.entries.push_back({std::move(open.key), std::move(node)});
      open.has_key = false;
    }
  }

  void Close() {
    SpecNode node = std::move(open_.back().node);
    open_.pop_back();
    Put(std::move(node));
  }

  absl::string_view text_;
  std::shared_ptr<const std::string> file_;
  SpecNode root_;
  std::vector<Open> open_;
  std::optional<YAML::Mark> unclosed_;
  int num_documents_ = 0;
  YAML::Mark last_document_;
};

// Only watches whether a text is JSON and where it stops being so.
class JsonWatcher : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t position, const std::string& last_token,
                   const nlohmann::detail::exception& error) override {
    // A number beyond double is JSON: the field's own rule refuses it.
    failed_ = error.id != 406;
    position_ = position;
    token_ = last_token;
    message_ = error.what();
    return false;
  }

  bool failed() const { return failed_; }
  // 1-based: of the last character that was read.
  size_t position() const { return position_; }
  const std::string& token() const { return token_; }
  const std::string& message() const { return message_; }

 private:
  bool failed_ = false;
  size_t position_ = 0;
  std::string token_;
  std::string message_;
};

// Adds a violation and returns false if text is no strict JSON.
bool CheckJson(absl::string_view text, absl::string_view file,
               std::vector<v1::Violation>& violations) {
  JsonWatcher watcher;
  nlohmann::json::sax_parse(text.begin(), text.end(), &watcher);
  if (!watcher.failed()) return true;
  const size_t position =
      std::min(watcher.position() - (watcher.position() > 0), text.size());
  // "[json.exception.parse_error.101] parse error at line 1, column 5: syntax
  // error while parsing ...": keep what follows the place.
  std::string message = watcher.message();
  if (const size_t at = message.find(": "); at != std::string::npos) {
    message = message.substr(at + 2);
  }
  const absl::string_view before =
      absl::StripTrailingAsciiWhitespace(text.substr(0, position));
  const char here = position < text.size() ? text[position] : '\0';
  std::string fix = "correct the JSON";
  if ((here == '}' || here == ']') && !before.empty() && before.back() == ',') {
    message = "JSON has no comma before a closing bracket";
    fix = "remove the comma";
  } else if (here == '/' || here == '#' ||
             (!before.empty() && before.back() == '/')) {
    message = "JSON has no comments";
    fix = "remove the comment, or write the spec as YAML";
  } else if (absl::ascii_isalpha(here) || here == '\'') {
    message = "JSON puts names and texts in double quotes";
    fix = "add the quotes, or write the spec as YAML without outer braces";
  } else if (position >= text.size()) {
    message = "JSON ends too early";
    fix = "close all brackets and quotes";
  }
  violations.push_back(SyntaxViolation(
      file, PlaceOf(text, position), absl::StrCat("not JSON: ", message), fix));
  return false;
}

// JSON writes characters beyond U+FFFF as two \u escapes, YAML as one \U:
// rewrites the pairs. REQUIRES: text is JSON.
std::string JoinSurrogates(absl::string_view text) {
  const auto unit_at = [&](size_t i) -> uint32_t {
    uint32_t unit = 0;
    if (text.size() - i < 6 || text[i] != '\\' || text[i + 1] != 'u' ||
        !absl::SimpleHexAtoi(text.substr(i + 2, 4), &unit)) {
      return 0;
    }
    return unit;
  };
  std::string joined;
  joined.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    if (text[i] != '\\') {
      joined += text[i++];
      continue;
    }
    const uint32_t high = unit_at(i);
    const uint32_t low = i + 6 < text.size() ? unit_at(i + 6) : 0;
    if (high >= 0xd800 && high < 0xdc00 && low >= 0xdc00 && low < 0xe000) {
      absl::StrAppendFormat(&joined, "\\U%08x",
                            0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00));
      i += 12;
    } else {
      // Two at once, so that an escaped backslash does not start an escape.
      joined.append(text.data() + i, std::min<size_t>(2, text.size() - i));
      i += 2;
    }
  }
  return joined;
}

// Position of a tab that indents a line with content, in lines 1..last_line;
// npos: none. The last one, as the nearest to an error there.
size_t FindIndentingTab(absl::string_view text, int last_line) {
  size_t found = absl::string_view::npos;
  size_t begin = 0;
  for (int line = 1; line <= last_line && begin < text.size(); ++line) {
    size_t end = text.find('\n', begin);
    if (end == absl::string_view::npos) end = text.size();
    const size_t first = text.find_first_not_of(" \t", begin);
    if (first < end && text[first] != '#') {
      const size_t tab = text.substr(begin, first - begin).find('\t');
      if (tab != absl::string_view::npos) found = begin + tab;
    }
    begin = end + 1;
  }
  return found;
}

// Mistakes of the encoding; empty if text can be parsed.
std::vector<v1::Violation> CheckEncoding(absl::string_view text,
                                         absl::string_view file) {
  const absl::string_view start = text.substr(0, 2);
  if (start == "\xff\xfe" || start == "\xfe\xff" ||
      text.substr(0, 4).find('\0') != absl::string_view::npos) {
    Place place;
    place.text = "bytes of UTF-16 or UTF-32";
    return {SyntaxViolation(file, place, "specs are UTF-8",
                            "save the file as UTF-8")};
  }
  if (const size_t at = FindInvalidUtf8(text); at != absl::string_view::npos) {
    return {SyntaxViolation(file, PlaceOf(text, at), "specs are UTF-8",
                            "save the file as UTF-8")};
  }
  for (size_t i = 0; i < text.size();) {
    const size_t length = Utf8CharacterBytes(text.substr(i));
    if (IsControlCharacter(text.substr(i, length)) && text[i] != '\n' &&
        text[i] != '\t') {
      return {SyntaxViolation(file, PlaceOf(text, i),
                              "control characters have no place in a spec",
                              "remove the character")};
    }
    i += length;
  }
  return {};
}

}  // namespace

std::string NodeText(const SpecNode& node) {
  const std::string text = OneLine(node.text, kMaxShownBytes);
  switch (node.kind) {
    case SpecNode::Kind::kNull:
      return "null";
    case SpecNode::Kind::kScalar:
      return node.quoted ? absl::StrCat("\"", text, "\"") : text;
    case SpecNode::Kind::kList:
      return "a list";
    case SpecNode::Kind::kSection:
      return "a section";
  }
  return "";
}

SpecText ParseSpecText(absl::string_view input, absl::string_view file,
                       SpecLanguage language, size_t max_bytes) {
  SpecText result;
  auto shared_file = std::make_shared<const std::string>(file);
  result.root.file = shared_file;
  if (input.size() > max_bytes) {
    Place place;
    place.text = absl::StrCat(input.size(), " bytes");
    result.violations.push_back(SyntaxViolation(
        file, place, absl::StrCat("specs have at most ", max_bytes, " bytes"),
        "is this the right file?"));
    return result;
  }
  if (input.substr(0, 3) == kByteOrderMark) input.remove_prefix(3);
  std::string text;
  text.reserve(input.size());
  for (size_t i = 0; i < input.size(); ++i) {
    if (input[i] == '\r' && i + 1 < input.size() && input[i + 1] == '\n') {
      continue;
    }
    text += input[i];
  }
  result.violations = CheckEncoding(text, file);
  if (!result.violations.empty()) return result;

  const absl::string_view content = absl::StripLeadingAsciiWhitespace(text);
  const bool json = language == SpecLanguage::kYamlOrJson && !content.empty() &&
                    content[0] == '{';
  if (json) {
    if (!CheckJson(text, file, result.violations)) return result;
    text = JoinSurrogates(text);
  }

  TreeBuilder builder(text, shared_file);
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) {
      Place place;
      result.violations.push_back(
          SyntaxViolation(file, place, "a spec must not be empty",
                          "write at least model, data, batch and steps"));
      return result;
    }
    const bool is_second = parser.HandleNextDocument(builder);
    if (builder.unclosed().has_value()) {
      result.violations.push_back(
          SyntaxViolation(file, PlaceOf(text, builder.unclosed()->pos),
                          "not YAML: a quote is not closed", "close it"));
    } else if (is_second) {
      const Place place = PlaceOf(text, builder.last_document().pos);
      result.violations.push_back(
          SyntaxViolation(file, place, "a spec is one document, not several",
                          "keep one and remove the others"));
    }
  } catch (const YAML::DeepRecursion& error) {
    result.violations.push_back(
        SyntaxViolation(file, PlaceOf(text, error.mark.pos),
                        "specs nest at most 500 levels deep", "flatten it"));
  } catch (const YAML::Exception& error) {
    const bool known = error.mark.pos >= 0;
    Place place = PlaceOf(text, known ? error.mark.pos : 0);
    const size_t tab =
        json ? absl::string_view::npos : FindIndentingTab(text, place.line);
    if (tab != absl::string_view::npos) {
      result.violations.push_back(SyntaxViolation(file, PlaceOf(text, tab),
                                                  "tabs do not indent in YAML",
                                                  "use spaces"));
    } else {
      result.violations.push_back(SyntaxViolation(
          file, place,
          absl::StrCat(json ? "cannot be read: " : "not YAML: ", error.msg),
          "correct the text here or just before"));
    }
  } catch (const std::exception& error) {
    result.violations.push_back(SyntaxViolation(
        file, Place(), absl::StrCat("cannot be read: ", error.what()),
        "correct the text"));
  }
  result.root = builder.TakeRoot();
  if (result.root.file == nullptr) result.root.file = shared_file;
  return result;
}

}  // namespace ebb
