// SPDX-License-Identifier: Apache-2.0
//
// What gpu_streaming counts: that every kernel reads, and writes from end to end, the memory that
// its bytes stand for, and that their number is that of the shapes.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

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

/// Numbers of elements, by hand: 3 x 6 x 6 x 40 of an activation; the stem has 3 x 12 x 12 x 10 in
/// front of its pool and 3 x 6 x 6 x 10 behind it; images have 3 x 24 x 24 pixels.
constexpr std::int64_t kN = 4320;
constexpr std::int64_t kStem = 4320;
constexpr std::int64_t kPooled = 1080;
constexpr std::int64_t kPixels = 1728;
constexpr std::int64_t kP = 9001;

/// What both types have, with `t` bytes an element.
std::map<std::string, std::int64_t> bytes_of_activations(const std::string& type, std::int64_t t) {
  return {{type + " relu forward", 2 * t * kN},
          {type + " relu backward", 3 * t * kN},
          {type + " swish forward", 2 * t * kN},
          {type + " swish backward", 3 * t * kN},
          {type + " add and relu", 3 * t * kN},
          {type + " sum of gradients", 3 * t * kN},
          {type + " accumulate", (t + 8) * kN},
          {type + " norm statistics", t * kN},
          {type + " norm and relu", 2 * t * kN},
          {type + " norm, add and relu", 3 * t * kN},
          {type + " norm backward, sums", 2 * t * kN},
          {type + " norm, add backward, sums", 4 * t * kN},
          {type + " norm backward", 3 * t * kN},
          {type + " max pool forward", t * kStem + (t + 1) * kPooled},
          {type + " max pool backward", t * kStem + (t + 1) * kPooled},
          {type + " average pool forward", t * kN + t * 1080},
          {type + " average pool backward", t * kN + t * 1080},
          {type + " global average forward", t * kN + t * 120},
          {type + " global average backward", t * kN + t * 120},
          {type + " images", (3 + 3 * t) * kPixels},
          {type + " images of eight channels", (3 + 8 * t) * kPixels}};
}

TEST(StreamingBytesTest, AreThoseOfTheShapes) {
  std::map<std::string, std::int64_t> expected = bytes_of_activations("bfloat16", 2);
  expected.merge(bytes_of_activations("float32", 4));
  expected.merge(std::map<std::string, std::int64_t>{
      {"bfloat16 from float32", 6 * kN},
      {"bfloat16 to float32", 6 * kN},
      {"bfloat16 momentum, stochastic", 12 * kP},  // gradient, then weight and velocity twice
      {"float32 momentum", 22 * kP},               // the copy in 16 bits in addition
      {"float32 Adam", 30 * kP},
      {"float32 copy of weights", 6 * kP},
      {"float32 finite gradients", 4 * kP},
      {"float32 sum of two replicas", 12 * kP}});
  std::map<std::string, std::int64_t> counted;
  for (const StreamingRecipe& recipe : streaming_recipes())
    counted[recipe.name] = recipe.make(kSizes).bytes();
  EXPECT_EQ(counted, expected);
}

}  // namespace
}  // namespace millrace::gpu
