#include "model/tokenizer/tokenize_command.h"

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "model/tokenizer/tokenizer.h"

namespace ziggurat {
namespace {

absl::StatusOr<std::vector<int32_t>> ParseIds(const std::string& text) {
  std::vector<int32_t> ids;
  for (const absl::string_view word :
       absl::StrSplit(text, absl::ByAnyChar(" \t\r\n,[]"), absl::SkipEmpty())) {
    int32_t id = 0;
    if (!absl::SimpleAtoi(word, &id)) {
      return absl::InvalidArgumentError(absl::StrCat("'", word, "' is no token id"));
    }
    ids.push_back(id);
  }
  return ids;
}

absl::Status Decode(const Tokenizer& tokenizer, const TokenizeCommand& command,
                    const std::string& input, std::ostream& out) {
  const absl::StatusOr<std::vector<int32_t>> ids = ParseIds(input);
  if (!ids.ok()) return ids.status();
  const absl::StatusOr<std::string> text = tokenizer.Decode(*ids, command.skip_special);
  if (!text.ok()) return text.status();
  out << *text;
  return absl::OkStatus();
}

absl::Status Encode(const Tokenizer& tokenizer, const TokenizeCommand& command,
                    const std::string& input, std::ostream& out) {
  const absl::StatusOr<std::vector<int32_t>> ids =
      tokenizer.Encode(input, {command.add_special_tokens, command.parse_special});
  if (!ids.ok()) return ids.status();
  if (!command.show_pieces) {
    out << absl::StrJoin(*ids, " ") << '\n';
    return absl::OkStatus();
  }
  for (const int32_t id : *ids) out << id << '\t' << tokenizer.IdToPiece(id).value_or("") << '\n';
  return absl::OkStatus();
}

}  // namespace

absl::Status RunTokenizeCommand(const TokenizeCommand& command, const std::string& input,
                                std::ostream& out) {
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      Tokenizer::Load(command.tokenizer_dir);
  if (!tokenizer.ok()) return tokenizer.status();
  absl::Status status = command.decode ? Decode(**tokenizer, command, input, out)
                                       : Encode(**tokenizer, command, input, out);
  if (!status.ok()) return status;
  out.flush();
  return out.good() ? absl::OkStatus() : absl::UnavailableError("the output cannot be written");
}

}  // namespace ziggurat
