// SPDX-License-Identifier: Apache-2.0
#include "train/averaging.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "core/counted.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "device/tensor.hpp"
#include "io/atomic_file.hpp"
#include "io/manifest.hpp"
#include "train/cadence.hpp"
#include "train/memory.hpp"

namespace millrace::training {
namespace {

namespace fs = std::filesystem;

/// Checkpoints of the cadence; a final one off the cadence only if there is no other.
std::vector<std::int64_t> regular_checkpoints(const run::Run& config, std::int64_t first) {
  const std::int64_t every = config.checkpoint_every;
  std::vector<std::int64_t> iterations;
  for (std::int64_t i = (first + every - 1) / every * every; i <= config.iterations; i += every)
    iterations.push_back(i);
  if (iterations.empty()) iterations.push_back(config.iterations);
  return iterations;
}

void require_kept(const run::Run& config, const PlannedAverage& average) {
  const std::int64_t needed = checkpoints_from(config, average.iterations.front());
  const int kept = config.max_checkpoints_to_keep;
  if (kept == 0 || kept >= needed) return;
  fail(ErrorKind::Config,
       "the average {} needs the last {} of the run, but `max-ckpts-to-keep` {} keeps "
       "only {}: give `max-ckpts-to-keep` 0, which keeps all",
       average.rule.name, counted(needed, "checkpoint"), kept, kept);
}

std::int64_t first_of_last_epochs(const run::Run& config, std::int64_t epochs) {
  const std::int64_t updates = epochs * config.iterations_per_epoch;
  if (epochs < 1 || updates > config.iterations)
    fail(ErrorKind::Config,
         "`weight-avg-N` {}: out of range: the run has {:.4g} epochs; give a number from 1 to that",
         epochs,
         static_cast<double>(config.iterations) / static_cast<double>(config.iterations_per_epoch));
  return config.iterations - updates + 1;
}

/// The header of an average's checkpoint: that of its last checkpoint, with a note of its origin.
io::CheckpointHeader header_of(const io::CheckpointReader& last, const AverageRule& rule,
                               std::size_t count) {
  io::CheckpointHeader header = last.header();
  header.environment =
      fmt::format("{} of {} checkpoints; the last: {}", rule.name, count, header.environment);
  return header;
}

bool is_averaged(const io::TensorInfo& info) {
  return info.type == DType::F32 || info.type == DType::BF16 || info.type == DType::F16;
}

/// The float32 values of a stored tensor.
std::span<const float> as_floats(const io::TensorInfo& info, std::vector<std::byte>& stored,
                                 std::vector<float>& converted) {
  const auto elements = static_cast<std::size_t>(info.elements());
  if (info.type == DType::F32) return {reinterpret_cast<const float*>(stored.data()), elements};
  converted.resize(elements);
  device::dispatch(info.type, [&]<class T>() {
    const T* values = reinterpret_cast<const T*>(stored.data());
    std::transform(values, values + elements, converted.begin(),
                   [](T value) { return to_float(value); });
  });
  return converted;
}

/// Bytes of sums that are held at the same time.
constexpr std::int64_t kSumBytes = 32 << 20;

/// Averages checkpoints a group of tensors at a time, because their sums have twice the bytes of
/// float32 tensors.
class CheckpointMean {
 public:
  CheckpointMean(std::span<const fs::path> checkpoints, const AverageRule& rule)
      : checkpoints_(checkpoints), rule_(rule), infos_(tensors_of_all()) {}

  /// The average as float32. This object owns the tensors. Errors: Checkpoint.
  [[nodiscard]] std::vector<io::NamedTensor> average();

 private:
  /// Errors: Checkpoint, naming a tensor whose name or shape differs between checkpoints.
  [[nodiscard]] std::vector<io::TensorInfo> tensors_of_all() const;
  void check(const io::CheckpointReader& checkpoint,
             std::span<const io::TensorInfo> expected) const;
  [[nodiscard]] std::size_t end_of_group(std::size_t first) const;
  void average(std::size_t first, std::size_t end);
  void take(std::span<double> mean, std::span<const float> values, bool is_first) const;

