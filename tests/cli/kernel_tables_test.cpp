// SPDX-License-Identifier: Apache-2.0
//
// The options about a vendor's kernels: where they have an effect and where they say that they have
// none, what a run says of its table, and how `bench --tune` makes one. The kernels and times are
// those of the test.
#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <optional>

#include "cli/bench_tune.hpp"
#include "io/atomic_file.hpp"
#include "ops/backend.hpp"
#include "ops/linear_ops.hpp"
#include "seed_lines.hpp"
#include "train/kernel_rules.hpp"
#include "train/kernel_tuning.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests
namespace fs = std::filesystem;
using train::TrainConfig;
using train::Use;

constexpr std::string_view kCifar = "--dataset cifar-10 --synthetic-data ";

Resolution resolved(std::string_view rest, bool has_cudnn) {
  const Options options = train_options(std::string(kCifar) + std::string(rest));
  return resolve(options, published_facts(options), {.cores = 2, .has_cudnn = has_cudnn});
}

MeasuredKernel kernel(std::int64_t engine, double microseconds, bool deterministic = true) {
  return {.choice = {.engine = engine, .knobs = {{2, engine}}},
          .scratch = 64,
          .deterministic = deterministic,
          .microseconds = microseconds};
}

KernelTable table_of(const std::string& device) {
  KernelTable table{.device = device, .library = "lib 1.0", .rows = {}};
  table.rows[{"another shape", DType::BF16, LinearPass::Forward}] = {.best = kernel(7, 2.0),
                                                                     .usual = kernel(7, 2.0)};
  return table;
}

/// A file with a table.
class TableFile {
 public:
  explicit TableFile(const KernelTable& table) {
    io::write_file_atomically(path(), to_text(table));
  }
  [[nodiscard]] fs::path path() const { return directory_ / "t.json"; }
  [[nodiscard]] std::string option() const { return "--kernel-table " + path().string(); }

 private:
  TemporaryDirectory directory_;
};

// ---- options

TEST(KernelOptionsTest, ReachTheConfigurationWhereCudnnComputes) {
  const TableFile file(table_of("gpu"));
  const Resolution plain = resolved("", true);
  EXPECT_FALSE(plain.config.kernels.allow_nondeterministic);
  EXPECT_EQ(plain.config.kernels.table, nullptr);
  EXPECT_FALSE(contains(plain.config.resolved_toml, "nondeterministic"));
  EXPECT_FALSE(contains(plain.config.resolved_toml, "kernel-table"));
  const Resolution both = resolved("--allow-nondeterministic " + file.option(), true);
  EXPECT_TRUE(both.config.kernels.allow_nondeterministic);
  ASSERT_NE(both.config.kernels.table, nullptr);
  EXPECT_EQ(*both.config.kernels.table, table_of("gpu"));
  EXPECT_EQ(both.config.kernel_table, file.path());
  EXPECT_EQ(both.notices, plain.notices);
  EXPECT_NE(both.config, plain.config);
  // The recorded options lead to the same run.
  Options again = parse_config(both.config.resolved_toml, "config.toml");
  EXPECT_EQ(resolve(again, published_facts(again), {.cores = 2, .has_cudnn = true}).config,
            both.config);
}

TEST(KernelOptionsTest, SayWhereTheyHaveNoEffect) {
  const Resolution plain = resolved("", false);
  const Resolution given =
      resolved("--allow-nondeterministic --kernel-table /no/such/file.json", false);
  std::vector<std::string> expected = plain.notices;
  expected.insert(
      expected.begin(),
      {"--allow-nondeterministic has no effect here: cuDNN does not compute in this build, whose "
       "kernels always sum in the same order",
       "--kernel-table has no effect here: cuDNN does not compute in this build"});
  EXPECT_EQ(given.notices, expected);
  EXPECT_EQ(given.config, plain.config);  // and nothing of it is recorded
  EXPECT_EQ(resolved("--kernel-table none --allow-nondeterministic=false", false).notices,
            plain.notices);
}

TEST(KernelOptionsTest, RefuseFilesThatAreNoTables) {
  const TemporaryDirectory directory;
  const std::string path = (directory / "t.json").string();
  const auto refusal = [&] {
    return failure_of([&] { (void)resolved("--kernel-table " + path, true); }).text;
  };
  EXPECT_EQ(refusal(), "--kernel-table: there is no file " + path +
                           ": give its new place, or --kernel-table none to let cuDNN choose its "
                           "kernels");
  std::ofstream(path) << "{\"format\": 1}";
  EXPECT_TRUE(contains(refusal(), "this is not a kernel table")) << refusal();
  EXPECT_EQ(resolved("--kernel-table none", true).config, resolved("", true).config);
}

