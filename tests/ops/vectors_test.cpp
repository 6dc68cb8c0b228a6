// SPDX-License-Identifier: Apache-2.0
//
// Checks that hot loops use vector instructions at every instruction level, by counting. A child
// process at that level runs a kernel over n and over 2n elements while the parent single-steps it;
// the difference is the number of instructions for n elements. A scalar loop takes one instruction
// per operation and element, a vector loop takes that number divided by its lanes.
#include <sched.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <cstdlib>

#include "core/instruction_level.hpp"
#include "device/environment.hpp"
#include "ops/channels.hpp"
#include "ops/elementwise.hpp"
#include "ops/linear.hpp"
#include "ops/norm.hpp"
#include "ops/optimiser.hpp"
#include "ops/pool.hpp"
#include "tests/ops/device_values.hpp"
#include "tests/ops/shapes.hpp"

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
  DeviceValues<float> images = DeviceValues<float>(Values(2 * 16 * 2 * kElements, 1.0));  ///< two
};

/// Instructions per vector of elements at each level, as compiled by GCC 12, including loads,
/// stores and loop control. A scalar loop takes about that number per element.
using ByLevel = std::array<double, kInstructionLevels.size()>;

/// A kernel over n elements, and what it takes; nothing is known of a new one.
struct Loop {
  std::string name;
  DType type;
  std::function<void(const ExecutionSpace&, Operands&, std::int64_t n)> run;
  ByLevel instructions = {};
};

/// What a kernel of T over n elements gets.
template <class T>
struct Arguments {
  const ExecutionSpace& space;
  T *a, *b, *c, *d;
  float *fa, *fb, *f;
  std::int64_t n;

  [[nodiscard]] NormShape rows() const { return batch_norm_shape(n / kChannels, kChannels); }
  /// n / channels pixels in rows of 2.
  [[nodiscard]] Shape image() const { return {n / kChannels / 2, 2, kChannels}; }
  [[nodiscard]] WindowShape pool() const {
    WindowShape s;
    s.in = s.out = image();
    s.kernel_h = s.kernel_w = 2;
    return s;
  }
  [[nodiscard]] ScaleShape scale() const { return {1, n / kChannels, kChannels}; }
  [[nodiscard]] std::uint8_t* winners() const { return reinterpret_cast<std::uint8_t*>(c); }
};

/// Calls add(name, instructions with float, bfloat16 and float16, kernel) for every kernel.
template <class T, class Add>
void for_each_norm(const Add& add) {
  using Args = Arguments<T>;
  const auto apply = [](Activation fn) {
    return [fn](const Args& o) {
      norm_apply<T>(o.space, o.rows(), o.a, o.b, nullptr, o.f, o.f, o.f, fn);
    };
  };
  const auto reduce = [](Activation fn) {
    return [fn](const Args& o) {
      NormBackwardReduce<T> args;
      args.dy = o.a;
      args.x = o.b;
      args.statistics = args.gamma = args.beta = o.f;
      args.dgamma = o.f + 1024;
      args.dbeta = o.f + 2048;
      args.coefficients = o.f + 4096;
      args.scratch = {o.f + 8192, nullptr};  // no counters on cores
      args.fn = fn;
      norm_backward_reduce<T>(o.space, o.rows(), args);
    };
  };
  const auto backward = [](Activation fn) {
    return [fn](const Args& o) {
      norm_backward_apply<T>(o.space, o.rows(), o.a, o.b, o.c, o.f, o.f, o.f, o.f, fn);
    };
  };
  add("NormApplyRelu", {10, 6, 5}, {29, 25, 17}, {133, 121, 78}, apply(Activation::Relu));
  add("NormReduceRelu", {19, 16, 11}, {40, 32, 30}, {110, 95, 71}, reduce(Activation::Relu));
  add("NormBackwardRelu", {17, 14, 11}, {52, 43, 36}, {157, 141, 96}, backward(Activation::Relu));
  add("NormApplySwish", {32, 28, 25}, {70, 60, 52}, {181, 164, 115}, apply(Activation::Swish));
  add("NormReduceSwish", {48, 41, 44}, {87, 72, 68}, {218, 188, 140}, reduce(Activation::Swish));
  add("NormBackwardSwish", {45, 39, 41}, {101, 84, 74}, {274, 236, 167},
      backward(Activation::Swish));
  add("NormAdd", {13, 7, 7}, {47, 40, 30}, {187, 166, 114}, [](const Args& o) {
    norm_apply<T>(o.space, o.rows(), o.a, o.b, o.c, o.f, o.f, o.f, Activation::Relu);
  });
  add("NormStatistics", {15, 12, 12}, {19, 15, 16}, {66, 56, 44}, [](const Args& o) {
    norm_statistics<T>(o.space, o.rows(), o.f, {}, {o.f + 8192, nullptr}, o.a, 1e-5f);
  });
}

