// SPDX-License-Identifier: Apache-2.0
#include "cli/open_run.hpp"

#include <sched.h>

#include <thread>

#include "cli/command_line.hpp"
#include "core/machine_limits.hpp"
#include "core/text.hpp"
#include "device/environment.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"
#include "io/data/dataset_kinds.hpp"
#include "support.hpp"
#include "tests/io/cifar_records.hpp"
#include "tests/io/images/test_images.hpp"
#include "tests/io/records/shards.hpp"
#include "tests/support/leftover.hpp"
#include "train/network_facts.hpp"
#include "train/run_name.hpp"
#include "train/setup.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests

/// This process alone.
const comm::World& world() {
  static const comm::World alone;
  return alone;
}

class OpenRunTest : public ::testing::Test {
 protected:
  void SetUp() override {
    data_ = root_.path() / "data" / "cifar-10-batches-bin";
    io::write_cifar10(data_, 64, 16);
    run_ = root_.path() / "run";
  }

  static Invocation invocation(Command command, const std::string& line,
                               std::map<std::string, std::string> variables = {}) {
    const Environment environment = environment_of(std::move(variables));
    return {.options = load_options(command, words(line), 0, environment),
            .environment = environment,
            .command_line = "millrace",
            .words = {}};
  }
  static OpenedRun begun(const std::string& line) {
    return open_new_run(request_of_new(invocation(Command::Train, line), world()), world());
  }
  static OpenedRun continued(const std::string& line) {
    return open_restored_run(request_of(invocation(Command::Restore, line)), world());
  }
  static OpenedRun validated(const std::string& line) {
    return open_validated_run(request_of(invocation(Command::Validate, line)), world());
  }
  [[nodiscard]] OpenedRun train(const std::string& rest) const {
    OpenedRun run = begun("--data-dir " + (root_.path() / "data").string() +
                          " --dataset cifar-10 --run-dir " + run_.string() + " " + rest);
    run.notices = respelled(std::move(run.notices), run.options);
    return run;
  }

  /// A checkpoint of the run as its training would leave it.
  [[nodiscard]] fs::path save(const run::Run& config, const std::string& network = "",
                              std::int64_t iteration = 3) const {
    io::CheckpointHeader header;
    header.iteration = iteration;
    header.config_toml = to_toml(config);
    header.network = network;
    return write_small_checkpoint(run_, header);
  }
  [[nodiscard]] OpenedRun restore(const std::string& rest = "",
                                  std::map<std::string, std::string> variables = {}) const {
    OpenedRun run = open_restored_run(
        request_of(invocation(Command::Restore, "--restore-path " + run_.string() + " " + rest,
                              std::move(variables))),
        world());
    run.notices = respelled(std::move(run.notices), run.options);
    return run;
  }
  /// Puts a line in place of another one in config.toml.
  void edit(const std::string& before, const std::string& after) const {
    const fs::path file = run_ / "config.toml";
    std::ostringstream text;
    text << std::ifstream(file).rdbuf();
    std::string content = text.str();
    const std::size_t at = content.find(before);
    ASSERT_NE(at, std::string::npos) << content;
    std::ofstream(file) << content.replace(at, before.size(), after);
  }

  TemporaryDirectory root_;
  fs::path data_;
  fs::path run_;
};

TEST_F(OpenRunTest, TrainingMakesTheRunDirectoryWithItsConfiguration) {
  const OpenedRun run = train("--batch-size 8 --epochs 2 --warmup-epochs 0");
  EXPECT_EQ(run.config.run_directory, run_);
  EXPECT_EQ(run.config.data.train_size, 64);
  EXPECT_EQ(run.config.data.validation_size, 16);
  EXPECT_EQ(run.config.data.directory, data_);
  EXPECT_EQ(run.config.iterations, 16);
  EXPECT_EQ(run.data.train->size(), 64);
  EXPECT_EQ(run.data.validation->size(), 16);
  std::ostringstream written;
  written << std::ifstream(run_ / "config.toml").rdbuf();
  EXPECT_EQ(written.str(), training::config_file_text(run.config));
  EXPECT_TRUE(written.str().ends_with(to_toml(run.config)));
  EXPECT_TRUE(written.str().starts_with("# Kernels: own loops "));
}

