#include "model/tokenizer/post_processor.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/tokenizer/json_reader.h"
#include "model/tokenizer/vocabulary.h"

namespace ziggurat {
namespace {

constexpr absl::string_view kWhere = "post_processor";
constexpr absl::string_view kSupported =
    "TemplateProcessing, RobertaProcessing, BertProcessing, ByteLevel, Sequence";

/// Appends the ids that the special token called `name` stands for.
absl::Status AppendSpecialToken(const nlohmann::json& component, const std::string& name,
                                std::vector<int32_t>* ids) {
  const nlohmann::json& list = Member(Member(Member(component, "special_tokens"), name), "ids");
  if (!list.is_array()) {
    return absl::InvalidArgumentError(absl::StrCat("TemplateProcessing uses the special token '",
                                                   name, "' but has no \"ids\" for it"));
  }
  for (const nlohmann::json& id : list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > Vocabulary::kMaxTokenId) {
      return absl::InvalidArgumentError(absl::StrCat(
          "TemplateProcessing has an id that is none for the special token '", name, "'"));
    }
    ids->push_back(id.get<int32_t>());
  }
  return absl::OkStatus();
}

absl::StatusOr<PostProcessor> ParseTemplate(const nlohmann::json& component) {
  const nlohmann::json& parts = Member(component, "single");
  if (!parts.is_array()) {
    return absl::InvalidArgumentError("TemplateProcessing has no list \"single\"");
  }
  PostProcessor processor;
  int texts = 0;
  for (const nlohmann::json& part : parts) {
    if (Member(part, "Sequence").is_object()) {
      ++texts;
      continue;
    }
    const absl::StatusOr<std::string> name =
        StringMember(Member(part, "SpecialToken"), "id", "", "SpecialToken");
    if (!name.ok()) return name.status();
    if (name->empty()) {
      return absl::InvalidArgumentError(
          "a part of \"single\" of TemplateProcessing is neither a Sequence nor a SpecialToken");
    }
    std::vector<int32_t>* ids = texts == 0 ? &processor.prefix_ids : &processor.suffix_ids;
    if (absl::Status status = AppendSpecialToken(component, *name, ids); !status.ok()) {
      return status;
    }
  }
  if (texts != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"single\" of TemplateProcessing must have the text once, it has it ", texts, " times"));
  }
  return processor;
}

/// RobertaProcessing and BertProcessing: "cls" before the text and "sep" behind it, each a token
/// and its id.
absl::StatusOr<PostProcessor> ParseClsSep(const nlohmann::json& component, absl::string_view type) {
  PostProcessor processor;
  for (const auto& [key, ids] :
       {std::pair("cls", &processor.prefix_ids), std::pair("sep", &processor.suffix_ids)}) {
    const nlohmann::json& token = Member(component, key);
    if (!token.is_array() || token.size() != 2 || !token[0].is_string() ||
        !token[1].is_number_unsigned() || token[1].get<uint64_t>() > Vocabulary::kMaxTokenId) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", key, "\" of ", type, " must be a token and its id"));
    }
    ids->push_back(token[1].get<int32_t>());
  }
  return processor;
}

absl::Status Append(const nlohmann::json& component, int depth, PostProcessor* all);

absl::Status AppendSequence(const nlohmann::json& component, int depth, PostProcessor* all) {
  if (depth >= kMaxComponentDepth) {
    return absl::InvalidArgumentError("post_processors of type Sequence lie too deep");
  }
  const nlohmann::json& list = Member(component, "processors");
  if (!list.is_array()) {
    return absl::InvalidArgumentError("the post_processor Sequence has no list \"processors\"");
  }
  for (const nlohmann::json& element : list) {
    if (absl::Status status = Append(element, depth + 1, all); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status AppendTokens(absl::StatusOr<PostProcessor> processor, absl::string_view type,
                          PostProcessor* all) {
  if (!processor.ok()) return processor.status();
  // The original takes what the first one has added for texts: two are a pair to it, more crash it.
  if (!all->prefix_ids.empty() || !all->suffix_ids.empty()) {
    return absl::UnimplementedError(absl::StrCat(
        "the post_processor '", type, "' is not supported behind another that adds tokens"));
  }
  *all = *std::move(processor);
  return absl::OkStatus();
}

absl::Status Append(const nlohmann::json& component, int depth, PostProcessor* all) {
  const absl::StatusOr<std::string> type = ComponentType(component, kWhere);
  if (!type.ok()) return type.status();
  if (*type == "TemplateProcessing") return AppendTokens(ParseTemplate(component), *type, all);
  if (*type == "RobertaProcessing" || *type == "BertProcessing") {
    return AppendTokens(ParseClsSep(component, *type), *type, all);
  }
  if (*type == "ByteLevel") return absl::OkStatus();  // it concerns offsets only
  if (*type == "Sequence") return AppendSequence(component, depth, all);
  return UnsupportedComponent(kWhere, *type, kSupported);
}

}  // namespace

absl::StatusOr<PostProcessor> ParsePostProcessor(const nlohmann::json& component) {
  PostProcessor processor;
  if (component.is_null()) return processor;
  if (absl::Status status = Append(component, 0, &processor); !status.ok()) return status;
  return processor;
}

}  // namespace ziggurat