  std::span<const fs::path> checkpoints_;
  const AverageRule& rule_;
  std::vector<io::TensorInfo> infos_;
  std::vector<std::vector<std::byte>> results_;
  std::vector<std::byte> buffer_;
  std::vector<float> converted_;
};

std::vector<io::TensorInfo> CheckpointMean::tensors_of_all() const {
  std::vector<io::TensorInfo> expected = io::CheckpointReader(checkpoints_.front()).tensors();
  for (const fs::path& path : checkpoints_.subspan(1)) check(io::CheckpointReader(path), expected);
  return expected;
}

void CheckpointMean::check(const io::CheckpointReader& checkpoint,
                           std::span<const io::TensorInfo> expected) const {
  const std::vector<io::TensorInfo>& tensors = checkpoint.tensors();
  for (std::size_t i = 0; i < std::max(tensors.size(), expected.size()); ++i) {
    const bool both = i < tensors.size() && i < expected.size();
    if (both && tensors[i] == expected[i]) continue;
    const std::string& name = i < tensors.size() ? tensors[i].name : expected[i].name;
    fail(ErrorKind::Checkpoint,
         "{}: cannot be averaged with {}: tensor {} differs: average checkpoints of one run",
         checkpoint.path().string(), checkpoints_.front().string(), name);
  }
}

/// A group has at least one tensor.
std::size_t CheckpointMean::end_of_group(std::size_t first) const {
  std::int64_t bytes = 0;
  std::size_t end = first;
  while (end < infos_.size()) {
    bytes += infos_[end].elements() * static_cast<std::int64_t>(sizeof(double));
    if (end > first && bytes > kSumBytes) break;
    ++end;
  }
  return end;
}

void CheckpointMean::take(std::span<double> mean, std::span<const float> values,
                          bool is_first) const {
  const bool exponential = rule_.mode == AverageMode::Exponential && !is_first;
  for (std::size_t k = 0; k < mean.size(); ++k) {
    const auto value = static_cast<double>(values[k]);
    mean[k] = exponential ? rule_.decay * mean[k] + (1.0 - rule_.decay) * value : mean[k] + value;
  }
}

void CheckpointMean::average(std::size_t first, std::size_t end) {
  std::vector<std::vector<double>> sums(end - first);  // empty for what is not averaged
  for (const fs::path& path : checkpoints_) {
    const io::CheckpointReader checkpoint(path);
    for (std::size_t i = first; i < end; ++i) {
      const io::TensorInfo& info = infos_[i];
      buffer_.resize(static_cast<std::size_t>(info.bytes()));
      checkpoint.read(info.name, buffer_);
      std::vector<double>& sum = sums[i - first];
      if (!is_averaged(info)) {
        results_[i] = buffer_;  // in the end that of the last checkpoint
        continue;
      }
      sum.resize(static_cast<std::size_t>(info.elements()));
      take(sum, as_floats(info, buffer_, converted_), path == checkpoints_.front());
    }
  }
  const double parts =
      rule_.mode == AverageMode::Mean ? static_cast<double>(checkpoints_.size()) : 1.0;
  for (std::size_t i = first; i < end; ++i) {
    if (!is_averaged(infos_[i])) continue;
    const std::vector<double>& sum = sums[i - first];
    results_[i].resize(sum.size() * sizeof(float));
    for (std::size_t k = 0; k < sum.size(); ++k) {
      const auto value = static_cast<float>(sum[k] / parts);
      std::memcpy(results_[i].data() + k * sizeof(float), &value, sizeof(float));
    }
    infos_[i].type = DType::F32;
  }
}

std::vector<io::NamedTensor> CheckpointMean::average() {
  results_.resize(infos_.size());
  std::int64_t largest = 0;
  for (const io::TensorInfo& info : infos_) largest = std::max(largest, info.bytes());
  buffer_.reserve(static_cast<std::size_t>(largest));  // growing would need both sizes
  for (std::size_t first = 0; first < infos_.size();) {
    const std::size_t end = end_of_group(first);
    average(first, end);
    first = end;
  }
  buffer_ = {};
  converted_ = {};
  std::vector<io::NamedTensor> tensors;
  for (std::size_t i = 0; i < infos_.size(); ++i) tensors.push_back({infos_[i], results_[i]});
  return tensors;
}

}  // namespace

std::vector<PlannedAverage> planned_averages(const run::Run& config) {
  const run::AveragingConfig& asked = config.averaging;
  if (!asked.of_checkpoints()) return {};
  if (config.run_directory.empty())
    fail(ErrorKind::Config, "averages of checkpoints need a run directory: leave out `no-logs`");
  if (config.checkpoint_every <= 0)
    fail(ErrorKind::Config,
         "averages need checkpoints at fixed updates: give `ckpts-per-epoch` at least 1, or "
         "`checkpoint-every` in updates or epochs");
  std::vector<PlannedAverage> averages;
  const auto add = [&](const AverageRule& rule, std::int64_t first) {
    averages.push_back({rule, regular_checkpoints(config, first)});
  };
  for (const std::int64_t epochs : asked.last_epochs) {
    const std::int64_t first = first_of_last_epochs(config, epochs);
    add({fmt::format("mean-{}-epochs", epochs), AverageMode::Mean, 0.0}, first);
  }
  for (const double decay : asked.decays) {
    if (!(decay > 0.0 && decay < 1.0))
      fail(ErrorKind::Config, "`weight-avg-exp` {}: give a decay between 0 and 1", decay);
    add({fmt::format("exponential-{}", decay), AverageMode::Exponential, decay}, 1);
  }
  for (const PlannedAverage& average : averages) require_kept(config, average);
  return averages;
}

std::string ema_name(const run::Run& config) {
  return fmt::format("ema-{}", config.averaging.ema_decay);
}

std::int64_t averaging_bytes(const models::Graph& graph, const run::Run& config) {
  const std::int64_t slots = std::ssize(update_slots(config.optimiser.kind));
  const std::int64_t own = config.averaging.ema_decay > 0.0 ? 2 : 1;  // a value and its average
  std::int64_t elements = 0;
  std::int64_t largest = 0;
  for (const models::Parameter& parameter : graph.parameters) {
    const std::int64_t copies = parameter.learns() ? own + slots : own;
    elements += copies * parameter.elements();
    largest = std::max(largest, parameter.elements());
  }
  // The averages, and the sums of the last group with a tensor that is read; when the averages are
  // written, one of them is read back.
  constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));
  constexpr auto kDouble = static_cast<std::int64_t>(sizeof(double));
  const std::int64_t sums = std::min(std::max(kSumBytes, kDouble * largest), kDouble * elements);
  return kFloat * (elements + largest) + sums;
}

