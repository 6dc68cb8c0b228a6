// SPDX-License-Identifier: Apache-2.0
//
// Habana's ResNeXt, imagenet_main.py.
#include <array>

#include "core/error.hpp"
#include "tools/dialects/habana.hpp"

namespace millrace::cli {
namespace {

using enum WordUse;
using enum WordKind;

constexpr std::array kWords = std::to_array<DialectWord>({
    {"resnet_size", "rs", WithValue, Same, "model-size"},
    {"resnet_version", "rv", WithValue, Translated, "--resnet-version 1.5 or 2"},
    {"model_type", "", WithValue, Same, "model"},
    {"enable_lars", "", Flag, Translated, "--optimiser LARS"},
    {"epochs_for_lars", "", WithValue, Translated, "--lr-horizon-epochs, with --enable_lars"},
    {"start_learning_rate", "", WithValue, Translated, "--abs-learning-rate, with --enable_lars"},
    {"use_cosine_lr", "", Flag, Translated, "--lr-schedule cosine; if false, piecewise"},
});

/// Its files count labels from 1 and it uses them unchanged, so that class 0 never occurs.
void set_model(DialectReader& read) {
  read.set_defaults(kImageNetDefaults);
  read.set_defaults(
      "--model resnext --model-size 101 --initialisers habana --BN-decay 0.9 --padding same "
      "--label-offset 0");
  if (!read.given("resnet_version")) return;
  const std::string version = read.text("resnet_version", "1");
  if (version != "1" && version != "2")
    fail(ErrorKind::Usage, "{}: '{}' is not 1 or 2", read.spelled("resnet_version"), version);
  if (read.text("model_type", "resnext") == "resnet")
    read.set("resnet-version", version == "2" ? "2" : "1.5", read.spelled("resnet_version"));
  else if (version == "2")
    fail(ErrorKind::Usage,
         "{} 2: ResNeXt has only one version: give --model_type resnet, or leave the option out",
         read.spelled("resnet_version"));
}

void set_lars(DialectReader& read) {
  read.set("optimiser", "LARS", read.spelled("enable_lars"));
  read.imply("lr-schedule", "lars-polynomial", "enable_lars");
  read.set_real("abs-learning-rate", "start_learning_rate", 9.5);
  read.set_real("lr-horizon-epochs", "epochs_for_lars", 38.0);
}

void set_rate(DialectReader& read, std::int64_t global_batch) {
  read.set_defaults("--momentum 0.875 --weight-decay 6.103515625e-05");
  const std::string warms = read.spelled("warmup_epochs");
  read.set("warmup-epochs", habana_warmup(read, 8.0),
           warms.empty() ? read.spelled("disable_warmup") : warms);
  read.spell("warmup-epochs", "warmup_epochs");
  if (read.flag("enable_lars")) return set_lars(read);
  for (const char* name : {"start_learning_rate", "epochs_for_lars"})
    read.pass_over(name, "it needs --enable_lars");
  const bool cosine = read.flag("use_cosine_lr", true);
  constexpr std::int64_t kManyWorkers = 16;
  const double base = cosine ? 0.256 : read.workers > kManyWorkers ? 0.1 : 0.128;
  read.set("abs-learning-rate", base * static_cast<double>(global_batch) / 256.0, "");
  read.set_defaults("--optimiser momentum --warmup linear");
  read.set("lr-schedule", cosine ? "cosine" : "piecewise", read.spelled("use_cosine_lr"));
  if (!cosine) read.set_defaults("--learning-rate-epochs 30,60,80,90");
}

void set_numerics(DialectReader& read) {
  set_habana_types(read, true);
  read.set("loss-scaling", read.text("dtype", "fp32") == "fp16" ? "128" : "1", "");
  read.set("label-smoothing", 0.1, "");
  if (read.real("label_smoothing", 0.1) > 0.0) read.set("label-smoothing-form", "all-classes", "");
}

void translate(DialectReader& read) {
  set_habana_hooks(read, false);
  if (only_evaluates(read, true)) return;  // the run has the rest recorded
  set_habana_run(read, "/data/tensorflow/imagenet/tf_records");
  set_habana_threads(read);
  set_model(read);
  const std::int64_t batch = read.integer("batch_size", 32, 1);
  read.set("batch-size", batch, read.spelled("batch_size"));
  read.spell("batch-size", "batch_size");
  read.set("replicas", read.workers, "");
  read.set_real("epochs", "train_epochs", 10.0);
  read.set_integer("epochs-between-evals", "epochs_between_evals", std::nullopt, 1);
  set_rate(read, batch * read.workers);
  set_numerics(read);
}

}  // namespace

DialectSpec habana_resnext_dialect() {
  static const std::vector<DialectWord> words = with_habana_words(kWords);
  return {.name = "habana",
          .title = "Habana's ResNeXt: imagenet_main.py",
          .words = words,
          .translate = translate};
}

}  // namespace millrace::cli
