// SPDX-License-Identifier: Apache-2.0
#include "ops/cudnn/stopwatch.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "device/arena.hpp"
#include "device/compat.hpp"
#include "device/queues.hpp"

namespace millrace::ops::cudnn {
namespace {

/// The arrays of a pass, one after the other in one allocation. A processor that multiplies zeros
/// takes less power and runs faster than in a training, so they hold numbers.
class Operands {
 public:
  Operands(const PassShape& pass, std::int64_t scratch)
      : arena_(starts(pass, scratch).back()), starts_(starts(pass, scratch)) {
    fill(pass.type);
  }
  [[nodiscard]] std::array<void*, 4> addresses() const {
    return {arena_.at(starts_[0]), arena_.at(starts_[1]), arena_.at(starts_[2]),
            arena_.at(starts_[3])};
  }
  [[nodiscard]] std::byte* scratch() const { return arena_.at(starts_[4]); }

 private:
  using Starts = std::array<std::int64_t, 6>;
  /// Of input, kernel, output, bias and scratch, and the end.
  static Starts starts(const PassShape& pass, std::int64_t scratch) {
    const ConvShape& s = pass.shape;
    const std::int64_t each = size_of(pass.type);
    const std::array<std::int64_t, 5> bytes = {
        s.window.in_elements() * each, s.kernel_elements() * each, s.window.out_elements() * each,
        s.window.out.c * size_of(DType::F32), scratch};
    Starts starts = {};
    for (std::size_t i = 0; i < bytes.size(); ++i)
      starts[i + 1] = starts[i] + device::aligned(bytes[i]);
    return starts;
  }

  void fill(DType type) {
    constexpr std::int64_t kValues = 1 << 16;
    device::dispatch(type, [&]<class T>() {
      const std::shared_ptr<std::byte> host = device::host_buffer(kValues * sizeof(T));
      T* const values = reinterpret_cast<T*>(host.get());
      for (std::int64_t i = 0; i < kValues; ++i)
        values[i] = T(static_cast<float>((i * 2'654'435'761 >> 8) % 2001 - 1000) * 1e-3f);
      constexpr auto kPiece = static_cast<std::int64_t>(kValues * sizeof(T));
      for (std::int64_t at = 0; at < starts_[4]; at += kPiece)
        device::copy_to_device(arena_.at(at), host.get(), std::min(kPiece, starts_[4] - at));
    });
  }

  device::Arena arena_;
  Starts starts_;
};

}  // namespace

std::optional<double> measure_plan(const Context& context, const PassShape& pass,
                                   const Plan& plan) {
  constexpr int kWarmUp = 3;
  constexpr int kRuns = 15;
  const device::ExecutionSpace space;
  const Operands operands(pass, plan.scratch);
  const std::array<std::int64_t, 4> numbers = {kInput, kKernel, kOutput, kBias};
  const std::array<void*, 4> tensors = operands.addresses();
  const std::size_t count = pass.shape.bias && pass.pass == Pass::Forward ? 4 : 3;
  std::array<device::Event, kRuns + 1> events;
  try {
    for (int run = -kWarmUp; run < kRuns; ++run) {
      if (run >= 0) events.at(static_cast<std::size_t>(run)).mark(space);
      context.run(space, plan, std::span(numbers).first(count), std::span(tensors).first(count),
                  operands.scratch());
    }
    events.back().mark(space);
    events.back().wait();
    std::array<std::int64_t, kRuns> times = {};
    for (std::size_t run = 0; run < times.size(); ++run)
      times[run] = events[run].nanoseconds_until(events[run + 1]);
    std::ranges::nth_element(times, times.begin() + kRuns / 2);
    return 1e-3 * static_cast<double>(times[kRuns / 2]);
  } catch (const Error&) {
    return std::nullopt;  // another candidate may run
  }
}

}  // namespace millrace::ops::cudnn
