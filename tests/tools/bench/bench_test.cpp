// SPDX-License-Identifier: Apache-2.0
//
// `millrace bench`: NVIDIA's two benchmark modes on their own command lines, and tables of runs.
// How fast anything is does not matter.
#include <nlohmann/json.hpp>
#include <regex>

#include "millrace.hpp"

namespace millrace::test {
namespace {

using nlohmann::json;

const Words kSmall = "--dataset cifar-10 --model-size 8 --threads-per-device 1";

/// The JSON that a command prints.
json printed(const Words& words) {
  const ProcessResult result = millrace(words, Capture::Output);
  EXPECT_EQ(result.code, 0) << result.output;
  return json::parse(result.output, nullptr, false);
}

void expect_near(const json& number, double expected) {
  ASSERT_TRUE(number.is_number()) << number;
  EXPECT_NEAR(number.get<double>(), expected, 1e-9 * expected);
}

// tests/tools/bench has the numbers that follow from the steps.
TEST(BenchTableTest, HasARowForEveryRun) {
  const json table =
      printed(Words("bench") + kSmall +
              "--training --batch-sizes 4 --ranks 1,2 --precision 16.32,32.32 --warmup-steps 1 "
              "--steps 2 --format json -q");
  const json& rows = table["rows"];
  ASSERT_EQ(rows.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    const json& run = rows[i]["run"];
    SCOPED_TRACE(run.dump());
    EXPECT_EQ(rows[i]["ranks"], i < 2 ? 1 : 2);
    EXPECT_EQ(rows[i]["precision"], i % 2 == 0 ? "16.32" : "32.32");
    EXPECT_EQ(run["mode"], "training");
    EXPECT_EQ(run["step_ms"].size(), 2u);
    EXPECT_EQ(run["images_per_step"], 4 * rows[i]["ranks"].get<int>());
    EXPECT_EQ(run["images"], "synthetic images of 32x32x3 in the memory of the device");
  }
}

TEST(BenchTableTest, GoesOnBehindARunThatFails) {
  expect_end(
      millrace(Words("bench") + kSmall +
               "--inference --batch-sizes 1,1073741824,2 --warmup-steps 0 --steps 1 --format csv"),
      2,
      {"millrace: error: batch 1073741824: ", "inference,1,1,16.32,1,0,1,",
       "\n,1073741824,1,16.32,,,,", "inference,2,1,16.32,1,0,1,"});
}

TEST(BenchTableTest, RefusesWhatConcernsASingleRun) {
  const TemporaryDirectory directory;
  const Words two = Words("bench") + kSmall + "--ranks 1,2";
  expect_end(millrace(two + "--replicas 2"), 2,
             {"--replicas sets the replicas of a single run, but --ranks lists several"});
  expect_end(millrace(two + Words{"--results-file", directory / "r.json"}), 2,
             {"--results-file writes a single run, but --ranks lists several"});
  expect_end(millrace(two + "--shards 2"), 2,
             {"--ranks: 1 processes cannot hold whole replicas of --shards 2"});
  expect_end(millrace(two + "--format svg"), 2, {"a benchmark prints text, json or csv"});
  expect_end(millrace("bench --batch-sizes 2,2"), 2, {"--batch-sizes: 2 is listed twice"});
  expect_end(millrace("bench --batch-sizes 2,0"), 2, {"--batch-sizes", "'0'"});
  expect_end(millrace("bench --batch-sizes 2,4 --batch-size 8"), 2, {"exclude each other"});
  expect_end(millrace("train --precision 16.32,32.32"), 2, {"--precision: '16.32,32.32'"});
}

TEST(BenchKernelsTest, SumsUpTheKernelsOfAllRanks) {
  const Words line = Words("bench --kernels --json --batch-size 2 --warmup-steps 0 --steps 2 -q") +
                     kSmall + "--replicas 2";
  const ProcessResult result = millrace(line, Capture::Output);
  if (result.code == 2) return expect_end(millrace(line), 2, {"computes on another device"});
  ASSERT_EQ(result.code, 0) << result.output;
  const json bench = json::parse(result.output, nullptr, false);
  EXPECT_EQ(bench["ranks"], 2);
  EXPECT_EQ(bench["step_ms"].size(), 2u);
  EXPECT_EQ(bench["peaks"].back()["name"], "copying");
  double seconds = 0.0;
  double forward = 0.0;
  for (const json& kernel : bench["kernels"]) {
    seconds += kernel["seconds"].get<double>();
    if (kernel["kernel"] == "LinearForward") forward += kernel["count"].get<double>();
  }
  expect_near(bench["step_seconds"], seconds);
  const json& ops = bench["ops"];
  EXPECT_DOUBLE_EQ(forward, 2.0 * (ops["Conv"].get<double>() + ops["Dense"].get<double>()));
}

TEST(InferenceTest, HasTheLossAndTheAccuracyOfAValidation) {
  const Words data = Words{"--data-dir", small_data(), "--seed 3"} + kSmall;
  const json bench =
      printed(Words("bench --inference --json --batch-size 20 --warmup-steps 0 --steps 10") + data);
  const json validation = printed(Words("validate --json --batch-size 20") + data);
  EXPECT_EQ(bench["measured_images"], 200);
  EXPECT_EQ(validation["images"], 200);
  for (const char* name : {"top1", "top5"}) EXPECT_EQ(bench[name], validation[name]) << name;
  expect_near(bench["loss"], validation["loss"].get<double>());
  EXPECT_EQ(bench["images"], "validation images of 32x32x3 from " + small_data().string());
}

TEST(InferenceTest, RunsOverReplicasAndStages) {
  for (const char* layout :
       {"--replicas 2", "--shards 2 --pipeline-splits b2/0/relu --gradients-to-accumulate 3"}) {
    const json run =
        printed(Words("bench --inference --json --batch-size 2 --warmup-steps 1 --steps 2 -q") +
                kSmall + layout);
    EXPECT_EQ(run["ranks"], 2) << layout;
    EXPECT_EQ(run["step_ms"].size(), 2u);
    EXPECT_EQ(run["measured_images"], 2 * run["images_per_step"].get<int>());
  }
}

TEST(InferenceTest, RefusesWhatOnlyTrainingsHave) {
  const Words inference = Words("bench --inference") + kSmall;
  expect_end(millrace(inference + "--training"), 2, {"exclude each other"});
  expect_end(millrace(inference + "--device-memory 1GB"), 2, {"--device-memory limits a training"});
  expect_end(millrace(inference + "--generated-data --dataset-benchmark"), 2,
             {"leave --inference out"});
}

/// The number behind each "name: " in the lines of NVIDIA's logger.
std::vector<double> logged(const std::string& output, const std::string& name) {
  std::vector<double> values;
  const std::regex line(":::NVLOGv0\\.2\\.3 resnet \\d+\\.\\d{9} \\(millrace:0\\) " + name +
                        ": ([-+.e\\d]+)\n");
  for (std::sregex_iterator at(output.begin(), output.end(), line), end; at != end; ++at)
    values.push_back(std::stod((*at)[1]));
  return values;
}

/// The data of the lines of a DLLogger.
std::vector<json> dllogger_lines(const fs::path& file) {
  std::vector<json> lines;
  for (const std::string& line : lines_of(read_text(file))) {
    EXPECT_EQ(line.substr(0, 5), "DLLL ");
    lines.push_back(json::parse(line.substr(5), nullptr, false));
    EXPECT_EQ(lines.back()["type"], "LOG") << line;
  }
  return lines;
}

// The rest of the line makes the network small.
const Words kNvidia = Words("train --dialect nvidia main.py") + kSmall + "--classes 10";

TEST(NvidiaModesTest, TrainingBenchmark) {
  const TemporaryDirectory directory;
  const fs::path results = directory / "results";
  const ProcessResult result = millrace(
      kNvidia +
      Words{"--mode=training_benchmark --use_tf_amp --warmup_steps 2 --num_iter 7 --iter_unit "
            "batch --display_every 2 --batch_size 4 --log_filename raport.json --results_dir",
            results});
  expect_end(result, 0, {"Starting Model Training...\n", "Total Steps: 7\n"});
  EXPECT_EQ(logged(result.output, "iteration"), (std::vector<double>{2, 4, 6}));
  const std::vector<double> rates = logged(result.output, "total_ips");
  ASSERT_EQ(rates.size(), 3u);
  // The file that NVIDIA's script averages has the same rates.
  const json file = json::parse(read_text(results / "training_benchmark.json"), nullptr, false);
  const json& iter = file["iter"];
  EXPECT_EQ(iter["iteration"], json::parse("[[2,4,6]]"));
  for (std::size_t i = 0; i < 3; ++i) expect_near(iter["total_ips"][0][i], rates[i]);
  // The log has every measured step, and the mean that was printed.
  const std::vector<json> lines = dllogger_lines(results / "raport.json");
  ASSERT_EQ(lines.size(), 7u) << "parameters, five steps, the summary";
  EXPECT_EQ(lines[0]["step"], "PARAMETER");
  EXPECT_EQ(lines[0]["data"]["batch-size"], "4");
  double sum = 0.0;
  for (std::size_t i = 1; i <= 5; ++i) {
    EXPECT_EQ(lines[i]["step"], json::parse("[0," + std::to_string(i + 1) + "]"));
    sum += lines[i]["data"]["total_ips"].get<double>();
  }
  const json& summary = lines[6]["data"];
  expect_near(summary["train_throughput"], sum / 5.0);
  ASSERT_EQ(logged(result.output, "Average total_ips").size(), 1u);
  expect_near(summary["train_throughput"], logged(result.output, "Average total_ips")[0]);
  for (const char* name : {"avg", "p50", "p90", "p95", "p99", "p100"})
    EXPECT_EQ(logged(result.output, std::string("train_latency_") + name).size(), 1u) << name;
}

// A line of the guide without --num_iter measures the first epoch: 640 images are 80 batches of 8.
TEST(NvidiaModesTest, WithoutALengthTheFirstEpochIsMeasured) {
  const Words line =
      kNvidia + Words{"--mode=training_benchmark --batch_size 8 --data_dir", small_data()};
  const ProcessResult result = millrace(line + "--warmup_steps 77");
  expect_end(result, 0, {"(median of 3; "});
  EXPECT_EQ(logged(result.output, "iteration"), (std::vector<double>{77}));
  expect_end(millrace(line + "--warmup_steps 80"), 2,
             {"1 epoch(s) of 640 images have 80 batches of 8, which leaves none to measure after "
              "80 warm-up steps"});
}

TEST(BenchTest, ShowsItsProgressOnATerminalOnly) {
  const Words words = Words("bench --inference --batch-size 1 --steps 3 --warmup-steps 2") + kSmall;
  EXPECT_EQ(millrace(words).output.find('\r'), std::string::npos);
  if (!fs::exists("/usr/bin/script")) GTEST_SKIP() << "needs script(1)";
  std::string line = MILLRACE_BINARY;
  for (const std::string& word : words) line += ' ' + word;
  expect_end(run_process("/usr/bin/env", Words{"TERM=xterm script -qec", line, "/dev/null"}), 0,
             {"\rwarm-up: step 1 of 2", "\033[K", "(median of 3; "});
}

}  // namespace
}  // namespace millrace::test
