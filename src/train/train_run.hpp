// SPDX-License-Identifier: Apache-2.0
//
// A whole training from one value: what `millrace train` does, in your own program and with the
// same bits. Nothing here prints; what the program would print goes to Callbacks::tell.
//
//   run::Run run = training::recipe("resnet20-cifar10");
//   run.data.directory = "data";
//   run.length.epochs = 5;
//   const training::Trained trained = training::train(run, {.tell = print});
//
// A Run (run/run.hpp) says what is asked for, literally: another optimizer has the constants that
// stand beside it, those of `run::usual_optimiser(kind)` if you take these. What follows from it,
// its data and the machine is filled in: to set such a member to another value is an error, which
// says what to set instead, as is a member without an effect.
// Its network is a family (`run.network`), an ONNX file (`run.network = "net.onnx"`), or a graph of
// your own (`run.model.given.graph`). `run.init_path` names the weights to begin with: a run, a
// checkpoint, or a file that `millrace import` reads, if this library was built with the tool.
//
// All functions are collective: each process of the Runtime calls them with the same values. A run
// that needs more processes than these is refused, as is `elastic`, which the program's launcher
// does. Logs, checkpoints and config.toml are written to the run directory, if there is one: at
// `run.logging.place`, or below `run.logging.directory`; none with `run.logging.keeps = false`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/data/dataset.hpp"
#include "run/run.hpp"
#include "train/training.hpp"

namespace millrace::training {

/// The run of a recipe (the name of a file in configs/) or of a TOML file, with the defaults of its
/// network. No watchdog. Errors: Usage, Config, Io.
[[nodiscard]] run::Run recipe(std::string_view name_or_file);
/// The run of the text of such a file. Errors: Usage, Config.
[[nodiscard]] run::Run parse_recipe(const std::string& toml);
/// The run of a network (a family, or an ONNX file) on a data set ("cifar-10", "cifar-100",
/// "imagenet" for photos of any size and classes), with the defaults of both.
[[nodiscard]] run::Run recipe(std::string_view network, std::string_view dataset);

/// A weight update.
struct Update {
  std::int64_t iteration = 0;  ///< from 1
  double loss = 0.0;           ///< mean over its images, before the update
  double accuracy = 0.0;       ///< share of its images whose class has the largest logit
  double learning_rate = 0.0;
  double seconds = 0.0;
  bool skipped = false;  ///< a gradient was not finite, and no weight has changed
};

/// A validation.
struct Validated {
  std::int64_t iteration = 0;  ///< weight updates so far
  std::string name = {};       ///< of an average of weights; empty: the run's own
  double loss = 0.0;           ///< mean
  double top1 = 0.0;           ///< share
  double top5 = 0.0;
  std::int64_t images = 0;
  double seconds = 0.0;
};

/// What train() and restore() call, in the thread that called them; in every process but for
/// tell(). An exception ends the run as cancelled() does, and then comes out of train(): the run
/// can be restored. In the other processes train() then throws Error(Peer).
struct Callbacks {
  std::function<void(const Update&)> after_update = {};
  std::function<void(const Validated&)> after_validation = {};
  /// A checkpoint is complete.
  std::function<void(const std::filesystem::path&)> after_checkpoint = {};
  /// A line that the program would print; in the first process.
  std::function<void(std::string_view)> tell = {};
  /// Asked after each update, and during validations. True in any process saves a checkpoint and
  /// ends the run.
  std::function<bool()> cancelled = {};
};

/// Images in place of those that a run names. `run.data.dataset` then only says which form a
/// family's network has, and nothing of `run.data` prepares them.
struct Images {
  std::shared_ptr<const io::Dataset> train = {};
  std::shared_ptr<const io::Dataset> validation = {};  ///< none: the run does not validate
};

enum class Outcome {
  Finished,     ///< the last iteration of the run is done
  Preempted,    ///< `stop-after`, or asked to stop: saved, can be restored
  Interrupted,  ///< SIGINT: also saved
};

struct Trained {
  Outcome outcome = Outcome::Finished;
  std::filesystem::path run_directory = {};  ///< empty: nothing was saved
  std::int64_t updates = 0;                  ///< of the run so far
  std::optional<Score> validation = {};      ///< the last one in this call of the run's own weights
};

/// Trains from the initial weights. The layout, and the weights, are those that
/// `millrace train` has for a `config` with the same values. Errors: Usage and Config for a run
/// that cannot be, which name its members; Data, Io, Checkpoint; Numeric if the training diverges.
Trained train(const Runtime& runtime, run::Run run, const Callbacks& callbacks = {},
              const Images& images = {});
/// The same with a Runtime of `run.layout.threads` threads, by default 1.
Trained train(run::Run run, const Callbacks& callbacks = {});

/// Continues a run from its newest checkpoint, bit for bit, with the options that it recorded.
/// Additional errors: Checkpoint, Io.
Trained restore(const Runtime& runtime, const std::filesystem::path& run_directory,
                const Callbacks& callbacks = {}, const Images& images = {});

/// Validates a checkpoint, or those of a run from the oldest on, as `millrace validate` does: with
/// the images that the run recorded, or those in `data_directory`, prepared as those of the run.
/// tell() gets what the program would print beside the results. Errors: Checkpoint, also if only
/// one of them is damaged; Io, Data, Config; Numeric if a loss is not finite.
[[nodiscard]] std::vector<Validated> validate(
    const Runtime& runtime, const std::filesystem::path& checkpoint_or_run,
    const std::filesystem::path& data_directory = {},
    const std::function<void(std::string_view)>& tell = {});
/// The same with images of one's own, for a run that was trained on such.
[[nodiscard]] std::vector<Validated> validate(
    const Runtime& runtime, const std::filesystem::path& checkpoint_or_run,
    const std::shared_ptr<const io::Dataset>& images,
    const std::function<void(std::string_view)>& tell = {});

}  // namespace millrace::training
