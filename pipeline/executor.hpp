// SPDX-License-Identifier: Apache-2.0
//
// Runs a schedule. One Executor runs the part of one process: the stages of all its devices, over
// all replicas that these belong to. It merges the lists of its devices into one list, in an order
// that always finishes, and executes it. Rules about memory:
//
// - micro-batch m of a stage uses slot m % slots; the receives of its inputs are posted when
//   micro-batch m - slots leaves the slot, long before they are needed;
// - the receives of its outputs' gradients are posted after its forward;
// - a sent buffer does not change until the message has left: activations stay in the slot,
//   gradients in the outbox;
// - between stages of one device values are copied; between devices they are sent as messages, even
//   if one process has both devices.
//
// If batch normalization spans replicas, the same entry of all replicas of a group is one event.
// The replicas in this process run it together, part by part, and between two parts the whole group
// exchanges its sums. The merged lists keep such entries adjacent and have the events in the same
// order on all processes. So all replicas of the first unfinished event work on it, and the group's
// messages always complete, even if sends wait for their receives.
//
// All weights are updated together at the end of the step. When all stages of the process have
// their sums, the processes agree whether all sums are finite; then either all of them update or
// none.
//
// Nothing here allocates, looks up a name or logs during a step.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/transport.hpp"
#include "comm/world.hpp"
#include "io/data/prefetch.hpp"
#include "pipeline/channels.hpp"
#include "pipeline/pipeline_plan.hpp"
#include "pipeline/reduction.hpp"
#include "pipeline/schedule.hpp"
#include "pipeline/stage.hpp"

namespace millrace::pipeline {

/// One stage of one replica, on this process.
struct Unit {
  std::int32_t replica = 0;
  std::int32_t stage = 0;
  Stage* run = nullptr;
};

/// Times of one entry of a schedule, in nanoseconds of the steady clock. Waiting counts as if it
/// were all at the beginning. Entries that replicas run together have the same begin and end.
struct ActionRecord {
  std::int64_t begin = 0;
  std::int64_t receive_wait = 0;  ///< includes time in which other replicas run
  std::int64_t send_wait = 0;
  std::int64_t load_wait = 0;  ///< for images
  std::int64_t end = 0;
  Action done;  ///< set by the code that ran, for comparison with the schedule
};

/// The current action of a process, readable from another thread at any time.
struct Standing {
  std::int32_t replica = -1;  ///< -1: no action
  Action action;
  std::int32_t awaited = -1;  ///< stage (in a reduction: replica) whose message is missing, or -1
  std::int32_t awaited_member = -1;  ///< replica whose batch statistics are missing, or -1
};

/// Settings of a training step.
struct StepSettings {
  std::uint64_t seed = 0;      ///< of the run; random masks depend on it
  std::int64_t iteration = 0;  ///< number of the step; random masks depend on it
  float loss_scaling = 1.0f;
  double clip_norm = 0.0;         ///< largest norm of all gradients together; 0: any
  ops::Update update;             ///< all but the scale of gradients, which the executor sets
  bool check_exceptions = false;  ///< check results of every kernel for non-finite numbers
};

class Executor {
 public:
  /// `units` are those of this rank, by replica and stage. They and `plan` must outlive the
  /// executor. A forward-only plan runs the evaluation programs. Errors: Config if the span of
  /// batch normalization does not divide the number of replicas.
  Executor(const Graph& graph, const PipelinePlan& plan, std::span<const Unit> units, int rank);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Bytes of the scratch memory of the reductions.
  [[nodiscard]] std::int64_t bytes() const;
  /// Sets the scratch memory. The stages must be bound first. `world` is used for the agreement of
  /// all processes.
  void bind(std::byte* memory, comm::Transport& transport, const comm::World& world);

  /// Whether the unit reads images or labels; if so it needs a feed.
  [[nodiscard]] bool reads_images(std::size_t unit) const;
  [[nodiscard]] bool reads_labels(std::size_t unit) const;

  /// Runs the whole schedule once. `feeds` by unit, null where none is needed. Training ends with
  /// the update of the weights. If a gradient or a batch statistic is not finite on any rank, the
  /// update is skipped and no trained value changes. Errors: Numeric with the first op whose result
  /// is not finite, if `check_exceptions` is set.
  void run(const device::ExecutionSpace& space, const StepSettings& settings,
           std::span<io::Loader* const> feeds);

  /// Whether the last run skipped its update. The same on all ranks.
  [[nodiscard]] bool skipped() const { return skipped_; }
  /// Metrics of the last run, at index replica + replicas x micro-batch. Zero for those that other
  /// ranks computed.
  [[nodiscard]] std::span<const MicroBatchMetrics> metrics() const { return metrics_; }
  /// Records of the last run, in the order of `entries`.
  [[nodiscard]] std::span<const ActionRecord> records() const { return records_; }
  struct EntryOf {
    std::int32_t replica = 0;
    Entry entry;
    friend bool operator==(const EntryOf&, const EntryOf&) = default;
  };
  [[nodiscard]] std::span<const EntryOf> entries() const { return entries_; }
  [[nodiscard]] const PipelinePlan& plan() const { return *plan_; }
  /// Maximum number of micro-batches that each unit held at once in the last run.
  [[nodiscard]] std::span<const std::int32_t> measured_stash() const { return measured_stash_; }