// They change arithmetic, not mathematics: as --threads-per-device.
TEST(KernelOptionsTest, MayChangeOnRestore) {
  const TableFile file(table_of("gpu"));
  const Options recorded = parse_config(
      resolved("--allow-nondeterministic " + file.option(), true).config.resolved_toml, "c.toml");
  const auto continued = [&](std::string_view line) {
    const Options given = load_options(Command::Restore, words(line), 0, environment_of({}));
    const Options options = continued_options(given, recorded);
    return resolve(options, published_facts(options), {.cores = 2, .has_cudnn = true}).config;
  };
  EXPECT_TRUE(continued("").kernels.allow_nondeterministic);
  EXPECT_NE(continued("").kernels.table, nullptr);
  const TrainConfig without = continued("--allow-nondeterministic=false --kernel-table none");
  EXPECT_FALSE(without.kernels.allow_nondeterministic);
  EXPECT_EQ(without.kernels.table, nullptr);
}

// ---- what a run says

TEST(KernelRulesTest, AreInTheEnvironmentThatMustMatch) {
  const auto table = std::make_shared<const KernelTable>(table_of("gpu"));
  EXPECT_EQ(train::rules_in_environment({}, ""), "");
  EXPECT_EQ(train::rules_in_environment({.allow_nondeterministic = true, .table = nullptr}, ""),
            "; sums may vary from run to run");
  const KernelRules rules{.allow_nondeterministic = false, .table = table};
  EXPECT_EQ(train::rules_in_environment(rules, ""), "; kernel table " + identity(*table));
  EXPECT_EQ(train::rules_in_environment(rules, "it was measured elsewhere"), "");
}

// Ranks with another GPU or library would have other bits, with or without a table.
TEST(KernelRulesTest, AreTheSameOnAllRanks) {
  const auto facts = [](const KernelRules& rules, const std::string& here,
                        const std::string& unfit) {
    std::vector<std::string> lines;
    for (const train::Fact& fact : train::facts_of_kernels(rules, here, unfit))
      lines.push_back(fact.name + ": " + fact.value);
    return lines;
  };
  using Lines = std::vector<std::string>;
  EXPECT_EQ(facts({}, "", ""), Lines{"device with its libraries: cores"});
  EXPECT_EQ(facts({}, "gpu; lib 1", ""), Lines{"device with its libraries: gpu; lib 1"});
  const auto table = std::make_shared<const KernelTable>(table_of("gpu"));
  EXPECT_EQ(facts({.allow_nondeterministic = false, .table = table}, "gpu; lib 1", ""),
            (Lines{"device with its libraries: gpu; lib 1", "kernel table: in use"}));
  // Sums have another order in each run anyway, but a table that only some can use is a mistake.
  EXPECT_EQ(facts({.allow_nondeterministic = true, .table = nullptr}, "gpu; lib 1", ""), Lines{});
  EXPECT_EQ(facts({.allow_nondeterministic = true, .table = table}, "gpu; lib 1", "it is old"),
            Lines{"kernel table: not used, as it is old"});
}

TEST(KernelRulesTest, HaveOneLineEach) {
  using Lines = std::vector<std::string>;
  KernelTable measured = table_of("gpu");
  measured.rows[{"a third", DType::F32, LinearPass::Forward}] = {.best = kernel(3, 1.0, false),
                                                                 .usual = kernel(4, 2.0)};
  const auto table = std::make_shared<const KernelTable>(measured);
  KernelRules rules{.allow_nondeterministic = false, .table = table};
  const std::string head =
      "Kernel table t.json: 2 passes measured on gpu with lib 1.0, number " + identity(*table);
  EXPECT_EQ(train::describe_kernel_rules({}, "", ""), Lines{});
  EXPECT_EQ(train::describe_kernel_rules(rules, "t.json", ""),
            Lines{head + "; 1 of them are not used, as they need --allow-nondeterministic"});
  EXPECT_EQ(train::describe_kernel_rules(rules, "t.json", "it is old"),
            Lines{"Kernel table t.json is not used: it is old; the library chooses the kernels"});
  rules.allow_nondeterministic = true;
  EXPECT_EQ(train::describe_kernel_rules(rules, "t.json", ""),
            (Lines{head,
                   "Sums of convolutions may have another order from run to run "
                   "(--allow-nondeterministic): results repeat to rounding, not bit for bit"}));
}

// ---- bench --tune

/// Offers two kernels for each pass, of which the second is faster, and leaves depthwise
/// convolutions alone.
class TwoKernels final : public ops::KernelTuner {
 public:
  explicit TwoKernels(std::string device = "gpu") : device_(std::move(device)) {}
  [[nodiscard]] std::string device() const override { return device_; }
  [[nodiscard]] std::string library() const override { return "lib 1.0"; }
  std::optional<TableRow> tune(const ops::ConvShape& shape, DType type, LinearPass pass,
                               std::int64_t cap) override {
    ++asked[{describe(shape), type, pass}];
    caps.push_back(cap);
    if (ops::is_depthwise(shape)) return std::nullopt;
    return TableRow{.best = kernel(2, 10.0), .usual = kernel(1, 15.0)};
  }

  std::map<PassKey, int> asked;
  std::vector<std::int64_t> caps;

 private:
  std::string device_;
};

std::int64_t count_of(const TwoKernels& tuner, LinearPass pass) {
  return std::ranges::count_if(tuner.asked, [&](const auto& at) { return at.first.pass == pass; });
}

