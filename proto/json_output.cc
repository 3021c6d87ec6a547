#include "proto/json_output.h"

#include <google/protobuf/message.h>
#include <google/protobuf/timestamp.pb.h>
#include <google/protobuf/util/time_util.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/job_service.pb.h"
#include "proto/spec_writer.h"

namespace ebb {

namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using nlohmann::ordered_json;

ordered_json ToJson(const Message& message);

ordered_json NumberToJson(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

// Steps are numbers for people's tools; other 64-bit integers (bytes, hashes)
// may exceed what JSON readers keep exactly.
bool IsStep(const FieldDescriptor& field) {
  return field.name() == "step" || absl::EndsWith(field.name(), "_step");
}

ordered_json EnumToJson(const FieldDescriptor& field, int number) {
  const auto* value = field.enum_type()->FindValueByNumber(number);
  if (value == nullptr) return number;
  return value->name();
}

// Entry `index` of a repeated field; -1: a single one.
ordered_json ValueToJson(const Message& message, const FieldDescriptor& field,
                         int index) {
  const Reflection& get = *message.GetReflection();
  const bool many = index >= 0;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return many ? get.GetRepeatedInt32(message, &field, index)
                  : get.GetInt32(message, &field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return many ? get.GetRepeatedUInt32(message, &field, index)
                  : get.GetUInt32(message, &field);
    case FieldDescriptor::CPPTYPE_INT64: {
      const int64_t value = many ? get.GetRepeatedInt64(message, &field, index)
                                 : get.GetInt64(message, &field);
      if (IsStep(field)) return value;
      return absl::StrCat(value);
    }
    case FieldDescriptor::CPPTYPE_UINT64:
      return absl::StrCat(many ? get.GetRepeatedUInt64(message, &field, index)
                               : get.GetUInt64(message, &field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return NumberToJson(many ? get.GetRepeatedDouble(message, &field, index)
                               : get.GetDouble(message, &field));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return NumberToJson(many ? get.GetRepeatedFloat(message, &field, index)
                               : get.GetFloat(message, &field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return many ? get.GetRepeatedBool(message, &field, index)
                  : get.GetBool(message, &field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumToJson(field,
                        many ? get.GetRepeatedEnumValue(message, &field, index)
                             : get.GetEnumValue(message, &field));
    case FieldDescriptor::CPPTYPE_STRING:
      return many ? get.GetRepeatedString(message, &field, index)
                  : get.GetString(message, &field);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(many ? get.GetRepeatedMessage(message, &field, index)
                         : get.GetMessage(message, &field));
  }
  return nullptr;
}

// A map, sorted by key so that output is always the same.
ordered_json MapToJson(const Message& message, const FieldDescriptor& field) {
  const FieldDescriptor& key = *field.message_type()->map_key();
  const FieldDescriptor& value = *field.message_type()->map_value();
  const Reflection& reflection = *message.GetReflection();
  std::map<std::string, ordered_json> sorted;
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    const Message& entry = reflection.GetRepeatedMessage(message, &field, i);
    const ordered_json name = ValueToJson(entry, key, -1);
    sorted[name.is_string() ? name.get<std::string>() : name.dump()] =
        ValueToJson(entry, value, -1);
  }
  ordered_json json = ordered_json::object();
  for (auto& [name, entry] : sorted) json[name] = std::move(entry);
  return json;
}

ordered_json ToJson(const Message& message) {
  if (message.GetDescriptor() == v1::JobSpec::descriptor()) {
    return ordered_json::parse(
        SpecToJson(static_cast<const v1::JobSpec&>(message)));
  }
  if (message.GetDescriptor() == google::protobuf::Timestamp::descriptor()) {
    return google::protobuf::util::TimeUtil::ToString(
        static_cast<const google::protobuf::Timestamp&>(message));
  }
  const Reflection& reflection = *message.GetReflection();
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  ordered_json json = ordered_json::object();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.is_map()) {
      json[field.name()] = MapToJson(message, field);
    } else if (field.is_repeated()) {
      ordered_json list = ordered_json::array();
      for (int j = 0; j < reflection.FieldSize(message, &field); ++j) {
        list.push_back(ValueToJson(message, field, j));
      }
      json[field.name()] = std::move(list);
    } else if (reflection.HasField(message, &field) || !field.has_presence()) {
      json[field.name()] = ValueToJson(message, field, -1);
    } else if (field.real_containing_oneof() == nullptr) {
      json[field.name()] = nullptr;
    }
  }
  return json;
}

}  // namespace

std::string MessageToJson(const Message& message, int indent) {
  return ToJson(message).dump(indent, ' ', false,
                              ordered_json::error_handler_t::replace);
}

std::string JobToJson(const v1::Job& job, int indent) {
  return MessageToJson(job, indent);
}

}  // namespace ebb
