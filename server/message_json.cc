#include "server/message_json.h"

#include <utility>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace ziggurat {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using Json = nlohmann::ordered_json;

// One value of a field.
Json ElementJson(const Message& message, const FieldDescriptor* field, int index) {
  const auto* from = message.GetReflection();
  const bool repeated = field->is_repeated();
  switch (field->cpp_type()) {
#define ZIGGURAT_CASE(CPPTYPE, Get, GetRepeated) \
  case FieldDescriptor::CPPTYPE:                 \
    return repeated ? from->GetRepeated(message, field, index) : from->Get(message, field)
    ZIGGURAT_CASE(CPPTYPE_BOOL, GetBool, GetRepeatedBool);
    ZIGGURAT_CASE(CPPTYPE_INT32, GetInt32, GetRepeatedInt32);
    ZIGGURAT_CASE(CPPTYPE_INT64, GetInt64, GetRepeatedInt64);
    ZIGGURAT_CASE(CPPTYPE_UINT32, GetUInt32, GetRepeatedUInt32);
    ZIGGURAT_CASE(CPPTYPE_UINT64, GetUInt64, GetRepeatedUInt64);
    ZIGGURAT_CASE(CPPTYPE_FLOAT, GetFloat, GetRepeatedFloat);
    ZIGGURAT_CASE(CPPTYPE_DOUBLE, GetDouble, GetRepeatedDouble);
    ZIGGURAT_CASE(CPPTYPE_STRING, GetString, GetRepeatedString);
#undef ZIGGURAT_CASE
    case FieldDescriptor::CPPTYPE_ENUM:
      return (repeated ? from->GetRepeatedEnum(message, field, index)
                       : from->GetEnum(message, field))
          ->name();
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return MessageJson(repeated ? from->GetRepeatedMessage(message, field, index)
                                  : from->GetMessage(message, field));
  }
  return nullptr;
}

}  // namespace

Json MessageJson(const Message& message) {
  Json object = Json::object();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    if (field->is_repeated()) {
      Json& array = object[field->name()] = Json::array();
      const int count = message.GetReflection()->FieldSize(message, field);
      for (int j = 0; j < count; ++j) array.push_back(ElementJson(message, field, j));
    } else if (!field->has_presence() || message.GetReflection()->HasField(message, field)) {
      object[field->name()] = ElementJson(message, field, 0);
    }
  }
  return object;
}

Json CacheJson(const v1::GetCacheResponse& cache) {
  Json json = MessageJson(cache);
  for (Json& layer : json["layers"]) {
    Json blocks = Json::object();
    for (const Json& format : layer["formats"]) blocks[format["format"]] = format["blocks"];
    layer.erase("formats");
    layer["blocks_by_format"] = std::move(blocks);
  }
  return json;
}

}  // namespace ziggurat
