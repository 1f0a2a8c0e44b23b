#include "tests/model/sentence_piece_library.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

namespace ziggurat {

struct SentencePieceLibrary::Impl {
  sentencepiece::SentencePieceProcessor processor;
};

std::string SentencePieceLibrary::Train(const std::string& arguments) {
  std::string serialized;
  const auto status = sentencepiece::SentencePieceTrainer::Train(arguments, nullptr, &serialized);
  return status.ok() ? serialized : "";
}

SentencePieceLibrary::SentencePieceLibrary(const std::string& serialized)
    : impl_(std::make_unique<Impl>()) {
  (void)impl_->processor.LoadFromSerializedProto(serialized);
}
SentencePieceLibrary::~SentencePieceLibrary() = default;

std::vector<int32_t> SentencePieceLibrary::Encode(std::string_view text) const {
  std::vector<int> ids;
  (void)impl_->processor.Encode(text, &ids);
  return {ids.begin(), ids.end()};
}

}  // namespace ziggurat
