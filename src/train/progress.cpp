// SPDX-License-Identifier: Apache-2.0
#include "train/progress.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <system_error>

#include "core/counted.hpp"
#include "core/error.hpp"
#include "core/terminal.hpp"
#include "core/text.hpp"

namespace millrace::training {
namespace {

constexpr double kStatusInterval = 0.1;

}  // namespace

std::string_view curve_name(run::LearningRateKind kind) {
  constexpr std::array<std::string_view, 7> kNames = {
      "stepped",        "cosine",    "exponential",
      "polynomial",     "piecewise", "gradual warm-up, then linear",
      "LARS polynomial"};
  return kNames.at(static_cast<std::size_t>(kind));
}

std::string_view precision_name(const Precision& precision) {
  if (precision.activations == DType::F32) return "32.32";
  return precision.master == DType::F32 ? "16.32" : "16.16";
}

std::string format_line(const TrainRow& row) {
  const std::string skipped =
      row.skipped == 0
          ? ""
          : fmt::format(", skipped updates: {}, loss scale: {:g}", row.skipped, row.loss_scale);
  const std::string top5 = std::isnan(row.top5_average)
                               ? ""
                               : fmt::format(", top-5 accuracy: {:6.3f}%", row.top5_average);
  return fmt::format(
      "step: {:6d}, iteration: {:6d}, epoch: {:6.2f}, lr: {:6.4g}, loss: {:6.3f}, "
      "top-1 accuracy: {:6.3f}%, img/sec: {:6.2f}, time: {:8.6f}, total_time: {:8.1f}{}{}",
      row.step, row.iteration, row.epoch, row.learning_rate, row.loss_average, row.accuracy_average,
      row.images_per_second, row.seconds_per_iteration, row.total_seconds, top5, skipped);
}

namespace {

/// The weights that were validated.
std::string weights_of(const ValidationResult& result) {
  if (!result.name.empty()) return result.name;
  if (!result.checkpoint.empty()) return result.checkpoint;
  return result.iteration == 0 ? "untrained weights" : fmt::format("update {}", result.iteration);
}

}  // namespace

std::string format_line(const ValidationResult& result, double epoch) {
  const std::string part = part_validated(result.images, result.set_images);
  const std::string replaced =
      result.replaced == 0 ? ""
                           : fmt::format(", bad images replaced: {}", with_commas(result.replaced));
  return fmt::format(
      "Validation top-1 accuracy [{}] (iteration: {:6d}, epoch: {:6.2f}, img/sec: {:6.2f}, "
      "latency (ms): {:8.4f}, time: {:8.6f}): {:6.3f}% (top-5: {:6.3f}%, loss: {:6.4f}{}{})",
      weights_of(result), result.iteration, epoch, result.images_per_second(), result.latency_ms(),
      result.seconds, 100.0 * result.top1(), 100.0 * result.top5(), result.loss,
      part.empty() ? "" : ", " + part, replaced);
}

namespace {

/// Stages, replicas and ranks, if there is more than one of them.
void add_layout(std::string& text, const run::Run& config) {
  const pipeline::PipelinePlan& plan = config.pipeline;
  if (plan.is_joint())
    text += fmt::format(" Pipeline: {} stages spread over {} ranks, {}, cut at {}\n",
                        plan.schedule.stages, plan.ranks.ranks,
                        counted(plan.schedule.micro_batches, "micro-batch", "micro-batches"),
                        join(config.splits, " "));
  else if (plan.schedule.stages > 1)
    text += fmt::format(" Pipeline: {} stages on {}, {}, schedule {}, cut at {}\n",
                        plan.schedule.stages, counted(plan.ranks.devices, "device"),
                        counted(plan.schedule.micro_batches, "micro-batch", "micro-batches"),
                        plan.schedule.name, join(config.splits, " "));
  if (plan.ranks.replicas > 1) text += fmt::format(" Replicas: {}\n", plan.ranks.replicas);
  if (plan.ranks.ranks > 1) text += fmt::format(" Ranks: {}\n", plan.ranks.ranks);
}

}  // namespace

std::string part_validated(std::int64_t images, std::int64_t set_images) {
  if (set_images <= images || images == 0) return {};
  return fmt::format("of {} of {} images", with_commas(images), with_commas(set_images));
}

std::string format_other_images(const Accuracies& before, const ValidationResult& result) {
  if (before.empty() || before.rbegin()->second.images == result.images) return {};
  const std::int64_t images = before.rbegin()->second.images;
  return fmt::format(
      "The validations before this one were of {}, this one is of {}: they are not compared, and "
      "the best starts anew",
      images == 0 ? "an unknown number of images" : counted(images, "image"),
      with_commas(result.images));
}

std::string format_first_update(const run::Run& config, std::int64_t done,
                                const IterationResult& result) {
  return fmt::format(
      "Update {} of {}: loss {:.3f}, top-1 accuracy {:.3f}%, {:.3f} s", with_commas(done),
      with_commas(config.iterations), result.loss,
      100.0 * static_cast<double>(result.correct) / static_cast<double>(config.total_batch()),
      result.seconds);
}

std::string format_start(const run::Run& config, std::string_view command_line,
                         const models::Graph& graph) {
  const models::ModelOptions& model = config.model;
  std::string text = fmt::format("Command line: {}\n", command_line);
  const auto add = [&text]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    text += fmt::format(format, std::forward<Args>(args)...);
    text += '\n';
  };
  constexpr std::array<std::string_view, 3> kSources = {"", " (generated data)",
                                                        " (synthetic data)"};
  add("{} {} on {}{}", model.model, model.size, config.data.dataset,
      kSources[static_cast<std::size_t>(config.data.source)]);
  // The recipe's tools parse these lines by column: exactly one leading space.
  add(" Batch Size: {}", config.total_batch());
  if (config.micro_batches > 1)
    add(" {} gradients of {} accumulated", config.micro_batches,
        counted(config.batch_size, "image"));
  add_layout(text, config);
  add(" Image Size: {}x{}", model.image.h, model.image.w);
  add(" Precision: {}{}", precision_name(config.precision),
      config.precision.master == DType::F32 ? ""
      : config.stochastic_rounding          ? ", stochastic rounding"
                                            : ", rounding to nearest");
  add(" Optimizer: {}, learning rate {:g} ({}), weight decay {:g}",
      millrace::name_of(config.optimiser.kind), config.learning_rate.base_rate,
      curve_name(config.learning_rate.kind), config.optimiser.weight_decay);
  add(" Updates: {} ({:.2f} epochs of {} updates)", config.iterations,
      config.epoch_after(config.iterations), config.iterations_per_epoch);
  add(" Seed: {}, threads: {}", config.seed, config.threads);
  if (!config.run_directory.empty()) add(" Saving to {}", printable(config.run_directory.string()));
  if (config.verbosity == run::Verbosity::Verbose) text += "Trainable Variables:\n";
  for (const models::Parameter& parameter : graph.parameters)
    if (config.verbosity == run::Verbosity::Verbose && parameter.trainable())
      add("  {} ({}){}", parameter.name, join(parameter.shape, "x"),
          parameter.frozen ? ", frozen" : "");
  text += fmt::format("Total Parameters: {}", graph.trainable_elements());
  return text;
}

