// SPDX-License-Identifier: Apache-2.0
//
// Habana's Keras ResNet: demo_resnet_keras.py, which starts workers and sets the numbers of LARS,
// and resnet_ctl_imagenet_main.py, which takes them as options.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "core/error.hpp"
#include "tools/dialects/habana.hpp"

namespace millrace::cli {
namespace {

using enum WordUse;
using enum WordKind;

constexpr std::string_view kScript = "resnet_ctl_imagenet_main.py";
constexpr std::string_view kLoop = "every weight update is its own step";
constexpr std::string_view kStart = "replicas are MPI ranks";
constexpr std::string_view kCompiler = "kernels are always fused";

constexpr std::array kWords = std::to_array<DialectWord>({
    {"train_steps", "", WithValue, Translated,
     "--max-iterations; limits the weight updates of every epoch"},
    {"log_steps", "", WithValue, Same, "log-freq"},
    {"steps_per_loop", "", WithValue, Idle, kLoop},
    {"enable_checkpoint_and_export", "", Flag, Translated,
     "--max-ckpts-to-keep 10 --export-dir RUN_DIR/export; without it --disable-checkpoints"},
    {"enable_tensorboard", "", Flag, Same, "enable-tensorboard"},
    {"optimizer", "", WithValue, Translated, "--optimiser momentum-rate-inside, or LARS"},
    {"num_workers_per_hls", "", WithValue, Translated,
     "--replicas, times the hosts in MULTI_HLS_IPS"},
    {"distribution_strategy", "", WithValue, Translated,
     "unless off, --batch_size is the total of all workers"},
    {"kubernetes_run", "", Flag, Idle, kStart},
    {"use_keras_mixed_precision", "", Flag, Idle, "--dtype sets the data types"},
    {"keras_applications_model", "", WithValue, Translated, "--model-size and --resnet-version"},
    {"horovod_hierarchical_allreduce", "", Flag, Idle, kStart},
    {"lr_schedule", "", WithValue, Translated,
     "--lr-schedule piecewise or lars-polynomial, or a constant rate"},
    {"base_learning_rate", "", WithValue, Translated, "--abs-learning-rate"},
    {"end_learning_rate", "", WithValue, Translated, "--poly-lr-end-lr"},
    {"lars_epsilon", "", WithValue, Translated, "--lars-epsilon; 0 means 1e-7"},
    {"single_l2_loss_op", "", Flag, Translated,
     "--weight-decay-form half-square; without it square"},
    {"skip_eval", "", Flag, Same, "no-validation"},
    {"use_distributed_eval", "", Flag, Idle, "every image is validated once"},
    {"global_seed", "", WithValue, Same, "seed"},
    {"cache_decoded_image", "", Flag, Idle,
     "images are decoded when read, or once by millrace data convert --packed"},
    {"training_dataset_cache", "", Flag, Translated, "--dataset-cache all"},
    {"num_gpus", "", WithValue, Idle, kStart},
    {"tpu", "", WithValue, Idle, kStart},
    {"xla", "", Flag, Idle, kCompiler},
    {"enable_xla", "", Flag, Idle, kCompiler},
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
  read.set("model-size", size, read.spelled("keras_applications_model"));
  read.set_defaults(kImageNetDefaults);
  read.set_defaults("--model resnet --initialisers habana-keras --BN-decay 0.9 --padding keras");
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
  if (strategy.ends_with("mirrored") && read.workers == 1)
    read.note(fmt::format("{} {} runs on one device: --num_workers_per_hls N starts N workers",
                          read.spelled("distribution_strategy"), strategy));
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
  read.spell("batch-size", "batch_size");
  read.set("replicas", read.workers, "");
  return each * read.workers;
}

/// --train_steps shortens every epoch, and validation follows each shortened epoch. The learning
/// rates remain those of whole epochs.
void set_length(DialectReader& read, std::int64_t global_batch) {
  const double epochs = read.real("train_epochs", 1.0);
  read.set("epochs", epochs, read.spelled("train_epochs"));
  read.spell("epochs", "train_epochs");
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
  read.spell("max-iterations", "train_steps");
  read.set("checkpoint-every", wanted, "");  // a checkpoint for each short epoch
  read.set("iterations-between-evals",
           whole_steps(static_cast<double>(wanted) * static_cast<double>(evals)), "");
}

void set_schedule(DialectReader& read, std::string_view schedule) {
  read.set("lr-schedule", schedule, read.spelled("lr_schedule"));
}

void set_warmup(DialectReader& read, double otherwise) {
  const std::string warms = read.spelled("warmup_epochs");
  read.set("warmup-epochs", habana_warmup(read, otherwise),
           warms.empty() ? read.spelled("disable_warmup") : warms);
  read.spell("warmup-epochs", "warmup_epochs");
}

/// The peak of the polynomial schedule is an absolute rate, not scaled with the batch.
void set_polynomial(DialectReader& read, std::int64_t global_batch) {
  double peak = global_batch < 16384 ? 10.0 : global_batch < 32768 ? 25.0 : 31.2;
  double warmup = global_batch < 32768 ? 5.0 : 25.0;
  if (has_lars_preset(read)) {
    peak = read.workers == 1 ? 2.5 : 9.5;
    warmup = 3.0;
  }
  set_schedule(read, "lars-polynomial");
  read.set_real("abs-learning-rate", "base_learning_rate", peak);
  set_warmup(read, warmup);
  if (read.given("end_learning_rate")) read.set_real("poly-lr-end-lr", "end_learning_rate", 1e-4);
}

void set_rate(DialectReader& read, std::int64_t global_batch) {
  const std::string schedule =
      read.text("lr_schedule", has_lars_preset(read) ? "polynomial" : "piecewise");
  const double scale = static_cast<double>(global_batch) / 256.0;
  if (schedule == "polynomial") return set_polynomial(read, global_batch);
  read.pass_over("end_learning_rate", "it needs --lr_schedule polynomial");
  if (schedule == "piecewise") {
    set_schedule(read, "piecewise");
    read.set_defaults("--learning-rate-epochs 30,60,80 --warmup linear");
    read.set("abs-learning-rate", 0.1 * scale, "");
    read.pass_over("base_learning_rate", "it needs --lr_schedule polynomial or constant");
    set_warmup(read, 5.0);
  } else if (schedule == "constant") {
    set_schedule(read, "stepped");
    read.set_defaults("--learning-rate-decay 1 --warmup-epochs 0");
    read.set("abs-learning-rate", read.real("base_learning_rate", 0.1) * scale,
             read.spelled("base_learning_rate"));
    read.spell("abs-learning-rate", "base_learning_rate");
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
  read.set_defaults("--momentum 0.9 --weight-decay 1e-4");
  const bool single = read.flag("single_l2_loss_op");
  if (is_lars(read)) {  // always decays by half the square
    const double epsilon = read.real("lars_epsilon", 0.0);
    read.set("optimiser", "LARS", read.spelled("optimizer"));
    read.set("lars-epsilon", epsilon == 0.0 ? 1e-7 : epsilon, read.spelled("lars_epsilon"));
    return;
  }
  read.pass_over("lars_epsilon", "it needs --optimizer LARS");
  read.set("optimiser", "momentum-rate-inside", read.spelled("optimizer"));
  read.imply("weight-decay-form", single ? "half-square" : "square", "single_l2_loss_op");
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
  if (!read.given("export_dir"))
    read.set("export-dir", "RUN_DIR/export", read.spelled("enable_checkpoint_and_export"));
}

void translate(DialectReader& read) {
  set_habana_hooks(read, true);
  if (only_evaluates(read, false)) return;  // the run has the rest recorded
  set_habana_run(read, "/data/tensorflow_datasets/imagenet/tf_records");
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
  if (!read.given("model_dir") && read.translation().command == Command::Train)
    read.note(
        "no --model_dir: the run lies in a directory of its own below logs, not in the script's "
        "/tmp/resnet");
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
