#include "model/tokenizer/decoder_stream.h"

#include <utility>

namespace ziggurat {

DecoderStream::DecoderStream(std::vector<std::unique_ptr<DecoderStage>> stages)
    : stages_(std::move(stages)) {}

absl::Status DecoderStream::Run(size_t first, std::vector<std::string> pieces, std::string* text) {
  for (size_t i = first; i < stages_.size() && !pieces.empty(); ++i) {
    std::vector<std::string> next;
    for (std::string& piece : pieces) {
      if (absl::Status status = stages_[i]->Push(std::move(piece), &next); !status.ok()) {
        return status;
      }
    }
    pieces = std::move(next);
  }
  for (const std::string& piece : pieces) text->append(piece);
  return absl::OkStatus();
}

absl::Status DecoderStream::Push(std::string piece, std::string* text) {
  std::vector<std::string> pieces;
  pieces.push_back(std::move(piece));
  return Run(0, std::move(pieces), text);
}

absl::Status DecoderStream::Finish(std::string* text) {
  for (size_t i = 0; i < stages_.size(); ++i) {
    std::vector<std::string> rest;
    stages_[i]->Finish(&rest);
    if (absl::Status status = Run(i + 1, std::move(rest), text); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace ziggurat
