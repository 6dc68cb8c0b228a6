// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::device {

/// Requires that no environment variable limits or redirects the threads of Environment. Errors:
/// Config, naming the variable.
void require_threads(int threads);

/// Subnormal floats, whose magnitude is below 2^-126, cost processors a hundred times the time of
/// others. They appear when gradients or activations fade away: a step of ResNet-14 on one image
/// then took 6.4 s instead of 0.08. Kernels count them as zero, as GPUs and TensorFlow do.
///
/// While this lives, subnormal floats in arguments and results of arithmetic in this thread are
/// zero; copies keep their bits. Threads that it starts inherit this for good. Does nothing on
/// processors other than x86-64 and AArch64.
class SubnormalsAsZero {
 public:
  SubnormalsAsZero();
  ~SubnormalsAsZero();
  SubnormalsAsZero(const SubnormalsAsZero&) = delete;
  SubnormalsAsZero& operator=(const SubnormalsAsZero&) = delete;

  /// The same for this thread for good.
  static void from_now_on();
  /// As before this object, in another thread.
  void end_here() const;

 private:
  std::uint64_t before_;  ///< the thread's control register
};

/// Lifetime of Kokkos in a program of ours. Create it once, before anything that uses device
/// memory, and destroy it last. Meanwhile subnormal floats are zero in this thread and in those of
/// kernels.
class Environment {
 public:
  /// `threads`: number of CPU threads for kernels and for the vendor's library (ignored on a GPU).
  /// `gpu`: number of the GPU to use (ignored on CPU cores); Kokkos chooses one if it is negative.
  /// Errors: those of require_threads.
  explicit Environment(int threads, int gpu = -1);
  ~Environment();
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  SubnormalsAsZero subnormals_;
};

/// For a library, any number of times and in any thread: uses the Kokkos that the program or an
/// earlier call has initialised, or initialises it until the process ends, as Kokkos starts only
/// once. Errors: those of Environment; Config if the process has Kokkos with another number of
/// threads, or another GPU, or no such GPU.
void join_environment(int threads, int gpu = -1);

/// While one lives, this thread of a program may run kernels, and they compute as in a thread of an
/// Environment: with its number of OpenMP threads, which this host thread has for itself, and with
/// subnormal floats as zero. Afterwards the program's own OpenMP and arithmetic are as before.
/// Where kernels wait in a queue, which threads would share, others wait for their turn. Errors:
/// Config in a parallel region of OpenMP.
class Turn {
 public:
  Turn();
  ~Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  std::unique_lock<std::recursive_mutex> lock_;
  SubnormalsAsZero subnormals_;
  int threads_before_ = 0;
};

/// Whether the processor has tiles of bfloat16 (AMX). False where kernels run on a GPU.
[[nodiscard]] bool has_tiles() noexcept;

/// Whether the processor has products of bfloat16 that are slower than those of float32: Intel's
/// with AVX512-BF16 and without AMX. A core of a Xeon of model 207 computes 87 GFLOP/s with them,
/// 178 with those of float32. False where kernels run on a GPU.
[[nodiscard]] bool has_slow_bfloat16() noexcept;

/// Applies MILLRACE_MAX_ISA to the vendor's library, and keeps it from slow products, unless the
/// library's own environment variable is set. Must run before the first use of the library;
/// Environment takes care of that. Errors: Usage, for values of the library's variable that the
/// library would ignore.
void cap_vendor_library();

/// Name of the environment variable that caps the vendor's library, or "".
[[nodiscard]] std::string_view vendor_cap();

/// Prepares the vendor's library for kernels that are made, but not run, before there is an
/// Environment with this number of threads: their scratch memory depends on it.
void expect_threads(int threads);
/// Number of threads of the Environment, or the number that is expected.
[[nodiscard]] int kernel_threads();

/// Gives back what this process keeps for later use: kernels of the vendor's library, and memory
/// that is free. So that resident memory is that of what exists.
void release_unused();

/// Whether kernels run on CPU cores in this build, with the memory of this process; otherwise they
/// run on a GPU, with its memory. True for the fake device, whatever kOnCores says.
[[nodiscard]] bool computes_on_cores();

/// Whether the device has memory of its own, to which images are copied.
[[nodiscard]] bool has_own_memory();

/// Bytes of the device's own memory that are free now; none where kernels run on cores, with the
/// memory of the machine, or where the device does not say. Needs an Environment.
[[nodiscard]] std::optional<std::int64_t> free_memory();

/// Bytes of the device's own memory, free or not; none as above, and where there is no such device,
/// as a training can be planned without it.
[[nodiscard]] std::optional<std::int64_t> total_memory();

/// Numbers of the cores in this process's affinity mask.
[[nodiscard]] std::vector<int> core_numbers();

/// The instruction sets that kernels use, and why they are limited: "own loops avx2; oneDNN 2.6.3
/// up to avx2; capped by MILLRACE_MAX_ISA".
[[nodiscard]] std::string describe_kernels();

/// The part of describe_kernels() that must be equal on all ranks: no information about caps.
[[nodiscard]] std::string describe_arithmetic();

/// Everything about the environment that must match for bit-identical results: "OpenMP, 2 threads;
/// avx512_core_amx; oneDNN 2.6.3; Kokkos 3.4.1". Recorded in checkpoints.
[[nodiscard]] std::string describe_environment();

}  // namespace millrace::device
