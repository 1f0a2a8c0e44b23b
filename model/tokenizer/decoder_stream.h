// A stream of pieces on its way to text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace ziggurat {

/// One step of the way from pieces to text. Holds the state of one stream; not thread-safe.
class DecoderStage {
 public:
  virtual ~DecoderStage() = default;
  /// A stage of the same kind at the beginning of a stream.
  virtual std::unique_ptr<DecoderStage> New() const = 0;
  /// Takes one piece (valid UTF-8) and appends what it yields so far.
  virtual absl::Status Push(std::string piece, std::vector<std::string>* out) = 0;
  /// The stream has ended: appends what was held back.
  virtual void Finish(std::vector<std::string>* /*out*/) {}
};

/// A stream through all stages of a decoder. Not thread-safe.
class DecoderStream {
 public:
  explicit DecoderStream(std::vector<std::unique_ptr<DecoderStage>> stages);

  /// Takes the next piece and appends the text that is certain now.
  absl::Status Push(std::string piece, std::string* text);
  /// Appends the rest. Afterwards the stream must not be used.
  absl::Status Finish(std::string* text);

 private:
  /// Sends `pieces` through the stages from `first` on.
  absl::Status Run(size_t first, std::vector<std::string> pieces, std::string* text);

  std::vector<std::unique_ptr<DecoderStage>> stages_;
};

}  // namespace ziggurat
