// SPDX-License-Identifier: Apache-2.0
//
// One rank sees something else than the others or has other options. It is named before anything is
// trained or written, and no rank waits forever.
#include <thread>

#include "file_shim.hpp"
#include "mpirun.hpp"

namespace millrace::test {
namespace {

const Words kLayout = {"--shards 2 --pipeline-splits b2/0/relu"};
const Words kLength = {
    "--batch-size 8 --gradients-to-accumulate 4 --threads-per-device 1 --warmup-epochs 0"};

/// A difference in one rank, and the expected message.
struct Difference {
  const char* name;
  Environment environment;  ///< only of this rank
  Words options;            ///< after those of all ranks
  std::string said;
  int code;
  int rank = 1;
};

Environment shim(const std::string& rule, int rank = 1) { return file_shim(rank, {rule}); }

/// Runs millrace on two or more ranks, one of which differs. It may be another program, too.
ProcessResult on_ranks(int ranks, const Words& command, const Difference& difference,
                       const std::string& program = MILLRACE_BINARY) {
  Words all = kMpirun;
  for (int rank = 0; rank < ranks; ++rank) {
    const bool differs = rank == difference.rank;
    if (rank > 0) all.emplace_back(":");
    all = all + Words{"-n 1 env"} + (differs ? difference.environment : Environment{}) +
          Words{differs ? program : std::string(MILLRACE_BINARY)} + command +
          (differs ? difference.options : Words{});
  }
  return run_process("/usr/bin/env", all);
}

ProcessResult on_two_ranks(const Words& command, const Difference& difference) {
  return on_ranks(2, command, difference);
}

/// Every file below a directory with its contents.
std::map<std::string, std::string> contents_of(const fs::path& directory) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory))
    if (entry.is_regular_file() && entry.path().filename() != ".lock")
      files[fs::relative(entry.path(), directory).string()] = read_text(entry.path());
  return files;
}

void expect_named(const ProcessResult& result, const Difference& difference) {
  // A file that only rank 0 lacks is reported for the other rank.
  const std::string named = "rank " + std::to_string(std::max(1, difference.rank)) + ":";
  expect_end(result, difference.code, {difference.said, named});
}

/// Two variants of the data set: one with two images of different classes exchanged, one shorter.
fs::path other_data(const char* which) {
  static const TemporaryDirectory directory;
  if (!fs::exists(directory / "reordered")) {
    constexpr std::size_t kRecord = 3073;
    for (const char* name : {"reordered", "shorter"})
      fs::copy(small_data(), directory / name, fs::copy_options::recursive);
    std::string images = read_text(small_data() / "data_batch_1.bin");
    fs::resize_file(directory / "shorter" / "data_batch_1.bin", images.size() - 64 * kRecord);
    fs::remove(directory / "shorter" /
               "millrace-records.txt");  // otherwise it is refused as incomplete
    std::rotate(images.begin(), images.begin() + kRecord, images.end());
    std::ofstream(directory / "reordered" / "data_batch_1.bin", std::ios::binary) << images;
  }
  return directory / which;
}

Environment with_other_data(const char* which) {
  return shim("MILLRACE_SHIM_SWAP=" + small_data().string() + "=>" + other_data(which).string());
}

// ---- training -----------------------------------------------------------------------------------

/// Does this for all differences, some at once: ranks mostly wait for each other to start.
template <class Action>
void for_each_at_once(const std::vector<Difference>& all, const Action& action) {
  constexpr std::size_t kAtOnce = 4;
  for (std::size_t begin = 0; begin < all.size(); begin += kAtOnce) {
    std::vector<std::jthread> threads;
    for (std::size_t i = begin; i < std::min(begin + kAtOnce, all.size()); ++i)
      threads.emplace_back([&action, &one = all[i]] {
        SCOPED_TRACE(one.name);
        action(one);
      });
  }
}

/// Expects that `difference` is named and that nothing is written.
void expect_refused(int ranks, const Words& command, const Difference& difference,
                    const std::string& program = MILLRACE_BINARY) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  expect_named(on_ranks(ranks, command + kLength + Words{"--run-dir", run}, difference, program),
               difference);
  EXPECT_FALSE(fs::exists(run));
}

