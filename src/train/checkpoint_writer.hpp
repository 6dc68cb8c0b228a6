// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/world.hpp"
#include "io/checkpoint.hpp"
#include "train/session.hpp"

namespace millrace::train {

/// What a checkpoint took of this process' time.
struct CheckpointCost {
  std::int64_t bytes = 0;        ///< of this process' tensors
  double waited_seconds = 0.0;   ///< that the training stood still for
  double written_seconds = 0.0;  ///< from there until it had its name
  double busy_seconds = 0.0;     ///< that threads computed for it meanwhile
};

/// The time between checkpoints, in seconds, with which failures cost least: sqrt(2 x cost x mean
/// time between failures) (Young 1974).
[[nodiscard]] double best_interval(const CheckpointCost& cost, double seconds_between_failures);
/// What checkpoints cost, by the medians of all but the first, which also takes memory, and how
/// often they are worth it; "" for fewer than two.
[[nodiscard]] std::string describe(std::span<const CheckpointCost> costs);

/// Writes checkpoints behind the training. begin() copies the tensors while no step runs, and a
/// thread of each rank writes its part of the copy; once all parts are there, a thread of rank 0
/// makes a checkpoint of them. Threads call nothing of MPI and hold the only open HDF5 files: ranks
/// hear of each other between steps, in advance(), so that a checkpoint of several ranks is whole
/// after a step or two. One is on its way at a time.
///
///   training  ==step==|copy|==step====|==step====|==step==
///   rank 1            .    |write part|          .
///   rank 0            .    |write part...........|commit|     a rank that is slower holds up no
///   step
///
/// begin(), advance() and settle() are collective. What fails in a thread of any rank is thrown by
/// the next of them on all ranks, as Together does it; nothing is left of that checkpoint then.
class CheckpointWriter {
 public:
  /// What the run has to say.
  struct Hooks {
    /// By the thread of every rank before its part is written: throws what forbids it.
    std::function<void(const Snapshot&, const io::CheckpointHeader&)> before;
    /// On rank 0, by the training's thread, when a checkpoint is whole.
    std::function<void(const std::filesystem::path&)> saved;
    /// Several times a second while settle() waits and all ranks answer: whether it waits for this
    /// process' own disk.
    std::function<void(bool)> waiting;
  };

  /// `session` and `world` outlive the writer; checkpoints lie in `directory`.
  CheckpointWriter(const comm::World& world, const Session& session,
                   std::filesystem::path directory, Hooks hooks);

  /// Takes the memory of the copies, if it is not there yet.
  void reserve();
  /// Copies the tensors and has them written; behind that, older checkpoints are retired. If
  /// another one is still on its way, it waits for that one first.
  void begin(io::CheckpointHeader header, io::Retention retention);
  /// How far this process is. All ranks give the largest of theirs to advance().
  [[nodiscard]] std::int64_t progress() const;
  /// Goes on to what is next once all ranks have done their part.
  void advance(std::int64_t slowest);
  /// Returns when nothing is on its way any more. Ranks answer each other meanwhile: one that has a
  /// slow disk does, one that is stopped does not.
  void settle();

  /// Of the checkpoints of rank 0 that are whole, in their order.
  [[nodiscard]] const std::vector<CheckpointCost>& costs() const { return costs_; }

 private:
  enum class Phase { Idle, Parts, Commit };

  void run_behind(std::function<std::string()> work);
  [[nodiscard]] std::string write_part(const std::filesystem::path& place) const;
  [[nodiscard]] std::string commit(const std::vector<std::string>& parts);
  void gather_parts();
  void conclude();

  const comm::World* world_;
  const Session* session_;
  std::filesystem::path directory_;
  Hooks hooks_;
  std::optional<Snapshot> copy_;
  io::CheckpointHeader header_;
  io::Retention retention_;
  std::optional<io::CheckpointStaging> staging_;  ///< of rank 0
  Phase phase_ = Phase::Idle;
  std::vector<CheckpointCost> costs_;
  std::chrono::steady_clock::time_point begun_;
  CheckpointCost cost_;  ///< of the one that is on its way
  struct Done {
    std::string text;  ///< what is known of the part, or the checkpoint's path
    double busy_seconds = 0.0;
  };
  std::future<Done> task_;  ///< last: it uses all the others, and is waited for
};

}  // namespace millrace::train
