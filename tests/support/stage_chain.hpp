// SPDX-License-Identifier: Apache-2.0
//
// A network cut into stages that run one after another in this process: the smallest test of
// whether cuts, slots and orders change any bits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/random.hpp"
#include "device/arena.hpp"
#include "device/compat.hpp"
#include "ops/elementwise.hpp"
#include "pipeline/stage.hpp"
#include "tests/support/device_floats.hpp"
#include "tests/support/stage_calls.hpp"

namespace millrace::test {

using pipeline::Crossing;
using pipeline::OpRange;
using pipeline::Phase;
using pipeline::RunContext;
using pipeline::Stage;
using pipeline::StageOptions;

/// The result of a step: everything that must not depend on the layout.
struct StepState {
  std::map<std::string, std::vector<float>> gradients;
  std::map<std::string, std::vector<float>>
      values;                  ///< after the update, running statistics included
  std::vector<double> losses;  ///< by micro-batch
  friend bool operator==(const StepState&, const StepState&) = default;
};

class StageChain {
 public:
  /// Cuts before the ops in `cuts` (ascending).
  StageChain(const models::Graph& graph, const std::vector<std::int32_t>& cuts,
             const StageOptions& options, ops::Backend& backend)
      : graph_(graph), options_(options) {
    std::vector<std::int32_t> borders = {0};
    borders.insert(borders.end(), cuts.begin(), cuts.end());
    borders.push_back(static_cast<std::int32_t>(graph.ops.size()));
    for (std::size_t s = 0; s + 1 < borders.size(); ++s) {
      stages_.push_back(
          std::make_unique<Stage>(graph, OpRange{borders[s], borders[s + 1]}, options, backend));
      arenas_.emplace_back(stages_.back()->bytes());
      stages_.back()->bind(arenas_.back().at(0));
      stages_.back()->parameters().initialise(7);
    }
  }

  [[nodiscard]] std::int64_t bytes() const {
    std::int64_t sum = 0;
    for (const auto& stage : stages_) sum += stage->bytes();
    return sum;
  }
  [[nodiscard]] Stage& stage(std::size_t s) { return *stages_[s]; }

  /// The context of a micro-batch in the current step; all stages draw their masks from it.
  [[nodiscard]] RunContext context(std::int64_t micro_batch, int slot = 0) const {
    return {.stash_slot = slot,
            .weight_slot = slot,
            .first = micro_batch == 0,
            .seed = 11,
            .first_sample = micro_batch * options_.batch};
  }

  /// Replaces the random images and labels of all micro-batches.
  void use(const io::Batch& batch) { batch_ = batch; }

  void begin_step() {
    for (const auto& stage : stages_) {
      stage->parameters().begin_step(space_, {.update = {.step = 3}});
      stage->training().begin_step(space_);
    }
  }

  double forward(std::int64_t micro_batch, const RunContext& context) {
    return forward(&Stage::training, micro_batch, context);
  }
  /// Loss of a micro-batch in evaluation. Requires options.evaluation_batch == options.batch.
  double evaluate(std::int64_t micro_batch) {
    for (const auto& stage : stages_) stage->evaluation().begin_step(space_);
    return forward(&Stage::evaluation, micro_batch, {});
  }

  /// With an argument `after`, one call after the other, as BoundProgram::run_part().
  template <class... After>
  void backward_input(const RunContext& context, const After&... after) {
    for (std::size_t s = stages_.size(); s-- > 0;) {
      for (const Crossing& out : program(s).outputs) gather_gradient(s, out, context);
      stages_[s]->training().run_part(space_, Phase::BackwardInput, 0, context, after...);
    }
  }

  template <class... After>
  void backward_weight(const RunContext& context, const After&... after) {
    for (const auto& stage : stages_)
      stage->training().run_part(space_, Phase::BackwardWeight, 0, context, after...);
  }

  void update(std::int64_t micro_batches) {
    ops::Update update;
    update.rate = 0.1f;
    update.momentum = 0.9f;
    update.weight_decay = 1e-4f;
    update.gradient_scale = 1.0f / static_cast<float>(micro_batches);
    for (const auto& stage : stages_) {
      stage->parameters().begin_step(space_, {.update = update});
      stage->parameters().update(space_, micro_batches);
    }
    device::fence(space_);
  }

  [[nodiscard]] std::map<std::string, std::vector<float>> gradients() {
    return read([](pipeline::Parameters& p, models::ParameterId id, bool trainable) {
      return trainable ? p.gradient(id) : nullptr;
    });
  }
  [[nodiscard]] std::map<std::string, std::vector<float>> values() {
    return read([](pipeline::Parameters& p, models::ParameterId id, bool) { return p.value(id); });
  }

