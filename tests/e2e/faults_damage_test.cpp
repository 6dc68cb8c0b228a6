// SPDX-License-Identifier: Apache-2.0
//
// Damaged checkpoints of a run on two ranks: none is loaded, and verification names the bad tensor.
#include <random>

#include "faults.hpp"
#include "support/file_bytes.hpp"

namespace millrace::test {
namespace {

/// Position of a tensor's bytes in a file.
struct Extent {
  std::string tensor;
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// Finds tensors by searching for their bytes, which are stored unchanged. Tensors of zeros have no
/// known position.
std::vector<Extent> extents_in(const std::vector<std::byte>& file,
                               const io::CheckpointReader& all) {
  std::vector<Extent> extents;
  for (const io::TensorInfo& info : all.tensors()) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(info.bytes()));
    all.read(info.name, bytes);
    if (std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; })) continue;
    // Not std::ranges::search, which clang 14 cannot compile with GCC 12's library.
    const auto at = std::search(file.begin(), file.end(), bytes.begin(), bytes.end());
    if (at == file.end()) continue;
    const auto begin = static_cast<std::size_t>(at - file.begin());
    extents.push_back({info.name, begin, begin + bytes.size()});
  }
  return extents;
}

/// Two runs on two ranks with checkpoints 1 and 2, and a copy of the first run to be damaged.
class DamageTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    for (const char* seed : {"5", "6"}) {
      expect_end(millrace(short_training(2, 1) + on_ranks(2) +
                          Words{"--max-ckpts-to-keep 0 --optimiser momentum --seed", seed,
                                "--run-dir", runs() / seed}),
                 0);
    }
  }
  static const TemporaryDirectory& runs() {
    static const TemporaryDirectory shared;
    return shared;
  }
  static fs::path checkpoint_of(const char* run, const char* name) {
    return runs() / run / "checkpoints" / name;
  }
  void SetUp() override { restore(); }
  void restore() {
    fs::remove_all(damaged_);
    fs::copy(checkpoint_of("5", "ckpt-2"), damaged_);
  }

  /// The messages about the damaged checkpoint, which no command may load.
  [[nodiscard]] std::vector<std::string> refused() const {
    EXPECT_THROW(io::CheckpointReader{damaged_}, Error);
    std::vector<std::string> problems = io::verify(damaged_);
    EXPECT_FALSE(problems.empty());
    return problems;
  }
  static bool name(const std::vector<std::string>& problems, const std::string& what) {
    return std::ranges::any_of(problems, [&](const std::string& problem) {
      return problem.find(what) != std::string::npos;
    });
  }

  TemporaryDirectory directory_;
  fs::path damaged_ = directory_ / "ckpt-2";
};

TEST_F(DamageTest, EveryBitIsWatched) {
  const int flips = whole() ? 1000 : 60;
  const io::CheckpointReader good(checkpoint_of("5", "ckpt-2"));
  std::minstd_rand random(3);
  int in_tensors = 0;
  int named = 0;
  for (const char* name_of_file : {"manifest.json", "part-000.h5", "part-001.h5"}) {
    const fs::path path = damaged_ / name_of_file;
    const std::vector<std::byte> bytes = file_bytes(path);
    const std::vector<Extent> extents = extents_in(bytes, good);
    for (int i = 0; i < flips / 3 + 1; ++i) {
      std::vector<std::byte> changed = bytes;
      const std::size_t at = random() % bytes.size();
      changed[at] ^= std::byte{1} << static_cast<int>(random() % 8);
      write_file(path, changed);
      SCOPED_TRACE(std::string(name_of_file) + ", byte " + std::to_string(at));
      const std::vector<std::string> problems = refused();
      EXPECT_TRUE(name(problems, name_of_file));
      const auto hit = std::ranges::find_if(
          extents, [at](const Extent& e) { return e.begin <= at && at < e.end; });
      if (hit == extents.end()) continue;
      ++in_tensors;
      EXPECT_TRUE(name(problems, hit->tensor)) << hit->tensor << " is not in " << problems.back();
      if (name(problems, hit->tensor)) ++named;
    }
    write_file(path, bytes);
  }
  std::cout << flips << " bits: none is loaded; of " << in_tensors << " in tensors " << named
            << " are named\n";
  EXPECT_GT(in_tensors, flips / 3);
}

TEST_F(DamageTest, EveryLengthIsWatched) {
  constexpr std::size_t kPage = 4096;
  int lengths = 0;
  for (const auto& entry : fs::directory_iterator(checkpoint_of("5", "ckpt-2"))) {
    const std::size_t size = entry.file_size();
    const fs::path path = damaged_ / entry.path().filename();
    for (std::size_t length = 0; length < size; length += kPage, ++lengths) {
      restore();
      fs::resize_file(path, length);
      SCOPED_TRACE(path.filename().string() + " of " + std::to_string(length) + " bytes");
      EXPECT_TRUE(name(refused(), path.filename().string()));
    }
    restore();
    fs::remove(path);
    EXPECT_FALSE(refused().empty());
  }
  std::cout << lengths << " lengths: none is loaded\n";
}

TEST_F(DamageTest, PartsOfOtherRunsAndStepsAreRefused) {
  for (const auto& [run, step] : {std::pair{"6", "ckpt-2"}, {"5", "ckpt-1"}, {"6", "ckpt-1"}}) {
    for (const char* part : {"part-000.h5", "part-001.h5"}) {
      restore();
      fs::copy_file(checkpoint_of(run, step) / part, damaged_ / part,
                    fs::copy_options::overwrite_existing);
      SCOPED_TRACE(std::string(part) + " of run " + run + ", " + step);
      const std::vector<std::string> problems = refused();
      EXPECT_TRUE(name(problems, part));
      // Each of its tensors differs.
      EXPECT_GT(problems.size(), 5u);
    }
  }
  restore();
  fs::rename(damaged_ / "part-000.h5", damaged_ / "other");
  fs::rename(damaged_ / "part-001.h5", damaged_ / "part-000.h5");
  fs::rename(damaged_ / "other", damaged_ / "part-001.h5");
  EXPECT_FALSE(refused().empty());
}

TEST_F(DamageTest, WhatIsBadIsSaidByTheProgramToo) {
  const io::CheckpointReader good(checkpoint_of("5", "ckpt-2"));
  std::vector<std::byte> bytes = file_bytes(damaged_ / "part-001.h5");
  for (const Extent& extent : extents_in(bytes, good))
    bytes[extent.begin + (extent.end - extent.begin) / 2] ^= std::byte{4};
  write_file(damaged_ / "part-001.h5", bytes);
  const ProcessResult result = millrace({"inspect", damaged_.string(), "--verify"});
  EXPECT_EQ(result.code, 6) << result.output;
  for (const Extent& extent :
       extents_in(file_bytes(checkpoint_of("5", "ckpt-2") / "part-001.h5"), good))
    expect_in(result.output, {extent.tensor});
  EXPECT_EQ(millrace({"validate --restore-path", damaged_.string()}).code, 6);
}

}  // namespace
}  // namespace millrace::test
