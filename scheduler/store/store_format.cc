#include "scheduler/store/store_format.h"

namespace ziggurat {
namespace {

Encoding EncodingOfKind(Quantization::Kind kind) {
  switch (kind) {
    case Quantization::Kind::kInt8:
      return Encoding::kInt8;
    case Quantization::Kind::kFp8:
      return Encoding::kFp8;
    case Quantization::Kind::kInt4:
      return Encoding::kInt4;
    case Quantization::Kind::kInt2:
      return Encoding::kInt2;
  }
  return Encoding::kInt8;
}

}  // namespace

StoreFormat MakeStoreFormat(ElementType element, const std::optional<Quantization>& quantization,
                            bool merged) {
  StoreFormat format;
  format.open = KeyValueFormat(element);
  format.open.merged = merged;
  if (!quantization) return format;
  CacheFormat coded = format.open;
  coded.encoding = EncodingOfKind(quantization->kind);
  if (IsPerToken(coded.encoding)) {
    format.open = coded;
    return format;
  }
  coded.group = static_cast<uint16_t>(quantization->group);
  format.coded = coded;
  format.residual = quantization->residual;
  return format;
}

}  // namespace ziggurat