std::string format_summary(const Summary& summary) {
  std::string text =
      fmt::format("{} {} of {} updates in {}", summary.finished ? "Finished:" : "Stopped after",
                  with_commas(summary.iteration), with_commas(summary.iterations),
                  human_seconds(summary.seconds));
  if (summary.images_per_second > 0.0)
    text += fmt::format(", {:.1f} img/s while training{}", summary.images_per_second,
                        summary.restored ? " since the restart" : "");
  if (summary.bubble)
    text += fmt::format(", bubble {:.1f} %{}", 100.0 * *summary.bubble,
                        summary.takes_turns ? " (the devices of a process take turns)" : "");
  if (!summary.accuracies.empty()) {
    const std::map<std::int64_t, double> alike = comparable(summary.accuracies);
    const auto best =
        std::ranges::max_element(alike, {}, &std::pair<const std::int64_t, double>::second);
    const auto last = std::prev(alike.end());
    const std::string of =
        part_validated(summary.accuracies.rbegin()->second.images, summary.set_images);
    text += fmt::format("\nTop-1 accuracy{}: {:.2f} % after {} (last)", of.empty() ? "" : " " + of,
                        last->second, counted(last->first, "update"));
    if (best->first != last->first)
      text += fmt::format(", {:.2f} % after {} (best)", best->second, with_commas(best->first));
  }
  const std::string run = summary.run_directory.string();
  if (run.empty()) return text;
  text += fmt::format("\nSaved in {}{}{}", printable(run),
                      summary.checkpoint.empty() ? "" : ", newest ", summary.checkpoint);
  if (!summary.next.empty()) text += "\nNext: " + summary.next;
  return text;
}

