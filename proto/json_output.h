// JSON of everything that programs print (`--output json`): snake_case names,
// zero fields printed, unset messages as null, enums by name, 64-bit integers
// as strings but for steps (fields named step or *_step), doubles so that they
// read back exactly ("NaN", "Infinity" where JSON has no number), times as RFC
// 3339, and every JobSpec in the language of specs.
#pragma once

#include <string>

namespace google::protobuf {
class Message;
}

namespace ebb {

namespace v1 {
class Job;
}

// indent -1: one line, without a line break at the end.
std::string MessageToJson(const google::protobuf::Message& message,
                          int indent = -1);

std::string JobToJson(const v1::Job& job, int indent = -1);

}  // namespace ebb
