#include "model/checkpoint/safetensors.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/checkpoint/safetensors_header.h"
#include "model/input_file.h"

namespace ziggurat {

namespace {

constexpr size_t kLengthBytes = 8;
// The limit of the format's own implementation.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

absl::Status Corrupt(const std::filesystem::path& path, absl::string_view reason) {
  return absl::DataLossError(absl::StrCat(path.string(), ": ", reason));
}

struct Mapping {
  const std::byte* data = nullptr;
  size_t bytes = 0;
};

absl::StatusOr<Mapping> Map(const std::filesystem::path& path) {
  const absl::StatusOr<InputFile> file = InputFile::Open(path);
  if (!file.ok()) return file.status();
  const size_t bytes = file->bytes();
  if (bytes <= kLengthBytes) {
    return Corrupt(path, absl::StrCat("truncated: it has only ", bytes, " bytes"));
  }
  void* const data = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file->descriptor(), 0);
  if (data == MAP_FAILED) {
    return Corrupt(path, absl::StrCat("cannot be mapped: ", std::strerror(errno)));
  }
  return Mapping{static_cast<const std::byte*>(data), bytes};
}

}  // namespace

int64_t TensorView::num_elements() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

std::string TensorView::ShapeString() const {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

TensorView TensorView::Rows(int64_t first, int64_t count) const {
  if (shape.empty() || first < 0 || count < 0 || first > shape[0] || count > shape[0] - first) {
    std::fprintf(stderr, "TensorView::Rows: [%lld, +%lld) of %s\n", static_cast<long long>(first),
                 static_cast<long long>(count), ShapeString().c_str());
    std::abort();
  }
  TensorView rows = *this;
  rows.shape[0] = count;
  const size_t row_bytes = shape[0] == 0 ? 0 : bytes / static_cast<size_t>(shape[0]);
  rows.data = data + static_cast<size_t>(first) * row_bytes;
  rows.bytes = static_cast<size_t>(count) * row_bytes;
  return rows;
}

void TensorView::ReadAhead() const {
  static const auto page_bytes = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t before = reinterpret_cast<uintptr_t>(data) % page_bytes;
  ::madvise(const_cast<std::byte*>(data - before), bytes + before, MADV_WILLNEED);  // a wish
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::filesystem::path& path) {
  absl::StatusOr<Mapping> mapping = Map(path);
  if (!mapping.ok()) return mapping.status();
  SafetensorsFile file;  // from here on the mapping has an owner
  file.mapping_ = mapping->data;
  file.mapping_bytes_ = mapping->bytes;
  file.path_ = path;

  uint64_t header_bytes = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    header_bytes |= std::to_integer<uint64_t>(file.mapping_[i]) << (8 * i);
  }
  if (header_bytes > kMaxHeaderBytes) {
    return Corrupt(path, absl::StrCat("not a safetensors file: its header would have ",
                                      header_bytes, " bytes"));
  }
  if (header_bytes > file.mapping_bytes_ - kLengthBytes) {
    return Corrupt(path, absl::StrCat("truncated: its header has ", header_bytes,
                                      " bytes, the file ", file.mapping_bytes_));
  }
  const std::byte* data = file.mapping_ + kLengthBytes + header_bytes;
  absl::StatusOr<std::map<std::string, HeaderEntry, std::less<>>> entries = ParseSafetensorsHeader(
      std::string_view(reinterpret_cast<const char*>(file.mapping_) + kLengthBytes, header_bytes),
      file.mapping_bytes_ - kLengthBytes - header_bytes);
  if (!entries.ok()) return Corrupt(path, entries.status().message());
  for (auto& [name, entry] : *entries) {
    file.tensors_[name] = TensorView{entry.dtype, std::move(entry.shape), data + entry.begin,
                                     static_cast<size_t>(entry.end - entry.begin)};
  }
  return file;
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      mapping_(std::exchange(other.mapping_, nullptr)),
      mapping_bytes_(std::exchange(other.mapping_bytes_, 0)),
      tensors_(std::move(other.tensors_)) {}

SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  std::swap(tensors_, other.tensors_);
  return *this;
}

SafetensorsFile::~SafetensorsFile() {
  if (mapping_ != nullptr) ::munmap(const_cast<std::byte*>(mapping_), mapping_bytes_);
}

}  // namespace ziggurat