namespace {

/// "[###.]": a device that works for three quarters of its time and waits for the rest.
std::string bar_of(double share) {
  constexpr std::size_t kCells = 4;
  const auto cells = static_cast<std::size_t>(
      std::lround(std::clamp(share, 0.0, 1.0) * static_cast<double>(kCells)));
  return '[' + std::string(cells, '#') + std::string(kCells - cells, '.') + ']';
}

/// Shows the part of bars that stands for work in green.
std::string colored(std::string_view text) {
  std::string shown;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool works = text[i] == '#';
    if (works && (i == 0 || text[i - 1] != '#')) shown += "\033[32m";
    shown += text[i];
    if (works && (i + 1 == text.size() || text[i + 1] != '#')) shown += "\033[0m";
  }
  return shown;
}

/// The columns that a text takes; colors take none.
std::size_t columns_of(std::string_view text) {
  std::size_t columns = 0;
  for (std::size_t i = 0; i < text.size(); ++i)
    if (text[i] == '\033')
      i = std::min(text.find('m', i), text.size() - 1);
    else
      ++columns;
  return columns;
}

/// As many fields, which two spaces divide, as so many columns hold. None is cut: half of a number
/// would be another number.
std::string fields_within(std::string_view text, std::size_t width) {
  while (columns_of(text) > width) {
    const std::size_t end = text.rfind("  ");
    if (end == std::string_view::npos) return {};
    text = text.substr(0, end);
  }
  return std::string(text);
}

}  // namespace

std::string format_status(const run::Run& config, const Status& status, const Terminal& terminal) {
  const std::int64_t per_epoch = config.iterations_per_epoch;
  const std::int64_t finished = std::max<std::int64_t>(status.iteration - 1, 0);
  const std::int64_t epochs = (config.iterations + per_epoch - 1) / per_epoch;
  const std::int64_t before = finished / per_epoch * per_epoch;  // updates of earlier epochs
  const std::int64_t planned = std::min(per_epoch, config.iterations - before);
  std::vector<std::string> fields = {fmt::format("epoch {}/{}", finished / per_epoch + 1, epochs),
                                     fmt::format("update {}/{}", finished - before + 1, planned),
                                     fmt::format("loss {:.3f}", status.loss),
                                     fmt::format("top-1 {:.1f} %", 100.0 * status.top1),
                                     fmt::format("{:.0f} img/s", status.images_per_second),
                                     fmt::format("ETA {}", human_seconds(status.seconds_left))};
  if (!status.busy.empty()) {
    std::string bars = "busy ";
    for (const double share : status.busy) bars += bar_of(share);
    fields.push_back(std::move(bars));
  }
  if (!status.saving.empty()) fields.push_back("saving " + status.saving);
  // What a pipeline alone shows, and a checkpoint, matter more than what log lines will tell.
  constexpr std::ptrdiff_t kLoss = 2;
  constexpr std::ptrdiff_t kAccuracy = 3;
  constexpr std::ptrdiff_t kRate = 2;  // without the two
  constexpr std::ptrdiff_t kLeft = 3;
  std::string text = join(fields, "  ");
  for (const std::ptrdiff_t least : {kAccuracy, kLoss, kLeft, kRate}) {
    if (text.size() <= terminal.width) break;
    fields.erase(fields.begin() + least);
    text = join(fields, "  ");
  }
  text = fields_within(text, terminal.width);
  return terminal.colors ? colored(text) : text;
}