template <class T, class Add>
void for_each_other(const Add& add) {
  using Args = Arguments<T>;
  add("Swish", {29, 25, 25}, {48, 41, 36}, {94, 96, 72},
      [](const Args& o) { activation_forward<T>(o.space, o.a, o.b, o.n, Activation::Swish); });
  add("SwishBackward", {37, 29, 29}, {60, 49, 44}, {175, 170, 123}, [](const Args& o) {
    activation_backward<T>(o.space, o.a, o.b, o.c, o.n, Activation::Swish);
  });
  add("AddRelu", {10, 8, 8}, {30, 26, 24}, {152, 138, 88},
      [](const Args& o) { add_forward<T>(o.space, o.a, o.b, o.c, o.n, Activation::Relu); });
  add("Widen", {5, 5, 5}, {6, 6, 6}, {29, 23, 20},
      [](const Args& o) { widen<T>(o.space, o.fa, o.b, o.n); });
  add("Convert", {5, 5, 5}, {21, 18, 13}, {45, 48, 26},
      [](const Args& o) { convert<T>(o.space, o.a, o.fb, o.n); });
  add("MaxPool", {91, 129, 219}, {106, 136, 218}, {247, 253, 318},
      [](const Args& o) { max_pool_forward(o.space, o.pool(), o.a, o.winners(), o.b); });
  add("MaxPoolBackward", {46, 65, 109}, {72, 87, 120}, {194, 184, 195},
      [](const Args& o) { max_pool_backward(o.space, o.pool(), o.a, o.b, o.winners()); });
  add("GlobalAverageBackward", {8, 8, 10}, {26, 25, 27}, {80, 83, 62},
      [](const Args& o) { global_average_backward<T>(o.space, 1, o.image(), o.a, o.b); });
  add("GlobalAverage", {4, 4, 5}, {6, 6, 7}, {34, 29, 22},
      [](const Args& o) { global_average_forward<T>(o.space, 1, o.image(), o.a, o.b); });
  add("Scale", {9, 9, 11}, {29, 28, 28}, {134, 131, 97}, [](const Args& o) {
    const T* const none = nullptr;
    scale_forward<T>(o.space, o.scale(), o.a, o.b, o.c, none, Activation::None);
  });
  add("ScaleBackward", {11, 10, 11}, {32, 29, 28}, {108, 109, 80}, [](const Args& o) {
    scale_backward<T>(o.space, o.scale(), o.a, o.d, o.b, o.c, reinterpret_cast<T*>(o.f));
  });
}

/// One span after another.
void update(const ExecutionSpace& space, UpdateRule rule, Operands& o, std::int64_t n, DType copy) {
  std::vector<ParameterSpan> spans;
  for (std::int64_t at = 0; at < n; at += kSpanElements)
    spans.push_back({.offset = at, .elements = std::min(kSpanElements, n - at), .decays = true});
  const DeviceRecords<ParameterSpan> on_device(spans);
  const DeviceRecords<StepState> step({StepState{}});
  update_weights<float>(space, rule, step.data(),
                        {.weights = o.a.data(),
                         .velocity = o.b.data(),
                         .mean_square = o.c.data(),
                         .gradients = o.d.data(),
                         .copy = copy == DType::F32 ? nullptr : o.floats.raw(),
                         .copy_type = copy,
                         .spans = on_device.data(),
                         .num_spans = std::ssize(spans)});
}

/// A convolution by Winograd's kernels, from 16 to 16 channels, with the memory it needs.
struct WinogradOp {
  explicit WinogradOp(const Shape& image)
      : shape(ConvCase{"", 1, image, 16, {3, 3}, {1, 1}, {1, 1, 1, 1}}.shape()),
        op(make_winograd(shape, DType::F32, {})),
        packed_forward(op->bytes().packed_forward),
        packed_backward(op->bytes().packed_backward),
        scratch(op->bytes().scratch) {
    op->bind({.kernel = kernel.raw(),
              .bias = nullptr,
              .dkernel = dkernel.data(),
              .dbias = nullptr,
              .packed_forward = packed_forward.raw(),
              .packed_backward = packed_backward.raw(),
              .scratch = scratch.raw()});
    op->pack(ExecutionSpace(), true);
  }
  ConvShape shape;
  std::unique_ptr<LinearOp> op;
  DeviceValues<float> kernel = DeviceValues<float>(Values(9 * 16 * 16, 1.0));
  DeviceValues<float> dkernel = DeviceValues<float>(9 * 16 * 16);
  DeviceValues<std::uint8_t> packed_forward, packed_backward, scratch;
};

