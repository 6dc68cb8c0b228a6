// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "io/data/loader.hpp"
#include "pipeline/bound_program.hpp"

namespace millrace::pipeline {

/// The options of the training program, and more. A `batch` of 0: evaluation only.
struct StageOptions : ProgramOptions {
  std::int64_t evaluation_batch = 0;  ///< 0: training only
  Slots slots = {};
  Slots evaluation_slots = {1, 0, 0};
  LabelSmoothing label_smoothing = {};
  ParameterOptions parameters = {};  ///< `type` overrides its precision of activations
};

/// How an evaluation fared with the images of one class.
struct ClassCounts {
  std::int64_t images = 0;
  std::int64_t top1 = 0;  ///< of these, images whose first guess is right
  std::int64_t top5 = 0;  ///< of these, images with a right guess among the first five
  friend bool operator==(const ClassCounts&, const ClassCounts&) = default;
};

/// Sums over the samples of one micro-batch (padding excluded). The loss of an evaluation is a sum
/// of multiples of 2^-24, which is exact up to 2^29: it has the same bits whatever the order of its
/// samples, and so on any number of replicas.
struct MicroBatchMetrics {
  double loss = 0.0;
  std::int64_t top1 = 0;
  std::int64_t top5 = 0;
  std::int64_t samples = 0;
  MicroBatchMetrics& operator+=(const MicroBatchMetrics& other);
};

/// Device memory of a stage by its use, in bytes.
struct StageSize {
  std::int64_t state = 0;        ///< weights, gradients, optimizer state, running statistics
  std::int64_t activations = 0;  ///< values and their gradients in all slots
  std::int64_t kernels = 0;      ///< packed weights, and scratch of the kernels
  std::int64_t scratch = 0;      ///< of these, what all kernels share
  [[nodiscard]] std::int64_t total() const { return state + activations + kernels; }
  friend bool operator==(const StageSize&, const StageSize&) = default;
};

/// A stage on a device: its parameters and its training and evaluation programs, which share one
/// workspace. Memory is planned at construction and set by bind().
class Stage {
 public:
  Stage(const Graph& graph, OpRange range, const StageOptions& options, ops::Backend& backend);

  /// Exact bytes of device memory that bind() needs, including scratch of the vendor library.
  [[nodiscard]] std::int64_t bytes() const { return size().total(); }
  [[nodiscard]] StageSize size() const;
  void bind(std::byte* memory);

  [[nodiscard]] Parameters& parameters() { return parameters_; }
  [[nodiscard]] BoundProgram& training() { return *training_; }
  [[nodiscard]] BoundProgram& evaluation() { return *evaluation_; }

  /// Bytes of a host_buffer() for what load() copies beside images.
  [[nodiscard]] static std::int64_t small_bytes(const BoundProgram& program);
  /// Copies the images and labels that the program reads to its buffers: keep_small(), then
  /// queue_load().
  static void load(const device::ExecutionSpace& space, const BoundProgram& program,
                   const RunContext& context, const io::Batch& batch, std::byte* small);
  /// Copies what the program reads beside images to `small`, which must not change until the copies
  /// of queue_load() are done. It may be null where nothing waits in a queue.
  static void keep_small(const BoundProgram& program, const io::Batch& batch, std::byte* small);
  static void queue_load(const device::ExecutionSpace& space, const BoundProgram& program,
                         const RunContext& context, const io::Batch& batch, const std::byte* small);

  /// Bytes of a host_buffer() for the losses of one micro-batch.
  [[nodiscard]] static std::int64_t loss_bytes(const BoundProgram& program);
  /// Copies the losses of the micro-batch whose forward phase was queued last in this slot to
  /// `losses`. The stage must contain the loss.
  static void queue_losses(const device::ExecutionSpace& space, const BoundProgram& program,
                           const RunContext& context, std::byte* losses);
  /// Their metrics, once they are copied, also added to those of each class in `by_class`, which
  /// has all classes or none.
  [[nodiscard]] MicroBatchMetrics metrics(const BoundProgram& program, const std::byte* losses,
                                          std::span<ClassCounts> by_class = {}) const;
  /// Logits of the micro-batch in this slot as float32, row by row, padding included; valid until
  /// the next call.
  [[nodiscard]] std::span<const float> logits(const BoundProgram& program,
                                              const RunContext& context);

 private:
  Parameters parameters_;
  std::optional<BoundProgram> training_;
  std::optional<BoundProgram> evaluation_;
  std::vector<float> host_logits_;  ///< from the first call of logits() on
  std::int64_t logits_;             ///< per sample; also the rank that marks padding samples
};

}  // namespace millrace::pipeline
