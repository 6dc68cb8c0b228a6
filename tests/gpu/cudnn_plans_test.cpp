// SPDX-License-Identifier: Apache-2.0
//
// The kernels that cuDNN has on an H200 for every convolution and dense op of every recipe, for all
// three types and passes. Needs no GPU: the library plans for a device that it is told of.
#include "../support/expect_error.hpp"
#include "devices.hpp"
#include "ops/cudnn/plan.hpp"
#include "ops/linear.hpp"
#include "ops/wider_kernels.hpp"
#include "pipeline/stage.hpp"
#include "tests/cli/support.hpp"
#include "train/setup.hpp"

namespace millrace::ops::cudnn {
namespace {

/// A convolution of ResNet-50, 3x3 by 2.
ConvShape strided() {
  ConvShape s;
  s.window = {.batch = 256,
              .in = {56, 56, 128},
              .out = {28, 28, 128},
              .kernel_h = 3,
              .kernel_w = 3,
              .stride_h = 2,
              .stride_w = 2,
              .pad_top = 1,
              .pad_left = 1};
  return s;
}

/// Its first one, 7x7 by 2.
ConvShape stem() {
  ConvShape s;
  s.window = {.batch = 256,
              .in = {224, 224, 3},
              .out = {112, 112, 64},
              .kernel_h = 7,
              .kernel_w = 7,
              .stride_h = 2,
              .stride_w = 2,
              .pad_top = 3,
              .pad_left = 3};
  s.pad_bottom = 3;
  s.pad_right = 3;
  return s;
}

/// A convolution as text that tells shapes apart: "256 of 56x56x64 to 56x56x64, window 3x3, ..".
std::string describe(const ConvShape& s) {
  const WindowShape& w = s.window;
  return fmt::format(
      "{} of {}x{}x{} to {}x{}x{}, window {}x{}, stride {} {}, padding {} {} {} {}, dilation {} "
      "{}, "
      "groups {}{}",
      w.batch, w.in.h, w.in.w, w.in.c, w.out.h, w.out.w, w.out.c, w.kernel_h, w.kernel_w,
      w.stride_h, w.stride_w, w.pad_top, w.pad_left, s.pad_bottom, s.pad_right, s.dilation_h,
      s.dilation_w, s.groups, s.bias ? ", bias" : "");
}

using Shapes = std::map<std::string, ConvShape>;

/// Takes down what it is asked for and claims nothing.
class Recorder final : public Vendor {
 public:
  explicit Recorder(Shapes& shapes) : shapes_(shapes) {}
  [[nodiscard]] const char* name() const override { return "recorder"; }
  [[nodiscard]] bool multiplies(DType) const override { return true; }
  [[nodiscard]] LinearClaim claim(const ConvShape& s, DType, Passes, std::int64_t) const override {
    shapes_.emplace(describe(s), s);
    return {};
  }
  [[nodiscard]] LinearClaim claim(const DenseShape& s, DType type, Passes passes,
                                  std::int64_t cap) const override {
    return claim(as_convolution(s), type, passes, cap);
  }
  using Vendor::claim;