  [[nodiscard]] Standing standing() const;
  /// Increases with every action.
  [[nodiscard]] std::uint64_t progress() const { return progress_.load(); }

 private:
  /// A value or gradient that crosses this unit's border, to or from another unit.
  struct Port {
    BufferId here;
    BufferId there;            ///< in the other unit's program, if it is on the same device
    int other = -1;            ///< that unit
    std::int32_t peer = 0;     ///< stage at the other end
    bool in_slot = true;       ///< in the micro-batch's slot (false: in the outbox)
    std::vector<int> message;  ///< by slot; empty on the same device
    [[nodiscard]] int message_of(std::int32_t micro_batch) const {
      return message[static_cast<std::size_t>(micro_batch) % message.size()];
    }
  };
  struct UnitState {
    Unit unit;
    BoundProgram* program = nullptr;
    Slots slots;
    Reduction reduction;
    std::optional<Gather> weights = {};  ///< all-gather of weights whose update is divided
    std::int32_t held = 0;
    std::vector<Port> activations_in = {};
    std::vector<Port> activations_out = {};
    std::vector<Port> gradients_in = {};
    std::vector<Port> gradients_out = {};
    /// Exchanges of batch statistics, by phase and the part that follows.
    std::array<std::vector<Gather>, kPhases> exchanges = {};
    std::int64_t worked = 0;  ///< nanoseconds of work in an entry that replicas run together
  };
  struct Instruction {
    Action action;
    int unit = -1;
  };

  [[nodiscard]] bool training() const { return training_; }
  void collect_entries(int rank);
  void make_ports();
  void prepare_messages(comm::Transport& transport, int tags_of_replica);
  void prepare_exchanges(comm::Transport& transport, int first_tag);
  [[nodiscard]] int unit_of(std::int32_t replica, std::int32_t stage) const;
  [[nodiscard]] RunContext context(const UnitState& state, std::int32_t micro_batch) const;

  /// Consecutive entries that run together.
  struct Team {
    std::size_t first = 0;
    std::size_t count = 1;
  };
  [[nodiscard]] Team team_at(std::size_t entry) const;
  template <class F>
  void for_team(Team team, F&& f);
  void execute(Team team, const StepSettings& settings, std::span<io::Loader* const> feeds);
  void compute(Team team, const StepSettings& settings, std::span<io::Loader* const> feeds);
  void run_together(Team team, Phase phase, const StepSettings& settings);
  void await_members(Team team, Phase phase, std::size_t part);
  void begin_forward(UnitState& state, std::int32_t m, io::Loader* feed, ActionRecord& record);
  void end_forward(UnitState& state, std::int32_t m, ActionRecord& record);
  void begin_backward(UnitState& state, std::int32_t m, ActionRecord& record);
  void end_backward(UnitState& state, const Action& action, const StepSettings& settings,
                    ActionRecord& record);
  void leave_slot(UnitState& state, std::int32_t m);
  void send(const UnitState& state, const Action& action, ActionRecord& record);
  void run_part(UnitState& state, Phase phase, std::size_t part, std::int32_t m,
                const StepSettings& settings);
  void await_sums(UnitState& state, const StepSettings& settings, ActionRecord& record);
  void update_together(const StepSettings& settings);
  [[nodiscard]] double clipping(double clip_norm, double scale);
  void share_weights();
  void post_activations(const UnitState& state, std::int32_t m);
  void load(UnitState& state, const RunContext& where, io::Loader& feed, ActionRecord& record);
  void receive(std::span<const Port> ports, std::int32_t m, ActionRecord& record);
  enum class Memory { Slot, Any };
  void await_sent(std::span<const Port> ports, std::int32_t m, Memory memory, ActionRecord& record);
  void copy_in(std::span<const Port> ports, const UnitState& state, std::int32_t m);
  void copy_out(std::span<const Port> ports, const UnitState& state, std::int32_t m);
  void advance_reductions();

  const PipelinePlan* plan_;
  bool training_;
  std::int32_t micro_batches_;
  std::int32_t span_;  ///< replicas that share batch statistics
  std::vector<Channel> channels_;
  std::vector<UnitState> units_;
  std::vector<EntryOf> entries_;
  std::vector<Instruction> instructions_;  ///< by entry
  std::vector<ActionRecord> records_;
  std::vector<MicroBatchMetrics> metrics_;
  std::vector<std::int32_t> measured_stash_;
  comm::Transport* transport_ = nullptr;
  const comm::World* world_ = nullptr;
  const device::ExecutionSpace* space_ = nullptr;
  std::uint64_t seed_ = 0;
  std::int64_t iteration_ = 0;
  int reducing_ = 0;    ///< reductions in progress
  bool finite_ = true;  ///< whether the sums of this process are finite so far
  bool skipped_ = false;
  std::vector<double> squares_;  ///< of the norms of gradients, by parameter
  std::atomic<std::uint64_t> progress_{0};
  std::atomic<std::int64_t> current_{-1};  ///< entry
  std::atomic<std::int32_t> awaited_{-1};
  std::atomic<std::int32_t> awaited_member_{-1};
};

}  // namespace millrace::pipeline
