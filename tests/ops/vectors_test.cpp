// SPDX-License-Identifier: Apache-2.0
//
// Checks that hot loops use vector instructions at every instruction level, by counting. A child
// process at that level runs a kernel over n and over 2n elements while the parent single-steps it;
// the difference is the number of instructions for n elements. A scalar loop takes one instruction
// per operation and element, a vector loop takes that number divided by its lanes.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/instruction_level.hpp"
#include "device/environment.hpp"
#include "ops/channels.hpp"
#include "ops/elementwise.hpp"
#include "ops/linear_ops.hpp"
#include "ops/norm.hpp"
#include "ops/optimiser.hpp"
#include "ops/pool.hpp"
#include "tests/ops/device_values.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;

constexpr std::int64_t kElements = 128;
constexpr std::int64_t kChannels = 64;

/// Memory for any kernel here, filled with ones.
struct Operands {
  explicit Operands(std::int64_t n)
      : a(values(n)), b(values(n)), c(values(n)), d(values(n)), floats(Values(16 * 8192, 1.0)) {}
  static Values values(std::int64_t n) { return Values(static_cast<std::size_t>(2 * n), 1.0); }
  template <class T>
  static T* as(DeviceValues<float>& memory) {
    return reinterpret_cast<T*>(memory.raw());
  }
  DeviceValues<float> a, b, c, d, floats;
};

/// Instructions per vector of elements at each level, as compiled by GCC 12, including loads,
/// stores and loop control. A scalar loop takes about that number per element.
struct Operations {
  std::string_view name;
  std::array<double, kInstructionLevels.size()> by_level;
};
constexpr auto kOperations = std::to_array<Operations>({
    {"NormApplyReluFloat32", {10, 6, 5}},
    {"NormReduceReluFloat32", {19, 16, 11}},
    {"NormBackwardReluFloat32", {17, 14, 11}},
    {"NormApplySwishFloat32", {68, 51, 48}},
    {"NormReduceSwishFloat32", {91, 65, 64}},
    {"NormBackwardSwishFloat32", {88, 64, 63}},
    {"NormAddFloat32", {13, 7, 7}},
    {"NormStatisticsFloat32", {15, 12, 12}},
    {"SwishFloat32", {64, 48, 47}},
    {"SwishBackwardFloat32", {79, 56, 55}},
    {"AddReluFloat32", {10, 8, 8}},
    {"WidenFloat32", {5, 5, 5}},
    {"ConvertFloat32", {5, 5, 5}},
    {"MaxPoolFloat32", {91, 129, 219}},
    {"MaxPoolBackwardFloat32", {46, 65, 109}},
    {"GlobalAverageBackwardFloat32", {8, 8, 10}},
    {"GlobalAverageFloat32", {4, 4, 5}},
    {"ScaleFloat32", {9, 9, 11}},
    {"ScaleBackwardFloat32", {11, 10, 11}},
    {"NormApplyReluBfloat16", {29, 25, 17}},
    {"NormReduceReluBfloat16", {40, 32, 30}},
    {"NormBackwardReluBfloat16", {52, 43, 36}},
    {"NormApplySwishBfloat16", {128, 97, 75}},
    {"NormReduceSwishBfloat16", {147, 108, 90}},
    {"NormBackwardSwishBfloat16", {154, 116, 97}},
    {"NormAddBfloat16", {47, 40, 30}},
    {"NormStatisticsBfloat16", {19, 15, 16}},
    {"SwishBfloat16", {98, 71, 64}},
    {"SwishBackwardBfloat16", {100, 78, 70}},
    {"AddReluBfloat16", {30, 26, 24}},
    {"WidenBfloat16", {6, 6, 6}},
    {"ConvertBfloat16", {21, 18, 13}},
    {"MaxPoolBfloat16", {106, 136, 218}},
    {"MaxPoolBackwardBfloat16", {72, 87, 120}},
    {"GlobalAverageBackwardBfloat16", {26, 25, 27}},
    {"GlobalAverageBfloat16", {6, 6, 7}},
    {"ScaleBfloat16", {29, 28, 28}},
    {"ScaleBackwardBfloat16", {32, 29, 28}},
    {"NormApplyReluFloat16", {133, 121, 78}},
    {"NormReduceReluFloat16", {110, 95, 71}},
    {"NormBackwardReluFloat16", {157, 141, 96}},
    {"NormApplySwishFloat16", {188, 166, 118}},
    {"NormReduceSwishFloat16", {224, 182, 146}},
    {"NormBackwardSwishFloat16", {286, 230, 174}},
    {"NormAddFloat16", {187, 166, 114}},
    {"NormStatisticsFloat16", {66, 56, 44}},
    {"SwishFloat16", {132, 128, 96}},
    {"SwishBackwardFloat16", {214, 188, 137}},
    {"AddReluFloat16", {152, 138, 88}},
    {"WidenFloat16", {29, 23, 20}},
    {"ConvertFloat16", {45, 48, 26}},
    {"MaxPoolFloat16", {247, 253, 318}},
    {"MaxPoolBackwardFloat16", {194, 184, 195}},
    {"GlobalAverageBackwardFloat16", {80, 83, 62}},
    {"GlobalAverageFloat16", {34, 29, 22}},
    {"ScaleFloat16", {134, 131, 97}},
    {"ScaleBackwardFloat16", {108, 109, 80}},
    {"Momentum", {17, 13, 13}},
    {"MomentumCopied", {34, 28, 45}},
    {"RmsProp", {28, 21, 21}},
});

