// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "cli/open_run.hpp"
#include "support.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests

Patch recorded() {
  return parse_config(
      to_toml(resolve_line("--dataset cifar-10 --data-dir /run/data --epochs 3 --weight-decay 0")
                  .config),
      "config.toml");
}

Patch continued(std::string_view line, std::map<std::string, std::string> variables = {}) {
  return continued_options(
      load_options(Command::Restore, words(line), 0, environment_of(std::move(variables))),
      recorded());
}

/// A value of the option's type that no default has.
std::string unusual_value(const Field& spec) {
  switch (spec.type) {
    case ValueType::Integer:
      return spec.name == "image-size" ? "33" : "47";
    case ValueType::RealList:
      return spec.range.low >= 1.0 ? "3,5" : "0.123,0.456";
    case ValueType::Real:
      return "0.123";
    case ValueType::Choice: {
      const std::vector<std::string> choices = split_list(spec.value_name, '|');
      return recorded().text(spec.name) == choices.back() ? choices.front() : choices.back();
    }
    case ValueType::Text:
      return "other";
    case ValueType::NameList:
      return "b1/0/relu b2/0/relu";
    case ValueType::Flag:
      return recorded().flag(spec.name) ? "false" : "true";
    case ValueType::Path:
      return "other/place";
  }
  return "";
}

TEST(RestoreTest, EveryFixedOptionIsRefusedByName) {
  int refused = 0;
  for (const Field& spec : field_table()) {
    if (spec.decides != Decides::Mathematics || !spec.taken_by(Command::Restore)) continue;
    if (spec.harmless && recorded().find(spec.name) == nullptr) continue;  // had no effect
    const std::string line = fmt::format("--{}={}", spec.name, unusual_value(spec));
    const Failure failure = failure_of([&] { (void)continued(line); });
    EXPECT_EQ(failure.kind, ErrorKind::Usage) << line;
    EXPECT_TRUE(failure.text.starts_with(
        fmt::format("--{} {} would change the mathematics", spec.name, unusual_value(spec))))
        << failure.text;
    ++refused;
  }
  EXPECT_GE(refused, 30);
}

TEST(RestoreTest, RefusalNamesBothValues) {
  EXPECT_EQ(failure_of([] { (void)continued("--batch-size 64"); }).text,
            "--batch-size 64 would change the mathematics of the run, which started with 32: leave "
            "the option out, or start a new run");
}

// A run continues by the line that began it, whatever was made of its words.
TEST(RestoreTest, TheLineOfTheRunIsNoChange) {
  for (const char* line :
       {"--epochs 2 --warmup-epochs 50", "--iterations 9 --warmup-iterations 20",
        "--iterations 9 --warmup-epochs 3", "--epochs 2 --momentum 0.9", "--epochs 9"}) {
    const std::string whole = std::string("--dataset cifar-10 --data-dir /run/data ") + line;
    const std::string toml = to_toml(resolve_line(whole).config);
    const Patch again =
        continued_options(load_options(Command::Restore, words(whole), 0, environment_of({})),
                          parse_config(toml, "config.toml"));
    EXPECT_EQ(to_toml(resolve(again, published_facts(again), {.cores = 2}).config), toml) << line;
  }
}

TEST(RestoreTest, ARunMayBeMadeLonger) {
  EXPECT_EQ(continued("--epochs 20").real("epochs"), 20.0);
  EXPECT_EQ(continued("--epochs 20 --lr-horizon-epochs 3").real("lr-horizon-epochs"), 3.0);
  EXPECT_EQ(failure_of([] { (void)continued("--epochs 2"); }).text,
            "--epochs 2 would change the mathematics of the run, which started with 3: give more "
            "to extend the run, or leave the option out");
  EXPECT_EQ(failure_of([] { (void)continued("--iterations 100000"); }).text,
            "--iterations 100000 would change the mathematics of the run, whose length was given "
            "with --epochs 3: give more of these to extend it");
  EXPECT_EQ(failure_of([] { (void)continued("--epochs 20 --lr-horizon-epochs 4"); }).kind,
            ErrorKind::Usage);
}

/// The configuration of a run of `line` that is restored with `more`.
run::Run restored(const std::string& line, const std::string& more) {
  const Patch run =
      parse_config(to_toml(resolve_line("--dataset cifar-10 --data-dir /run/data " + line).config),
                   "config.toml");
  const Patch options =
      continued_options(load_options(Command::Restore, words(more), 0, environment_of({})), run);
  return resolve(options, published_facts(options), {.cores = 2}).config;
}

