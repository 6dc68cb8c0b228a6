// SPDX-License-Identifier: Apache-2.0
//
// CIFAR-100 from its files to its accuracies: fine labels, 100 classes, top-1 and top-5.
#include <nlohmann/json.hpp>

#include "millrace.hpp"
#include "tools/data/generate.hpp"

namespace millrace::test {
namespace {

TEST(Cifar100Test, TrainsAndValidatesOnFineLabels) {
  const TemporaryDirectory directory;
  const fs::path data = directory / "cifar-100-binary";
  io::generate_cifar100_like(data, {.train_records = 2000, .test_records = 300, .seed = 1});
  const fs::path run = directory / "run";
  const ProcessResult result =
      millrace({"train --dataset cifar-100 --data-dir", data,
                "--model-size 8 --batch-size 20 --warmup-epochs 0 --optimiser momentum "
                "--base-learning-rate -8 --label-smoothing 0.05 --epochs 4 --precision 32.32 "
                "--validation-mode all --seed 3 --threads-per-device 1 --run-dir",
                run});
  ASSERT_EQ(result.code, 0) << result.output;
  // 75,290 parameters of ResNet-8, plus those of the wider last layer.
  expect_in(result.output, {"Total Parameters: 81140"});

  const ProcessResult validated = millrace({"validate --restore-path", run, "--json"});
  ASSERT_EQ(validated.code, 0) << validated.output;
  const auto json = nlohmann::json::parse(validated.output);
  EXPECT_EQ(json.at("images"), 300);
  // Chance is 0.01 and 0.05. With coarse labels the accuracies would stay there.
  EXPECT_GT(json.at("top1").get<double>(), 0.08);
  EXPECT_GT(json.at("top5").get<double>(), 0.25);
  EXPECT_LT(json.at("top1").get<double>(), json.at("top5").get<double>());
  EXPECT_LT(json.at("loss").get<double>(), 4.4);  // ln 100 is 4.6
}

TEST(Cifar100Test, DamagedFilesAreNamed) {
  const TemporaryDirectory directory;
  const fs::path data = directory / "cifar-100-binary";
  io::generate_cifar100_like(data, {.train_records = 20, .test_records = 20});
  fs::resize_file(data / "train.bin", 20 * 3074 - 1);
  expect_end(millrace({"train --dataset cifar-100 --data-dir", data, "--no-logs"}), 3,
             {"train.bin", "3074"});
}

}  // namespace
}  // namespace millrace::test