 private:
  Shapes& shapes_;
};

/// The shapes of the linear ops of a recipe, with the micro-batch of a device.
void add_shapes(const fs::path& recipe, Shapes& shapes) {
  const bool cifar = recipe.string().find("cifar") != std::string::npos;
  run::Run config =
      cli::testing::resolve_line("--config " + recipe.string() + " --data-dir /data/" +
                                 (cifar ? "cifar-10" : "imagenet"))
          .config;
  models::Graph graph = training::network_of(config);
  graph.stored_image.reset();
  config.precision = {DType::F32, DType::F32};  // other types would ask for blocks of a batch, too
  const pipeline::StageOptions options = training::stage_options(config, training::Use::Training);
  Backend backend(std::make_unique<Recorder>(shapes), {}, Choice::VendorOnly);
  (void)pipeline::Stage(graph, pipeline::whole(graph), options, backend);
}

const Shapes& shapes_of_recipes() {
  static const Shapes all = [] {
    Shapes shapes;
    for (const auto& entry : fs::directory_iterator(fs::path(MILLRACE_SOURCE_DIR) / "configs")) {
      const std::string name = entry.path().stem().string();
      if (entry.path().extension() == ".toml" && !name.ends_with("-eval"))
        add_shapes(entry.path(), shapes);
    }
    return shapes;
  }();
  return all;
}

constexpr std::array kTypes = {DType::F32, DType::BF16, DType::F16};
constexpr std::array kPasses = {Pass::Forward, Pass::BackwardInput, Pass::BackwardWeight};
constexpr std::array<std::string_view, 3> kPassNames = {"forward", "input", "weight"};

/// One row of the table of plans.
struct Row {
  const ConvShape* shape;
  DType type;
  Pass pass;
  std::optional<Plan> plan;
};

std::string words(const Row& row) {
  return fmt::format("{} {} of {}", name_of(row.type),
                     kPassNames.at(static_cast<std::size_t>(row.pass)), describe(*row.shape));
}

/// Additions to 16-bit results are compiled when they are planned, and only a driver loads the
/// code.
bool needs_driver(const Row& row) {
  return row.shape->bias && row.pass == Pass::Forward && row.type != DType::F32;
}

std::vector<Row> plans_of_recipes(const PlanRules& rules) {
  const Descriptor device = properties_from_text(millrace::testing::kH200);
  std::vector<Row> rows;
  for (const auto& [text, shape] : shapes_of_recipes()) {
    if (is_depthwise(shape)) continue;  // on our own kernels
    for (const DType type : kTypes) {
      for (const Pass pass : kPasses) {
        Row row{&shape, type, pass, {}};
        if (needs_driver(row)) continue;
        row.plan = find_plan(device, {shape, type, pass}, rules);
        rows.push_back(std::move(row));
      }
    }
  }
  return rows;
}

/// Enough channels and pixels that only tensor cores will do.
bool is_wide(const ConvShape& s) {
  const WindowShape& w = s.window;
  return std::min(w.in.c, w.out.c) / s.groups >= 64 && w.batch * w.out.pixels() >= 4096;
}

/// Writes the table where MILLRACE_PLANS says.
void write_table(const std::vector<Row>& rows) {
  const char* const path = std::getenv("MILLRACE_PLANS");
  if (path == nullptr) return;
  std::ofstream out(path);
  out << "type,pass,shape,engine,scratch_bytes,tensor_cores\n";
  for (const Row& row : rows)
    out << fmt::format("{},{},\"{}\",{},{},{}\n", name_of(row.type),
                       kPassNames.at(static_cast<std::size_t>(row.pass)), describe(*row.shape),
                       row.plan ? row.plan->engine : -1, row.plan ? row.plan->scratch : 0,
                       row.plan && row.plan->tensor_cores);
}

TEST(CudnnPlansTest, ExistForEveryShapeOfEveryRecipe) {
  const std::vector<Row> rows = plans_of_recipes({.cap = kDefaultCap});
  write_table(rows);
  EXPECT_GT(shapes_of_recipes().size(), 100u);
  std::map<DType, std::int64_t> largest;
  for (const Row& row : rows) {
    if (!row.plan) {
      ADD_FAILURE() << "no plan for " << words(row);
      continue;
    }
    EXPECT_TRUE(row.plan->deterministic) << words(row);
    EXPECT_LE(row.plan->scratch, kDefaultCap) << words(row);
    largest[row.type] = std::max(largest[row.type], row.plan->scratch);
    // Float32 is exact, 16-bit types are fast.
    if (row.type == DType::F32 || is_wide(*row.shape)) {
      EXPECT_EQ(row.plan->tensor_cores, row.type != DType::F32) << words(row);
    }
  }
  for (const auto& [type, bytes] : largest)
    fmt::print("{}: at most {:.1f} MB of scratch\n", name_of(type),
               1e-6 * static_cast<double>(bytes));
}

/// The plan for a pass of a convolution of images in the shape in which they are stored. Throws, if
/// there is none.
Plan plan_for(const ConvShape& shape, DType type, Pass pass) {
  const ConvShape read = shape.stored ? as_stored(shape) : shape;
  const Descriptor device = properties_from_text(millrace::testing::kH200);
  return find_plan(device, {read, type, pass}, {.cap = kDefaultCap}).value();
}

/// Whether a convolution reads images.
bool is_first(const ConvShape& s) { return s.window.in.c == 3; }

// Why images are stored in another shape for 16-bit types. In float32 the library makes no copies.
TEST(CudnnPlansTest, StoredImagesTakeLittleScratch) {
  int in_blocks = 0;
  for (const auto& [text, shape] : shapes_of_recipes()) {
    if (!is_first(shape)) continue;
    for (const DType type : kTypes) {
      ConvShape stored = shape;
      stored.stored = stored_image(shape, type, kLeastChannels, true);
      const bool large = shape.window.in.h == 224;
      EXPECT_EQ(stored.stored.has_value(), type != DType::F32 && !shape.bias && large) << text;
      if (!stored.stored) continue;
      in_blocks += static_cast<int>(stored.stored->h == 112);
      for (const Pass pass : {Pass::Forward, Pass::BackwardWeight}) {
        const std::int64_t before = plan_for(shape, type, pass).scratch;
        const Plan plan = plan_for(stored, type, pass);
        EXPECT_TRUE(plan.tensor_cores) << text;
        // Where the library makes no copy, it may choose another kernel with some more.
        EXPECT_LE(plan.scratch, std::max<std::int64_t>(before, 5'000'000)) << text;
        fmt::print("{} {} of {}: {} bytes of scratch, as stored {}\n", name_of(type),
                   kPassNames.at(static_cast<std::size_t>(pass)), text, before, plan.scratch);
      }
    }
  }
  EXPECT_GT(in_blocks, 20);
  ConvShape first = stem();
  EXPECT_GT(plan_for(first, DType::BF16, Pass::Forward).scratch, 200'000'000);
  EXPECT_GT(plan_for(first, DType::BF16, Pass::BackwardWeight).scratch, 200'000'000);
  first.stored = Shape{112, 112, 16};
  EXPECT_LT(plan_for(first, DType::BF16, Pass::Forward).scratch, 1'000);
  EXPECT_LT(plan_for(first, DType::BF16, Pass::BackwardWeight).scratch, 2'000'000);
}

/// Whether the library has a kernel for the convolution with sums: padding is the same on both
/// sides, and there are no groups. Images are too narrow.
bool may_have_sums(const ConvShape& s) {
  const WindowShape& w = s.window;
  return s.groups == 1 && w.in.c % 8 == 0 && w.pad_top == s.pad_bottom && w.pad_left == s.pad_right;
}

// What --allow-nondeterministic fuses (docs/gpus.md).
TEST(CudnnPlansTest, ConvolutionsWithSumsExistInFloat16) {
  const Descriptor device = properties_from_text(millrace::testing::kH200);
  int found = 0;
  int others = 0;
  std::set<std::string> seen;
  for (const auto& [text, shape] : shapes_of_recipes()) {
    const bool new_but_for_its_batch = seen.insert(text.substr(text.find(" of "))).second;
    if (shape.bias || is_depthwise(shape) || !new_but_for_its_batch) continue;
    const auto plan =
        find_plan(device, {shape, DType::F16, Pass::Forward, true}, {.cap = kDefaultCap});
    EXPECT_EQ(plan.has_value(), may_have_sums(shape)) << text;
    if (plan) {
      EXPECT_LE(plan->scratch, 16'000'000) << text;
    }
    ++(plan ? found : others);
  }
  fmt::print("{} convolutions of recipes with sums, {} without\n", found, others);
  EXPECT_GT(found, 100);
  for (const DType type : {DType::BF16, DType::F32})
    EXPECT_FALSE(find_plan(device, {strided(), type, Pass::Forward, true}, {}));
}

/// The two calls of a convolution and of the norm behind it.
std::vector<OfferedCall> convolution_and_norm() {
  ConvShape shape = strided();
  OfferedCall conv;
  conv.kind = KernelKind::LinearForward;
  conv.shape = shape;
  conv.buffers.fill(-1);
  conv.buffers[static_cast<std::size_t>(Role::X)] = 3;
  conv.buffers[static_cast<std::size_t>(Role::Y)] = 4;
  OfferedCall norm;
  norm.kind = KernelKind::NormStatistics;
  norm.shape = batch_norm_shape(shape.window.batch * shape.window.out.pixels(), shape.window.out.c);
  norm.buffers.fill(-1);
  norm.buffers[static_cast<std::size_t>(Role::X)] = 4;
  norm.buffers[static_cast<std::size_t>(Role::Statistics)] = 5;
  return {conv, norm};
}

TEST(FusedPassTest, IsAConvolutionWithTheStatisticsOfItsOutput) {
  const std::vector<OfferedCall> calls = convolution_and_norm();
  const auto pass = fused_pass(calls, DType::F16);
  ASSERT_TRUE(pass);
  EXPECT_TRUE(pass->sums);
  EXPECT_EQ(pass->pass, Pass::Forward);
  EXPECT_EQ(describe(pass->shape), describe(strided()));
  EXPECT_FALSE(fused_pass(calls, DType::BF16));
  EXPECT_FALSE(fused_pass(calls, DType::F32));
  EXPECT_FALSE(fused_pass(std::span(calls).first(1), DType::F16));
  const auto fused_after = [&](const auto& change) {
    std::vector<OfferedCall> changed = calls;
    change(changed);
    return fused_pass(changed, DType::F16).has_value();
  };
  EXPECT_FALSE(fused_after([](auto& c) { c[1].buffers[static_cast<std::size_t>(Role::X)] = 3; }))
      << "statistics of something else";
  EXPECT_FALSE(fused_after([](auto& c) { std::get<ConvShape>(c[0].shape).bias = true; }));
  EXPECT_FALSE(fused_after([](auto& c) {
    std::get<ConvShape>(c[0].shape).stored = Shape{56, 56, 8};
  }));
  EXPECT_FALSE(fused_after([](auto& c) { c[1].kind = KernelKind::NormMoments; }))
      << "replicas join their moments";
  EXPECT_FALSE(fused_after([](auto& c) { c[1].kind = KernelKind::NormApply; }));
  EXPECT_FALSE(fused_after([](auto& c) { c[0].kind = KernelKind::LinearBackwardInput; }));
  EXPECT_FALSE(fused_after([](auto& c) { c[0].shape = DenseShape{256, 64, 128, false}; }));
  EXPECT_FALSE(
      fused_after([](auto& c) { c[1].shape = group_norm_shape(256, 28 * 28, 128, 32, false); }));
}

// Law 1 rests on it: every process finds the same kernels.
TEST(CudnnPlansTest, AreTheSameEveryTime) {
  for (const DType type : kTypes) {
    for (const Pass pass : kPasses) {
      const auto plan = [&] {
        return find_plan(properties_from_text(millrace::testing::kH200), {strided(), type, pass},
                         {});
      };
      const std::optional<Plan> first = plan();
      const std::optional<Plan> second = plan();
      ASSERT_TRUE(first && second);
      EXPECT_EQ(first->engine, second->engine);
      EXPECT_EQ(first->scratch, second->scratch);
    }
  }
}

TEST(CudnnPlansTest, AreFoundOnceInAProcess) {
  const auto plan = [](const PassShape& pass, const PlanRules& rules) {
    return kept_plan(properties_from_text(millrace::testing::kH200), pass, rules);
  };
  const PassShape pass{strided(), DType::F32, Pass::Forward};
  const std::shared_ptr<const Plan> first = plan(pass, {});
  ASSERT_TRUE(first);
  EXPECT_EQ(plan(pass, {}), first);
  EXPECT_NE(plan(pass, {.cap = 0}), first);
  EXPECT_NE(plan({strided(), DType::F32, Pass::BackwardInput}, {}), first);
}

TEST(CudnnPlansTest, KeepToACapOfScratch) {
  const Descriptor device = properties_from_text(millrace::testing::kH200);
  const std::optional<Plan> fast = find_plan(device, {strided(), DType::F32, Pass::Forward}, {});
  const std::optional<Plan> small =
      find_plan(device, {strided(), DType::F32, Pass::Forward}, {.cap = 0});
  ASSERT_TRUE(fast && small);
  EXPECT_GT(fast->scratch, kDefaultCap) << "the test needs a shape whose fastest kernel takes more";
  EXPECT_EQ(small->scratch, 0);
}

TEST(CudnnPlansTest, DevicesAndVersionsHaveNames) {
  EXPECT_EQ(device_name(properties_from_text(millrace::testing::kH200)),
            "NVIDIA H200, 132 multiprocessors");
  EXPECT_TRUE(library_name().starts_with("cuDNN 9.")) << library_name();
}

TEST(CudnnPlansTest, RefuseWhatTheLibraryRefuses) {
  ConvShape wrong = strided();
  wrong.window.out = {1, 1, 128};
  const auto refused = [](const auto& action) {
    const std::string message = message_of(ErrorKind::Internal, action);
    EXPECT_TRUE(message.starts_with("cuDNN refuses")) << message;
  };
  refused([] { (void)properties_from_text("no JSON"); });
  refused([&] {
    const Descriptor device = properties_from_text(millrace::testing::kH200);
    (void)find_plan(device, {wrong, DType::BF16, Pass::Forward}, {});
  });
}

}  // namespace
}  // namespace millrace::ops::cudnn
