// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "cli/machine_file.hpp"
#include "cli/open_run.hpp"
#include "cli/planning.hpp"
#include "io/atomic_file.hpp"
#include "support.hpp"
#include "tests/support/expect_error.hpp"

namespace millrace::cli {
namespace {

using testing::Outcome;
using testing::resolve_line;
using testing::run_words;
using testing::TemporaryDirectory;
using testing::words;

partition::Machine machine() {
  partition::Machine m;
  m.name = "some processor";
  m.cores = 4;
  m.instructions = "avx2";
  m.memory = 16'000'000'000;
  m.devices[DType::F32] = {"some processor", 4e10, 9e9, 2e-6, 7e9};
  m.devices[DType::BF16] = {"some processor", 8e10, 9e9, 2e-6, 1.4e10};
  m.link = {.latency = 1.5e-6,
            .bytes_per_second = 4e9,
            .exchanged_per_second = 3e9,
            .receiver_copies = true};
  return m;
}

TEST(MachineFileTest, AFileComesBackAsItWasWritten) {
  const partition::Machine written = machine();
  const partition::Machine read = parse_machine(to_toml(written), "m.toml");
  EXPECT_EQ(read.name, written.name);
  EXPECT_EQ(read.cores, 4);
  EXPECT_EQ(read.instructions, "avx2");
  EXPECT_EQ(read.memory, written.memory);
  EXPECT_EQ(read.devices, written.devices);
  EXPECT_EQ(read.link, written.link);
}

TEST(MachineFileTest, MistakesNameFileLineAndKey) {
  const std::vector<std::pair<std::string, std::string>> table = {
      {"[float64]\n", "m.toml:1: unknown section [float64]; sections: machine, link"},
      {"[float32]\nflops-per-second = 1e9\n", "m.toml:1: [float32] lacks bytes-per-second"},
      {"[link]\nlatency = -1\nbytes-per-second = 1e9\n",
       "m.toml:2: [link] latency: expected a number from 0 to 3600, not -1"},
      {"[link]\nlatency = 0\nbytes-per-second = 0\n", "expected a number from 1 to 1e+24, not 0"},
      {"[link]\nlatency = nan\nbytes-per-second = 1\n", "from 0 to 3600, not nan"},
      {"[link]\nlatency = 1e30\nbytes-per-second = 1\n", "from 0 to 3600, not 1e+30"},
      {"[link]\nlatency = 'none'\nbytes-per-second = 1\n", "expected a number from 0 to 3600"},
      {"[link]\nlatency = 0\nbytes-per-secnd = 1e9\nbytes-per-second = 1e9",
       "m.toml:3: [link] bytes-per-secnd: unknown key; did you mean bytes-per-second?"},
      {"[link]\nlatency = 1e24\nbytes-per-second = 1\n", "from 0 to 3600, not 1e+24"},
      {"[float32]\nflops-per-second = 1\nbytes-per-second = 1\nseconds-per-kernel = 1e5\n",
       "m.toml:4: [float32] seconds-per-kernel: expected a number from 0 to 3600, not 100000"},
      {"[machine]\ncores = 2.5\n",
       "m.toml:2: [machine] cores: expected a whole number from 0 to 1000000, not 2.5"},
      {"[machine]\ncores = 1e20\n", "from 0 to 1000000, not 1e+20"},
      {"[machine]\ncores = -1\n", "from 0 to 1000000, not -1"},
      {"[machine]\ncores = nan\n", "from 0 to 1000000, not nan"},
      {"[machine]\ncores = '2'\n", "expected a whole number from 0 to 1000000"},
      {"[machine]\nmemory = 1e22\n",
       "m.toml:2: [machine] memory: expected a whole number from 0 to 1000000000000000000, not "
       "1e+22"},
      {"[machine]\nname = 3\n", "m.toml:2: [machine] name: expected a quoted string"},
      {"[link]\nlatency = 0\nbytes-per-second = 1\nreceiver-copies = 1\n",
       "expected true or false"},
      {"[link\n", "a machine file has a section such as [float32]"},
  };
  for (const auto& row : table)
    expect_error(ErrorKind::Config, {row.second},
                 [&] { (void)parse_machine(row.first, "m.toml"); });
}

TEST(MachineFileTest, AWholeNumberMayHaveAnExponent) {
  EXPECT_EQ(parse_machine("[machine]\nmemory = 64e9\n", "m.toml").memory, 64'000'000'000);
}

TEST(LoadNoticeTest, ComesWithMoreProgramsThanCores) {
  EXPECT_EQ(load_notice(2.0, 2), "");
  EXPECT_NE(load_notice(7.84, 2).find("is 7.8 on 2 core(s)"), std::string::npos);
}

// ---- plan --devices

nlohmann::json layouts(const std::string& rest) {
  const Outcome plan =
      run_words(words("plan --dataset cifar-10 --model-size 20 --devices 4 "
                      "--total-batch 64 --format json " +
                      rest));
  EXPECT_EQ(plan.code, 0) << plan.err;
  return nlohmann::json::parse(plan.out);
}

TEST(PlanSearchTest, FindsLayoutsThatTrainTakes) {
  const nlohmann::json found = layouts("");
  ASSERT_EQ(found.size(), 3u);
  for (const nlohmann::json& layout : found) {
    const std::string options = layout.at("options");
    const run::Run config =
        resolve_line("--dataset cifar-10 --model-size 20 --synthetic-data " + options).config;
    EXPECT_EQ(config.total_batch(), 64) << options;
    EXPECT_EQ(config.pipeline.ranks.devices * config.pipeline.ranks.replicas, 4) << options;
    EXPECT_NEAR(
        layout.at("images_per_second").get<double>() * layout.at("step_seconds").get<double>(),
        64.0, 1e-6);
    EXPECT_NEAR(layout.at("training_seconds").get<double>(),
                90.0 * 50000 / layout.at("images_per_second").get<double>(), 1e-3);
  }
}

TEST(PlanSearchTest, MachineFilesGiveTheTimes) {
  const TemporaryDirectory directory;
  const std::string file = (directory.path() / "m.toml").string();
  partition::Machine described = machine();
  const auto fastest = [&](const std::string& rest) {
    io::write_file_atomically(file, to_toml(described));
    return layouts("--precision 32.32 --device " + file + rest).at(0);
  };
  const double before = fastest("").at("compute_seconds");
  for (auto& [type, device] : described.devices) {
    device.flops_per_second *= 2;
    device.bytes_per_second *= 2;
    device.seconds_per_kernel /= 2;
    device.depthwise_flops_per_second *= 2;
  }
  EXPECT_NEAR(fastest("").at("compute_seconds"), before / 2, 1e-9);
  const double reduce = fastest(" --link " + file).at("reduce_seconds");
  described.link->bytes_per_second /= 10;
  described.link->exchanged_per_second /= 10;
  EXPECT_GT(fastest(" --link " + file).at("reduce_seconds"), 5 * reduce);
}

// What a plan does not know stands beside what it says.
TEST(PlanLimitsTest, AreSaid) {
  constexpr std::string_view kBound = "The speed is an upper bound: ";
  constexpr std::string_view kNoData = "Planned without data: ";
  const std::string small = "plan --dataset cifar-10 --model-size 8 --batch-size 4 ";
  for (const auto& [more, bound, no_data] : std::vector<std::tuple<std::string, bool, bool>>{
           {"", false, true},
           {"--data-dir /nowhere", false, true},
           {"--generated-data", false, false},
           {"--generated-data --replicas 2", true, false},
           {"--generated-data --shards 2 --pipeline-depth 2", true, false},
           {"--generated-data --shards 2 --pipeline-depth 2 --format json", true, false},
           {"--shards 2 --pipeline-depth 2 --format json", true, true},
           {"--generated-data --format json", false, false},
           {"--synthetic-data --devices 2 --total-batch 8", true, false},
           {"--devices 2 --total-batch 8", true, true},
           {"--devices 2 --total-batch 8 --format json", true, true}}) {
    const bool searches = more.find("--devices") != std::string::npos;
    const Outcome plan =
        run_words(words((searches ? "plan --dataset cifar-10 --model-size 8 " : small) + more));
    EXPECT_EQ(plan.code, 0) << more << plan.err;
    EXPECT_EQ(plan.out.find(kBound) != std::string::npos, bound) << more << plan.out;
    EXPECT_EQ(plan.out.find(kNoData) != std::string::npos, no_data) << more << plan.out;
  }
}

TEST(PlanSearchTest, MistakesEndWithTwoAndOneLine) {
  const TemporaryDirectory directory;
  const std::string file = (directory.path() / "m.toml").string();
  partition::Machine described = machine();
  described.devices.erase(DType::BF16);
  described.link.reset();
  io::write_file_atomically(file, to_toml(described));
  const std::map<std::string, std::string> table = {
      {"--devices 4", "--devices N and --total-batch N go together"},
      {"--total-batch 4", "--devices N and --total-batch N go together"},
      {"--devices 4 --total-batch 64 --shards 2",
       "--shards has no effect with --devices, which searches for it"},
      {"--devices 4 --total-batch 64 --cost-model profile", "bench --machine-file"},
      {"--devices 4 --total-batch 64 --format svg", "a search has only text and json"},
      {"--devices 4 --total-batch 64 --memory 1MB", "no layout of 4 devices fits into 1.00 MB"},
      {"--devices 4 --total-batch 64 --device " + file, "no section [bfloat16]"},
      {"--devices 4 --total-batch 64 --recompute segments",
       "--recompute has no effect with --devices, which searches for it"},
      {"--shards 2 --pipeline-depth 2 --link " + file, "no section [link]"},
      {"--shards 2 --pipeline-depth 2 --cost-model profile --device " + file,
       "leave one of them out"},
  };
  for (const auto& [line, message] : table) {
    const Outcome plan = run_words(words("plan --dataset cifar-10 --model-size 20 " + line));
    EXPECT_EQ(plan.code, 2) << line;
    EXPECT_NE(plan.err.find(message), std::string::npos) << line << '\n' << plan.err;
  }
}

// ---- auto

// With one micro-batch a run chooses its cuts by memory, whatever orders its stages; so it does
// where nothing speaks of a pipeline.
TEST(PlannedCutsTest, AreThoseOfARunWithOneMicroBatch) {
  for (const char* more : {"", "--pipeline-schedule GPipe", "--pipeline-schedule auto",
                           "--device-mapping 1 0", "--chunks 1", "--gradients-to-accumulate 4"}) {
    const Patch run = testing::train_options(
        std::string("--dataset cifar-10 --model-size 20 --synthetic-data --shards 2 ") + more);
    const Patch planned = options_to_plan(run);
    EXPECT_EQ(resolve(planned, published_facts(planned), {.cores = 2}).config.splits,
              resolve(run, published_facts(run), {.cores = 2}).config.splits)
        << more;
  }
}

// A restored run must not search again: it has the schedule and the cuts that were found.
TEST(AutomaticScheduleTest, IsRecordedWithItsCuts) {
  const std::string line =
      "--dataset cifar-10 --model-size 20 --synthetic-data --batch-size 8 --shards 4 "
      "--pipeline-depth 8 --pipeline-schedule auto --pipeline-splits auto";
  const Resolution found = resolve_line(line);
  const Patch recorded = parse_config(to_toml(found.config), "config.toml");
  EXPECT_NE(recorded.text("pipeline-splits"), "auto");
  const Resolution again = resolve(recorded, published_facts(recorded), {.cores = 2});
  EXPECT_EQ(again.config.pipeline.schedule, found.config.pipeline.schedule);
  EXPECT_EQ(again.config.splits, found.config.splits);
}

// ---- failures

const std::string kEightReplicas =
    "plan --dataset cifar-10 --model-size 8 --replicas 8 --batch-size 16 -q ";
const std::string kFailures =
    kEightReplicas + "--failures-per-day 0.5 --devices-per-host 2 --restart-time 30 ";

TEST(PlannedFailuresTest, AreATableWithWhatToType) {
  const Outcome plan = run_words(words(kFailures));
  ASSERT_EQ(plan.code, 0) << plan.err;
  for (const char* part :
       {"With failures: 4 hosts, a failure every 13 h.", "100 s: 60 s to notice it",
        "checkpoint every  updates  by formula  goodput", "The best interval: ", " by Young's.",
        "To type: --checkpoint-every "})
    EXPECT_NE(plan.out.find(part), std::string::npos) << part << '\n' << plan.out;
}

TEST(PlannedFailuresTest, AreTheSameNumbersInEveryFormat) {
  const std::string text = run_words(words(kFailures)).out;
  const std::string json = run_words(words(kFailures + "--format json")).out;
  const auto failures = nlohmann::json::parse(json).at("failures");
  EXPECT_EQ(failures.at("hosts"), 4);
  EXPECT_EQ(failures.at("recovery_seconds"), 100.0);
  const std::string typed = failures.at("checkpoint_every");
  EXPECT_NE(text.find("--checkpoint-every " + typed + "\n"), std::string::npos) << typed;
  const double best = failures.at("best").at("goodput");
  const std::string share = fmt::format("with a goodput of {:.2f} %", 100.0 * best);
  EXPECT_NE(text.find(share), std::string::npos) << share << '\n' << text;
  for (const auto& point : failures.at("intervals")) EXPECT_LE(point.at("goodput"), best + 1e-4);
  EXPECT_EQ(partition::parse_plan(json, "plan.json").batch, 16);  // still a file for --plan
  const std::string svg = run_words(words(kFailures + "--format svg")).out;
  EXPECT_NE(svg.find("Goodput of 4 hosts"), std::string::npos) << svg;
}

TEST(PlannedFailuresTest, RefusesOptionsWithoutAnEffect) {
  const std::vector<std::pair<std::string, std::string>> table = {
      {kEightReplicas + "--repair-hours 3",
       "--repair-hours has no effect without --failures-per-day"},
      {kEightReplicas + "--hang-timeout 60",
       "--hang-timeout has no effect without --failures-per-day"},
      {kFailures + "--format csv", "--failures-per-day has no effect on the schedule"},
      {kFailures + "--hang-timeout 0", "the loss of a host is never noticed"},
      {kEightReplicas + "--failures-per-day 0", "--failures-per-day"},
      {"plan --dataset cifar-10 --model-size 8 --devices 4 --total-batch 64 --failures-per-day 1",
       "--failures-per-day has no effect with --devices"}};
  for (const auto& [line, message] : table) {
    const Outcome plan = run_words(words(line));
    EXPECT_EQ(plan.code, 2) << line;
    EXPECT_NE(plan.err.find(message), std::string::npos) << line << '\n' << plan.err;
  }
}

}  // namespace
}  // namespace millrace::cli
