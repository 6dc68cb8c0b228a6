// SPDX-License-Identifier: Apache-2.0
#include "train/partner_snapshots.hpp"

#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "core/error.hpp"
#include "tests/support/expect_error.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/two_ranks.hpp"
#include "tests/train/small_run.hpp"
#include "train/checkpoint_writer.hpp"

namespace millrace::training {
namespace {

run::Run config_of(const small::Layout& layout, std::int32_t ranks, const fs::path& run) {
  run::Run config = small::planned(layout);
  config.pipeline.ranks.ranks = ranks;
  config.partner_every = 1;
  config.run_directory = run;
  return config;
}

std::vector<PartPlaces> places(const small::Layout& layout, bool divided,
                               const std::vector<std::string>& hosts) {
  const run::Run config = config_of(layout, static_cast<std::int32_t>(hosts.size()), {});
  return places_of_parts(config.pipeline, divided, hosts);
}

TEST(PartPlacesTest, APartIsOnTwoHosts) {
  const small::Layout replicas{.stages = 2, .schedule = "1F1B", .replicas = 2};
  // The replica on the other host has it anyway.
  EXPECT_EQ(places(replicas, false, {"a", "a", "b", "b"}),
            (std::vector<PartPlaces>{{0, 0, 0, 2, 1}, {1, 0, 1, 3, 1}}));
  // Both replicas of a stage are on one host, or each has slots of its own.
  EXPECT_EQ(places(replicas, false, {"a", "b", "a", "b"}),
            (std::vector<PartPlaces>{{0, 0, 0, 3, -1}, {1, 0, 1, 0, -1}}));
  EXPECT_EQ(places(replicas, true, {"a", "a", "b", "b"}),
            (std::vector<PartPlaces>{
                {0, 0, 0, 2, -1}, {1, 0, 1, 3, -1}, {0, 1, 2, 0, -1}, {1, 1, 3, 1, -1}}));
  // One rank has two stages.
  EXPECT_EQ(places(replicas, false, {"a", "b", "b"}),
            (std::vector<PartPlaces>{{0, 0, 0, 1, 1}, {1, 0, 0, 2, 1}}));
  const small::Layout alone{.stages = 2, .schedule = "1F1B"};
  EXPECT_EQ(places(alone, false, {"a", "b"}),
            (std::vector<PartPlaces>{{0, 0, 0, 1, -1}, {1, 0, 1, 0, -1}}));
  EXPECT_TRUE(places(alone, false, {"a", "b"})[0].is_sent());
  EXPECT_EQ(places(alone, false, {"a", "a"}),
            (std::vector<PartPlaces>{{0, 0, 0, -1, -1}, {1, 0, 1, -1, -1}}));
}

/// Two hosts, which are directories, and a network of three tensors in two parts.
class NewestWholeTest : public testing::Test {
 protected:
  /// As a rank of the host writes it.
  void keep(const std::string& host, std::int64_t iteration, int part, bool complete = true) const {
    const fs::path directory = memory_ / host / std::to_string(iteration);
    fs::create_directories(directory);
    std::vector<io::NamedTensor> tensors;
    for (const std::string& name :
         part == 0 ? std::vector<std::string>{"c", "a"} : std::vector<std::string>{"b"})
      tensors.push_back({.info = info_of(name), .data = std::as_bytes(std::span(values_))});
    io::CheckpointHeader header;
    header.iteration = iteration;
    const std::string text = io::write_checkpoint_part(directory, part, header, tensors);
    if (complete) std::ofstream(directory / fmt::format("part-{:03}.json", part)) << text;
  }
  static io::TensorInfo info_of(const std::string& name) {
    return {name, io::TensorRole::Parameter, DType::F32, {4}};
  }
  /// "20: 0@1 1@0": update, then each part and the rank that has it.
  [[nodiscard]] std::string found(std::int64_t behind = 0) {
    complaints_.clear();
    std::vector<HeldPart> held = parts_in(memory_ / "a", 0, complaints_);
    for (HeldPart& part : parts_in(memory_ / "b", 1, complaints_)) held.push_back(std::move(part));
    const std::vector<io::TensorInfo> network = {info_of("a"), info_of("b"), info_of("c")};
    std::string text;
    for (const HeldPart& part : newest_whole(held, network, behind, complaints_)) {
      if (text.empty()) text = fmt::format("{}:", part.manifest.header.iteration);
      text += fmt::format(" {}@{}", part.file.filename().string().substr(7, 1), part.rank);
    }
    return text;
  }

