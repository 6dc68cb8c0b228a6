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

constexpr std::string_view kCompiler = "kernels are fused always";
constexpr std::string_view kMemory = "memory is planned exactly";

constexpr std::array kWords = std::to_array<DialectWord>({
    {.name = "mode"},
    {.name = "data_dir", .option = "data-dir"},
    {.name = "batch_size", .option = "batch-size"},
    {.name = "num_iter"},
    {.name = "train_iter"},
    {.name = "iter_unit"},
    {.name = "warmup_steps"},
    {.name = "model_dir"},
    {.name = "results_dir"},
    {.name = "log_dir"},
    {.name = "display_every"},
    {.name = "lr_init"},
    {.name = "lr_warmup_epochs"},
    {.name = "weight_decay", .option = "weight-decay"},
    {.name = "momentum", .option = "momentum"},
    {.name = "loss_scale"},
    {.name = "label_smoothing", .option = "label-smoothing"},
    {.name = "mixup", .option = "mixup-alpha"},
    {.name = "use_static_loss_scaling", .kind = WordKind::Flag},
    {.name = "use_auto_loss_scaling", .kind = WordKind::Flag},
    {.name = "use_tf_amp", .kind = WordKind::Flag},
    {.name = "use_cosine_lr", .kind = WordKind::Flag},
    {.name = "seed", .option = "seed"},
    {.name = "use_xla", .kind = WordKind::Flag, .idle = kCompiler},
    {.name = "use_dali", .kind = WordKind::Flag},
    {.name = "data_idx_dir", .idle = "records are indexed on first use"},
    {.name = "gpu_memory_fraction", .idle = kMemory},
    {.name = "gpu_id", .idle = "the launcher gives a device to each rank"},
    {.name = "data_format", .idle = "the layout is NHWC always"},
    {.name = "export_dir", .refused = "TensorFlow's SavedModel is not written"},
    {.name = "to_predict", .refused = "there is no command predict yet"},
});

/// 90 epochs is how long the rates of a length in batches fall.
void set_length(DialectReader& read, std::int64_t global_batch) {
  const std::string unit = read.text("iter_unit", "epoch");
  if (unit != "epoch" && unit != "batch")
    fail(ErrorKind::Usage, "--iter_unit: '{}' is not epoch or batch", unit);
  const std::string_view name = read.given("train_iter") ? "train_iter" : "num_iter";
  const double warmup = read.real("lr_warmup_epochs", 5.0);
  if (unit == "epoch") {
    read.set("epochs", read.real(name, 1.0), read.given(name) ? "--num_iter" : "");
    read.set("warmup-epochs", warmup, "");
    return;
  }
  const std::int64_t steps = read.images / global_batch;
  read.set("iterations", read.integer(name, 1), read.given(name) ? "--num_iter" : "");
  read.set("warmup-iterations", static_cast<std::int64_t>(static_cast<double>(steps) * warmup), "");
  if (read.flag("use_cosine_lr")) read.set("lr-horizon", 90 * read.images / global_batch, "");
}

void set_rate(DialectReader& read, std::int64_t global_batch) {
  read.set("optimiser", "momentum", "");
  read.set("momentum", 0.9, "");
  read.set("weight-decay", 1e-4, "");
  read.set("weight-decay-excludes", "beta gamma", "");
  const double rate = read.real("lr_init", 0.1) * static_cast<double>(global_batch) / 256.0;
  read.set("abs-learning-rate", rate, read.given("lr_init") ? "--lr_init" : "");
  read.set("warmup", "linear", "");
  if (read.flag("use_cosine_lr")) {
    read.set("lr-schedule", "cosine", "");
    return;
  }
  read.set("lr-schedule", "piecewise", "");
  read.set("learning-rate-epochs", "30,60,80,90", "");
}

/// Its two ways to read pictures crop and normalise each by rules of its own.
void set_pictures(DialectReader& read) {
  const bool dali = read.flag("use_dali");
  read.set("image-preset", dali ? "dali2019" : "tf", dali ? "--use_dali" : "");
  read.set("image-normalisation", dali ? "dali2019" : "nvidia2019", "");
}

