// Weights in the host's memory, on their way into a product.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "block_manager/cache_format.h"
#include "model/decoder/aligned_bytes.h"

namespace ziggurat {

/// [rows, columns], row-major and beginning with a cache line. Copies share the weights.
class WeightMatrix {
 public:
  WeightMatrix() = default;
  /// Not initialized. Throws std::bad_alloc.
  WeightMatrix(int rows, int columns, ElementType element)
      : WeightMatrix(rows, columns, element,
                     AllocateAligned(size_t{1} * rows * columns * ElementBytes(element))) {}
  /// In `memory`, of bytes() or more.
  WeightMatrix(int rows, int columns, ElementType element, std::shared_ptr<std::byte[]> memory)
      : rows_(rows), columns_(columns), element_(element), data_(std::move(memory)) {}

  int rows() const { return rows_; }
  int columns() const { return columns_; }
  ElementType element() const { return element_; }
  size_t bytes() const { return size_t{1} * rows_ * columns_ * ElementBytes(element_); }

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }

 private:
  int rows_ = 0;
  int columns_ = 0;
  ElementType element_ = ElementType::kF32;
  std::shared_ptr<std::byte[]> data_;
};

}  // namespace ziggurat
