// What the golden tests share besides their vectors: how numbers are compared, and the report of
// what was compared and what was not.
#pragma once

#include <map>
#include <string>

namespace ziggurat::golden {

/// |ours - theirs| relative to theirs, of which less than 1e-7 counts as 1e-7 (the vectors'
/// check.py).
double RelativeDifference(double ours, double theirs);

/// Tells what was compared, in numbers by name, and what was skipped, and why.
class Report {
 public:
  /// `compared` by whoever compares, `expected` by whoever reads the manifests.
  void Compared(const std::string& what, size_t count = 1) { Add(what, count, &compared_); }
  void Expected(const std::string& what, size_t count = 1) { Add(what, count, &expected_); }
  /// `reason` begins with what is skipped: "runs: ...".
  void Skipped(const std::string& reason, size_t count = 1) { Add(reason, count, &skipped_); }
  /// The largest difference of a kind.
  void Difference(const std::string& what, double difference);

  bool has_compared() const { return !compared_.empty(); }
  /// Fails where none of `what` was compared.
  void Demand(const std::string& what) const;
  /// Prints, and fails where what was compared is not what was expected.
  void Print(const std::string& title) const;

 private:
  using Counts = std::map<std::string, size_t>;
  static void Add(const std::string& what, size_t count, Counts* counts) {
    if (count > 0) (*counts)[what] += count;
  }

  Counts compared_, expected_, skipped_;
  std::map<std::string, double> differences_;
};

}  // namespace ziggurat::golden
