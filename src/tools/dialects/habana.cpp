// SPDX-License-Identifier: Apache-2.0
#include "tools/dialects/habana.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"

namespace millrace::cli {
namespace {

using enum WordUse;
using enum WordKind;

constexpr std::string_view kLoader = "images are always prepared ahead in separate threads";
constexpr std::string_view kGiven = "the launcher determines the processes";
constexpr std::string_view kKeyed = "random numbers are keyed by --seed, epoch and image";

constexpr std::array kCommon = std::to_array<DialectWord>({
    {"data_dir", "dd", WithValue, Same, "data-dir"},
    {"jpeg_data_dir", "jpdd", WithValue, Same, "data-dir"},
    {"model_dir", "md", WithValue, Translated, "--log-dir, or --restore-path"},
    {"clean", "", Flag, Idle, "every run gets its own directory"},
    {"train_epochs", "te", WithValue, Translated, "--epochs"},
    {"epochs_between_evals", "ebe", WithValue, Translated, "--epochs-between-evals"},
    {"stop_threshold", "st", WithValue, Same, "stop-threshold"},
    {"batch_size", "bs", WithValue, Translated, "--batch-size; the learning rate depends on it"},
    {"hooks", "hk", WithValue, Translated,
     "ProfilerHook: --gc-profile; the logs always contain the numbers of the others"},
    {"profile_steps", "", WithValue, Translated, "--profile-steps"},
    {"export_dir", "ed", WithValue, Same, "export-dir"},
    {"display_steps", "dis", WithValue, Same, "log-freq"},
    {"save_summary_steps", "", WithValue, Same, "summary-every"},
    {"disable_checkpoints", "", Flag, Same, "disable-checkpoints"},
    {"save_checkpoint_steps", "cs", WithValue, Same, "checkpoint-every"},
    {"no_hpu", "", Flag, Idle, "there are no HPUs"},
    {"dummy_epoch", "", Flag, Idle, "no compilation slows down the first epoch"},
    {"dtype", "dt", WithValue, Translated, "--precision and --half"},
    {"data_loader_image_type", "dlit", WithValue, Translated, "--data-loader-image-type"},
    {"loss_scale", "ls", WithValue, Same, "loss-scaling"},
    {"inter_op_parallelism_threads", "", WithValue, Idle, "a device runs one kernel at a time"},
    {"intra_op_parallelism_threads", "", WithValue, Translated,
     "--threads-per-device; 0: the default"},
    {"use_synthetic_data", "synth", Flag, Same, "synthetic-data"},
    {"max_train_steps", "mts", WithValue, Same, "max-iterations"},
    {"max_eval_steps", "mes", WithValue, Same, "max-eval-steps"},
    {"datasets_num_private_threads", "", WithValue, Translated, "--pipeline-num-parallel"},
    {"dataset_parallel_calls", "", WithValue, Translated,
     "--pipeline-num-parallel; auto: the default"},
    {"max_cpus", "mc", WithValue, Same, "max-cpus"},
    {"experimental_preloading", "", Flag, Idle, kLoader},
    {"worker_hosts", "", WithValue, Idle, kGiven},
    {"task_index", "", WithValue, Idle, kGiven},
    {"use_horovod", "hvd", Flag, Idle, kGiven},
    {"return_before_eval", "", Flag, Same, "no-validation"},
    {"disable_eval", "", Flag, Same, "no-validation"},
    {"eval_only", "", Flag, Translated, "millrace validate"},
    {"fine_tune", "", Flag, Translated, "--variable-filter fc1"},
    {"train_offset", "", WithValue, Idle, "a restored run continues where it stopped"},
    {"use_train_and_evaluate", "", Flag, Idle, "validation is part of the run"},
    {"label_smoothing", "", WithValue, Same, "label-smoothing"},
    {"warmup_epochs", "", WithValue, Translated, "--warmup-epochs"},
    {"disable_warmup", "", Flag, Translated, "--warmup-epochs 0"},
    {"weight_decay", "", WithValue, Same, "weight-decay"},
    {"momentum", "", WithValue, Same, "momentum"},
    {"mini_imagenet", "", Flag, Idle,
     "files named imagenet_train_subset and imagenet_val_subset are found in --data_dir without "
     "it"},
    {"shuffle_seed", "", WithValue, Idle, kKeyed},
    {"sample_distorted_bounding_box_seed", "", WithValue, Idle, kKeyed},
    {"random_flip_left_right_seed", "", WithValue, Idle, kKeyed},
    {"interleave_cycle_length", "", WithValue, Idle, "images are read by index, not by file"},
});

void set_precision(DialectReader& read, bool has_fp16) {
  const std::string type = read.text("dtype", "fp32");
  if (type != "fp32" && type != "bf16" && !(has_fp16 && type == "fp16"))
    fail(ErrorKind::Usage, "--dtype: '{}' is not one of fp32, bf16{}", type,
         has_fp16 ? ", fp16" : "");
  read.set("precision", type == "fp32" ? "32.32" : "16.32", read.spelled("dtype"));
  if (type != "fp32") read.set("half", type, read.spelled("dtype"));
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
  constexpr std::string_view kOption = "pipeline-num-parallel";
  if (read.text("dataset_parallel_calls", "auto") == "auto")
    return read.set_integer(kOption, "datasets_num_private_threads", std::nullopt, 1);
  read.set_integer(kOption, "dataset_parallel_calls", std::nullopt, 1);
  read.pass_over("datasets_num_private_threads",
                 "--dataset_parallel_calls sets the number of threads that prepare images");
}

bool only_evaluates(DialectReader& read, bool has_fp16) {
  const bool told = read.flag("eval_only");
  read.mean(told ? Command::Validate : Command::Train,
            told ? read.spelled("eval_only") : read.script);
  if (!told) return false;
  read.set("restore-path", read.text("model_dir", "logs"),
           read.given("model_dir") ? read.spelled("model_dir") : "--eval_only");
  read.set_integer("batch-size", "batch_size", std::nullopt, 1);
  if (read.given("dtype")) set_precision(read, has_fp16);
  set_image_type(read);
  set_habana_threads(read);
  return true;
}

void set_habana_run(DialectReader& read, std::string_view data) {
  read.set("data-dir", data, "");
  if (read.flag("fine_tune")) read.set("variable-filter", "fc1", read.spelled("fine_tune"));
  read.spell("log-dir", "model_dir");
  if (read.given("model_dir"))
    read.set("log-dir", read.text("model_dir", ""), read.spelled("model_dir"));
  read.set_defaults("--log-freq 100 --weight-decay-excludes beta gamma");
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
