#include "proto/field_rules.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ebb {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

namespace {

// LrDecay -> "LR_DECAY_", the prefix of the enum's values.
std::string ChoicePrefix(const EnumDescriptor& type) {
  std::string prefix;
  for (char c : type.name()) {
    if (absl::ascii_isupper(c) && !prefix.empty()) prefix += '_';
    prefix += absl::ascii_toupper(c);
  }
  return prefix + "_";
}

// " from 1 to 8", " above 0 and at most 1", ...
std::string BoundsText(const v1::FieldRule& rule) {
  if (rule.has_min() && rule.has_max()) {
    return absl::StrCat(" from ", NumberText(rule.min()), " to ",
                        NumberText(rule.max()));
  }
  std::string low, high;
  if (rule.has_min()) low = absl::StrCat("at least ", NumberText(rule.min()));
  if (rule.has_above()) low = absl::StrCat("above ", NumberText(rule.above()));
  if (rule.has_max()) high = absl::StrCat("at most ", NumberText(rule.max()));
  if (rule.has_below()) high = absl::StrCat("below ", NumberText(rule.below()));
  if (low.empty() && high.empty()) return "";
  if (low.empty()) return absl::StrCat(" ", high);
  if (high.empty()) return absl::StrCat(" ", low);
  return absl::StrCat(" ", low, " and ", high);
}

// Words of the choices that are built, or of those that are not.
std::vector<std::string> Words(const EnumDescriptor& type, bool built) {
  std::vector<std::string> words;
  for (int i = 0; i < type.value_count(); ++i) {
    const EnumValueDescriptor& value = *type.value(i);
    if (value.number() != 0 && IsBuilt(value) == built) {
      words.push_back(ChoiceWord(value));
    }
  }
  return words;
}

// "must be one of none, full (auto is not built yet)".
std::string ChoiceRequirement(const EnumDescriptor& type) {
  std::string text =
      absl::StrCat("must be one of ", absl::StrJoin(Words(type, true), ", "));
  const std::vector<std::string> not_built = Words(type, false);
  if (!not_built.empty()) {
    absl::StrAppend(&text, " (", absl::StrJoin(not_built, ", "),
                    not_built.size() == 1 ? " is" : " are", " not built yet)");
  }
  return text;
}

}  // namespace

const v1::FieldRule& RuleOf(const FieldDescriptor& field) {
  return field.options().GetExtension(v1::rule);
}

bool IsDuration(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE &&
         field.message_type() == google::protobuf::Duration::descriptor();
}

bool IsSection(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE &&
         !IsDuration(field);
}

std::string JoinFieldPath(absl::string_view prefix, absl::string_view name) {
  return prefix.empty() ? std::string(name) : absl::StrCat(prefix, ".", name);
}

std::string ChoiceWord(const EnumValueDescriptor& value) {
  return absl::AsciiStrToLower(
      value.name().substr(ChoicePrefix(*value.type()).size()));
}

std::vector<std::string> ChoiceWords(const EnumDescriptor& type) {
  return Words(type, true);
}

bool IsBuilt(const EnumValueDescriptor& value) {
  return !value.options().GetExtension(v1::not_built);
}

const EnumValueDescriptor* FindChoice(const EnumDescriptor& type,
                                      absl::string_view word) {
  for (int i = 0; i < type.value_count(); ++i) {
    const EnumValueDescriptor* value = type.value(i);
    if (value->number() != 0 && ChoiceWord(*value) == word) return value;
  }
  return nullptr;
}

std::string NumberText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  // Whole numbers up to 2^53 in full: bounds and counts read better so.
  char buffer[64];
  std::to_chars_result result =
      std::abs(value) < 9007199254740992.0 && value == std::floor(value)
          ? std::to_chars(buffer, buffer + sizeof(buffer),
                          static_cast<int64_t>(value))
          : std::to_chars(buffer, buffer + sizeof(buffer), value);
  return std::string(buffer, result.ptr);
}

std::string DurationText(const google::protobuf::Duration& duration) {
  const int64_t seconds = duration.seconds();
  const int64_t nanos = duration.nanos();
  if (nanos == 0) {
    if (seconds != 0 && seconds % 3600 == 0) {
      return absl::StrCat(seconds / 3600, "h");
    }
    if (seconds != 0 && seconds % 60 == 0) {
      return absl::StrCat(seconds / 60, "m");
    }
    return absl::StrCat(seconds, "s");
  }
  if (seconds == 0 && nanos % 1000000 == 0) {
    return absl::StrCat(nanos / 1000000, "ms");
  }
  const bool negative = seconds < 0 || nanos < 0;
  std::string fraction = absl::StrCat(std::abs(nanos));
  fraction.insert(0, fraction.size() < 9 ? 9 - fraction.size() : 0, '0');
  while (fraction.back() == '0') fraction.pop_back();
  return absl::StrCat(negative && seconds == 0 ? "-" : "", seconds, ".",
                      fraction, "s");
}

std::string Requirement(const FieldDescriptor& field) {
  const v1::FieldRule& rule = RuleOf(field);
  if (IsDuration(field)) {
    std::string bounds;
    if (rule.has_above()) {
      bounds = absl::StrCat(" above ", NumberText(rule.above()), "s");
    }
    if (rule.has_max()) {
      google::protobuf::Duration most;
      most.set_seconds(static_cast<int64_t>(rule.max()));
      absl::StrAppend(&bounds, bounds.empty() ? " " : " and ", "at most ",
                      DurationText(most));
    }
    return absl::StrCat("must be a duration", bounds);
  }
  if (rule.byte_size()) {
    return absl::StrCat("must be a size in bytes", BoundsText(rule));
  }
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return absl::StrCat("must be a number", BoundsText(rule));
    case FieldDescriptor::CPPTYPE_BOOL:
      return "must be true or false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return ChoiceRequirement(*field.enum_type());
    case FieldDescriptor::CPPTYPE_STRING:
      return "must be text";
    case FieldDescriptor::CPPTYPE_INT32:
      if (!rule.has_min() && !rule.has_max()) {
        return absl::StrCat("must be a whole number from ",
                            std::numeric_limits<int32_t>::min(), " to ",
                            std::numeric_limits<int32_t>::max());
      }
      return absl::StrCat("must be a whole number", BoundsText(rule));
    case FieldDescriptor::CPPTYPE_UINT64:
      return absl::StrCat("must be a whole number from 0 to ",
                          std::numeric_limits<uint64_t>::max());
    default:
      return absl::StrCat("must be a whole number", BoundsText(rule));
  }
}

void VisitFields(const Message& message, absl::string_view prefix,
                 const std::function<void(const std::string&, const Message&,
                                          const FieldDescriptor&)>& visit) {
  const Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const std::string path = JoinFieldPath(prefix, field.name());
    if (IsSection(field)) {
      VisitFields(message.GetReflection()->GetMessage(message, &field), path,
                  visit);
    } else {
      visit(path, message, field);
    }
  }
}

}  // namespace ebb
