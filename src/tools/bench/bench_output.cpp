// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/bench_output.hpp"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <span>
#include <string_view>
#include <utility>
#include <variant>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/percentile.hpp"
#include "core/text.hpp"
#include "train/setup.hpp"

namespace millrace::cli {
namespace {

using training::BenchResult;
using training::BenchUse;

report::UnixTime unix_time() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// Where the images of a benchmark come from.
std::string describe_images(const OpenedBench& prepared) {
  const run::DataConfig& data = prepared.run.config.data;
  const std::string size = fmt::format("{}", prepared.dataset()->image_shape());
  if (data.source == run::ImageSource::Device)
    return fmt::format("synthetic images of {} in the memory of the device", size);
  if (data.source == run::ImageSource::Host)
    return fmt::format("generated images of {} from the loaders", size);
  return fmt::format("{} images of {} from {}",
                     prepared.use == BenchUse::Training ? "training" : "validation", size,
                     data.directory.string());
}

report::BenchRun run_of(const OpenedBench& prepared) {
  const run::Run& config = prepared.run.config;
  return {.use = prepared.use == BenchUse::Training ? "training" : "inference",
          .network = fmt::format("{} {} on {}", config.model.model, config.model.size,
                                 config.data.dataset),
          .images = describe_images(prepared),
          .precision = std::string(training::precision_name(config.precision)),
          .batch_size = config.batch_size,
          .images_per_step = config.total_batch(),
          .ranks = config.pipeline.ranks.ranks,
          .threads = config.threads,
          .warmup_steps = prepared.length.warmup,
          .step_seconds = {}};
}

/// A path in a folder that is made if it is missing, as NVIDIA's trainer does.
std::filesystem::path with_folder(const std::filesystem::path& path) {
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path());
  return path;
}

/// Floating-point operations: a backward pass has twice those of the forward pass.
double gflops_of(const BenchResult& result, BenchUse use) {
  const double flops_per_mac = use == BenchUse::Training ? 6.0 : 2.0;
  return result.images_per_second() * static_cast<double>(result.macs_per_image) * flops_per_mac *
         1e-9;
}

/// What else is measured, so that a comparison with another program can tell that both do the same:
/// the network by its parameters and the number of ops of each kind, and the layout.
void add_facts(Json& json, const run::Run& config) {
  const models::Graph graph = training::network_of(config);
  std::map<std::string, std::int64_t> counts;
  for (const models::Op& op : graph.ops)
    ++counts[std::visit([](const auto& kind) { return std::string(kind.kName); }, op.kind)];
  Json ops = Json::object();
  for (const auto& [kind, count] : counts) ops.set(kind, count);
  json.set("ops", std::move(ops));
  json.set("parameters", graph.trainable_elements());
  json.set("type", name_of(config.precision.activations));
  json.set("schedule", config.pipeline.schedule.name);
  json.set("stages", config.pipeline.schedule.stages);
  json.set("replicas", config.pipeline.ranks.replicas);
  json.set("micro_batches", config.micro_batches);
}

void print_loaders(const training::DataBenchResult& result) {
  fmt::print("loaders alone {:.1f} images/s\n", result.loader_rate);
  fmt::print("devices alone {:.1f} images/s, on images in memory\n", result.device_rate);
  if (result.loader_limits())
    fmt::print("limit         the loaders: the devices could process {:.2f} times as many\n",
               result.device_rate / result.loader_rate);
  else
    fmt::print("limit         the devices: the loaders could deliver {:.2f} times as many\n",
               result.loader_rate / result.device_rate);
}

}  // namespace

BenchFormat bench_format(const Patch& options) {
  const std::string format =
      options.text("format").value_or(options.flag("json") ? "json" : "text");
  if (options.flag("json") && format != "json")
    fail(ErrorKind::Usage, "--json and --format {} contradict each other: give one of them",
         format);
  if (format == "json") return BenchFormat::Json;
  if (format == "csv") return BenchFormat::Csv;
  if (format != "text")
    fail(ErrorKind::Usage, "--format {}: a benchmark prints text, json or csv", format);
  return BenchFormat::Text;
}

