// SPDX-License-Identifier: Apache-2.0
//
// The schedules of ReCycle (Gandhi et al., SOSP 2024), to compare with. Devices keep their stages.
// The micro-batches of a lost device go in turn to those that hold the same stage of other replicas
// (adaptive pipelining), backward passes are in two parts (decoupled back-propagation), and a stage
// begins the next step as soon as its own gradients are complete (staggered optimizer). Losses are
// spread over the stages (failure normalization). ReCycle lists actions with an integer program;
// here a device takes an input gradient, or else a forward pass, or else a weight gradient, each
// of which takes one slot.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

namespace millrace::partition {

struct RecycleRequest {
  std::int32_t stages = 0;
  std::int32_t replicas = 0;
  std::int32_t micro_batches = 0;  ///< of a replica
  std::int32_t lost = 0;           ///< devices
  std::int32_t held = 0;           ///< most micro-batches on a device, up to their weight gradient
};

class Recycle {
 public:
  explicit Recycle(const RecycleRequest& request) : request_(request) {
    std::set<std::pair<std::int32_t, std::int32_t>> lost;
    for (std::int32_t i = 0; i < request.lost; ++i)
      lost.emplace(i % request.stages, (i / request.stages + i) % request.replicas);
    for (std::int32_t s = 0; s < request.stages; ++s) {
      std::vector<std::size_t> live;
      for (std::int32_t r = 0; r < request.replicas; ++r)
        if (!lost.contains({s, r})) live.push_back(devices(s, r));
      std::size_t turn = 0;
      for (std::int32_t r = 0; r < request.replicas; ++r)
        for (std::int32_t m = 0; m < request.micro_batches; ++m)
          owner_.push_back(lost.contains({s, r}) ? live[turn++ % live.size()] : devices(s, r));
    }
  }

  /// The slots after which each of these steps is complete.
  [[nodiscard]] std::vector<std::int32_t> ends(std::int32_t steps) {
    const std::int32_t jobs = request_.replicas * request_.micro_batches;
    queues_.assign(devices(request_.stages, 0), {});
    open_.assign(static_cast<std::size_t>(request_.stages), 0);
    left_.assign(open_.size(), std::vector<std::int32_t>(static_cast<std::size_t>(steps), jobs));
    for (std::int32_t t = 0; t < steps; ++t)
      for (std::int32_t r = 0; r < request_.replicas; ++r)
        for (std::int32_t m = 0; m < request_.micro_batches; ++m)
          queue(0, {t, m, r}).forward.insert({t, m, r});
    std::vector<std::int32_t> ends(static_cast<std::size_t>(steps), 0);
    for (std::int32_t slot = 1; ends.back() == 0; ++slot) {
      take_all();
      for (std::int32_t t = 0; t < steps; ++t)
        if (ends[static_cast<std::size_t>(t)] == 0 && is_complete(t))
          ends[static_cast<std::size_t>(t)] = slot;
    }
    return ends;
  }

 private:
  struct Job {
    std::int32_t step = 0;
    std::int32_t micro_batch = 0;
    std::int32_t replica = 0;
    auto operator<=>(const Job&) const = default;  // NOLINT(modernize-use-nullptr): a false alarm
  };
  struct Queue {
    std::set<Job> forward;
    std::set<Job> input;
    std::set<Job> weight;
    std::int32_t held = 0;
  };
  enum class Kind { Forward, Input, Weight };
  struct Taken {
    Kind kind = Kind::Forward;
    std::int32_t stage = 0;
    Job job;
  };

  [[nodiscard]] std::size_t devices(std::int32_t stage, std::int32_t replica) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(request_.replicas) +
           static_cast<std::size_t>(replica);
  }
  [[nodiscard]] Queue& queue(std::int32_t stage, const Job& job) {
    const auto jobs = static_cast<std::size_t>(request_.micro_batches);
    return queues_[owner_[devices(stage, job.replica) * jobs +
                          static_cast<std::size_t>(job.micro_batch)]];
  }
  [[nodiscard]] bool is_complete(std::int32_t step) const {
    for (const std::vector<std::int32_t>& stage : left_)
      if (stage[static_cast<std::size_t>(step)] > 0) return false;
    return true;
  }

  /// A slot of all devices. What they make is there in the next slot.
  void take_all() {
    std::vector<Taken> taken;
    for (std::size_t d = 0; d < queues_.size(); ++d) {
      const auto stage = static_cast<std::int32_t>(d) / request_.replicas;
      Queue& own = queues_[d];
      const auto take = [&](Kind kind, std::set<Job>& from) {
        taken.push_back({kind, stage, *from.begin()});
        from.erase(from.begin());
      };
      if (!own.input.empty()) {
        take(Kind::Input, own.input);
      } else if (!own.forward.empty() && own.held < request_.held &&
                 own.forward.begin()->step <= open_[static_cast<std::size_t>(stage)]) {
        ++own.held;
        take(Kind::Forward, own.forward);
      } else if (!own.weight.empty()) {
        --own.held;
        take(Kind::Weight, own.weight);
      }
    }
    for (const Taken& action : taken) finish(action);
  }

  void finish(const Taken& action) {
    const auto& [kind, stage, job] = action;
    if (kind == Kind::Forward && stage + 1 < request_.stages)
      queue(stage + 1, job).forward.insert(job);
    else if (kind == Kind::Forward)
      queue(stage, job).input.insert(job);
    if (kind == Kind::Input) {
      queue(stage, job).weight.insert(job);
      if (stage > 0) queue(stage - 1, job).input.insert(job);
    }
    const auto s = static_cast<std::size_t>(stage);
    if (kind == Kind::Weight && --left_[s][static_cast<std::size_t>(job.step)] == 0)
      open_[s] = job.step + 1;
  }

  RecycleRequest request_;
  std::vector<std::size_t> owner_;               ///< by stage, replica and micro-batch
  std::vector<Queue> queues_;                    ///< by device
  std::vector<std::int32_t> open_;               ///< by stage: the last step that it may begin
  std::vector<std::vector<std::int32_t>> left_;  ///< by stage and step: weight gradients
};

}  // namespace millrace::partition
