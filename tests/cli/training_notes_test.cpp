// SPDX-License-Identifier: Apache-2.0
#include "train/resolve.hpp"

#include "support.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests

TEST(TrainingNotesTest, WhatNobodyWantsIsSaidInOneLine) {
  const std::string small = "--dataset imagenet --synthetic-data --model-size 18 --image-size 32 ";
  const std::string cifar = "--dataset cifar-10 --synthetic-data --model-size 8 ";
  struct Case {
    std::string line;
    std::string said;
  };
  const std::vector<Case> cases = {
      // 32 / 2 / 2 / 2 / 2 / 2 = 1 pixel; PyTorch refuses it: "Expected more than 1 value per
      // channel when training". Stage 4 of a ResNet-18 has 5 norms, the projection included.
      {small + "--batch-norm --batch-size 1",
       "batch normalization of b4/0/norm1 and 4 more sees one value per channel, 1 image of 1 x 1 "
       "pixels, whose variance is 0: it passes on beta alone; give a larger --batch-size or "
       "--image-size, or --group-norm"},
      {small + "--batch-norm --batch-size 2", ""},
      {small + "--batch-norm --batch-size 1 --replicas 2 --BN-span 2", ""},
      {small + "--group-norm --batch-size 1", ""},
      {small + "--batch-norm --batch-size 1 --image-size 64", ""},
      // 7 convolutions, the stem's included, each with gamma and beta of its norm; no projections.
      {cifar + "--variable-filter fc1",
       "--variable-filter trains fc1 alone: the 21 other tensors keep their random weights; "
       "--init-path starts from trained ones"},
      {cifar + "--variable-filter fc1 --init-path runs/r8", ""},
      {cifar + "--pipeline-depth 4",
       "--pipeline-depth 4 without --shards is no pipeline: one device accumulates the gradients "
       "of 4 micro-batches, as with --gradients-to-accumulate"},
      {cifar + "--pipeline-depth 4 --shards 2 --pipeline-splits b2/0", ""},
      {cifar + "--pipeline-schedule Grouped --gradients-to-accumulate 4",
       "--pipeline-schedule Grouped has no effect here: the network is one stage, which --shards "
       "divides"},
      {cifar + "--pipeline-schedule Sequential --shards 2 --pipeline-splits b2/0", ""},
      {cifar + "--gradients-to-accumulate 4", ""},
  };
  for (const Case& c : cases) {
    const std::vector<std::string> lines =
        doubts_about_training(train_options(c.line), resolve_line(c.line).config);
    EXPECT_EQ(join(respelled(lines, train_options(c.line)), "\n"), c.said) << c.line;
  }
}

}  // namespace
}  // namespace millrace::cli
