// SPDX-License-Identifier: Apache-2.0
#include "train/metrics_log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "core/error.hpp"
#include "core/json.hpp"
#include "core/sha256.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "run/complete.hpp"

namespace millrace::training {
namespace {

constexpr std::string_view kTrainingHeader =
    "step,iteration,epoch,lr,loss_batch,loss_avg,train_acc_batch,train_acc_avg,it_time,img_per_sec,"
    "total_time";
constexpr std::string_view kValidationHeader =
    "iteration,epoch,val_acc,val_time,img_per_sec,latency,name,val_acc_top5,val_loss,val_size";

// Columns of training.csv.
constexpr std::size_t kIteration = 1;
constexpr std::size_t kLoss = 4;
constexpr std::size_t kAccuracy = 6;
constexpr std::size_t kTotalTime = 10;

/// The fields between the commas of a line; empty fields count.
std::vector<std::string_view> cells_of(std::string_view line) {
  std::vector<std::string_view> cells;
  for (;;) {
    const std::size_t comma = line.find(',');
    cells.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) return cells;
    line.remove_prefix(comma + 1);
  }
}

/// The mean of `count` values with this sum; NaN if there is none.
double mean(double sum, double count) {
  // Not 0/0, whose sign bit would be printed.
  return count > 0.0 ? sum / count : std::numeric_limits<double>::quiet_NaN();
}

/// The columns of training.csv that are read back.
struct SavedRow {
  std::int64_t iteration = 0;
  double loss = 0.0;
  double accuracy = 0.0;
  double total_seconds = 0.0;
};

std::optional<SavedRow> parse_training_row(std::string_view line) {
  const std::vector<std::string_view> cells = cells_of(line);
  if (cells.size() <= kTotalTime) return {};
  const auto iteration = parse_number<std::int64_t>(cells[kIteration]);
  const auto loss = parse_number<double>(cells[kLoss]);
  const auto accuracy = parse_number<double>(cells[kAccuracy]);
  const auto seconds = parse_number<double>(cells[kTotalTime]);
  if (!iteration || !loss || !accuracy || !seconds) return {};
  return SavedRow{*iteration, *loss, *accuracy, *seconds};
}

/// The iteration of a row of validation.csv. Early versions wrote no name, or nothing after it.
std::optional<std::int64_t> parse_validation_row(std::string_view line) {
  constexpr std::size_t kNumbers = 6;
  constexpr std::size_t kCells = 10;
  const std::vector<std::string_view> cells = cells_of(line);
  if (cells.size() < kNumbers || cells.size() > kCells) return {};
  for (const std::string_view cell : std::span(cells).subspan(1, kNumbers - 1))
    if (const auto number = parse_number<double>(cell); !number || !std::isfinite(*number))
      return {};
  return parse_number<std::int64_t>(cells[0]);
}

Row judged(std::optional<std::int64_t> iteration, std::int64_t before, std::int64_t last) {
  if (!iteration || *iteration < before) return Row::Damaged;
  return *iteration <= last ? Row::Keep : Row::Later;
}

/// Judges the rows of training.csv, whose iterations must increase.
/// Of rows that go, too, the time was spent: `seconds` is the most of all.
Row judge_training(std::string_view line, std::int64_t number, std::int64_t& before,
                   double& seconds, std::int64_t last) {
  if (number == 1) return line.starts_with("step,iteration") ? Row::Keep : Row::Damaged;
  const std::optional<SavedRow> row = parse_training_row(line);
  if (row) seconds = std::max(seconds, row->total_seconds);
  const Row verdict = row ? judged(row->iteration, before + 1, last) : Row::Damaged;
  if (verdict == Row::Keep) before = row->iteration;
  return verdict;
}

Row judge_validation(std::string_view line, std::int64_t number, std::int64_t last) {
  if (number == 1) return line.starts_with("iteration,epoch") ? Row::Keep : Row::Damaged;
  return judged(parse_validation_row(line), 0, last);
}

Row judge_json(std::string_view line, std::int64_t last) {
  const std::optional<Json> object = Json::try_parse(line);
  if (!object || !object->is_object()) return Row::Damaged;
  const Json* const found = object->find("iteration");
  if (found == nullptr) return Row::Keep;
  return found->is_integer() ? judged(found->as_int64(), 0, last) : Row::Damaged;
}

std::string json_header(const run::Run& config) {
  return Json::object({{"schema", "millrace-metrics-1"},
                       {"run", config.run_directory.filename().string()},
                       {"config_sha256", sha256_of(run::to_toml(config))},
                       {"dataset", config.data.dataset},
                       {"total_batch", config.total_batch()},
                       {"iterations", config.iterations}})
      .dump(-1, Json::NotUtf8::Replaced);
}

}  // namespace

