// A list that is printed while it grows. jsonl: an object a line; json: one
// object with the list under its name. Nothing is printed before the first
// entry, so that an early error leaves standard output empty.
#pragma once

#include <ostream>
#include <string>

#include "client/environment.h"
#include "nlohmann/json_fwd.hpp"

namespace ebb {

class JsonList {
 public:
  // With table output it prints nothing.
  JsonList(std::string name, OutputFormat format, std::ostream& out);

  void Add(const nlohmann::ordered_json& entry);

  // Closes the list. Left out after an error.
  void End();

 private:
  const std::string name_;
  const OutputFormat format_;
  std::ostream& out_;
  bool open_ = false;
};

}  // namespace ebb
