// Oniguruma's patterns, run by PCRE2. What is expected is what Hugging Face's tokenizers find.
#include "model/tokenizer/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ziggurat {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

struct Example {
  std::string pattern;
  std::string text;
  std::vector<std::string> matches;
};

void ExpectMatches(const std::vector<Example>& examples) {
  for (const Example& example : examples) {
    const absl::StatusOr<Regex> regex = Regex::Compile(example.pattern);
    ASSERT_TRUE(regex.ok()) << regex.status();
    std::vector<ByteRange> ranges;
    ASSERT_TRUE(regex->FindAll(example.text, &ranges).ok());
    std::vector<std::string> matches;
    for (const ByteRange& range : ranges) {
      matches.push_back(example.text.substr(range.begin, range.end - range.begin));
    }
    EXPECT_THAT(matches, ElementsAreArray(example.matches))
        << "'" << example.pattern << "' in '" << example.text << "'";
  }
}

TEST(Regex, PosixClassesHaveOnigurumasMembers) {
  ExpectMatches({
      {"[[:alpha:]]", "aⅧ\u0345 1", {"a", "Ⅷ", "\u0345"}},
      {"[[:alnum:]]+", "a1٣ ½", {"a1٣"}},
      {"[[:punct:]]", "€×!a", {"€", "×", "!"}},
      {"[[:word:]]+", "e\u0301² a_1", {"e\u0301", "a_1"}},
      {"[[:digit:]]", "1٣½", {"1", "٣"}},
      {"[[:space:]]", "a\u180e\u00a0", {"\u00a0"}},
      {"[[:^alpha:]]", "aⅧ1", {"1"}},
      {"[^[:alpha:]_]", "aⅧ_1", {"1"}},
  });
}

TEST(Regex, BordersOfWordsAreThoseOfOniguruma) {
  ExpectMatches({
      {"\\bक\\B", "कि", {"क"}},
      {"\\bfoo\\b", "foo foo\u0301 foo²", {"foo"}},
      {"\\w+", "½ x½y a_b e\u0301", {"½", "x½y", "a_b", "e\u0301"}},
      {"\\W", "½ a", {" "}},
      {"[\\w]+", "½ x½y", {"x", "y"}},
  });
}

TEST(Regex, PropertiesAreFoundByAnySpellingAndAreThoseOfTheScript) {
  ExpectMatches({
      {"\\p{Han}", "漢、", {"漢"}},
      {"\\p{han}", "漢、", {"漢"}},
      {"\\p{Hani}", "漢、", {"漢"}},
      {"\\p{Telugu}", "।అ", {"అ"}},
      {"\\p{lu}", "aA", {"A"}},
      {"\\p{^L}", "a1", {"1"}},
      {"\\P{^L}", "a1", {"a"}},
      {"\\p{Alnum}", "a1½", {"a", "1"}},
      {"\\P{Alnum}", "a1½", {"½"}},
      {"\\p{Punct}", "!^", {"!"}},
  });
}

TEST(Regex, EscapesAndOptionsMeanWhatOnigurumaMeans) {
  ExpectMatches({
      {"\\v", "\n\v", {"\v"}},
      {"[\\v]", "\n\v", {"\v"}},
      {"\\h+", "afg09\t", {"af", "09"}},
      {"\\x{e9}\\u00e9", "éé", {"éé"}},
      {".", "\n\r", {"\r"}},
      {"(?m:.)", "\n\r", {"\n", "\r"}},
      {"(?m).", "\n", {"\n"}},
      {"(?-m:.)", "\n", {}},
      {"(?i)ab|cd", "AB Cd", {"AB", "Cd"}},
      {"(?i:'s|'re)", "'S 'ſ 'rE", {"'S", "'ſ", "'rE"}},
  });
}

TEST(Regex, RepetitionsMeanWhatOnigurumaMeans) {
  ExpectMatches({
      {"a{,3}b", "aaaab b", {"aaab", "b"}},
      {"a{1,2}+a", "aaaaa", {"aaaaa"}},
      {"xa{2}?", "x xaa", {"x", "xaa"}},
      {"(?:ba?){2}+", "babbba", {"babbba"}},
      {"a{1,2}?", "aa", {"a", "a"}},
      {"a++a", "aaa", {}},
      {"a{x", "a{x", {"a{x"}},
      {"a{ 1,2}", "a{ 1,2}", {"a{ 1,2}"}},
  });
}

TEST(Regex, MembersOfClassesStandForThemselves) {
  ExpectMatches({
      {"[]a]", "a]b", {"a", "]"}},
      {"[^]a]", "a]b", {"b"}},
      {"[-a]", "a-b", {"a", "-"}},
      {"[a-c-]", "b-d", {"b", "-"}},
      {"[\\w-]+", "a-b c", {"a-b", "c"}},
      {"[!-/:-~]", "a!1", {"a", "!"}},
      {"[\\b]", "\bb", {"\b"}},
      {"[.$|(){}]", "a.|{", {".", "|", "{"}},
  });
}