std::string to_json(const PartialRow& partial) {
  return Json::object({{"iterations", partial.iterations},
                       {"loss_sum", partial.loss_sum},
                       {"correct", partial.correct},
                       {"correct_top5", partial.correct_top5},
                       {"left_out", partial.left_out},
                       {"total_seconds", partial.total_seconds}})
      .dump();
}

PartialRow parse_partial_row(std::string_view text, std::int64_t iteration) {
  constexpr std::int64_t kMostImages = std::int64_t{1} << 53;  // far from overflow
  if (text.empty()) return {};
  try {
    const Json json = Json::parse(text);
    const Json* const seconds = json.find("total_seconds");
    const auto later = [&json](std::string_view name) {  // missing in early checkpoints
      const Json* const found = json.find(name);
      return found == nullptr ? 0 : found->as_int64();
    };
    const PartialRow row = {.iterations = json.at("iterations").as_int64(),
                            .loss_sum = json.at("loss_sum").as_double(),
                            .correct = json.at("correct").as_int64(),
                            .correct_top5 = later("correct_top5"),
                            .left_out = later("left_out"),
                            .total_seconds = seconds == nullptr ? 0.0 : seconds->as_double()};
    const bool sound = std::min({row.iterations, row.correct, row.correct_top5, row.left_out}) >= 0;
    if (sound && row.total_seconds >= 0.0 && row.left_out <= row.iterations &&
        row.iterations <= iteration && std::max(row.correct, row.correct_top5) <= kMostImages)
      return row;
  } catch (const JsonError&) {  // reported below
  }
  constexpr std::size_t kShown = 200;
  fail(ErrorKind::Checkpoint,
       "the state of the log in the checkpoint is '{}'; expected an object with iterations, "
       "loss_sum and correct",
       printable(text.substr(0, kShown)));
}

double ValidationResult::images_per_second() const {
  return seconds > 0.0 ? static_cast<double>(images) / seconds : 0.0;
}

double ValidationResult::latency_ms() const {
  return batches > 0 ? 1000.0 * seconds / static_cast<double>(batches) : 0.0;
}

std::map<std::int64_t, double> comparable(const Accuracies& accuracies) {
  std::map<std::int64_t, double> alike;
  for (const auto& [iteration, accuracy] : accuracies)
    if (accuracy.images == accuracies.rbegin()->second.images) alike[iteration] = accuracy.percent;
  return alike;
}

Accuracies read_accuracies(const std::filesystem::path& run_directory, std::string_view name) {
  const std::filesystem::path path = run_directory / "validation.csv";
  Accuracies points;
  if (!std::filesystem::exists(path)) return points;
  io::LineReader lines(path);
  (void)lines.next();  // header
  constexpr std::size_t kAccuracyColumn = 2;
  constexpr std::size_t kName = 6;
  constexpr std::size_t kImages = 9;
  constexpr std::size_t kMostPoints = 1'000'000;
  while (const std::optional<std::string_view> line = lines.next()) {
    const std::vector<std::string_view> cells = cells_of(*line);
    if (cells.size() <= kAccuracyColumn || (cells.size() > kName ? cells[kName] : "") != name)
      continue;
    const auto iteration = parse_number<std::int64_t>(cells[0]);
    const auto accuracy = parse_number<double>(cells[kAccuracyColumn]);
    const auto images = parse_number<std::int64_t>(cells.size() > kImages ? cells[kImages] : "0");
    if (iteration && accuracy && std::isfinite(*accuracy))
      points[*iteration] = {.percent = *accuracy, .images = images.value_or(0)};
    if (points.size() > kMostPoints)
      fail(ErrorKind::Io, "{}: more than {} rows: move it out of the run directory", path.string(),
           kMostPoints);
  }
  return points;
}

MetricsLog::MetricsLog(const run::Run& config, Clock clock)
    : total_batch_(config.total_batch()),
      train_size_(config.data.train_size),
      iterations_per_epoch_(config.iterations_per_epoch),
      clock_(clock) {
  if (!config.run_directory.empty()) open(config, LineFile::Open::Fresh);
}

