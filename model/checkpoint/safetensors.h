// One file of weights in the safetensors format, mapped into memory.
//
// The format: eight bytes N (little endian), N bytes of JSON that give each tensor's dtype, shape
// and span [begin, end) in what follows, then the tensors, row-major, without gaps. The file comes
// from strangers, so nothing in it is believed before it has been checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ziggurat {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBf16,
  // These are known so that a file holding them can be opened; no weight may have them.
  kF64,
  kF8E4M3,
  kF8E5M2,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
};

/// As the format spells it: "F32", "BF16", ...
std::string_view DTypeName(DType dtype);
size_t DTypeBytes(DType dtype);

/// A tensor inside a mapped file. Row-major; valid as long as the file is.
struct TensorView {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;  ///< may be unaligned
  size_t bytes = 0;

  int64_t num_elements() const;
  /// "[128, 64]"
  std::string ShapeString() const;
  /// The rows [first, first + count) along the first dimension, which must hold them.
  TensorView Rows(int64_t first, int64_t count) const;
  /// Asks the system to have the tensor in memory soon, and returns before it is: from a disk,
  /// pages that are only asked for once they are read come several times as slowly.
  void ReadAhead() const;
};

/// A mapped safetensors file. Movable; views stay valid when it is moved. Reading views is safe
/// from any thread. The file must not be truncated while it is mapped: the kernel answers a read
/// behind its new end with SIGBUS.
class SafetensorsFile {
 public:
  /// NOT_FOUND: no such file. DATA_LOSS: the file is truncated or its header is not valid; the
  /// message names the file and the reason.
  static absl::StatusOr<SafetensorsFile> Open(const std::filesystem::path& path);

  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&& other) noexcept;
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;
  ~SafetensorsFile();

  const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  SafetensorsFile() = default;

  std::filesystem::path path_;
  const std::byte* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
  std::map<std::string, TensorView, std::less<>> tensors_;
};

}  // namespace ziggurat