/// Calls add(name, instructions, kernel) for the passes over an image of 4 x n/4 pixels, 16 n
/// values: n/16 tiles.
template <class Add>
void for_each_winograd_pass(const Add& add) {
  const auto pass = [](const auto& call) {
    const auto made = std::make_shared<std::map<std::int64_t, WinogradOp>>();
    return [=](const ExecutionSpace& space, Operands& o, std::int64_t n) {
      const Shape image{4, n / 4, 16};
      call(*made->try_emplace(n, image).first->second.op, space, o.images.raw(),
           o.images.raw() + 4 * 16 * n);
    };
  };
  add("WinogradForward", {0, 2490, 3120},
      pass([](LinearOp& op, const ExecutionSpace& space, std::byte* a, std::byte* b) {
        op.forward(space, a, b);
      }));
  add("WinogradInput", {0, 2490, 3120},
      pass([](LinearOp& op, const ExecutionSpace& space, std::byte* a, std::byte* b) {
        op.backward_input(space, a, b);
      }));
  add("WinogradWeight", {0, 2240, 2390},
      pass([](LinearOp& op, const ExecutionSpace& space, std::byte* a, std::byte* b) {
        op.backward_weight(space, a, b, true);
      }));
}

std::vector<Loop> loops_at(InstructionLevel level) {
  std::vector<Loop> loops;
  for (const DType type : {DType::F32, DType::BF16, DType::F16})
    device::dispatch(type, [&]<class T>() {
      const auto add = [&](const char* name, const ByLevel& of_float32, const ByLevel& of_bfloat16,
                           const ByLevel& of_float16, const auto& kernel) {
        const auto run = [kernel](const ExecutionSpace& space, Operands& o, std::int64_t n) {
          const auto as = Operands::as<T>;
          kernel(Arguments<T>{space, as(o.a), as(o.b), as(o.c), as(o.d), o.a.data(), o.b.data(),
                              o.floats.data(), n});
        };
        loops.push_back({name, type, run,
                         type == DType::F32    ? of_float32
                         : type == DType::BF16 ? of_bfloat16
                                               : of_float16});
      };
      for_each_norm<T>(add);
      for_each_other<T>(add);
    });
  const auto add_update = [&](const char* name, const ByLevel& instructions, UpdateRule rule,
                              DType copy) {
    const auto run = [=](const ExecutionSpace& space, Operands& o, std::int64_t n) {
      update(space, rule, o, n, copy);
    };
    loops.push_back({name, DType::F32, run, instructions});
  };
  add_update("Momentum", {17, 13, 13}, UpdateRule::Momentum, DType::F32);
  add_update("MomentumCopied", {34, 28, 45}, UpdateRule::Momentum, DType::BF16);
  add_update("RmsProp", {28, 21, 21}, UpdateRule::RmsProp, DType::F32);
  if (level >= InstructionLevel::Avx2)  // below, nothing takes these kernels
    for_each_winograd_pass([&](const char* name, const ByLevel& instructions, const auto& run) {
      loops.push_back({name, DType::F32, run, instructions});
    });
  return loops;
}

/// Instructions per element as recorded; 0 for a new loop.
double expected_of(const Loop& loop, InstructionLevel level) {
  const int lanes = level == InstructionLevel::Avx512 ? 16
                    : level == InstructionLevel::Avx2 ? 8
                                                      : 4;
  return loop.instructions.at(static_cast<std::size_t>(level)) / lanes;
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
    if (!device::kOnCores) GTEST_SKIP() << "loops of accelerators have other shapes";
#if !defined(MILLRACE_LEVELS)
    GTEST_SKIP() << "this build has one instruction level";
#elif defined(__clang__)
    GTEST_SKIP() << "clang does not vectorize all of these loops";
#endif
    if (!machine_level() || GetParam() > *machine_level())
      GTEST_SKIP() << "this processor has no " << name_of(GetParam());
    if (GetParam() < *machine_level() && std::getenv("MILLRACE_LONG_TESTS") == nullptr)
      GTEST_SKIP() << "a long test: each level takes some 30 s, and machines differ";
  }
};

TEST_P(Vectors, AreUsedInHotLoops) {
  const std::vector<Loop> loops = loops_at(GetParam());
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
    const std::string name = loops[i].name + spelled(loops[i].type);
    std::printf("%-28s %6.2f instructions per element\n", name.c_str(), instructions[i]);
    EXPECT_LE(instructions[i], limit_of(loops[i], GetParam())) << name;
  }
}

/// Tests the counter with a loop that cannot be vectorized.
TEST_P(Vectors, AreDistinguishedFromScalars) {
  const Loop scalar{"Scalar", DType::F32, [](const ExecutionSpace&, Operands& o, std::int64_t n) {
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
