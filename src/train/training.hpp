// SPDX-License-Identifier: Apache-2.0
//
// The front door of the library: trains a network that you build, on images that you have, in your
// own program. Nothing here prints, and only save() writes. docs/install.md shows a whole program.
//
//   const train::Runtime runtime(2);  // two threads
//   models::GraphBuilder b("tiny", {8, 8, 1}, 2);
//   ...                               // models/graph.hpp shows how
//   train::Training training(runtime, std::move(b).build(), images, {.batch_size = 16});
//   for (int i = 0; i < 100; ++i) fmt::print("{}\n", training.step(0.1).loss);
//
// With `splits` the network is a pipeline of stages, all in this process, or over the processes of
// `mpirun -n N program`. The number of stages, the schedule and the number of processes change no
// bit of the weights. Under mpirun every process makes the same calls, and an error that one of
// them does not catch ends them all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "core/update_rule.hpp"
#include "io/data/dataset.hpp"
#include "models/graph.hpp"

namespace millrace::train {

/// What a program needs once, before its first Training and until after its last: the threads of
/// the kernels, and MPI where mpirun started the program.
class Runtime {
 public:
  /// Errors: Config if an environment variable contradicts `threads`.
  explicit Runtime(int threads = 1);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
  [[nodiscard]] int threads() const;
  /// Number of this process and of all: 0 of 1 without mpirun.
  [[nodiscard]] int rank() const;
  [[nodiscard]] int ranks() const;

 private:
  friend class Training;
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

struct TrainingOptions {
  std::int64_t batch_size = 32;          ///< images per micro-batch
  std::int64_t micro_batches = 1;        ///< per weight update and replica
  std::int32_t replicas = 1;             ///< copies of the pipeline, on different images
  std::vector<std::string> splits = {};  ///< first layer or op of every stage but the first
  std::string schedule = "1F1B";         ///< docs/pipelines.md lists them
  UpdateRule rule = UpdateRule::Momentum;
  double momentum = 0.9;
  double weight_decay = 0.0;
  Precision precision = {.activations = DType::F32, .master = DType::F32};
  std::uint64_t seed = 0;  ///< of the weights, the order of the images and dropout
};

/// What the network made of some images.
struct Score {
  double loss = 0.0;      ///< mean
  double accuracy = 0.0;  ///< share of images whose class has the largest logit
  std::int64_t images = 0;
  bool skipped = false;  ///< step(): a gradient was not finite, and no weight has changed
};

class Training {
 public:
  /// `images` to train on; `validation` for evaluate(). Errors: Config if network, images and
  /// options do not go together, with both values.
  Training(const Runtime& runtime, models::Graph network, std::shared_ptr<const io::Dataset> images,
           const TrainingOptions& options = {},
           std::shared_ptr<const io::Dataset> validation = nullptr);
  ~Training();
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  /// One weight update on the next batch-size x micro-batches x replicas images. The score is that
  /// of the weights before it.
  Score step(double learning_rate);
  /// Number of weight updates so far.
  [[nodiscard]] std::int64_t steps() const;
  /// The score of all validation images. Errors: Config without any.
  [[nodiscard]] Score evaluate();

  /// Writes the checkpoint `directory`/ckpt-<steps> and returns its path. `millrace inspect` and
  /// load() read it. Errors: Io.
  std::filesystem::path save(const std::filesystem::path& directory) const;
  /// Continues from a checkpoint of the same network, bit for bit. Errors: Checkpoint.
  void load(const std::filesystem::path& checkpoint);
  /// One SHA-256 over parameters, statistics and optimizer state, as `millrace inspect` prints
  /// it. Errors: Config in more than one process: save a checkpoint there.
  [[nodiscard]] std::string digest() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace millrace::train
