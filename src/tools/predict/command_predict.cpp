// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.hpp"
#include "cli/launch.hpp"
#include "cli/open_run.hpp"
#include "comm/world.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "device/environment.hpp"
#include "io/checkpoint.hpp"
#include "io/data/class_names.hpp"
#include "io/data/loose_images.hpp"
#include "tools/predict/npy.hpp"
#include "tools/predict/predictions.hpp"
#include "train/kernel_rules.hpp"
#include "train/network_facts.hpp"
#include "train/session.hpp"
#include "train/setup.hpp"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

/// Whether a line of standard input may be the name of a file.
bool may_be_name(const std::string& line) {
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < ' ' && c != '\t'; };
  return line.size() < PATH_MAX && std::ranges::none_of(line, is_control);
}

/// Paths from standard input, one per line.
void read_standard_input(std::vector<fs::path>& files) {
  std::vector<std::string> lines;
  for (std::string line; std::getline(std::cin, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (!may_be_name(line))
      fail(ErrorKind::Data,
           "standard input: - reads names of images, one per line; this is not text: give the "
           "name of the image in place of -");
    if (!line.empty()) lines.push_back(line);
  }
  for (const std::string& line : lines)
    std::ranges::move(io::images_at(line), std::back_inserter(files));
}

/// The images behind RUN; none: the validation set of the run.
std::vector<fs::path> files_of(const std::vector<std::string>& arguments) {
  std::vector<fs::path> files;
  for (const std::string& word : std::span(arguments).subspan(1)) {
    if (word == "-")
      read_standard_input(files);
    else
      std::ranges::move(io::images_at(word), std::back_inserter(files));
  }
  if (arguments.size() > 1 && files.empty())
    fail(ErrorKind::Data, "no images: standard input names no file");
  return files;
}

/// What is predicted: a configuration for it, and the images.
struct Work {
  run::Run config;
  std::shared_ptr<const io::Dataset> images = {};     ///< null if no file may be an image
  std::shared_ptr<const io::NamedImages> files = {};  ///< the same; null for the set of the run
  std::vector<std::string> problems = {};  ///< of each file, "" of an image; none for the set
  std::vector<std::string> notices = {};

  /// The images and the files that are none.
  [[nodiscard]] std::int64_t rows() const {
    return problems.empty() ? images->size() : std::ssize(problems);
  }
};

Work work_on(std::vector<fs::path> files, const io::CheckpointReader& checkpoint,
             const Invocation& invocation) {
  const Patch& options = invocation.options;
  Work work{.config = network_of(checkpoint, options).config, .notices = invocation.notices};
  run::Run& config = work.config;
  if (!config.data.preparation)
    config.data.preparation = training::measured_preparation(checkpoint, options);
  // What is no image need not go through the network.
  for (const fs::path& file : files) work.problems.push_back(io::problem_of(file));
  std::vector<fs::path> images;
  for (std::size_t i = 0; i < files.size(); ++i)
    if (work.problems[i].empty()) images.push_back(std::move(files[i]));
  if (images.empty()) return work;
  work.files = std::make_shared<io::NamedImages>(std::move(images), *config.data.preparation,
                                                 config.model.image, config.model.classes);
  work.images = work.files;
  return work;
}

/// The validation set of the run, in this process alone.
Work work_on_set(const Invocation& invocation, const io::CheckpointReader& checkpoint,
                 const comm::World& world) {
  Invocation validation = invocation;
  impose(validation.options, "restore-path", checkpoint.path().string());
  for (const char* name : {"shards", "replicas", "ranks"})
    impose(validation.options, name, std::int64_t{1});
  OpenedRun run = training::open_validated_run(request_of(validation), world);
  std::vector<std::string> notices = notices_of(run, invocation);
  return {.config = std::move(run.config),
          .images = run.data.validation,
          .notices = std::move(notices)};
}

/// Those of --class-names, of the data set, or of the checkpoint.
std::vector<std::string> class_names_of(const Patch& options, const run::Run& config,
                                        const io::CheckpointReader& checkpoint) {
  if (const auto file = options.text("class-names")) {
    io::ClassNames found = io::read_class_names(*file, config.model.classes);
    if (!found.notice.empty()) print_lines(stderr, {found.notice});
    return found.names;
  }
  if (!config.data.class_names.empty()) return config.data.class_names;
  const auto known = training::parse_facts(checkpoint.header().network, checkpoint.path().string());
  return known ? known->class_names : std::vector<std::string>{};
}

/// Prints predictions and writes logits as they come. Logits of an image that cannot be read are
/// NaN.
class Output {
 public:
  Output(const Patch& options, const Work& work, std::span<const std::string> class_names)
      : work_(work),
        top_k_(options.value<std::int64_t>("top-k")),
        classes_(training::network_of(work.config).logits()),
        text_(class_names, width_of_names(), options.flag("json") || ::isatty(STDOUT_FILENO) == 0) {
    if (const auto file = options.text("logits")) logits_.emplace(*file, work.rows(), classes_);
    if (top_k_ > 0) fmt::print("{}", text_.head());
  }

  /// Takes the logits of images from number `first` on. Errors: Numeric, Io.
  void take(std::int64_t first, std::span<const float> logits) {
    const auto width = static_cast<std::size_t>(classes_);
    for (std::size_t at = 0; at < logits.size(); at += width) {
      take_files_that_are_none();
      const std::span<const float> row = logits.subspan(at, width);
      row_.assign(row.begin(), row.end());
      take_row(first++);
    }
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
      fail(ErrorKind::Io, "cannot write to standard output");
  }

  void finish() {
    take_files_that_are_none();
    if (logits_) logits_->commit();
  }
  [[nodiscard]] std::int64_t bad() const { return bad_; }

 private:
  /// Those before the next image.
  void take_files_that_are_none() {
    const auto none = [this] {
      return written_ < std::ssize(work_.problems) && !problem_of_next().empty();
    };
    while (none()) take_bad(problem_of_next());
  }
  [[nodiscard]] const std::string& problem_of_next() const {
    return work_.problems[static_cast<std::size_t>(written_)];
  }

  void take_bad(const std::string& problem) {
    print_error(fmt::format("millrace: {}", problem));
    row_.assign(static_cast<std::size_t>(classes_), std::numeric_limits<float>::quiet_NaN());
    write_row();
    ++bad_;
  }

  void write_row() {
    if (logits_) logits_->write(written_, row_);
    ++written_;
  }

  void take_row(std::int64_t image) {
    if (const std::string problem = work_.files ? work_.files->problem(image) : "";
        !problem.empty())
      return take_bad(problem);
    if (!std::ranges::all_of(row_, [](float x) { return std::isfinite(x); }))
      fail(ErrorKind::Numeric,
           "{}: the network computes numbers that are not finite: the training had diverged",
           name_of(image));
    write_row();
    if (top_k_ == 0) return;
    PredictedImage predicted{
        .name = name_of(image), .label = {}, .predictions = training::top(row_, top_k_)};
    if (!work_.files) predicted.label = work_.images->label(image);
    fmt::print("{}", text_.lines(predicted));
  }

  /// Its path, or its number in the data set.
  [[nodiscard]] std::string name_of(std::int64_t image) const {
    return work_.files ? work_.files->path(image).string() : fmt::format("{}", image);
  }

  [[nodiscard]] std::size_t width_of_names() const {
    constexpr std::size_t kMost = 60;
    std::size_t width = 8;
    for (std::int64_t i = 0; work_.files && i < work_.files->size() && width < kMost; ++i)
      width = std::max(width, printable(name_of(i)).size());
    return std::min(width, kMost);
  }

  const Work& work_;
  std::int64_t top_k_;
  std::int64_t classes_;
  PredictionText text_;
  std::optional<io::NpyFile> logits_;
  std::vector<float> row_;
  std::int64_t written_ = 0;  ///< rows
  std::int64_t bad_ = 0;
};

}  // namespace