TEST(TuneTest, AsksOnceForEveryPassOfTheNetwork) {
  TwoKernels tuner;
  const TrainConfig config = resolved("--model-size 20 --batch-size 16", true).config;
  const KernelTable table = train::tune_kernels(
      config, Use::Training, tuner,
      [](std::size_t, std::size_t, const train::LinearWork&, const TableRow*) {});
  for (const auto& [key, times] : tuner.asked) {
    EXPECT_EQ(times, 1) << key.shape;
    EXPECT_EQ(key.type, DType::BF16);
    EXPECT_TRUE(key.shape.starts_with("16 of ")) << key.shape;
  }
  // ResNet-20 on CIFAR: the stem, three widths, two changes of width, the dense layer; shortcuts
  // have no weights. The images have no gradient.
  EXPECT_EQ(count_of(tuner, LinearPass::Forward), 7);
  EXPECT_EQ(count_of(tuner, LinearPass::BackwardWeight), 7);
  EXPECT_EQ(count_of(tuner, LinearPass::BackwardInput), 6);
  EXPECT_EQ(table.rows.size(), 20u);
  EXPECT_EQ(table.device, "gpu");
  EXPECT_EQ(table.rows.begin()->second.best, kernel(2, 10.0));
  TwoKernels forward;
  (void)train::tune_kernels(
      config, Use::Inference, forward,
      [](std::size_t, std::size_t, const train::LinearWork&, const TableRow*) {});
  EXPECT_EQ(forward.asked.size(), 7u);
}

TEST(TuneTest, PassesOnTheLimitOfScratch) {
  TwoKernels tuner;
  const TrainConfig config =
      resolved("--model-size 8 --available-memory-proportion 0.5 --device-memory 1000", true)
          .config;
  (void)train::tune_kernels(
      config, Use::Training, tuner,
      [](std::size_t, std::size_t, const train::LinearWork&, const TableRow*) {});
  ASSERT_FALSE(tuner.caps.empty());
  for (const std::int64_t cap : tuner.caps) EXPECT_EQ(cap, 500);
}

TEST(TuneTest, WhatTheVendorLeavesToUsIsNotInTheTable) {
  TwoKernels tuner;
  const TrainConfig config = resolved("--model efficientnet --model-size cifar", true).config;
  std::size_t left = 0;
  const KernelTable table = train::tune_kernels(
      config, Use::Training, tuner,
      [&](std::size_t, std::size_t, const train::LinearWork&, const TableRow* row) {
        if (row == nullptr) ++left;
      });
  EXPECT_GT(left, 0u);
  EXPECT_EQ(table.rows.size() + left, tuner.asked.size());
}

std::string tuned(const fs::path& file, TwoKernels& tuner) {
  ::testing::internal::CaptureStdout();
  tune_into(file, resolved("--model-size 8", true).config, Use::Training, tuner);
  return ::testing::internal::GetCapturedStdout();
}

TEST(TuneTest, ExtendsTheTableOfItsDevice) {
  const TableFile file(table_of("gpu"));
  TwoKernels tuner;
  const std::string text = tuned(file.path(), tuner);
  EXPECT_TRUE(contains(text, "engine 2 takes 10.0 us, proposed engine 1 15.0 us")) << text;
  EXPECT_TRUE(contains(text,
                       "20 passes of one micro-batch, each shape once: 200 us with these "
                       "kernels, 300 us with those that lib 1.0 proposes"))
      << text;
  const KernelTable written = parse_kernel_table(io::read_text(file.path(), 1 << 20), "t.json");
  EXPECT_EQ(written.rows.size(), 21u);
  EXPECT_TRUE(written.rows.contains({"another shape", DType::BF16, LinearPass::Forward}));
  EXPECT_EQ(resolved(file.option(), true).config.kernels.table->rows.size(), 21u);
}

TEST(TuneTest, DoesNotMixDevices) {
  const TableFile file(table_of("another gpu"));
  TwoKernels tuner;
  const Failure failure = failure_of([&] { (void)tuned(file.path(), tuner); });
  (void)::testing::internal::GetCapturedStdout();
  EXPECT_EQ(failure.kind, ErrorKind::Usage);
  EXPECT_TRUE(contains(failure.text,
                       "this table cannot be extended, as it was measured on "
                       "another gpu with lib 1.0, and this is gpu with lib 1.0"))
      << failure.text;
  EXPECT_TRUE(tuner.asked.empty());
  EXPECT_EQ(io::read_text(file.path(), 1 << 20), to_text(table_of("another gpu")));
}

TEST(TuneTest, SaysWhereThereIsNothingToTune) {
  if (ops::takes_rules()) GTEST_SKIP() << "this build has cuDNN";
  const TemporaryDirectory directory;
  const std::string path = (directory / "t.json").string();
  const Outcome outcome =
      run_words({"bench", "--dataset", "cifar-10", "--model-size", "8", "--tune", path});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.err, "millrace: error: --tune " + path +
                             ": there is nothing to tune here: only cuDNN offers several kernels "
                             "for an op, and this build computes without it\n");
  EXPECT_FALSE(fs::exists(path));
  EXPECT_EQ(ops::make_kernel_tuner({}), nullptr);
}

}  // namespace
}  // namespace millrace::cli
