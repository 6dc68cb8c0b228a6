// SPDX-License-Identifier: Apache-2.0
//
// Ranks that train together must agree on their inputs. A rank that restores another step, reads
// other images or computes with other instructions would silently spoil the weights of all ranks.
// Nothing is therefore decided from one rank's disk alone: rank 0 decides, the other ranks prove
// that they have the same, and a rank that differs is named before anything is computed or written.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/world.hpp"
#include "core/error.hpp"
#include "io/checkpoint.hpp"

namespace millrace::training {

/// Runs functions that may fail on some ranks, so that all ranks fail or none: the error of the
/// lowest failing rank is thrown on every rank. Collective.
class FailTogether {
 public:
  explicit FailTogether(const comm::World& world) : world_(&world) {}

  /// Runs `f` on every rank.
  void run(const std::function<void()>& f) const;
  /// Runs `f` on rank 0; the other ranks only learn whether it failed.
  void lead(const std::function<void()>& f) const;

 private:
  const comm::World* world_;
};

/// Something that all ranks must have in common.
struct Fact {
  std::string name;   ///< for people: "training images"
  std::string value;  ///< one line, or several lines that are compared one by one
  std::string remedy;
  ErrorKind kind = ErrorKind::Usage;  ///< kind of the error if the values differ
};

/// Collective; all ranks pass the same facts in the same order. Errors: that of the first fact in
/// which a rank differs from rank 0; it names the rank, the fact, both values and the remedy.
void require_alike(const comm::World& world, const std::vector<Fact>& facts);

/// Requires that all ranks see the run directory of rank 0, by the contents of its lock. Waits ten
/// seconds for file systems that show files late. Collective. Errors: Io, naming the rank.
void require_shared(const comm::World& world, const std::filesystem::path& run_directory);

/// Opens on every rank the newest valid checkpoint below `directory`, as rank 0 finds it. The
/// `complaints` of rank 0 list what it skipped. Collective. Errors: as io::open_newest();
/// Checkpoint if a rank cannot read that checkpoint or finds another one in its place.
[[nodiscard]] io::CheckpointReader agreed_newest(const comm::World& world,
                                                 const std::filesystem::path& directory,
                                                 std::vector<std::string>& complaints);

/// Opens on every rank the next checkpoint of the walk of rank 0; nothing after the last.
/// Collective. Errors: as io::CheckpointWalk::next() and agreed_newest().
[[nodiscard]] std::optional<io::CheckpointReader> agreed_next(const comm::World& world,
                                                              io::CheckpointWalk& walk);

/// The same for the checkpoint that rank 0 names.
[[nodiscard]] io::CheckpointReader agreed_checkpoint(const comm::World& world,
                                                     const std::filesystem::path& path_of_leader);

}  // namespace millrace::training