void print_table(const report::BenchTable& table, BenchFormat format) {
  if (format == BenchFormat::Json)
    fmt::print("{}\n", to_json(table).dump(2));
  else
    fmt::print("{}", format == BenchFormat::Csv ? to_csv(table) : to_text(table));
}

BenchOutput::BenchOutput(const OpenedBench& prepared, const Patch& options)
    : prepared_(prepared),
      options_(options),
      format_(bench_format(options)),
      run_(run_of(prepared)),
      separate_(options.flag("dataset-benchmark")),
      display_(options.integer("display-every")),
      start_(unix_time()),
      console_(stderr, stderr, training::terminal_of(stderr), {}) {
  if (is_quiet(options)) console_.quieten();
  if (const auto path = options.text("results-file")) results_.emplace(with_folder(*path));
  if (const auto path = options.text("log-filename"))
    log_.emplace(with_folder(*path), training::LineFile::Open::Fresh);
}

/// NVIDIA's lines belong to a text.
void BenchOutput::say(std::string_view message) const {
  if (!display_ || format_ != BenchFormat::Text) return;
  fmt::print("{}\n", report::nvlog_line(prepared_.run.config.model.model, unix_time(), message));
  (void)std::fflush(stdout);
}

void BenchOutput::log(Json step, Json data) {
  if (log_)
    log_->write(report::dllogger_line(start_, unix_time(), std::move(step), std::move(data)));
}

void BenchOutput::begin() {
  const char* const what =
      prepared_.use == BenchUse::Training ? "Model Training" : "Model Evaluation";
  say(fmt::format("Starting {}...", what));
  say(fmt::format("Images: {}", Json(run_.images).dump()));
  say(fmt::format("Total Steps: {}", prepared_.length.all()));
  say(fmt::format("Num GPUs: {}", run_.ranks));
  say(fmt::format("Per-GPU Batch Size: {}", run_.batch_size));
  Json parameters = Json::object();
  for (const auto& [name, setting] : options_.settings())
    if (name != "dialect") parameters.set(name, to_string(setting.value));
  log("PARAMETER", std::move(parameters));
}

void BenchOutput::after_step(std::int64_t step, double seconds) {
  const std::int64_t measured = step - prepared_.length.warmup;
  const double rate = static_cast<double>(run_.images_per_step) / seconds;
  const std::string status =
      measured < 0 ? fmt::format("warm-up: step {} of {}", step + 1, prepared_.length.warmup)
                   : fmt::format("measuring: step {} of {}  {:.1f} img/s", measured + 1,
                                 prepared_.length.steps, rate);
  console_.status(status, process_seconds());
  if (measured < 0) return;
  log(Json::list({0, step}), Json::object({{"total_ips", rate}}));
  if (!display_ || measured % *display_ != 0) return;
  console_.clear_status();
  say(fmt::format("iteration: {}", step));
  say(fmt::format("total_ips: {}", rate));
}

void BenchOutput::finish(const training::DataBenchResult& result) {
  console_.clear_status();
  run_.step_seconds = result.together.step_seconds;
  say(fmt::format("Average total_ips: {}", report::mean_rate(run_)));
  const Json summary = report::dllogger_summary(run_);
  for (const Json::Member& member : summary.members())
    say(fmt::format("{}: {}", member.key, member.value.as_double()));
  log(Json::list(), summary);
  if (results_) {
    const std::string text = report::nvidia_results(run_, display_.value_or(1)).dump(4) + '\n';
    results_->write(std::as_bytes(std::span(text)), 0);
    results_->commit();
  }
  switch (format_) {
    case BenchFormat::Text:
      return print_text(result);
    case BenchFormat::Json:
      return print_json(result);
    case BenchFormat::Csv:
      return print_table({.machine = {},
                          .rows = {{.batch_size = run_.batch_size,
                                    .ranks = run_.ranks,
                                    .precision = run_.precision,
                                    .run = run_}}},
                         format_);
  }
}