TEST(TrainingTest, WhoeverDiffersIsNamedAndNothingIsWritten) {
  const std::vector<Difference> differences = {
      Difference{"Splits", {}, {"--pipeline-splits b3/0/relu"}, "b3/0/relu", 2},
      Difference{"Stages", {}, {"--shards 3"}, "shards = 3 here, shards = 2 on rank 0", 2},
      Difference{"End", {}, {"--stop-after 3"}, "stop-after = 3 here, not given on rank 0", 2},
      Difference{"Threads", {}, {"--threads-per-device 2"}, "= 2 here, ", 2},
      Difference{"Trace", {}, {"--trace t.json"}, "trace = t.json on rank 0", 2, 0},
      Difference{"Timeout", {}, {"--hang-timeout 9"}, "= 9 here, not given on rank 0", 2},
      Difference{"Leader", {}, {"--seed 7"}, "seed = 7 on rank 0", 2, 0},
      Difference{"Level", {"MILLRACE_MAX_ISA=sse4.2"}, {}, "kernels: own loops sse4.2", 2},
      Difference{"Kokkos", {"KOKKOS_NUM_THREADS=3"}, {}, "KOKKOS_NUM_THREADS=3: ", 2},
      Difference{"Library", {"ONEDNN_MAX_CPU_ISA=SSE41"}, {}, "up to sse41 here", 2},
      Difference{"ReorderedData", with_other_data("reordered"), {}, "training images: ", 3},
      Difference{"ShorterData", with_other_data("shorter"), {}, "576 images", 3},
      Difference{"UnreadableData",
                 shim("MILLRACE_SHIM_DENY=data_batch_1.bin"),
                 {},
                 "data_batch_1.bin",
                 5}};
  const Words command = small_training() + kLayout + Words{"--iterations 4"};
  for_each_at_once(differences, [&](const Difference& one) { expect_refused(2, command, one); });
}

TEST(RankTest, OneOfFourIsNamed) {
  expect_refused(4, small_training() + Words{"--shards 4 --pipeline-splits auto"},
                 {"", {}, {"--seed 7"}, "seed = 7 here, not given on rank 0", 2, 2});
}

// Ranks with schedules of their own would wait for each other.
TEST(RankTest, TheScheduleFileOfRank0IsThatOfAll) {
  const TemporaryDirectory directory;
  const auto file = [&](const std::string& schedule) {
    const ProcessResult plan =
        millrace(Words{"plan --dataset cifar-10 --model-size 8 --pipeline-schedule", schedule,
                       "--format csv"} +
                     kLayout + Words{"--gradients-to-accumulate 4"},
                 Capture::Output);
    EXPECT_EQ(plan.code, 0) << plan.output;
    std::ofstream(directory / schedule) << plan.output;
    return (directory / schedule).string();
  };
  const std::string own = file("GPipe");
  const Words command = small_training() + kLayout + kLength +
                        Words{"--iterations 2 --no-logs --pipeline-schedule-file", own};
  const Environment other = shim("MILLRACE_SHIM_SWAP=" + own + "=>" + file("1F1B"));
  expect_end(on_two_ranks(command, {"", other, {}, "", 0}), 0, {"schedule " + own});
}

/// The same program in which the commit of its build is another.
TEST(RankTest, OneOfAnotherBuildIsNamed) {
  const std::string version = millrace({"--version"}).output;
  const std::size_t begin = version.find('(') + 1;
  const std::string commit = version.substr(begin, version.find(')') - begin);
  ASSERT_GE(commit.size(), 5u) << version;
  std::string bytes = read_text(MILLRACE_BINARY);
  std::string other = commit;
  std::reverse(other.begin(), other.end());
  ASSERT_NE(other, commit);
  std::size_t places = 0;
  for (std::size_t at = bytes.find(commit); at != bytes.npos; at = bytes.find(commit, at + 1)) {
    bytes.replace(at, commit.size(), other);
    ++places;
  }
  ASSERT_GT(places, 0u);
  const TemporaryDirectory directory;
  const fs::path program = directory / "millrace";
  std::ofstream(program, std::ios::binary) << bytes;
  fs::permissions(program, fs::perms::owner_all);
  expect_refused(2, small_training() + kLayout, {"", {}, {}, "build: millrace", 2},
                 program.string());
}

// ---- restoring ----------------------------------------------------------------------------------

/// Two runs of four iterations, stopped after two, with a checkpoint after each.
class RestoringTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    for (const char* seed : {"5", "6"}) {
      const fs::path run = pristine() / seed;
      ASSERT_EQ(millrace(small_training() + kLength + kLayout +
                         Words{"--iterations 4 --stop-after 1 --seed", seed,
                               "--max-ckpts-to-keep 0 --ranks 1 --run-dir", run})
                    .code,
                75);
      ASSERT_EQ(millrace({"restore --restore-path", run, "--stop-after 1 --ranks 1"}).code, 75);
    }
    fs::copy(pristine() / "5", pristine() / "whole", fs::copy_options::recursive);
    ASSERT_EQ(millrace({"restore --restore-path", pristine() / "whole", "--ranks 1"}).code, 0);
  }
  void SetUp() override {
    for (const char* seed : {"5", "6"})
      fs::copy(pristine() / seed, directory_ / seed, fs::copy_options::recursive);
  }
  static const TemporaryDirectory& pristine() {
    static const TemporaryDirectory shared;
    return shared;
  }
  [[nodiscard]] fs::path run() const { return directory_ / "5"; }
  [[nodiscard]] ProcessResult restore(const Difference& difference) const {
    return on_two_ranks({"restore --restore-path", run(), "--ranks 2"}, difference);
  }

  TemporaryDirectory directory_;
};