/// A kernel over n elements.
struct Loop {
  std::string name;
  std::function<void(const ExecutionSpace&, Operands&, std::int64_t n)> run;
};

template <class T>
void add_norm_loops(const std::string& type, std::vector<Loop>& loops) {
  const auto rows = [](std::int64_t n) { return batch_norm_shape(n / kChannels, kChannels); };
  const auto as = Operands::as<T>;
  for (const auto& [fn, name] :
       {std::pair{Activation::Relu, "Relu"}, std::pair{Activation::Swish, "Swish"}}) {
    loops.push_back({"NormApply" + std::string(name) + type,
                     [=, fn = fn](const ExecutionSpace& space, Operands& o, std::int64_t n) {
                       const float* f = o.floats.data();
                       const T* none = nullptr;
                       norm_apply<T>(space, rows(n), as(o.a), as(o.b), none, f, f, f, fn);
                     }});
    loops.push_back({"NormReduce" + std::string(name) + type,
                     [=, fn = fn](const ExecutionSpace& space, Operands& o, std::int64_t n) {
                       float* f = o.floats.data();
                       NormBackwardReduce<T> args;
                       args.dy = as(o.a);
                       args.x = as(o.b);
                       args.statistics = args.gamma = args.beta = f;
                       args.dgamma = f + 1024;
                       args.dbeta = f + 2048;
                       args.coefficients = f + 4096;
                       args.scratch = f + 8192;
                       args.fn = fn;
                       norm_backward_reduce<T>(space, rows(n), args);
                     }});
    loops.push_back({"NormBackward" + std::string(name) + type,
                     [=, fn = fn](const ExecutionSpace& space, Operands& o, std::int64_t n) {
                       const float* f = o.floats.data();
                       norm_backward_apply<T>(space, rows(n), as(o.a), as(o.b), as(o.c), f, f, f, f,
                                              fn);
                     }});
  }
  loops.push_back({"NormAdd" + type, [=](const ExecutionSpace& space, Operands& o, std::int64_t n) {
                     const float* f = o.floats.data();
                     norm_apply<T>(space, rows(n), as(o.a), as(o.b), as(o.c), f, f, f,
                                   Activation::Relu);
                   }});
  loops.push_back(
      {"NormStatistics" + type, [=](const ExecutionSpace& space, Operands& o, std::int64_t n) {
         float* f = o.floats.data();
         norm_statistics<T>(space, rows(n), f, {}, f + 8192, as(o.a), 1e-5f);
       }});
}

