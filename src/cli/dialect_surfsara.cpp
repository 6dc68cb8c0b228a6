// SPDX-License-Identifier: Apache-2.0
//
// The ResNet-50 of SURFsara and Intel, based on the Cloud TPU's: resnet_main.py, resnet_eval.py.
#include <algorithm>
#include <array>

#include "cli/dialect.hpp"
#include "core/error.hpp"

namespace millrace::cli {
namespace {

constexpr std::array kWords = std::to_array<DialectWord>({
    {.name = "train_batch_size", .becomes = "--batch-size, as the total of all ranks"},
    {.name = "train_steps", .becomes = "--iterations"},
    {.name = "eval_batch_size", .becomes = "millrace validate --valid-batch-size"},
    {.name = "num_intra_threads", .option = "threads-per-device"},
    {.name = "num_inter_threads", .idle = "a device runs one kernel at a time"},
    {.name = "kmp_blocktime", .idle = "OMP_WAIT_POLICY sets how threads wait"},
    {.name = "data_dir", .option = "data-dir"},
    {.name = "model_dir", .becomes = "--log-dir, or --restore-path"},
    {.name = "use_tpu", .kind = WordKind::Flag, .becomes = "not supported unless false"},
});

void set_model(DialectReader& read) {
  set_imagenet_defaults(read, {.initialisers = "surfsara", .norm_decay = 0.95});
  read.set("image-preset", "tpu", "");
  read.set("normalise-input", "true", "");
  read.set("precision", "32.32", "");
}

/// The script has gradual_warmup_then_dec(0.1, 260, 4.8) for every batch size.
void set_rate(DialectReader& read) {
  read.set("optimiser", "Nesterov", "");
  read.set("momentum", 0.9, "");
  read.set("weight-decay", 5e-5, "");
  read.set("weight-decay-excludes", "beta gamma", "");
  read.set("lr-schedule", "gradual-warmup", "");
  read.set("initial-learning-rate", 0.1, "");
  read.set("abs-learning-rate", 4.8, "");
  read.set("warmup-iterations", std::int64_t{260}, "");
  read.set("loss-scaling", "1", "");
}

void set_batch(DialectReader& read) {
  const std::int64_t global = read.integer("train_batch_size", 24576, 1);
  if (global % read.workers != 0)
    fail(ErrorKind::Usage, "--train_batch_size: {} images cannot be divided evenly among {} ranks",
         global, read.workers);
  read.set("batch-size", global / read.workers, read.spelled("train_batch_size"));
  read.set("replicas", read.workers, "");
  read.set("iterations", read.integer("train_steps", 4680), read.spelled("train_steps"));
}

void translate(DialectReader& read) {
  if (read.flag("use_tpu")) fail(ErrorKind::Usage, "--use_tpu is not supported: there is no TPU");
  const std::string directory = read.text("model_dir", "");
  const bool evaluates = read.script == "resnet_eval.py" ||
                         (read.given("eval_batch_size") && !read.given("train_batch_size"));
  if (evaluates) {
    read.translation().command = Command::Validate;
    if (!directory.empty()) read.set("restore-path", directory, "--model_dir");
    read.set("valid-batch-size", read.integer("eval_batch_size", 200, 1),
             read.spelled("eval_batch_size"));
    return;
  }
  set_model(read);
  set_batch(read);
  set_rate(read);
  read.set("no-validation", "true", "");
  if (!directory.empty()) read.set("log-dir", directory, "--model_dir");
}

}  // namespace

DialectSpec surfsara_dialect() {
  return {.name = "surfsara",
          .title = "SURFsara's ResNet-50: resnet_main.py, resnet_eval.py",
          .words = kWords,
          .translate = translate};
}

}  // namespace millrace::cli
