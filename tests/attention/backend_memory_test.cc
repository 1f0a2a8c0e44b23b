// What backends of the CPU do with the host's memory.
#include "attention/backend_memory.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"

namespace ziggurat {
namespace {

TEST(BackendMemory, LendsAlignedMemoryOfAnySize) {
  BackendMemory memory;
  for (const size_t bytes : {1, 63, 64, 65, 4096, 4100, 4159, 4160, 100000, 5}) {
    void* const lent = memory.Lend(bytes);
    ASSERT_NE(lent, nullptr) << bytes;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(lent) % 64, 0u) << bytes;
    std::memset(lent, 1, bytes);
  }
}

TEST(BackendMemory, CopiesRowsThatLieApart) {
  BackendMemory memory;
  const char from[] = "abc-def-ghi";
  char to[] = "..........";
  memory.CopyRows(from, 4, 2, 3, to, 3);
  EXPECT_STREQ(to, "ab.de.gh..");
  memory.CopyRows(from, 4, 0, 3, to, 3);
  memory.CopyRows(from, 4, 2, 0, to, 3);
  EXPECT_STREQ(to, "ab.de.gh..");
  memory.Copy(from, 3, to);
  EXPECT_STREQ(to, "abcde.gh..");
}

TEST(BackendMemory, KeepsWhatWasSelectedAndTheLastTokens) {
  BackendMemory memory;
  const int32_t best_of[] = {1, 4, -1, 0, 2, -1};  // two of each head, three apart
  std::vector<int32_t> kept(2 * 5 + 1, -7);
  memory.KeepSelected(best_of, 3, 2, 2, 6, 3, kept.data());
  EXPECT_EQ(kept, (std::vector<int32_t>{1, 4, 6, 7, 8, 0, 2, 6, 7, 8, -7}));
}

TEST(BackendMemory, GivesTheNumbersThatWereNotChosen) {
  BackendMemory memory;
  const int32_t chosen[] = {0, 3, 1, 4};
  std::vector<int32_t> rest(2 * 3 + 1, -7);
  memory.Complement(chosen, 2, 2, 5, rest.data());
  EXPECT_EQ(rest, (std::vector<int32_t>{1, 2, 4, 0, 2, 3, -7}));
  memory.Complement(nullptr, 1, 0, 3, rest.data());
  EXPECT_EQ(rest, (std::vector<int32_t>{0, 1, 2, 0, 2, 3, -7}));
}

}  // namespace
}  // namespace ziggurat
