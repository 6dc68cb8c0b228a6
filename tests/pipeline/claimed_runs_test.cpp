// SPDX-License-Identifier: Apache-2.0
//
// A vendor that claims statistics + norm (+ addition + activation) as one run, and computes it with
// our kernels: the bits must be those of separate calls, whatever the cuts.
#include "pipeline/bound_program.hpp"

#include "models/registry.hpp"
#include "ops/elementwise.hpp"
#include "support/stage_chain.hpp"
#include "tests/support/test.hpp"

namespace millrace::pipeline {
namespace {

struct Counts {
  int claimed = 0;
  int packed = 0;
  int run = 0;
};

float* floats(std::byte* p) { return reinterpret_cast<float*>(p); }

class NormRun final : public ops::ClaimedRun {
 public:
  NormRun(std::span<const ops::OfferedCall> calls, Counts& counts)
      : shape_(std::get<ops::NormShape>(calls[0].shape)),
        epsilon_(calls[0].epsilon),
        fn_(calls[1].fn),
        counts_(counts) {}
  [[nodiscard]] Bytes bytes() const override {
    return {kMark + shape_.counters() * static_cast<std::int64_t>(sizeof(std::uint32_t)),
            shape_.scratch_floats() * static_cast<std::int64_t>(sizeof(float))};
  }
  void bind(std::span<const ops::CallParameters> calls, std::byte* packed,
            std::byte* scratch) override {
    parameters_ = calls[1];
    running_ = calls[0].running;
    packed_ = packed;
    scratch_ = {floats(scratch), reinterpret_cast<std::uint32_t*>(packed + kMark)};
  }
  void pack(const device::ExecutionSpace& space) override {
    ++counts_.packed;
    ops::clear_counters(space, scratch_.counters, shape_.counters());
    device::copy_to_device(packed_, &kPacked, 1);
  }
  void run(const device::ExecutionSpace& space, std::span<const ops::CallBuffers> calls,
           bool first) override {
    ++counts_.run;
    std::byte packed{0};
    device::copy_to_host(&packed, packed_, 1);
    EXPECT_EQ(packed, kPacked);
    const auto at = [&](std::size_t call, Role role) {
      return floats(calls[call][static_cast<std::size_t>(role)]);
    };
    running_.first = first;
    ops::norm_statistics<float>(space, shape_, at(0, Role::Statistics), running_, scratch_,
                                at(0, Role::X), epsilon_);
    ops::norm_apply<float>(space, shape_, at(1, Role::Y), at(1, Role::X), at(1, Role::Skip),
                           at(1, Role::Statistics), parameters_.gamma, parameters_.beta, fn_,
                           reinterpret_cast<std::uint8_t*>(calls[1][kMask]));
  }

 private:
  static constexpr std::byte kPacked{1};
  static constexpr auto kMask = static_cast<std::size_t>(Role::Mask);
  static constexpr std::int64_t kMark = 64;  ///< bytes before the counters

  ops::NormShape shape_;
  float epsilon_;
  Activation fn_;
  Counts& counts_;
  ops::CallParameters parameters_;
  ops::RunningSums running_;
  std::byte* packed_ = nullptr;
  ops::NormScratch scratch_;
};

/// Claims linear ops as this build's vendor does, and runs of two calls for norms.
class NormVendor final : public ops::Vendor {
 public:
  explicit NormVendor(Counts& counts) : counts_(counts) {}
  [[nodiscard]] const char* name() const override { return "norms"; }
  [[nodiscard]] bool multiplies(DType) const override { return false; }
  [[nodiscard]] ops::LinearClaim claim(const ops::ConvShape& s, DType type, ops::Passes passes,
                                       std::int64_t cap) const override {
    return rest_ ? rest_->claim(s, type, passes, cap) : ops::LinearClaim{};
  }
  [[nodiscard]] ops::LinearClaim claim(const ops::DenseShape& s, DType type, ops::Passes passes,
                                       std::int64_t cap) const override {
    return rest_ ? rest_->claim(s, type, passes, cap) : ops::LinearClaim{};
  }
  [[nodiscard]] ops::RunClaim claim(std::span<const ops::OfferedCall> calls, DType,
                                    std::int64_t) const override {
    const auto statistics = static_cast<std::size_t>(Role::Statistics);
    if (calls.size() < 2 || calls[0].kind != KernelKind::NormStatistics ||
        calls[1].kind != KernelKind::NormApply ||
        calls[1].buffers[static_cast<std::size_t>(Role::SkipStatistics)] >= 0)
      return {};
    EXPECT_EQ(calls[0].buffers[statistics], calls[1].buffers[statistics]);
    ++counts_.claimed;
    return {2, std::make_unique<NormRun>(calls, counts_)};
  }

