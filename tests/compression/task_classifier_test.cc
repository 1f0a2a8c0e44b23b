// The task classifier: agreement with its training, accuracy on held-out wording, cost, and safety.
#include "compression/task_classifier.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace ziggurat {
namespace {

constexpr char kDataFolder[] = ZIGGURAT_SOURCE_DIR "/tests/compression/data/";

/// Undoes what training/train_task_classifier.py and data/make_task_prompts.py escape.
std::string Unescape(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      plain += text[i];
      continue;
    }
    const char c = text[++i];
    plain += c == 'n' ? '\n' : c == 't' ? '\t' : c;
  }
  return plain;
}

std::vector<std::string> Fields(const std::string& line, size_t count) {
  std::vector<std::string> fields;
  size_t from = 0;
  while (fields.size() + 1 < count) {
    const size_t tab = line.find('\t', from);
    fields.push_back(line.substr(from, tab - from));
    from = tab + 1;
  }
  fields.push_back(Unescape(line.substr(from)));
  return fields;
}

std::vector<std::vector<std::string>> ReadRows(const std::string& name, size_t fields) {
  std::ifstream file(kDataFolder + name);
  EXPECT_TRUE(file.is_open()) << name;
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(file, line);) {
    rows.push_back(Fields(line, fields));
  }
  return rows;
}

TEST(TaskClassifier, NamesItsTasks) {
  EXPECT_EQ(PromptTaskName(PromptTask::kLocalization), "localization");
  EXPECT_EQ(PromptTaskName(PromptTask::kAggregation), "aggregation");
}

TEST(TaskClassifier, AgreesWithItsTrainingProgram) {
  const auto rows = ReadRows("task_classifier_vectors.tsv", 2);
  ASSERT_GE(rows.size(), 50U);
  for (const auto& row : rows) {
    const double score = std::stod(row[0]);
    const TaskGuess guess = ClassifyTask(row[1]);
    const double aggregation =
        guess.task == PromptTask::kAggregation ? guess.probability : 1 - guess.probability;
    EXPECT_NEAR(aggregation, 1 / (1 + std::exp(-score)), 2e-4) << row[1];
  }
}

struct Tally {
  int right = 0;
  int all = 0;
  void Add(bool is_right) {
    right += is_right ? 1 : 0;
    ++all;
  }
  double Share() const { return static_cast<double>(right) / all; }
};

void Print(const std::string& what, const Tally& tally) {
  std::printf("  %-22s %4d / %4d  %.3f\n", what.c_str(), tally.right, tally.all, tally.Share());
}

TEST(TaskClassifier, IsRightOnHeldOutWording) {
  std::map<std::string, Tally> kinds;
  std::map<std::string, Tally> labels;
  Tally all;
  for (const auto& row : ReadRows("task_prompts.tsv", 3)) {
    const std::string_view guess = PromptTaskName(ClassifyTask(row[2]).task);
    const bool right = guess == row[0];
    kinds[row[0] + " " + row[1]].Add(right);
    labels[row[0]].Add(right);
    all.Add(right);
    if (!right) {
      const std::string end = row[2].substr(row[2].size() - std::min<size_t>(row[2].size(), 100));
      std::printf("  not %s: %s: ...%s\n", row[0].c_str(), row[1].c_str(), end.c_str());
    }
  }
  for (const auto& [kind, tally] : kinds) {
    Print(kind, tally);
  }
  for (const auto& [label, tally] : labels) {
    Print("all " + label, tally);
    EXPECT_GE(tally.Share(), 0.9) << label;
  }
  Print("all", all);
  EXPECT_GE(all.all, 300);
  EXPECT_GE(all.Share(), 0.9);
}