/// This thread on the lowest of its cores for as long as this lives.
class OnOneCore {
 public:
  OnOneCore() {
    CPU_ZERO(&before_);
    EXPECT_EQ(sched_getaffinity(0, sizeof before_, &before_), 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(device::core_numbers().front()), &one);
    EXPECT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  }
  ~OnOneCore() { sched_setaffinity(0, sizeof before_, &before_); }
  OnOneCore(const OnOneCore&) = delete;
  OnOneCore& operator=(const OnOneCore&) = delete;

 private:
  cpu_set_t before_;
};

TEST_F(OpenRunTest, ThreadsAreAsManyAsTheCoresThatTheProcessMayUse) {
  if (usable_cores() < 2) GTEST_SKIP() << "there is one core only";
  EXPECT_EQ(this_machine().cores, usable_cores());
  const OnOneCore bound;
  EXPECT_EQ(this_machine().cores, 1);
  EXPECT_EQ(train("--batch-size 8").config.threads, 1);
}

TEST_F(OpenRunTest, AMistakeLeavesNoDirectory) {
  EXPECT_EQ(failure_of([&] { (void)train("--batch-size 65"); }).kind, ErrorKind::Config);
  EXPECT_EQ(failure_of([&] { (void)train("--model-size 21"); }).kind, ErrorKind::Config);
  EXPECT_FALSE(fs::exists(run_));
}

TEST_F(OpenRunTest, WhatConfigTomlCannotHoldIsRefused) {
  const std::string odd = (root_.path() / "odd\xfe").string();
  fs::copy(root_.path() / "data", odd, fs::copy_options::recursive);
  expect_refused(ErrorKind::Usage, {"--data-dir '", "odd\\xfe' is not valid UTF-8"},
                 [&] { (void)train("--batch-size 8 --data-dir " + odd); });
  EXPECT_FALSE(fs::exists(run_));
  const OpenedRun begun = train("--batch-size 8");
  (void)save(begun.config);
  EXPECT_EQ(failure_of([&] { (void)restore("--data-dir " + odd); }).kind, ErrorKind::Usage);
}

TEST_F(OpenRunTest, RestoringFindsTheSameConfiguration) {
  run::Run first;
  {
    const OpenedRun run = train("--batch-size 8 --epochs 2 --seed 5 --weight-decay 0");
    first = run.config;
    first.logging.place.clear();        // asked of a new run alone
    first.asked_layout = first.layout;  // the run that is restored names all of it
    (void)save(run.config);
    const Failure busy = failure_of([&] { (void)restore(); });
    EXPECT_EQ(busy.kind, ErrorKind::Usage) << busy.text;
  }
  const fs::path left = test::leave_temporary(first.run_directory / "config.toml");
  EXPECT_EQ(restore("", {{"DATA_DIR", "/nowhere/cifar"}}).config, first);
  EXPECT_FALSE(fs::exists(left)) << "a killed process left it";
}

TEST_F(OpenRunTest, RestoringTakesEditsOfTheFileButNotOfTheMathematics) {
  (void)save(train("--batch-size 8 --epochs 2 --pipeline-num-parallel 1").config);
  edit("pipeline-num-parallel = 1", "pipeline-num-parallel = 3");
  EXPECT_EQ(restore().config.data.loader_threads, 3);
  edit("batch-size = 8", "batch-size = 16");
  expect_refused(ErrorKind::Usage,
                 {"config.toml:",
                  "batch-size 16 would change the mathematics of the run, which started with 8"},
                 [&] { (void)restore(); });
}

TEST_F(OpenRunTest, DefaultsThatFollowAnotherOptionFollowItStillWhenRestored) {
  (void)save(train("--batch-size 8 --epochs 2").config);
  EXPECT_EQ(restore("--validation-mode all").config.max_checkpoints_to_keep, 1);
  EXPECT_EQ(restore("--validation-mode end").config.max_checkpoints_to_keep, 0);
}