MetricsLog::MetricsLog(const run::Run& config, std::int64_t iteration, const PartialRow& partial,
                       Clock clock)
    : total_batch_(config.total_batch()),
      train_size_(config.data.train_size),
      iterations_per_epoch_(config.iterations_per_epoch),
      partial_(partial),
      last_reported_(iteration - partial.iterations),
      clock_(clock) {
  const std::filesystem::path& directory = config.run_directory;
  if (directory.empty()) return;
  const auto keep = [&](const char* name, std::string_view head, auto judge) {
    if (std::string notice = keep_lines(directory / name, head, judge); !notice.empty())
      notices_.push_back(std::move(notice));
  };
  double seconds = partial.total_seconds;
  keep("training.csv", kTrainingHeader,
       [&, before = std::int64_t{0}](auto line, auto number) mutable {
         return judge_training(line, number, before, seconds, iteration);
       });
  keep("validation.csv", kValidationHeader,
       [&](auto line, auto number) { return judge_validation(line, number, iteration); });
  keep("metrics.jsonl", "", [&](auto line, auto) { return judge_json(line, iteration); });
  open(config, LineFile::Open::Append);
  read_rows(directory);
  earlier_seconds_ = seconds;
  files_->json.write(
      Json::object(
          {{"iteration", iteration}, {"event", "restored"}, {"iterations", config.iterations}})
          .dump());
}

void MetricsLog::open(const run::Run& config, LineFile::Open how) {
  const auto file = [&](const char* name, std::string head) {
    return LineFile(config.run_directory / name, how, std::move(head));
  };
  files_.emplace(Files{file("training.csv", std::string(kTrainingHeader)),
                       file("validation.csv", std::string(kValidationHeader)),
                       file("metrics.jsonl", json_header(config))});
}

void MetricsLog::write(LineFile& file, std::string_view line) {
  const int before = file.replaced();
  file.write(line);
  if (file.replaced() != before)
    notices_.push_back(fmt::format(
        "{}: was removed or replaced during the run: new rows go to the file that is there now",
        file.path().string()));
}

void MetricsLog::read_rows(const std::filesystem::path& run_directory) {
  io::LineReader lines(run_directory / "training.csv");
  std::int64_t before = 0;
  while (const std::optional<std::string_view> line = lines.next()) {
    const std::optional<SavedRow> row = parse_training_row(*line);
    if (!row) continue;  // the header; damaged rows are already gone
    window_.push_back({.first_iteration = before,
                       .last_iteration = row->iteration,
                       .loss = row->loss,
                       .accuracy = row->accuracy,
                       .top5 = std::numeric_limits<double>::quiet_NaN()});
    before = row->iteration;
    ++rows_;
    drop_old_rows(before);
  }
  read_top5(run_directory / "metrics.jsonl");
}

/// Adds to the rows of the window what training.csv does not have.
void MetricsLog::read_top5(const std::filesystem::path& metrics) {
  io::LineReader lines(metrics);
  while (const std::optional<std::string_view> line = lines.next()) {
    const std::optional<Json> json = Json::try_parse(*line);
    const Json* const top5 = json && json->is_object() ? json->find("train/top5") : nullptr;
    if (top5 == nullptr || !top5->is_number()) continue;
    for (WindowRow& row : window_)
      if (row.last_iteration == json->at("iteration").as_int64())
        row.top5 = 100.0 * top5->as_double();
  }
}

void MetricsLog::add(const IterationResult& result) noexcept {
  ++partial_.iterations;
  if (std::isfinite(result.loss)) {
    partial_.loss_sum += result.loss;
    partial_.correct += result.correct;
    partial_.correct_top5 += result.correct_top5;
  } else {
    ++partial_.left_out;
  }
  learning_rate_ = result.learning_rate;
  loss_scale_ = result.loss_scale;
  skipped_ = result.skipped;
  if (first_iteration_) {
    first_seconds_ = result.seconds;
    first_iteration_ = false;
    return;
  }
  timed_seconds_ += result.seconds;
  ++timed_iterations_;
  all_seconds_ += result.seconds;
  ++all_iterations_;
}

PartialRow MetricsLog::partial() const {
  PartialRow partial = partial_;
  partial.total_seconds = total_seconds();
  return partial;
}

double MetricsLog::images_per_second() const {
  if (all_seconds_ > 0.0) return images(all_iterations_) / all_seconds_;
  return first_seconds_ > 0.0 ? images(1) / first_seconds_ : 0.0;
}

void MetricsLog::note(std::int64_t iteration, const std::string& event) {
  if (files_)
    write(files_->json, Json::object({{"iteration", iteration}, {"event", event}}).dump());
}

void MetricsLog::end(std::int64_t iteration, bool finished) {
  if (!files_) return;
  const double seconds = total_seconds();
  Json json = Json::object({{"iteration", iteration},
                            {"event", finished ? "finished" : "stopped"},
                            {"total_time", seconds}});
  if (finished) json.set("time_to_train", seconds);
  if (images_per_second() > 0.0) json.set("images_per_s", images_per_second());
  write(files_->json, json.dump());
}

