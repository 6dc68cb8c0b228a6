// SPDX-License-Identifier: Apache-2.0
//
// What a library of kernels (oneDNN, cuDNN) offers. A vendor claims work: passes of linear ops, and
// runs of neighboring calls of a program that it can compute as one kernel. What it does not claim
// runs on our own kernels, so every function may return an empty claim. Each vendor is one folder
// below src/ops; only code in it names the library.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>

#include "core/activation.hpp"
#include "core/kernel_kind.hpp"
#include "ops/linear.hpp"
#include "ops/norm.hpp"

namespace millrace::ops {

/// The passes of a linear op that a vendor has, and the op prepared for them.
struct LinearClaim {
  Passes passes = {false, false, false};
  std::unique_ptr<LinearOp> op;  ///< also set if all requested passes are claimed and none was
};

/// Maximum scratch bytes of a kernel, by kind of op; of our own ones, in one thread. If no kernel
/// stays within the limit, the one with the smallest scratch is used: a low limit can make a run
/// slower but does not stop it.
struct ScratchCaps {
  std::int64_t convolution = std::numeric_limits<std::int64_t>::max();
  std::int64_t dense = std::numeric_limits<std::int64_t>::max();
};

/// A call of a program as a vendor sees it.
struct OfferedCall {
  KernelKind kind = KernelKind::LinearForward;
  std::variant<ConvShape, DenseShape, NormShape> shape;  ///< not of an activation
  Activation fn = Activation::None;  ///< fused into the call, or that of an activation
  bool with_skip = false;            ///< of a norm: an addition is fused behind it
  float epsilon = 0.0f;              ///< of a norm
  /// Numbers of the buffers by Role; -1: not used. The same number means the same buffer.
  std::array<std::int32_t, kRoles> buffers = {};
};

/// The parameters of a call; null for those that it has not. Fixed for the lifetime of a run.
struct CallParameters {
  const std::byte* kernel = nullptr;  ///< canonical, in the storage type
  const float* bias = nullptr;
  const float* gamma = nullptr;
  const float* beta = nullptr;
  float* dkernel = nullptr;
  float* dbias = nullptr;
  float* dgamma = nullptr;
  float* dbeta = nullptr;
  RunningSums running;  ///< of NormStatistics; null in a recomputation
};

/// Addresses of a call's buffers, by Role.
using CallBuffers = std::array<std::byte*, kRoles>;

/// A run of calls that a vendor computes as one kernel. The results must be those of the separate
/// kernels, bit for bit, because a cut between the ops separates them; unless the rules allow bits
/// to vary.
class ClaimedRun {
 public:
  struct Bytes {
    std::int64_t packed = 0;   ///< kept from step to step
    std::int64_t scratch = 0;  ///< shared with all kernels of the device
  };

  virtual ~ClaimedRun() = default;
  [[nodiscard]] virtual Bytes bytes() const { return {}; }
  virtual void bind(std::span<const CallParameters> calls, std::byte* packed,
                    std::byte* scratch) = 0;
  /// Called after every change of the weights.
  virtual void pack(const device::ExecutionSpace&) {}
  /// `first`: the micro-batch overwrites sums over the step (gradients, running statistics).
  virtual void run(const device::ExecutionSpace& space, std::span<const CallBuffers> calls,
                   bool first) = 0;
};

/// The first `calls` calls of an offer; 0: none.
struct RunClaim {
  std::size_t calls = 0;
  std::unique_ptr<ClaimedRun> run;
};

/// Instruction sets that the table of rewrites tells apart; each includes those before it.
enum class MeasuredLevel { Sse, Avx2, Avx512, Amx };

class Vendor {
 public:
  virtual ~Vendor() = default;
  [[nodiscard]] virtual const char* name() const = 0;
  /// Whether values of a 16-bit type are multiplied directly; otherwise they are converted to
  /// float32.
  [[nodiscard]] virtual bool multiplies(DType type) const = 0;
  /// Why values of the type are converted to float32, as text for messages; "" if there is no
  /// reason to give.
  [[nodiscard]] virtual std::string why_not(DType) const { return {}; }
  /// The level at which ops/rewrites.hpp compares the vendor's kernels with ours; none: they were
  /// not measured, and the vendor's are used.
  [[nodiscard]] virtual std::optional<MeasuredLevel> level() const { return {}; }

  /// The device of this process and the libraries that are loaded, as far as they decide bits and
  /// only the running process knows them.
  [[nodiscard]] virtual std::string describe_device() const { return {}; }
  /// Whether it has kernels whose sums may have another order from run to run.
  [[nodiscard]] virtual bool has_nondeterministic() const { return false; }

  /// Channels that the pixels of images should have at least, filled up with zeros, in 16 bits.
  [[nodiscard]] virtual std::int64_t least_channels() const { return 1; }

  /// Claims passes of an op; others of `passes` run on our kernels. `cap` limits scratch bytes.
  /// Errors: Internal, for a shape that the library rejects.
  [[nodiscard]] virtual LinearClaim claim(const ConvShape& shape, DType type, Passes passes,
                                          std::int64_t cap) const = 0;
  [[nodiscard]] virtual LinearClaim claim(const DenseShape& shape, DType type, Passes passes,
                                          std::int64_t cap) const = 0;
  /// Claims the beginning of a run of calls, such as convolution + statistics, norm + addition +
  /// activation, or the backward pass of one of these. `cap` limits scratch bytes.
  [[nodiscard]] virtual RunClaim claim(std::span<const OfferedCall>, DType,
                                       std::int64_t /*cap*/) const {
    return {};
  }
};

// Those of builds that have the library. They start it with the first claim, not before: whoever
// only asks for names needs no device.

/// oneDNN, on cores.
[[nodiscard]] std::unique_ptr<Vendor> make_onednn_vendor(bool allow_nondeterministic);
/// cuDNN on the GPU that Kokkos uses, with cublasLt for the weight gradients that are matrix
/// products (ops/cublas), if this build has it. Errors: Internal, at the first claim, if the
/// library does not start.
[[nodiscard]] std::unique_ptr<Vendor> make_cudnn_vendor(bool allow_nondeterministic);

}  // namespace millrace::ops