TEST_F(OpenRunTest, TheFilesTellTheSetWhereTheirPlaceDoesNot) {
  const std::string place = "--run-dir " + run_.string() + " --batch-size 8 --data-dir ";
  const fs::path plain = root_.path() / "pictures";
  expect_refusal(
      ErrorKind::Data,
      "'" + plain.string() + "' does not exist: --data-dir takes the folder of a data set",
      [&] { (void)begun(place + plain.string()); });
  fs::create_directories(plain);
  const Failure failure = failure_of([&] { (void)begun(place + plain.string()); });
  EXPECT_TRUE(contains(failure.text, "does not name a known data set")) << failure.text;
  io::write_cifar10(plain / "some" / "cifar-10-batches-bin", 16, 8);
  EXPECT_EQ(begun(place + plain.string()).config.data.dataset, "cifar-10");
}

TEST_F(OpenRunTest, WithoutValidationItsImagesAreNotNeeded) {
  fs::remove(data_ / "test_batch.bin");
  EXPECT_EQ(failure_of([&] { (void)train("--batch-size 8"); }).kind, ErrorKind::Data);
  EXPECT_EQ(train("--batch-size 8 --no-validation").data.validation, nullptr);
}

TEST_F(OpenRunTest, RestoringWithoutARunNamesTheFile) {
  expect_refused(ErrorKind::Usage, {run_.string()},
                 [&] { (void)continued("--restore-path " + run_.string()); });
  EXPECT_EQ(failure_of([&] { (void)continued(""); }).text,
            "--restore-path is missing: give the directory of a run");
}

// As a prediction takes it; there it would write a second run inside of the first.
TEST_F(OpenRunTest, RestoringTheNewestCheckpointContinuesItsRun) {
  const run::Run config = train("--batch-size 8 --no-validation").config;
  const fs::path older = save(config, "", 2);
  const fs::path newest = save(config);
  for (const fs::path& path : {newest, newest.parent_path(), run_})
    EXPECT_EQ(continued("--restore-path " + path.string()).config.run_directory, run_);
  expect_refusal(ErrorKind::Usage,
                 older.string() + ": is an older checkpoint of the run in " + run_.string() +
                     ", which continues from ckpt-3: give the directory of a run, or start a new "
                     "one with these weights: train --init-path",
                 [&] { (void)continued("--restore-path " + older.string()); });
  fs::create_directories(root_.path() / "x" / "y");
  fs::rename(older, root_.path() / "x" / "y" / "ckpt-2");
  EXPECT_TRUE(contains(failure_of([&] {
                         (void)continued("--restore-path " +
                                         (root_.path() / "x" / "y" / "ckpt-2").string());
                       }).text,
                       "is a checkpoint without a run"));
}

// The process that holds the lock may write config.toml before it leaves.
TEST_F(OpenRunTest, ARestoreThatWaitedReadsWhatIsThereThen) {
  {
    const OpenedRun run = train("--batch-size 8 --no-validation --log-freq 5");
    (void)save(run.config);
  }
  std::optional<io::RunLock> held(run_);
  std::thread leaving([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    edit("log-freq = 5", "log-freq = 7");
    held.reset();
  });
  const OpenedRun restored = restore();
  leaving.join();
  EXPECT_EQ(restored.config.log_every, 7);
}

TEST_F(OpenRunTest, ValidationTakesItsConfigurationFromTheCheckpoint) {
  const fs::path checkpoint = save(train("--batch-size 8 --no-validation --seed 5").config);
  for (const fs::path& path : {run_, checkpoint}) {
    const OpenedRun validation =
        validated("--valid-batch-size 5 --precision 32.32 --restore-path " + path.string());
    EXPECT_EQ(validation.config.validation, run::ValidationMode::All);
    EXPECT_EQ(validation.config.validation_batch_size, 5);
    EXPECT_EQ(validation.config.precision.activations, DType::F32);
    EXPECT_EQ(validation.config.seed, 5u);
    EXPECT_EQ(validation.data.validation->size(), 16);
    EXPECT_TRUE(validation.config.run_directory.empty());
  }
}

