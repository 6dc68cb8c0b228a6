// SPDX-License-Identifier: Apache-2.0
//
// Habana's ResNeXt, imagenet_main.py.
#include <algorithm>
#include <array>

#include "cli/dialect.hpp"
#include "core/error.hpp"

namespace millrace::cli {
namespace {

constexpr std::string_view kLoader = "images are prepared ahead in threads of their own always";
constexpr std::string_view kGiven = "the launcher says which processes there are";
constexpr std::string_view kKeyed = "random numbers are keyed by --seed, epoch and image";

constexpr std::array kWords = std::to_array<DialectWord>({
    {.name = "data_dir", .shorthand = "dd", .option = "data-dir"},
    {.name = "jpeg_data_dir", .shorthand = "jpdd", .option = "data-dir"},
    {.name = "model_dir", .shorthand = "md"},
    {.name = "clean", .kind = WordKind::Flag, .idle = "every run gets a directory of its own"},
    {.name = "train_epochs", .shorthand = "te"},
    {.name = "epochs_between_evals", .shorthand = "ebe", .option = "epochs-between-evals"},
    {.name = "stop_threshold", .shorthand = "st", .refused = "no run ends at an accuracy"},
    {.name = "batch_size", .shorthand = "bs", .option = "batch-size"},
    {.name = "hooks", .shorthand = "hk"},
    {.name = "export_dir", .shorthand = "ed", .refused = "TensorFlow's SavedModel is not written"},
    {.name = "display_steps", .shorthand = "dis", .option = "log-freq"},
    {.name = "disable_checkpoints", .kind = WordKind::Flag, .option = "disable-checkpoints"},
    {.name = "save_checkpoint_steps",
     .shorthand = "cs",
     .idle = "--ckpts-per-epoch says when to save"},
    {.name = "no_hpu", .kind = WordKind::Flag, .idle = "there are no HPUs"},
    {.name = "dtype", .shorthand = "dt"},
    {.name = "data_loader_image_type", .shorthand = "dlit"},
    {.name = "loss_scale", .shorthand = "ls"},
    {.name = "inter_op_parallelism_threads", .idle = "a device runs one kernel at a time"},
    {.name = "intra_op_parallelism_threads", .option = "threads-per-device"},
    {.name = "use_synthetic_data",
     .shorthand = "synth",
     .kind = WordKind::Flag,
     .option = "synthetic-data"},
    {.name = "max_train_steps", .shorthand = "mts", .option = "max-iterations"},
    {.name = "max_eval_steps", .shorthand = "mes", .idle = "every image is validated"},
    {.name = "datasets_num_private_threads", .option = "pipeline-num-parallel"},
    {.name = "experimental_preloading", .kind = WordKind::Flag, .idle = kLoader},
    {.name = "worker_hosts", .idle = kGiven},
    {.name = "task_index", .idle = kGiven},
    {.name = "resnet_size", .shorthand = "rs", .option = "model-size"},
    {.name = "resnet_version", .shorthand = "rv"},
    {.name = "model_type", .option = "model"},
    {.name = "return_before_eval", .kind = WordKind::Flag, .option = "no-validation"},
    {.name = "disable_eval", .kind = WordKind::Flag, .option = "no-validation"},
    {.name = "eval_only", .kind = WordKind::Flag},
    {.name = "fine_tune", .kind = WordKind::Flag},
    {.name = "train_offset", .idle = "a run that is restored goes on where it stopped"},
    {.name = "use_train_and_evaluate",
     .kind = WordKind::Flag,
     .idle = "validation belongs to the run"},
    {.name = "enable_lars", .kind = WordKind::Flag},
    {.name = "label_smoothing", .option = "label-smoothing"},
    {.name = "epochs_for_lars"},
    {.name = "warmup_epochs", .option = "warmup-epochs"},
    {.name = "start_learning_rate"},
    {.name = "weight_decay", .option = "weight-decay"},
    {.name = "disable_warmup", .kind = WordKind::Flag},
    {.name = "use_cosine_lr", .kind = WordKind::Flag},
    {.name = "momentum", .option = "momentum"},
    {.name = "save_summary_steps", .idle = "logs say when with --log-freq"},
    {.name = "profile_steps"},
    {.name = "use_horovod", .shorthand = "hvd", .kind = WordKind::Flag, .idle = kGiven},
    {.name = "mini_imagenet", .kind = WordKind::Flag, .refused = "there is no smaller ImageNet"},
    {.name = "max_cpus", .shorthand = "mc", .option = "max-cpus"},
    {.name = "shuffle_seed", .idle = kKeyed},
    {.name = "sample_distorted_bounding_box_seed", .idle = kKeyed},
    {.name = "random_flip_left_right_seed", .idle = kKeyed},
    {.name = "dataset_parallel_calls", .option = "pipeline-num-parallel"},
    {.name = "interleave_cycle_length", .idle = "images are read by their place, not by file"},
});

void set_model(DialectReader& read) {
  set_imagenet_habits(read, {.model = "resnext", .size = "101", .initialisers = "habana"});
  read.set("padding", "same", "");
  if (!read.given("resnet_version")) return;
  read.set("resnet-version", read.text("resnet_version", "1") == "2" ? "2" : "1.5",
           read.text("model_type", "resnext") == "resnext" ? "" : "--resnet_version");
}

void set_rate(DialectReader& read, std::int64_t global_batch) {
  read.set("momentum", 0.875, "");
  read.set("weight-decay", 6.103515625e-05, "");
  read.set("weight-decay-excludes", "beta gamma", "");
  if (read.flag("disable_warmup")) read.set("warmup-epochs", 0.0, "--disable_warmup");
  read.set("warmup-epochs", 8.0, "");
  if (read.flag("enable_lars")) {
    read.set("optimiser", "LARS", "--enable_lars");
    read.set("lr-schedule", "lars-polynomial", "");
    read.set("abs-learning-rate", read.real("start_learning_rate", 9.5), "");
    read.set("lr-horizon-epochs", read.real("epochs_for_lars", 38.0), "");
    return;
  }
  const bool cosine = read.flag("use_cosine_lr", true);
  constexpr std::int64_t kManyWorkers = 16;
  const double base = cosine ? 0.256 : read.workers > kManyWorkers ? 0.1 : 0.128;
  read.set("optimiser", "momentum", "");
  read.set("abs-learning-rate", base * static_cast<double>(global_batch) / 256.0, "");
  read.set("warmup", "linear", "");
  read.set("lr-schedule", cosine ? "cosine" : "piecewise", "");
  if (!cosine) read.set("learning-rate-epochs", "30,60,80,90", "");
}

void set_numerics(DialectReader& read) {
  const std::string type = read.text("dtype", "fp32");
  if (type != "fp32" && type != "bf16" && type != "fp16")
    fail(ErrorKind::Usage, "--dtype: '{}' is none of fp32, bf16, fp16", type);
  read.set("precision", type == "fp32" ? "32.32" : "16.32", read.given("dtype") ? "--dtype" : "");
  if (type != "fp32") read.set("half", type, "--dtype");
  set_image_type(read);
  read.set("loss-scaling", read.text("loss_scale", type == "fp16" ? "128" : "1"),
           read.given("loss_scale") ? "--loss_scale" : "");
  read.set("label-smoothing", 0.1, "");
  if (read.real("label_smoothing", 0.1) > 0.0) read.set("label-smoothing-form", "all-classes", "");
}

void set_outputs(DialectReader& read) {
  if (read.text("hooks", "").find("ProfilerHook") != std::string::npos) {
    read.set("gc-profile", "IPU_PROFILE", "--hooks");
    read.set("profile-steps", read.text("profile_steps", "7,10"),
             read.given("profile_steps") ? "--profile_steps" : "");
  }
  if (read.flag("fine_tune")) read.set("variable-filter", "fc1", "--fine_tune");
  if (read.flag("eval_only")) {
    read.translation().command = Command::Validate;
    read.set("restore-path", read.text("model_dir", "/tmp/resnet"), "--model_dir");
    return;
  }
  if (read.given("model_dir")) read.set("log-dir", read.text("model_dir", ""), "--model_dir");
  read.set("log-freq", std::int64_t{100}, "");
}

void translate(DialectReader& read) {
  set_outputs(read);
  if (read.flag("eval_only")) return;  // the run says the rest
  set_model(read);
  const std::int64_t batch = std::max<std::int64_t>(read.integer("batch_size", 32), 1);
  read.set("batch-size", batch, "");
  read.set("replicas", read.workers, "");
  read.set("epochs", read.real("train_epochs", 10.0),
           read.given("train_epochs") ? "--train_epochs" : "");
  set_rate(read, batch * read.workers);
  set_numerics(read);
}

}  // namespace

DialectSpec habana_resnext_dialect() {
  return {.name = "habana", .words = kWords, .translate = translate};
}

}  // namespace millrace::cli