void set_numerics(DialectReader& read) {
  const bool half = read.flag("use_tf_amp");
  read.set("precision", half ? "16.32" : "32.32", half ? "--use_tf_amp" : "");
  const bool fixed = read.flag("use_static_loss_scaling");
  const bool automatic = read.flag("use_auto_loss_scaling") || (half && !fixed);
  const std::string scale = automatic ? "dynamic" : fixed ? read.text("loss_scale", "256") : "1";
  read.set("loss-scaling", scale, "");
  if (automatic && read.given("loss_scale"))
    read.note("--loss_scale has no effect here: it needs --use_static_loss_scaling");
  if (read.real("label_smoothing", 0.0) > 0.0) read.set("label-smoothing-form", "all-classes", "");
  if (read.real("mixup", 0.0) > 0.0) read.set("mixing-form", "reversed", "");
}

/// `model_dir` and `results_dir` are one directory there.
std::string place(const DialectReader& read) {
  for (const char* name : {"model_dir", "results_dir", "log_dir"})
    if (read.given(name)) return read.text(name, "");
  return "";
}

void set_command(DialectReader& read) {
  const std::string mode = read.text("mode", "train_and_evaluate");
  Translation& translation = read.translation();
  const std::string directory = place(read);
  if (mode == "predict") fail(ErrorKind::Usage, "--mode predict: there is no command predict yet");
  if (mode == "evaluate" || mode == "inference_benchmark") {
    translation.command = Command::Validate;
    if (mode == "evaluate" && !directory.empty())
      read.set("restore-path", directory, "--results_dir");
    if (mode == "inference_benchmark" && !read.given("data_dir"))
      read.set("synthetic-data", "true", "");
    return;
  }
  if (mode == "training_benchmark") {
    translation.command = Command::Bench;
    const std::int64_t warmup = read.integer("warmup_steps", 50);
    read.set("warmup-steps", warmup, read.given("warmup_steps") ? "--warmup_steps" : "");
    if (read.text("iter_unit", "epoch") == "batch")
      read.set("steps", std::max<std::int64_t>(read.integer("num_iter", 1) - warmup, 1),
               "--num_iter");
    return;
  }
  if (mode != "train" && mode != "train_and_evaluate")
    fail(ErrorKind::Usage,
         "--mode: '{}' is none of train, train_and_evaluate, evaluate, training_benchmark, "
         "inference_benchmark",
         mode);
  if (mode == "train") read.set("no-validation", "true", "--mode train");
  if (mode == "train_and_evaluate")
    read.set("epochs-between-evals",
             std::max<std::int64_t>(
                 read.text("iter_unit", "epoch") == "epoch"
                     ? static_cast<std::int64_t>(std::ceil(read.real("num_iter", 1.0)))
                     : 1,
                 1),
             "");
  if (!directory.empty()) read.set("log-dir", directory, "--results_dir");
  read.set("log-freq", read.integer("display_every", 10),
           read.given("display_every") ? "--display_every" : "");
  if (read.given("warmup_steps"))
    read.note("--warmup_steps has no effect here: it needs --mode training_benchmark");
}

void translate(DialectReader& read) {
  set_command(read);
  if (read.translation().options.find("restore-path") != nullptr) {  // the run says the rest
    if (read.flag("use_tf_amp")) read.set("precision", "16.32", "--use_tf_amp");
    return;
  }
  set_imagenet_habits(read, {.initialisers = "nvidia"});
  set_pictures(read);
  set_numerics(read);
  if (!read.given("batch_size")) {
    if (read.translation().command != Command::Validate)
      fail(ErrorKind::Usage, "--batch_size is missing: how many images does each process take?");
    return;
  }
  const std::int64_t global_batch =
      std::max<std::int64_t>(read.integer("batch_size", 1), 1) * read.workers;
  read.set("replicas", read.workers, "");
  set_length(read, global_batch);
  set_rate(read, global_batch);
  read.set("seed", std::int64_t{1}, "");
}

}  // namespace

DialectSpec nvidia_dialect() { return {.name = "nvidia", .words = kWords, .translate = translate}; }

}  // namespace millrace::cli