TEST(Regex, AClassInsideAClassAddsItsMembers) {
  ExpectMatches({
      {"[a[b-d]x]+", "abcdx-[]", {"abcdx"}},
      {"[[a][b[c]]]", "abc[", {"a", "b", "c"}},
      {"[[]a]]", "a]b", {"a", "]"}},
      // Of BLOOM and of Viking.
      {" ?[^(\\s|[.,!?…。，、।۔،])]+",
       "Hello (big) world… it's",
       {"Hello", "big", " world", " it's"}},
  });
}

TEST(Regex, ThePatternsOfWellKnownModelsAreRead) {
  const std::string contractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
  const std::string rest = "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  const std::string text = "It'S  1234 naïve 漢字!\n";
  ExpectMatches({
      {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
       text,
       {"It", "'", "S", " ", " 1234", " naïve", " 漢字", "!", "\n"}},
      {contractions + "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" +
           rest,
       text,
       {"It", "'S", " ", " ", "123", "4", " naïve", " 漢字", "!\n"}},
      {contractions + "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" +
           rest,
       text,
       {"It", "'S", " ", " ", "1", "2", "3", "4", " naïve", " 漢字", "!\n"}},
      {"[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+" +
           contractions + "?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+" +
           "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*" + contractions +
           "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" + rest,
       text,
       {"It'S", " ", " ", "123", "4", " naïve", " 漢字", "!\n"}},
      {"\\p{N}{1,3}", "1234", {"123", "4"}},
      {"[一-龥\u3040-ゟ゠-ヿ]+", "漢字かなab", {"漢字かな"}},
      {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}"
       "\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" +
           rest,
       "it's_a 漢字!\n",
       {"it", "'s", "_a", " 漢字", "!\n"}},
  });
}

TEST(Regex, WhatIsNotKnownToMeanTheSameIsRefusedByName) {
  const std::pair<const char*, const char*> refused[] = {
      {"[a[^b]]", "a negated class inside a class"},
      {"(?i:[a[b]])", "a class inside a class without regard to case"},
      {"[a[b]", "a class that does not end"},
      {"[[a-c]-x]", "a range that begins in a class"},
      {"[[[[[[[[[[[[[[[[[[a]]]]]]]]]]]]]]]]]]", "classes that lie too deep"},
      {"[[:graph:]]", "'[:graph:]'"},
      {"[a&&b]", "the intersection of classes"},
      {"[\\W]", "\\W"},
      {"[--/]", "'--'"},
      {"[a-\\d]", "a range that ends in a class"},
      {"[\\d-x]", "a range that begins in a class"},
      {"[ab", "a class that does not end"},
      {"\\pL", "'\\p' without braces"},
      {"\\p{Nope}", "the property 'Nope'"},
      {"\\p{Word}", "the property 'Word'"},
      {"(?i:ss)", "'ss' without regard to case"},
      {"(?i:Last)", "'st' without regard to case"},
      {"(?i:é)", "beyond ASCII without regard to case"},
      {"(?i:[ß])", "beyond ASCII without regard to case"},
      {"(?i:[\\p{L}])", "without regard to case"},
      {"(?i:\\p{L})", "a property without regard to case"},
      {"(?i:[^a])", "a negated class without regard to case"},
      {"a(?i)b|c", "an option in the middle of a branch"},
      {"(?x: a )", "'(?x:'"},
      {"(?x", "'(?x'"},
      {"(?<n>a)", "'(?<n'"},
      {"(*FAIL)", "'(*'"},
      {"a**", "a repetition of a repetition"},
      {"(a)\\1", "'\\1'"},
      {"\\x", "'\\x'"},
      {"a\\x", "'\\x'"},
      {"\\x4", "'\\x4'"},
      {"\\x{", "'\\x{'"},
      {"\\u", "'\\u'"},
      {"\\u00e", "'\\u00e'"},
      {"\\xE9", "'\\xE9'"},
      {"\\x{110000}", "'\\x{110000}'"},
      {"\\x{41", "'\\x{41'"},
      {"\\ud800", "'\\ud800'"},
      {"\\R", "'\\R'"},
      {"\\Ga", "'\\G'"},
      {"\\Qa\\E", "'\\Q'"},
      {"a\\", "a backslash at its end"},
  };
  for (const auto& [pattern, what] : refused) {
    const absl::Status status = Regex::Compile(pattern).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << pattern << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  }
}

}  // namespace
}  // namespace ziggurat