// A training validates a part to save time; whoever validates its weights wants to know them.
TEST_F(OpenRunTest, ValidationIsOfAllImagesUnlessItsOwnLineSaysOtherwise) {
  OpenedRun trained = train("--batch-size 4 --iterations 1 --max-eval-steps 2");
  trained.lock.reset();
  EXPECT_EQ(trained.data.validation->size(), 8);
  EXPECT_EQ(trained.data.facts.validation_size, 16);
  (void)save(trained.config);
  for (const auto& [line, images] :
       {std::pair("", 16), {"--max-eval-steps 3", 12}, {"--max-eval-steps 0", 16}}) {
    const OpenedRun validation = validated("--restore-path " + run_.string() + " " + line);
    EXPECT_EQ(validation.data.validation->size(), images) << line;
    EXPECT_EQ(validation.config.data.validation_size, images) << line;
  }
  for (const auto& [line, images] :
       {std::pair("", 8), {"--max-eval-steps 3", 12}, {"--max-eval-steps 0", 16}})
    EXPECT_EQ(restore(line).data.validation->size(), images) << line;
}

// What a training on random images leaves is validated on them, or on images that are named.
TEST_F(OpenRunTest, ValidationReadsTheImagesThatAreNamedAfterATrainingOnRandomOnes) {
  for (const char* source : {"--synthetic-data", "--generated-data"}) {
    const fs::path checkpoint =
        save(train("--batch-size 8 --iterations 1 --no-validation " + std::string(source)).config);
    const auto validate = [&](const std::string& rest) {
      return open_validated_run(
          request_of(invocation(Command::Validate,
                                "--restore-path " + checkpoint.string() + " " + rest,
                                {{"DATA_DIR", data_.string()}})),
          world());
    };
    const OpenedRun random = validate("");
    EXPECT_NE(random.config.data.source, run::ImageSource::Files) << source;
    EXPECT_EQ(
        respelled(random.notices, Patch()),
        (std::vector<std::string>{
            "validating 10000 random images; --max-eval-steps N takes N batches of 8 alone"}));
    EXPECT_EQ(validate("--max-eval-steps 2").notices,
              (std::vector<std::string>{"validating 16 random images"}));
    const OpenedRun run = validate("--data-dir " + data_.string());
    EXPECT_EQ(run.config.data.source, run::ImageSource::Files) << source;
    EXPECT_EQ(run.data.validation->size(), 16) << source;
    EXPECT_TRUE(run.notices.empty()) << source;
    const std::string both = " --data-dir " + data_.string();
    EXPECT_NE(validate(source + both).config.data.source, run::ImageSource::Files) << source;
    EXPECT_TRUE(contains(failure_of([&] { (void)validate("--data-dir nowhere"); }).text, "nowhere"))
        << source;
    fs::remove_all(run_);
  }
}

TEST_F(OpenRunTest, ValidationTypedAsTheTrainingKeepsWhatTheCheckpointSays) {
  if (other_trainers() == nullptr) GTEST_SKIP() << "built without dialects";
  (void)save(
      train("--batch-size 8 --no-validation --seed 5 --optimiser momentum --threads-per-device 1")
          .config);
  const auto validate = [&](const std::string& rest) {
    CommandLine translation =
        read_command_line(Command::Validate,
                          words("--dialect ipu --data-dir " + (root_.path() / "data").string() +
                                " --restore-path " + run_.string() + " " + rest),
                          0, environment_of({}));
    return open_validated_run(request_of({.options = std::move(translation.options),
                                          .environment = environment_of({}),
                                          .command_line = "millrace",
                                          .words = {},
                                          .notices = std::move(translation.notices)}),
                              world());
  };
  const OpenedRun run = validate("--shards 2 --pipeline-depth 2 --epochs 7 --optimiser SGD");
  EXPECT_EQ(run.config.precision.master, DType::F32);  // not the 16.16 of the dialect
  EXPECT_EQ(run.config.optimiser.kind, UpdateRule::Momentum);
  EXPECT_EQ(run.config.pipeline.ranks.devices, 2);
  EXPECT_EQ(run.notices, (std::vector<std::string>{
                             "--epochs, --optimiser, --pipeline-depth: no effect on validation, "
                             "which reads every image once and changes no weights"}));
  expect_in(failure_of([&] { (void)validate("--model-size 56"); }).text,
            {"would change the mathematics of the run"});
}

