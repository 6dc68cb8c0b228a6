// SPDX-License-Identifier: Apache-2.0
#include "train/stand_ins.hpp"

#include "core/error.hpp"
#include "tests/support/expect_error.hpp"

namespace millrace::training {
namespace {

/// 40 images that are never read; at most a tenth, that is four, may be bad.
class BadImages final : public io::Dataset {
 public:
  [[nodiscard]] std::string name() const override { return "pictures"; }
  [[nodiscard]] std::int64_t size() const override { return 40; }
  [[nodiscard]] Shape image_shape() const override { return {1, 1, 3}; }
  [[nodiscard]] std::int64_t classes() const override { return 10; }
  [[nodiscard]] std::int32_t label(std::int64_t) const override { return 0; }
  [[nodiscard]] std::vector<std::string> replaced() const override {
    return {"a.JPEG: it is cut", "b.JPEG: it is empty"};
  }
};

class StandInLimitTest : public testing::Test {
 protected:
  [[nodiscard]] StandInLimit make() const { return {world_, images_, 0.1, "training"}; }
  static void expect_refusal(StandInLimit& limit, std::int64_t stand_ins, std::int64_t epoch,
                             std::int64_t of_epoch) {
    expect_error(ErrorKind::Data,
                 std::to_string(of_epoch) +
                     " of the 40 images for training are bad so far in this epoch; "
                     "`max-bad-fraction` 0.1 allows at most 4; for example a.JPEG: it is cut",
                 [&] { limit.check(stand_ins, epoch); });
    EXPECT_EQ(limit.in_epoch(), of_epoch);
  }

 private:
  comm::World world_;
  BadImages images_;
};

TEST_F(StandInLimitTest, ExactlyTheShareIsAllowed) {
  StandInLimit limit = make();
  EXPECT_EQ(limit.in_epoch(), 0);
  for (const std::int64_t stand_ins : {0, 1, 1, 4, 4}) {
    EXPECT_NO_THROW(limit.check(stand_ins, 0));
    EXPECT_EQ(limit.in_epoch(), stand_ins);
  }
  expect_refusal(limit, 5, 0, 5);
}

TEST_F(StandInLimitTest, EveryEpochCountsAnew) {
  StandInLimit limit = make();
  limit.check(4, 0);
  limit.check(4, 1);
  EXPECT_EQ(limit.in_epoch(), 0);
  limit.check(8, 1);
  EXPECT_EQ(limit.in_epoch(), 4);
  // The first batch of an epoch may contain bad images too.
  limit.check(11, 2);
  EXPECT_EQ(limit.in_epoch(), 3);
  expect_refusal(limit, 13, 2, 5);
}

TEST_F(StandInLimitTest, WhatAnotherProcessCountedBelongsToItsEpoch) {
  StandInLimit limit = make();
  limit.resume(2, 3);
  EXPECT_EQ(limit.in_epoch(), 3);
  limit.check(1, 2);
  EXPECT_EQ(limit.in_epoch(), 4);
  limit.check(2, 3);
  EXPECT_EQ(limit.in_epoch(), 1);
  limit.check(5, 3);
  EXPECT_EQ(limit.in_epoch(), 4);
  expect_refusal(limit, 6, 3, 5);

  StandInLimit resumed = make();
  resumed.resume(2, 3);
  expect_refusal(resumed, 2, 2, 5);
}

}  // namespace
}  // namespace millrace::training
