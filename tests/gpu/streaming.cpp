// SPDX-License-Identifier: Apache-2.0
//
// Which share of the copy bandwidth of this device millrace's own streaming kernels reach.
//
//   gpu_streaming [--batch N | --small] [THREADS]
//
// A copy within device memory, in the queue of the same execution space, and a kernel take turns. A
// turn is timed by the clock of the device, over several launches. A round's share is the rate of
// the kernel over that of the copy; the medians of all rounds are printed. Bytes are those that a
// kernel must read and write at least (streaming_kernels.hpp), and twice those of the copy's
// source. The last line names the smallest share. The batch is 256 if not given, which takes 5 GB.
// --small runs one round on small sizes, whose shares say nothing. THREADS is for cores (default
// 1), where a copy is made by one thread.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/percentile.hpp"
#include "core/text.hpp"
#include "device/compat.hpp"
#include "device/environment.hpp"
#include "device/queues.hpp"
#include "streaming_kernels.hpp"

namespace millrace::gpu {
namespace {

using device::ExecutionSpace;

constexpr double kBar = 0.85;

struct Patch {
  StreamSizes sizes;
  int rounds = 7;
  int launches = 5;  ///< in a turn
  int threads = 1;
};

std::optional<Patch> options_of(std::span<const char* const> words) {
  Patch options;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i];
    if (word == "--batch" && i + 1 < words.size()) {
      const auto batch = parse_number<int>(words[++i]);
      if (!batch || *batch < 1) return std::nullopt;
      options.sizes.batch = *batch;
    } else if (word == "--small") {
      options.sizes = {.batch = 2, .side = 8, .channels = 32, .parameters = 10'000};
      options.rounds = 1;
    } else if (const auto threads = parse_number<int>(word); threads && *threads > 0) {
      options.threads = *threads;
    } else {
      return std::nullopt;
    }
  }
  return options;
}

/// Bytes per second of `launches` calls of `queue`, each of which moves `bytes`.
template <class Queue>
double rate_of(const ExecutionSpace& space, int launches, std::int64_t bytes, const Queue& queue) {
  device::Event begin;
  device::Event end;
  device::settle(space);
  begin.mark(space);
  for (int i = 0; i < launches; ++i) queue(space);
  device::settle(space);
  end.mark(space);
  end.wait();
  const std::int64_t nanoseconds = std::max<std::int64_t>(begin.nanoseconds_until(end), 1);
  return 1e9 * static_cast<double>(launches) * static_cast<double>(bytes) /
         static_cast<double>(nanoseconds);
}

/// As much memory as the largest activation in float32.
class Copy {
 public:
  explicit Copy(const StreamSizes& sizes)
      : from_(4 * sizes.elements()), to_(4 * sizes.elements()) {}

  /// Reads and writes.
  [[nodiscard]] std::int64_t bytes() const { return 2 * from_.bytes(); }
  void operator()(const ExecutionSpace& space) const {
    device::queue_copy(space, device::Direction::Within, to_.at(), from_.at(), from_.bytes());
  }

 private:
  Buffer from_;
  Buffer to_;
};

struct Rates {
  std::vector<double> copy;  ///< bytes per second, one a round
  std::vector<double> kernel;
  std::vector<double> share;
};

/// The first round warms up.
Rates measure(const Patch& options, const Copy& copy, const StreamingKernel& kernel) {
  const ExecutionSpace space;
  Rates rates;
  for (int round = -1; round < options.rounds; ++round) {
    const double copied = rate_of(space, options.launches, copy.bytes(), copy);
    const double moved = rate_of(space, options.launches, kernel.bytes(), kernel.queue);
    if (round < 0) continue;
    rates.copy.push_back(copied);
    rates.kernel.push_back(moved);
    rates.share.push_back(moved / copied);
  }
  return rates;
}

void measure_all(const Patch& options) {
  const Copy copy(options.sizes);
  std::vector<double> copied;
  std::string slowest;
  double smallest = 0.0;
  int reached = 0;
  const std::vector<StreamingRecipe> recipes = streaming_recipes();
  fmt::print("{:<40} {:>11} {:>8} {:>8}\n", "kernel", "MB a launch", "GB/s", "share");
  for (const StreamingRecipe& recipe : recipes) {
    const StreamingKernel kernel = recipe.make(options.sizes);
    const Rates rates = measure(options, copy, kernel);
    const double share = percentile_of(rates.share, 0.5);
    fmt::print("{:<40} {:>11.3f} {:>8.1f} {:>6.1f} %\n", recipe.name,
               1e-6 * static_cast<double>(kernel.bytes()), 1e-9 * percentile_of(rates.kernel, 0.5),
               100.0 * share);
    (void)std::fflush(stdout);  // for whoever ends this program before its last line
    copied.insert(copied.end(), rates.copy.begin(), rates.copy.end());
    if (share >= kBar) ++reached;
    if (!slowest.empty() && share >= smallest) continue;
    smallest = share;
    slowest = recipe.name;
  }
  fmt::print(
      "smallest share {:.1f} %: {}; {} of {} kernels reach {:.0f} % of a copy's {:.0f} GB/s\n",
      100.0 * smallest, slowest, reached, recipes.size(), 100.0 * kBar,
      1e-9 * percentile_of(copied, 0.5));
}

int run(std::span<const char* const> words) {
  const std::optional<Patch> options = options_of(words);
  if (!options) {
    fmt::print(stderr, "usage: gpu_streaming [--batch N | --small] [THREADS]\n");
    return 2;
  }
  const device::Environment environment(options->threads);
  fmt::print("{}\n", device::describe_environment());
  measure_all(*options);
  return 0;
}

}  // namespace
}  // namespace millrace::gpu

int main(int argc, char** argv) {
  try {
    return millrace::gpu::run({argv + 1, static_cast<std::size_t>(argc - 1)});
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpu_streaming: {}\n", error.what());
    return 1;
  }
}