TEST_F(RestoringTest, WhoeverDiffersIsNamedAndNothingIsWritten) {
  const std::vector<Difference> differences = {
      Difference{"Splits", {}, {"--pipeline-splits b3/0/relu"}, "b3/0/relu", 2},
      Difference{"Path", {}, {"--restore-path 6"}, "restore-path = 6 here", 2},
      Difference{"End", {}, {"--stop-after 3"}, "stop-after = 3 here", 2},
      Difference{"Level", {"MILLRACE_MAX_ISA=sse4.2"}, {}, "kernels: own loops sse4.2", 2},
      Difference{"ReorderedData", with_other_data("reordered"), {}, "training images: ", 3},
      Difference{"OtherDirectory",
                 shim("MILLRACE_SHIM_SWAP=/5/.lock=>/6/.lock"),
                 {},
                 "is not the run directory of rank 0",
                 5},
      Difference{"UnreadableCheckpoint", shim("MILLRACE_SHIM_DENY=ckpt-2/"), {}, "ckpt-2", 6},
      Difference{"UnreadablePart", shim("MILLRACE_SHIM_DENY=ckpt-2/part"), {}, "part-000.h5", 6},
      Difference{"MissingCheckpoint", shim("MILLRACE_SHIM_SWAP=ckpt-2=>ckpt-7"), {}, "ckpt-2", 6},
      Difference{"OlderCheckpoint",
                 shim("MILLRACE_SHIM_SWAP=ckpt-2/=>ckpt-1/"),
                 {},
                 "contains iteration 1",
                 6},
      Difference{"OtherRun",
                 shim("MILLRACE_SHIM_SWAP=/5/checkpoints/=>/6/checkpoints/"),
                 {},
                 "differs from the checkpoint of that name on rank 0",
                 6},
      Difference{"OtherPart",
                 shim("MILLRACE_SHIM_SWAP=/5/checkpoints/ckpt-2/part=>/6/checkpoints/ckpt-2/part"),
                 {},
                 "part-000.h5: damaged",
                 6}};
  for_each_at_once(differences, [](const Difference& one) {
    const TemporaryDirectory directory;
    for (const char* seed : {"5", "6"})
      fs::copy(pristine() / seed, directory / seed, fs::copy_options::recursive);
    const auto before = contents_of(directory / "5");
    expect_named(on_two_ranks({"restore --restore-path", directory / "5", "--ranks 2"}, one), one);
    EXPECT_EQ(contents_of(directory / "5"), before);
  });
}

TEST_F(RestoringTest, ARankThatValidatesIsNamed) {
  const Words rank = {"-n 1", std::string(MILLRACE_BINARY)};
  const Words run_of = {"--restore-path", run()};
  expect_end(run_process("/usr/bin/env",
                         kMpirun + rank + "restore" + run_of + ":" + rank + "validate" + run_of),
             2, {"command = validate here, command = restore on rank 0"});
}

/// Rank 0 decides about files that the others cannot read: they use what it found.
TEST_F(RestoringTest, FilesThatRankZeroAloneReadsStopNobody) {
  for (const char* file :
       {"/config.toml", "/validation.csv", "/training.csv", "/checkpoints/ckpt-1"}) {
    fs::remove_all(run());
    fs::copy(pristine() / "5", run(), fs::copy_options::recursive);
    expect_end(restore({"", shim("MILLRACE_SHIM_DENY=/5" + std::string(file)), {}, "", 0}), 0);
    EXPECT_EQ(digest_of(run()), digest_of(pristine() / "whole")) << file;
  }
}

/// All ranks restore what rank 0 can read, and reach the same result.
TEST_F(RestoringTest, ACheckpointThatRankZeroCannotReadIsPassedOverByAll) {
  expect_end(restore({"", shim("MILLRACE_SHIM_DENY=ckpt-2/", 0), {}, "", 0, 0}), 0,
             {"Restoring training from latest checkpoint: " +
              (run() / "checkpoints" / "ckpt-1").string()});
  EXPECT_EQ(digest_of(run()), digest_of(pristine() / "whole"));
}

TEST_F(RestoringTest, WeightsToBeginWithAreTheSameOnAllRanks) {
  const auto begin = [&](const Environment& environment, const std::string& said) {
    const Difference difference{"", environment, {}, said, 6};
    const fs::path fresh = directory_ / "fresh";
    expect_named(on_two_ranks(small_training() + kLength + kLayout +
                                  Words{"--iterations 2 --init-path", run(), "--run-dir", fresh},
                              difference),
                 difference);
    EXPECT_FALSE(fs::exists(fresh));
  };
  begin(shim("MILLRACE_SHIM_DENY=ckpt-2/"), "ckpt-2");
  begin(shim("MILLRACE_SHIM_SWAP=/5/checkpoints/=>/6/checkpoints/"),
        "differs from the checkpoint of that name on rank 0");
}

}  // namespace
}  // namespace millrace::test
