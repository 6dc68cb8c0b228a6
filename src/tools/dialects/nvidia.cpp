// SPDX-License-Identifier: Apache-2.0
//
// NVIDIA's ResNet-50 v1.5 for TensorFlow, main.py and scripts/inference/predict.py.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.hpp"
#include "tools/dialects/dialect.hpp"

namespace millrace::cli {
namespace {

using enum WordUse;
using enum WordKind;

constexpr std::string_view kCompiler = "kernels are always fused";
constexpr std::string_view kMemory = "memory is planned exactly";

constexpr std::array kWords = std::to_array<DialectWord>({
    {"mode", "", WithValue, Translated, "the command: train, validate, bench or predict"},
    {"data_dir", "", WithValue, Same, "data-dir"},
    {"batch_size", "", WithValue, Same, "batch-size"},
    {"num_iter", "", WithValue, Translated,
     "--epochs or --iterations, by --iter_unit; for a benchmark --measured-epochs or --steps"},
    {"train_iter", "", WithValue, Translated, "same as --num_iter"},
    {"iter_unit", "", WithValue, Translated, "epoch or batch: the unit of --num_iter"},
    {"warmup_steps", "", WithValue, Translated,
     "--warmup-steps of a benchmark; 200, of an inference 20"},
    {"log_filename", "", WithValue, Translated,
     "--log-filename of a benchmark, in the directory of --results_dir"},
    {"model_dir", "", WithValue, Translated,
     "--log-dir, or --restore-path; for a benchmark the folder of --results-file"},
    {"results_dir", "", WithValue, Translated, "same as --model_dir"},
    {"log_dir", "", WithValue, Translated, "same as --model_dir"},
    {"display_every", "", WithValue, Translated, "--log-freq; for a benchmark --display-every"},
    {"lr_init", "", WithValue, Translated, "--abs-learning-rate for a batch of 256"},
    {"lr_warmup_epochs", "", WithValue, Translated,
     "--warmup-epochs; 5 from a total batch of 512 on, 0 below it"},
    {"weight_decay", "", WithValue, Same, "weight-decay"},
    {"momentum", "", WithValue, Same, "momentum"},
    {"loss_scale", "", WithValue, Translated,
     "--loss-scaling, with --use_tf_amp and --use_static_loss_scaling"},
    {"label_smoothing", "", WithValue, Same, "label-smoothing"},
    {"mixup", "", WithValue, Same, "mixup-alpha"},
    {"use_static_loss_scaling", "", Flag, Translated,
     "--loss-scaling with the value of --loss_scale"},
    {"use_auto_loss_scaling", "", Flag, Translated,
     "--loss-scaling dynamic, the default of --use_tf_amp; if false, --loss_scale"},
    {"use_tf_amp", "", Flag, Translated, "--precision 16.32 --half fp16 --loss-scaling dynamic"},
    {"use_cosine_lr", "", Flag, Translated, "--lr-schedule cosine; without it piecewise"},
    {"seed", "", WithValue, Same, "seed"},
    {"use_xla", "", Flag, Idle, kCompiler},
    {"use_dali", "", Flag, Translated, "--image-preset dali2019"},
    {"data_idx_dir", "", WithValue, Idle, "records are indexed on first use"},
    {"gpu_memory_fraction", "", WithValue, Idle, kMemory},
    {"gpu_id", "", WithValue, Idle, "the launcher gives a device to each rank"},
    {"data_format", "", WithValue, Idle, "the layout is always NHWC"},
    {"export_dir", "", WithValue, Same, "export-dir"},
    {"to_predict", "", WithValue, Translated, "the image of --mode predict"},
    {"file", "f", WithValue, Translated, "the image of predict.py"},
    {"saved_model", "m", WithValue, Translated, "the run or checkpoint of predict.py"},
});

/// The option that sets the length; the guide has two names for it. Errors: Usage when they differ.
std::string_view length_name(DialectReader& read) {
  if (!read.given("train_iter")) return "num_iter";
  if (read.spelled("num_iter").empty()) return "train_iter";
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

/// The guide warms up for 5 epochs "for bigger batch sizes (512 and up)".
double warmup_epochs(DialectReader& read, std::int64_t global_batch) {
  constexpr std::int64_t kBigger = 512;
  return read.real("lr_warmup_epochs", global_batch >= kBigger ? 5.0 : 0.0);
}

/// Validation runs once, after the training. With a length in batches, the learning rate falls over
/// 90 epochs, but the warm-up counts epochs of equal parts of the run: its number of batches
/// divided by its epochs, the last of which may be a part of one.
void set_length(DialectReader& read, std::int64_t global_batch) {
  const std::string_view name = length_name(read);
  const double warmup = warmup_epochs(read, global_batch);
  for (const char* option : {"warmup-epochs", "warmup-iterations"})
    read.spell(option, "lr_warmup_epochs");
  for (const char* option : {"epochs", "iterations"}) read.spell(option, name);
  if (!counts_batches(read)) {
    const double epochs = read.real(name, 1.0);
    read.set("epochs", epochs, read.spelled(name));
    read.set("warmup-epochs", warmup, read.spelled("lr_warmup_epochs"));
    constexpr double kMost = 2147483647.0;
    read.set("epochs-between-evals",
             static_cast<std::int64_t>(std::clamp(std::ceil(epochs), 1.0, kMost)), "");
    return;
  }
  const std::int64_t iterations = read.integer(name, 1, 1);
  const std::int64_t whole = std::max<std::int64_t>(read.images / global_batch, 1);
  const std::int64_t epochs = (iterations - 1) / whole + 1;
  const double steps =
      std::floor(static_cast<double>(iterations) / static_cast<double>(epochs) * warmup);
  read.set("iterations", iterations, read.spelled(name));
  read.set("iterations-between-evals", iterations, "");
  read.set("warmup-iterations", whole_steps(std::max(steps, 0.0)),
           read.spelled("lr_warmup_epochs"));
  if (read.flag("use_cosine_lr")) read.set("lr-horizon", 90 * read.images / global_batch, "");
}

void set_rate(DialectReader& read, std::int64_t global_batch) {
  read.set_defaults(
      "--optimiser momentum --momentum 0.9 --weight-decay 1e-4 --weight-decay-excludes beta gamma "
      "--warmup linear");
  const double rate = read.real("lr_init", 0.1) * static_cast<double>(global_batch) / 256.0;
  read.set("abs-learning-rate", rate, read.spelled("lr_init"));
  read.spell("abs-learning-rate", "lr_init");
  const bool cosine = read.flag("use_cosine_lr");
  read.set("lr-schedule", cosine ? "cosine" : "piecewise", read.spelled("use_cosine_lr"));
  if (!cosine) read.set_defaults("--learning-rate-epochs 30,60,80,90");
}

/// Its two image readers crop and normalize differently.
void set_image_preset(DialectReader& read) {
  const bool dali = read.flag("use_dali");
  read.set("image-preset", dali ? "dali2019" : "tf", dali ? "--use_dali" : "");
  read.set("image-normalisation", dali ? "dali2019" : "nvidia2019", "");
}

/// Its mixed precision is float16.
void set_precision(DialectReader& read) {
  const bool half = read.flag("use_tf_amp");
  read.set("precision", half ? "16.32" : "32.32", read.spelled("use_tf_amp"));
  if (half) read.imply("half", "fp16", "use_tf_amp");
}

/// Mixed precision scales the loss dynamically unless an option sets a static scale. Without it
/// nothing is scaled.
void set_loss_scaling(DialectReader& read) {
  const bool half = read.flag("use_tf_amp");
  const bool told_static = read.flag("use_static_loss_scaling");
  const bool told_automatic = read.flag("use_auto_loss_scaling");
  if (told_static && told_automatic)
    fail(ErrorKind::Usage,
         "--use_static_loss_scaling and --use_auto_loss_scaling contradict each other: give one of "
         "them");
  const double scale = read.real("loss_scale", 256.0);
  if (!half) {
    read.set("loss-scaling", "1", "");
    for (const char* name : {"use_auto_loss_scaling", "use_static_loss_scaling"})
      read.pass_over(name, "it needs --use_tf_amp");
    return read.pass_over("loss_scale",
                          told_static ? "it needs --use_tf_amp"
                                      : "it needs --use_tf_amp and --use_static_loss_scaling");
  }
  if (told_static || (read.given("use_auto_loss_scaling") && !told_automatic)) {
    if (read.given("loss_scale"))
      read.set("loss-scaling", scale, read.spelled("loss_scale"));
    else
      read.imply("loss-scaling", fmt::format("{}", scale),
                 told_static ? "use_static_loss_scaling" : "use_auto_loss_scaling");
    return read.spell("loss-scaling", "loss_scale");
  }
  if (told_automatic)
    read.set("loss-scaling", "dynamic", read.spelled("use_auto_loss_scaling"));
  else
    read.imply("loss-scaling", "dynamic", "use_tf_amp");
  read.pass_over("loss_scale", "it needs --use_static_loss_scaling");
}

void set_numerics(DialectReader& read) {
  set_precision(read);
  set_loss_scaling(read);
  if (read.real("label_smoothing", 0.0) > 0.0) read.set("label-smoothing-form", "all-classes", "");
  if (read.real("mixup", 0.0) > 0.0) read.set("mixing-form", "reversed", "");
}

/// NVIDIA's trainer uses one directory for `model_dir`, `results_dir` and `log_dir`.
struct Directory {
  std::string path;  ///< empty: none
  std::string from;  ///< the name that gives it, as it was typed; empty: a script passes it
};
Directory take_place(DialectReader& read) {
  Directory place;
  for (const char* name : {"model_dir", "results_dir", "log_dir"}) {
    if (!read.given(name)) continue;
    const Directory given = {read.text(name, ""), read.spelled(name)};
    if (place.from.empty() && (place.path.empty() || !given.from.empty()))
      place = given;
    else if (given.path != place.path)
      read.pass_over(name, place.from + " sets the directory");
  }
  return place;
}

/// Sets this option to it; returns whether it was given.
bool set_place(DialectReader& read, std::string_view option) {
  read.spell(option, "results_dir");
  const auto [directory, from] = take_place(read);
  if (!directory.empty()) read.set(option, directory, from);
  return !directory.empty();
}

/// The warm-up is part of the length: 200 batches of a training and 20 of an inference, as the
/// guide says of its lines, some of which leave them out. Without data, NVIDIA's trainer takes a
/// number of epochs for one of batches.
void set_benchmark_length(DialectReader& read, bool infers) {
  const std::int64_t warmup = read.integer("warmup_steps", infers ? 20 : 200);
  read.set("warmup-steps", warmup, read.spelled("warmup_steps"));
  read.spell("warmup-steps", "warmup_steps");
  const std::string_view name = length_name(read);
  if (!counts_batches(read)) {
    read.spell("measured-epochs", name);
    if (read.given("data_dir"))
      return read.set("measured-epochs", read.real(name, 1.0), read.spelled(name));
    return read.pass_over(
        name,
        "random images have no epochs: --iter_unit batch counts batches, --data_dir has epochs");
  }
  read.spell("steps", name);
  const std::int64_t steps = read.integer(name, 1, 1) - warmup;
  if (steps < 1)
    fail(ErrorKind::Usage, "--{}: {} batches leave none to measure after the {} of --warmup_steps",
         name, read.integer(name, 1), warmup);
  read.set("steps", steps, read.spelled(name));
}

/// NVIDIA's trainer writes into one directory.
void set_benchmark(DialectReader& read, bool infers) {
  set_benchmark_length(read, infers);
  read.set(infers ? "inference" : "training", "true",
           read.spelled("mode").empty() ? "" : "--mode " + read.text("mode", ""));
  read.set_integer("display-every", "display_every", 10, 1);
  const auto [directory, from] = take_place(read);
  if (!directory.empty())
    read.set("results-file",
             directory + (infers ? "/eval_benchmark.json" : "/training_benchmark.json"), from);
  if (const std::string name = read.text("log_filename", ""); !name.empty())
    read.set("log-filename", directory.empty() ? name : directory + '/' + name,
             read.spelled("log_filename"));
}

void set_outputs(DialectReader& read, const std::string& mode) {
  if (mode == "train") read.set("no-validation", "true", "--mode train");
  (void)set_place(read, "log-dir");
  read.set_integer("log-freq", "display_every", 10, 1);
  read.pass_over("warmup_steps", "it needs --mode training_benchmark or inference_benchmark");
}

/// The run and the image. `predict.py` has options of its own for them.
void set_prediction(DialectReader& read, bool by_script) {
  const char* const image = by_script ? "file" : "to_predict";
  const char* const model = by_script ? "saved_model" : "model_dir";
  if (by_script && read.given(model))
    read.set("restore-path", read.text(model, ""), read.spelled(model));
  for (const char* const name : {image, model})
    if (!read.given(name))
      fail(ErrorKind::Usage, "{} is missing: give {}",
           by_script ? name == image ? "-f" : "-m" : fmt::format("--{}", name),
           name == image ? "the image" : "the run or the checkpoint");
  if (!by_script) (void)set_place(read, "restore-path");
  read.translation().arguments.push_back(read.text(image, ""));
  if (read.given("use_tf_amp")) set_precision(read);
}

/// The guide's "default configuration" is what its scripts pass, not what the program has without
/// options.
void note_bare(DialectReader& read) {
  for (const char* name :
       {"lr_init", "use_cosine_lr", "momentum", "weight_decay", "label_smoothing"})
    if (read.given(name)) return;
  read.note(
      "main.py without options has momentum 0.9, a rate of 0.1 for 256 images that drops after 30, "
      "60, 80 and 90 epochs, weight decay 1e-4 and no label smoothing; the guide's default "
      "configuration is that of RN50_FP32_1GPU.sh and its like (docs/guides.md)");
}

/// An evaluation of so many batches; more epochs would read the same images again.
void set_evaluated(DialectReader& read) {
  const std::string_view name = length_name(read);
  if (read.given(name) && counts_batches(read)) {
    read.spell("max-eval-steps", name);
    read.set("max-eval-steps", read.integer(name, 1, 1), read.spelled(name));
  }
}

Command command_of(const std::string& mode) {
  if (mode == "predict") return Command::Predict;
  if (mode == "evaluate") return Command::Validate;
  if (mode == "training_benchmark" || mode == "inference_benchmark") return Command::Bench;
  if (mode != "train" && mode != "train_and_evaluate")
    fail(ErrorKind::Usage,
         "--mode: '{}' is not one of train, train_and_evaluate, evaluate, predict, "
         "training_benchmark, inference_benchmark",
         mode);
  return Command::Train;
}

void translate(DialectReader& read) {
  const bool predicts = read.script == "predict.py";
  const std::string mode = read.text("mode", predicts ? "predict" : "train_and_evaluate");
  const CommandLine& translation = read.translation();
  read.mean(command_of(mode), read.spelled("mode").empty() ? read.script : "--mode " + mode);
  if (mode == "evaluate") set_evaluated(read);
  if (mode == "evaluate" && (set_place(read, "restore-path") || read.restores)) {
    if (read.given("use_tf_amp")) set_precision(read);
    return;
  }
  if (mode == "predict") return set_prediction(read, predicts);
  read.set_defaults(kImageNetDefaults);
  read.set_defaults("--model resnet --model-size 50 --initialisers nvidia --BN-decay 0.9");
  set_image_preset(read);
  if (translation.command == Command::Validate) return set_precision(read);
  if (!read.given("batch_size"))
    fail(ErrorKind::Usage, "--batch_size is missing: {}",
         translation.command == Command::Restore
             ? "a run is continued by the whole line that began it, or without --dialect by "
               "millrace restore --restore-path RUN_DIR"
             : "give the number of images per process");
  set_numerics(read);
  const std::int64_t global_batch = read.integer("batch_size", 1, 1) * read.workers;
  read.set("replicas", read.workers, "");
  set_rate(read, global_batch);
  read.set("seed", std::int64_t{1}, "");
  if (translation.command == Command::Bench)
    return set_benchmark(read, mode == "inference_benchmark");
  set_length(read, global_batch);
  set_outputs(read, mode);
  if (translation.command == Command::Train) note_bare(read);
}

}  // namespace

DialectSpec nvidia_dialect() {
  return {.name = "nvidia",
          .title =
              "NVIDIA's ResNet-50 v1.5: main.py, predict.py, and RN50_FP16_8GPU.sh MODEL DATA "
              "RESULTS with its like",
          .words = kWords,
          .translate = translate};
}

}  // namespace millrace::cli
