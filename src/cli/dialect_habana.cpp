// SPDX-License-Identifier: Apache-2.0
#include "cli/dialect_habana.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"

namespace millrace::cli {
namespace {

constexpr std::string_view kLoader = "images are always prepared ahead in separate threads";
constexpr std::string_view kGiven = "the launcher determines the processes";
constexpr std::string_view kKeyed = "random numbers are keyed by --seed, epoch and image";

constexpr std::array kCommon = std::to_array<DialectWord>({
    {.name = "data_dir", .shorthand = "dd", .option = "data-dir"},
    {.name = "jpeg_data_dir", .shorthand = "jpdd", .option = "data-dir"},
    {.name = "model_dir", .shorthand = "md", .becomes = "--log-dir, or --restore-path"},
    {.name = "clean", .kind = WordKind::Flag, .idle = "every run gets its own directory"},
    {.name = "train_epochs", .shorthand = "te", .becomes = "--epochs"},
    {.name = "epochs_between_evals", .shorthand = "ebe", .becomes = "--epochs-between-evals"},
    {.name = "stop_threshold",
     .shorthand = "st",
     .refused = "runs do not stop at a target accuracy"},
    {.name = "batch_size",
     .shorthand = "bs",
     .becomes = "--batch-size; the learning rate depends on it"},
    {.name = "hooks",
     .shorthand = "hk",
     .becomes = "ProfilerHook: --gc-profile; the logs always contain the numbers of the others"},
    {.name = "profile_steps", .becomes = "--profile-steps"},
    {.name = "export_dir", .shorthand = "ed", .refused = "TensorFlow's SavedModel is not written"},
    {.name = "display_steps", .shorthand = "dis", .option = "log-freq"},
    {.name = "save_summary_steps", .idle = "--log-freq sets the interval"},
    {.name = "disable_checkpoints", .kind = WordKind::Flag, .option = "disable-checkpoints"},
    {.name = "save_checkpoint_steps",
     .shorthand = "cs",
     .idle = "--ckpts-per-epoch sets the interval"},
    {.name = "no_hpu", .kind = WordKind::Flag, .idle = "there are no HPUs"},
    {.name = "dummy_epoch",
     .kind = WordKind::Flag,
     .idle = "no compilation slows down the first epoch"},
    {.name = "dtype", .shorthand = "dt", .becomes = "--precision and --half"},
    {.name = "data_loader_image_type", .shorthand = "dlit", .becomes = "--data-loader-image-type"},
    {.name = "loss_scale", .shorthand = "ls", .option = "loss-scaling"},
    {.name = "inter_op_parallelism_threads", .idle = "a device runs one kernel at a time"},
    {.name = "intra_op_parallelism_threads", .becomes = "--threads-per-device; 0: the default"},
    {.name = "use_synthetic_data",
     .shorthand = "synth",
     .kind = WordKind::Flag,
     .option = "synthetic-data"},
    {.name = "max_train_steps", .shorthand = "mts", .option = "max-iterations"},
    {.name = "max_eval_steps", .shorthand = "mes", .idle = "every image is validated"},
    {.name = "datasets_num_private_threads", .becomes = "--pipeline-num-parallel"},
    {.name = "dataset_parallel_calls", .becomes = "--pipeline-num-parallel; auto: the default"},
    {.name = "max_cpus", .shorthand = "mc", .option = "max-cpus"},
    {.name = "experimental_preloading", .kind = WordKind::Flag, .idle = kLoader},
    {.name = "worker_hosts", .idle = kGiven},
    {.name = "task_index", .idle = kGiven},
    {.name = "use_horovod", .shorthand = "hvd", .kind = WordKind::Flag, .idle = kGiven},
    {.name = "return_before_eval", .kind = WordKind::Flag, .option = "no-validation"},
    {.name = "disable_eval", .kind = WordKind::Flag, .option = "no-validation"},
    {.name = "eval_only", .kind = WordKind::Flag, .becomes = "millrace validate"},
    {.name = "fine_tune", .kind = WordKind::Flag, .becomes = "--variable-filter fc1"},
    {.name = "train_offset", .idle = "a restored run continues where it stopped"},
    {.name = "use_train_and_evaluate",
     .kind = WordKind::Flag,
     .idle = "validation is part of the run"},
    {.name = "label_smoothing", .option = "label-smoothing"},
    {.name = "warmup_epochs", .becomes = "--warmup-epochs"},
    {.name = "disable_warmup", .kind = WordKind::Flag, .becomes = "--warmup-epochs 0"},
    {.name = "weight_decay", .option = "weight-decay"},
    {.name = "momentum", .option = "momentum"},
    {.name = "mini_imagenet", .kind = WordKind::Flag, .refused = "there is no reduced ImageNet"},
    {.name = "shuffle_seed", .idle = kKeyed},
    {.name = "sample_distorted_bounding_box_seed", .idle = kKeyed},
    {.name = "random_flip_left_right_seed", .idle = kKeyed},
    {.name = "interleave_cycle_length", .idle = "images are read by index, not by file"},
});

void set_precision(DialectReader& read, bool has_fp16) {
  const std::string type = read.text("dtype", "fp32");
  if (type != "fp32" && type != "bf16" && !(has_fp16 && type == "fp16"))
    fail(ErrorKind::Usage, "--dtype: '{}' is not one of fp32, bf16{}", type,
         has_fp16 ? ", fp16" : "");
  read.set("precision", type == "fp32" ? "32.32" : "16.32", read.spelled("dtype"));
  if (type == "fp16") read.set("half", type, read.spelled("dtype"));  // bf16 is the default
}

void set_image_type(DialectReader& read) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kTypes = {
      {{"fp32", "float32"}, {"bf16", "bfloat16"}, {"fp16", "float16"}, {"uint8", "uint8"}}};
  if (!read.given("data_loader_image_type")) return;
  const std::string given = read.text("data_loader_image_type", "");
  for (const auto& type : kTypes) {
    if (given != type.first) continue;
    read.set("data-loader-image-type", type.second, read.spelled("data_loader_image_type"));
    return;
  }
  fail(ErrorKind::Usage, "--data_loader_image_type: '{}' is not one of fp32, bf16, fp16, uint8",
       given);
}

}  // namespace

