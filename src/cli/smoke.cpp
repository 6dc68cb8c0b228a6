// SPDX-License-Identifier: Apache-2.0
#include "cli/smoke.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "cli/resolve_parts.hpp"

namespace millrace::cli {
namespace {

constexpr std::int64_t kImages = 16;       ///< of a weight update
constexpr std::int64_t kStagedImages = 4;  ///< of a micro-batch, so that a pipeline has several
constexpr std::int64_t kPixels = 64;
constexpr std::int64_t kIterations = 6;
constexpr std::int64_t kWarmup = 2;

class Smaller {
 public:
  Smaller(Options options, std::vector<std::string>& reductions)
      : options_(std::move(options)), reductions_(reductions) {}

  [[nodiscard]] const Options& options() const { return options_; }

  /// Sets an option where that changes it.
  void set(std::string_view name, const Value& value) {
    const Setting* before = options_.find(name);
    if (before != nullptr && before->value == value) return;
    reductions_.push_back(
        fmt::format("smoke: --{} {} instead of {}", name, to_string(value),
                    before != nullptr ? to_string(before->value) : "the default"));
    options_.set(
        *find_option(name),
        {.value = value, .origin = Origin::File, .where = fmt::format("--smoke (--{})", name)});
  }
  void drop(std::string_view name) {
    const Setting* before = options_.find(name);
    if (before == nullptr) return;
    reductions_.push_back(fmt::format("smoke: without {}", before->where));
    options_.erase(name);
  }
  /// Forgets an option that another one has taken the place of.
  void forget(std::string_view name) { options_.erase(name); }

 private:
  Options options_;
  std::vector<std::string>& reductions_;
};

std::int64_t depth_of(const Options& options) {
  return options.integer("pipeline-depth")
      .value_or(options.integer("gradients-to-accumulate").value_or(1));
}

/// Absolute rates belong to a batch: they shrink with it.
void scale_rates(Smaller& run, double factor) {
  for (const char* name : {"abs-learning-rate", "initial-learning-rate", "poly-lr-initial-lr"})
    if (const auto rate = run.options().real(name)) run.set(name, *rate * factor);
}

void shrink_batch(Smaller& run, std::int64_t usual) {
  const Options before = run.options();
  const std::int64_t batch = before.integer("batch-size").value_or(usual);
  const std::int64_t depth = depth_of(before);
  const std::int64_t replicas = before.integer("replicas").value_or(1);
  const bool staged = before.integer("shards").value_or(1) > 1;
  const std::int64_t small = std::min(batch, staged ? kStagedImages : kImages);
  const std::int64_t shallow = std::clamp<std::int64_t>(depth, 1, kImages / small);
  if (small != batch) run.set("batch-size", small);
  if (shallow != depth)
    run.set(before.find("pipeline-depth") != nullptr ? "pipeline-depth" : "gradients-to-accumulate",
            shallow);
  if (replicas > 1) run.set("replicas", std::int64_t{1});
  scale_rates(run,
              static_cast<double>(small * shallow) / static_cast<double>(batch * depth * replicas));
}

void shrink_layout(Smaller& run) {
  for (const char* name : {"hosts", "distributed", "BN-span", "shard-optimizer"}) run.drop(name);
  if (run.options().integer("shards").value_or(1) > 1 || run.options().find("ranks") != nullptr)
    run.set("ranks", std::int64_t{1});
}

void shrink_length(Smaller& run) {
  run.set("iterations", kIterations);
  for (const char* name : {"epochs", "max-iterations", "lr-horizon", "lr-horizon-epochs"})
    run.forget(name);
  const bool warms_up = run.options().text("lr-schedule") != "polynomial_decay_lr" &&
                        run.options().real("warmup-epochs").value_or(5.0) > 0.0;
  run.forget("warmup-epochs");
  if (warms_up) run.set("warmup-iterations", kWarmup);
  for (const char* name : {"weight-avg-N", "weight-avg-exp"}) run.drop(name);
  for (const char* name : {"logs-per-epoch", "batches-per-step"}) run.forget(name);
  run.set("log-freq", std::int64_t{1});
  for (const char* name : {"no-validation", "epochs-between-evals", "valid-batch-size"})
    run.forget(name);
  run.set("validation-mode", std::string("none"));
}

void replace_data(Smaller& run, const std::string& dataset) {
  const std::optional<std::string> directory = run.options().text("data-dir");
  std::error_code unknown;
  const bool here =
      dataset != kImageNet && directory && std::filesystem::exists(*directory, unknown);
  run.set("dataset", dataset);
  if (!here && !run.options().flag("generated-data")) run.set("synthetic-data", true);
  if (dataset != kImageNet) return;
  Reader read(run.options());
  const std::int64_t usual = image_size(read, dataset);
  if (usual > kPixels) run.set("image-size", kPixels);
}

}  // namespace

Options smoke_options(const Options& options, std::vector<std::string>& reductions) {
  Smaller run(options, reductions);
  const std::string dataset = dataset_name(options);
  replace_data(run, dataset);
  shrink_batch(run, family_recipe(model_name(options), task_of(dataset)).batch_size);
  shrink_layout(run);
  shrink_length(run);
  return run.options();
}

}  // namespace millrace::cli
