// What the end-to-end tests share on top of GoogleTest.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/client.h"
#include "tests/e2e/daemon.h"
#include "tests/e2e/environment.h"

/// Starts a daemon called `name` with these Daemon::Options, or fails the test with what it said.
#define START_DAEMON(name, ...)                                 \
  auto name##_or = ::ziggurat::e2e::Daemon::Start(__VA_ARGS__); \
  ASSERT_TRUE(name##_or.ok()) << name##_or.status().ToString(); \
  ::ziggurat::e2e::Daemon& name = **name##_or

/// The pool is as it was before the first request.
#define EXPECT_EMPTY_CACHE(daemon)                                                                \
  do {                                                                                            \
    const ::ziggurat::v1::GetCacheResponse empty_cache = ::ziggurat::e2e::WaitUntilEmpty(daemon); \
    EXPECT_GT(empty_cache.total_blocks(), 0u);                                                    \
    EXPECT_EQ(empty_cache.used_blocks(), 0u);                                                     \
    EXPECT_EQ(empty_cache.reserved_blocks(), 0u);                                                 \
    EXPECT_EQ(empty_cache.running(), 0u);                                                         \
    EXPECT_EQ(empty_cache.waiting(), 0u);                                                         \
  } while (false)
