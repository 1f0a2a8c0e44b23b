#include "model/tokenizer/decoder.h"

#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/tokenizer/byte_level.h"
#include "model/tokenizer/json_reader.h"
#include "model/tokenizer/metaspace.h"
#include "model/tokenizer/replacement.h"
#include "model/tokenizer/utf8.h"

namespace ziggurat {
namespace {

constexpr absl::string_view kWhere = "decoder";
constexpr absl::string_view kSupported =
    "ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, Sequence";

/// Characters of GPT-2's byte alphabet -> text. A piece with any other character is text already.
class ByteLevelStage : public DecoderStage {
 public:
  std::unique_ptr<DecoderStage> New() const override { return std::make_unique<ByteLevelStage>(); }

  absl::Status Push(std::string piece, std::vector<std::string>* out) override {
    const std::optional<std::string> bytes = BytesOfByteLevel(piece);
    std::string text;
    repairer_.Push(bytes.has_value() ? *bytes : piece, &text);
    if (!text.empty()) out->push_back(std::move(text));
    return absl::OkStatus();
  }

  void Finish(std::vector<std::string>* out) override {
    std::string text;
    repairer_.Finish(&text);
    if (!text.empty()) out->push_back(std::move(text));
  }

 private:
  Utf8Repairer repairer_{Utf8Replacement::kPerSubpart};
};

/// Pieces <0x00>..<0xFF> -> text. Where a run of bytes is no UTF-8, its valid characters are kept
/// and each other byte becomes U+FFFD, as in SentencePiece. (Hugging Face's decoder gives up the
/// whole run, so that a character could not be shown before the run has ended.)
class ByteFallbackStage : public DecoderStage {
 public:
  std::unique_ptr<DecoderStage> New() const override {
    return std::make_unique<ByteFallbackStage>();
  }

  absl::Status Push(std::string piece, std::vector<std::string>* out) override {
    std::string text;
    if (const std::optional<char> byte = ByteOf(piece)) {
      repairer_.Push(std::string_view(&*byte, 1), &text);
      if (!text.empty()) out->push_back(std::move(text));
      return absl::OkStatus();
    }
    Finish(out);
    out->push_back(std::move(piece));
    return absl::OkStatus();
  }

  void Finish(std::vector<std::string>* out) override {
    std::string text;
    repairer_.Finish(&text);
    if (!text.empty()) out->push_back(std::move(text));
  }

 private:
  static std::optional<char> ByteOf(std::string_view piece) {
    if (piece.size() != 6 || piece.substr(0, 3) != "<0x" || piece[5] != '>') return std::nullopt;
    unsigned char byte = 0;
    const auto [end, error] = std::from_chars(piece.data() + 3, piece.data() + 5, byte, 16);
    if (error != std::errc() || end != piece.data() + 5) return std::nullopt;
    return static_cast<char>(byte);
  }

  Utf8Repairer repairer_{Utf8Replacement::kPerByte};
};

class ReplaceStage : public DecoderStage {
 public:
  explicit ReplaceStage(std::shared_ptr<const Replacement> replacement)
      : replacement_(std::move(replacement)) {}

  std::unique_ptr<DecoderStage> New() const override {
    return std::make_unique<ReplaceStage>(replacement_);
  }

  absl::Status Push(std::string piece, std::vector<std::string>* out) override {
    if (absl::Status status = replacement_->Apply(&piece); !status.ok()) return status;
    out->push_back(std::move(piece));
    return absl::OkStatus();
  }

 private:
  std::shared_ptr<const Replacement> replacement_;
};

/// How many times a character is taken away from the beginning and the end.
struct StripOptions {
  std::string character;
  int64_t start = 0;
  int64_t stop = 0;
};

std::string_view StripStart(std::string_view text, const StripOptions& options, int64_t* left) {
  while (*left > 0 && text.substr(0, options.character.size()) == options.character) {
    text.remove_prefix(options.character.size());
    --*left;
  }
  return text;
}

/// Strips each piece for itself.
class StripPieceStage : public DecoderStage {
 public:
  explicit StripPieceStage(StripOptions options) : options_(std::move(options)) {}

  std::unique_ptr<DecoderStage> New() const override {
    return std::make_unique<StripPieceStage>(options_);
  }

  absl::Status Push(std::string piece, std::vector<std::string>* out) override {
    int64_t left = options_.start;
    std::string_view text = StripStart(piece, options_, &left);
    const size_t size = options_.character.size();
    for (int64_t i = 0; i < options_.stop && text.size() >= size; ++i) {
      if (text.substr(text.size() - size) != options_.character) break;
      text.remove_suffix(size);
    }
    out->emplace_back(text);
    return absl::OkStatus();
  }

