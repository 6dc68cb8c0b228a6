// SPDX-License-Identifier: Apache-2.0
#include "cli/smoke.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>

#include "cli/open_run.hpp"
#include "core/text.hpp"

namespace millrace::cli {
namespace {

constexpr std::int64_t kImages = 16;       ///< per update
constexpr std::int64_t kStagedImages = 4;  ///< per micro-batch, so that a pipeline has several
constexpr std::int64_t kPixels = 64;
constexpr std::int64_t kIterations = 6;
constexpr std::int64_t kWarmup = 2;

class Smaller {
 public:
  Smaller(Patch options, std::vector<std::string>& reductions)
      : options_(std::move(options)), reductions_(reductions) {}

  [[nodiscard]] const Patch& options() const { return options_; }

  /// Sets an option, drops those in `replaced`, and reports it if anything changed.
  void set(std::string_view name, const Value& value,
           std::initializer_list<std::string_view> replaced = {}) {
    std::vector<std::string> before;
    const Setting* own = options_.find(name);
    const bool same = own != nullptr && own->value == value;
    if (own != nullptr && !same) before.push_back(to_string(own->value));
    for (const std::string_view other : replaced) {
      const Setting* given = options_.find(other);
      if (given == nullptr) continue;
      before.push_back(words_of(other, given->value));
      options_.erase(other);
    }
    if (same && before.empty()) return;
    if (before.empty()) before.emplace_back("the default");
    reductions_.push_back(
        fmt::format("smoke: {} instead of {}", words_of(name, value), join(before, ", ")));
    options_.set(
        *find_field(name),
        {.value = value, .origin = Origin::File, .where = fmt::format("--smoke (--{})", name)});
  }
  void drop(std::string_view name) {
    const Setting* before = options_.find(name);
    if (before == nullptr) return;
    const bool* flag = std::get_if<bool>(&before->value);
    if (flag == nullptr || *flag)
      reductions_.push_back(fmt::format("smoke: without {}", words_of(name, before->value)));
    options_.erase(name);
  }
  /// Removes an option that has no effect any more, without a report.
  void forget(std::string_view name) { options_.erase(name); }

 private:
  /// In the syntax of a command line: "--epochs 90", "--distributed".
  static std::string words_of(std::string_view name, const Value& value) {
    const bool* flag = std::get_if<bool>(&value);
    return flag != nullptr && *flag ? fmt::format("--{}", name)
                                    : fmt::format("--{} {}", name, to_string(value));
  }

  Patch options_;
  std::vector<std::string>& reductions_;
};

/// Absolute learning rates depend on the batch, so they shrink with it.
void scale_rates(Smaller& run, double factor) {
  for (const char* name : {"abs-learning-rate", "initial-learning-rate", "poly-lr-initial-lr"})
    if (const auto rate = run.options().real(name)) run.set(name, *rate * factor);
}

void shrink_batch(Smaller& run, std::int64_t usual) {
  const Patch before = run.options();
  const std::int64_t batch = before.integer("batch-size").value_or(usual);
  const std::int64_t depth = run::micro_batches_of(before);
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
  for (const char* name : {"hosts", "distributed", "BN-span"}) run.drop(name);
  for (const std::string_view name : run::kOptionsOfReplicas) run.drop(name);
  if (run.options().integer("shards").value_or(1) > 1 || run.options().find("ranks") != nullptr)
    run.set("ranks", std::int64_t{1});
}

/// Logs every step; no validation and no averages.
void shrink_reports(Smaller& run) {
  for (const char* name : {"weight-avg-N", "weight-avg-exp"}) run.drop(name);
  run.set("log-freq", std::int64_t{1}, {"logs-per-epoch", "batches-per-step"});
  if (wants_validation(run.options()))
    run.set("validation-mode", std::string("none"),
            {"no-validation", "epochs-between-evals", "iterations-between-evals",
             "valid-batch-size", "max-eval-steps"});
  else
    for (const char* name :
         {"epochs-between-evals", "iterations-between-evals", "valid-batch-size", "max-eval-steps"})
      run.drop(name);
}

void shrink_warmup(Smaller& run, const Patch& before) {
  if (const auto given = before.integer("warmup-iterations")) {
    if (*given > kWarmup) run.set("warmup-iterations", kWarmup);
    return;
  }
  if (before.integer("iterations")) return;  // such a run has no warm-up in epochs
  const bool warms_up = before.text("lr-schedule") != "polynomial_decay_lr" &&
                        before.value<double>("warmup-epochs") > 0.0;
  if (warms_up) run.set("warmup-iterations", kWarmup, {"warmup-epochs"});
  run.forget("warmup-epochs");
}

void shrink_length(Smaller& run) {
  const Patch before = run.options();
  run.set("iterations", kIterations, {"epochs", "max-iterations"});
  for (const char* name : {"lr-horizon", "lr-horizon-epochs"}) run.drop(name);
  shrink_warmup(run, before);
}

void replace_data(Smaller& run, const std::string& dataset) {
  const std::optional<std::string> directory = run.options().text("data-dir");
  std::error_code unknown;
  const bool here =
      !holds_photos(dataset) && directory && std::filesystem::exists(*directory, unknown);
  run.set("dataset", dataset);
  // Training on a single image diverges, so that is only for those who ask for it.
  const bool single = run.options().flag("synthetic-data");
  if (!here) run.set(single ? "synthetic-data" : "generated-data", true, {"data-dir"});
  // The network of a file reads images of one size.
  if (!holds_photos(dataset) || is_given_network(run.options())) return;
  if (asked_run(run.options()).data.side > kPixels) run.set("image-size", kPixels);
}

}  // namespace

Patch smoke_options(const Patch& options, std::vector<std::string>& reductions) {
  Smaller run(options, reductions);
  const std::string dataset = dataset_name(options);
  replace_data(run, dataset);
  shrink_batch(run, models::default_recipe(model_name(options), task_of(dataset)).batch_size);
  shrink_layout(run);
  shrink_length(run);
  shrink_reports(run);
  return run.options();
}

}  // namespace millrace::cli