Terminal terminal_of(std::FILE* stream) {
  Terminal terminal;
  const int descriptor = ::fileno(stream);
  const char* kind = std::getenv("TERM");
  const bool dumb = kind == nullptr || std::string_view(kind) == "dumb";
  if (descriptor < 0 || dumb) return terminal;
  if (const char* const launcher = std::getenv(kTerminalVariable)) {
    const std::vector<std::string> words = split_list(launcher, ' ');
    const auto width = parse_number<std::size_t>(words.empty() ? "" : words.front());
    if (width)
      return {.rewrites_lines = true,
              .width = *width,
              .colors = colors_allowed(),
              .shows_output = words.size() > 1};
  }
  if (::isatty(descriptor) == 0) return terminal;
  terminal.rewrites_lines = true;
  terminal.colors = colors_allowed();
  terminal.shows_output = ::isatty(STDOUT_FILENO) != 0;
  winsize size{};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 1)
    terminal.width = size.ws_col - 1u;  // the last column would wrap
  return terminal;
}

std::string terminal_text(const Terminal& terminal) {
  return std::to_string(terminal.width) + (terminal.shows_output ? " output" : "");
}

std::string format_replaced(std::int64_t replaced, std::int64_t images, std::string_view use) {
  if (replaced == 0) return {};
  return fmt::format(
      "Bad images: {} of {} for {} could not be decoded and were replaced by others of their class",
      with_commas(replaced), with_commas(images), use);
}

namespace {

/// Whether a line can be written without waiting for a reader, or cannot be written at all.
bool takes_output(std::FILE* stream) {
  pollfd descriptor{.fd = ::fileno(stream), .events = POLLOUT, .revents = 0};
  return ::poll(&descriptor, 1, 0) != 0;
}

}  // namespace

Console::Console(const std::filesystem::path& log_file)
    : Console(stdout, terminal_of(stderr).shows_output ? stdout : stderr, terminal_of(stderr),
              log_file) {}

Console::Console(std::FILE* out, std::FILE* status, Terminal terminal,
                 const std::filesystem::path& log_file)
    : out_(out), status_(status), terminal_(terminal) {
  if (!log_file.empty()) log_.emplace(log_file, LineFile::Open::Append);
}

Console::~Console() { clear_status(); }

void Console::clear_status() {
  if (!status_shown_) return;
  fmt::print(status_, "\r\033[K");
  std::fflush(status_);
  status_shown_ = false;
}

void Console::line(std::string_view text) { quiet_ ? keep(text) : important(text); }

void Console::important(std::string_view text) {
  const std::string shown = printable(text);
  if (tell_) tell_(shown);
  if (out_ != nullptr) {
    clear_status();
    print(shown);
  }
  if (log_) log_->write(shown);
}

/// A reader that went away (`| head`) or stopped reading (Ctrl-S) must neither end nor block a
/// training that also logs to a file.
void Console::print(std::string_view text) {
  if (log_ && !takes_output(out_)) return;
  if (std::fwrite(text.data(), 1, text.size(), out_) == text.size() &&
      std::fputc('\n', out_) != EOF && std::fflush(out_) == 0)
    return;
  if (!log_)
    fail(ErrorKind::Io, "cannot write to standard output: {}",
         std::generic_category().message(errno));
  // From now on output is dropped, so that it does not fail again when the process ends.
  if (std::freopen("/dev/null", "w", out_) == nullptr) out_ = nullptr;
}

void Console::keep(std::string_view text) {
  if (log_) log_->write(printable(text));
}

void Console::status(std::string_view text, double now_seconds) {
  if (quiet_ || !terminal_.rewrites_lines) return;
  if (status_shown_ && now_seconds < last_status_ + kStatusInterval) return;
  last_status_ = now_seconds;
  fmt::print(status_, "\r{}\033[K", fields_within(text, terminal_.width));
  std::fflush(status_);
  status_shown_ = true;
}

void ValidationProgress::seen(std::int64_t images, double now_seconds) {
  constexpr double kSilence = 10.0;
  std::string shown =
      fmt::format("validating {}/{} images", with_commas(images), with_commas(images_));
  if (const double elapsed = now_seconds - start_; elapsed > 0.0 && images > 0) {
    const double rate = static_cast<double>(images) / elapsed;
    shown += fmt::format("  {:.0f} img/s  ETA {}", rate,
                         human_seconds(static_cast<double>(images_ - images) / rate));
  }
  show_(shown);
  if (now_seconds - last_ < kSilence) return;
  last_ = now_seconds;
  say_(fmt::format("Validating: {} of {} images", with_commas(images), with_commas(images_)));
}

}  // namespace millrace::training
