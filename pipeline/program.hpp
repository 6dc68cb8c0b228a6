// SPDX-License-Identifier: Apache-2.0
//
// pipeline: compiles graphs and runs them.
//
// The pure half (this file, memory_plan) compiles a range of a graph into a StageProgram: lists of
// kernel calls on named buffers. It is plain data that can be printed, compared and tested without
// a device. compiler.hpp does it; pipeline/ops/ has the calls of each kind of op. The run half
// (bound_program, parameters, stage) gives every buffer an address in one arena and runs the lists.
//
//   graph ops        conv1  norm1 relu1  conv2  norm2            add  relu
//   forward calls    conv   stats apply  conv   stats            apply(+skip, relu)
//   backward calls   ...    reduce apply dx dw  reduce apply ...  in reverse
//
// Ops are fused where the data flow allows it: norm + add + activation, ReLU + concatenation,
// drop-connect + add, squeeze-and-excite product + add + ReLU. Where that saves traffic, a norm
// that a maximum pool or squeeze-and-excite reads is *inlined*: its readers compute its output from
// its input. A value at a possible cut point is rounded to the storage type even if it is fused, so
// that the bits do not depend on the cuts. In evaluation dropout and drop-connect are the identity:
// their readers read their input. If several ops read a value, its gradient is the sum of their
// contributions, added pairwise in reverse topological order of the readers and rounded after each
// addition.
//
// A micro-batch runs through three phases. Data that a later phase needs is kept in *slots*:
//
//   phase           keeps for later phases                kept in
//   Forward         activations, statistics, winners      stash slot, until BackwardWeight
//   BackwardInput   inputs of the weight gradients        weight slot, until BackwardWeight
//   BackwardWeight  nothing: it adds to the gradients
//
// A joined backward does both in one list and needs no weight slot.
//
// With recomputation the ops form segments: adjacent layers that are recomputed, or pieces of the
// stage. Only values that cross a border between segments are stashed. The forward
// calls of a segment are repeated in BackwardInput just before the segment's backward, so that one
// segment's activations are held at a time.
//
// Images may arrive in another form than the network reads: as bytes, as floats of another type,
// not yet mixed, or without the zeros that a vendor wants behind their channels. The stage that
// reads them then begins with PrepareImages. The images as they arrived are not kept after the
// forward phase, unless the layer that reads them is recomputed: then they are stashed (often one
// byte per pixel) and prepared again.
//
// A batch normalization whose statistics span replicas computes its sums in two calls. In between,
// the caller of the program exchanges the results of the first call among the replicas
// (`exchanges_before`); this splits the phase into parts. Such statistics are stashed rather than
// recomputed, so that nothing is exchanged twice.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/activation.hpp"
#include "core/dtype.hpp"
#include "core/kernel_kind.hpp"
#include "models/graph.hpp"
#include "pipeline/layout.hpp"

namespace millrace::pipeline {

using millrace::KernelKind;
using millrace::Role;
using models::Graph;
using models::ValueId;

using BufferId = models::Index<struct BufferTag>;

[[nodiscard]] OpRange whole(const Graph& graph);

enum class Mode { Training, Evaluation };
enum class Backward { Joined, Split };

/// Whether kernels wait for the memory of this build's device rather than for their arithmetic.
[[nodiscard]] bool waits_for_memory();

/// How replicas add up their gradients.
struct ReduceOptions {
  std::int32_t replicas = 1;
  /// Of gradients that are added up at once, more only if one op has more; 0: an eighth of those of
  /// the stage, at least 1 MiB.
  std::int64_t most_bytes = 0;
  DType type = DType::F32;  ///< in which they are sent: F32 or BF16