fs::path place_of_average(const fs::path& run_directory, const std::string& name) {
  return run_directory / "averages" / name;
}

fs::path average_checkpoints(std::span<const fs::path> checkpoints, const AverageRule& rule,
                             const fs::path& run_directory) {
  MILLRACE_ASSERT(!checkpoints.empty());
  CheckpointMean mean(checkpoints, rule);
  const std::vector<io::NamedTensor> tensors = mean.average();
  const io::CheckpointHeader header =
      header_of(io::CheckpointReader(checkpoints.back()), rule, checkpoints.size());
  const fs::path place = place_of_average(run_directory, rule.name);
  std::error_code error;
  fs::create_directories(place, error);
  if (error) io::fail_io("make", place, error.value());
  const io::RunLock lock(place);
  io::write_file_atomically(place / "config.toml", header.config_toml);
  fs::path written = io::write_checkpoint(place / "checkpoints", header, tensors);
  for (const fs::path& older : io::list_checkpoints(place))
    if (older.filename() != written.filename()) io::remove_checkpoint(older);
  return written;
}

std::string describe_average(std::span<const fs::path> checkpoints) {
  constexpr std::size_t kMost = 6;
  const auto name = [](const fs::path& checkpoint) { return checkpoint.filename().string(); };
  std::string names;
  if (checkpoints.size() > kMost) {
    names = fmt::format("{} to {}", name(checkpoints.front()), name(checkpoints.back()));
  } else {
    std::vector<std::string> all(checkpoints.size());
    std::ranges::transform(checkpoints, all.begin(), name);
    names = join(all, ", ");
  }
  return fmt::format("the average of {} ({})", counted(std::ssize(checkpoints), "checkpoint"),
                     names);
}

std::vector<fs::path> checkpoints_at(const fs::path& run_directory,
                                     std::span<const std::int64_t> iterations) {
  std::map<std::int64_t, fs::path> there;
  for (const fs::path& path : io::list_checkpoints(run_directory))
    if (const auto iteration = io::iteration_in(path.filename().string()))
      there.emplace(*iteration, path);
  std::vector<fs::path> paths;
  std::vector<std::string> missing;
  for (const std::int64_t iteration : iterations) {
    const auto found = there.find(iteration);
    if (found == there.end()) {
      missing.push_back(io::checkpoint_name(iteration));
    } else {
      paths.push_back(found->second);
    }
  }
  if (missing.empty()) return paths;
  fail(ErrorKind::Checkpoint,
       "{}: cannot be averaged: {} of {} checkpoints are missing: {}; use millrace average to "
       "average the others",
       run_directory.string(), missing.size(), iterations.size(), join(missing, ", "));
}

}  // namespace millrace::training
