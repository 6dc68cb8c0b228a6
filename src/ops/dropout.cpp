// SPDX-License-Identifier: Apache-2.0
#include "ops/dropout.hpp"

#include "ops/lanes.hpp"
#include "ops/optimiser.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

// Number of random blocks of four words computed side by side, in vectors on CPUs.
constexpr std::int64_t kBlocks = device::kOnCores ? 16 : 1;
constexpr std::int64_t kWords = 4 * kBlocks;
// Elements of one sample per work item: for dropout a multiple of kWords, for drop-connect one
// access of 16-bit values on accelerators.
constexpr std::int64_t kRun = device::kOnCores ? 4096 : 4;
constexpr std::int64_t kDropRun = device::kOnCores ? 4096 : 8;
static_assert(kRun % kWords == 0);

std::int64_t runs_of(const SampleShape& shape, std::int64_t length) {
  return (shape.elements + length - 1) / length;
}

/// Elements [first, last) of sample `sample`, at most `length`.
struct Run {
  std::int64_t sample;
  std::int64_t first;
  std::int64_t last;
  KOKKOS_INLINE_FUNCTION Run(const SampleShape& shape, std::int64_t runs, std::int64_t item,
                             std::int64_t length) {
    const Quotient place = divide(item, runs);
    sample = place.quotient;
    first = place.remainder * length;
    last = first + length < shape.elements ? first + length : shape.elements;
  }
};

template <class T, bool kSkip>
struct DropSamples {
  SampleShape shape;
  std::int64_t runs;
  T* y;
  const T* x;
  const T* skip;
  float survival;
  DrawsAt from;
  bool whole;  ///< all runs have kDropRun elements that accelerators may access at once

  template <int W>
  KOKKOS_INLINE_FUNCTION void drop(std::int64_t i, bool keeps) const {
    const LanesIn<W, T> in(x + i);
    const LanesIn<W, T> other((kSkip ? skip : x) + i);
    LanesOut<W, T> out(y + i);
    for (int j = 0; j < W; ++j) {
      const float z = keeps ? to_float(in[j]) / survival : 0.0f;
      if constexpr (kSkip) out.set(j, store_as<T>(rounded_as<T>(z) + to_float(other[j])));
      if constexpr (!kSkip) out.set(j, store_as<T>(z));
    }
  }

  KOKKOS_FUNCTION void operator()(std::int64_t item) const {
    const Run run(shape, runs, item, kDropRun);
    const Draws draws = from.draws();
    const std::int64_t base = run.sample * shape.elements;
    const bool keeps = drop_connect_keeps(draws, draws.first_sample + run.sample, survival);
    if constexpr (!device::kOnCores) {
      if (whole) return drop<kDropRun>(base + run.first, keeps);
    }
    MILLRACE_SIMD
    for (std::int64_t i = base + run.first; i < base + run.last; ++i) drop<1>(i, keeps);
  }
};

}  // namespace

void set_values(const ExecutionSpace& space, CallValues* values, const StepState* step,
                std::int64_t first_sample) {
  const auto set = KOKKOS_LAMBDA(std::int64_t) {
    *values = {static_cast<std::int64_t>(step->values.update.step), first_sample,
               step->values.loss_scaling};
  };
  parallel("set values", space, 1, set);
}

template <class T>
void dropout(const ExecutionSpace& space, const SampleShape& shape, T* y, const T* x, float rate,
             const DrawsAt& from) {
  const std::int64_t runs = runs_of(shape, kRun);
  const auto elements = KOKKOS_LAMBDA(std::int64_t item) {
    const Run run(shape, runs, item, kRun);
    const Draws draws = from.draws();
    const float kept = 1.0f - rate;
    const std::int64_t base = run.sample * shape.elements;
    const std::int64_t blocks = (shape.elements + 3) / 4;
    const std::int64_t first_block = (draws.first_sample + run.sample) * blocks;
    for (std::int64_t e = run.first; e < run.last; e += kWords) {
      std::uint32_t words[kWords];
      const auto step = static_cast<std::uint64_t>(draws.step);
      const auto first = static_cast<std::uint64_t>(first_block + e / 4);
      MILLRACE_SIMD
      for (std::uint64_t b = 0; b < kBlocks; ++b) {
        const RandomBlock drawn = draws.stream.block(step, first + b);
        for (std::size_t k = 0; k < 4; ++k) words[4 * b + k] = drawn[k];
      }
      const std::int64_t count = run.last - e < kWords ? run.last - e : kWords;
      const T* const source = x + base + e;
      T* const target = y + base + e;
      MILLRACE_SIMD
      for (std::int64_t j = 0; j < count; ++j) {
        const float scaled = to_float(source[j]) / kept;
        target[j] = store_as<T>(uniform01(words[j]) >= rate ? scaled : 0.0f);
      }
    }
  };
  parallel("dropout", space, shape.samples * runs, elements);
}

template <class T>
void drop_connect(const ExecutionSpace& space, const SampleShape& shape, T* y, const T* x,
                  const T* skip, float survival, const DrawsAt& from) {
  const std::int64_t runs = runs_of(shape, kDropRun);
  const std::int64_t items = shape.samples * runs;
  const bool whole = shape.elements % kDropRun == 0 && are_aligned(y, x, skip);
  if (skip == nullptr) {
    parallel("drop connect", space, items,
             DropSamples<T, false>{shape, runs, y, x, skip, survival, from, whole});
  } else {
    parallel("drop add", space, items,
             DropSamples<T, true>{shape, runs, y, x, skip, survival, from, whole});
  }
}

MILLRACE_INSTANTIATE(dropout)
MILLRACE_INSTANTIATE(drop_connect)

}  // namespace millrace::ops
