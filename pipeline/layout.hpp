// SPDX-License-Identifier: Apache-2.0
//
// How a network is cut and who computes what when, as plain data. The other headers of this folder
// make it, prove it, draw it and run it.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "models/graph.hpp"

namespace millrace::pipeline {

using models::OpId;

/// Ops [first, last) of a graph.
struct OpRange {
  std::int32_t first = 0;
  std::int32_t last = 0;
  [[nodiscard]] bool contains(OpId op) const { return op.value >= first && op.value < last; }
  friend bool operator==(const OpRange&, const OpRange&) = default;
};

/// Which activations are recomputed in the backward pass instead of being kept: none, those of the
/// whole stage, or those of some layers.
enum class Recompute { None, Stage, Layers };

/// The segments of a stage that were chosen before its training, as in ProgramOptions.
struct ChosenSegments {
  std::vector<OpId> segments;
  std::vector<OpId> kept;
  friend bool operator==(const ChosenSegments&, const ChosenSegments&) = default;
};

enum class ActionKind : std::uint8_t {
  Forward,
  Backward,        ///< BackwardInput and BackwardWeight in one
  BackwardInput,   ///< gradient of the stage's inputs
  BackwardWeight,  ///< gradient of its weights
  SendActivation,  ///< each send is followed by its receive
  ReceiveActivation,
  SendGradient,
  ReceiveGradient,
  Reduce,  ///< all-reduce of the stage's weight gradients over the replicas
  Update,  ///< update of the stage's weights
};

/// What a device does next. Stages and micro-batches count from 0.
struct Action {
  ActionKind kind = ActionKind::Forward;
  std::int32_t stage = 0;
  std::int32_t micro_batch = -1;  ///< -1: the whole step (Reduce, Update)
  std::int32_t peer = -1;         ///< of messages: the stage at the other end
  friend auto operator<=>(const Action&, const Action&) = default;  // NOLINT(modernize-use-nullptr)
  friend bool operator==(const Action&, const Action&) = default;   // nvcc does not imply it
};

/// The place of an action in a schedule.
struct Entry {
  std::int32_t device = 0;
  std::int32_t index = 0;
  friend auto operator<=>(const Entry&, const Entry&) = default;  // NOLINT(modernize-use-nullptr)
  friend bool operator==(const Entry&, const Entry&) = default;   // nvcc does not imply it
};

struct Schedule {
  std::string name;
  std::int32_t stages = 0;
  std::int32_t micro_batches = 0;
  std::vector<std::int32_t> device_of;     ///< by stage
  std::vector<std::vector<Action>> lists;  ///< by device

  [[nodiscard]] std::int32_t devices() const { return static_cast<std::int32_t>(lists.size()); }
  [[nodiscard]] std::int32_t device(std::int32_t stage) const {
    return device_of.at(static_cast<std::size_t>(stage));
  }
  [[nodiscard]] const Action& at(const Entry& entry) const {
    return lists[static_cast<std::size_t>(entry.device)][static_cast<std::size_t>(entry.index)];
  }
  friend bool operator==(const Schedule&, const Schedule&) = default;
};

/// Which process has which device. Devices are numbered replica by replica and divided into
/// consecutive groups, so that neighboring stages are on neighboring ranks, which launchers place
/// on one machine.
struct RankMap {
  std::int32_t devices = 1;  ///< of a replica
  std::int32_t replicas = 1;
  std::int32_t ranks = 1;                 ///< at most devices x replicas
  std::vector<std::int32_t> shares = {};  ///< devices of each rank; empty: as equal as possible

  [[nodiscard]] std::int32_t all_devices() const { return devices * replicas; }
  /// The first device of a rank, or all_devices() for the rank behind the last.
  [[nodiscard]] std::int32_t first_of(std::int32_t rank) const;
  [[nodiscard]] std::int32_t devices_of(std::int32_t rank) const {
    return first_of(rank + 1) - first_of(rank);
  }
  [[nodiscard]] std::int32_t most_devices() const;  ///< of a rank
  [[nodiscard]] std::int32_t rank_of(std::int32_t replica, std::int32_t device) const;
  friend bool operator==(const RankMap&, const RankMap&) = default;
};

/// How a network runs: its stages, the schedule, and the process of each device. The same on all
/// ranks.
struct PipelinePlan {
  std::vector<OpRange> ranges;  ///< by stage; empty: one stage with the whole network
  Schedule schedule;            ///< of each replica, with communication, and valid
  RankMap ranks;
  /// Where replicas do not compute in the same order: that of all of them, likewise. Its devices
  /// are the ranks, its stages are units (below). No stages: all replicas keep to `schedule`.
  Schedule joint = {};

  [[nodiscard]] bool is_joint() const { return joint.stages > 0; }
  /// The number of a stage of a replica, replica by replica.
  [[nodiscard]] std::int32_t unit(std::int32_t replica, std::int32_t stage) const {
    return replica * schedule.stages + stage;
  }
  [[nodiscard]] std::int32_t rank_of(std::int32_t replica, std::int32_t stage) const {
    return ranks.rank_of(replica, schedule.device(stage));
  }
  /// The number of the device of a stage, replica by replica; with a joint order, a rank is a
  /// device. Stages of one device copy what they exchange.
  [[nodiscard]] std::int32_t place_of(std::int32_t replica, std::int32_t stage) const {
    return is_joint() ? rank_of(replica, stage) : replica * ranks.devices + schedule.device(stage);
  }
  [[nodiscard]] std::int32_t places() const {
    return is_joint() ? ranks.ranks : ranks.all_devices();
  }
  friend bool operator==(const PipelinePlan&, const PipelinePlan&) = default;
};

}  // namespace millrace::pipeline
