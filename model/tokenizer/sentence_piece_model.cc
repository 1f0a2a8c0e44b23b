#include "model/tokenizer/sentence_piece_model.h"

#include <sentencepiece_processor.h>

#include <utility>

namespace ziggurat {
namespace {

std::optional<int32_t> IdOrNone(int id) {
  return id < 0 ? std::nullopt : std::optional<int32_t>(id);
}

}  // namespace

struct SentencePieceModel::Library {
  sentencepiece::SentencePieceProcessor processor;
};

SentencePieceModel::SentencePieceModel(std::unique_ptr<Library> library)
    : library_(std::move(library)) {}
SentencePieceModel::~SentencePieceModel() = default;

std::unique_ptr<SentencePieceModel> SentencePieceModel::Load(std::string_view serialized,
                                                             std::string* error) {
  auto library = std::make_unique<Library>();
  const auto status = library->processor.LoadFromSerializedProto(serialized);
  if (!status.ok()) {
    *error = status.ToString();
    return nullptr;
  }
  if (library->processor.GetPieceSize() == 0) {
    *error = "it has no pieces";
    return nullptr;
  }
  return std::unique_ptr<SentencePieceModel>(new SentencePieceModel(std::move(library)));
}

bool SentencePieceModel::Encode(std::string_view text, std::vector<int32_t>* ids,
                                std::string* error) const {
  std::vector<int> text_ids;
  const auto status = library_->processor.Encode(text, &text_ids);
  if (!status.ok()) {
    *error = status.ToString();
    return false;
  }
  ids->insert(ids->end(), text_ids.begin(), text_ids.end());
  return true;
}

int SentencePieceModel::size() const { return library_->processor.GetPieceSize(); }

const std::string& SentencePieceModel::Piece(int id) const {
  return library_->processor.IdToPiece(id);
}

bool SentencePieceModel::IsSpecial(int id) const {
  return library_->processor.IsControl(id) || library_->processor.IsUnknown(id);
}

std::optional<int32_t> SentencePieceModel::bos_id() const {
  return IdOrNone(library_->processor.bos_id());
}
std::optional<int32_t> SentencePieceModel::eos_id() const {
  return IdOrNone(library_->processor.eos_id());
}
std::optional<int32_t> SentencePieceModel::unk_id() const {
  return IdOrNone(library_->processor.unk_id());
}

}  // namespace ziggurat
