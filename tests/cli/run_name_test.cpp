// SPDX-License-Identifier: Apache-2.0
#include "cli/run_name.hpp"
#include "io/run_lock.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <string>

#include "support.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests

std::string name_of(std::string_view line) {
  const Resolution resolution = resolve_line(line);
  return run_name(resolution.config, resolution.place.suffix, "0.1.0", "3S9");
}

TEST(RunNameTest, FollowsTheIpuTrainer) {
  EXPECT_EQ(name_of("--dataset cifar-10 --synthetic-data"), "RN20_bs32_BN_16.32_v0.1.0_3S9");
  EXPECT_EQ(
      name_of("--dataset cifar-10 --synthetic-data --gradients-to-accumulate 4 --model-size 14 "
              "--group-norm --precision 32.32 --name-suffix hello"),
      "RN14_bs32x4a_GN16_32.32_hello_v0.1.0_3S9");
  EXPECT_EQ(name_of("--dataset imagenet --synthetic-data --model-size 50 --image-size 240"),
            "RN50_bs4_GN32_16.32_240x240_v0.1.0_3S9");
}

TEST(RunNameTest, TagIsThreeCapitalsOrDigits) {
  EXPECT_TRUE(std::regex_match(random_tag(), std::regex("[A-Z0-9]{3}")));
}

TEST(RunDirectoryTest, IsMadeBelowTheLogDirectory) {
  const TemporaryDirectory root;
  Resolution resolution = resolve_line("--dataset cifar-10 --synthetic-data");
  resolution.place.log_directory = root.path() / "new" / "logs";
  const auto directory = create_run_directory(resolution.place, resolution.config, "0.1.0");
  EXPECT_TRUE(std::filesystem::is_directory(directory));
  EXPECT_EQ(directory.parent_path(), resolution.place.log_directory);
  const auto second = create_run_directory(resolution.place, resolution.config, "0.1.0");
  EXPECT_NE(directory, second);
}

TEST(RunDirectoryTest, NoLogsMakeNone) {
  const Resolution resolution = resolve_line("--dataset cifar-10 --synthetic-data --no-logs");
  EXPECT_TRUE(create_run_directory(resolution.place, resolution.config, "0.1.0").empty());
}

TEST(RunDirectoryTest, ExistingOneIsRefusedWithARemedy) {
  const TemporaryDirectory root;
  const auto refusal = [&] { return failure_of([&] { create_run_directory(root.path()); }); };
  std::ofstream(root.path() / "notes.txt") << "mine";
  EXPECT_EQ(refusal().kind, ErrorKind::Usage);
  EXPECT_EQ(refusal().text, root.path().string() +
                                ": already exists: choose another --run-dir, or remove it first");
  std::filesystem::create_directory(root.path() / "checkpoints");
  EXPECT_EQ(refusal().text,
            root.path().string() +
                ": already exists: continue that run with millrace restore --restore-path, or "
                "choose another --run-dir");
  EXPECT_TRUE(contains(failure_of([&] { create_run_directory(root.path(), "RUN_DIR"); }).text,
                       "or choose another RUN_DIR"));
}

/// Killed before its first checkpoint.
TEST(RunDirectoryTest, OneThatHoldsNoCheckpointIsBegunAnew) {
  const TemporaryDirectory root;
  std::filesystem::create_directories(root.path() / "checkpoints" / ".ckpt-0.tmp.1");
  for (const char* file : {"config.toml", "log.txt", ".lock"})
    std::ofstream(root.path() / file) << "old";
  EXPECT_NO_THROW(create_run_directory(root.path()));
  EXPECT_FALSE(std::filesystem::exists(root.path() / "config.toml"));
  // Not where something else lies too, nor while its process lives.
  std::ofstream(root.path() / "config.toml") << "old";
  std::ofstream(root.path() / "thesis.tex") << "mine";
  EXPECT_EQ(failure_of([&] { create_run_directory(root.path()); }).kind, ErrorKind::Usage);
  std::filesystem::remove(root.path() / "thesis.tex");
  const io::RunLock lock(root.path());
  EXPECT_EQ(failure_of([&] { create_run_directory(root.path()); }).kind, ErrorKind::Usage);
}

// Checkpoints that cannot be seen, or not be read, are none of which nothing is known.
TEST(RunDirectoryTest, OneWhoseCheckpointsAreOutOfReachIsLeftAlone) {
  const TemporaryDirectory root;
  const std::filesystem::path checkpoints = root.path() / "checkpoints";
  std::ofstream(root.path() / "config.toml") << "old";
  const auto refused = [&] {
    const Failure failure = failure_of([&] { create_run_directory(root.path()); });
    EXPECT_EQ(failure.kind, ErrorKind::Usage);
    EXPECT_TRUE(contains(failure.text, "continue that run")) << failure.text;
    EXPECT_TRUE(std::filesystem::exists(root.path() / "config.toml"));
  };
  std::filesystem::create_directory_symlink(root.path() / "unmounted", checkpoints);
  refused();
  std::filesystem::remove(checkpoints);
  std::filesystem::create_directories(checkpoints / "ckpt-20");  // without a manifest
  refused();
  std::filesystem::remove(checkpoints / "ckpt-20");
  std::ofstream(checkpoints / "notes.txt") << "mine";
  refused();
  std::filesystem::remove(checkpoints / "notes.txt");
  EXPECT_NO_THROW(create_run_directory(root.path()));
}

/// Killed while it wrote its configuration.
TEST(RunDirectoryTest, OneWithHalfAConfigurationIsBegunAnew) {
  const TemporaryDirectory root;
  std::ofstream(root.path() / "config.toml.tmp.1-01234567-89abcdef") << "ol";
  EXPECT_NO_THROW(create_run_directory(root.path()));
  EXPECT_FALSE(std::filesystem::exists(root.path() / "config.toml.tmp.1-01234567-89abcdef"));
}

// The disk was full before there was a configuration.
TEST(RunDirectoryTest, OneWithALockAloneIsBegunAnew) {
  const TemporaryDirectory root;
  std::ofstream(root.path() / ".lock") << "4711\n";
  EXPECT_NO_THROW(create_run_directory(root.path()));
}

TEST(RunDirectoryTest, EmptyOneIsTaken) {
  const TemporaryDirectory root;
  EXPECT_NO_THROW(create_run_directory(root.path()));
}

TEST(RunDirectoryTest, PlaceThatIsNoDirectoryIsNamed) {
  const TemporaryDirectory root;
  const std::filesystem::path file = root.path() / "file";
  std::fclose(std::fopen(file.c_str(), "w"));
  const Failure failure = failure_of([&] { create_run_directory(file / "run"); });
  EXPECT_EQ(failure.kind, ErrorKind::Io);
  EXPECT_TRUE(contains(failure.text, file.string())) << failure.text;
}

TEST(RunDirectoryTest, UnwritablePlaceIsNamed) {
  // The file system of processes refuses new directories, even to root.
  if (!std::filesystem::exists("/proc/self")) GTEST_SKIP() << "there is no /proc here";
  const Failure failure = failure_of([&] { create_run_directory("/proc/millrace-run"); });
  EXPECT_EQ(failure.kind, ErrorKind::Io);
  EXPECT_TRUE(contains(failure.text, "/proc/millrace-run")) << failure.text;
}

TEST(RunDirectoryTest, SlashAtTheEndIsNoOtherName) {
  const TemporaryDirectory root;
  create_run_directory(root.path() / "run/");
  EXPECT_TRUE(std::filesystem::is_directory(root.path() / "run"));
}

}  // namespace
}  // namespace millrace::cli