 private:
  Counts& counts_;
  std::unique_ptr<ops::Vendor> rest_ = ops::make_vendor();
};

TEST(ClaimedRunsTest, GiveTheSameBitsAtEveryCut) {
  models::ModelOptions net;
  net.size = "8";
  net.image = {8, 8, 3};
  const models::Graph graph = models::build_model(net);
  StageOptions options;
  options.batch = 3;
  options.recompute = Recompute::Stage;  // repeats the runs, without running sums
  // Both backends use the same kernels for linear ops.
  ops::Backend plain(ops::make_vendor(), {}, ops::Choice::VendorOnly);
  Counts counts;
  ops::Backend claiming(std::make_unique<NormVendor>(counts));
  const test::StepState expected = test::StageChain(graph, {}, options, plain).plain_step(2);
  const auto n = static_cast<std::int32_t>(graph.ops.size());
  for (std::int32_t cut = 1; cut < n; ++cut)
    EXPECT_EQ(test::StageChain(graph, {cut}, options, claiming).plain_step(2), expected)
        << "cut before " << graph.ops[static_cast<std::size_t>(cut)].name;
  EXPECT_GT(counts.claimed, n);
  EXPECT_GE(counts.packed, counts.claimed);
  EXPECT_GT(counts.run, counts.claimed);
}

// ---- weight gradients that are left

/// Our convolution with a weight gradient that is rounded to the storage type, as a library's is.
class RoundedGradient final : public ops::LinearOp {
 public:
  RoundedGradient(const ops::ConvShape& shape, DType type, bool leaves)
      : elements_(shape.kernel_elements()),
        type_(type),
        leaves_(leaves),
        inner_(ops::make_tiled(shape, type)) {}
  [[nodiscard]] ops::LinearBytes bytes() const override {
    ops::LinearBytes bytes = inner_->bytes();
    bytes.scratch += 2 * float_bytes();
    bytes.left_gradient = leaves_ ? elements_ * millrace::size_of(type_) : 0;
    return bytes;
  }
  void bind(const ops::LinearMemory& memory) override {
    memory_ = memory;
    ops::LinearMemory inner = memory;
    inner.dkernel = floats(memory.scratch);
    inner.scratch += 2 * float_bytes();
    inner_->bind(inner);
  }
  void forward(const device::ExecutionSpace& space, std::byte* y, const std::byte* x) override {
    inner_->forward(space, y, x);
  }
  void backward_input(const device::ExecutionSpace& space, std::byte* dx,
                      const std::byte* dy) override {
    inner_->backward_input(space, dx, dy);
  }
  void backward_weight(const device::ExecutionSpace& space, const std::byte* dy, const std::byte* x,
                       bool first) override {
    inner_->backward_weight(space, dy, x, true);
    const bool leaves = memory_.left_gradient != nullptr;
    EXPECT_EQ(leaves, leaves_ && elements_ * millrace::size_of(type_) <= 4 << 20);
    std::byte* const part = leaves ? memory_.left_gradient : memory_.scratch + float_bytes();
    device::dispatch(type_, [&]<class T>() {
      ops::convert(space, ops::as<T>(part), floats(memory_.scratch), elements_);
      if (!leaves)
        ops::accumulate(space, memory_.dkernel, ops::as<const T>(part), elements_, first);
    });
  }