int command_predict(const Invocation& invocation) {
  const comm::World world;
  if (world.size() > 1)
    return run_on_all_ranks(world, invocation, [&]() -> int {
      world.fail_together();
      fail(ErrorKind::Usage, "millrace predict must run as one process, but {} were started",
           world.size());
    });
  const Patch& options = invocation.options;
  std::vector<std::string> complaints;
  const io::CheckpointReader checkpoint = io::open_newest(invocation.arguments.front(), complaints);
  print_lines(stderr, complaints);
  std::vector<fs::path> files = files_of(invocation.arguments);
  Work work = files.empty() ? work_on_set(invocation, checkpoint, world)
                            : work_on(std::move(files), checkpoint, invocation);
  run::Run& config = work.config;
  // More would only take memory and time.
  const std::int64_t images = work.images ? work.images->size() : 0;
  config.validation_batch_size = std::min(config.validation_batch_size, images);
  config.data.validation_size = images;
  const std::vector<std::string> names = class_names_of(options, config, checkpoint);
  print_notices(invocation, work.notices);
  pin_rank(world, config);
  const device::Environment environment(config.threads, training::gpu_of(config, world.rank()));
  print_lines(stderr, training::describe_kernel_rules(config));
  Output output(options, work, names);
  if (work.images)
    training::classify(
        config, world, checkpoint, work.images,
        [&](std::int64_t first, std::span<const float> logits) { output.take(first, logits); });
  output.finish();
  return output.bad() == 0 ? 0 : exit_code(ErrorKind::Data);
}

}  // namespace millrace::cli

namespace millrace::tools {

cli::Tool predict_tool() {
  using cli::Command;
  static constexpr auto kCommands = std::to_array<cli::CommandSpec>({
      {Command::Predict, "predict", "CHECKPOINT|RUN_DIR [IMAGE|DIR|-]..", cli::command_predict,
       "Names the likeliest classes of images, or of the validation images of a run.",
       "millrace predict logs/RN20_bs32_BN_16.32_v0.2.0_3S9 photo.jpg more-photos"},
  });
  return {.commands = kCommands};
}

}  // namespace millrace::tools