TEST(RestoreTest, ALongerRunStretchesItsLearningRates) {
  const auto rates = restored;
  const std::string line = "--iterations 100 --lr-schedule cosine";
  const run::Run stretched = rates(line, "--iterations 200");
  const run::Run fresh = rates("--iterations 200 --lr-schedule cosine", "");
  EXPECT_EQ(stretched.iterations, 200);
  EXPECT_EQ(stretched.learning_rate, fresh.learning_rate);
  const run::Run kept = rates(line, "--iterations 200 --lr-horizon 100");
  EXPECT_EQ(kept.iterations, 200);
  EXPECT_EQ(kept.learning_rate.horizon, 100);
}

// The default warm-up of 5 epochs is cut to a run of 3; stretched, the run has what a run that
// began with the new length has. An epoch has 1562 updates.
TEST(RestoreTest, ADefaultWarmUpIsThatOfTheNewLength) {
  EXPECT_EQ(restored("--epochs 3", "").learning_rate.warmup_iterations, 3 * 1562);
  EXPECT_EQ(restored("--epochs 3", "--epochs 4").learning_rate.warmup_iterations, 4 * 1562);
  EXPECT_EQ(restored("--epochs 3", "--epochs 20").learning_rate.warmup_iterations, 5 * 1562);
  EXPECT_EQ(restored("--epochs 3 --warmup-epochs 2", "--epochs 20").learning_rate.warmup_iterations,
            2 * 1562);
  // Where the rates stay as they were, so does the warm-up.
  EXPECT_EQ(
      restored("--epochs 3", "--epochs 20 --lr-horizon-epochs 3").learning_rate.warmup_iterations,
      3 * 1562);
  EXPECT_EQ(restored("--epochs 3 --lr-horizon-epochs 2 --lr-schedule cosine", "--epochs 20")
                .learning_rate.warmup_iterations,
            3 * 1562);
}

// An epoch has 1562 updates.
TEST(RestoreTest, EpochsAndALimitEndARunWhereEitherEnds) {
  const std::string line = "--epochs 3 --max-iterations 400";
  const auto fresh = [](const std::string& same) { return restored(same, ""); };
  for (const char* more : {"--max-iterations 500", "--epochs 3 --max-iterations 500"}) {
    EXPECT_EQ(restored(line, more).iterations, 500) << more;
    EXPECT_EQ(restored(line, more).learning_rate, fresh(line).learning_rate) << more;
  }
  // More epochs stretch the rates as without a limit.
  EXPECT_EQ(restored(line, "--epochs 4 --max-iterations 500").iterations, 500);
  EXPECT_EQ(restored(line, "--epochs 4 --max-iterations 9000").iterations, 4 * 1562);
  EXPECT_EQ(restored(line, "--epochs 4 --max-iterations 500").learning_rate,
            fresh("--epochs 4 --max-iterations 500").learning_rate);
  EXPECT_EQ(restored(line, "--epochs 4 --max-iterations 500 --lr-horizon-epochs 3").learning_rate,
            fresh(line).learning_rate);
  // Fewer are only an end: the rates of the 160 that nobody gave remain.
  const std::string only = "--max-iterations 400";
  EXPECT_EQ(restored(only, "--epochs 3 --max-iterations 500").iterations, 500);
  EXPECT_EQ(restored(only, "--epochs 1 --max-iterations 9000").iterations, 1562);
  EXPECT_EQ(restored(only, "--epochs 3 --max-iterations 500").learning_rate,
            fresh(only).learning_rate);
  EXPECT_EQ(restored("--epochs 3", "--epochs 4 --max-iterations 5000").iterations, 5000);
  EXPECT_EQ(failure_of([&] { (void)restored(only, "--epochs 3"); }).text,
            "--epochs 3 would change the mathematics of the run, which started with 160: give more "
            "to extend the run, or leave the option out");
  EXPECT_EQ(failure_of([&] { (void)restored(line, "--max-iterations 300"); }).kind,
            ErrorKind::Usage);
  EXPECT_EQ(failure_of([&] { (void)restored("--epochs 3", "--max-iterations 5000"); }).kind,
            ErrorKind::Usage);
}

/// Those whose product must stay.
bool makes_total_batch(std::string_view name) {
  return name == "replicas" || name == "pipeline-depth" || name == "gradients-to-accumulate";
}