TEST(TaskClassifier, DoesNotLookAtTheMiddle) {
  int long_prompts = 0;
  for (const auto& row : ReadRows("task_prompts.tsv", 3)) {
    const std::string& prompt = row[2];
    if (prompt.size() < kTaskHeadBytes + kTaskTailBytes) {
      continue;
    }
    ++long_prompts;
    std::string longer = prompt;
    longer.insert(kTaskHeadBytes, std::string(100'000, 'x') + " Summarize this? def f(x): {};\n");
    EXPECT_EQ(ClassifyTask(longer).probability, ClassifyTask(prompt).probability);
  }
  EXPECT_GE(long_prompts, 20);
}

TEST(TaskClassifier, IgnoresChatTemplates) {
  const std::string document =
      "The ferry was late again. \"Is it always like this?\" asked the young man. She said it was.";
  const std::pair<std::string, PromptTask> requests[] = {
      {"Who asked about the ferry?", PromptTask::kLocalization},
      {"Summarize the story in two sentences.", PromptTask::kAggregation},
  };
  const std::pair<std::string, std::string> templates[] = {
      {"", ""},
      {"<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"},
      {"<s>[INST] ", " [/INST]"},
      {"<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n",
       "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
      {"### Instruction:\n", "\n\n### Response:\n"},
      {"Human: ", "\n\nAssistant:"},
      {"<start_of_turn>user\n", "<end_of_turn>\n<start_of_turn>model\n"},
  };
  for (const auto& [request, task] : requests) {
    for (const auto& [before, after] : templates) {
      EXPECT_EQ(ClassifyTask(before + document + "\n\n" + request + after).task, task) << before;
      EXPECT_EQ(ClassifyTask(before + request + "\n\n" + document + after).task, task) << before;
    }
  }
}

TEST(TaskClassifier, TakesTheLastRequestOfAConversation) {
  const std::string first = "User: Who wrote the letter?\nAssistant: Nobody knows.\n";
  const std::string second = "User: Summarize the whole text.\nAssistant: A letter arrives.\n";
  EXPECT_EQ(ClassifyTask(first + second + "User: When did the letter arrive?\nAssistant:").task,
            PromptTask::kLocalization);
  EXPECT_EQ(ClassifyTask(second + first + "User: Write a short summary of it.\nAssistant:").task,
            PromptTask::kAggregation);
}

TEST(TaskClassifier, TakesAnyBytes) {
  std::mt19937 random(7);
  std::vector<std::string> prompts = {"",
                                      " ",
                                      "\n",
                                      "?",
                                      std::string(1, '\0'),
                                      "\xE3\x80",
                                      "\xC3",
                                      "a\xF0\x9F\x98",
                                      "[INST]",
                                      "<|",
                                      std::string(5000, '?'),
                                      std::string(5000, '\n'),
                                      std::string(5000, '<'),
                                      std::string(5000, ':'),
                                      std::string(5000, '\xE3'),
                                      std::string(100'000, 'a')};
  for (int i = 0; i < 300; ++i) {
    std::string bytes(random() % 4000, '\0');
    for (char& c : bytes) {
      c = static_cast<char>(i % 2 == 0 ? random() % 256 : "aB .:?>\n`\xE3\x80\x82"[random() % 12]);
    }
    prompts.push_back(std::move(bytes));
  }
  for (const std::string& prompt : prompts) {
    const TaskGuess guess = ClassifyTask(prompt);
    EXPECT_GE(guess.probability, 0.5F);
    EXPECT_LE(guess.probability, 1.0F);
  }
}

TEST(TaskClassifier, TakesLessThanAMillisecond) {
  std::string document;
  while (document.size() < 100'000) {
    document += "In " + std::to_string(1900 + document.size() % 100) +
                " the old mill was sold again, and who paid for it? The council, said Mr. Pell.\n";
  }
  const std::string prompt = "Read this.\n" + document + "\nQuestion: Who sold the mill?\nAnswer:";
  constexpr int kCalls = 300;
  const std::clock_t start = std::clock();
  for (int i = 0; i < kCalls; ++i) {
    ASSERT_EQ(ClassifyTask(prompt).task, PromptTask::kLocalization);
  }
  const double milliseconds =
      1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC / kCalls;
  std::printf("  %.3f ms of processor time per call, %zu bytes\n", milliseconds, prompt.size());
  EXPECT_LT(milliseconds, 1.0);
}

}  // namespace
}  // namespace ziggurat