std::vector<DialectWord> with_habana_words(std::span<const DialectWord> own) {
  std::vector<DialectWord> words(kCommon.begin(), kCommon.end());
  words.insert(words.end(), own.begin(), own.end());
  return words;
}

void set_habana_types(DialectReader& read, bool has_fp16) {
  set_precision(read, has_fp16);
  set_image_type(read);
}

void set_habana_hooks(DialectReader& read, bool profiles_without_hook) {
  constexpr std::string_view kProfiler = "profilerhook";
  constexpr std::array<std::string_view, 5> kHooks = {"LoggingTensorHook", "ProfilerHook",
                                                      "ExamplesPerSecondHook", "LoggingMetricHook",
                                                      "StepCounterHook"};
  bool profiles = profiles_without_hook && read.given("profile_steps");
  for (const std::string& hook : split_list(read.text("hooks", ""))) {
    const auto means = [&](std::string_view known) { return to_lower(known) == to_lower(hook); };
    if (std::ranges::none_of(kHooks, means))
      fail(ErrorKind::Usage, "{}: '{}' is not one of {}", read.spelled("hooks"), hook,
           join(kHooks, ", "));
    if (means(kProfiler))
      profiles = true;
    else
      read.note(fmt::format("{} {} has no effect here: the logs always contain its numbers",
                            read.spelled("hooks"), hook));
  }
  if (!profiles) return read.pass_over("profile_steps", "it needs --hooks ProfilerHook");
  read.set("gc-profile", "IPU_PROFILE",
           read.spelled(read.given("hooks") ? "hooks" : "profile_steps"));
  read.set("profile-steps", read.text("profile_steps", "7,10"), read.spelled("profile_steps"));
}

void set_habana_threads(DialectReader& read) {
  if (const std::int64_t threads = read.integer("intra_op_parallelism_threads", 0); threads > 0)
    read.set("threads-per-device", threads, read.spelled("intra_op_parallelism_threads"));
  if (read.text("dataset_parallel_calls", "auto") != "auto") {
    read.set("pipeline-num-parallel", read.integer("dataset_parallel_calls", 1, 1),
             read.spelled("dataset_parallel_calls"));
    read.pass_over("datasets_num_private_threads",
                   "--dataset_parallel_calls sets the number of threads that prepare images");
  } else if (read.given("datasets_num_private_threads")) {
    read.set("pipeline-num-parallel", read.integer("datasets_num_private_threads", 1, 1),
             read.spelled("datasets_num_private_threads"));
  }
}

bool only_evaluates(DialectReader& read, bool has_fp16) {
  if (!read.flag("eval_only")) return false;
  read.translation().command = Command::Validate;
  read.set("restore-path", read.text("model_dir", "/tmp/resnet"),
           read.given("model_dir") ? read.spelled("model_dir") : "--eval_only");
  if (read.given("batch_size"))
    read.set("batch-size", read.integer("batch_size", 1, 1), read.spelled("batch_size"));
  if (read.given("dtype")) set_precision(read, has_fp16);
  set_image_type(read);
  set_habana_threads(read);
  return true;
}

void set_habana_run(DialectReader& read) {
  if (read.flag("fine_tune")) read.set("variable-filter", "fc1", read.spelled("fine_tune"));
  if (read.given("model_dir"))
    read.set("log-dir", read.text("model_dir", ""), read.spelled("model_dir"));
  read.set("log-freq", std::int64_t{100}, "");
}

double habana_warmup(DialectReader& read, double otherwise) {
  const double epochs = read.real("warmup_epochs", otherwise);
  if (!read.flag("disable_warmup")) return epochs;
  if (read.given("warmup_epochs") && epochs > 0.0)
    fail(ErrorKind::Usage, "{} {} and {} contradict each other: give one of them",
         read.spelled("warmup_epochs"), epochs, read.spelled("disable_warmup"));
  return 0.0;
}

}  // namespace millrace::cli
