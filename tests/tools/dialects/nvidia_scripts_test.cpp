// SPDX-License-Identifier: Apache-2.0
//
// The shell scripts of NVIDIA's guide, typed as programs.
#include <fmt/format.h>

#include "seed_lines.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests

// What RN50_FP16_1GPU.sh and its like pass to main.py in NVIDIA's repository.
constexpr std::string_view kPassed =
    "--mode=train_and_evaluate --iter_unit=epoch --num_iter=50 --batch_size={} --warmup_steps=100 "
    "--use_cosine_lr --label_smoothing 0.1 --lr_init=0.256 --lr_warmup_epochs=8 --momentum=0.875 "
    "--weight_decay=3.0517578125e-05 {} --data_dir=/data/imagenet --results_dir=/tmp/results";

Read script(std::string_view name, std::string_view more = "") {
  return read_seed("nvidia",
                   fmt::format("./scripts/{} . /data/imagenet /tmp/results {}", name, more));
}

TEST(NvidiaScriptsTest, ComputeWhatTheirLineOfMainPyDoes) {
  for (const bool half : {true, false})
    for (const int gpus : {1, 4, 8}) {
      const Read read = script(fmt::format("RN50_{}_{}GPU.sh", half ? "FP16" : "FP32", gpus));
      const std::string line =
          fmt::format(fmt::runtime(kPassed), half ? 256 : 128, half ? "--use_tf_amp" : "");
      const Read passed =
          read_seed("nvidia", fmt::format("mpiexec -np {} python main.py {}", gpus, line));
      EXPECT_EQ(to_toml(config_of(read)), to_toml(config_of(passed)));
      EXPECT_EQ(read.options.text("log-dir"), "/tmp/results");
      EXPECT_TRUE(read.notices.empty()) << read.notices.front();
    }
}

// Options behind a script are those of main.py and of millrace, and are stronger than its own.
TEST(NvidiaScriptsTest, TakeOptionsBehindTheirArguments) {
  const auto with = [](const char* more) { return config_of(script("RN50_FP16_8GPU.sh", more)); };
  EXPECT_EQ(with("--batch_size 64").total_batch(), 8 * 64);
  EXPECT_NEAR(with("--batch_size 64").learning_rate.base_rate, 0.256 * 8 * 64 / 256, 1e-12);
  EXPECT_NEAR(with("--replicas 2").learning_rate.base_rate, 0.256 * 2, 1e-12);
  EXPECT_NEAR(with("--lr_init 0.1").learning_rate.base_rate, 0.8, 1e-12);
  EXPECT_EQ(with("--train_iter 3 --iter_unit batch").iterations, 3);
  EXPECT_EQ(with("--iterations 7 --warmup-epochs 0").iterations, 7);
  EXPECT_EQ(with("--model-size 18").model.size, "18");
  EXPECT_EQ(with("--nouse_tf_amp").precision.activations, DType::F32);
  EXPECT_EQ(with("--momentum=0.5").optimiser.momentum, 0.5);
  const auto place = [](const char* more, const char* option) {
    return script("RN50_FP32_1GPU.sh", more).options.text(option);
  };
  EXPECT_EQ(place("--run-dir runs/a", "run-dir"), "runs/a");
  EXPECT_EQ(place("--run-dir runs/a", "log-dir"), std::nullopt);
  EXPECT_EQ(place("--model_dir m", "log-dir"), "m");
  EXPECT_EQ(place("--log_dir l", "log-dir"), "l");
  EXPECT_EQ(read_seed("nvidia", "DATA_DIR=d RN50_FP32_1GPU.sh . typed r").options.text("data-dir"),
            "typed");
  EXPECT_EQ(script("RN50_FP16_1GPU.sh", "--mode training_benchmark").command, Command::Bench);
}

// main.py has one network, and a run knows its own.
TEST(NvidiaScriptsTest, EvaluateWhateverTheRunTrained) {
  const Read trained = read_seed("nvidia", "main.py --batch_size 8 --data_dir d --model-size 18");
  const Patch recorded = parse_config(to_toml(config_of(trained)), "config.toml");
  for (const auto& [name, precision] :
       {std::pair{"RN50_FP16_EVAL.sh", "16.32"}, {"RN50_FP32_EVAL.sh", "32.32"}}) {
    const Read read = script(name);
    EXPECT_EQ(read.command, Command::Validate);
    EXPECT_EQ(read.options.text("restore-path"), "/tmp/results");
    EXPECT_EQ(read.options.text("precision"), precision);
    Patch others = read.options;
    for (const char* own : {"batch-size", "precision", "half"}) others.erase(own);  // may differ
    EXPECT_EQ(validated_options(others, recorded).text("model-size"), "18");
  }
}

TEST(NvidiaScriptsTest, SayWhatIsMissing) {
  for (const char* line : {"RN50_FP16_4GPU.sh", "RN50_FP16_4GPU.sh . /data --batch_size 8"})
    EXPECT_EQ(failure_of([&] { (void)read_seed("nvidia", line); }).text,
              "RN50_FP16_4GPU.sh needs the paths of the model, of the data set and of the results");
}

// The guide's tables come from scripts of many runs.
TEST(NvidiaScriptsTest, SeriesNameTheLineOfOneRun) {
  const auto refusal = [](const char* line) {
    return failure_of([&] { (void)read_seed("nvidia", line); }).text;
  };
  EXPECT_TRUE(contains(refusal("bash ./scripts/benchmarking/DGX1V_trainbench_fp16.sh"),
                       "main.py --mode=training_benchmark --use_tf_amp --batch_size N"));
  EXPECT_TRUE(contains(refusal("T4_inferbench_fp32.sh"),
                       "main.py --mode=inference_benchmark --batch_size N"));
}

}  // namespace
}  // namespace millrace::cli
