// SPDX-License-Identifier: Apache-2.0
//
// The recipes in configs/, as they resolve. The numbers are derived by hand; behind each row stands
// where from: a seed's command line (IPU, NVIDIA, Habana, SURFsara) and the formulae of its rates.
#include "run/recipes.hpp"
#include "cli/open_run.hpp"
#include "cli/smoke.hpp"
#include "support.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests

struct Recipe {
  std::string name;
  std::int64_t parameters;
  std::int64_t total_batch;
  std::int64_t iterations;
  double decay;
  std::string_view rates;  ///< as expect_rates() reads them
};

const std::vector<Recipe> kRecipes = {
    // 2^exponent x total, steps at 0.3, 0.6, 0.8, 0.9 of 100 epochs (B.2, C.3).
    {"ipu-resnet50-1stage", 25'557'032, 1, 128'116'700, 1e-4, "6405835: 0.00390625"},
    {"ipu-resnet50-2stages", 25'557'032, 512, 250'200, 1e-4, "12510: 2, 75061: 0.2"},
    {"ipu-resnet50-4stages", 25'557'032, 1024, 125'100, 1e-4, "6255: 0.5, 37531: 0.05"},
    {"ipu-resnet50-8devices", 25'557'032, 1024, 125'100, 1e-4, "6255: 4, 37531: 0.4"},
    {"ipu-resnet50-distributed", 25'557'032, 2048, 62'500, 1e-4, "3125: 1, 18751: 0.1"},
    // RMSprop: 2^-14 x 512, 350 epochs (B.2).
    {"ipu-efficientnet-b0-4stages", 5'288'548, 512, 875'700, 1e-5, "12510: 0.03125"},
    {"ipu-efficientnet-b0-g16", 5'913'796, 512, 875'700, 1e-5, "12510: 0.03125"},
    // Tests 3, 4, 9 and 10 of the seed (E.3), on 50,000 images.
    {"resnet20-cifar10-10epochs", 269'722, 32, 15'620, 1e-6, "0: 0.5, 15619: 0.0005"},
    {"ipu-resnet20-cifar10-50epochs", 269'722, 48, 52'050, 1e-6, "2082: 1.494086, 26025: 0.75"},
    {"ipu-resnext29-cifar10-10epochs", 1'293'786, 8, 62'500, 1e-6, "0: 0.125, 62499: 0.000125"},
    {"ipu-resnext29-cifar10-50epochs", 1'293'786, 4, 625'000, 1e-6, "312500: 0.0625"},
    {"ipu-squeezenet-cifar10-10epochs", 742'708, 128, 3'900, 1e-6, "0: 0.1, 1950: 0.05005"},
    {"ipu-squeezenet-cifar10-400epochs", 742'708, 128, 156'000, 1e-6, "0: 0.1, 78000: 0.05005"},
    {"ipu-efficientnet-cifar10", 1'077'932, 8, 62'500, 1e-6, "0: 0.125"},
    // 0.256 x total / 256, 8 epochs of warm-up, then the cosine of the whole run (B.4, C.3).
    {"nvidia-resnet50-50epochs", 25'559'081, 2048, 31'250, 0x1p-15, "2500: 1.024, 15625: 1.024"},
    {"nvidia-resnet50-90epochs", 25'559'081, 2048, 56'250, 0x1p-15, "2500: 1.024, 28125: 1.024"},
    {"nvidia-resnet50-250epochs", 25'559'081, 2048, 156'250, 0x1p-15, "2500: 1.024, 78125: 1.024"},
    // The same for any total batch: 2^-10 of it, and 5 epochs of warm-up.
    {"resnet50-imagenet", 25'557'032, 256, 450'360, 0x1p-15, "12510: 0.125, 225180: 0.125"},
    // The scripts of the guide: its lengths in steps of 256 or 128 a device.
    {"nvidia-resnet50-fp16-1gpu", 25'559'081, 256, 250'200, 0x1p-15, "20016: 0.128, 125100: 0.128"},
    {"nvidia-resnet50-fp16-4gpu", 25'559'081, 1024, 62'550, 0x1p-15, "5004: 0.512, 31275: 0.512"},
    {"nvidia-resnet50-fp16-8gpu", 25'559'081, 2048, 31'250, 0x1p-15, "2500: 1.024, 15625: 1.024"},
    {"nvidia-resnet50-fp32-1gpu", 25'559'081, 128, 500'450, 0x1p-15, "40036: 0.064, 250225: 0.064"},
    {"nvidia-resnet50-fp32-4gpu", 25'559'081, 512, 125'100, 0x1p-15, "10008: 0.256, 62550: 0.256"},
    {"nvidia-resnet50-fp32-8gpu", 25'559'081, 1024, 62'550, 0x1p-15, "5004: 0.512, 31275: 0.512"},
    {"nvidia-resnext101-90epochs", 44'179'753, 1024, 112'590, 0x1p-14, "5004: 0.512, 56295: 0.512"},
    {"nvidia-resnext101-250epochs", 44'179'753, 1024, 312'750, 0x1p-14,
     "5004: 0.512, 156375: 0.512"},
    // The same by Habana, whose 64 workers decay more (B.5, C.3).
    {"habana-resnext101-1worker", 44'179'753, 128, 900'810, 0x1p-14, "40036: 0.064, 450405: 0.064"},
    {"habana-resnext101-8workers", 44'179'753, 1024, 112'590, 0x1p-14, "5004: 0.512, 56295: 0.512"},
    {"habana-resnext101-64workers", 44'179'753, 8192, 14'040, 7.93e-5, "624: 4.096, 7020: 4.096"},
    {"habana-resnext101-250epochs", 44'179'753, 1024, 312'750, 0x1p-14,
     "5004: 0.512, 156375: 0.512"},
    // 0.1 for a batch of 256, a tenth of it after 30, 60 and 80 epochs (B.6, C.3).
    {"habana-resnet50-sgd", 25'559'081, 256, 450'360, 1e-4,
     "2502: 0.01, 150120: 0.1, 150121: 0.01, 400321: 0.0001"},
    // Peaks 2.5 and 9.5 after 3 epochs (B.6, C.3).
    {"habana-resnet50-lars-1worker", 25'559'081, 128, 10'009, 1e-4, "10008: 0.8332500749325606"},
    {"habana-resnet50-lars-8workers", 25'559'081, 2048, 25'000, 1e-4,
     "1875: 9.5, 24999: 0.000100071"},
    {"habana-resnet50-lars-16workers", 25'559'081, 4096, 12'480, 1e-4, "936: 9.5"},
    {"habana-resnet50-lars-32workers", 25'559'081, 8192, 6'240, 1e-4, "468: 9.5"},
    // 0.1 to 4.8 in 260 steps, then straight to 0 (C.3).
    // 8K: 0.1 x 8192 / 256, 14,075 steps (F.1).
    {"surfsara-resnet50-24k", 25'559'081, 24576, 4'680, 5e-5,
     "0: 0.1, 130: 2.45, 260: 4.8, 2470: 2.4"},
    {"surfsara-resnet50-8k", 25'559'081, 8192, 14'075, 5e-5, "0: 0.1, 781: 3.2, 7428: 1.6"},
};

/// Recipes that validate what another one has trained, and all that they say.
const std::map<std::string, std::string> kEvaluations = {
    {"nvidia-resnet50-fp16-eval",
     "batch-norm true; batch-size 256; config nvidia-resnet50-fp16-eval; dataset imagenet; half "
     "fp16; model resnet; model-size 50; precision 16.32"},
    {"nvidia-resnet50-fp32-eval",
     "batch-norm true; batch-size 256; config nvidia-resnet50-fp32-eval; dataset imagenet; model "
     "resnet; model-size 50; precision 32.32"}};

TEST(RecipesTest, EvaluationsSayHowImagesAreValidated) {
  for (const auto& [name, expected] : kEvaluations) {
    const Patch options =
        load_options(Command::Validate, words("--config " + name), 0, environment_of({}));
    std::vector<std::string> said;
    for (const auto& [option, setting] : options.settings())
      said.push_back(fmt::format("{} {}", option, to_string(setting.value)));
    EXPECT_EQ(join(said, "; "), expected);
  }
}

TEST(RecipesTest, EvaluationsTrainNothing) {
  const TemporaryDirectory folder;
  const fs::path run = folder / "run";
  for (const auto& [name, said] : kEvaluations) {
    const fs::path file = fs::path(MILLRACE_SOURCE_DIR) / "configs" / (name + ".toml");
    for (const auto& [config, more] :
         {std::pair(name, ""), {name, " --smoke"}, {file.string(), " --compile-only"}}) {
      const std::string line =
          fmt::format("train --run-dir {} --config {}{}", run.string(), config, more);
      expect_said(run_words(words(line)), 2,
                  {"trains none: millrace validate --config " + config + " --restore-path RUN\n"});
    }
  }
  EXPECT_FALSE(fs::exists(run));
}

/// The recipe, reduced with --smoke, in this process alone.
OpenedRun smoke_run(const std::string& name) {
  static const comm::World alone;
  const Invocation invocation{.options = train_options(fmt::format("--config {} --smoke", name)),
                              .environment = environment_of({}),
                              .command_line = "millrace",
                              .words = {}};
  return open_checked_run(request_of_new(invocation, alone), alone);
}

TEST(RecipesTest, ResolveToThePublishedNumbers) {
  for (const Recipe& recipe : kRecipes) {
    SCOPED_TRACE(recipe.name);
    const Resolution resolution =
        resolve_line(fmt::format("--config {} --data-dir /data/{}", recipe.name,
                                 contains(recipe.name, "cifar") ? "cifar-10" : "imagenet"));
    const run::Run& config = resolution.config;
    EXPECT_EQ(parameters_of(config), recipe.parameters);
    EXPECT_EQ(config.total_batch(), recipe.total_batch);
    EXPECT_EQ(config.iterations, recipe.iterations);
    EXPECT_DOUBLE_EQ(config.optimiser.weight_decay, recipe.decay);
    expect_rates(config, recipe.rates);
    for (const std::string& notice : resolution.notices)
      EXPECT_TRUE(!contains(notice, ".toml:") || contains(notice, "valid-batch-size")) << notice;
  }
}

TEST(RecipesTest, AreTheSameRunsWhenTheyAreReadBack) {
  for (const fs::path& file : run::recipe_files()) {
    SCOPED_TRACE(file);
    expect_recorded(resolve_line("--config " + file.string()).config);
  }
}

/// Files that the table has no row of, and rows that have no file.
TEST(RecipesTest, EveryFileHasItsRowAndSaysWhatItIsFor) {
  std::set<std::string> known = {"resnet20-cifar10"};  // millrace's own
  for (const Recipe& recipe : kRecipes) known.insert(recipe.name);
  for (const auto& [name, said] : kEvaluations) known.insert(name);
  for (const fs::path& file : run::recipe_files()) {
    SCOPED_TRACE(file);
    EXPECT_EQ(known.erase(file.stem().string()), 1u);
    const std::vector<std::string> lines = lines_of(test::read_text(file));
    EXPECT_LT(lines.size(), 40u);
    std::string head;
    for (const std::string& line : lines)
      if (line.starts_with('#')) head += line;
    const bool trains = !kEvaluations.contains(file.stem().string());
    expect_in(head, {trains ? "millrace train --config" : "millrace validate --config",
                     "Data: ", "Expected: ", "Source: "});
  }
  EXPECT_TRUE(known.empty()) << *known.begin();
}

TEST(RecipesTest, RunSmall) {
  std::vector<std::string> names = {"resnet20-cifar10"};
  for (const Recipe& recipe : kRecipes) names.push_back(recipe.name);
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const OpenedRun run = smoke_run(name);
    EXPECT_LE(run.config.total_batch(), 16);
    EXPECT_LE(run.config.model.image.h, 64);
    EXPECT_EQ(run.config.pipeline.ranks.replicas, 1);
    EXPECT_EQ(run.config.pipeline.ranks.ranks, 1);
    EXPECT_LE(run.config.iterations, 10);
    EXPECT_EQ(run.config.data.source, run::ImageSource::Host);
    EXPECT_GT(rate_at(run.config, run.config.iterations - 1), 0.0);
    EXPECT_TRUE(std::ranges::any_of(run.notices, [](const std::string& notice) {
      return notice.starts_with("smoke: --iterations 6 instead of");
    }));
  }
}

TEST(SmokeTest, KeepsTheStagesAndSaysWhatItReduces) {
  const OpenedRun run = smoke_run("ipu-resnet50-8devices");
  EXPECT_EQ(run.config.splits, (std::vector<std::string>{"b3/0/relu"}));
  EXPECT_EQ(run.config.batch_size, 2);
  EXPECT_EQ(run.config.micro_batches, 8);
  EXPECT_EQ(std::ranges::count(run.notices, "smoke: --pipeline-depth 8 instead of 128"), 1);
  EXPECT_EQ(std::ranges::count(run.notices, "smoke: --ranks 1 instead of the default"), 1);
}

/// What --smoke says of a line.
std::vector<std::string> reductions_of(const std::string& line) {
  std::vector<std::string> reductions;
  (void)smoke_options(train_options(line), reductions);
  return reductions;
}

TEST(SmokeTest, NamesWhatEachReductionReplaces) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(reductions_of("--config nvidia-resnet50-250epochs"),
            (Lines{"smoke: --generated-data instead of the default",
                   "smoke: --image-size 64 instead of the default",
                   "smoke: --batch-size 16 instead of 256", "smoke: --replicas 1 instead of 8",
                   "smoke: --abs-learning-rate 0.016 instead of 2.048",
                   "smoke: --iterations 6 instead of --epochs 250",
                   "smoke: --warmup-iterations 2 instead of --warmup-epochs 8",
                   "smoke: --log-freq 1 instead of the default",
                   "smoke: --validation-mode none instead of the default"}));
  const std::string cifar = "--dataset cifar-10 --synthetic-data --batch-size 16 ";
  const std::string log = "smoke: --log-freq 1 instead of the default";
  const std::string quiet = "smoke: --validation-mode none instead of the default";
  EXPECT_EQ(reductions_of(cifar + "--epochs 2 --lr-horizon 500"),
            (Lines{"smoke: --iterations 6 instead of --epochs 2", "smoke: without --lr-horizon 500",
                   "smoke: --warmup-iterations 2 instead of the default", log, quiet}));
  EXPECT_EQ(
      reductions_of(cifar +
                    "--epochs 2 --max-iterations 50 --warmup-epochs 0 --logs-per-epoch 4 "
                    "--epochs-between-evals 2 --valid-batch-size 8 --weight-avg-N 2 --distributed "
                    "--weight-check-every 9"),
      (Lines{"smoke: without --distributed", "smoke: without --weight-check-every 9",
             "smoke: --iterations 6 instead of --epochs 2, --max-iterations 50",
             "smoke: without --weight-avg-N 2", "smoke: --log-freq 1 instead of --logs-per-epoch 4",
             ("smoke: --validation-mode none instead of --epochs-between-evals 2, "
              "--valid-batch-size 8")}));
  // Nothing is said of what stays as small as it was.
  EXPECT_EQ(
      reductions_of(cifar + "--iterations 6 --warmup-iterations 1 --log-freq 1 --no-validation"),
      Lines{});
}

// A recipe is not changed without a word, nor a rate that fits its batch doubted.
TEST(RecipesTest, ARateForAnotherBatchIsSaidToStay) {
  const auto said = [](const std::string& recipe, const std::string& rest) {
    return rates_of_other_batch(train_options("--config " + recipe + " " + rest));
  };
  const std::string nvidia = "nvidia-resnet50-fp16-8gpu";
  const std::vector<std::string> lines = said(nvidia, "--batch-size 32");
  ASSERT_EQ(lines.size(), 1U);
  expect_in(lines[0], {"configs/nvidia-resnet50-fp16-8gpu.toml:",
                       "abs-learning-rate 2.048 is for a total batch of 2048 and stays as it is; "
                       "in proportion to that of 256 it would be `abs-learning-rate` 0.256"});
  EXPECT_EQ(said(nvidia, "--replicas 1 --gradients-to-accumulate 4").size(), 1U);
  for (const char* same : {"", "--batch-size 32 --gradients-to-accumulate 8",
                           "--batch-size 32 --abs-learning-rate 1", "--batch-size 32 --lr 2.048"})
    EXPECT_TRUE(said(nvidia, same).empty()) << same;
  EXPECT_TRUE(said("ipu-resnet50-4stages", "--batch-size 1").empty());
  EXPECT_TRUE(said("habana-resnet50-lars-8workers", "--batch-size 1").empty());
  const TemporaryDirectory folder;
  const fs::path own = folder / "own.toml";
  std::ofstream(own) << "[train]\nbatch-size = 8\n[lr]\nlr-schedule = \"polynomial_decay_lr\"\n"
                        "poly-lr-initial-lr = 0.1\n";
  const Patch options = train_options("--batch-size 4 --config " + own.string());
  EXPECT_EQ(rates_of_other_batch(options),
            (std::vector<std::string>{
                own.string() +
                ":5: [lr] poly-lr-initial-lr 0.1 is for a total batch of 8 and stays as it is; in "
                "proportion to that of 4 it would be `poly-lr-initial-lr` 0.05"}));
}

// What chooses how files are read has nothing to read in a smoke run.
TEST(SmokeTest, TakesTheOptionsOfDataThatItReplaces) {
  const Patch options = train_options(
      "--dataset imagenet --data-dir d --image-preset torch --crop-area 0.08 1 --randaugment 2,9 "
      "--smoke");
  std::vector<std::string> reductions;
  const Patch small = smoke_options(options, reductions);
  const std::vector<std::string> notices =
      resolve(small, published_facts(small), {.cores = 2}).notices;
  for (const char* name : {"--image-preset", "--crop-area", "--randaugment"})
    EXPECT_TRUE(std::ranges::any_of(notices, [&](const std::string& notice) {
      return contains(notice, fmt::format("{} has no effect here: it needs", name));
    })) << name;
}

// Whatever was given is still there, or is named in a line.
TEST(SmokeTest, NothingVanishesWithoutAWord) {
  for (const Recipe& recipe : kRecipes) {
    const Patch before = train_options("--config " + recipe.name);
    std::vector<std::string> reductions;
    const Patch after = smoke_options(before, reductions);
    for (const auto& [name, setting] : before.settings()) {
      const bool* flag = std::get_if<bool>(&setting.value);
      const bool nothing = (flag != nullptr && !*flag) || to_string(setting.value) == "0";
      const Setting* left = after.find(name);
      if (nothing || (left != nullptr && left->value == setting.value)) continue;
      const bool said = std::ranges::any_of(reductions, [&name = name](const std::string& line) {
        return contains(line, fmt::format("--{}", name));
      });
      EXPECT_TRUE(said) << recipe.name << ": " << name;
    }
  }
}

}  // namespace
}  // namespace millrace::cli
