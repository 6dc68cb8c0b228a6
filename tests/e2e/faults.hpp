// SPDX-License-Identifier: Apache-2.0
//
// Shared by the tests of faults: a short training on one, two or four ranks, its checkpoints
// without any fault, and what must hold after a fault.
#pragma once

#include <random>

#include "core/error.hpp"
#include "file_shim.hpp"
#include "io/checkpoint.hpp"
#include "job.hpp"

namespace millrace::test {

/// Options for stages on that many ranks.
inline Words on_ranks(int ranks) {
  if (ranks == 1) return {};
  if (ranks == 2) return {"--shards 2 --pipeline-splits b2/0/relu"};
  return {"--shards 4 --pipeline-splits b1/0/relu b2/0/relu b3/0/relu"};
}

/// `iterations` of 16 images, 40 per epoch, with a checkpoint after every `saved`-th iteration (0:
/// only at the end).
inline Words short_training(int iterations, int saved) {
  return small_training() +
         "--batch-size 8 --gradients-to-accumulate 2 --threads-per-device 1 --warmup-epochs 0 "
         "--seed 5 --no-validation" +
         Words{"--iterations", std::to_string(iterations), "--ckpts-per-epoch",
               std::to_string(saved == 0 ? 0 : 40 / saved)};
}

/// The newest checkpoint that verifies.
struct Newest {
  std::int64_t iteration = -1;
  std::string digest;
};
inline std::optional<Newest> newest_in(const std::filesystem::path& run) {
  if (!std::filesystem::exists(run) || io::list_checkpoints(run).empty()) return std::nullopt;
  std::vector<std::string> complaints;
  const io::CheckpointReader reader = io::open_newest(run, complaints);
  EXPECT_TRUE(complaints.empty()) << complaints.front();
  return Newest{reader.header().iteration, io::digest(reader)};
}

/// The last iteration that the output reports as saved; -1: none.
inline std::int64_t last_saved_in(const std::string& output) {
  const std::string_view sign = "/ckpt-";
  std::int64_t last = -1;
  for (std::size_t at = output.find("Saved checkpoint to "); at != std::string::npos;
       at = output.find("Saved checkpoint to ", at + 1)) {
    const std::size_t number = output.find(sign, at);
    if (number == std::string::npos) break;
    last = std::max<std::int64_t>(last, std::atoll(output.c_str() + number + sign.size()));
  }
  return last;
}

/// A training without faults, and the states it goes through.
class Undisturbed {
 public:
  /// `training` without periodic checkpoints.
  explicit Undisturbed(int iterations) {
    const auto begin = std::chrono::steady_clock::now();
    const ProcessResult result =
        millrace(short_training(iterations, 1) +
                 Words{"--max-ckpts-to-keep 0 --run-dir", directory_ / "run"});
    EXPECT_EQ(result.code, 0) << result.output;
    for (const std::filesystem::path& path : io::list_checkpoints(directory_ / "run")) {
      const io::CheckpointReader reader(path);
      digests_[reader.header().iteration] = io::digest(reader);
    }
    last_ = iterations;
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  [[nodiscard]] const std::string& at_end() const { return digests_.at(last_); }
  [[nodiscard]] double seconds() const { return seconds_; }

  /// Expects that a run that was ended at any moment has a state of the undisturbed run, and that
  /// it is not older than the last one reported as saved.
  void expect_sound(const std::filesystem::path& run, const std::string& output) const {
    const std::optional<Newest> newest = newest_in(run);
    const std::int64_t promised = last_saved_in(output);
    if (!newest) {
      EXPECT_EQ(promised, -1) << "a checkpoint was lost\n" << output;
      return;
    }
    EXPECT_GE(newest->iteration, promised) << output;
    const auto state = digests_.find(newest->iteration);
    ASSERT_NE(state, digests_.end()) << newest->iteration;
    EXPECT_EQ(newest->digest, state->second) << "iteration " << newest->iteration;
  }

  /// Expects that the run reaches the undisturbed result without manual steps: it is restored, or,
  /// if it has no checkpoint, started again by `training`.
  void expect_finished(const std::filesystem::path& run, const Words& training,
                       const Words& more = {}) const {
    const Words again = newest_in(run) ? Words{"restore --restore-path", run} : training;
    const ProcessResult result = millrace(again + more);
    ASSERT_EQ(result.code, 0) << result.output;
    const std::optional<Newest> newest = newest_in(run);
    ASSERT_TRUE(newest) << result.output;
    EXPECT_EQ(newest->iteration, last_);
    EXPECT_EQ(newest->digest, at_end());
    expect_tidy(run);
  }

  /// Expects that the directory holds only files of a run.
  static void expect_tidy(const std::filesystem::path& run) {
    const std::set<std::string> usual = {".lock",        "config.toml",    "log.txt",
                                         "training.csv", "validation.csv", "metrics.jsonl",
                                         "checkpoints"};
    for (const auto& entry : std::filesystem::directory_iterator(run))
      EXPECT_TRUE(usual.contains(entry.path().filename().string())) << entry.path();
    for (const auto& entry : std::filesystem::directory_iterator(run / "checkpoints")) {
      const std::string name = entry.path().filename().string();
      EXPECT_TRUE(name.starts_with("ckpt-") &&
                  name.find_first_not_of("0123456789", 5) == std::string::npos)
          << name;
    }
  }

 private:
  TemporaryDirectory directory_;
  std::map<std::int64_t, std::string> digests_;  ///< by iteration
  std::int64_t last_ = 0;
  double seconds_ = 0.0;
};

/// One instance for all tests of a program.
inline const Undisturbed& undisturbed(int iterations) {
  static std::map<int, Undisturbed> all;
  return all.try_emplace(iterations, iterations).first->second;
}

}  // namespace millrace::test
