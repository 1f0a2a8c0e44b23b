#include "model/checkpoint/safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/input_file.h"

namespace ziggurat {

namespace {

struct DTypeRow {
  std::string_view name;
  size_t bytes;
};

// In the order of DType.
constexpr std::array<DTypeRow, 15> kDTypes = {{{"F32", 4},
                                               {"F16", 2},
                                               {"BF16", 2},
                                               {"F64", 8},
                                               {"F8_E4M3", 1},
                                               {"F8_E5M2", 1},
                                               {"I64", 8},
                                               {"I32", 4},
                                               {"I16", 2},
                                               {"I8", 1},
                                               {"U64", 8},
                                               {"U32", 4},
                                               {"U16", 2},
                                               {"U8", 1},
                                               {"BOOL", 1}}};

std::optional<DType> DTypeByName(std::string_view name) {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    if (kDTypes[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

/// Takes the header event by event, so that its size bounds the work and the memory, whatever it
/// nests, and so that duplicates are seen (a JSON tree would silently keep one of them).
///   { "__metadata__": {string: string}, NAME: {"dtype": ..., "shape": [...], "data_offsets":
///     [begin, end]}, ... }
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::map<std::string, HeaderEntry, std::less<>> entries;
  std::string error;

  bool null() override { return Fail("a null"); }
  bool boolean(bool) override { return Fail("a boolean"); }
  bool number_float(double, const std::string&) override { return Fail("a fraction"); }
  bool binary(binary_t&) override { return Fail("binary data"); }
  bool number_integer(int64_t value) override {
    if (value < 0) return Fail("a negative number");
    return number_unsigned(static_cast<uint64_t>(value));
  }
  bool number_unsigned(uint64_t value) override {
    if (place_ != Place::kList) return Fail("a number");
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Fail("a number beyond 2^63");
    }
    constexpr size_t kMaxDimensions = 32;
    if (list_->size() == kMaxDimensions) return Fail("a list too long");
    list_->push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(std::string& value) override {
    if (place_ == Place::kMetadata) return true;
    if (place_ != Place::kEntry || field_ != "dtype") return Fail("a string");
    const std::optional<DType> dtype = DTypeByName(value);
    if (!dtype) {
      return Fail(absl::StrCat("the dtype \"", value, "\" (supported are F32, F16 and BF16)"));
    }
    entry_.dtype = *dtype;
    return true;
  }

  bool start_object(size_t) override {
    switch (place_) {
      case Place::kOutside:
        place_ = Place::kTop;
        return true;
      case Place::kTop:
        place_ = name_ == "__metadata__" ? Place::kMetadata : Place::kEntry;
        entry_ = HeaderEntry{};
        seen_.clear();
        offsets_.clear();
        return true;
      default:
        return Fail("an object");
    }
  }

  bool end_object() override {
    if (place_ == Place::kEntry) {
      if (seen_.size() != 3) return Fail("an entry without dtype, shape or data_offsets");
      if (offsets_.size() != 2) return Fail("data_offsets that are not two numbers");
      entry_.begin = static_cast<uint64_t>(offsets_[0]);
      entry_.end = static_cast<uint64_t>(offsets_[1]);
      entries.emplace(name_, std::move(entry_));
    }
    place_ = place_ == Place::kTop ? Place::kOutside : Place::kTop;
    return true;
  }

  bool key(std::string& value) override {
    if (place_ == Place::kTop) {
      name_ = value;
      field_.clear();
      if (entries.contains(name_) || (name_ == "__metadata__" && std::exchange(metadata_, true))) {
        return Fail("a second entry of this name");
      }
    } else if (place_ == Place::kEntry) {
      field_ = value;
      if (field_ != "dtype" && field_ != "shape" && field_ != "data_offsets") {
        return Fail("an unknown field");
      }
      if (std::find(seen_.begin(), seen_.end(), field_) != seen_.end()) {
        return Fail("this field twice");
      }
      seen_.push_back(field_);
    }
    return true;
  }

  bool start_array(size_t) override {
    if (place_ != Place::kEntry || field_ == "dtype") return Fail("a list");
    list_ = field_ == "shape" ? &entry_.shape : &offsets_;
    place_ = Place::kList;
    return true;
  }

  bool end_array() override {
    place_ = Place::kEntry;
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::json::exception& exception) override {
    error = absl::StrCat("is not valid JSON at byte ", position, ": ", exception.what());
    return false;
  }

 private:
  enum class Place { kOutside, kTop, kMetadata, kEntry, kList };

  bool Fail(absl::string_view what) {
    error = absl::StrCat("holds ", what);
    if (!name_.empty()) absl::StrAppend(&error, " at \"", name_, "\"");
    if (!field_.empty()) absl::StrAppend(&error, ", \"", field_, "\"");
    return false;
  }

  Place place_ = Place::kOutside;
  bool metadata_ = false;
  std::string name_;
  std::string field_;
  HeaderEntry entry_;
  std::vector<std::string> seen_;
  std::vector<int64_t> offsets_;
  std::vector<int64_t>* list_ = nullptr;
};

/// Bytes of a tensor of this shape; nothing where that overflows.
std::optional<uint64_t> BytesOf(const HeaderEntry& entry) {
  uint64_t bytes = DTypeBytes(entry.dtype);
  for (const int64_t size : entry.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) return std::nullopt;
  }
  return bytes;
}

/// Spans must follow one another from 0 to `data_bytes`: neither overlaps nor gaps.
absl::Status CheckCoverage(const std::map<std::string, HeaderEntry, std::less<>>& entries,
                           uint64_t data_bytes) {
  std::vector<std::pair<std::pair<uint64_t, uint64_t>, const std::string*>> spans;
  spans.reserve(entries.size());
  for (const auto& [name, entry] : entries) spans.push_back({{entry.begin, entry.end}, &name});
  std::sort(spans.begin(), spans.end());
  uint64_t covered = 0;
  for (const auto& [span, name] : spans) {
    if (span.first != covered) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", *name, "\" begins at byte ", span.first, ", ",
                       span.first < covered ? "inside" : "not at the end of",
                       " the tensor before it, which ends at ", covered));
    }
    covered = span.second;
  }
  if (covered == data_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the tensors take ", covered,
                                                 " bytes, the file has ", data_bytes, " for them",
                                                 covered > data_bytes ? ": it is truncated" : ""));
}

}  // namespace

std::string_view DTypeName(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].name; }

size_t DTypeBytes(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].bytes; }

absl::StatusOr<std::map<std::string, HeaderEntry, std::less<>>> ParseSafetensorsHeader(
    std::string_view json, uint64_t data_bytes) {
  if (json.empty() || json.front() != '{') {
    return absl::InvalidArgumentError("the header is not valid JSON: it does not begin with '{'");
  }
  if (absl::Status status = CheckHasNoNul(json); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("the header is ", status.message()));
  }
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(json, &reader)) {
    return absl::InvalidArgumentError(absl::StrCat("the header ", reader.error));
  }
  for (const auto& [name, entry] : reader.entries) {
    const std::optional<uint64_t> bytes = BytesOf(entry);
    if (!bytes || entry.end < entry.begin || entry.end - entry.begin != *bytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor \"", name, "\" has the span [", entry.begin, ", ", entry.end, "), but ",
          bytes ? absl::StrCat("its shape takes ", *bytes, " bytes") : "its shape overflows"));
    }
  }
  if (absl::Status status = CheckCoverage(reader.entries, data_bytes); !status.ok()) return status;
  return std::move(reader.entries);
}

}  // namespace ziggurat