// The layout of a run is that of its validation, unless another one is given; what only backward
// passes need is left out.
TEST_F(OpenRunTest, ValidationKeepsTheLayoutOfTheRun) {
  struct Case {
    const char* trained;
    const char* typed;
    std::vector<std::int32_t> device_of;
    pipeline::RankMap ranks;
  };
  const Case cases[] = {
      {"--shards 3 --pipeline-splits auto --replicas 2", "", {0, 1, 2}, {3, 1, 3}},
      {"--shards 3 --pipeline-splits auto --replicas 2", "--replicas 2", {0, 1, 2}, {3, 2, 6}},
      {"--shards 3 --pipeline-splits auto --replicas 2", "--ranks 6", {0, 1, 2}, {3, 2, 6}},
      {"--shards 3 --pipeline-splits auto --replicas 2", "--ranks 1", {0, 1, 2}, {3, 1, 1}},
      {"--shards 3 --pipeline-splits auto --replicas 2 --ranks 2", "", {0, 1, 2}, {3, 1, 1}},
      {"--shards 2 --pipeline-splits auto --replicas 2 --ranks 4", "", {0, 1}, {2, 1, 2}},
      {"--replicas 16", "", {0}, {1, 1, 1}},
      {"--replicas 16", "--ranks 4", {0}, {1, 4, 4}},
      {"--shards 3 --pipeline-splits auto --ranks 1", "", {0, 1, 2}, {3, 1, 1}},
      {"--shards 3 --pipeline-splits auto", "--ranks 1", {0, 1, 2}, {3, 1, 1}},
      {"--shards 3 --pipeline-splits auto", "--ranks 6", {0, 1, 2}, {3, 2, 6}},
      {"", "--ranks 2", {0}, {1, 2, 2}},
      {"--shards 3 --pipeline-splits auto", "--shards 2", {0, 1}, {2, 1, 2}},
      {"--shards 3 --pipeline-splits auto --ranks 1", "--replicas 3", {0, 1, 2}, {3, 3, 9}},
      {"--shards 2 --chunks 2 --pipeline-schedule Looped --pipeline-splits auto",
       "",
       {0, 1, 0, 1},
       {2, 1, 2}},
      {"--shards 2 --pipeline-schedule ZB-V --pipeline-splits auto", "", {0, 1, 1, 0}, {2, 1, 2}},
      {"--device-mapping 0 1 0 --pipeline-splits auto --xla-recompute", "", {0, 1, 0}, {2, 1, 2}},
      {"--replicas 2 --shard-optimizer --batch-norm --BN-span 2", "--replicas 1", {0}, {1, 1, 1}},
      {"--replicas 2 --rmsprop-base-decay-exp -5 --optimiser RMSprop --base-learning-rate -14",
       "--replicas 16",
       {0},
       {1, 16, 16}},
      {"--shards 2 --pipeline-splits auto --recompute auto --device-memory 1GiB",
       "--shards 1",
       {0},
       {1, 1, 1}}};
  for (const Case& c : cases) {
    fs::remove_all(run_);
    OpenedRun trained =
        train("--batch-size 2 --gradients-to-accumulate 2 " + std::string(c.trained));
    (void)save(trained.config);
    const OpenedRun run = validated("--restore-path " + run_.string() + " " + std::string(c.typed));
    EXPECT_EQ(run.config.pipeline.schedule.device_of, c.device_of) << c.trained << c.typed;
    EXPECT_EQ(run.config.pipeline.ranks, c.ranks) << c.trained << c.typed;
    EXPECT_EQ(run.config.recompute, run::Recompute::None) << c.trained;
    const bool same_cuts = std::string(c.typed).find("shards") == std::string::npos;
    EXPECT_TRUE(!same_cuts || run.config.splits == trained.config.splits) << c.trained << c.typed;
  }
}

