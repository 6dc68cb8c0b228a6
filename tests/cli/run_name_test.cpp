// SPDX-License-Identifier: Apache-2.0
#include "train/run_name.hpp"
#include "io/atomic_file.hpp"

#include <unistd.h>

#include <regex>

#include "support.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests

std::string name_of(std::string_view line) {
  const Resolution resolution = resolve_line(line);
  return run_name(resolution.config, "0.1.0", "3S9");
}

TEST(RunNameTest, FollowsTheIpuTrainer) {
  EXPECT_EQ(name_of("--dataset cifar-10 --synthetic-data"), "RN20_bs32_BN_16.32_v0.1.0_3S9");
  EXPECT_EQ(name_of("--dataset cifar-10 --synthetic-data --gradients-to-accumulate 4 --model-size "
                    "14 --group-norm --precision 32.32 --name-suffix hello"),
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
  resolution.config.logging.directory = (root.path() / "new" / "logs").string();
  const auto directory = create_run_directory(resolution.config, "0.1.0");
  EXPECT_TRUE(fs::is_directory(directory));
  EXPECT_EQ(directory.parent_path(), root.path() / "new" / "logs");
  const auto second = create_run_directory(resolution.config, "0.1.0");
  EXPECT_NE(directory, second);
  resolution.config.logging.keeps = false;
  EXPECT_TRUE(create_run_directory(resolution.config, "0.1.0").empty());
}

TEST(RunDirectoryTest, ExistingOneIsRefusedWithARemedy) {
  const TemporaryDirectory root;
  const auto refusal = [&] { return failure_of([&] { create_run_directory(root.path()); }); };
  std::ofstream(root.path() / "notes.txt") << "mine";
  EXPECT_EQ(refusal().kind, ErrorKind::Usage);
  EXPECT_EQ(refusal().text, root.path().string() +
                                ": already exists: choose another --run-dir, or remove it first");
  fs::create_directory(root.path() / "checkpoints");
  EXPECT_EQ(refusal().text, root.path().string() +
                                ": already exists: continue that run with millrace restore "
                                "--restore-path, or choose another --run-dir");
  expect_in(failure_of([&] { create_run_directory(root.path(), "RUN_DIR"); }).text,
            {"or choose another RUN_DIR"});
}

/// Killed before its first checkpoint.
TEST(RunDirectoryTest, OneThatHoldsNoCheckpointIsBegunAnew) {
  const TemporaryDirectory root;
  fs::create_directories(root.path() / "checkpoints" / ".ckpt-0.tmp.1");
  for (const char* file : {"config.toml", "log.txt", ".lock"})
    std::ofstream(root.path() / file) << "old";
  EXPECT_NO_THROW(create_run_directory(root.path()));
  EXPECT_FALSE(fs::exists(root.path() / "config.toml"));
  // Not where something else lies too, nor while its process lives.
  std::ofstream(root.path() / "config.toml") << "old";
  std::ofstream(root.path() / "thesis.tex") << "mine";
  EXPECT_EQ(failure_of([&] { create_run_directory(root.path()); }).kind, ErrorKind::Usage);
  fs::remove(root.path() / "thesis.tex");
  const io::RunLock lock(root.path());
  EXPECT_EQ(failure_of([&] { create_run_directory(root.path()); }).kind, ErrorKind::Usage);
}

// Checkpoints that cannot be seen, or not be read, are none of which nothing is known.
TEST(RunDirectoryTest, OneWhoseCheckpointsAreOutOfReachIsLeftAlone) {
  const TemporaryDirectory root;
  const fs::path checkpoints = root.path() / "checkpoints";
  std::ofstream(root.path() / "config.toml") << "old";
  const auto refused = [&] {
    expect_refused(ErrorKind::Usage, {"continue that run"},
                   [&] { create_run_directory(root.path()); });
    EXPECT_TRUE(fs::exists(root.path() / "config.toml"));
  };
  fs::create_directory_symlink(root.path() / "unmounted", checkpoints);
  refused();
  fs::remove(checkpoints);
  fs::create_directories(checkpoints / "ckpt-20");  // without a manifest
  refused();
  fs::remove(checkpoints / "ckpt-20");
  std::ofstream(checkpoints / "notes.txt") << "mine";
  refused();
  fs::remove(checkpoints / "notes.txt");
  EXPECT_NO_THROW(create_run_directory(root.path()));
}

/// Killed while it wrote its configuration, or the disk was full before there was one.
TEST(RunDirectoryTest, OneThatHoldsNoRunIsBegunAnew) {
  for (const char* left : {"config.toml.tmp.1-01234567-89abcdef", ".lock", ""}) {
    const TemporaryDirectory root;
    if (*left != '\0') std::ofstream(root.path() / left) << "4711\n";
    EXPECT_NO_THROW(create_run_directory(root.path())) << left;
    EXPECT_FALSE(fs::exists(root / "config.toml.tmp.1-01234567-89abcdef"));
  }
}

TEST(RunDirectoryTest, PlaceWhereNoneCanBeMadeIsNamed) {
  const TemporaryDirectory root;
  std::ofstream(root / "file") << "no directory";
  // The file system of processes refuses new directories, even to root.
  for (const fs::path& run : {root / "file" / "run", fs::path("/proc/millrace-run")})
    expect_refused(ErrorKind::Io, {run.parent_path().string()}, [&] { create_run_directory(run); });
  create_run_directory(root / "run/");
  EXPECT_TRUE(fs::is_directory(root / "run")) << "a slash at the end is no other name";
}

}  // namespace
}  // namespace millrace::cli
