// The text of a spec as a tree of scalars, lists and sections, before anybody
// asks what they mean. YAML and strict JSON, through the events of yaml-cpp,
// whose conversions are not used. Every scalar keeps its text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/job_service.pb.h"

namespace ebb {

struct SpecEntry;

// One node with the place where it stands.
struct SpecNode {
  enum class Kind { kNull, kScalar, kList, kSection };

  Kind kind = Kind::kNull;
  // kScalar: as written, quotes and escapes resolved. Plain `~` is a scalar,
  // too: text fields keep it.
  std::string text;
  bool quoted = false;  // kScalar: in quotes or as a block, so it is text
  // A feature of YAML that specs do not use ("an alias"); empty: none.
  std::string feature;
  std::vector<SpecNode> items;     // kList
  std::vector<SpecEntry> entries;  // kSection; keys may repeat
  std::shared_ptr<const std::string> file;
  int line = 0;  // 1-based; 0: unknown
  int column = 0;
};

struct SpecEntry {
  SpecNode key;
  SpecNode value;
};

// "abc", "a list", "a section", "null": the node as errors show it,
// in one line and not longer than people read.
std::string NodeText(const SpecNode& node);

struct SpecText {
  SpecNode root;
  // Mistakes of syntax. What was read before the first is in root; such a root
  // is not complete, so nothing can be said to be missing.
  std::vector<v1::Violation> violations;
};

enum class SpecLanguage {
  kYaml,
  kYamlOrJson,  // JSON if the first character is `{`
};

// Errors are violations with file, line and, in the rule, the column.
// Texts above max_bytes, UTF-16, invalid UTF-8, control characters, several
// documents and nesting beyond 500 levels are refused. A byte-order mark and
// CRLF are read like their absence.
SpecText ParseSpecText(absl::string_view text, absl::string_view file,
                       SpecLanguage language, size_t max_bytes);

}  // namespace ebb