// The ranks that a launcher started are those of the replicas, however many the training had.
TEST_F(OpenRunTest, ReplicasOfAValidationOccupyTheProcessesThatWereStarted) {
  struct Case {
    const char* recorded;
    std::int64_t started;
    std::int64_t replicas;
  };
  const Case cases[] = {{"--replicas 512", 0, 1},
                        {"--replicas 512", 1, 1},
                        {"--replicas 512", 4, 4},
                        {"--replicas 2 --shards 3", 3, 1},
                        {"--replicas 2 --shards 3", 6, 2},
                        {"--replicas 2 --shards 4", 2, 1},
                        {"--replicas 2 --device-mapping 0 1 0", 4, 2},
                        {"--replicas 2 --plan plan.json", 4, 1},
                        {"", 0, 1},
                        {"", 2, 2},
                        {"--shards 2", 2, 1},
                        {"--shards 2", 4, 2},
                        {"--shards 2", 3, 3},
                        {"--shards 3", 2, 1},
                        {"--shards 2 --ranks 1", 0, 1},
                        {"--plan plan.json", 4, 1}};
  for (const Case& c : cases) {
    Patch options = train_options(c.recorded);
    drop_replicas(options, {}, c.started);
    EXPECT_EQ(options.integer("replicas").value_or(1), c.replicas) << c.recorded << c.started;
  }
  // Those of a recipe are those of its training, too.
  Patch options = train_options("--replicas 8");
  Patch recipe;
  impose(recipe, "replicas", std::int64_t{8});
  drop_replicas(options, recipe, 0);
  EXPECT_EQ(options.find("replicas"), nullptr);
}

TEST_F(OpenRunTest, ValidationNeedsNoTrainingImages) {
  (void)save(train("--batch-size 8 --epochs 2").config);
  fs::remove(data_ / "data_batch_1.bin");
  const OpenedRun run = validated("--restore-path " + run_.string());
  EXPECT_EQ(run.data.validation->size(), 16);
  EXPECT_EQ(run.data.train, nullptr);
}

/// A set of class folders with an image each for training and validation.
void write_classes(const fs::path& folder, std::initializer_list<const char*> names) {
  const io::Bytes image = io::encode_jpeg(io::make_image(40, 40));
  for (const char* split : {"train", "val"})
    for (const char* name : names) {
      fs::create_directories(folder / split / name);
      std::ofstream(folder / split / name / "1.JPEG", std::ios::binary)
          .write(reinterpret_cast<const char*>(image.data()),
                 static_cast<std::streamsize>(image.size()));
    }
}

// words.txt says what people call the classes of tiny-imagenet; their folders tell them apart.
TEST_F(OpenRunTest, DataWithoutNamesForPeopleHaveTheClassesOfTheRunAndKeepItsNames) {
  using Names = std::vector<std::string>;
  const fs::path folder = root_.path() / "tiny";
  write_classes(folder, {"n01", "n02"});
  std::ofstream(folder / "words.txt") << "n01\tgoldfish, Carassius\nn02\tmoss\n";
  const Names names = {"n01 (goldfish, Carassius)", "n02 (moss)"};
  {
    const OpenedRun run =
        begun("--dataset imagenet --image-size 32 --batch-size 2 --epochs 1 --data-dir " +
              folder.string() + " --run-dir " + run_.string());
    EXPECT_EQ(run.config.data.class_names, names);
    (void)save(run.config, to_json(training::facts_of(run.config)));
  }
  const auto validate = [&] {
    return validated("--restore-path " + run_.string() + " --data-dir " + folder.string());
  };
  std::ofstream(folder / "words.txt") << "n02\tliverwort\n";
  EXPECT_EQ(validate().config.data.class_names,
            (Names{"n01 (goldfish, Carassius)", "n02 (liverwort)"}));
  fs::remove(folder / "words.txt");
  EXPECT_EQ(restore().config.data.class_names, names);
  fs::remove_all(folder / "train");
  EXPECT_EQ(validate().config.data.class_names, names);
  fs::rename(folder / "val/n02", folder / "val/n03");
  EXPECT_TRUE(
      contains(failure_of([&] { (void)validate(); }).text, "class 1 is n03 there, but n02 in "));
}

