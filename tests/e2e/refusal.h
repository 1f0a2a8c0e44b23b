// A daemon that must not start.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "tests/e2e/testing.h"

namespace ziggurat::e2e {

using Words = std::vector<std::string>;

/// `ziggurat serve` refuses to start: soon, with an exit code of its own, and says all of `words`.
inline void ExpectRefusal(const Words& arguments, const Words& words) {
  Words command = {"serve"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  for (const char* flag : {"--listen", "--http"}) {
    if (std::find(arguments.begin(), arguments.end(), flag) == arguments.end()) {
      command.insert(command.end(), {flag, "127.0.0.1:0"});
    }
  }
  const CommandResult result = RunZiggurat(command, {}, absl::Seconds(20));
  EXPECT_GT(result.exit_code, 0) << "no refusal in time (-1) or success (0)\n" << result.err;
  EXPECT_LT(result.exit_code, 126) << "ended by a signal\n" << result.err;
  EXPECT_FALSE(absl::StrContains(result.out, "ready")) << result.out;
  for (const std::string& word : words) {
    EXPECT_THAT(result.err, testing::HasSubstr(word));
  }
}

}  // namespace ziggurat::e2e