 private:
  StripOptions options_;
};

/// Strips the whole text, of which pieces are fragments (behind Fuse or ByteLevel).
class StripTextStage : public DecoderStage {
 public:
  explicit StripTextStage(StripOptions options)
      : options_(std::move(options)), start_left_(options_.start) {}

  std::unique_ptr<DecoderStage> New() const override {
    return std::make_unique<StripTextStage>(options_);
  }

  absl::Status Push(std::string piece, std::vector<std::string>* out) override {
    std::string_view text = piece;
    if (start_left_ > 0) {
      text = StripStart(text, options_, &start_left_);
      if (!text.empty()) start_left_ = 0;
    }
    held_.append(text);
    // The last `stop` characters may prove to be the end.
    const size_t size = options_.character.size();
    size_t kept = held_.size();
    for (int64_t i = 0; i < options_.stop && kept >= size; ++i) {
      if (held_.compare(kept - size, size, options_.character) != 0) break;
      kept -= size;
    }
    out->push_back(held_.substr(0, kept));
    held_.erase(0, kept);
    return absl::OkStatus();
  }

 private:
  StripOptions options_;
  int64_t start_left_;
  std::string held_;  ///< nothing but the character, at most `stop` times
};

class MetaspaceStage : public DecoderStage {
 public:
  explicit MetaspaceStage(Metaspace metaspace) : metaspace_(std::move(metaspace)) {}

  std::unique_ptr<DecoderStage> New() const override {
    return std::make_unique<MetaspaceStage>(metaspace_);
  }

  absl::Status Push(std::string piece, std::vector<std::string>* out) override {
    const bool drops = is_first_ && metaspace_.prepend != Metaspace::Prepend::kNever;
    is_first_ = false;
    std::string text;
    for (size_t position = 0; position < piece.size();) {
      const size_t begin = position;
      ReadUtf8(piece, &position);
      const std::string_view character = std::string_view(piece).substr(begin, position - begin);
      if (character != metaspace_.replacement) {
        text.append(character);
      } else if (!drops) {
        text.push_back(' ');
      }
    }
    out->push_back(std::move(text));
    return absl::OkStatus();
  }

 private:
  Metaspace metaspace_;
  bool is_first_ = true;
};

/// Without a decoder, pieces are joined by spaces.
class JoinStage : public DecoderStage {
 public:
  std::unique_ptr<DecoderStage> New() const override { return std::make_unique<JoinStage>(); }

  absl::Status Push(std::string piece, std::vector<std::string>* out) override {
    out->push_back(is_first_ ? std::move(piece) : absl::StrCat(" ", piece));
    is_first_ = false;
    return absl::OkStatus();
  }

 private:
  bool is_first_ = true;
};

absl::StatusOr<StripOptions> ParseStrip(const nlohmann::json& component) {
  StripOptions options;
  absl::StatusOr<std::string> character = StringMember(component, "content", " ", "Strip");
  if (!character.ok()) return character.status();
  options.character = *std::move(character);
  for (const auto& [key, target] :
       {std::pair<absl::string_view, int64_t*>{"start", &options.start}, {"stop", &options.stop}}) {
    const absl::StatusOr<int64_t> value = IntegerMember(component, key, 0, "Strip");
    if (!value.ok()) return value.status();
    *target = *value;
  }
  if (options.character.empty() || options.start < 0 || options.stop < 0) {
    return absl::InvalidArgumentError(
        "the decoder Strip needs a \"content\" and a \"start\" and \"stop\" that are not negative");
  }
  return options;
}

/// Whether a Replace takes away the space at the beginning of a text, as llm-jp's files write it.
bool StripsFirstSpace(const nlohmann::json& component) {
  const nlohmann::json& regex = Member(Member(component, "pattern"), "Regex");
  const absl::StatusOr<std::string> content = StringMember(component, "content", "", "Replace");
  return (regex == "(?<!\\n)^ " || regex == "\\A ") && content.ok() && content->empty();
}

/// Collects the stages of a decoder and of those inside it.
class ChainParser {
 public:
  absl::Status Parse(const nlohmann::json& component, int depth) {
    const absl::StatusOr<std::string> type = ComponentType(component, kWhere);
    if (!type.ok()) return type.status();
    if (*type == "Sequence") return ParseSequence(component, depth);
    if (*type == "Replace") return ParseReplace(component);
    if (*type == "Metaspace") return AddMetaspace(component);
    if (*type == "Strip") {
      const absl::StatusOr<StripOptions> options = ParseStrip(component);
      if (!options.ok()) return options.status();
      if (has_loose_bytes_) return BehindBytes("Strip");
      is_fused_ ? Add<StripTextStage>(*options) : Add<StripPieceStage>(*options);
      return absl::OkStatus();
    }
    if (*type == "Fuse") {
      is_fused_ = true;
      has_loose_bytes_ = false;
      return absl::OkStatus();
    }
    if (*type == "ByteLevel" || *type == "ByteFallback") {
      if (is_fused_) return BehindFuse(*type);
      if (has_loose_bytes_) return BehindBytes(*type);
      if (*type == "ByteFallback") {
        Add<ByteFallbackStage>();
        has_loose_bytes_ = true;
      } else {
        Add<ByteLevelStage>();
        is_fused_ = true;
        has_loose_bytes_ = false;
      }
      return absl::OkStatus();
    }
    return UnsupportedComponent(kWhere, *type, kSupported);
  }

