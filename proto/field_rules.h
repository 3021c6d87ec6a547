// What JobSpec's descriptor says about its fields: bounds, words of choices,
// paths. Reader, writer, validator and conversions all ask here.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/message.h"
#include "proto/spec.pb.h"

namespace ebb {

const v1::FieldRule& RuleOf(const google::protobuf::FieldDescriptor& field);

bool IsDuration(const google::protobuf::FieldDescriptor& field);

// A message field that is a section of the spec, not a duration.
bool IsSection(const google::protobuf::FieldDescriptor& field);

// "model" + "layers" -> "model.layers"; an empty prefix is the root.
std::string JoinFieldPath(absl::string_view prefix, absl::string_view name);

// The word of an enum value in specs: NORM_RMSNORM -> "rmsnorm".
std::string ChoiceWord(const google::protobuf::EnumValueDescriptor& value);

// All words of an enum in order, without UNSPECIFIED and without those that are
// not built yet.
std::vector<std::string> ChoiceWords(
    const google::protobuf::EnumDescriptor& type);

// False for a choice that is known and refused: not built yet.
bool IsBuilt(const google::protobuf::EnumValueDescriptor& value);

// Null if word is no choice, built or not.
const google::protobuf::EnumValueDescriptor* FindChoice(
    const google::protobuf::EnumDescriptor& type, absl::string_view word);

// The shortest text that reads back as value: "0.5", "1e-05".
std::string NumberText(double value);

// The shortest text with one unit: "5m", "250ms", "0.5s".
std::string DurationText(const google::protobuf::Duration& duration);

// What the field wants, for error messages: "must be a whole number from 1 to
// 100000", "must be a number above 0 and at most 1", "must be one of none, full
// (auto is not built yet)".
std::string Requirement(const google::protobuf::FieldDescriptor& field);

// Calls visit(path, message, field) for every field below message that is not
// a section, in the order of the descriptor; unset sections included, as their
// default instance.
void VisitFields(
    const google::protobuf::Message& message, absl::string_view prefix,
    const std::function<
        void(const std::string& path, const google::protobuf::Message& section,
             const google::protobuf::FieldDescriptor& field)>& visit);

}  // namespace ebb
