// Reads typed, range-checked fields of a JSON object. Private to this folder: it is the only
// header that knows the JSON library.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ziggurat {

/// INVALID_ARGUMENT unless `text` is one JSON object; names `file` and the position of the error.
absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, std::string_view file);

/// Takes fields out of an object. The first field that is wrong decides `status()`; reading goes
/// on with stand-in values after it, so callers check once, at the end. A field that is null
/// counts as absent, as in the Transformers library.
class FieldReader {
 public:
  /// `where` begins the messages: the file, and the path inside it. `object` must outlive this.
  FieldReader(const nlohmann::json& object, std::string where)
      : object_(object), where_(std::move(where)) {}

  /// Present and not null.
  bool Has(const char* key) const;
  /// Present, if only as null.
  bool Contains(const char* key) const { return object_.contains(key); }
  const nlohmann::json& Value(const char* key) const { return object_.at(key); }
  /// In ascending order.
  std::vector<std::string> Keys() const;

  /// In [min, max]. Without a fallback the field must be there.
  int Int(const char* key, int min, int max, std::optional<int> fallback = std::nullopt);
  double Number(const char* key, double min, double max,
                std::optional<double> fallback = std::nullopt);
  bool Bool(const char* key, bool fallback);
  std::string String(const char* key, std::string_view fallback);
  /// An integer or a list of integers. Left out are -1 ("none") and those above `max`, as models
  /// have them whose vocabulary was cut.
  std::vector<int32_t> Ids(const char* key, int max);

  /// Records: <where>: "<key>" is <value>; <allowed>.
  void Fail(const char* key, absl::string_view allowed,
            absl::StatusCode code = absl::StatusCode::kInvalidArgument);
  const absl::Status& status() const { return status_; }
  const std::string& where() const { return where_; }

 private:
  const nlohmann::json& object_;
  std::string where_;
  absl::Status status_;
};

}  // namespace ziggurat
