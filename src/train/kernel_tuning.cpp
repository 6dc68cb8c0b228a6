// SPDX-License-Identifier: Apache-2.0
#include "train/kernel_tuning.hpp"

#include <memory>
#include <set>
#include <utility>

#include "ops/backend.hpp"
#include "ops/linear_ops.hpp"
#include "pipeline/stage.hpp"

namespace millrace::train {
namespace {

using ops::ConvShape;

/// Takes down what a stage asks its vendor for. The stage is never run.
class Recorder final : public ops::Vendor {
 public:
  explicit Recorder(std::vector<LinearWork>& work) : work_(work) {}
  [[nodiscard]] const char* name() const override { return "recorder"; }
  [[nodiscard]] bool multiplies(DType) const override { return true; }
  [[nodiscard]] ops::LinearClaim claim(const ConvShape& s, DType type, ops::Passes passes,
                                       std::int64_t cap) const override {
    if (passes.forward) add(s, LinearPass::Forward, cap);
    if (passes.backward_input) add(s, LinearPass::BackwardInput, cap);
    if (passes.backward_weight) add(s, LinearPass::BackwardWeight, cap);
    return {passes, ops::make_plain(s, type)};
  }
  [[nodiscard]] ops::LinearClaim claim(const ops::DenseShape& s, DType type, ops::Passes passes,
                                       std::int64_t cap) const override {
    return claim(ops::as_convolution(s), type, passes, cap);
  }
  using Vendor::claim;

 private:
  void add(const ConvShape& shape, LinearPass pass, std::int64_t cap) const {
    if (known_.emplace(describe(shape), pass).second) work_.push_back({shape, pass, cap});
  }

  std::vector<LinearWork>& work_;
  mutable std::set<std::pair<std::string, LinearPass>> known_;
};

}  // namespace

std::vector<LinearWork> linear_work_of(const TrainConfig& config, Use use) {
  TrainConfig alone = config;
  alone.model.batch_norm_span = 1;  // only shapes matter; there is no peer
  const models::Graph graph = network_of(alone);
  std::vector<LinearWork> work;
  ops::ScratchCaps caps;
  if (!config.scratch_caps.empty())
    caps = {.convolution = config.scratch_caps.front(), .dense = config.scratch_caps.front()};
  ops::Backend backend(std::make_unique<Recorder>(work), caps, ops::Choice::VendorOnly);
  (void)pipeline::Stage(graph, pipeline::whole(graph), stage_options(alone, use), backend);
  return work;
}

KernelTable tune_kernels(const TrainConfig& config, Use use, ops::KernelTuner& tuner,
                         const TunedPass& tuned) {
  const DType type = config.precision.activations;
  KernelTable table{.device = tuner.device(), .library = tuner.library(), .rows = {}};
  const std::vector<LinearWork> all = linear_work_of(config, use);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const LinearWork& work = all[i];
    const std::optional<TableRow> row = tuner.tune(work.shape, type, work.pass, work.cap);
    if (row)
      table.rows.insert_or_assign({.shape = describe(work.shape), .type = type, .pass = work.pass},
                                  *row);
    tuned(i + 1, all.size(), work, row ? &*row : nullptr);
  }
  return table;
}

}  // namespace millrace::train