// The last layer has learned the classes in their order.
TEST_F(OpenRunTest, ARestoredRunNeedsTheClassesThatItHasLearned) {
  const auto folder = [&](const char* name, std::initializer_list<const char*> classes) {
    write_classes(root_.path() / name, classes);
    return (root_.path() / name).string();
  };
  const auto begin = [&](const std::string& more) {
    fs::remove_all(run_);
    const OpenedRun run =
        begun("--dataset imagenet --image-size 32 --batch-size 2 --epochs 1 --data-dir " +
              folder("own", {"ant", "bee", "cow"}) + " --run-dir " + run_.string() + more);
    (void)save(run.config, to_json(training::facts_of(run.config)));
  };
  const auto refusal = [&](const std::string& data) {
    const Failure failure = failure_of([&] { (void)restore("--data-dir " + data); });
    EXPECT_EQ(failure.kind, ErrorKind::Data);
    expect_in(failure.text, {"ckpt-3", "a training of other classes is a new run"});
    return failure.text;
  };
  const std::string other = folder("other", {"ant", "bee", "dog"});
  const std::string more = folder("more", {"ant", "bee", "cow", "dog"});
  for (const char* outputs : {"", " --classes 5"}) {
    begin(outputs);
    EXPECT_EQ(restore("--data-dir " + folder("moved", {"ant", "bee", "cow"})).config.model.classes,
              *outputs == '\0' ? 3 : 5);
    EXPECT_TRUE(contains(refusal(other), other + ": class 2 is dog there, but cow in "));
    EXPECT_TRUE(contains(refusal(more), more + ": has images of 4 classes, but "));
    EXPECT_TRUE(contains(refusal(folder("less", {"ant", "bee"})), "has images of 2 classes, but "));
  }
}

// Of TFRecord files the network tells how many classes there are; its number is in no option.
TEST_F(OpenRunTest, RecordsHaveTheClassesOfTheRecordedNetwork) {
  write_classes(root_.path() / "own", {"ant", "bee", "cow"});
  {
    const OpenedRun run =
        begun("--dataset imagenet --image-size 32 --batch-size 2 --epochs 1 --data-dir " +
              (root_.path() / "own").string() + " --run-dir " + run_.string());
    (void)save(run.config, to_json(training::facts_of(run.config)));
  }
  const fs::path records = root_.path() / "records";
  for (const char* shard : {"train-00000-of-00001", "validation-00000-of-00001"})
    io::write_shard(records / shard, 0, 3);
  const auto validate = [&] {
    return validated("--restore-path " + run_.string() + " --data-dir " + records.string());
  };
  EXPECT_EQ(validate().config.model.classes, 3);
  EXPECT_EQ(validate().config.data.class_names, (std::vector<std::string>{"ant", "bee", "cow"}));
  EXPECT_EQ(restore("--data-dir " + records.string()).config.model.classes, 3);
  io::write_shard(records / "validation-00000-of-00001", 2, 3);
  expect_refused(ErrorKind::Data,
                 {"validation-00000-of-00001, record 1 at offset ", "label 4 is not one of 1 to 3"},
                 [&] { (void)validate(); });
}

TEST_F(OpenRunTest, AValidationOfNothingAsksForARun) {
  expect_refusal(
      ErrorKind::Usage,
      "nothing to validate: give the directory of a run, or a checkpoint, with --restore-path",
      [&] { (void)validated(""); });
}

// Lengths and warm-ups of a guide's line follow from the images: those of the run, also when it is
// continued by the same line.
TEST_F(OpenRunTest, AGuidesLineContinuesItsRun) {
  if (other_trainers() == nullptr) GTEST_SKIP() << "built without dialects";
  write_classes(root_.path() / "own", {"ant", "bee", "cow"});
  const auto read = [&](Command command, const std::string& line) {
    CommandLine line_read = read_command_line(
        command,
        words("--dialect " + line + " --image-size 32 --model-size 10 --threads-per-device 1"), 0,
        environment_of({}));
    Invocation asked = invocation(command, "");
    asked.options = std::move(line_read.options);
    asked.for_images = std::move(line_read.for_images);
    return asked;
  };
  const std::string data = (root_.path() / "own").string();
  for (const std::string& line :
       {"nvidia main.py --iter_unit batch --num_iter 4 --batch_size 2 --lr_warmup_epochs 5 "
        "--use_cosine_lr --data_dir " +
            data,
        "nvidia main.py --num_iter 4 --batch_size 2 --data_dir " + data,
        "habana demo_resnet_keras.py -bs 2 -te 2 --train_steps 1 --optimizer LARS -dd " + data,
        "surfsara resnet_main.py --train_batch_size 2 --train_steps 4 --data_dir " + data}) {
    fs::remove_all(run_);
    OpenedRun run = open_new_run(
        request_of_new(read(Command::Train, line + " --run-dir " + run_.string()), world()),
        world());
    (void)save(run.config);
    run.lock.reset();
    const OpenedRun again = open_restored_run(
        request_of(read(Command::Restore, line + " --restore-path " + run_.string())), world());
    EXPECT_EQ(to_toml(again.config), to_toml(run.config)) << line;
  }
}