 private:
  [[nodiscard]] std::int64_t float_bytes() const { return device::aligned(elements_ * 4); }

  std::int64_t elements_;
  DType type_;
  bool leaves_;
  std::unique_ptr<ops::LinearOp> inner_;
  ops::LinearMemory memory_;
};

class RoundedGradients final : public ops::Vendor {
 public:
  explicit RoundedGradients(bool leaves) : leaves_(leaves) {}
  [[nodiscard]] const char* name() const override { return "rounded"; }
  [[nodiscard]] bool multiplies(DType) const override { return true; }
  [[nodiscard]] ops::LinearClaim claim(const ops::ConvShape& s, DType type, ops::Passes passes,
                                       std::int64_t) const override {
    if (s.bias) return {};
    return {passes, std::make_unique<RoundedGradient>(s, type, leaves_)};
  }
  [[nodiscard]] ops::LinearClaim claim(const ops::DenseShape&, DType, ops::Passes,
                                       std::int64_t) const override {
    return {};
  }
  using Vendor::claim;  // of runs: none

 private:
  bool leaves_;
};

TEST(LeftGradientsTest, AreAddedWithTheSameBits) {
  models::ModelOptions net = models::default_options("resnet", models::Task::ImageNet);
  net.size = "18";  // some of its gradients take more room than there is, one or together
  net.image = {16, 16, 3};
  const models::Graph graph = models::build_model(net);
  ops::Backend adding(std::make_unique<RoundedGradients>(false));
  ops::Backend leaving(std::make_unique<RoundedGradients>(true));
  for (const Backward backward : {Backward::Joined, Backward::Split}) {
    StageOptions options;
    options.batch = 2;
    options.type = DType::BF16;
    options.backward = backward;
    const test::StepState expected = test::StageChain(graph, {}, options, adding).plain_step(2);
    EXPECT_EQ(test::StageChain(graph, {}, options, leaving).plain_step(2), expected);
    // Calls apart, as they are timed and checked.
    test::StageChain apart(graph, {20}, options, leaving);
    apart.begin_step();
    for (std::int64_t m = 0; m < 2; ++m) {
      const RunContext context = apart.context(m);
      (void)apart.forward(m, context);
      apart.backward_input(context, [](const Call&, bool) {});
      apart.backward_weight(context, [](const Call&, bool) {});
    }
    EXPECT_EQ(apart.gradients(), expected.gradients);
  }
}

/// The square root of the sum of squares, of values or of differences.
double size_of(const std::map<std::string, std::vector<float>>& values,
               const std::map<std::string, std::vector<float>>& less = {}) {
  double squares = 0.0;
  for (const auto& [name, all] : values)
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto x = static_cast<double>(all[i]);
      const double y = less.empty() ? 0.0 : static_cast<double>(less.at(name)[i]);
      squares += (x - y) * (x - y);
    }
  return std::sqrt(squares);
}

// What a library of a GPU fuses if bits may vary: convolutions with the sums of their outputs.
TEST(ClaimedRunsTest, OfTheVendorAreCloseToSeparateKernels) {
  if (!ops::has_nondeterministic()) GTEST_SKIP() << "the vendor of this build claims no runs";
  models::ModelOptions net;
  net.size = "20";
  net.image = {32, 32, 3};
  const models::Graph graph = models::build_model(net);
  StageOptions options;
  options.batch = 16;
  options.type = DType::F16;
  options.recompute = Recompute::Stage;
  const auto step = [&](bool may_vary) {
    const auto backend = ops::make_default_backend({}, may_vary);
    return test::StageChain(graph, {}, options, *backend).plain_step(2);
  };
  const test::StepState separate = step(false);
  const test::StepState fused = step(true);
  EXPECT_NE(fused, separate) << "nothing is fused";
  for (std::size_t i = 0; i < separate.losses.size(); ++i)
    EXPECT_NEAR(fused.losses[i], separate.losses[i], 1e-2 * separate.losses[i]);
  EXPECT_LT(size_of(fused.gradients, separate.gradients), 0.05 * size_of(separate.gradients));
  EXPECT_LT(size_of(fused.values, separate.values), 1e-2 * size_of(separate.values));
}

/// The calls of each phase that are part of a run.
std::array<std::size_t, kPhases> claimed_calls(const models::Graph& graph,
                                               const StageProgram& program,
                                               const ops::Backend& backend) {
  const ClaimedRuns runs(graph, program, backend);
  std::array<std::size_t, kPhases> calls = {};
  for (std::size_t phase = 0; phase < kPhases; ++phase)
    for (std::size_t i = 0; i < program.calls[phase].size(); ++i)
      calls[phase] += runs.contains(phase, i) ? 1 : 0;
  return calls;
}

// Squeeze and excitation, whose products of a pixel and their activations are runs on accelerators:
// cut within all of them, with weight gradients later, recomputed, and partly frozen.
TEST(ClaimedRunsTest, OfExcitationHaveTheBitsOfSeparateCalls) {
  if (device::kOnCores) GTEST_SKIP() << "the vendor of cores claims no runs";
  models::ModelOptions net = models::default_options("efficientnet", models::Task::Cifar);
  net.image = {8, 8, 3};
  net.efficientnet.depth = 0.4;
  net.efficientnet.width = 0.5;
  models::Graph graph = models::build_model(net);
  std::size_t blocks = 0;
  std::vector<std::int32_t> cuts;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    if (graph.ops[i].name.find("SE/expand") == std::string::npos) continue;
    ++blocks;
    cuts.push_back(static_cast<std::int32_t>(i));
  }
  ASSERT_GT(blocks, 5);
  const auto backend = ops::make_default_backend();
  using Calls = std::array<std::size_t, kPhases>;
  for (const DType type : {DType::F32, DType::BF16, DType::F16}) {
    StageOptions options;
    options.batch = 5;
    options.type = type;
    options.slots = {1, 1};
    test::StageChain whole(graph, {}, options, *backend);
    EXPECT_EQ(claimed_calls(graph, whole.program(0), *backend), (Calls{4 * blocks, 6 * blocks, 0}));
    const test::StepState expected = whole.plain_step(2);
    test::StageChain apart(graph, cuts, options, *backend);
    for (std::size_t s = 0; s <= cuts.size(); ++s)
      EXPECT_EQ(claimed_calls(graph, apart.program(s), *backend), Calls{});
    EXPECT_EQ(apart.plain_step(2), expected);
    options.backward = Backward::Split;
    test::StageChain split(graph, {}, options, *backend);
    EXPECT_EQ(claimed_calls(graph, split.program(0), *backend),
              (Calls{4 * blocks, 4 * blocks, 2 * blocks}));
    EXPECT_EQ(split.plain_step(2), expected);
    options.recompute = Recompute::Stage;
    options.repeats_last_segment = true;
    EXPECT_EQ(test::StageChain(graph, {}, options, *backend).plain_step(2), expected);
    options.backward = Backward::Joined;
    EXPECT_EQ(test::StageChain(graph, {}, options, *backend).plain_step(2), expected);
  }
  for (models::Parameter& parameter : graph.parameters)
    parameter.frozen = parameter.name.find("SE/") != std::string::npos;
  StageOptions options;
  options.batch = 5;
  test::StageChain whole(graph, {}, options, *backend);
  EXPECT_EQ(claimed_calls(graph, whole.program(0), *backend), (Calls{4 * blocks, 4 * blocks, 0}));
  EXPECT_EQ(whole.plain_step(2), test::StageChain(graph, cuts, options, *backend).plain_step(2));
}

}  // namespace
}  // namespace millrace::pipeline
