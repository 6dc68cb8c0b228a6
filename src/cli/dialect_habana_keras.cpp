// SPDX-License-Identifier: Apache-2.0
//
// Habana's Keras ResNet: demo_resnet_keras.py, which starts workers and sets the numbers of LARS,
// and resnet_ctl_imagenet_main.py, which takes them as options.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "cli/dialect_habana.hpp"
#include "core/error.hpp"

namespace millrace::cli {
namespace {

constexpr std::string_view kScript = "resnet_ctl_imagenet_main.py";
constexpr std::string_view kLoop = "every weight update is its own step";
constexpr std::string_view kStart = "replicas are MPI ranks";
constexpr std::string_view kCompiler = "kernels are always fused";

constexpr std::array kWords = std::to_array<DialectWord>({
    {.name = "train_steps",
     .becomes = "--max-iterations; limits the weight updates of every epoch"},
    {.name = "log_steps", .option = "log-freq"},
    {.name = "steps_per_loop", .idle = kLoop},
    {.name = "enable_checkpoint_and_export",
     .kind = WordKind::Flag,
     .becomes = "--max-ckpts-to-keep 10; without it --disable-checkpoints"},
    {.name = "enable_tensorboard",
     .kind = WordKind::Flag,
     .idle = "metrics.jsonl has every number"},
    {.name = "optimizer", .becomes = "--optimiser momentum-rate-inside, or LARS"},
    {.name = "num_workers_per_hls", .becomes = "--replicas, times the hosts in MULTI_HLS_IPS"},
    {.name = "distribution_strategy",
     .becomes = "unless off, --batch_size is the total of all workers"},
    {.name = "kubernetes_run", .kind = WordKind::Flag, .idle = kStart},
    {.name = "use_keras_mixed_precision",
     .kind = WordKind::Flag,
     .idle = "--dtype sets the data types"},
    {.name = "keras_applications_model", .becomes = "--model-size and --resnet-version"},
    {.name = "horovod_hierarchical_allreduce", .kind = WordKind::Flag, .idle = kStart},
    {.name = "lr_schedule",
     .becomes = "--lr-schedule piecewise or lars-polynomial, or a constant rate"},
    {.name = "base_learning_rate", .becomes = "--abs-learning-rate"},
    {.name = "end_learning_rate", .becomes = "--poly-lr-end-lr"},
    {.name = "lars_epsilon", .becomes = "--lars-epsilon; 0 means 1e-7"},
    {.name = "single_l2_loss_op",
     .kind = WordKind::Flag,
     .becomes = "--weight-decay-form half-square; without it square"},
    {.name = "skip_eval", .kind = WordKind::Flag, .option = "no-validation"},
    {.name = "use_distributed_eval",
     .kind = WordKind::Flag,
     .idle = "every image is validated once"},
    {.name = "global_seed", .option = "seed"},
    {.name = "cache_decoded_image",
     .kind = WordKind::Flag,
     .idle = "images are decoded when read, or once by millrace data convert --packed"},
    {.name = "training_dataset_cache", .kind = WordKind::Flag, .becomes = "--dataset-cache all"},
    {.name = "num_gpus", .idle = kStart},
    {.name = "tpu", .idle = kStart},
    {.name = "xla", .kind = WordKind::Flag, .idle = kCompiler},
    {.name = "enable_xla", .kind = WordKind::Flag, .idle = kCompiler},
});

bool is_lars(DialectReader& read) { return read.text("optimizer", "SGD") == "LARS"; }

/// The launcher sets the numbers of LARS; the script itself takes them as options.
bool has_lars_preset(DialectReader& read) { return is_lars(read) && read.script != kScript; }

/// A model of tf.keras.applications: ResNet50, ResNet101, ResNet152, and each with V2. Returns the
/// size.
std::string set_keras_model(DialectReader& read) {
  const std::string from = read.spelled("keras_applications_model");
  const std::string name = read.text("keras_applications_model", "");
  for (const std::string_view size : {"50", "101", "152"})
    for (const std::string_view version : {"", "V2"}) {
      if (name != fmt::format("ResNet{}{}", size, version)) continue;
      if (version.empty())
        read.note(fmt::format(
            "{} {}: the Keras model has biases in its convolutions, which the following "
            "normalization cancels; this model has none",
            from, name));
      read.set("resnet-version", version.empty() ? "1.5" : "2", from);
      read.set("initialisers", "keras-applications", from);
      return std::string(size);
    }
  fail(ErrorKind::Usage, "{}: '{}' is not one of ResNet50, ResNet101, ResNet152 or these with V2",
       from, name);
}

void set_model(DialectReader& read) {
  const std::string size =
      read.given("keras_applications_model") ? set_keras_model(read) : std::string("50");
  set_imagenet_defaults(read, {.size = size, .initialisers = "habana-keras"});
  read.set("padding", "keras", "");
}

/// Whether the batch size is the total of all workers, as with a strategy of TensorFlow.
bool has_global_batch(DialectReader& read) {
  constexpr std::array<std::string_view, 6> kStrategies = {
      "hpu", "default", "one_device", "mirrored", "multi_worker_mirrored", "off"};
  const std::string strategy = read.text("distribution_strategy", "off");
  if (std::ranges::find(kStrategies, strategy) == kStrategies.end())
    fail(ErrorKind::Usage,
         "{}: '{}' is not one of hpu, default, one_device, mirrored, multi_worker_mirrored, off",
         read.spelled("distribution_strategy"), strategy);
  return strategy != "off";
}

/// Images of all workers in a step. Sets batch size and replicas.
std::int64_t set_batch(DialectReader& read) {
  const std::int64_t given = read.integer("batch_size", 256, 1);
  (void)read.integer("num_workers_per_hls", 1, 1);  // already counted
  const bool global = has_global_batch(read);
  if (global && given % read.workers != 0)
    fail(ErrorKind::Usage, "--batch_size: {} images cannot be divided evenly among {} workers",
         given, read.workers);
  const std::int64_t each = global ? given / read.workers : given;
  read.set("batch-size", each, read.spelled("batch_size"));
  read.set("replicas", read.workers, "");
  return each * read.workers;
}

/// --train_steps shortens every epoch, and validation follows each shortened epoch. The learning
/// rates remain those of whole epochs.
void set_length(DialectReader& read, std::int64_t global_batch) {
  const double epochs = read.real("train_epochs", 1.0);
  read.set("epochs", epochs, read.spelled("train_epochs"));
  const std::int64_t evals = read.integer("epochs_between_evals", 1, 1);
  const std::int64_t steps = read.images / global_batch;
  const std::int64_t wanted = read.integer("train_steps", 0);
  if (wanted == 0 || wanted >= steps) {
    read.set("epochs-between-evals", evals, read.spelled("epochs_between_evals"));
    return;
  }
  const std::int64_t length = whole_steps(static_cast<double>(wanted) * epochs);
  const std::int64_t most =
      read.integer("max_train_steps", std::numeric_limits<std::int64_t>::max());
  read.set("max-iterations", std::min(length, most), read.spelled("train_steps"));
  read.set("iterations-between-evals",
           whole_steps(static_cast<double>(wanted) * static_cast<double>(evals)), "");
}

struct Peak {
  double rate;
  double warmup_epochs;
};

/// Peak of the polynomial schedule: an absolute rate, not scaled with the batch.
Peak polynomial_peak(DialectReader& read, std::int64_t global_batch) {
  Peak peak = global_batch < 16384   ? Peak{10.0, 5.0}
              : global_batch < 32768 ? Peak{25.0, 5.0}
                                     : Peak{31.2, 25.0};
  if (has_lars_preset(read)) peak = {read.workers == 1 ? 2.5 : 9.5, 3.0};
  return {read.real("base_learning_rate", peak.rate), habana_warmup(read, peak.warmup_epochs)};
}

void set_polynomial(DialectReader& read, std::int64_t global_batch) {
  const Peak peak = polynomial_peak(read, global_batch);
  read.set("lr-schedule", "lars-polynomial", "");
  read.set("abs-learning-rate", peak.rate, read.spelled("base_learning_rate"));
  read.set("warmup-epochs", peak.warmup_epochs, "");
  if (read.given("end_learning_rate"))
    read.set("poly-lr-end-lr", read.real("end_learning_rate", 1e-4),
             read.spelled("end_learning_rate"));
}

void set_rate(DialectReader& read, std::int64_t global_batch) {
  const std::string schedule =
      read.text("lr_schedule", has_lars_preset(read) ? "polynomial" : "piecewise");
  const double scale = static_cast<double>(global_batch) / 256.0;
  if (schedule == "polynomial") return set_polynomial(read, global_batch);
  read.pass_over("end_learning_rate", "it needs --lr_schedule polynomial");
  if (schedule == "piecewise") {
    read.set("lr-schedule", "piecewise", "");
    read.set("abs-learning-rate", 0.1 * scale, "");
    read.pass_over("base_learning_rate", "it needs --lr_schedule polynomial or constant");
    read.set("learning-rate-epochs", "30,60,80", "");
    read.set("warmup-epochs", habana_warmup(read, 5.0), "");
    read.set("warmup", "linear", "");
  } else if (schedule == "constant") {
    read.set("lr-schedule", "stepped", "");
    read.set("learning-rate-decay", 1.0, "");
    read.set("abs-learning-rate", read.real("base_learning_rate", 0.1) * scale,
             read.spelled("base_learning_rate"));
    read.set("warmup-epochs", 0.0, "");
    read.pass_over("warmup_epochs", "--lr_schedule constant has no warm-up");
    (void)read.flag("disable_warmup");
  } else {
    fail(ErrorKind::Usage, "--lr_schedule: '{}' is not one of piecewise, polynomial, constant",
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
  const bool single = read.flag("single_l2_loss_op");
  if (is_lars(read)) {  // always decays by half the square
    const double epsilon = read.real("lars_epsilon", 0.0);
    read.set("optimiser", "LARS", read.spelled("optimizer"));
    read.set("lars-epsilon", epsilon == 0.0 ? 1e-7 : epsilon, "");
    return;
  }
  read.pass_over("lars_epsilon", "it needs --optimizer LARS");
  read.set("optimiser", "momentum-rate-inside", "");
  read.set("weight-decay-form", single ? "half-square" : "square", "");
}

void set_numerics(DialectReader& read) {
  set_habana_types(read, false);
  read.set("loss-scaling", "1", "");
  const double smoothing = read.real("label_smoothing", has_lars_preset(read) ? 0.1 : 0.0);
  read.set("label-smoothing", smoothing, "");
  if (smoothing > 0.0) read.set("label-smoothing-form", "all-classes", "");
}

void set_checkpoints(DialectReader& read) {
  if (!read.flag("enable_checkpoint_and_export")) {
    read.set("disable-checkpoints", "true", "");
    return;
  }
  if (read.flag("disable_checkpoints"))
    fail(ErrorKind::Usage,
         "--disable_checkpoints and --enable_checkpoint_and_export contradict each other: give one "
         "of them");
  read.set("max-ckpts-to-keep", std::int64_t{10}, read.spelled("enable_checkpoint_and_export"));
}

void translate(DialectReader& read) {
  set_habana_hooks(read, true);
  if (only_evaluates(read, false)) return;  // the run has the rest recorded
  set_habana_run(read);
  set_habana_threads(read);
  set_model(read);
  if (read.flag("training_dataset_cache"))
    read.set("dataset-cache", "all", "--training_dataset_cache");
  const std::int64_t global_batch = set_batch(read);
  set_length(read, global_batch);
  set_optimiser(read);
  set_rate(read, global_batch);
  set_numerics(read);
  set_checkpoints(read);
}

}  // namespace

DialectSpec habana_keras_dialect() {
  static const std::vector<DialectWord> words = with_habana_words(kWords);
  return {.name = "habana",
          .title = "Habana's Keras ResNet: demo_resnet_keras.py, resnet_ctl_imagenet_main.py",
          .words = words,
          .translate = translate};
}

}  // namespace millrace::cli
