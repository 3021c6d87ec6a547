#include "proto/spec_writer.h"

#include <nlohmann/json.hpp>

#include "proto/field_rules.h"

namespace ebb {

namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using nlohmann::ordered_json;

ordered_json SectionToJson(const Message& section);

ordered_json FieldToJson(const Message& section, const FieldDescriptor& field) {
  const Reflection& reflection = *section.GetReflection();
  if (field.is_repeated()) {
    ordered_json list = ordered_json::array();
    for (int i = 0; i < reflection.FieldSize(section, &field); ++i) {
      list.push_back(reflection.GetRepeatedString(section, &field, i));
    }
    return list;
  }
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.GetString(section, &field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(section, &field);
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.GetInt32(section, &field);
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.GetInt64(section, &field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.GetUInt64(section, &field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.GetDouble(section, &field);
    case FieldDescriptor::CPPTYPE_ENUM: {
      const auto* value = reflection.GetEnum(section, &field);
      return ChoiceWord(*value);
    }
    default:
      if (IsDuration(field)) {
        return DurationText(static_cast<const google::protobuf::Duration&>(
            reflection.GetMessage(section, &field)));
      }
      return SectionToJson(reflection.GetMessage(section, &field));
  }
}

ordered_json SectionToJson(const Message& section) {
  const Reflection& reflection = *section.GetReflection();
  const google::protobuf::Descriptor& type = *section.GetDescriptor();
  ordered_json json = ordered_json::object();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (!field.is_repeated() && !reflection.HasField(section, &field)) {
      continue;
    }
    // UNSPECIFIED is "not set".
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM &&
        reflection.GetEnumValue(section, &field) == 0) {
      continue;
    }
    json[field.name()] = FieldToJson(section, field);
  }
  return json;
}

}  // namespace

std::string SpecToJson(const v1::JobSpec& spec, int indent) {
  return SectionToJson(spec).dump(indent, ' ', false,
                                  ordered_json::error_handler_t::replace);
}

}  // namespace ebb