template <class T>
void add_elementwise_loops(const std::string& type, std::vector<Loop>& loops) {
  const auto as = Operands::as<T>;
  loops.push_back({"Swish" + type, [=](const ExecutionSpace& space, Operands& o, std::int64_t n) {
                     activation_forward<T>(space, as(o.a), as(o.b), n, Activation::Swish);
                   }});
  loops.push_back(
      {"SwishBackward" + type, [=](const ExecutionSpace& space, Operands& o, std::int64_t n) {
         activation_backward<T>(space, as(o.a), as(o.b), as(o.c), n, Activation::Swish);
       }});
  loops.push_back({"AddRelu" + type, [=](const ExecutionSpace& space, Operands& o, std::int64_t n) {
                     add_forward<T>(space, as(o.a), as(o.b), as(o.c), n, Activation::Relu);
                   }});
  loops.push_back({"Widen" + type, [=](const ExecutionSpace& space, Operands& o, std::int64_t n) {
                     widen<T>(space, o.a.data(), as(o.b), n);
                   }});
  loops.push_back({"Convert" + type, [=](const ExecutionSpace& space, Operands& o, std::int64_t n) {
                     convert<T>(space, as(o.a), o.b.data(), n);
                   }});
}

template <class T>
void add_image_loops(const std::string& type, std::vector<Loop>& loops) {
  const auto as = Operands::as<T>;
  // Images of n / channels pixels in rows of 2.
  const auto image = [](std::int64_t n) { return Shape{n / kChannels / 2, 2, kChannels}; };
  const auto pool = [=](std::int64_t n) {
    WindowShape s;
    s.in = s.out = image(n);
    s.kernel_h = s.kernel_w = 2;
    return s;
  };
  loops.push_back({"MaxPool" + type, [=](const ExecutionSpace& space, Operands& o, std::int64_t n) {
                     max_pool_forward<T>(space, pool(n), as(o.a), Operands::as<std::uint8_t>(o.c),
                                         as(o.b));
                   }});
  loops.push_back(
      {"MaxPoolBackward" + type, [=](const ExecutionSpace& space, Operands& o, std::int64_t n) {
         max_pool_backward<T>(space, pool(n), as(o.a), as(o.b), Operands::as<std::uint8_t>(o.c));
       }});
  loops.push_back({"GlobalAverageBackward" + type,
                   [=](const ExecutionSpace& space, Operands& o, std::int64_t n) {
                     global_average_backward<T>(space, 1, image(n), as(o.a), as(o.b));
                   }});
  loops.push_back(
      {"GlobalAverage" + type, [=](const ExecutionSpace& space, Operands& o, std::int64_t n) {
         global_average_forward<T>(space, 1, image(n), as(o.a), as(o.b));
       }});
  const auto scale = [](std::int64_t n) { return ScaleShape{1, n / kChannels, kChannels}; };
  loops.push_back({"Scale" + type, [=](const ExecutionSpace& space, Operands& o, std::int64_t n) {
                     const T* none = nullptr;
                     scale_forward<T>(space, scale(n), as(o.a), as(o.b), as(o.c), none,
                                      Activation::None);
                   }});
  loops.push_back(
      {"ScaleBackward" + type, [=](const ExecutionSpace& space, Operands& o, std::int64_t n) {
         scale_backward<T>(space, scale(n), as(o.a), as(o.d), as(o.b), as(o.c), as(o.floats));
       }});
}

/// One span after another.
void update(const ExecutionSpace& space, UpdateRule rule, Operands& o, std::int64_t n, DType copy) {
  std::vector<ParameterSpan> spans;
  for (std::int64_t at = 0; at < n; at += kSpanElements)
    spans.push_back({.offset = at, .elements = std::min(kSpanElements, n - at), .decays = true});
  const DeviceRecords<ParameterSpan> on_device(spans);
  update_weights<float>(space, rule, {},
                        {.weights = o.a.data(),
                         .velocity = o.b.data(),
                         .mean_square = o.c.data(),
                         .gradients = o.d.data(),
                         .copy = copy == DType::F32 ? nullptr : o.floats.raw(),
                         .copy_type = copy,
                         .spans = on_device.data(),
                         .num_spans = std::ssize(spans)});
}

