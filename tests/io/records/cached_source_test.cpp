// SPDX-License-Identifier: Apache-2.0
#include "io/records/cached_source.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace millrace::io {
namespace {

constexpr std::int64_t kPictures = 40;
constexpr std::size_t kBytes = 1000;

/// Images of kBytes + index bytes and one box; counts the reads.
class CountingSource final : public EncodedSource {
 public:
  mutable std::atomic<std::int64_t> reads = 0;

  [[nodiscard]] std::string name() const override { return "counting"; }
  [[nodiscard]] std::int64_t size() const override { return kPictures; }
  [[nodiscard]] std::int64_t classes() const override { return 7; }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override {
    return static_cast<std::int32_t>(index % 7);
  }
  [[nodiscard]] std::uint64_t stored_bytes(std::int64_t index) const override {
    return kBytes + static_cast<std::uint64_t>(index);
  }
  [[nodiscard]] std::uint32_t fingerprint() const override { return 99; }
  EncodedImage read(std::int64_t index, ReadBuffer& buffer) const override {
    reads.fetch_add(1);
    buffer.bytes.assign(stored_bytes(index), static_cast<std::byte>(index));
    buffer.boxes.assign(1, ObjectBox{.top = static_cast<float>(index)});
    return {.bytes = buffer.bytes, .boxes = buffer.boxes};
  }
  [[nodiscard]] std::string where(std::int64_t index) const override {
    return "number " + std::to_string(index);
  }
  [[nodiscard]] std::span<const std::string> notices() const override { return notices_; }

 private:
  std::vector<std::string> notices_ = {"one"};
};

void expect_picture(const EncodedImage& image, std::int64_t index) {
  ASSERT_EQ(image.bytes.size(), kBytes + static_cast<std::size_t>(index));
  EXPECT_EQ(image.bytes.front(), static_cast<std::byte>(index));
  EXPECT_EQ(image.bytes.back(), static_cast<std::byte>(index));
  ASSERT_EQ(image.boxes.size(), 1u);
  EXPECT_EQ(image.boxes[0].top, static_cast<float>(index));
}

void read_all(const EncodedSource& source) {
  ReadBuffer buffer;
  for (std::int64_t i = 0; i < source.size(); ++i) expect_picture(source.read(i, buffer), i);
}

// Two sets together are never promised more than the budget.
TEST(CachedSourceTest, PromisesShareABudget) {
  const auto inner = std::make_shared<CountingSource>();
  const std::int64_t all = CachedSource(inner, std::make_shared<CacheBudget>(1 << 30)).kept_bytes();
  ASSERT_GT(all, kPictures * static_cast<std::int64_t>(kBytes));
  const auto budget = std::make_shared<CacheBudget>(all + 100);
  const CachedSource first(inner, budget);
  const CachedSource second(inner, budget);
  EXPECT_EQ(first.kept_bytes(), all);
  EXPECT_EQ(second.kept_bytes(), 100);
  read_all(second);
  EXPECT_EQ(first.kept_bytes(), all) << "whatever has been read";
}

TEST(CachedSourceTest, ReadsEveryPictureOnceWhereAllFit) {
  const auto inner = std::make_shared<CountingSource>();
  const auto budget = std::make_shared<CacheBudget>(1'000'000);
  {
    const CachedSource cached(inner, budget);
    const std::int64_t predicted = cached.kept_bytes();
    for (int epoch = 0; epoch < 3; ++epoch) read_all(cached);
    EXPECT_EQ(inner->reads, kPictures);
    EXPECT_LT(budget->left(), 1'000'000 - kPictures * static_cast<std::int64_t>(kBytes));
    EXPECT_NEAR(static_cast<double>(1'000'000 - budget->left()), static_cast<double>(predicted),
                kPictures * 16.0)
        << "boxes alone are not known before";
    EXPECT_EQ(cached.name(), "counting");
    EXPECT_EQ(cached.classes(), 7);
    EXPECT_EQ(cached.label(9), 2);
    EXPECT_EQ(cached.stored_bytes(3), 1003u);
    EXPECT_EQ(cached.fingerprint(), 99u);
    EXPECT_EQ(cached.where(5), "number 5");
    EXPECT_EQ(cached.notices().size(), 1u);
  }
  EXPECT_EQ(budget->left(), 1'000'000);
}

TEST(CachedSourceTest, KeepsWhatFitsAndNeverMoreThanTheBudget) {
  const auto inner = std::make_shared<CountingSource>();
  constexpr std::int64_t kBudget = 10 * static_cast<std::int64_t>(kBytes);
  const auto budget = std::make_shared<CacheBudget>(kBudget);
  const CachedSource cached(inner, budget);
  read_all(cached);
  EXPECT_EQ(inner->reads, kPictures);
  EXPECT_GE(budget->left(), 0);
  EXPECT_LT(budget->left(), 1200);
  read_all(cached);
  const std::int64_t kept = 2 * kPictures - inner->reads;
  EXPECT_GE(kept, 7);
  EXPECT_LT(kept, 10);
}

TEST(CachedSourceTest, SourcesShareABudget) {
  const auto inner = std::make_shared<CountingSource>();
  const auto budget = std::make_shared<CacheBudget>(10 * static_cast<std::int64_t>(kBytes));
  const CachedSource first(inner, budget);
  const CachedSource second(inner, budget);
  read_all(first);
  const std::int64_t before = inner->reads;
  read_all(second);
  read_all(second);
  EXPECT_EQ(inner->reads - before, 2 * kPictures) << "nothing was left for the second";
}

TEST(CachedSourceTest, ThreadsReadTheSameBytes) {
  const auto inner = std::make_shared<CountingSource>();
  const auto budget = std::make_shared<CacheBudget>(25 * static_cast<std::int64_t>(kBytes));
  {
    const CachedSource cached(inner, budget);
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t)
      threads.emplace_back([&cached] {
        for (int round = 0; round < 50; ++round) read_all(cached);
      });
    threads.clear();
    EXPECT_GE(budget->left(), 0);
  }
  EXPECT_EQ(budget->left(), 25 * static_cast<std::int64_t>(kBytes));
}

}  // namespace
}  // namespace millrace::io
