// SPDX-License-Identifier: Apache-2.0
//
// Habana's Keras ResNet: demo_resnet_keras.py, which starts workers and knows LARS's numbers, and
// resnet_ctl_imagenet_main.py, which is told them.
#include <algorithm>
#include <array>

#include "cli/dialect.hpp"
#include "core/error.hpp"

namespace millrace::cli {
namespace {

constexpr std::string_view kLoader = "images are prepared ahead in threads of their own always";
constexpr std::string_view kLoop = "every weight update is a step of its own";
constexpr std::string_view kStart = "replicas are ranks of MPI";

constexpr std::array kWords = std::to_array<DialectWord>({
    {.name = "dtype", .shorthand = "dt"},
    {.name = "data_loader_image_type", .shorthand = "dlit"},
    {.name = "batch_size", .shorthand = "bs"},
    {.name = "train_epochs", .shorthand = "te"},
    {.name = "data_dir", .shorthand = "dd", .option = "data-dir"},
    {.name = "model_dir", .shorthand = "md", .option = "log-dir"},
    {.name = "clean", .kind = WordKind::Flag, .idle = "every run gets a directory of its own"},
    {.name = "train_steps"},
    {.name = "log_steps", .option = "log-freq"},
    {.name = "steps_per_loop", .idle = kLoop},
    {.name = "enable_checkpoint_and_export", .kind = WordKind::Flag},
    {.name = "enable_tensorboard",
     .kind = WordKind::Flag,
     .idle = "metrics.jsonl has every number"},
    {.name = "epochs_between_evals", .shorthand = "ebe", .option = "epochs-between-evals"},
    {.name = "experimental_preloading", .kind = WordKind::Flag, .idle = kLoader},
    {.name = "optimizer"},
    {.name = "num_workers_per_hls"},
    {.name = "use_horovod", .kind = WordKind::Flag, .idle = kStart},
    {.name = "distribution_strategy"},
    {.name = "kubernetes_run", .kind = WordKind::Flag, .idle = kStart},
    {.name = "use_keras_mixed_precision",
     .kind = WordKind::Flag,
     .idle = "--dtype says how numbers are kept"},
    {.name = "keras_applications_model"},
    {.name = "horovod_hierarchical_allreduce", .kind = WordKind::Flag, .idle = kStart},
    {.name = "lr_schedule"},
    {.name = "base_learning_rate"},
    {.name = "warmup_epochs"},
    {.name = "momentum", .option = "momentum"},
    {.name = "lars_epsilon"},
    {.name = "weight_decay", .option = "weight-decay"},
    {.name = "label_smoothing"},
    {.name = "single_l2_loss_op", .kind = WordKind::Flag},
    {.name = "skip_eval", .kind = WordKind::Flag, .option = "no-validation"},
    {.name = "use_distributed_eval",
     .kind = WordKind::Flag,
     .idle = "every image is validated once"},
    {.name = "global_seed", .option = "seed"},
    {.name = "use_synthetic_data", .kind = WordKind::Flag, .option = "synthetic-data"},
    {.name = "profile_steps"},
    {.name = "cache_decoded_image",
     .kind = WordKind::Flag,
     .idle = "images are decoded when they are read, or once by millrace data convert --packed"},
    {.name = "training_dataset_cache", .kind = WordKind::Flag},
    {.name = "loss_scale", .option = "loss-scaling"},
    {.name = "num_gpus", .idle = kStart},
    {.name = "tpu", .idle = kStart},
    {.name = "enable_xla", .kind = WordKind::Flag, .idle = "kernels are fused always"},
});

bool is_lars(const DialectReader& read) { return read.text("optimizer", "SGD") == "LARS"; }

/// The launcher fills in LARS's numbers; the script itself is told them.
bool has_lars_preset(const DialectReader& read) {
  return is_lars(read) && read.script != "resnet_ctl_imagenet_main.py";
}

void set_model(DialectReader& read) {
  std::string size = "50";
  if (read.given("keras_applications_model")) {
    const std::string name = read.text("keras_applications_model", "");
    const bool second = name.ends_with("V2");
    constexpr std::string_view kStem = "ResNet";
    if (!name.starts_with(kStem))
      fail(ErrorKind::Usage, "--keras_applications_model: '{}' is no ResNet50, 101, 152 or V2",
           name);
    size = name.substr(kStem.size(), name.size() - kStem.size() - (second ? 2 : 0));
    read.set("resnet-version", second ? "2" : "1.5", "--keras_applications_model");
    read.set("initialisers", "keras-applications", "--keras_applications_model");
  }
  set_imagenet_habits(read, {.size = size, .initialisers = "habana-keras"});
  read.set("padding", "keras", "");
}

/// Images of all workers in a step. With a strategy of TensorFlow the batch size is that already.
std::int64_t set_batch(DialectReader& read) {
  const std::int64_t given = std::max<std::int64_t>(read.integer("batch_size", 256), 1);
  const bool global = read.text("distribution_strategy", "off") != "off";
  if (global && given % read.workers != 0)
    fail(ErrorKind::Usage, "--batch_size: {} images cannot be dealt out to {} workers", given,
         read.workers);
  const std::int64_t each = global ? given / read.workers : given;
  read.set("batch-size", each, read.given("batch_size") ? "--batch_size" : "");
  read.set("replicas", read.workers, "");
  return each * read.workers;
}

/// --train_steps cuts every epoch short; the rates stay those of whole ones.
void set_length(DialectReader& read, std::int64_t global_batch) {
  const double epochs = read.real("train_epochs", 1.0);
  read.set("epochs", epochs, read.given("train_epochs") ? "--train_epochs" : "");
  const std::int64_t steps = read.images / global_batch;
  const std::int64_t wanted = read.integer("train_steps", 0);
  if (wanted > 0 && wanted < steps)
    read.set("max-iterations", static_cast<std::int64_t>(static_cast<double>(wanted) * epochs),
             "--train_steps");
}

struct Peak {
  double rate;
  double warmup_epochs;
};

/// Of the polynomial schedule: absolute, whatever the batch.
Peak polynomial_peak(const DialectReader& read, std::int64_t global_batch) {
  Peak peak = global_batch < 16384   ? Peak{10.0, 5.0}
              : global_batch < 32768 ? Peak{25.0, 5.0}
                                     : Peak{31.2, 25.0};
  if (has_lars_preset(read)) peak = {read.workers == 1 ? 2.5 : 9.5, 3.0};
  return {read.real("base_learning_rate", peak.rate),
          read.real("warmup_epochs", peak.warmup_epochs)};
}

void set_rate(DialectReader& read, std::int64_t global_batch) {
  const std::string schedule =
      read.text("lr_schedule", has_lars_preset(read) ? "polynomial" : "piecewise");
  const double scale = static_cast<double>(global_batch) / 256.0;
  if (schedule == "polynomial") {
    const Peak peak = polynomial_peak(read, global_batch);
    read.set("lr-schedule", "lars-polynomial", "");
    read.set("abs-learning-rate", peak.rate, "");
    read.set("warmup-epochs", peak.warmup_epochs, "");
  } else if (schedule == "piecewise") {
    read.set("lr-schedule", "piecewise", "");
    read.set("abs-learning-rate", 0.1 * scale, "");
    if (read.given("base_learning_rate"))
      read.note(
          "--base_learning_rate has no effect here: it needs --lr_schedule polynomial or constant");
    read.set("learning-rate-epochs", "30,60,80", "");
    read.set("warmup-epochs", read.real("warmup_epochs", 5.0), "");
    read.set("warmup", "linear", "");
  } else if (schedule == "constant") {
    read.set("lr-schedule", "stepped", "");
    read.set("learning-rate-decay", 1.0, "");
    read.set("abs-learning-rate", read.real("base_learning_rate", 0.1) * scale, "");
    read.set("warmup-epochs", 0.0, "");
  } else {
    fail(ErrorKind::Usage, "--lr_schedule: '{}' is none of piecewise, polynomial, constant",
         schedule);
  }
}

void set_optimiser(DialectReader& read) {
  const std::string optimizer = read.text("optimizer", "SGD");
  if (optimizer != "SGD" && optimizer != "LARS")
    fail(ErrorKind::Usage, "--optimizer: '{}' is not SGD or LARS", optimizer);
  read.set("momentum", 0.9, "");
  read.set("weight-decay", 1e-4, "");
  read.set("weight-decay-excludes", "beta gamma", "");
  if (is_lars(read)) {
    const double epsilon = read.real("lars_epsilon", 0.0);
    read.set("optimiser", "LARS", "--optimizer");
    read.set("lars-epsilon", epsilon == 0.0 ? 1e-7 : epsilon, "");
    return;
  }
  read.set("optimiser", "momentum-rate-inside", "");
  const bool single = read.flag("single_l2_loss_op");
  read.set("weight-decay-form", single ? "half-square" : "square", "");
}

void set_numerics(DialectReader& read) {
  const std::string type = read.text("dtype", "fp32");
  if (type != "fp32" && type != "bf16")
    fail(ErrorKind::Usage, "--dtype: '{}' is not fp32 or bf16", type);
  read.set("precision", type == "fp32" ? "32.32" : "16.32", read.given("dtype") ? "--dtype" : "");
  set_image_type(read);
  read.set("loss-scaling", "1", "");
  const double smoothing = read.real("label_smoothing", has_lars_preset(read) ? 0.1 : 0.0);
  read.set("label-smoothing", smoothing, "");
  if (smoothing > 0.0) read.set("label-smoothing-form", "all-classes", "");
}

void set_outputs(DialectReader& read) {
  read.set("log-freq", std::int64_t{100}, "");
  if (read.flag("enable_checkpoint_and_export"))
    read.set("max-ckpts-to-keep", std::int64_t{10}, "--enable_checkpoint_and_export");
  else
    read.set("disable-checkpoints", "true", "");
  if (!read.given("profile_steps")) return;
  read.set("gc-profile", "IPU_PROFILE", "--profile_steps");
  read.set("profile-steps", read.text("profile_steps", ""), "--profile_steps");
}

void translate(DialectReader& read) {
  set_model(read);
  if (read.flag("training_dataset_cache"))
    read.set("dataset-cache", "all", "--training_dataset_cache");
  const std::int64_t global_batch = set_batch(read);
  set_length(read, global_batch);
  set_optimiser(read);
  set_rate(read, global_batch);
  set_numerics(read);
  set_outputs(read);
}

}  // namespace

DialectSpec habana_keras_dialect() {
  return {.name = "habana", .words = kWords, .translate = translate};
}

}  // namespace millrace::cli
