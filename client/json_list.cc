// See json_list.h.
#include "client/json_list.h"

#include <utility>

#include "client/output.h"
#include "nlohmann/json.hpp"

namespace ebb {

JsonList::JsonList(std::string name, OutputFormat format, std::ostream& out)
    : name_(std::move(name)), format_(format), out_(out) {}

void JsonList::Add(const nlohmann::ordered_json& entry) {
  std::string line = WriteJson(entry, OutputFormat::kJsonl);
  if (format_ == OutputFormat::kJsonl) {
    out_ << line << std::flush;
    return;
  }
  line.pop_back();
  out_ << (open_ ? ",\n    " : "{\n  \"" + name_ + "\": [\n    ") << line;
  open_ = true;
}

void JsonList::End() {
  if (format_ != OutputFormat::kJson) return;
  out_ << (open_ ? "\n  ]\n}\n" : "{\n  \"" + name_ + "\": []\n}\n");
}

}  // namespace ebb
