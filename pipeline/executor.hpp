// SPDX-License-Identifier: Apache-2.0
//
// The run half of pipeline carries a schedule out. One Executor is one process' part: the stages of
// all devices that the process holds, and of all replicas that those belong to. It walks one list,
// in which the lists of its devices are merged in an order that can always be finished, and knows
// four rules about memory besides:
//
// - micro-batch m of a stage works in slot m % slots; the receives of its inputs are posted as soon
//   as micro-batch m - slots has left the slot, long before they are needed;
// - the receives of its outputs' gradients are posted behind its forward;
// - what it sends lies still until it has left: activations in the slot, gradients in the outbox;
// - between stages of one device values are copied, between devices they are messages, also when
//   one process holds both.
//
// Where batch norms span replicas, the same entry of a group's replicas is one event: those of this
// process run it together, part by part, and between two parts all of the group exchange their
// sums. The lists are merged so that such entries stand side by side, on all processes in the order
// of the same events: the first event that is not through yet has all of its replicas at it, so
// that the group's messages can always be finished, even by sends that wait for their receives.
//
// The weights move at the end of the step and everywhere together: once all stages of the process
// have their sums, the processes agree whether all of them are finite, and either all update or
// none does.
//
// Nothing here allocates, looks up a name or logs while a step runs.
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
#include "io/prefetch.hpp"
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

/// What happened at one entry of a schedule, in nanoseconds of the steady clock: waiting lies at
/// the beginning, or is counted as if it did. What replicas run together begins and ends together.
struct ActionRecord {
  std::int64_t begin = 0;
  std::int64_t receive_wait = 0;  ///< also for what other replicas run in between
  std::int64_t send_wait = 0;
  std::int64_t load_wait = 0;  ///< for images
  std::int64_t end = 0;
  Action done;  ///< noted by the code that did it, to be held against the schedule
};

/// What a process is at, readable from another thread at any time.
struct Standing {
  std::int32_t replica = -1;  ///< -1: at no action
  Action action;
  std::int32_t awaited = -1;  ///< stage (of a reduction: replica) whose message is missing, or -1
  std::int32_t awaited_member = -1;  ///< replica whose batch statistics are missing, or -1
};

/// What a step of training is done with.
struct StepSettings {
  std::uint64_t seed = 0;      ///< of the run, and
  std::int64_t iteration = 0;  ///< the number of the step: what random masks are drawn by
  float loss_scaling = 1.0f;
  ops::Update update;             ///< all but the scale of gradients, which the executor knows
  bool check_exceptions = false;  ///< look behind every kernel for numbers that are not finite
};

class Executor {
 public:
  /// `units` are those of this rank, by replica and stage; they must outlive the executor, as must
  /// `plan`. A plan of forwards alone runs the stages' programs of evaluation. Errors: Config, when
  /// batch norms span more replicas than there are, or groups of unequal size.
  Executor(const Graph& graph, const PipelinePlan& plan, std::span<const Unit> units, int rank);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Scratch memory of the reductions, and where it is. The stages must be bound before; the world
  /// is what processes agree over.
  [[nodiscard]] std::int64_t bytes() const;
  void bind(std::byte* memory, comm::Transport& transport, const comm::World& world);

  /// Whether unit `u` reads images, labels or both: it then needs a feed.
  [[nodiscard]] bool reads_images(std::size_t unit) const;
  [[nodiscard]] bool reads_labels(std::size_t unit) const;

  /// Runs the whole schedule once. `feeds` by unit, null where none is needed. Training ends with
  /// the update of the weights; it is skipped, and nothing that is trained changes, when a gradient
  /// or a batch's statistic is not finite on any rank. Errors: Numeric, naming the first op whose
  /// result is not finite, where settings ask for it.
  void run(const device::ExecutionSpace& space, const StepSettings& settings,
           std::span<io::Loader* const> feeds);

  /// Whether the last run left out its update. The same on all ranks.
  [[nodiscard]] bool skipped() const { return skipped_; }
  /// Metrics of the last run by replica and micro-batch: number replica + replicas x micro-batch.
  /// Zero for those that other ranks computed.
  [[nodiscard]] std::span<const MicroBatchMetrics> metrics() const { return metrics_; }
  /// What happened last, in the order of `entries`.
  [[nodiscard]] std::span<const ActionRecord> records() const { return records_; }
  struct EntryOf {
    std::int32_t replica = 0;
    Entry entry;
    friend bool operator==(const EntryOf&, const EntryOf&) = default;
  };
  [[nodiscard]] std::span<const EntryOf> entries() const { return entries_; }
  [[nodiscard]] const PipelinePlan& plan() const { return *plan_; }
  /// Highest number of micro-batches that each unit held at once in the last run.
  [[nodiscard]] std::span<const std::int32_t> measured_stash() const { return measured_stash_; }

  [[nodiscard]] Standing standing() const;
  /// Grows with every action.
  [[nodiscard]] std::uint64_t progress() const { return progress_.load(); }

 private:
  /// A value or gradient that crosses this unit's border, to or from another unit.
  struct Port {
    BufferId here;
    BufferId there;            ///< in the other unit's program, where it is on the same device
    int other = -1;            ///< that unit
    std::int32_t peer = 0;     ///< stage at the other end
    bool in_slot = true;       ///< lies in the micro-batch's slot, not in the outbox
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
    std::optional<Gather> weights = {};  ///< from the replicas that update them, where shared out
    std::int32_t held = 0;
    std::vector<Port> activations_in = {};
    std::vector<Port> activations_out = {};
    std::vector<Port> gradients_in = {};
    std::vector<Port> gradients_out = {};
    /// Of batch statistics, by phase and part behind it.
    std::array<std::vector<Gather>, kPhases> exchanges = {};
    std::int64_t worked = 0;  ///< of what replicas run together, in nanoseconds
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

  /// Entries that run together, the first and those behind it.
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
  int reducing_ = 0;    ///< reductions on their way
  bool finite_ = true;  ///< the sums of this process so far
  bool skipped_ = false;
  std::atomic<std::uint64_t> progress_{0};
  std::atomic<std::int64_t> current_{-1};  ///< entry
  std::atomic<std::int32_t> awaited_{-1};
  std::atomic<std::int32_t> awaited_member_{-1};
};

}  // namespace millrace::pipeline
