// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/world.hpp"
#include "core/clock.hpp"
#include "io/checkpoint.hpp"
#include "train/partner_snapshots.hpp"
#include "train/session.hpp"

namespace millrace::training {

/// What a checkpoint cost this process.
struct CheckpointCost {
  std::int64_t bytes = 0;        ///< of this process' tensors
  double waited_seconds = 0.0;   ///< training stood still
  double written_seconds = 0.0;  ///< from then until the checkpoint had its final name
  double busy_seconds = 0.0;     ///< CPU time of the writing threads
};

/// The interval between checkpoints, in seconds, that loses the least time to failures: sqrt(2 x
/// cost x mean time between failures) (Young 1974).
[[nodiscard]] double best_interval(const CheckpointCost& cost, double seconds_between_failures);
/// The cost of checkpoints as text; "" for fewer than two. Uses medians without the first one,
/// which also allocates memory. Runs of an hour or more, `run_seconds` long, are told the best
/// interval, which shorter ones can do without.
[[nodiscard]] std::string describe(std::span<const CheckpointCost> costs, double run_seconds,
                                   std::string_view what = "Checkpoints");

/// Writes checkpoints while training continues. begin() copies the tensors between two steps, and a
/// thread of each rank writes its part of the copy. When all parts are written, a thread of rank 0
/// makes one checkpoint of them. The threads make no MPI calls and hold the only open HDF5 files.
/// Ranks learn of each other's progress between steps, in advance(), so a checkpoint of several
/// ranks is complete after a step or two. At most one checkpoint is being written at a time.
///
///   training  ==step==|copy|==step====|==step====|==step==
///   rank 1            .    |write part|          .
///   rank 0            .    |write part...........|commit|     a slower rank delays no step
///
/// begin_snapshot() writes the same tensors to the memory of the hosts instead
/// (partner_snapshots.hpp), which takes no more of the training than a checkpoint does.
///
/// Functions that begin, advance or settle are collective. An error in a thread of any rank is
/// thrown by the next of these calls on all ranks, as FailTogether does it; that checkpoint then
/// leaves nothing behind.
class CheckpointWriter {
 public:
  /// Callbacks into the run.
  struct Hooks {
    /// Called by the thread of every rank before it writes its part; throws to prevent the
    /// checkpoint.
    std::function<void(const Snapshot&, const io::CheckpointHeader&)> before;
    /// Called on rank 0 by the training's thread when a checkpoint is complete.
    std::function<void(const std::filesystem::path&)> saved;
    /// Called several times a second while settle() waits and all ranks answer. The argument says
    /// whether settle() waits for this process' own disk.
    std::function<void(bool)> waiting;
    /// Called on all ranks when snapshots in memory end, with the reason.
    std::function<void(const std::string&)> gave_up = {};
  };

  /// `session` and `world` must outlive the writer; checkpoints are written to `directory`.
  CheckpointWriter(const comm::World& world, const Session& session,
                   std::filesystem::path directory, Hooks hooks);

  /// Allocates the memory of the copies. `partners`, which must outlive the copies, keep snapshots
  /// of them, too. No checkpoint may be being written.
  void reserve(PartnerSnapshots* partners = nullptr);
  /// Gives it back. No checkpoint may be being written.
  void release();
  /// Copies the tensors and starts writing them; afterwards older checkpoints are removed. Waits
  /// first for a checkpoint that is still being written.
  void begin(io::CheckpointHeader header, io::Retention retention);
  /// Copies the tensors and starts writing them to memory, likewise. Needs partners that work.
  void begin_snapshot(io::CheckpointHeader header);
  /// Whether a checkpoint is being written. The same on all ranks.
  [[nodiscard]] bool is_saving() const { return phase_ == Phase::Parts || phase_ == Phase::Commit; }
  /// How far this process is. All ranks pass the maximum over all ranks to advance().
  [[nodiscard]] std::int64_t progress();
  /// Starts the next phase if all ranks have finished this one.
  void advance(std::int64_t slowest);
  /// Returns when no checkpoint is being written. The ranks keep answering each other meanwhile: a
  /// rank with a slow disk answers, a stopped one does not.
  void settle();

  /// Of the completed checkpoints, in order; on rank 0.
  [[nodiscard]] const std::vector<CheckpointCost>& costs() const { return costs_; }
  [[nodiscard]] const std::vector<CheckpointCost>& snapshot_costs() const {
    return snapshot_costs_;
  }

 private:
  enum class Phase { Idle, Parts, Commit, Snapshot };

  void copy_tensors(bool all);
  void run_behind(std::function<std::string()> work);
  [[nodiscard]] std::string write_part(const std::filesystem::path& place) const;
  [[nodiscard]] std::string commit(const std::vector<std::string>& parts);
  void gather_parts();
  void conclude();
  void conclude_snapshot();
  [[nodiscard]] std::string take_text();

  const comm::World* world_;
  const Session* session_;
  std::filesystem::path directory_;
  Hooks hooks_;
  PartnerSnapshots* partners_ = nullptr;
  bool reserved_ = false;
  std::vector<StageCopy> copies_;  ///< none on a rank whose stages others save
  io::CheckpointHeader header_;
  io::Retention retention_;
  std::optional<io::CheckpointStaging> staging_;  ///< on rank 0
  Phase phase_ = Phase::Idle;
  std::vector<CheckpointCost> costs_;
  std::vector<CheckpointCost> snapshot_costs_;
  Timer writing_;        ///< since begin() returned
  CheckpointCost cost_;  ///< of the checkpoint being written
  struct Done {
    std::string text;  ///< description of the part, path of the checkpoint, or why it failed
    double busy_seconds = 0.0;
  };
  std::future<Done> task_;  ///< last member: it uses all the others
};

}  // namespace millrace::training