double MetricsLog::images(std::int64_t iterations) const noexcept {
  return static_cast<double>(total_batch_) * static_cast<double>(iterations);
}

/// Drops rows from the window that are older than an epoch before `iteration`.
void MetricsLog::drop_old_rows(std::int64_t iteration) {
  while (window_.size() > 1 && window_.front().first_iteration < iteration - iterations_per_epoch_)
    window_.pop_front();
}

/// Adds the row to the window, drops rows older than an epoch, and fills in the averages.
void MetricsLog::average(TrainRow& row) {
  window_.push_back({.first_iteration = last_reported_,
                     .last_iteration = row.iteration,
                     .loss = row.loss,
                     .accuracy = row.accuracy,
                     .top5 = row.top5});
  drop_old_rows(row.iteration);
  double weights = 0.0;
  for (const WindowRow& each : window_) {
    if (!std::isfinite(each.loss)) continue;
    const auto weight = static_cast<double>(each.last_iteration - each.first_iteration);
    weights += weight;
    row.loss_average += weight * each.loss;
    row.accuracy_average += weight * each.accuracy;
    row.top5_average += weight * each.top5;
  }
  row.loss_average = mean(row.loss_average, weights);
  row.accuracy_average = mean(row.accuracy_average, weights);
  row.top5_average = mean(row.top5_average, weights);
}

TrainRow MetricsLog::report(std::int64_t iteration) {
  MILLRACE_ASSERT(partial_.iterations > 0 && iteration == last_reported_ + partial_.iterations);
  TrainRow row;
  row.step = ++rows_;
  row.iteration = iteration;
  row.epoch = images(iteration) / static_cast<double>(train_size_);
  row.learning_rate = learning_rate_;
  const std::int64_t counted = partial_.iterations - partial_.left_out;
  row.loss = mean(partial_.loss_sum, static_cast<double>(counted));
  row.accuracy = 100.0 * mean(static_cast<double>(partial_.correct), images(counted));
  row.top5 = 100.0 * mean(static_cast<double>(partial_.correct_top5), images(counted));
  average(row);
  row.seconds_per_iteration = timed_iterations_ > 0
                                  ? timed_seconds_ / static_cast<double>(timed_iterations_)
                                  : first_seconds_;
  if (row.seconds_per_iteration > 0.0)
    row.images_per_second = images(1) / row.seconds_per_iteration;
  row.total_seconds = total_seconds();
  row.loss_scale = loss_scale_;
  row.skipped = skipped_;
  if (files_) {
    write(files_->training,
          fmt::format("{},{},{},{},{},{},{},{},{:.6g},{:.6g},{:.6f}", row.step, row.iteration,
                      row.epoch, row.learning_rate, row.loss, row.loss_average, row.accuracy,
                      row.accuracy_average, row.seconds_per_iteration, row.images_per_second,
                      row.total_seconds));
    const Json json = Json::object({{"iteration", row.iteration},
                                    {"epoch", row.epoch},
                                    {"train/loss", row.loss},
                                    {"train/top1", row.accuracy / 100.0},
                                    {"train/top5", row.top5 / 100.0},
                                    {"lr", row.learning_rate},
                                    {"images_per_s", row.images_per_second},
                                    {"step_ms", 1000.0 * row.seconds_per_iteration},
                                    {"loss_scale", row.loss_scale},
                                    {"skipped_updates", row.skipped}});
    write(files_->json, json.dump());
  }
  partial_ = {};
  last_reported_ = iteration;
  timed_seconds_ = 0.0;
  timed_iterations_ = 0;
  return row;
}

void MetricsLog::report(const ValidationResult& result) {
  if (!files_) return;
  const double epoch = images(result.iteration) / static_cast<double>(train_size_);
  write(files_->validation,
        fmt::format("{},{},{:.8g},{:.6g},{:.6g},{:.6g},{},{:.8g},{:.8g},{}", result.iteration,
                    epoch, 100.0 * result.top1(), result.seconds, result.images_per_second(),
                    result.latency_ms(), result.name, 100.0 * result.top5(), result.loss,
                    result.images));
  Json json = Json::object({{"iteration", result.iteration},
                            {"epoch", epoch},
                            {"val/loss", result.loss},
                            {"val/top1", result.top1()},
                            {"val/top5", result.top5()},
                            {"images_per_s", result.images_per_second()}});
  if (result.is_partial()) json.set("images", result.images);
  if (!result.name.empty()) json.set("name", result.name);
  write(files_->json, json.dump());
}

void MetricsLog::sync() {
  if (!files_) return;
  files_->training.sync();
  files_->validation.sync();
  files_->json.sync();
}

}  // namespace millrace::training