void BenchOutput::finish(const training::KernelBenchResult& result) {
  console_.clear_status();
  run_.step_seconds = result.step_seconds;
  const report::KernelTable& table = result.table;
  if (format_ == BenchFormat::Csv) return fmt::print("{}", to_csv(table));
  if (format_ == BenchFormat::Json) {
    Json json = to_json(run_);
    add_facts(json, prepared_.run.config);
    const Json own = to_json(table);
    for (const Json::Member& member : own.members()) json.set(member.key, member.value);
    return fmt::print("{}\n", json.dump());
  }
  constexpr std::size_t kShown = 20;
  fmt::print("{:<13} {}; {}\n", run_.use, run_.network, run_.images);
  fmt::print("step time     {:.2f} ms (fastest of {}) on {} rank(s) with {} thread(s)\n\n{}",
             1e3 * table.seconds / static_cast<double>(run_.ranks), run_.step_seconds.size(),
             run_.ranks, run_.threads,
             to_text(table, options_.flag("verbose") ? table.times.size() : kShown));
}

void BenchOutput::print_json(const training::DataBenchResult& result) const {
  const BenchResult& together = result.together;
  Json json = to_json(run_);
  add_facts(json, prepared_.run.config);
  json.set("median_ms", together.median_seconds() * 1e3);
  json.set("p10_ms", percentile_of(together.step_seconds, 0.1) * 1e3);
  json.set("p90_ms", percentile_of(together.step_seconds, 0.9) * 1e3);
  json.set("gflop_per_second", gflops_of(together, prepared_.use));
  json.set("loader_wait_ms", together.loader_seconds * 1e3);
  json.set("arena_bytes", together.arena_bytes);
  const pipeline::MicroBatchMetrics& m = together.metrics;
  if (prepared_.use == BenchUse::Inference) {  // with untrained weights
    const auto images = static_cast<double>(m.samples);
    json.set("measured_images", m.samples);
    json.set("loss", m.loss / images);
    json.set("top1", static_cast<double>(m.top1) / images);
    json.set("top5", static_cast<double>(m.top5) / images);
  }
  if (separate_) {
    json.set("loader_images_per_second", result.loader_rate);
    json.set("device_images_per_second", result.device_rate);
    json.set("limit", result.loader_limits() ? "loaders" : "devices");
  }
  fmt::print("{}\n", json.dump());
}

void BenchOutput::print_text(const training::DataBenchResult& result) const {
  const BenchResult& together = result.together;
  const std::vector<double>& steps = together.step_seconds;
  const double median = together.median_seconds();
  const report::Latency latency = report::latency_of(steps);
  fmt::print("{:<13} {}; {}\n", run_.use, run_.network, run_.images);
  fmt::print("step time     {:.2f} ms (median of {}; 10 % {:.2f}, 90 % {:.2f})\n", median * 1e3,
             steps.size(), percentile_of(steps, 0.1) * 1e3, percentile_of(steps, 0.9) * 1e3);
  fmt::print(
      "latency       average {:.2f} ms; 50 % {:.2f}, 90 % {:.2f}, 95 % {:.2f}, 99 % {:.2f}, "
      "100 % {:.2f}\n",
      1e3 * latency.average, 1e3 * latency.p50, 1e3 * latency.p90, 1e3 * latency.p95,
      1e3 * latency.p99, 1e3 * latency.p100);
  fmt::print("throughput    {:.1f} images/s in the median step, {:.0f} GFLOP/s on {} thread(s){}\n",
             together.images_per_second(), gflops_of(together, prepared_.use), run_.threads,
             display_ ? "; average total_ips: the mean of the rates of all measured steps" : "");
  fmt::print("loader wait   {:.3f} ms per step ({:.2f} %)\n", together.loader_seconds * 1e3,
             100.0 * together.loader_seconds / median);
  fmt::print("device memory {}\n", human_bytes(together.arena_bytes));
  if (separate_) print_loaders(result);
  if (options_.flag("pipeline")) fmt::print("{}\n", together.pipeline);
}

}  // namespace millrace::cli
