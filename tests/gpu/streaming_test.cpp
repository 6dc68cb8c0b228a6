// SPDX-License-Identifier: Apache-2.0
//
// What gpu_streaming counts: that every kernel reads, and writes from end to end, the memory that
// its bytes stand for.
#include <gtest/gtest.h>

#include <algorithm>

#include "device/compat.hpp"
#include "streaming_kernels.hpp"

namespace millrace::gpu {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::byte kOnes{0xff};  // four or two of these are a NaN
constexpr std::byte kOther{0x3c};

/// An even side and channels that fill 16 bytes, and numbers that no other product gives.
constexpr StreamSizes kSizes{.batch = 3, .side = 6, .channels = 40, .parameters = 9'001};

Bytes contents(const std::vector<Buffer>& buffers) {
  Bytes all;
  for (const Buffer& buffer : buffers) {
    Bytes host(static_cast<std::size_t>(buffer.bytes()));
    device::copy_to_host(host.data(), buffer.at(), buffer.bytes());
    all.insert(all.end(), host.begin(), host.end());
  }
  return all;
}

void set(const Buffer& buffer, std::byte value) {
  const Bytes host(static_cast<std::size_t>(buffer.bytes()), value);
  device::copy_to_device(buffer.at(), host.data(), buffer.bytes());
}

void run(const StreamingKernel& kernel) {
  const device::ExecutionSpace space;
  kernel.queue(space);
  device::fence(space);
}

/// What a kernel writes to memory that held `before`.
Bytes written(const StreamingKernel& kernel, std::byte before) {
  for (const Buffer& buffer : kernel.writes) set(buffer, before);
  run(kernel);
  return contents(kernel.writes);
}

void expect_guards(const std::vector<Buffer>& buffers) {
  for (const Buffer& buffer : buffers) {
    Bytes guard(static_cast<std::size_t>(Buffer::kGuard));
    device::copy_to_host(guard.data(), buffer.at() + buffer.bytes(), Buffer::kGuard);
    EXPECT_EQ(guard, Bytes(guard.size())) << "it wrote behind its memory";
  }
}

/// All that a kernel may write.
Bytes results(const StreamingKernel& kernel) {
  Bytes all = contents(kernel.writes);
  for (const auto* buffers : {&kernel.updates, &kernel.others})
    for (const std::byte b : contents(*buffers)) all.push_back(b);
  return all;
}

class StreamingTest : public testing::TestWithParam<StreamingRecipe> {};

TEST_P(StreamingTest, WritesAllThatItCounts) {
  const StreamingKernel kernel = GetParam().make(kSizes);
  const Bytes inputs = contents(kernel.reads);
  if (!kernel.writes.empty() && kernel.updates.empty())
    EXPECT_EQ(written(kernel, kOnes), written(kernel, kOther));
  else
    run(kernel);
  EXPECT_EQ(contents(kernel.reads), inputs);
  for (const auto* buffers : {&kernel.reads, &kernel.writes, &kernel.updates, &kernel.others})
    expect_guards(*buffers);
}

TEST_P(StreamingTest, ReadsAllThatItCounts) {
  const std::size_t inputs = [] {
    const StreamingKernel kernel = GetParam().make(kSizes);
    return kernel.reads.size() + kernel.updates.size();
  }();
  EXPECT_GT(inputs, 0u);
  const StreamingKernel plain = GetParam().make(kSizes);
  run(plain);
  for (std::size_t i = 0; i < inputs; ++i) {
    const StreamingKernel changed = GetParam().make(kSizes);
    set(i < changed.reads.size() ? changed.reads[i] : changed.updates[i - changed.reads.size()],
        kOnes);
    run(changed);
    EXPECT_NE(results(changed), results(plain)) << "input " << i << " has no effect";
  }
}

std::string test_name(const testing::TestParamInfo<StreamingRecipe>& info) {
  std::string name = info.param.name;
  std::ranges::replace_if(
      name, [](char c) { return c == ' ' || c == ','; }, '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(All, StreamingTest, testing::ValuesIn(streaming_recipes()), test_name);

}  // namespace
}  // namespace millrace::gpu
