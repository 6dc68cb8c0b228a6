// SPDX-License-Identifier: Apache-2.0
//
// `bench` from words to what it measures.
#include "cli/open_run.hpp"
#include "device/parallel.hpp"
#include "tests/cli/support.hpp"
#include "tools/bench/bench_machine.hpp"
#include "tools/bench/bench_output.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests

TEST(BenchMachineTest, NetworksThatTheRatesMissAreNamed) {
  const std::vector<ExplainedNetwork> close = {{"resnet 50", 0.98}, {"resnet 20", 1.24}};
  EXPECT_EQ(rates_notice(DType::F32, close), "");
  const std::vector<ExplainedNetwork> far = {{"resnet 50", 0.98}, {"resnet 20", 4.77}};
  const std::string notice = rates_notice(DType::BF16, far);
  expect_in(notice, {"bfloat16: the rates give resnet 20 4.77 times",
                     "measure again while nothing else runs"});
  EXPECT_FALSE(contains(notice, "resnet 50")) << notice;
}

TEST(BenchMachineTest, OptionsOfATrainingAreRefused) {
  expect_said(run_words(words("bench --machine-file m.toml --model-size 20")), 2,
              {"--model-size has no effect with --machine-file"});
}

TEST(BenchMachineTest, TakesTheHostsOfACluster) {
  const std::vector<std::string> given = words("--machine-file m.toml --hosts a:1 b:1");
  EXPECT_EQ(parse_arguments(Command::Bench, given, 0).text("hosts"), "a:1 b:1");
  for (const char* line : {"bench --machine-file m.toml --ssh-port 3",
                           "bench --dataset cifar-10 --model-size 8 --interface eth0"})
    expect_said(run_words(words(line)), 2, {"has no effect here: it needs --hosts"});
}

TEST(BenchKernelsTest, OptionsThatDoNotGoWithATableOfKernelsAreRefused) {
  const std::string line = "bench --kernels --dataset cifar-10 --model-size 8 ";
  const auto expect_refused = [&](const std::string& more, const std::string& message) {
    const bool at_once = device::kOnCores || more.starts_with("--batch-sizes");
    expect_said(run_words(words(line + more)), 2,
                {at_once ? message : "computes on another device"});
  };
  expect_refused("--inference", "--inference has no effect with --kernels");
  expect_refused("--display-every 2", "--display-every has no effect with --kernels");
  expect_refused("--fp-exceptions", "--fp-exceptions checks the result of each kernel");
  expect_refused("--batch-sizes 1,2", "--kernels shows a single run, but --batch-sizes lists");
}

OpenedBench prepared(const std::string& line) {
  static const comm::World alone;
  const Environment environment = environment_of({});
  return open_bench({.options = load_options(Command::Bench, words(line), 0, environment),
                     .environment = environment,
                     .command_line = "millrace",
                     .words = {}},
                    alone);
}

TEST(OpenBenchTest, NeedsNoDataAndLeavesNothing) {
  const OpenedBench bench =
      prepared("--dataset cifar-10 --steps 7 --warmup-steps 2 --batch-size 8");
  EXPECT_EQ(bench.length.steps, 7);
  EXPECT_EQ(bench.length.warmup, 2);
  EXPECT_EQ(bench.run.config.iterations, 9);
  EXPECT_EQ(bench.run.config.data.source, run::ImageSource::Device);
  EXPECT_TRUE(bench.run.config.run_directory.empty());
  EXPECT_TRUE(bench.run.notices.empty());
  EXPECT_EQ(prepared("--dataset cifar-10 --kernels").length.all(), 12);
}

TEST(OpenBenchTest, ARecipeSaysNothingOfALengthThatItHasNot) {
  const fs::path recipe = fs::path(MILLRACE_SOURCE_DIR) / "configs/habana-resnext101-1worker.toml";
  const OpenedBench bench = prepared("--config " + recipe.string() + " --dataset imagenet");
  EXPECT_TRUE(bench.run.notices.empty()) << bench.run.notices.front();
}

}  // namespace
}  // namespace millrace::cli