TEST(RestoreTest, TheIntervalOfReportsIsWhatIsTyped) {
  const auto every = [](std::string_view line) {
    const Patch options = continued(line);
    const Resolution rest = resolve(options, published_facts(options), {.cores = 2});
    EXPECT_FALSE(contains(join(rest.notices, "|"), "no effect")) << join(rest.notices, "|");
    return rest.config.log_every;
  };
  EXPECT_EQ(every("--batches-per-step 5"), 5);
  EXPECT_EQ(every("--log-freq 7"), 7);
}

TEST(RestoreTest, EverythingElseMayChange) {
  for (const Field& spec : field_table()) {
    if (makes_total_batch(spec.name)) continue;
    if (spec.decides == Decides::Mathematics || !spec.taken_by(Command::Restore)) continue;
    const std::string line = fmt::format("--{}={}", spec.name, unusual_value(spec));
    const Patch options = continued(line);
    ASSERT_NE(options.find(spec.name), nullptr) << line;
    EXPECT_EQ(to_string(options.find(spec.name)->value), unusual_value(spec)) << line;
  }
}

TEST(RestoreTest, ReplicasShareTheMicroBatchesOfTheRun) {
  Patch run = recorded();
  run.set(*find_field("gradients-to-accumulate"),
          {.value = std::int64_t{12}, .origin = Origin::File, .where = "config.toml"});
  const auto relaid = [&](std::string_view line) {
    return continued_options(load_options(Command::Restore, words(line), 0, environment_of({})),
                             run);
  };
  EXPECT_EQ(relaid("--replicas 4").integer("gradients-to-accumulate"), 3);
  EXPECT_EQ(relaid("--replicas 2 --pipeline-depth 6").integer("pipeline-depth"), 6);
  EXPECT_EQ(failure_of([&] { (void)relaid("--replicas 5"); }).text,
            "micro-batches x replicas would be 12 x 5 and change the total batch of the run, which "
            "started with 12 x 1: keep the product at 12");
  EXPECT_EQ(failure_of([&] { (void)relaid("--pipeline-depth 6"); }).kind, ErrorKind::Usage);
}

TEST(RestoreTest, OtherStagesDropTheCutsOfTheRun) {
  Patch run = recorded();
  const auto record = [&](const char* name, Value value) {
    run.set(*find_field(name), {.value = std::move(value), .origin = Origin::File, .where = name});
  };
  record("shards", std::int64_t{2});
  record("pipeline-splits", std::string("b2/0/relu"));
  const auto relaid = [&](std::string_view line) {
    return continued_options(load_options(Command::Restore, words(line), 0, environment_of({})),
                             run);
  };
  EXPECT_EQ(relaid("").text("pipeline-splits"), "b2/0/relu");
  EXPECT_EQ(relaid("--shards 4").text("pipeline-splits"), "auto");
  EXPECT_EQ(relaid("--shards 1").text("pipeline-splits"), std::nullopt);
  EXPECT_EQ(relaid("--shards 2 --pipeline-splits b1/0/relu").text("pipeline-splits"), "b1/0/relu");
}

TEST(RestoreTest, RecordOfTheRunComesBeforeTheEnvironment) {
  EXPECT_EQ(continued("", {{"DATA_DIR", "/env/cifar"}}).text("data-dir"), "/run/data");
  EXPECT_EQ(continued("--data-dir /line/cifar", {{"DATA_DIR", "/env"}}).text("data-dir"),
            "/line/cifar");
}

TEST(RestoreTest, EnvironmentFillsAGap) {
  Patch without = recorded();
  without.erase("data-dir");
  const Patch given =
      load_options(Command::Restore, words(""), 0, environment_of({{"DATA_DIR", "/env/cifar"}}));
  EXPECT_EQ(continued_options(given, without).text("data-dir"), "/env/cifar");
}

TEST(RestoreTest, ContinuedRunComputesTheSame) {
  const Patch options = continued("--threads-per-device 1 --log-freq 5 --max-ckpts-to-keep 4");
  const auto facts = published_facts(data_request(options));
  const run::Run restored = resolve(options, facts, {.cores = 8}).config;
  const run::Run first = resolve(recorded(), facts, {.cores = 8}).config;
  EXPECT_EQ(restored.model, first.model);
  EXPECT_EQ(restored.optimiser, first.optimiser);
  EXPECT_EQ(restored.learning_rate, first.learning_rate);
  EXPECT_EQ(restored.iterations, first.iterations);
  EXPECT_EQ(restored.threads, 1);
  EXPECT_EQ(first.threads, 2);
  EXPECT_EQ(restored.log_every, 5);
  EXPECT_EQ(restored.max_checkpoints_to_keep, 4);
}

}  // namespace
}  // namespace millrace::cli
