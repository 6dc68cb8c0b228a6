// SPDX-License-Identifier: Apache-2.0
//
// Validations of a run over processes and devices: every layout finds the same, to the last bit.
#include <sched.h>
#include <nlohmann/json.hpp>

#include "mpirun.hpp"
#include "run_tables.hpp"

namespace millrace::test {
namespace {

std::string single_line(const ProcessResult& result) {
  EXPECT_EQ(result.code, 0) << result.output;
  EXPECT_EQ(std::ranges::count(result.output, '\n'), 1) << result.output;
  return result.output;
}

/// A run of four stages on two ranks that keeps two checkpoints; made once.
class ValidateLayoutsTest : public testing::Test {
 protected:
  static const fs::path& run() {
    static const TemporaryDirectory directory;
    static const fs::path made = [] {
      fs::path path = directory / "run";
      expect_end(
          train(path,
                "--batch-size 8 --gradients-to-accumulate 4 --iterations 4 --valid-batch-size 24 "
                "--max-ckpts-to-keep 0 --shards 2 --chunks 2 --pipeline-schedule ZB-V "
                "--pipeline-splits auto --ranks 2"),
          0);
      return path;
    }();
    return made;
  }
  static fs::path last() { return run() / "checkpoints/ckpt-4"; }
  static ProcessResult validate(const Words& more) {
    return millrace(Words{"validate --json --restore-path", last()} + more, Capture::Output);
  }
};

TEST_F(ValidateLayoutsTest, EveryLayoutFindsTheSame) {
  const TemporaryDirectory directory;
  const auto table = [&](std::size_t i) { return directory / (std::to_string(i) + ".csv"); };
  const Words layouts[] = {"--shards 1",
                           {},
                           "--ranks 1",
                           "--shards 3 --ranks 3",
                           "--shards 2 --pipeline-splits b2/0/relu --replicas 2 --ranks 2",
                           "--shards 1 --replicas 3 --ranks 1",
                           "--shards 4 --device-mapping 0 1 2 3 0 1"};
  std::vector<std::string> found;
  for (const Words& layout : layouts) {
    const std::size_t i = found.size();
    found.push_back(single_line(validate(layout + Words{"--per-class", table(i)})));
    EXPECT_EQ(found[i], found[0]) << i;
    EXPECT_EQ(read_text(table(i)), read_text(table(0))) << i;
  }
  const auto json = nlohmann::json::parse(found[0]);
  EXPECT_EQ(json.at("images"), 200);
  // The training found the same, over its ranks.
  const Table training(run() / "validation.csv");
  EXPECT_DOUBLE_EQ(training.last("val_acc"), 100.0 * json.at("top1").get<double>());
  EXPECT_NE(read_text(run() / "metrics.jsonl").find(json.at("loss").dump()), std::string::npos);
}

TEST_F(ValidateLayoutsTest, ALauncherMayStartTheRanks) {
  const Words ranks = {"-n 2", std::string(MILLRACE_BINARY), "validate --json --restore-path",
                       last()};
  const auto launched = [&](const Words& more) {
    return run_process("/usr/bin/env", kMpirun + ranks + more, Capture::Output);
  };
  const std::string expected = single_line(validate("--shards 1"));
  EXPECT_EQ(single_line(launched({})), expected);
  EXPECT_EQ(single_line(launched("--shards 1 --replicas 2")), expected);
  EXPECT_EQ(single_line(launched("--shards 4")), expected);  // two devices on a rank
  EXPECT_EQ(single_line(launched("--shards 1")), expected);  // a replica on a rank
  EXPECT_EQ(single_line(launched("--shards 3")), expected);  // two devices, and one
}

/// As the data set has them.
std::vector<std::string> names_of_classes() {
  std::vector<std::string> names = lines_of(read_text(small_data() / "batches.meta.txt"));
  std::erase(names, "");
  return names;
}

/// The set whose test images are those of one class of the small set.
void write_only_class(const fs::path& directory, char label) {
  constexpr std::size_t kRecord = 1 + 3 * 32 * 32;
  const std::string all = read_text(small_data() / "test_batch.bin");
  std::string own;
  for (std::size_t at = 0; at < all.size(); at += kRecord)
    if (all[at] == label) own += all.substr(at, kRecord);
  fs::create_directories(directory);
  std::ofstream(directory / "test_batch.bin", std::ios::binary) << own;
}

// A set with the images of a single class tells what is right for that class. It has no training
// images, which no validation needs.
TEST_F(ValidateLayoutsTest, RowsOfClassesAreThoseOfTheirImagesAlone) {
  const TemporaryDirectory directory;
  const fs::path csv = directory / "classes.csv";
  const auto all = nlohmann::json::parse(single_line(validate({"--per-class", csv})));
  const Table table(csv);
  EXPECT_EQ(table["class"], (std::vector<double>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(table["iteration"], std::vector<double>(10, 4));
  EXPECT_EQ(table.columns().at("name"), names_of_classes());
  const auto sum = [&](const char* column) {
    const std::vector<double> values = table[column];
    return std::accumulate(values.begin(), values.end(), 0.0);
  };
  EXPECT_EQ(sum("images"), 200);
  EXPECT_DOUBLE_EQ(sum("top1") / 200, all.at("top1").get<double>());
  EXPECT_DOUBLE_EQ(sum("top5") / 200, all.at("top5").get<double>());
  for (const std::size_t label : {2u, 7u}) {
    const fs::path alone = directory / std::to_string(label) / "cifar-10-batches-bin";
    write_only_class(alone, static_cast<char>(label));
    const auto one = nlohmann::json::parse(
        single_line(validate(Words{"--ranks 1 --data-dir", alone.parent_path()})));
    ASSERT_GT(table["images"][label], 0);
    EXPECT_EQ(one.at("images").get<double>(), table["images"][label]);
    EXPECT_DOUBLE_EQ(one.at("top1").get<double>() * table["images"][label], table["top1"][label]);
    EXPECT_DOUBLE_EQ(one.at("top5").get<double>() * table["images"][label], table["top5"][label]);
  }
}

TEST_F(ValidateLayoutsTest, AFileThatCannotBeWrittenIsNamedFirst) {
  expect_end(millrace(Words{"validate --ranks 1 --restore-path", last(),
                            "--per-class /nonexistent/classes.csv"}),
             5, {"/nonexistent/classes.csv"});
}

/// A word for env(1) and the words after it that start a command on one core, where a second rank
/// is told of.
Words on_one_core(const Words& line) {
  cpu_set_t mask;
  EXPECT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  int core = 0;
  while (core < CPU_SETSIZE && !CPU_ISSET(core, &mask)) ++core;
  return Words{"taskset -c", std::to_string(core), std::string(MILLRACE_BINARY)} + line;
}

// A network is validated as a whole: replicas would only start more processes.
TEST(ValidateReplicasTest, ThoseOfTheTrainingAreDroppedUnlessTyped) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  expect_end(
      train(run, "--batch-size 8 --iterations 2 --valid-batch-size 24 --replicas 2 --ranks 2"), 0);
  const Words line = {"validate --json --restore-path", run};
  const std::string found =
      single_line(run_process("/usr/bin/env", on_one_core(line), Capture::Both));
  expect_end(run_process("/usr/bin/env", on_one_core(line + "--replicas 2")), 0,
             {"2 ranks share the only core of this machine and take turns", found});
  // A launcher's ranks need not be as many as the training had.
  const Words ranks = {"-n 3", std::string(MILLRACE_BINARY)};
  EXPECT_EQ(single_line(run_process("/usr/bin/env", kMpirun + ranks + line, Capture::Output)),
            found);
  EXPECT_EQ(single_line(millrace(line + "--ranks 1", Capture::Output)), found);
}

}  // namespace
}  // namespace millrace::test