std::vector<Loop> all_loops() {
  std::vector<Loop> loops;
  const auto add = [&]<class T>(const std::string& type, T) {
    add_norm_loops<T>(type, loops);
    add_elementwise_loops<T>(type, loops);
    add_image_loops<T>(type, loops);
  };
  add("Float32", float{});
  add("Bfloat16", bfloat16{});
  add("Float16", float16{});
  loops.push_back({"Momentum", [](const ExecutionSpace& space, Operands& o, std::int64_t n) {
                     update(space, UpdateRule::Momentum, o, n, DType::F32);
                   }});
  loops.push_back({"MomentumCopied", [](const ExecutionSpace& space, Operands& o, std::int64_t n) {
                     update(space, UpdateRule::Momentum, o, n, DType::BF16);
                   }});
  loops.push_back({"RmsProp", [](const ExecutionSpace& space, Operands& o, std::int64_t n) {
                     update(space, UpdateRule::RmsProp, o, n, DType::F32);
                   }});
  return loops;
}

int lanes_of(InstructionLevel level) {
  return level == InstructionLevel::Avx512 ? 16 : level == InstructionLevel::Avx2 ? 8 : 4;
}

/// Instructions per element as recorded in kOperations; 0 for a new loop.
double expected_of(const Loop& loop, InstructionLevel level) {
  const auto* const found =
      std::find_if(kOperations.begin(), kOperations.end(),
                   [&](const Operations& operations) { return operations.name == loop.name; });
  if (found == kOperations.end()) return 0.0;
  return found->by_level.at(static_cast<std::size_t>(level)) / lanes_of(level);
}

/// Leaves some margin for other compilers.
double limit_of(const Loop& loop, InstructionLevel level) {
  return 1.3 * expected_of(loop, level) + 0.1;
}

// ---- stepping -----------------------------------------------------------------------------------

constexpr int kMark = SIGUSR2;
constexpr int kNoStepping = 77;

/// Runs before the measured ones, which load pages and symbols and bring the heap to its final
/// size.
constexpr int kWarmUp = 32;

/// The child: runs each loop `repeats` times over kElements and then over twice that number,
/// between marks.
[[noreturn]] void run_loops(InstructionLevel level, const std::vector<Loop>& loops, int repeats) {
  setenv("MILLRACE_MAX_ISA", std::string(name_of(level)).c_str(), 1);
  if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(kNoStepping);
  const device::Environment environment(1);
  {
    const ExecutionSpace space;
    Operands operands(2 * kElements);
    for (const Loop& loop : loops) {
      for (const std::int64_t n : {kElements, 2 * kElements}) {
        for (int i = 0; i < kWarmUp; ++i) loop.run(space, operands, n);
        for (int i = 0; i < repeats; ++i) {
          (void)raise(kMark);
          loop.run(space, operands, n);
          (void)raise(kMark);
        }
      }
    }
  }
  _exit(0);
}

/// Continues the child by one instruction or to its next mark. Returns the signal that stopped it,
/// or nullopt if it ended.
std::optional<int> go_on(pid_t child, decltype(PTRACE_CONT) how) {
  int status = 0;
  if (ptrace(how, child, nullptr, nullptr) != 0 || waitpid(child, &status, 0) != child)
    return std::nullopt;
  return WIFSTOPPED(status) ? std::optional(WSTOPSIG(status)) : std::nullopt;
}

/// Number of instructions up to the next mark.
std::int64_t count_to_mark(pid_t child) {
  std::int64_t instructions = 0;
  while (go_on(child, PTRACE_SINGLESTEP) == SIGTRAP) ++instructions;
  return instructions;
}

