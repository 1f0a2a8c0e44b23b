// What the golden tests share besides their vectors: the backends that they run on, and the report
// of what was compared and what was not.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "attention/backend.h"

namespace ziggurat::golden {

/// The reference, and every CPU level of this machine.
std::vector<std::unique_ptr<AttentionBackend>> Backends();

/// Tells what was compared, in numbers by name, and what was skipped, and why.
class Report {
 public:
  /// `compared` by whoever compares, `expected` by whoever reads the manifests.
  void Compared(const std::string& what, int count = 1) { compared_[what] += count; }
  void Expected(const std::string& what, int count = 1) { expected_[what] += count; }
  void Skipped(const std::string& reason) { ++skipped_[reason]; }
  /// The largest difference of a kind.
  void Difference(const std::string& what, double difference);

  /// Prints, and fails where anything expected was not compared, or nothing at all was expected.
  void Print(const std::string& title) const;

 private:
  std::map<std::string, int> compared_, expected_, skipped_;
  std::map<std::string, double> differences_;
};

}  // namespace ziggurat::golden
