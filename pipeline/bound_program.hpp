// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "device/queues.hpp"
#include "ops/backend.hpp"
#include "ops/elementwise.hpp"
#include "ops/variants.hpp"
#include "pipeline/kernels.hpp"
#include "pipeline/memory_plan.hpp"
#include "pipeline/parameters.hpp"
#include "pipeline/program.hpp"

namespace millrace::pipeline {

/// How many launches are kept.
struct KeptCount {
  int kept = 0;
  int refused = 0;  ///< by the device
};

/// Kept launches by what their kernels get by value. What else changes, they read from device
/// memory.
template <class Key>
class KeptLaunches {
 public:
  template <class QueueWork>
  void run(const device::ExecutionSpace& space, const Key& key, const QueueWork& queue_work) {
    static const bool keeps = device::kHasGraphs && ops::variant("KEPT_LAUNCHES", 1) != 0;
    if (!keeps) return queue_work();
    auto found = std::ranges::find(launches_, key, &std::pair<Key, device::KeptLaunch>::first);
    if (found == launches_.end()) found = launches_.insert(found, {key, device::KeptLaunch()});
    found->second.run(space, queue_work);
  }
  void clear() { launches_.clear(); }

  [[nodiscard]] KeptCount count() const {
    using enum device::KeptLaunch::State;
    const auto in = [this](device::KeptLaunch::State state) {
      return static_cast<int>(std::ranges::count(
          launches_, state, [](const auto& entry) { return entry.second.state(); }));
    };
    return {.kept = in(Kept), .refused = in(CannotBeKept)};
  }

 private:
  std::vector<std::pair<Key, device::KeptLaunch>> launches_;
};

/// The runs of calls of a program that the backend's vendor computes as one kernel.
class ClaimedRuns {
 public:
  /// Offers every run of neighboring calls of linear ops, norms and activations, longest first. A
  /// run ends at the end of a phase and where replicas exchange.
  ClaimedRuns(const Graph& graph, const StageProgram& program, const ops::Backend& backend);

  [[nodiscard]] bool contains(std::size_t phase, std::size_t call) const {
    return find(phase, call) != nullptr;
  }
  [[nodiscard]] std::int64_t packed_bytes() const { return packed_bytes_; }
  [[nodiscard]] std::int64_t scratch_bytes() const { return scratch_bytes_; }
  void bind(const Graph& graph, const StageProgram& program, const Parameters& parameters,
            std::byte* packed, std::byte* scratch);
  void pack(const device::ExecutionSpace& space);
  /// Whether the call is in a run and not its last.
  [[nodiscard]] bool is_within(std::size_t phase, std::size_t call) const;
  /// The kernel of a call in a run: the first call runs all of it, the others do nothing.
  [[nodiscard]] Kernel kernel(const StageProgram& program, std::size_t phase, std::size_t call,
                              const std::function<Place(BufferId)>& place) const;

 private:
  struct Run {
    std::size_t phase = 0;
    std::size_t first = 0;  ///< calls [first, first + claim.calls) of the phase
    ops::RunClaim claim;
  };
  [[nodiscard]] const Run* find(std::size_t phase, std::size_t call) const;

  std::vector<Run> runs_;
  std::int64_t packed_bytes_ = 0;
  std::int64_t scratch_bytes_ = 0;
};

/// A compiled program with prepared kernels and placed buffers. A step only runs the lists of
/// calls; it does not allocate.
class BoundProgram {
 public:
  /// Prepares the kernels of `program` on `backend`. The graph and the parameters must outlive it.
  BoundProgram(const Graph& graph, StageProgram program, Slots slots, ops::Backend& backend,
               const Parameters& parameters, LabelSmoothing label_smoothing);
  BoundProgram(const BoundProgram&) = delete;  // kernels hold addresses of its members
  BoundProgram& operator=(const BoundProgram&) = delete;

  /// Exact bytes of workspace: packed kernels, slots, transient buffers, scratch of the vendor
  /// library.
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  /// Of these, the bytes of packed kernels and scratch.
  [[nodiscard]] std::int64_t kernel_bytes() const { return stash_offset_ + scratch_bytes(); }
  [[nodiscard]] std::int64_t scratch_bytes() const { return bytes_ - scratch_offset_; }
  void bind(std::byte* workspace);

  /// Packs the kernels and prepares the workspace, which another program may have used meanwhile;
  /// call after every change of the weights. The numbers of a step are those of its parameters.
  void begin_step(const device::ExecutionSpace& space);
  /// Most phases have one part. A phase is divided where the replicas of a group exchange the
  /// content of a buffer, and behind the last call of a bucket of gradients. Where a device keeps
  /// launches, a part that runs again in the same slots is one launch.
  [[nodiscard]] std::size_t parts(Phase phase) const { return parts_of(phase).size(); }
  /// The buffer that is exchanged before a part; not valid if none is.
  [[nodiscard]] BufferId exchanged(Phase phase, std::size_t part) const;
  /// Gradients of the parameters at places [first, last) of Parameters::ids().
  struct Bucket {
    std::size_t first = 0;
    std::size_t last = 0;
    std::size_t calls = 0;  ///< of the backward pass, after which they are complete
  };
  /// All gradients, ReduceOptions::most() at a time, in the order in which they are complete;
  /// none of one replica.
  [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }
  /// Calls of the backward pass up to the end of a part: of the phase BackwardInput, then of
  /// BackwardWeight.
  [[nodiscard]] std::size_t backward_calls(Phase phase, std::size_t part) const;
  void run_part(const device::ExecutionSpace& space, Phase phase, std::size_t part,
                const RunContext& context);
  /// The same as part of a larger launch.
  void queue_part(const device::ExecutionSpace& space, Phase phase, std::size_t part,
                  const RunContext& context) const;