  /// The elements of these bytes, of all those of a stage.
  [[nodiscard]] std::int64_t most(std::int64_t elements) const {
    if (most_bytes > 0) return most_bytes / size_of(DType::F32);
    return std::max((std::int64_t{1} << 20) / size_of(DType::F32), elements / 8);
  }
};

struct ProgramOptions {
  std::int64_t batch = 1;  ///< samples in a micro-batch
  DType type = DType::F32;
  Mode mode = Mode::Training;
  Recompute recompute = Recompute::None;
  Backward backward = Backward::Joined;
  /// With Recompute::Layers: the layers of these names, and those below them (`b2` means `b2/0`).
  std::vector<std::string> recompute_layers = {};
  /// With Recompute::Stage: ops at which a segment begins, ascending. None: one segment.
  std::vector<OpId> segments = {};
  /// Whether the last segment is recomputed, too. It need not be if its backward always follows at
  /// once.
  bool repeats_last_segment = true;
  /// Segments, by their first op, that are kept and not recomputed.
  std::vector<OpId> kept_segments = {};
  bool segments_chosen = false;  ///< whether with_segments() leaves the segments as they are
  /// Type of the images as they arrive: F32, BF16, F16, or U8 (not yet normalized); none: `type`.
  std::optional<DType> images = {};
  bool mixing = false;    ///< whether images and labels are mixed; training only
  bool weighted = false;  ///< whether labels have weights; training only
  /// Whether values are computed again, or masks are kept, where that reads and writes less.
  bool saves_traffic = waits_for_memory();
  friend bool operator==(const ProgramOptions&, const ProgramOptions&) = default;
};
/// Type of the images as they arrive.
[[nodiscard]] inline DType image_type(const ProgramOptions& options) {
  return options.images.value_or(options.type);
}
/// Whether images arrive in another form than the network reads.
[[nodiscard]] inline bool prepares_images(const ProgramOptions& options) {
  return image_type(options) != options.type || options.mixing;
}
/// Whether `names` contains this layer or one above it.
[[nodiscard]] bool names_layer(std::span<const std::string> names, std::string_view layer);

enum class Phase { Forward, BackwardInput, BackwardWeight };
inline constexpr std::size_t kPhases = 3;

/// One kernel call. `op` is the graph op whose shapes and parameters it uses.
struct Call {
  KernelKind kind = KernelKind::LinearForward;
  OpId op;
  Activation fn = Activation::None;
  bool repeated = false;   ///< part of a recomputation: must not touch running statistics
  bool with_skip = false;  ///< NormBackwardReduce: an addition was fused after the norm
  std::int32_t part = 0;   ///< Concat...: which operand
  OpId skip_norm = {};     ///< NormApply: the norm of Skip, whose SkipStatistics are given
  /// A norm that the call computes first, with `fn`, from X and Statistics. That norm's backward
  /// calls have the gradient of the product with Scale as Dy, and that of the means as Dy2.
  OpId inlined = {};
  std::array<BufferId, kRoles> buffers = {};

  [[nodiscard]] BufferId at(Role role) const { return buffers[static_cast<std::size_t>(role)]; }
  [[nodiscard]] BufferId& at(Role role) { return buffers[static_cast<std::size_t>(role)]; }
  [[nodiscard]] bool has(Role role) const { return at(role).valid(); }
  friend bool operator==(const Call&, const Call&) = default;
};

struct Buffer {
  std::string name;
  std::int64_t bytes = 0;
  friend bool operator==(const Buffer&, const Buffer&) = default;
};

/// A value that crosses the stage's border (for the images: where they arrive), with its gradient
/// (invalid if there is none). Values go directly from their maker to every stage that reads them.
/// Gradients come back from reader to reader, last reader first, so that they are added in the same
/// order for all cuts.
struct Crossing {
  ValueId value;
  BufferId activation;
  BufferId gradient;
  friend bool operator==(const Crossing&, const Crossing&) = default;
};

struct StageProgram {
  OpRange range;
  ProgramOptions options;
  std::vector<Buffer> buffers;
  std::array<std::vector<Call>, kPhases> calls;
  std::vector<Crossing> inputs;  ///< values made before the range (or the images) and read in it
  /// Values made in the range and read after it; also values read both in and after it, for which
  /// only the gradient passes through (their `activation` is invalid).
  std::vector<Crossing> outputs;
  BufferId labels, loss, rank;  ///< valid in the stage that ends with the loss
  BufferId weights;             ///< of the labels, if they have some
  BufferId scaling;             ///< one PixelScaling per image, if images arrive as bytes
  BufferId mixing;              ///< one ImageMixing per sample, if images or labels are mixed

  [[nodiscard]] const std::vector<Call>& phase(Phase p) const {
    return calls[static_cast<std::size_t>(p)];
  }
  [[nodiscard]] const Buffer& buffer(BufferId id) const { return buffers.at(id.at()); }
  friend bool operator==(const StageProgram&, const StageProgram&) = default;
};

/// `options` with these segments.
[[nodiscard]] ProgramOptions with_chosen(ProgramOptions options, const ChosenSegments& chosen);

/// Number of replicas that share batch statistics. Errors: Config, with two batch normalizations
/// that differ.
[[nodiscard]] std::int64_t span_of(const Graph& graph);

/// Compiles `range` of `graph`.
[[nodiscard]] StageProgram compile(const Graph& graph, OpRange range,
                                   const ProgramOptions& options);

}  // namespace millrace::pipeline
