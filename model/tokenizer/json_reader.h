// Reading JSON files of others: every access answers with a status, none throws.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ziggurat {

/// The whole file. NOT_FOUND or INVALID_ARGUMENT name it.
absl::StatusOr<std::string> ReadTokenizerFile(const std::filesystem::path& path);

/// The file's JSON object. INVALID_ARGUMENT names the file and where the JSON is broken.
absl::StatusOr<nlohmann::json> ReadJsonObject(const std::filesystem::path& path);

/// The member `key` of an object; null if it is absent, or if this is no object.
const nlohmann::json& Member(const nlohmann::json& object, absl::string_view key);

/// The member as its type; `fallback` if it is absent or null; INVALID_ARGUMENT if it is of another
/// type. `where` names the object in errors.
absl::StatusOr<bool> BoolMember(const nlohmann::json& object, absl::string_view key, bool fallback,
                                absl::string_view where);
absl::StatusOr<std::string> StringMember(const nlohmann::json& object, absl::string_view key,
                                         std::string_view fallback, absl::string_view where);
absl::StatusOr<int64_t> IntegerMember(const nlohmann::json& object, absl::string_view key,
                                      int64_t fallback, absl::string_view where);

/// The member "type" of a component of tokenizer.json.
absl::StatusOr<std::string> ComponentType(const nlohmann::json& component, absl::string_view where);

/// UNIMPLEMENTED: the component `type` of `where` is not known; `supported` lists what is.
absl::Status UnsupportedComponent(absl::string_view where, absl::string_view type,
                                  absl::string_view supported);

/// How deep components of type Sequence may lie in each other.
constexpr int kMaxComponentDepth = 8;

}  // namespace ziggurat
