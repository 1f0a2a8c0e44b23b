#include "model/decoder/linear.h"

#ifndef ZIGGURAT_HAS_ONEDNN
#include "model/decoder/linear_torch.h"
#endif

namespace ziggurat {

#ifdef ZIGGURAT_HAS_ONEDNN

std::unique_ptr<LinearFactory> MakeLinearFactory(ElementType element) {
  if (element == ElementType::kBf16 && ArePackedLinearsBest()) return MakePackedLinearFactory();
  return MakeOneDnnLinearFactory();
}

bool PacksWeights(ElementType /*element*/) { return true; }

#else

std::unique_ptr<LinearFactory> MakeLinearFactory(ElementType element) {
  if (element == ElementType::kBf16) return MakePackedLinearFactory();
  return MakeTorchLinearFactory();
}

bool PacksWeights(ElementType element) { return element == ElementType::kBf16; }

#endif

}  // namespace ziggurat