  test::TemporaryDirectory memory_;
  std::vector<float> values_ = {1.0f, 2.0f, 3.0f, 4.0f};
  std::vector<std::string> complaints_;
};

TEST_F(NewestWholeTest, IsTakenOverAllHosts) {
  EXPECT_EQ(found(), "");
  for (const std::int64_t iteration : {10, 20}) {
    keep("a", iteration, 0);
    keep("b", iteration, 1);
  }
  keep("b", 20, 0);  // twice
  EXPECT_EQ(found(), "20: 0@0 1@1");
  EXPECT_TRUE(complaints_.empty());
  EXPECT_EQ(found(19), "20: 0@0 1@1");
  EXPECT_EQ(found(20), "") << "the checkpoint is as new";
  fs::remove_all(memory_ / "a");  // the host is lost
  EXPECT_EQ(found(), "20: 0@1 1@1");
  fs::remove(memory_ / "b/20/part-000.json");
  EXPECT_EQ(found(), "");
  EXPECT_EQ(complaints_.size(), 2u);
}

TEST_F(NewestWholeTest, AMissingPartLeavesTheOlderOne) {
  for (const int part : {0, 1}) keep("a", 10, part);
  keep("a", 20, 0);
  keep("b", 20, 1, false);  // its writer was killed
  EXPECT_EQ(found(), "10: 0@0 1@0");
  ASSERT_EQ(complaints_.size(), 1u);
  EXPECT_EQ(complaints_[0],
            "The snapshot after update 20 is not whole: 2 of 3 tensors are in memory; it is left "
            "out");
}

TEST_F(NewestWholeTest, ADamagedPartIsLeftOut) {
  for (const int part : {0, 1}) keep("a", 20, part);
  const fs::path file = memory_ / "a/20/part-001.h5";
  std::fstream(file, std::ios::in | std::ios::out).seekp(-9, std::ios::end) << 'x';
  EXPECT_EQ(found(), "");
  ASSERT_EQ(complaints_.size(), 2u);
  EXPECT_NE(complaints_[0].find(file.string() + ": damaged"), std::string::npos) << complaints_[0];
  keep("b", 20, 1);
  EXPECT_EQ(found(), "20: 0@0 1@1") << "its partner has it";
  std::ofstream(memory_ / "a/20/part-000.json", std::ios::app) << "x";
  EXPECT_EQ(found(), "");
  EXPECT_EQ(complaints_.size(), 3u);
}

/// A training whose hosts keep their memory in directories, one for each rank.
class Kept {
 public:
  Kept(const comm::World& all, const run::Run& run, const fs::path& memory)
      : world(all), training(run, all), config(run) {
    setenv("MILLRACE_MEMORY_DIRECTORY", memory.c_str(), 1);
    partners.emplace(all, training.session(), run);
    writer.reserve(&*partners);
  }
  ~Kept() { unsetenv("MILLRACE_MEMORY_DIRECTORY"); }

  void snapshot() {
    (void)training.step();
    writer.begin_snapshot(training.header());
    (void)training.step();  // what is written is what there was
    writer.settle();
  }
  /// Writes the checkpoint of this moment and returns its digest.
  std::string save() {
    writer.begin(training.header(), {});
    writer.settle();
    return saved.empty() ? "" : io::digest(io::CheckpointReader(saved));  // known on rank 0
  }
  [[nodiscard]] std::string take(std::vector<std::string>& complaints) const {
    return take_snapshot(world, config.run_directory, complaints);
  }