void stay_on_one_core() {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  CPU_SET(sched_getcpu(), &mine);
  (void)sched_setaffinity(0, sizeof mine, &mine);
}

/// Instructions per element of each loop at a level, from the shortest of several runs. Empty if
/// single-stepping is not permitted.
std::vector<double> instructions_of(InstructionLevel level, const std::vector<Loop>& loops,
                                    int repeats) {
  stay_on_one_core();  // shared with the child, because each step switches between the two
  const pid_t child = fork();
  if (child == 0) run_loops(level, loops, repeats);
  std::vector<double> result;
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) return {};
  bool at_mark = true;  // the child waits at its first one
  for ([[maybe_unused]] const Loop& loop : loops) {
    std::int64_t counted[2] = {};
    for (std::int64_t& least : counted) {
      least = std::numeric_limits<std::int64_t>::max();
      for (int i = 0; i < repeats; ++i) {
        if (!at_mark && go_on(child, PTRACE_CONT) != kMark) return result;
        at_mark = false;
        least = std::min(least, count_to_mark(child));
      }
    }
    result.push_back(static_cast<double>(counted[1] - counted[0]) / static_cast<double>(kElements));
  }
  (void)kill(child, SIGKILL);
  (void)waitpid(child, &status, 0);
  return result;
}

class Vectors : public testing::TestWithParam<InstructionLevel> {
 protected:
  void SetUp() override {
#if !defined(MILLRACE_LEVELS)
    GTEST_SKIP() << "this build has one instruction level";
#elif defined(__clang__)
    GTEST_SKIP() << "clang does not vectorize all of these loops";
#endif
    if (!machine_level() || GetParam() > *machine_level())
      GTEST_SKIP() << "this processor has no " << name_of(GetParam());
  }
};

TEST_P(Vectors, AreUsedInHotLoops) {
  const std::vector<Loop> loops = all_loops();
  std::vector<double> instructions = instructions_of(GetParam(), loops, 1);
  if (instructions.empty()) GTEST_SKIP() << "single-stepping of processes is not permitted here";
  ASSERT_EQ(instructions.size(), loops.size()) << "ended in " << loops[instructions.size()].name;
  // A single run may include occasional work of libraries; the shortest of several runs does not.
  for (std::size_t i = 0; i < loops.size(); ++i) {
    const bool plausible = instructions[i] <= limit_of(loops[i], GetParam()) &&
                           instructions[i] >= 0.7 * expected_of(loops[i], GetParam());
    if (plausible) continue;
    const std::vector<double> again = instructions_of(GetParam(), {loops[i]}, 8);
    if (!again.empty()) instructions[i] = again[0];
  }
  for (std::size_t i = 0; i < loops.size(); ++i) {
    std::printf("%-28s %6.2f instructions per element\n", loops[i].name.c_str(), instructions[i]);
    EXPECT_LE(instructions[i], limit_of(loops[i], GetParam())) << loops[i].name;
  }
}

/// Tests the counter with a loop that cannot be vectorized.
TEST_P(Vectors, AreDistinguishedFromScalars) {
  const Loop scalar{"Scalar", [](const ExecutionSpace&, Operands& o, std::int64_t n) {
                      volatile float* values = o.a.data();
                      for (std::int64_t i = 0; i < n; ++i) values[i] = values[i] + 1.0f;
                    }};
  const std::vector<double> instructions = instructions_of(GetParam(), {scalar}, 2);
  if (instructions.empty()) GTEST_SKIP() << "single-stepping of processes is not permitted here";
  EXPECT_GE(instructions[0], 3.0);
}

std::string name_of_param(const testing::TestParamInfo<InstructionLevel>& level) {
  const std::string name(name_of(level.param));
  return name == "sse4.2" ? "Sse42" : name == "avx2" ? "Avx2" : "Avx512";
}

INSTANTIATE_TEST_SUITE_P(Levels, Vectors, testing::ValuesIn(kInstructionLevels), name_of_param);

}  // namespace
}  // namespace millrace::ops
