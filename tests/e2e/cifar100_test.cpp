// SPDX-License-Identifier: Apache-2.0
//
// CIFAR-100 from its files to its accuracies: fine labels, 100 classes, top-1 and top-5.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "io/tools/generate.hpp"
#include "millrace.hpp"

namespace millrace::test {
namespace {

TEST(Cifar100Test, TrainsAndValidatesOnFineLabels) {
  const TemporaryDirectory directory;
  const std::filesystem::path data = directory / "cifar-100-binary";
  io::generate_cifar100_like(data, {.train_records = 2000, .test_records = 300, .seed = 1});
  const std::filesystem::path run = directory / "run";
  const ProcessResult result = millrace({"train",       "--dataset",
                                         "cifar-100",   "--data-dir",
                                         data.string(), "--model-size",
                                         "8",           "--batch-size",
                                         "20",          "--warmup-epochs",
                                         "0",           "--optimiser",
                                         "momentum",    "--base-learning-rate",
                                         "-8",          "--label-smoothing",
                                         "0.05",        "--epochs",
                                         "4",           "--precision",
                                         "32.32",       "--validation-mode",
                                         "all",         "--seed",
                                         "3",           "--threads-per-device",
                                         "1",           "--run-dir",
                                         run.string()});
  ASSERT_EQ(result.code, 0) << result.output;
  // 75,290 parameters of ResNet-8, plus those of the wider last layer.
  EXPECT_NE(result.output.find("Total Parameters: 81140"), std::string::npos) << result.output;

  const ProcessResult validated = millrace({"validate", "--restore-path", run.string(), "--json"});
  ASSERT_EQ(validated.code, 0) << validated.output;
  const auto json = nlohmann::json::parse(validated.output);
  EXPECT_EQ(json.at("images"), 300);
  // Chance is 0.01 and 0.05. With coarse labels the accuracies would stay there.
  EXPECT_GT(json.at("top1").get<double>(), 0.08);
  EXPECT_GT(json.at("top5").get<double>(), 0.25);
  EXPECT_LT(json.at("top1").get<double>(), json.at("top5").get<double>());
  EXPECT_LT(json.at("loss").get<double>(), 4.4);  // ln 100 is 4.6

  std::istringstream lines(read_text(run / "metrics.jsonl"));
  int training = 0;
  int validation = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto object = nlohmann::json::parse(line);
    const char* kind = object.contains("train/top1") ? "train/"
                       : object.contains("val/top1") ? "val/"
                                                     : nullptr;
    if (kind == nullptr) continue;
    const auto top1 = object.at(std::string(kind) + "top1").get<double>();
    const auto top5 = object.at(std::string(kind) + "top5").get<double>();
    EXPECT_LE(top1, top5) << line;
    EXPECT_LE(top5, 1.0) << line;
    ++(kind[0] == 't' ? training : validation);
  }
  EXPECT_GT(training, 3);
  EXPECT_GE(validation, 4);
}

TEST(Cifar100Test, DamagedFilesAreNamed) {
  const TemporaryDirectory directory;
  const std::filesystem::path data = directory / "cifar-100-binary";
  io::generate_cifar100_like(data, {.train_records = 20, .test_records = 20});
  std::filesystem::resize_file(data / "train.bin", 20 * 3074 - 1);
  const ProcessResult result =
      millrace({"train", "--dataset", "cifar-100", "--data-dir", data.string(), "--no-logs"});
  EXPECT_EQ(result.code, 3) << result.output;
  EXPECT_NE(result.output.find("train.bin"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("3074"), std::string::npos) << result.output;
}

}  // namespace
}  // namespace millrace::test
