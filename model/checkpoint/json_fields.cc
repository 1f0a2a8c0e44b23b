#include "model/checkpoint/json_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/absl_view.h"
#include "model/input_file.h"

namespace ziggurat {

namespace {

/// A JSON value for a message: long ones are cut, invalid UTF-8 is replaced.
std::string Shown(const nlohmann::json& value) {
  constexpr size_t kLongest = 80;
  std::string text =
      value.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

/// Whether `value` is an integer in [min, max]; 3.0 is not an integer.
bool IsIntegerIn(const nlohmann::json& value, int64_t min, int64_t max) {
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    return number <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) &&
           static_cast<int64_t>(number) >= min && static_cast<int64_t>(number) <= max;
  }
  return value.is_number_integer() && value.get<int64_t>() >= min && value.get<int64_t>() <= max;
}

/// How deep brackets nest, outside of strings.
int Depth(std::string_view json) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, std::string_view file) {
  // Copying and printing a value recurses, so what nests deeper than any configuration does must
  // not become one. Counted beforehand: a parser that asks about every value takes a time that
  // grows with the square of their number.
  constexpr int kDeepest = 64;
  if (Depth(text) > kDeepest) {
    return absl::InvalidArgumentError(
        absl::StrCat(AbslView(file), ": nests deeper than ", kDeepest, " levels"));
  }
  if (absl::Status status = CheckHasNoNul(text); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(AbslView(file), ": ", status.message()));
  }
  // The throwing parse is the one that says where the error is; nothing is thrown past this border.
  try {
    nlohmann::json value = nlohmann::json::parse(text);
    if (value.is_object()) return value;
    return absl::InvalidArgumentError(
        absl::StrCat(AbslView(file), ": holds a JSON ", value.type_name(), ", not an object"));
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(AbslView(file), ": not valid JSON: ", error.what()));
  }
}

bool FieldReader::Has(const char* key) const {
  const auto field = object_.find(key);
  return field != object_.end() && !field->is_null();
}

std::vector<std::string> FieldReader::Keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object_.items()) keys.push_back(key);
  return keys;
}

void FieldReader::Fail(const char* key, absl::string_view allowed, absl::StatusCode code) {
  if (!status_.ok()) return;
  const std::string is =
      Has(key) ? absl::StrCat("is ", Shown(object_.at(key))) : std::string("is missing");
  status_ = absl::Status(code, absl::StrCat(where_, ": \"", key, "\" ", is, "; ", allowed));
}

int FieldReader::Int(const char* key, int min, int max, std::optional<int> fallback) {
  if (!Has(key) && fallback) return *fallback;
  if (Has(key) && IsIntegerIn(object_.at(key), min, max)) return object_.at(key).get<int>();
  Fail(key, absl::StrCat("must be an integer in [", min, ", ", max, "]"));
  return fallback.value_or(min);
}

double FieldReader::Number(const char* key, double min, double max,
                           std::optional<double> fallback) {
  if (!Has(key) && fallback) return *fallback;
  if (Has(key) && object_.at(key).is_number()) {
    const double value = object_.at(key).get<double>();
    if (std::isfinite(value) && value >= min && value <= max) return value;
  }
  Fail(key, absl::StrCat("must be a number in [", min, ", ", max, "]"));
  return fallback.value_or(min);
}

bool FieldReader::Bool(const char* key, bool fallback) {
  if (!Has(key)) return fallback;
  if (object_.at(key).is_boolean()) return object_.at(key).get<bool>();
  Fail(key, "must be true or false");
  return fallback;
}

std::string FieldReader::String(const char* key, std::string_view fallback) {
  if (!Has(key)) return std::string(fallback);
  if (object_.at(key).is_string()) return object_.at(key).get<std::string>();
  Fail(key, "must be a string");
  return std::string(fallback);
}

std::vector<int32_t> FieldReader::Ids(const char* key, int max) {
  std::vector<int32_t> ids;
  if (!Has(key)) return ids;
  const nlohmann::json& value = object_.at(key);
  const nlohmann::json list = value.is_array() ? value : nlohmann::json::array({value});
  for (const nlohmann::json& id : list) {
    if (!IsIntegerIn(id, -1, std::numeric_limits<int32_t>::max())) {
      Fail(key, "must be a token id, or a list of them");
      return {};
    }
    const int64_t number = id.get<int64_t>();
    if (number >= 0 && number <= max) ids.push_back(static_cast<int32_t>(number));
  }
  return ids;
}

}  // namespace ziggurat
