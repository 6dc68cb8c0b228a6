// SPDX-License-Identifier: Apache-2.0
//
// The forms are those of NVIDIA's DeepLearningExamples: dllogger/logger.py of RN50v1.5, whose file
// scripts/benchmarking/benchmark.py averages, and JSONStreamBackend of DLLogger.
#include "tools/bench/nvidia_log.hpp"

#include <ctime>

#include "tests/support/test.hpp"

namespace millrace::report {
namespace {

BenchRun some_run(const std::string& use) {
  return {.use = use,
          .network = "resnet 50 on imagenet",
          .images = "synthetic images",
          .precision = "32.32",
          .batch_size = 8,
          .images_per_step = 16,
          .ranks = 2,
          .threads = 1,
          .warmup_steps = 20,
          .step_seconds = {0.1, 0.2, 0.4, 0.2, 0.1}};
}

TEST(NvidiaLogTest, LinesHaveTheTimeToTheNanosecond) {
  EXPECT_EQ(nvlog_line("resnet", 1'571'680'342'000'000'042, "total_ips: 364.9"),
            ":::NVLOGv0.2.3 resnet 1571680342.000000042 (millrace:0) total_ips: 364.9");
}

// numpy.mean(report["iter"]["total_ips"]) of the script.
TEST(NvidiaLogTest, TheFileHasEveryNthRateInAListOfItsEpoch) {
  const Json all = nvidia_results(some_run("training"), 1);
  ASSERT_EQ(all.at("iter").at("total_ips").items().size(), 1u);
  const std::span<const Json> rates = all.at("iter").at("total_ips").items()[0].items();
  ASSERT_EQ(rates.size(), 5u);
  EXPECT_DOUBLE_EQ(rates[0].as_double(), 160.0);
  EXPECT_DOUBLE_EQ(rates[2].as_double(), 40.0);
  EXPECT_EQ(nvidia_results(some_run("training"), 2).at("iter").at("iteration").dump(),
            "[[20,22,24]]");
  EXPECT_EQ(nvidia_results(some_run("training"), 2).at("iter").at("x").dump(), "[[0,2,4]]");
  EXPECT_EQ(all.at("epoch").dump(), R"({"x":[]})");
  EXPECT_EQ(all.at("event").dump(), "{}");
}

TEST(NvidiaLogTest, TheMeanOfRatesIsNotTheRateOfTheMean) {
  const BenchRun run = some_run("training");
  EXPECT_DOUBLE_EQ(mean_rate(run), (160.0 + 80.0 + 40.0 + 80.0 + 160.0) / 5.0);
  EXPECT_DOUBLE_EQ(run.images_per_second(), 80.0);
}

TEST(NvidiaLogTest, TheSummaryHasTheNamesOfItsMode) {
  const Json train = dllogger_summary(some_run("training"));
  EXPECT_DOUBLE_EQ(train.at("train_throughput").as_double(), 104.0);
  const Json eval = dllogger_summary(some_run("inference"));
  EXPECT_DOUBLE_EQ(eval.at("eval_throughput").as_double(), 104.0);
  EXPECT_DOUBLE_EQ(eval.at("eval_latency_avg").as_double(), 200.0);
  EXPECT_DOUBLE_EQ(eval.at("eval_latency_p50").as_double(), 200.0);
  EXPECT_DOUBLE_EQ(eval.at("eval_latency_p90").as_double(), 320.0);
  EXPECT_DOUBLE_EQ(eval.at("eval_latency_p100").as_double(), 400.0);
}

TEST(NvidiaLogTest, LinesOfDlloggerAreMarkedJson) {
  ::setenv("TZ", "UTC", 1);
  ::tzset();
  EXPECT_EQ(dllogger_line(1'571'680'340'900'000'000, 1'571'680'342'123'456'789, Json::list({0, 20}),
                          Json::object({{"total_ips", 80.5}})),
            R"(DLLL {"timestamp":"1571680342.123456","datetime":"2019-10-21 17:52:22.123456",)"
            R"("elapsedtime":"1.223456","type":"LOG","step":[0,20],"data":{"total_ips":80.5}})");
}

}  // namespace
}  // namespace millrace::report