  const comm::World& world;
  small::Training training;
  run::Run config;
  std::optional<PartnerSnapshots> partners;
  fs::path saved;
  std::vector<std::string> gave_up;
  CheckpointWriter writer{world,
                          training.session(),
                          config.run_directory / "checkpoints",
                          {.before = [](const Snapshot&, const io::CheckpointHeader&) {},
                           .saved = [this](const fs::path& path) { saved = path; },
                           .waiting = [](bool) {},
                           .gave_up = [this](const std::string& why) { gave_up.push_back(why); }}};
};

class PartnerSnapshotsTest : public testing::Test {
 protected:
  PartnerSnapshotsTest() { fs::create_directory(directory_ / "run"); }
  const comm::World world_;
  test::TemporaryDirectory directory_;
  const fs::path memory_ = directory_ / "memory";
  const run::Run config_ = config_of({.stages = 2, .schedule = "1F1B"}, 1, directory_ / "run");
  std::vector<std::string> complaints_;
};

TEST_F(PartnerSnapshotsTest, TheNewestBecomesACheckpoint) {
  Kept kept(world_, config_, memory_);
  EXPECT_NE(kept.partners->notice().find("there is one host"), std::string::npos);
  const std::string before = kept.save();
  EXPECT_EQ(kept.take(complaints_), "");  // nothing yet
  for (int i = 0; i < 3; ++i) kept.snapshot();
  EXPECT_EQ(std::distance(fs::recursive_directory_iterator(memory_), {}), 1 + 2 + 2 * 2 * 2);
  EXPECT_EQ(kept.writer.snapshot_costs().size(), 3u);
  EXPECT_EQ(kept.take(complaints_), "The run goes on from the snapshot after update 5 in memory");
  EXPECT_TRUE(complaints_.empty());
  EXPECT_EQ(last_taken(config_.run_directory), 5);
  EXPECT_FALSE(fs::exists(memory_)) << "nobody has anything in it";
  EXPECT_EQ(kept.take(complaints_), "") << "once";
  small::Training again(config_, world_);
  again.steps(5);
  EXPECT_EQ(io::digest(io::CheckpointReader(directory_ / "run/checkpoints/ckpt-5")),
            again.digest());
}

TEST_F(PartnerSnapshotsTest, WhatIsOlderOrOfAnotherStartIsNotTaken) {
  Kept kept(world_, config_, memory_);
  kept.snapshot();
  (void)kept.save();  // update 2 is behind update 1
  kept.snapshot();
  // As on a host that was cut off, while the run began once more.
  Kept next(world_, config_, memory_);
  EXPECT_EQ(next.take(complaints_), "");
  EXPECT_FALSE(fs::exists(memory_)) << "and is removed";
  EXPECT_EQ(last_taken(config_.run_directory), -1);
  fs::resize_file(directory_ / "run/.snapshots", 17);
  EXPECT_EQ(next.take(complaints_), "");
  EXPECT_NE(complaints_.at(0).find("/run/.snapshots: damaged; snapshots in memory are left out"),
            std::string::npos);
  const PartnerSnapshots third(world_, kept.training.session(), config_);
  EXPECT_TRUE(third.works());
}

// A run removes the directory that another one has just made.
TEST_F(PartnerSnapshotsTest, RunsBeginAndEndAtOnce) {
  Kept kept(world_, config_, memory_);
  kept.partners->forget();
  const std::jthread others([&, ignored = std::error_code()](const std::stop_token& end) mutable {
    while (!end.stop_requested()) fs::remove(memory_, ignored);
  });
  for (int i = 0; i < 100; ++i) {
    const PartnerSnapshots run(world_, kept.training.session(), config_);
    ASSERT_TRUE(run.works()) << run.notice();
    run.forget();
  }
}

TEST_F(PartnerSnapshotsTest, WithoutRoomTheRunGoesOnWithoutThem) {
  {
    const Kept none(world_, config_, directory_ / "missing/memory");
    EXPECT_FALSE(none.partners->works());
    EXPECT_NE(none.partners->notice().find("No snapshots are kept in memory: cannot create"),
              std::string::npos)
        << none.partners->notice();
  }
  fs::create_directory(memory_);  // others can read it
  fs::permissions(memory_, fs::perms::owner_all | fs::perms::others_read);
  EXPECT_FALSE(Kept(world_, config_, memory_).partners->works());
  fs::remove(memory_);
  Kept kept(world_, config_, memory_);
  kept.snapshot();
  fs::remove_all(memory_);
  std::ofstream(memory_) << "no directory any more";
  kept.snapshot();
  ASSERT_EQ(kept.gave_up.size(), 1u);
  EXPECT_NE(kept.gave_up[0].find("No more snapshots are kept in memory: "), std::string::npos);
  EXPECT_FALSE(kept.partners->works());
  (void)kept.save();
}

// A limit on the size of files stands for a full disk and full memory.
TEST_F(PartnerSnapshotsTest, WhatIsFullIsNamed) {
  Kept kept(world_, config_, memory_);
  (void)kept.save();
  kept.snapshot();
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit usual = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &usual), 0);
  const rlimit tight = {.rlim_cur = 512, .rlim_max = usual.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  expect_error(ErrorKind::Io,
               {"cannot save " + memory_.string(),
                ", a snapshot in memory, as " + (directory_ / "run").string(),
                "File too large; raise the limit"},
               [&] { (void)kept.take(complaints_); });
  kept.snapshot();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &usual), 0);
  ASSERT_EQ(kept.gave_up.size(), 1u);
  for (const std::string& part : {memory_.string(), std::string("File too large; raise the limit")})
    EXPECT_NE(kept.gave_up[0].find(part), std::string::npos) << kept.gave_up[0];
}

