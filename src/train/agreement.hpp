// SPDX-License-Identifier: Apache-2.0
//
// Ranks that train together must see the same: one that restores another step, reads other images
// or computes with other instructions spoils the weights of all without a word. What a rank finds
// on its own disk therefore decides nothing alone: rank 0 decides, the others prove that they have
// what it has, and whoever has not is named before anything is computed or written.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "comm/world.hpp"
#include "core/error.hpp"
#include "io/checkpoint.hpp"

namespace millrace::train {

/// Something that all ranks must have in common.
struct Fact {
  std::string name;   ///< for people: "training images"
  std::string value;  ///< of one line or of several, which are compared line by line
  std::string remedy;
  ErrorKind kind = ErrorKind::Usage;  ///< of the error where it differs
};

/// Errors: that of the first fact in which some rank differs from rank 0, naming the rank, the
/// fact, both values and the remedy. Collective; all ranks give the same facts in the same order.
void require_alike(const comm::World& world, const std::vector<Fact>& facts);

/// The newest sound checkpoint below `directory` as rank 0 finds it, opened on every rank; what
/// rank 0 passed over is in its `complaints`. Collective. Errors: as io::open_newest(), and
/// Checkpoint where a rank cannot read that one or finds another in its place.
[[nodiscard]] io::CheckpointReader agreed_newest(const comm::World& world,
                                                 const std::filesystem::path& directory,
                                                 std::vector<std::string>& complaints);

/// The same of the checkpoint that rank 0 names.
[[nodiscard]] io::CheckpointReader agreed_checkpoint(const comm::World& world,
                                                     const std::filesystem::path& path_of_leader);

}  // namespace millrace::train
