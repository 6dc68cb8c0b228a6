// SPDX-License-Identifier: Apache-2.0
//
// Overhead of the executor: a training step of ResNet-20 as a plain loop over the stage's programs
// and through an executor with one stage. The two take turns; the ratio of their medians is
// printed.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <vector>

#include "device/arena.hpp"
#include "device/compat.hpp"
#include "device/environment.hpp"
#include "io/data/loader.hpp"
#include "io/data/synthetic.hpp"
#include "models/registry.hpp"
#include "pipeline/device_memory.hpp"
#include "pipeline/executor.hpp"
#include "tests/support/stage_calls.hpp"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kBatch = 32;
constexpr std::int32_t kMicroBatches = 8;
constexpr int kRounds = 25;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Bench {
 public:
  Bench()
      : graph_(models::build_model(model())),
        plan_(pipeline::plan_of_one_stage(graph_, kMicroBatches)),
        stage_(graph_, pipeline::whole(graph_), options(), *backend_),
        executor_(graph_, plan_, units(), 0),
        arena_(stage_.bytes() + executor_.bytes()),
        transport_(comm::make_transport(world_, pipeline::device_memory())) {
    stage_.bind(arena_.at(0));
    stage_.parameters().initialise(1);
    executor_.bind(arena_.at(stage_.bytes()), *transport_, world_);
    io::LoaderOptions loading;
    loading.batch_size = kBatch;
    loading.type = DType::BF16;
    const auto data = std::shared_ptr<const io::Dataset>(io::make_synthetic({}));
    loader_ =
        std::make_unique<io::Loader>(data, io::SampleOrder::shuffled(1, data->size()), loading);
  }

  void plain() {
    pipeline::BoundProgram& program = stage_.training();
    program.begin_step(space_, 1.0f);
    for (std::int32_t m = 0; m < kMicroBatches; ++m) {
      const pipeline::RunContext context{.first = m == 0};
      const io::Batch* batch = loader_->next();
      pipeline::load(program, context, batch->images, batch->labels);
      pipeline::run_phase(program, space_, pipeline::Phase::Forward, context);
      (void)pipeline::metrics(stage_, program, context);
      pipeline::run_phase(program, space_, pipeline::Phase::BackwardInput, context);
    }
    stage_.parameters().update(space_, {}, kMicroBatches);
    device::fence(space_);
  }

  void executed() {
    io::BatchSource* const feed = loader_.get();
    executor_.run(space_, {}, {&feed, 1});
  }

 private:
  static models::ModelOptions model() {
    models::ModelOptions options;
    options.size = "20";
    return options;
  }
  static pipeline::StageOptions options() {
    pipeline::StageOptions options;
    options.batch = kBatch;
    options.type = DType::BF16;
    options.parameters.rule = UpdateRule::Momentum;
    return options;
  }
  std::span<const pipeline::LocalStage> units() {
    unit_ = {0, 0, &stage_};
    return {&unit_, 1};
  }

  std::unique_ptr<ops::Backend> backend_ = ops::make_default_backend();
  models::Graph graph_;
  pipeline::PipelinePlan plan_;
  pipeline::Stage stage_;
  pipeline::LocalStage unit_;
  pipeline::Executor executor_;
  device::Arena arena_;
  comm::World world_;
  std::unique_ptr<comm::Transport> transport_;
  std::unique_ptr<io::Loader> loader_;
  device::ExecutionSpace space_;
};

double seconds(const auto& f) {
  const Clock::time_point begin = Clock::now();
  f();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

int run_bench() {
  const device::Environment environment(1);
  Bench bench;
  bench.plain();
  bench.executed();
  std::vector<double> plain;
  std::vector<double> executed;
  for (int i = 0; i < kRounds; ++i) {
    plain.push_back(seconds([&] { bench.plain(); }));
    executed.push_back(seconds([&] { bench.executed(); }));
  }
  fmt::print("plain loop {:.2f} ms, executor {:.2f} ms per step, ratio {:.4f} (medians of {})\n",
             1e3 * median(plain), 1e3 * median(executed), median(executed) / median(plain),
             kRounds);
  return 0;
}

}  // namespace
}  // namespace millrace

int main() { return millrace::run_bench(); }
