// SPDX-License-Identifier: Apache-2.0
//
// The front door of the library: trains a network that you build, on images that you have, in your
// own program. Nothing here prints, and only save() writes. docs/library.md shows whole programs.
//
//   const training::Runtime runtime(2);  // two threads
//   models::GraphBuilder b("tiny", {8, 8, 1}, 2);
//   ...                               // models/graph.hpp shows how
//   run::Run run;
//   run.batch_size = 16;
//   training::Training training(runtime, std::move(b).build(), images, run);
//   for (int i = 0; i < 100; ++i) fmt::print("{}\n", training.step(0.1).loss);
//
// With `run.layout.splits` the network is a pipeline of stages, all in this process, or over the
// processes of the Runtime. The number of stages, the schedule and the number of processes change
// no bit of the weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/loss_function.hpp"
#include "io/data/dataset.hpp"
#include "models/graph.hpp"
#include "run/run.hpp"
#include "train/runtime.hpp"

namespace millrace::training {

/// A tensor of the network.
struct ParameterInfo {
  std::string name = {};                 ///< layer/op/role: `b3/1/conv2/kernel`
  std::vector<std::int64_t> shape = {};  ///< of kernels: outputs, [height, width,] inputs
  bool trained = false;                  ///< by its gradient: not frozen
  bool state = false;                    ///< a running statistic of a batch normalization
};

/// What the network made of some images.
struct Score {
  double loss = 0.0;      ///< mean, over the weights of labels if they have some
  double accuracy = 0.0;  ///< share of images whose class has the largest logit
  std::int64_t images = 0;
  bool skipped = false;  ///< step(): a gradient was not finite, and no weight has changed
};

class Training {
 public:
  /// `images` to train on; `validation` for evaluate(). `run` is what a command line becomes, too
  /// (docs/how-it-works.md), and is taken as by train() (train_run.hpp): what follows from network,
  /// images and runtime is filled in, and a layout is chosen as for any run. Each split begins a
  /// stage with a device of its own, if `run` has no `layout.shards`, and `pipeline.ranks.replicas`
  /// copies of the pipeline share the images, whose gradients add up in another order than without
  /// them. Unused is what a Training leaves to its caller: files, logs, and when it validates and
  /// ends. Without a rate in `run` it is `learning_rate.base_rate`. Errors: Config and Usage if
  /// network, images and run do not go together, with both values, or if processes were given
  /// different ones.
  Training(const Runtime& runtime, models::Graph network, std::shared_ptr<const io::Dataset> images,
           run::Run run = {}, std::shared_ptr<const io::Dataset> validation = nullptr);
  /// The network, the images and the initial weights that `run` names, as train() opens them
  /// (train_run.hpp). Additional errors: Data, Io, Checkpoint.
  Training(const Runtime& runtime, const run::Run& run);
  /// With the layout that was chosen.
  [[nodiscard]] const run::Run& run() const;
  ~Training();
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  /// One weight update on the next batch-size x micro-batches x replicas images. The score is that
  /// of the weights before it.
  Score step(double learning_rate);
  /// The same at the rate of `run().learning_rate`: its base if the run has no `length`.
  Score step();
  /// Number of weight updates so far.
  [[nodiscard]] std::int64_t steps() const;
  /// The score of all validation images. Errors: Config without any.
  [[nodiscard]] Score evaluate();

  /// From now on, steps and evaluate() have this loss in place of cross-entropy; none: that again.
  /// It is called for each micro-batch in the thread of step(), on every process that has the last
  /// stage; the loss of an update is the mean over its micro-batches. After an exception of it or
  /// of a Dataset, step() and evaluate() throw Error(Config) until load(). Errors: Config if labels
  /// are smoothed, mixed or weighted.
  void set_loss(LossFunction loss);

  // Parameters and running statistics by name, in float32, row by row, with the shapes in
  // parameters(). These are copies: the weights themselves may be in the memory of a GPU, in 16
  // bits, packed for kernels or with another process. Change a copy, and set_values() puts it back.
  // All processes call these together. Errors: Config for a name that the network does not have.
  [[nodiscard]] std::vector<ParameterInfo> parameters() const;
  [[nodiscard]] std::vector<float> values(std::string_view name) const;
  /// Weights of 16 bits are rounded to nearest. Errors: Config for another number of values.
  void set_values(std::string_view name, std::span<const float> values);
  /// The gradient in the last update: the mean over its micro-batches, clipped if the run says so,
  /// without weight decay. Not finite if the update was skipped. Errors: Config before the first
  /// update, and for what is not trained.
  [[nodiscard]] std::vector<float> gradient(std::string_view name) const;
  /// From now on, trains only parameters whose names contain one of `filters`, and freezes the
  /// others; none: trains all. Starts as `run.trained_filters` says. Weights and the optimizer's
  /// state stay; what was frozen has none. Errors: Config for a filter that no name contains, or if
  /// memory does not suffice: then nothing has changed.
  void train_only(const std::vector<std::string>& filters);

  /// Writes the checkpoint `directory`/ckpt-<steps> and returns its path. `millrace inspect` and
  /// load() read it. Errors: Io.
  std::filesystem::path save(const std::filesystem::path& directory) const;
  /// Continues from a checkpoint of the same network, bit for bit, in any layout. Errors:
  /// Checkpoint, also for one whose updates had another number of images, or micro-batches another.
  void load(const std::filesystem::path& checkpoint);
  /// One SHA-256 over parameters, statistics and optimizer state, as `millrace inspect` prints
  /// it. Errors: Config in more than one process: save a checkpoint there.
  [[nodiscard]] std::string digest() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace millrace::training
