#include "model/tokenizer/json_reader.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/input_file.h"

namespace ziggurat {
namespace {

absl::Status WrongType(absl::string_view where, absl::string_view key, absl::string_view expected,
                       const nlohmann::json& value) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", key, "\" of ", where, " must be ", expected, ", not ", value.type_name()));
}

}  // namespace

absl::StatusOr<std::string> ReadTokenizerFile(const std::filesystem::path& path) {
  constexpr size_t kMostBytes = size_t{1} << 30;
  return ReadInputFile(path, kMostBytes);
}

absl::StatusOr<nlohmann::json> ReadJsonObject(const std::filesystem::path& path) {
  const absl::StatusOr<std::string> content = ReadTokenizerFile(path);
  if (!content.ok()) return content.status();
  if (absl::Status status = CheckHasNoNul(*content); !status.ok()) return InFile(path, status);
  nlohmann::json value;
  try {
    value = nlohmann::json::parse(*content);
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(path.string(), ": not valid JSON: ", error.what()));
  }
  if (!value.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": must hold a JSON object, not ",
                                                   std::string(value.type_name())));
  }
  return value;
}

const nlohmann::json& Member(const nlohmann::json& object, absl::string_view key) {
  static const nlohmann::json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(std::string(key));
  return found == object.end() ? kNull : *found;
}

absl::StatusOr<bool> BoolMember(const nlohmann::json& object, absl::string_view key, bool fallback,
                                absl::string_view where) {
  const nlohmann::json& value = Member(object, key);
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) return WrongType(where, key, "true or false", value);
  return value.get<bool>();
}

absl::StatusOr<std::string> StringMember(const nlohmann::json& object, absl::string_view key,
                                         std::string_view fallback, absl::string_view where) {
  const nlohmann::json& value = Member(object, key);
  if (value.is_null()) return std::string(fallback);
  if (!value.is_string()) return WrongType(where, key, "a string", value);
  return value.get<std::string>();
}

absl::StatusOr<int64_t> IntegerMember(const nlohmann::json& object, absl::string_view key,
                                      int64_t fallback, absl::string_view where) {
  const nlohmann::json& value = Member(object, key);
  if (value.is_null()) return fallback;
  if (!value.is_number_integer()) return WrongType(where, key, "an integer", value);
  return value.get<int64_t>();
}

absl::StatusOr<std::string> ComponentType(const nlohmann::json& component,
                                          absl::string_view where) {
  if (!component.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a ", where, " must be an object with a \"type\", not ", component.type_name()));
  }
  absl::StatusOr<std::string> type = StringMember(component, "type", "", where);
  if (type.ok() && type->empty()) {
    return absl::InvalidArgumentError(absl::StrCat("a ", where, " has no \"type\""));
  }
  return type;
}

absl::Status UnsupportedComponent(absl::string_view where, absl::string_view type,
                                  absl::string_view supported) {
  return absl::UnimplementedError(
      absl::StrCat("the ", where, " '", type, "' is not supported (supported: ", supported, ")"));
}

}  // namespace ziggurat