  std::vector<std::unique_ptr<DecoderStage>> TakeStages() { return std::move(stages_); }

 private:
  template <typename Stage, typename... Arguments>
  void Add(Arguments&&... arguments) {
    stages_.push_back(std::make_unique<Stage>(std::forward<Arguments>(arguments)...));
  }

  static absl::Status BehindFuse(absl::string_view type) {
    return absl::UnimplementedError(
        absl::StrCat("the decoder '", type, "' is not supported behind Fuse or ByteLevel"));
  }

  // There a run of bytes is one piece, which we give on character by character.
  static absl::Status BehindBytes(absl::string_view type) {
    return absl::UnimplementedError(
        absl::StrCat("the decoder '", type,
                     "' is supported behind ByteFallback only where Fuse stands between"));
  }

  absl::Status ParseSequence(const nlohmann::json& component, int depth) {
    if (depth >= kMaxComponentDepth) {
      return absl::InvalidArgumentError("decoders of type Sequence lie too deep in each other");
    }
    const nlohmann::json& list = Member(component, "decoders");
    if (!list.is_array()) {
      return absl::InvalidArgumentError("the decoder Sequence has no list \"decoders\"");
    }
    for (const nlohmann::json& element : list) {
      if (absl::Status status = Parse(element, depth + 1); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status ParseReplace(const nlohmann::json& component) {
    if (is_fused_ && StripsFirstSpace(component)) {
      Add<StripTextStage>(StripOptions{" ", 1, 0});
      return absl::OkStatus();
    }
    absl::StatusOr<Replacement> replacement = Replacement::Parse(component);
    if (!replacement.ok()) return replacement.status();
    // A longer pattern could lie across two fragments of the fused text.
    if (is_fused_ && !replacement->is_single_character()) return BehindFuse("Replace");
    if (has_loose_bytes_ && !replacement->is_single_character()) return BehindBytes("Replace");
    Add<ReplaceStage>(std::make_shared<const Replacement>(*std::move(replacement)));
    return absl::OkStatus();
  }

  absl::Status AddMetaspace(const nlohmann::json& component) {
    if (is_fused_) return BehindFuse("Metaspace");
    if (has_loose_bytes_) return BehindBytes("Metaspace");
    absl::StatusOr<Metaspace> metaspace = ParseMetaspace(component);
    if (!metaspace.ok()) return metaspace.status();
    Add<MetaspaceStage>(*std::move(metaspace));
    return absl::OkStatus();
  }

  std::vector<std::unique_ptr<DecoderStage>> stages_;
  bool is_fused_ = false;         ///< pieces are fragments of one text from here on
  bool has_loose_bytes_ = false;  ///< pieces may be parts of a run of bytes
};

}  // namespace

absl::StatusOr<Decoder> Decoder::Parse(const nlohmann::json& component) {
  Decoder decoder;
  if (component.is_null()) {
    decoder.stages_.push_back(std::make_unique<JoinStage>());
    return decoder;
  }
  ChainParser parser;
  if (absl::Status status = parser.Parse(component, 0); !status.ok()) return status;
  decoder.stages_ = parser.TakeStages();
  return decoder;
}

absl::StatusOr<Decoder> Decoder::SentencePiece(bool falls_back_to_bytes, int64_t strips_spaces) {
  nlohmann::json stages = nlohmann::json::array(
      {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}}});
  if (falls_back_to_bytes) stages.push_back({{"type", "ByteFallback"}});
  stages.push_back({{"type", "Fuse"}});
  if (strips_spaces > 0) {
    stages.push_back({{"type", "Strip"}, {"content", " "}, {"start", strips_spaces}, {"stop", 0}});
  }
  return Parse({{"type", "Sequence"}, {"decoders", std::move(stages)}});
}

DecoderStream Decoder::NewStream() const {
  std::vector<std::unique_ptr<DecoderStage>> stages;
  stages.reserve(stages_.size());
  for (const auto& stage : stages_) stages.push_back(stage->New());
  return DecoderStream(std::move(stages));
}

}  // namespace ziggurat
