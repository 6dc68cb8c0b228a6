// SPDX-License-Identifier: Apache-2.0
//
// When a run saves, and what can go wrong.
//
// A checkpoint begins between two steps: save() compares the replicas, copies the tensors and lets
// threads write them (checkpoint_writer.hpp). It is complete, and gets its final name, when all
// ranks have written their parts; they learn that from each other between later steps. If a rank
// dies before that, what was written keeps its temporary name, and a restore starts from the last
// complete checkpoint (io/checkpoint.hpp). The other ranks end with it: the launcher or their
// watchdogs stop them. If all ranks fail alike, for example because of too many bad images, the run
// is saved first (save_if_failing).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "comm/world.hpp"
#include "core/clock.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"
#include "run/run.hpp"
#include "train/checkpoint_writer.hpp"
#include "train/reporter.hpp"
#include "train/stand_ins.hpp"
#include "train/watchdog.hpp"

namespace millrace::training {

/// The checkpoints of one run. Without a run directory nothing is saved. Its functions are
/// collective unless they say otherwise.
class Checkpoints {
 public:
  /// The references must outlive this. `bad_images` are those of the training.
  Checkpoints(const run::Run& config, const io::Dataset& dataset, const comm::World& world,
              const StandInLimit& bad_images, Reporter& reporter, Watchdog& watchdog);
  /// From now on the tensors of `session` are saved. It must outlive this. Not collective.
  void follow(const Session& session);

  /// Allocates what saving on the way needs.
  void reserve();
  /// Waits until no checkpoint is being written, and gives back what saving needs. Snapshots in
  /// memory are removed.
  void release();
  /// Saves the weights after `done` updates, on which all replicas agree. The files are written
  /// while training continues.
  void save(std::int64_t done);
  /// Keeps the weights after `done` updates in the memory of the hosts, if they have room. Returns
  /// false while a checkpoint is being written, for which nobody has to wait.
  [[nodiscard]] bool keep_in_memory(std::int64_t done);
  /// Removes the checkpoints that the newest one, made of a snapshot, supersedes. Not collective.
  void retire() const;
  /// Saves the moving average of the weights after the last update `done` as a run of its own below
  /// this one, in which `session` has it as its weights. Waits.
  void save_ema(std::int64_t done, Session& session);
  /// Waits until no checkpoint is being written.
  void settle();
  /// Runs `task`. If it fails on all ranks, saves a checkpoint before throwing.
  void save_if_failing(std::int64_t done, const std::function<void()>& task);
  /// Errors: Peer if replicas differ, naming the last good checkpoint: every checkpoint was written
  /// from weights on which all replicas agreed.
  void compare_replicas(std::int64_t done);

  /// How far this process is with its checkpoint. The ranks share the slowest between two steps and
  /// pass it to advance(). Not collective.
  [[nodiscard]] std::int64_t progress() { return writer_ ? writer_->progress() : 0; }
  void advance(std::int64_t slowest);
  /// Whether `checkpoint-every` asks for a checkpoint by the clock of this process. Not collective.
  [[nodiscard]] bool is_due() const;
  /// The interval begins again.
  void restart_clock() { since_save_ = Timer(); }

  /// Errors: Data if the checkpoint was trained on another data set, which would move every sample
  /// in the rest of the run. Not collective.
  void require_same_data(const io::CheckpointReader& checkpoint) const;
  /// The cost of checkpoints and the best interval between them. Not collective.
  void report_costs() const;

 private:
  [[nodiscard]] std::filesystem::path directory() const;
  [[nodiscard]] io::CheckpointHeader header_of(std::int64_t done) const;
  [[nodiscard]] io::Retention retention() const;
  [[nodiscard]] CheckpointWriter::Hooks hooks();
  void require_place() const;
  void write(const std::function<void()>& part) const;
  void keep_configuration() const;
  [[nodiscard]] std::string last_good() const;

  const run::Run& config_;
  const io::Dataset& dataset_;
  const comm::World& world_;
  const StandInLimit& bad_images_;
  Reporter& reporter_;
  Watchdog& watchdog_;
  io::FileIdentity place_;  ///< of the run directory
  std::string lock_;        ///< its text, on rank 0, whose it is
  std::string data_;        ///< the data set, for checkpoints; describing it requires reading it
  Session const* session_ = nullptr;
  std::optional<PartnerSnapshots> partners_;
  std::optional<CheckpointWriter> writer_;  ///< none without a run directory
  std::int64_t compared_ = -1;  ///< iteration after which the replicas were last compared
  Timer since_save_;
};

}  // namespace millrace::training
