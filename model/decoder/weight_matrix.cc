#include "model/decoder/weight_matrix.h"

#include <new>

namespace ziggurat {
namespace {

constexpr std::align_val_t kLine{64};

}  // namespace

WeightMatrix::WeightMatrix(int rows, int columns, ElementType element)
    : rows_(rows),
      columns_(columns),
      element_(element),
      data_(static_cast<std::byte*>(::operator new(bytes(), kLine)),
            [](std::byte* p) { ::operator delete(p, kLine); }) {}

}  // namespace ziggurat
