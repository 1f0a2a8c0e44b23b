// `ziggurat tokenize`: text to token ids and back, without a daemon.
#include <iostream>
#include <memory>
#include <string>

#include "model/tokenizer/tokenize_command.h"
#include "server/cli/command.h"
#include "server/cli/failure.h"
#include "server/cli/standard_input.h"

namespace ziggurat {
namespace {

constexpr char kExamples[] = R"(Examples:
  printf 'Hello world' | ziggurat tokenize --tokenizer models/needle-llama
  echo '75 334 293' | ziggurat tokenize --tokenizer models/needle-llama --decode

The text is taken byte for byte, so a line break at its end counts. No token is added to it unless
--bos is given.)";

int Tokenize(const TokenizeCommand& command) {
  const absl::StatusOr<std::string> input = ReadStandardInput();
  if (!input.ok()) return SayFailure("tokenize", input.status());
  const absl::Status status = RunTokenizeCommand(command, *input, std::cout);
  if (status.ok()) return kExitOk;
  const bool is_asked_wrongly = absl::IsInvalidArgument(status) || absl::IsOutOfRange(status);
  return SayFailure("tokenize", status, is_asked_wrongly ? kExitUsage : kExitFailure);
}

}  // namespace

Command AddTokenize(CLI::App& app) {
  CLI::App* tokenize =
      app.add_subcommand("tokenize", "Turn text on stdin into token ids, or ids into text");
  auto command = std::make_shared<TokenizeCommand>();
  command->add_special_tokens = false;
  tokenize
      ->add_option("--tokenizer", command->tokenizer_dir,
                   "Folder of a model, or its tokenizer.json or tokenizer.model")
      ->required()
      ->type_name("DIR");
  CLI::Option* decode = tokenize->add_flag("--decode", command->decode, "Ids on stdin, text out");
  tokenize
      ->add_flag("--bos", command->add_special_tokens,
                 "Add the special tokens that the model expects around a prompt")
      ->excludes(decode);
  tokenize
      ->add_flag_callback(
          "--plain", [command] { command->parse_special = false; },
          "Special tokens written out in the text are ordinary text")
      ->excludes(decode);
  tokenize
      ->add_flag_callback(
          "--special", [command] { command->skip_special = false; }, "Show special tokens")
      ->needs(decode);
  tokenize->add_flag("--pieces", command->show_pieces, "One line for each token: id and piece")
      ->excludes(decode);
  tokenize->footer(kExamples);
  return {tokenize, [command] { return Tokenize(*command); }};
}

}  // namespace ziggurat