TEST_F(PartnerSnapshotsTest, ACommandRemovesThemFromAHost) {
  EXPECT_EQ(removal_of_snapshots(config_.run_directory), "");
  Kept kept(world_, config_, memory_);
  kept.snapshot();
  EXPECT_EQ(std::system(removal_of_snapshots(config_.run_directory).c_str()), 0);
  EXPECT_FALSE(fs::exists(memory_));
}

/// As two hosts.
using test::TwoRanks;

TEST_F(TwoRanks, EachHostHoldsEverything) {
  const test::TemporaryDirectory own;
  const fs::path shared = world().broadcast(own.path().string());
  const fs::path memory = own / "memory";
  for (const small::Layout& layout : std::vector<small::Layout>{
           {.stages = 2, .schedule = "1F1B"},  // parts are sent
           {.stages = 2, .schedule = "1F1B", .replicas = 2},
           {.stages = 2, .schedule = "1F1B", .replicas = 2, .sharded = true}}) {
    SCOPED_TRACE(small::name_of(layout));
    const fs::path run = shared / fmt::format("run{}{}", layout.replicas, layout.sharded);
    if (world().rank() == 0) fs::create_directories(run);
    world().barrier();
    Kept kept(world(), config_of(layout, 2, run), memory);
    EXPECT_EQ(kept.partners->notice().find("there is one host"), std::string::npos);
    (void)kept.save();
    for (const int lost : {0, 1}) {
      kept.snapshot();
      if (world().rank() == lost) fs::remove_all(memory);
      std::vector<std::string> complaints;
      EXPECT_EQ(
          kept.take(complaints),
          fmt::format("The run goes on from the snapshot after update {} in memory", 1 + 2 * lost));
      EXPECT_TRUE(complaints.empty()) << complaints[0];
    }
    small::Layout one = layout;
    one.sharded = false;
    const comm::World alone{comm::World::Alone{}};
    small::Training again(small::planned(one), alone);
    again.steps(3);
    EXPECT_EQ(io::digest(io::CheckpointReader(run / "checkpoints/ckpt-3")), again.digest());
    world().barrier();
  }
}

TEST_F(TwoRanks, AWrongBitOfAReplicaIsNoticed) {
  const test::TemporaryDirectory own;
  const fs::path run = world().broadcast(own.path().string());
  Kept kept(world(), config_of({.stages = 2, .schedule = "1F1B", .replicas = 2}, 2, run),
            own / "memory");
  kept.snapshot();
  if (world().rank() == 1) kept.training.session().initialise(2);
  expect_error(
      ErrorKind::Peer,
      "update 3: stage 0: ranks 0 and 1 hold different weights in their snapshots: a device "
      "or a link between them computes or carries wrong bits",
      [&] { kept.snapshot(); });
  world().barrier();
}

}  // namespace
}  // namespace millrace::training