  /// Forward and backward of `micro_batches` one after another in slot 0, then the update.
  StepState plain_step(std::int64_t micro_batches) {
    StepState state;
    begin_step();
    for (std::int64_t m = 0; m < micro_batches; ++m) {
      state.losses.push_back(forward(m, context(m)));
      backward_input(context(m));
      backward_weight(context(m));
    }
    return finish(std::move(state), micro_batches);
  }

  StepState finish(StepState state, std::int64_t micro_batches) {
    state.gradients = gradients();
    update(micro_batches);
    state.values = values();
    return state;
  }

  [[nodiscard]] const pipeline::StageProgram& program(std::size_t s) {
    return stages_[s]->training().program();
  }

 private:
  using ProgramOf = pipeline::BoundProgram& (Stage::*)();

  double forward(ProgramOf program_of, std::int64_t micro_batch, const RunContext& context) {
    load_images(program_of, micro_batch, context);
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      pipeline::BoundProgram& program = (*stages_[s].*program_of)();
      run_phase(program, space_, Phase::Forward, context);
      for (const Crossing& out : program.program().outputs)
        send_activation(program_of, s, out, context);
    }
    return metrics(*stages_.back(), (*stages_.back().*program_of)(), context).loss;
  }

  void load_images(ProgramOf program_of, std::int64_t micro_batch, const RunContext& context) {
    if (batch_) {
      for (const auto& stage : stages_) load((*stage.*program_of)(), context, *batch_);
      return;
    }
    const std::int64_t n = options_.batch * graph_.input_shape.elements();
    const RandomStream stream(1, RandomPurpose::SyntheticData,
                              static_cast<std::uint64_t>(micro_batch));
    std::vector<std::byte> images(static_cast<std::size_t>(n * size_of(options_.type)));
    for (std::int64_t i = 0; i < n; ++i) {
      const float x = 4.0f * uniform01(stream.block(0, static_cast<std::uint64_t>(i))[0]) - 2.0f;
      if (options_.type == DType::F32) {
        std::memcpy(&images[static_cast<std::size_t>(i) * 4], &x, 4);
      } else {
        const bfloat16 b = to_bfloat16(x);
        std::memcpy(&images[static_cast<std::size_t>(i) * 2], &b, 2);
      }
    }
    std::vector<std::int32_t> labels;
    for (std::int64_t i = 0; i < options_.batch; ++i) {
      labels.push_back(static_cast<std::int32_t>((micro_batch + 3 * i) % graph_.classes));
    }
    for (const auto& stage : stages_) load((*stage.*program_of)(), context, images, labels);
  }

  void send_activation(ProgramOf program_of, std::size_t from, const Crossing& out,
                       const RunContext& context) {
    if (!out.activation.valid()) return;
    for (std::size_t s = from + 1; s < stages_.size(); ++s) {
      const pipeline::BoundProgram& to = (*stages_[s].*program_of)();
      for (const Crossing& in : to.program().inputs) {
        if (in.value != out.value) continue;
        device::copy_within(to.address(in.activation, context),
                            (*stages_[from].*program_of)().address(out.activation, context),
                            to.program().buffer(in.activation).bytes);
      }
    }
  }

  /// The gradient of a value comes from the next stage that reads it; that stage has added the
  /// gradients of later stages.
  void gather_gradient(std::size_t to, const Crossing& out, const RunContext& context) {
    for (std::size_t s = to + 1; s < stages_.size(); ++s) {
      for (const Crossing& in : program(s).inputs) {
        if (in.value != out.value) continue;
        device::copy_within(stages_[to]->training().address(out.gradient, context),
                            stages_[s]->training().address(in.gradient, context),
                            program(s).buffer(in.gradient).bytes);
        return;
      }
    }
  }

  template <class F>
  std::map<std::string, std::vector<float>> read(F&& pointer) {
    std::map<std::string, std::vector<float>> result;
    for (const auto& stage : stages_) {
      pipeline::Parameters& p = stage->parameters();
      for (const models::ParameterId id : p.ids()) {
        const models::Parameter& parameter = graph_.parameter(id);
        const float* data = pointer(p, id, parameter.trainable());
        if (data != nullptr) result[parameter.name] = read_floats(data, parameter.elements());
      }
    }
    return result;
  }

  const models::Graph& graph_;
  StageOptions options_;
  std::optional<io::Batch> batch_;
  std::vector<std::unique_ptr<Stage>> stages_;
  std::vector<device::Arena> arenas_;
  device::ExecutionSpace space_;
};

}  // namespace millrace::test