  /// The same; waits after every call, and calls `after` with whether the call's results are
  /// stored: within a claimed run they need not be.
  void run_part(const device::ExecutionSpace& space, Phase phase, std::size_t part,
                const RunContext& context,
                const std::function<void(const Call&, bool stored)>& after);

  /// Runs a whole phase and adds the seconds of every call to those of its op.
  void profile(const device::ExecutionSpace& space, Phase phase, const RunContext& context,
               std::span<double> seconds_by_op);

  /// Address of a buffer in a slot.
  [[nodiscard]] std::byte* address(BufferId buffer, const RunContext& context) const;
  [[nodiscard]] Region region(BufferId buffer) const {
    return plan_.placements[buffer.at()].region;
  }
  [[nodiscard]] const StageProgram& program() const { return program_; }
  [[nodiscard]] const Graph& graph() const { return *graph_; }
  [[nodiscard]] const Parameters& parameters() const { return *parameters_; }
  [[nodiscard]] const MemoryPlan& plan() const { return plan_; }
  [[nodiscard]] KeptCount kept() const { return kept_.count(); }

 private:
  /// A weight gradient that is left: its place in left_gradients_ and in their memory.
  struct Left {
    std::size_t place = 0;
    std::int64_t offset = 0;
    std::size_t added = 1;  ///< gradients up to this one that are added behind its call
  };
  struct Linear {
    OpId op;
    std::unique_ptr<ops::LinearOp> kernel;
    std::int64_t packed_forward = 0;  ///< offsets in the workspace
    std::int64_t packed_backward = 0;
    std::optional<Left> left = {};  ///< its weight gradient, if it does not add that itself
  };
  /// Weight gradients that ops leave in memory of at most so many bytes are added in one launch,
  /// behind the last that has room there. Larger ones are added by their ops.
  static constexpr std::int64_t kMostLeft = std::int64_t{4} << 20;

  /// Calls [first, last) of a phase.
  struct Part {
    std::size_t first = 0;
    std::size_t last = 0;
  };
  [[nodiscard]] const std::vector<Part>& parts_of(Phase phase) const {
    return parts_[static_cast<std::size_t>(phase)];
  }

  void divide();
  /// By op, the calls of the backward pass up to the last that adds to its gradients.
  [[nodiscard]] std::vector<std::size_t> calls_for_gradients() const;
  void fill_buckets();
  void prepare_linear(const ops::Backend& backend);
  /// Whether the program has a call of this kind and op that is not in a claimed run.
  [[nodiscard]] bool calls(KernelKind kind, OpId op) const;
  void place_workspace();
  std::int64_t place_gradients();
  /// Floats and counters of scratch that the norms need.
  struct NormNeeds {
    std::int64_t floats = 0;
    std::int64_t counters = 0;
  };
  [[nodiscard]] NormNeeds needs_of_norms() const;
  [[nodiscard]] std::uint32_t* counters() const {
    return reinterpret_cast<std::uint32_t*>(workspace_ + counters_offset_);
  }
  /// Whether the norm's first backward pass adds to the gradients of the step. Not on cores, where
  /// a launch costs little. Every schedule has this pass in ascending order of micro-batches, like
  /// the weight gradients, so the sums are the same.
  [[nodiscard]] bool adds_gradients(OpId norm) const;
  /// The prepared op of a linear call; nullptr for other calls.
  [[nodiscard]] Linear* linear_of(const Call& call);
  [[nodiscard]] Place place(BufferId buffer) const;

  void bind_linear();
  void make_kernels();
  [[nodiscard]] ops::CallValues* values() const {
    return reinterpret_cast<ops::CallValues*>(workspace_ + values_offset_);
  }
  void queue_calls(const device::ExecutionSpace& space, Phase phase, std::size_t part,
                   const RunContext& context) const;
  /// A call `apart` from others adds the gradient that it leaves.
  void queue_call(const device::ExecutionSpace& space, Phase phase, std::size_t call,
                  const RunContext& context, bool apart) const;
  /// Sets the values that kernels of the part read.
  void set_values(const device::ExecutionSpace& space, Phase phase, const Part& part,
                  const RunContext& context) const;

  const Graph* graph_;
  StageProgram program_;
  MemoryPlan plan_;
  const Parameters* parameters_;
  LabelSmoothing label_smoothing_;
  std::array<std::vector<Part>, kPhases> parts_;
  std::vector<Bucket> buckets_;
  ClaimedRuns claimed_;
  std::vector<Linear> linear_;
  std::int64_t claimed_offset_ = 0;
  std::int64_t counters_offset_ = 0;  ///< of the norms
  std::int64_t counters_ = 0;
  std::int64_t gradients_offset_ = 0;  ///< of those that ops leave
  std::int64_t stash_offset_ = 0;
  std::int64_t weight_offset_ = 0;
  std::int64_t outbox_offset_ = 0;
  std::int64_t transient_offset_ = 0;
  std::int64_t scratch_offset_ = 0;
  std::int64_t bytes_ = 0;
  std::byte* workspace_ = nullptr;
  std::int64_t values_offset_ = 0;
  std::array<std::vector<Kernel>, kPhases> kernels_;
  std::array<std::vector<std::optional<Left>>, kPhases> left_;  ///< by call
  std::vector<ops::GradientPart> left_gradients_;               ///< in the order of calls
  /// Of a part of a phase: that, and what its kernels get from the context by value.
  struct PartKey {
    Phase phase;
    std::size_t part;
    int stash_slot;
    int weight_slot;
    int outbox_slot;
    int member;
    bool first;
    std::uint64_t seed;
    friend bool operator==(const PartKey&, const PartKey&) = default;
  };
  KeptLaunches<PartKey> kept_;
};

}  // namespace millrace::pipeline
