// SPDX-License-Identifier: Apache-2.0
//
// Snapshots in the memory of hosts, for runs that outlive their hosts. Between two checkpoints on
// disk, every part of the weights lies in the memory of two hosts: of the one that trains it, and
// of a partner. A part is what one stage saves. Where another host trains a replica of the stage,
// it writes the same part, and nothing is sent. Otherwise the part is sent while training goes on:
//
//   training  ==step==|copy|==step====|==step====|==step==
//   host a            .    |send .........|write 0|        stage 0 is its own
//   host b            .    |receive ......|write 0 and 1|  stage 1 is its own
//
//   /dev/shm/millrace-<user>/<series>/<update>/part-003.h5     as in a checkpoint
//                                              part-003.json   its sealed description; there once
//                                                              the part is complete
//
// A series is what one start of a run writes: its name is in the run directory, so that nothing of
// another run is taken, nor what a host that was cut off kept of an older start. The newest whole
// snapshot of a series stays, beside the one that is being written.
//
// When the run is restored, the hosts that are there look for the newest snapshot of which they
// have every part, and make a checkpoint of it if it is newer than those on disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/transport.hpp"
#include "comm/world.hpp"
#include "io/manifest.hpp"
#include "pipeline/pipeline_plan.hpp"
#include "train/session.hpp"

namespace millrace::training {

/// Who writes a part of a snapshot.
struct PartPlaces {
  std::int32_t stage = 0;
  std::int32_t replica = 0;  ///< whose tensors rank `first` writes
  int first = 0;
  int second = -1;                  ///< a rank on another host; -1: there is no other host
  std::int32_t other_replica = -1;  ///< whose tensors it writes; -1: it is sent those of `first`
  [[nodiscard]] bool is_sent() const { return second >= 0 && other_replica < 0; }
  friend bool operator==(const PartPlaces&, const PartPlaces&) = default;
};

/// The host of each rank, as far as its memory goes. Collective.
[[nodiscard]] std::vector<std::string> memory_hosts(const comm::World& world);

/// By number of the part. `hosts` has the host of each rank. Where replicas divide their slots
/// (`divided`), each of them has parts of its own, with slots that no other one has.
[[nodiscard]] std::vector<PartPlaces> places_of_parts(const pipeline::PipelinePlan& plan,
                                                      bool divided,
                                                      std::span<const std::string> hosts);

/// A part in the memory of a host.
struct HeldPart {
  int rank = 0;  ///< that can read it
  std::filesystem::path file;
  std::string text;       ///< its description
  io::Manifest manifest;  ///< the same
};

/// The sound parts in the directory of a series on the host of `rank`. Damaged ones get a line in
/// `complaints`.
[[nodiscard]] std::vector<HeldPart> parts_in(const std::filesystem::path& series, int rank,
                                             std::vector<std::string>& complaints);

/// The parts of the newest whole snapshot behind update `behind`, each from one holder; none if
/// there is none. `network` has all tensors by name. Newer ones that are not whole get a line.
[[nodiscard]] std::vector<HeldPart> newest_whole(std::span<const HeldPart> held,
                                                 std::span<const io::TensorInfo> network,
                                                 std::int64_t behind,
                                                 std::vector<std::string>& complaints);

/// Makes a checkpoint of the newest whole snapshot of the run in the memory of all hosts, if it is
/// newer than the newest sound checkpoint, and removes all others. Returns a line about it; "" if
/// nothing was taken. The `complaints` of rank 0 say what was left out. Collective.
[[nodiscard]] std::string take_snapshot(const comm::World& world,
                                        const std::filesystem::path& run_directory,
                                        std::vector<std::string>& complaints);

/// Whether some start of the run may have left snapshots in memory.
[[nodiscard]] bool has_snapshots(const std::filesystem::path& run_directory);

/// A command that removes the snapshots of a run from the memory of the host that executes it; ""
/// if the run never had any.
[[nodiscard]] std::string removal_of_snapshots(const std::filesystem::path& run_directory);

/// The update of the last snapshot that the run went on from; -1: none.
[[nodiscard]] std::int64_t last_taken(const std::filesystem::path& run_directory);

/// The snapshots of one start of a run. They are written by CheckpointWriter, which copies the
/// tensors and calls the functions for its thread, which make no MPI calls. The others are for the
/// thread of the training; those marked collective must be called by all ranks.
class PartnerSnapshots {
 public:
  /// Collective. `world` and `session` must outlive this. Errors: Io, if the run directory cannot
  /// be written.
  PartnerSnapshots(const comm::World& world, const Session& session, const run::Run& config);

  /// False once a host has no room, or refuses to keep snapshots. The same on all ranks.
  [[nodiscard]] bool works() const { return works_; }
  /// A line about where the parts lie, or why no snapshots are kept.
  [[nodiscard]] const std::string& notice() const { return notice_; }
  /// Memory for the tensors that this process writes, to be called once: the messages send it.
  [[nodiscard]] std::vector<StageCopy> take_copies() { return std::move(copies_); }
  /// Starts the messages; the copies are complete.
  void start_messages();
  /// Whether the messages of this process are done.
  [[nodiscard]] bool arrived();
  /// For the thread: writes the copies of this process and what has arrived. Returns why that
  /// failed, or "".
  [[nodiscard]] std::string write(std::span<const StageCopy> copies,
                                  const io::CheckpointHeader& header);
  /// All ranks have written the snapshot, or failed because of `trouble`. Returns why snapshots
  /// end, or "". Collective. Errors: Peer, if the two writers of a part had different values.
  [[nodiscard]] std::string conclude(std::int64_t iteration, const std::string& trouble);
  /// Removes all snapshots, and their directory if it is empty: the run has ended.
  void forget() const;

 private:
  void hold_parts();
  void prepare_messages();
  void require_room();
  void write_part(int part, const Snapshot& values, const io::CheckpointHeader& header);

  const comm::World* world_;
  const Session* session_;
  std::vector<std::string> hosts_;  ///< by rank
  std::vector<PartPlaces> places_;
  std::filesystem::path series_;
  std::vector<StageCopy> copies_;               ///< until they are taken
  std::map<int, Snapshot> received_;            ///< by number of the part
  std::unique_ptr<comm::Transport> transport_;  ///< null: nothing is sent
  std::vector<int> messages_;
  std::vector<std::int64_t> sums_;  ///< CRC-32C of the parts that this process has written, or -1
  std::int64_t whole_ = -1;         ///< update of the newest whole snapshot
  std::int64_t held_bytes_ = 0;     ///< of the parts that this process writes
  std::string notice_;
  bool works_ = true;
};

}  // namespace millrace::training