// A warm-up without an end is worth a line to who trains so, and none to who looks at the weights.
TEST_F(OpenRunTest, OnlyTrainingSpeaksOfALongWarmUp) {
  // A rate of 8 / 2^6 falls to a tenth behind update 8 and to a hundredth behind 12 of 16.
  const std::string said =
      "the warm-up covers all 16 updates: the learning rate peaks at 0.0625 instead of 0.125 and "
      "ends at 0.001172; --warmup-epochs sets its length";
  // The default is cut at the end of the run.
  for (const char* warmup : {"", " --warmup-epochs 2"}) {
    fs::remove_all(run_);
    const OpenedRun run = train("--batch-size 8 --epochs 2" + std::string(warmup));
    EXPECT_EQ(std::count(run.notices.begin(), run.notices.end(), said), 1) << warmup;
    EXPECT_EQ(run.config.learning_rate.warmup_iterations, 16) << warmup;
  }
  fs::remove_all(run_);
  const OpenedRun run = train("--batch-size 8 --iterations 4 --warmup-iterations 9");
  EXPECT_TRUE(contains(run.notices.front(), "covers all 4 updates and would take 9"))
      << run.notices.front();
  EXPECT_TRUE(contains(run.notices.front(), "--warmup-iterations sets")) << run.notices.front();
  (void)save(run.config);
  const OpenedRun validation = validated("--restore-path " + run_.string());
  EXPECT_TRUE(validation.notices.empty()) << validation.notices.front();
}

// The updates are those of the run, which may be fewer than its learning rates are planned for.
TEST_F(OpenRunTest, ALongWarmUpCountsTheUpdatesOfTheRun) {
  const auto notices = [&](const std::string& line) {
    fs::remove_all(run_);
    return train("--batch-size 8 " + line).notices;
  };
  EXPECT_EQ(notices("--epochs 2 --max-iterations 4 --warmup-epochs 2"),
            (std::vector<std::string>{
                "the warm-up covers all 4 updates and would take 16: the learning rate peaks at "
                "0.02344 instead of 0.125 and ends at 0.02344; --warmup-epochs sets its length"}));
  EXPECT_TRUE(notices("--epochs 2 --max-iterations 4 --warmup-epochs 1").empty());
  EXPECT_TRUE(notices("--iterations 9 --warmup-iterations 6 --lr-horizon 6").empty());
}

TEST_F(OpenRunTest, AShorterWarmUpIsNotSpokenOf) {
  EXPECT_TRUE(train("--batch-size 8 --epochs 3 --warmup-epochs 2").notices.empty());
}

/// What a row of the table of data sets promises.
TEST(DatasetKindTest, EveryRowIsOfferedNamedSizedAndOpened) {
  const std::vector<std::string> offered = split_list(find_field("dataset")->value_name, '|');
  EXPECT_EQ(offered.size(), io::dataset_kinds().size());
  const TemporaryDirectory empty;
  for (const io::DatasetKind& kind : io::dataset_kinds()) {
    const std::string name(kind.published.name);
    EXPECT_NE(std::find(offered.begin(), offered.end(), name), offered.end()) << name;
    for (const std::string& word : split_list(kind.published.path_words))
      EXPECT_EQ(run::set_named_in("/data/my_" + to_lower(word))->name, name) << word;
    const Patch options = load_options(Command::Train, words("--generated-data --dataset " + name),
                                       0, environment_of({}));
    const Datasets sets = open_datasets(data_request(options));
    EXPECT_EQ(sets.train->size(), kind.published.train_size) << name;
    EXPECT_EQ(sets.validation->size(), kind.published.validation_size) << name;
    EXPECT_EQ(sets.train->image_shape(),
              (Shape{kind.published.image_side, kind.published.image_side, 3}))
        << name;
    EXPECT_TRUE(kind.published.classes == 0 || sets.train->classes() == kind.published.classes)
        << name;
    EXPECT_FALSE(kind.is_in(empty.path())) << name;
    try {
      (void)kind.open({.directory = empty.path()});
      ADD_FAILURE() << name << " is opened in an empty folder";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Data) << error.what();
    }
  }
}

}  // namespace
}  // namespace millrace::cli
