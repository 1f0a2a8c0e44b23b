#include "server/cli/eval/judge.h"

#include <algorithm>

namespace ziggurat::eval {
namespace {

bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

std::string_view Strip(std::string_view text) {
  while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
  return text;
}

std::string Digits(std::string_view text) {
  std::string digits;
  std::copy_if(text.begin(), text.end(), std::back_inserter(digits), IsDigit);
  return digits;
}

void CountLaterDigits(const std::vector<std::string_view>& wanted,
                      const std::vector<std::string_view>& given, bool skip_first,
                      Judgement& judgement) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    const std::string right = Digits(wanted[i]);
    const std::string found = i < given.size() ? Digits(given[i]) : "";
    const bool skip = skip_first && i == 0 && IsDigit(wanted[i].front());
    for (size_t k = skip ? 1 : 0; k < right.size(); ++k) {
      ++judgement.later_digits;
      if (k < found.size() && found[k] == right[k]) ++judgement.later_digits_right;
    }
  }
}

}  // namespace

std::vector<std::string_view> Items(std::string_view answer) {
  std::vector<std::string_view> items;
  for (size_t begin = 0; begin <= answer.size();) {
    const size_t end = std::min(answer.find(',', begin), answer.size());
    const std::string_view item = Strip(answer.substr(begin, end - begin));
    if (!item.empty()) items.push_back(item);
    begin = end + 1;
  }
  return items;
}

Judgement Judge(std::string_view text, std::string_view answer, std::string_view held_back) {
  text = Strip(text);
  held_back = Strip(held_back);
  if (text.substr(0, held_back.size()) != held_back) return JudgeFailure(answer, held_back);
  text = Strip(text.substr(held_back.size()));
  Judgement judgement;
  judgement.exact = text == Strip(answer);
  const std::vector<std::string_view> wanted = Items(answer);
  const std::vector<std::string_view> given = Items(text);
  judgement.items = static_cast<int>(wanted.size());
  for (const std::string_view item : wanted) {
    if (std::find(given.begin(), given.end(), item) != given.end()) ++judgement.items_right;
  }
  CountLaterDigits(wanted, given, held_back.empty(), judgement);
  return judgement;
}

Judgement JudgeFailure(std::string_view answer, std::string_view held_back) {
  Judgement judgement;
  const std::vector<std::string_view> wanted = Items(answer);
  judgement.items = static_cast<int>(wanted.size());
  CountLaterDigits(wanted, {}, Strip(held_back).empty(), judgement);
  return judgement;
}

}  // namespace ziggurat::eval
