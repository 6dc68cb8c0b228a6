// SPDX-License-Identifier: Apache-2.0
//
// NVIDIA's ResNet-50 v1.5 for TensorFlow, main.py.
#include <algorithm>
#include <array>
#include <cmath>

#include "cli/dialect.hpp"
#include "core/error.hpp"

namespace millrace::cli {
namespace {

constexpr std::string_view kCompiler = "kernels are always fused";
constexpr std::string_view kMemory = "memory is planned exactly";

constexpr std::array kWords = std::to_array<DialectWord>({
    {.name = "mode", .becomes = "the command: train, validate or bench; predict is not supported"},
    {.name = "data_dir", .option = "data-dir"},
    {.name = "batch_size", .option = "batch-size"},
    {.name = "num_iter",
     .becomes =
         "--epochs or --iterations, by --iter_unit; for a benchmark --steps and --warmup-steps"},
    {.name = "train_iter", .becomes = "same as --num_iter"},
    {.name = "iter_unit", .becomes = "epoch or batch: the unit of --num_iter"},
    {.name = "warmup_steps", .becomes = "--warmup-steps of a benchmark"},
    {.name = "model_dir", .becomes = "--log-dir, or --restore-path"},
    {.name = "results_dir", .becomes = "same as --model_dir"},
    {.name = "log_dir", .becomes = "same as --model_dir"},
    {.name = "display_every", .becomes = "--log-freq"},
    {.name = "lr_init", .becomes = "--abs-learning-rate for a batch of 256"},
    {.name = "lr_warmup_epochs", .becomes = "--warmup-epochs"},
    {.name = "weight_decay", .option = "weight-decay"},
    {.name = "momentum", .option = "momentum"},
    {.name = "loss_scale", .becomes = "--loss-scaling, with --use_static_loss_scaling"},
    {.name = "label_smoothing", .option = "label-smoothing"},
    {.name = "mixup", .option = "mixup-alpha"},
    {.name = "use_static_loss_scaling",
     .kind = WordKind::Flag,
     .becomes = "--loss-scaling with the value of --loss_scale"},
    {.name = "use_auto_loss_scaling",
     .kind = WordKind::Flag,
     .becomes = "--loss-scaling dynamic, the default of --use_tf_amp; if false, --loss_scale"},
    {.name = "use_tf_amp",
     .kind = WordKind::Flag,
     .becomes = "--precision 16.32 --loss-scaling dynamic"},
    {.name = "use_cosine_lr",
     .kind = WordKind::Flag,
     .becomes = "--lr-schedule cosine; without it piecewise"},
    {.name = "seed", .option = "seed"},
    {.name = "use_xla", .kind = WordKind::Flag, .idle = kCompiler},
    {.name = "use_dali", .kind = WordKind::Flag, .becomes = "--image-preset dali2019"},
    {.name = "data_idx_dir", .idle = "records are indexed on first use"},
    {.name = "gpu_memory_fraction", .idle = kMemory},
    {.name = "gpu_id", .idle = "the launcher gives a device to each rank"},
    {.name = "data_format", .idle = "the layout is always NHWC"},
    {.name = "export_dir", .refused = "TensorFlow's SavedModel is not written"},
    {.name = "to_predict", .refused = "there is no predict command yet"},
});

/// The option that sets the length; the guide has two names for it. Errors: Usage when they differ.
std::string_view length_name(DialectReader& read) {
  if (!read.given("train_iter")) return "num_iter";
  if (!read.given("num_iter")) return "train_iter";
  if (read.text("train_iter", "") != read.text("num_iter", ""))
    fail(ErrorKind::Usage,
         "--train_iter {} and --num_iter {} contradict each other: give one of them",
         read.text("train_iter", ""), read.text("num_iter", ""));
  return "num_iter";
}

bool counts_batches(DialectReader& read) {
  const std::string unit = read.text("iter_unit", "epoch");
  if (unit != "epoch" && unit != "batch")
    fail(ErrorKind::Usage, "--iter_unit: '{}' is not epoch or batch", unit);
  return unit == "batch";
}

/// Validation runs once, after the training. With a length in batches, the learning rate falls over
/// 90 epochs.
void set_length(DialectReader& read, std::int64_t global_batch) {
  const std::string_view name = length_name(read);
  const double warmup = read.real("lr_warmup_epochs", 5.0);
  if (!counts_batches(read)) {
    const double epochs = read.real(name, 1.0);
    read.set("epochs", epochs, read.spelled(name));
    read.set("warmup-epochs", warmup, "");
    constexpr double kMost = 2147483647.0;
    read.set("epochs-between-evals",
             static_cast<std::int64_t>(std::clamp(std::ceil(epochs), 1.0, kMost)), "");
    return;
  }
  const std::int64_t iterations = read.integer(name, 1, 1);
  const std::int64_t epoch = read.images / global_batch;
  const double steps = std::floor(static_cast<double>(epoch) * warmup);
  read.set("iterations", iterations, read.spelled(name));
  read.set("iterations-between-evals", iterations, "");
  read.set("warmup-iterations", whole_steps(std::max(steps, 0.0)), "");
  if (read.flag("use_cosine_lr")) read.set("lr-horizon", 90 * read.images / global_batch, "");
}

void set_rate(DialectReader& read, std::int64_t global_batch) {
  read.set("optimiser", "momentum", "");
  read.set("momentum", 0.9, "");
  read.set("weight-decay", 1e-4, "");
  read.set("weight-decay-excludes", "beta gamma", "");
  const double rate = read.real("lr_init", 0.1) * static_cast<double>(global_batch) / 256.0;
  read.set("abs-learning-rate", rate, read.spelled("lr_init"));
  read.set("warmup", "linear", "");
  if (read.flag("use_cosine_lr")) {
    read.set("lr-schedule", "cosine", "");
    return;
  }
  read.set("lr-schedule", "piecewise", "");
  read.set("learning-rate-epochs", "30,60,80,90", "");
}

/// Its two image readers crop and normalize differently.
void set_pictures(DialectReader& read) {
  const bool dali = read.flag("use_dali");
  read.set("image-preset", dali ? "dali2019" : "tf", dali ? "--use_dali" : "");
  read.set("image-normalisation", dali ? "dali2019" : "nvidia2019", "");
}

void set_precision(DialectReader& read) {
  read.set("precision", read.flag("use_tf_amp") ? "16.32" : "32.32", read.spelled("use_tf_amp"));
}

/// Mixed precision scales the loss dynamically unless an option sets a static scale.
void set_loss_scaling(DialectReader& read) {
  const bool half = read.flag("use_tf_amp");
  const bool told_static = read.flag("use_static_loss_scaling");
  const bool told_automatic = read.flag("use_auto_loss_scaling");
  if (told_static && told_automatic)
    fail(ErrorKind::Usage,
         "--use_static_loss_scaling and --use_auto_loss_scaling contradict each other: give one of "
         "them");
  const bool fixed =
      told_static || (half && read.given("use_auto_loss_scaling") && !told_automatic);
  const double scale = read.real("loss_scale", 256.0);
  if (fixed) {
    read.set("loss-scaling", scale, read.spelled("loss_scale"));
    return;
  }
  read.set("loss-scaling", told_automatic || half ? "dynamic" : "1",
           told_automatic ? read.spelled("use_auto_loss_scaling") : "");
  read.pass_over("loss_scale", "it needs --use_static_loss_scaling");
}

void set_numerics(DialectReader& read) {
  set_precision(read);
  set_loss_scaling(read);
  if (read.real("label_smoothing", 0.0) > 0.0) read.set("label-smoothing-form", "all-classes", "");
  if (read.real("mixup", 0.0) > 0.0) read.set("mixing-form", "reversed", "");
}

/// NVIDIA's trainer uses one directory for `model_dir`, `results_dir` and `log_dir`.
struct Place {
  std::string directory;
  std::string from;
};
Place place(DialectReader& read) {
  Place first;
  for (const char* name : {"model_dir", "results_dir", "log_dir"}) {
    if (!read.given(name)) continue;
    const std::string directory = read.text(name, "");
    if (first.from.empty())
      first = {directory, read.spelled(name)};
    else if (directory != first.directory)
      read.pass_over(name, first.from + " sets the directory");
  }
  return first;
}

void set_benchmark(DialectReader& read) {
  const std::int64_t warmup = read.integer("warmup_steps", 50);
  read.set("warmup-steps", warmup, read.spelled("warmup_steps"));
  const std::string_view name = length_name(read);
  if (!counts_batches(read))
    return read.pass_over(name, "the length of a benchmark is counted in batches");
  const std::int64_t steps = read.integer(name, 1, 1) - warmup;
  if (steps < 1)
    fail(ErrorKind::Usage, "--{}: {} batches leave none to measure after the {} of --warmup_steps",
         name, read.integer(name, 1), warmup);
  read.set("steps", steps, read.spelled(name));
}

void set_outputs(DialectReader& read, const std::string& mode) {
  if (mode == "train") read.set("no-validation", "true", "--mode train");
  if (const Place there = place(read); !there.from.empty())
    read.set("log-dir", there.directory, there.from);
  read.set("log-freq", read.integer("display_every", 10, 1), read.spelled("display_every"));
  read.pass_over("warmup_steps", "it needs --mode training_benchmark");
}

Command command_of(const std::string& mode, Command typed) {
  if (mode == "predict")
    fail(ErrorKind::Usage, "--mode predict is not supported: there is no predict command yet");
  if (mode == "evaluate" || mode == "inference_benchmark") return Command::Validate;
  if (mode == "training_benchmark") return Command::Bench;
  if (mode != "train" && mode != "train_and_evaluate")
    fail(ErrorKind::Usage,
         "--mode: '{}' is not one of train, train_and_evaluate, evaluate, training_benchmark, "
         "inference_benchmark",
         mode);
  return typed;
}

/// Whether the options name a run to validate.
bool finds_run(DialectReader& read, const std::string& mode) {
  if (mode != "evaluate") return false;
  const Place there = place(read);
  if (there.from.empty()) return false;
  read.set("restore-path", there.directory, there.from);
  if (read.given("use_tf_amp")) set_precision(read);
  return true;
}

void translate(DialectReader& read) {
  const std::string mode = read.text("mode", "train_and_evaluate");
  Translation& translation = read.translation();
  translation.command = command_of(mode, translation.command);
  if (finds_run(read, mode)) return;
  set_imagenet_defaults(read, {.initialisers = "nvidia"});
  set_pictures(read);
  if (translation.command == Command::Validate) {
    if (mode == "inference_benchmark" && !read.given("data_dir"))
      read.set("synthetic-data", "true", "");
    return set_precision(read);
  }
  if (!read.given("batch_size"))
    fail(ErrorKind::Usage, "--batch_size is missing: give the number of images per process");
  set_numerics(read);
  const std::int64_t global_batch = read.integer("batch_size", 1, 1) * read.workers;
  read.set("replicas", read.workers, "");
  set_rate(read, global_batch);
  read.set("seed", std::int64_t{1}, "");
  if (mode == "training_benchmark") return set_benchmark(read);
  set_length(read, global_batch);
  set_outputs(read, mode);
}

}  // namespace

DialectSpec nvidia_dialect() {
  return {.name = "nvidia",
          .title = "NVIDIA's ResNet-50 v1.5: main.py",
          .words = kWords,
          .translate = translate};
}

}  // namespace millrace::cli
