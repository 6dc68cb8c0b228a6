// SPDX-License-Identifier: Apache-2.0
//
// Whole trainings of a program that links the library, beside those of the command line.
#include "train/train_run.hpp"

#include <regex>
#include <set>
#include <sstream>

#include "comm/world.hpp"
#include "core/text.hpp"
#include "io/checkpoint.hpp"
#include "io/data/cifar.hpp"
#include "io/data/memory_dataset.hpp"
#include "tests/io/cifar_records.hpp"
#include "tests/support/expect_error.hpp"
#include "tests/support/process.hpp"
#include "tests/support/runtime_of_tests.hpp"
#include "tests/support/temporary_directory.hpp"
#include "train/open_run.hpp"
#include "train/runtime_call.hpp"

namespace millrace::training {
namespace {

class TrainRunTest : public ::testing::Test {
 protected:
  void SetUp() override { io::write_cifar10(data(), 64, 16); }

  [[nodiscard]] fs::path data() const { return root_.path() / "cifar-10-batches-bin"; }
  [[nodiscard]] fs::path place(const std::string& name) const { return root_ / name; }

  /// Eight updates of eight images, two checkpoints and two validations.
  [[nodiscard]] run::Run small(const std::string& name) const {
    run::Run run = recipe("resnet", "cifar-10");
    run.model.size = "8";
    run.data.directory = data();
    run.batch_size = 8;
    run.length.epochs = 1;
    run.validating.every_iterations = 4;
    run.saving.every = run::CheckpointInterval{.number = 4};
    run.logging.every = 4;
    run.logging.place = place(name).string();
    run.layout.threads = 1;
    return run;
  }
  static std::string digest(const fs::path& run) {
    const auto newest = test::run_process(MILLRACE_BINARY, {"inspect", run.string(), "--digest"});
    EXPECT_EQ(newest.code, 0) << newest.output;
    return newest.output;
  }
  /// Of the run that nobody disturbs.
  [[nodiscard]] std::string undisturbed() const {
    (void)train(RuntimeOfTests::runtime(), small("whole"));
    return digest(place("whole"));
  }
  static std::string config_of(const fs::path& run) { return test::read_text(run / "config.toml"); }

 private:
  test::TemporaryDirectory root_;
};

TEST_F(TrainRunTest, HasTheBitsOfTheCommand) {
  run::Run run = small("own");
  run.optimiser.kind = UpdateRule::Momentum;
  run.data.mixing.mixup_alpha = 0.2;
  run.averaging.ema_decay = 0.9;
  const Trained trained = train(RuntimeOfTests::runtime(), run);
  EXPECT_EQ(trained.outcome, Outcome::Finished);
  EXPECT_EQ(trained.run_directory, place("own"));
  EXPECT_EQ(trained.updates, 8);
  std::vector<std::string> words = split_list(
      "train --model resnet --model-size 8 --dataset cifar-10 --batch-size 8 --epochs 1 "
      "--iterations-between-evals 4 --checkpoint-every 4 --log-freq 4 --optimiser momentum "
      "--mixup-alpha 0.2 --ema-decay 0.9 --threads-per-device 1 "
      "--hang-timeout 0 --quiet",
      ' ');
  words.insert(words.end(), {"--data-dir", data().string(), "--run-dir", place("typed").string()});
  const auto command = test::run_process(MILLRACE_BINARY, words);
  ASSERT_EQ(command.code, 0) << command.output;
  EXPECT_EQ(digest(place("own")), digest(place("typed")));
  EXPECT_EQ(config_of(place("own")), config_of(place("typed")));
  for (const char* name : {"training.csv", "validation.csv"})
    EXPECT_EQ(split_list(test::read_text(place("own") / name), '\n').size(),
              split_list(test::read_text(place("typed") / name), '\n').size());
}

TEST_F(TrainRunTest, CallsBackInOrderAndPrintsNothing) {
  std::string events;
  std::string saved;
  std::string told;
  const Callbacks callbacks = {
      .after_update = [&](const Update& u) { events += fmt::format("{} ", u.iteration); },
      .after_validation =
          [&](const Validated& v) {
            events += fmt::format("v{} ", v.iteration);
            EXPECT_EQ(v.images, 16);
          },
      .after_checkpoint = [&](const fs::path& path) { saved += path.filename().string() + " "; },
      .tell = [&](std::string_view line) { told += fmt::format("{}\n", line); }};
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const Trained trained = train(RuntimeOfTests::runtime(), small("run"), callbacks);
  (void)train(RuntimeOfTests::runtime(), small("silent"));
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(events, "1 2 3 4 v4 5 6 7 8 v8 ");
  EXPECT_EQ(saved, "ckpt-0 ckpt-4 ckpt-8 ");  // each some updates after it began
  ASSERT_TRUE(trained.validation.has_value());
  EXPECT_EQ(trained.validation->images, 16);
  test::expect_in(told, {"Total Parameters: ", "Saved checkpoint to ", "Validation top-1"});
}

TEST_F(TrainRunTest, ValidatesWhatWasSaved) {
  std::vector<Validated> during;
  run::Run run = small("run");
  run.saving.keep = 0;  // all
  (void)train(RuntimeOfTests::runtime(), run,
              {.after_validation = [&](const Validated& v) { during.push_back(v); }});
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const std::vector<Validated> after = validate(RuntimeOfTests::runtime(), place("run"), data());
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  ASSERT_EQ(after.size(), 3u);  // the first before any update
  for (std::size_t n = 0; n < during.size(); ++n) {
    EXPECT_EQ(after[n + 1].iteration, during[n].iteration);
    EXPECT_EQ(after[n + 1].loss, during[n].loss);
    EXPECT_EQ(after[n + 1].top1, during[n].top1);
  }
  const fs::path newest = place("run") / "checkpoints/ckpt-8";
  EXPECT_EQ(validate(RuntimeOfTests::runtime(), newest).at(0).loss, during.at(1).loss);
  expect_error(ErrorKind::Data, {"absent"},
               [&] { (void)validate(RuntimeOfTests::runtime(), place("run"), place("absent")); });
}

TEST_F(TrainRunTest, CancelledAndRestoredEqualsUndisturbed) {
  std::int64_t seen = 0;
  const Trained cut = train(RuntimeOfTests::runtime(), small("cut"),
                            {.after_update = [&](const Update& u) { seen = u.iteration; },
                             .cancelled = [&] { return seen >= 3; }});
  EXPECT_EQ(cut.outcome, Outcome::Preempted);
  EXPECT_EQ(cut.updates, 3);
  const Trained rest = restore(RuntimeOfTests::runtime(), place("cut"));
  EXPECT_EQ(rest.outcome, Outcome::Finished);
  EXPECT_EQ(rest.updates, 8);
  EXPECT_EQ(digest(place("cut")), undisturbed());
  EXPECT_EQ(restore(RuntimeOfTests::runtime(), place("cut")).updates, 8);  // nothing is left to do
}

TEST_F(TrainRunTest, AnExceptionOfTheProgramLeavesTheRunRestorable) {
  struct Own : std::exception {};
  EXPECT_THROW((void)train(RuntimeOfTests::runtime(), small("cut"),
                           {.after_update =
                                [](const Update& u) {
                                  if (u.iteration == 5) throw Own();
                                }}),
               Own);
  EXPECT_THROW((void)restore(RuntimeOfTests::runtime(), place("cut"),
                             {.tell = [](std::string_view) { throw Own(); }}),
               Own);
  EXPECT_EQ(restore(RuntimeOfTests::runtime(), place("cut")).updates, 8);
  EXPECT_EQ(digest(place("cut")), undisturbed());
}

TEST_F(TrainRunTest, TheStepsOfARunAreThoseOfItsTraining) {
  std::vector<double> losses;
  (void)train(RuntimeOfTests::runtime(), small("run"),
              {.after_update = [&](const Update& u) { losses.push_back(u.loss); }});
  run::Run run = small("unused");
  run.learning_rate = {};
  Training training(RuntimeOfTests::runtime(), run);
  EXPECT_EQ(training.step(0.0).loss, losses.front());
  EXPECT_EQ(training.evaluate().images, 16);
  EXPECT_FALSE(fs::exists(place("unused")));
}

TEST_F(TrainRunTest, WhatCannotBeIsRefusedByName) {
  const auto refused = [&](const auto& change, std::initializer_list<std::string> parts,
                           ErrorKind kind = ErrorKind::Config) {
    run::Run run = small("refused");
    change(run);
    expect_error(kind, parts, [&] { (void)train(RuntimeOfTests::runtime(), run); });
    EXPECT_FALSE(fs::exists(place("refused")));
  };
  refused([](run::Run& r) { r.layout.elastic = true; }, {"Run::layout.elastic", "restore()"});
  refused([](run::Run& r) { r.layout.threads = 2; }, {"Run::layout.threads 2", "1 thread"});
  refused([](run::Run& r) { r.pipeline.ranks.replicas = 2, r.layout.ranks = 2; },
          {"Run::layout.ranks is 2"});
  refused([](run::Run& r) { r.length = {.iterations = 8}, r.rate.warmup_epochs = 1.0; },
          {"Run::rate.warmup_epochs"});
  refused([](run::Run& r) { r.network = "squeezenet"; }, {"Run::network", "resnet"});
  refused([](run::Run& r) { r.network = "absent.onnx"; }, {"absent.onnx"}, ErrorKind::Io);
  refused([](run::Run& r) { r.optimiser.trust = 0.5; },
          {"Run::optimiser.trust 0.5 has no effect here: it needs Run::optimiser.kind LARS"});
  refused([](run::Run& r) { r.loss_scaling.growth_interval = 5; },
          {"Run::loss_scaling.growth_interval 5 has no effect here"});
  refused([](run::Run& r) { r.optimiser.kind = static_cast<UpdateRule>(99); },
          {"Run::optimiser.kind is 99, but its enumeration has 0 to "});
  refused([](run::Run& r) { r.data.normalisation = static_cast<run::Normalisation>(99); },
          {"Run::data.normalisation 99 has no effect here"});
  refused([](run::Run& r) { r.logging = {.keeps = false}; },
          {"Run::saving.every", "it needs a run directory (no Run::logging.keeps = false)"});
  refused([](run::Run& r) { r.batch_size = 0; }, {"Run::batch_size", "0"}, ErrorKind::Usage);
  expect_error(ErrorKind::Usage, {"no recipe 'absent'"}, [] { (void)recipe("absent"); });
  expect_error(ErrorKind::Usage, {"nowhere"},
               [&] { (void)restore(RuntimeOfTests::runtime(), place("nowhere")); });
}

TEST_F(TrainRunTest, WhatFollowsIsRefusedWithWhatToSet) {
  using Run = run::Run;
  const std::vector<std::tuple<const char*, const char*, void (*)(Run&)>> members = {
      {"iterations 3", "length.epochs", [](Run& r) { r.iterations = 3; }},
      {"tensorboard true", "logging.tensorboard", [](Run& r) { r.tensorboard = true; }},
      {"summary_every 3", "logging.summary_every", [](Run& r) { r.summary_every = 3; }},
      {"max_checkpoints_to_keep 9", "saving.keep", [](Run& r) { r.max_checkpoints_to_keep = 9; }},
      {"checkpoint_minutes 9", "saving.every", [](Run& r) { r.checkpoint_minutes = 9; }},
      {"run_directory x", "logging.place", [](Run& r) { r.run_directory = "x"; }},
      {"splits b2/0", "layout.splits", [](Run& r) { r.splits = {"b2/0"}; }},
      {"recompute Stage", "layout.recompute", [](Run& r) { r.recompute = run::Recompute::Stage; }},
      {"pipeline.ranks.devices 2", "layout.shards", [](Run& r) { r.pipeline.ranks.devices = 2; }},
      {"optimiser.weight_decay 0.5", "update.weight_decay",
       [](Run& r) { r.optimiser.weight_decay = 0.5; }},
      {"learning_rate.cuts 2", "rate.drop_epochs", [](Run& r) { r.learning_rate.cuts = {2}; }},
      {"learning_rate.factors 2", "rate.drop_epochs",
       [](Run& r) { r.learning_rate.factors = {2}; }},
      {"learning_rate.horizon 2", "rate.horizon", [](Run& r) { r.learning_rate.horizon = 2; }},
      {"learning_rate.power 2", "rate.power", [](Run& r) { r.learning_rate.power = 2; }},
      {"data.image_type F32", "data.asked_type", [](Run& r) { r.data.image_type = DType(); }},
      {"data.class_names a b", "data.directory", [](Run& r) {
         r.data.class_names = {"a", "b"};
       }}};
  for (const auto& [set, instead, change] : members) {
    Run run = small("refused");
    change(run);
    const std::string text =
        message_of(ErrorKind::Config, [&] { (void)train(RuntimeOfTests::runtime(), run); });
    EXPECT_TRUE(text.starts_with(fmt::format("Run::{} follows from Run::{}", set, instead)))
        << text;
    EXPECT_FALSE(fs::exists(place("refused")));
  }
}

/// A value of the field other than that of the run; nothing for one that has words of its own.
std::optional<run::Value> other_value(const run::Field& field, const run::Run& run) {
  const std::optional<run::Value> now = field.get(field, run);
  const double low = std::max(field.range.low, -8.0) + (field.range.low_excluded ? 0.01 : 0.0);
  switch (field.type) {
    case run::ValueType::Flag:
      return !(now && std::get<bool>(*now));
    case run::ValueType::Integer: {
      const auto least = static_cast<std::int64_t>(low);
      return now && std::get<std::int64_t>(*now) == least ? least + 1 : least;
    }
    case run::ValueType::Real:
      return now && std::get<double>(*now) == low ? low + 0.01 : low;
    case run::ValueType::RealList:
      return std::vector{low + 0.5};
    case run::ValueType::Choice: {
      const std::vector<std::string> all = run::choices(field);
      return now && *now == run::Value(all.front()) ? all.back() : all.front();
    }
    default:
      return std::nullopt;
  }
}

TEST_F(TrainRunTest, EveryFieldIsTakenOrRefusedByName) {
  // Of a run that saves and logs, what it recorded; of others, what was decided.
  const auto result = [&](const run::Field& field, const run::Run& run) {
    if (field.section != run::Section::Checkpoint && field.section != run::Section::Log)
      return open_for_steps(RuntimeOfTests::runtime(), run, {}).config;
    (void)train(RuntimeOfTests::runtime(), run, {.cancelled = [] { return true; }});
    run::Run recorded = recipe((place("each") / "config.toml").string());
    fs::remove_all(place("each"));
    return recorded;
  };
  // The images of other sets are not here; ranks and GPUs answer the next two; block says why.
  const std::set<std::string_view> others = {"dataset", "spread", "allow-nondeterministic",
                                             "block"};
  int taken = 0;
  int refused = 0;
  for (const run::Field& field : run::field_table()) {
    if (!field.get || !field.set || others.contains(field.name)) continue;
    run::Run run = small("each");
    const std::optional<run::Value> value = other_value(field, run);
    if (!value) continue;
    try {
      field.set(field, {.value = *value, .where = "here"}, run);
    } catch (const Error&) {
      continue;  // it has words of its own
    }
    const std::optional<run::Value> asked = field.get(field, run);
    try {
      EXPECT_EQ(field.get(field, result(field, run)), asked) << field.name;
      ++taken;
    } catch (const Error& error) {
      test::expect_in(run::with_members(error.what()), {"Run::"});
      ++refused;
    }
  }
  EXPECT_GT(taken, 40);
  EXPECT_GT(refused, 20);
}

/// The members of each struct in a header, as type and name.
using Structs = std::map<std::string, std::vector<std::pair<std::string, std::string>>>;
void read_structs(const std::string& header, Structs& structs) {
  const std::regex line(R"(^  ((?:[\w:]+)(?:<[^=;]*>)?) (\w+)(?: = [^;]*)?;.*)");
  std::string inside;
  std::istringstream lines(test::read_text(fmt::format("{}/{}", MILLRACE_SOURCE_DIR, header)));
  for (std::string text; std::getline(lines, text);) {
    std::smatch found;
    if (std::regex_search(text, found, std::regex(R"(^struct (\w+) \{)"))) inside = found[1];
    if (text == "};") inside.clear();
    if (!inside.empty() && std::regex_match(text, found, line))
      structs[inside].emplace_back(found[1], found[2]);
  }
}

// Whoever adds a member to a Run says here what becomes of it where a program sets it.
TEST(RunMembers, StandInTheTableOfFields) {
  Structs structs;
  for (const char* header : {"src/run/run.hpp", "src/run/image_options.hpp", "src/core/dtype.hpp",
                             "models/model_options.hpp", "pipeline/layout.hpp"})
    read_structs(header, structs);
  std::set<std::string> known = {"Run::asked_layout", "Run::model.given"};  // for runs alike
  for (const run::Field& field : run::field_table())
    for (const run::Member& member : field.members) known.insert(member.name);
  std::size_t members = 0;
  const std::function<void(const std::string&, const std::string&)> check =
      [&](const std::string& type, const std::string& prefix) {
        for (const auto& [of, name] : structs.at(type)) {
          const std::string inner = of.substr(of.rfind(':') + 1);
          ++members;
          if (known.contains(prefix + name)) continue;
          if (structs.contains(inner))
            check(inner, prefix + name + ".");
          else
            ADD_FAILURE() << prefix << name;
        }
      };
  check("Run", "Run::");
  EXPECT_GT(members, 150u);
}

TEST_F(TrainRunTest, RecipesAreThoseOfTheirFiles) {
  for (const char* name : {"ipu-resnet20-cifar10-50epochs", "nvidia-resnet50-90epochs"}) {
    const run::Run run = recipe(fmt::format("{}/configs/{}.toml", MILLRACE_SOURCE_DIR, name));
    EXPECT_GT(run.batch_size, 1) << name;
    EXPECT_EQ(run.hang_timeout, 0);
  }
}

/// Images of 8 x 8 pixels, those of a class brighter than the others.
std::shared_ptr<io::MemoryDataset> images(std::int64_t count, int brighter = 0) {
  auto made = std::make_shared<io::MemoryDataset>("shades", Shape{8, 8, 3}, 2);
  for (std::int64_t n = 0; n < count; ++n)
    made->add(std::vector<std::uint8_t>(192, static_cast<std::uint8_t>(n % 2 * 100 + n + brighter)),
              static_cast<std::int32_t>(n % 2));
  return made;
}

run::Run run_of_own(const fs::path& place) {
  models::GraphBuilder b("own", {8, 8, 3}, 2);
  b.begin_layer("filters");
  models::ValueId x = b.conv("conv", b.input(), {.out_channels = 4, .kernel = {3, 3}});
  x = b.activation("relu", x, {Activation::Relu});
  b.begin_layer("classes");
  x = b.dense("dense", b.global_average_pool("mean", x), {.units = 2});
  b.softmax_loss("loss", x);
  run::Run run;
  run.model.given.graph = std::make_shared<const models::Graph>(std::move(b).build());
  run.batch_size = 8;
  run.length.iterations = 6;
  run.logging.place = place.string();
  return run;
}

TEST_F(TrainRunTest, TrainsANetworkAndImagesOfOnesOwn) {
  const Images own{.train = images(64), .validation = images(16)};
  std::int64_t seen = 0;
  (void)train(RuntimeOfTests::runtime(), run_of_own(place("own")),
              {.after_update = [&](const Update& u) { seen = u.iteration; },
               .cancelled = [&] { return seen == 2; }},
              own);
  expect_error(ErrorKind::Data, {"was trained on shades, 64 images"}, [&] {
    (void)restore(RuntimeOfTests::runtime(), place("own"), {},
                  {.train = images(64, 1), .validation = own.validation});
  });
  EXPECT_EQ(restore(RuntimeOfTests::runtime(), place("own"), {}, own).updates, 6);
  const Trained whole = train(RuntimeOfTests::runtime(), run_of_own(place("whole")), {}, own);
  EXPECT_EQ(whole.validation->images, 16);
  EXPECT_EQ(digest(place("own")), digest(place("whole")));
  run::Run both = run_of_own(place("both"));
  both.data.directory = "somewhere";
  expect_error(ErrorKind::Config, {"Run::data.directory somewhere has no effect here"},
               [&] { (void)train(RuntimeOfTests::runtime(), both, {}, own); });
  EXPECT_FALSE(train(RuntimeOfTests::runtime(), run_of_own(place("blind")), {},
                     {.train = own.train, .validation = nullptr})
                   .validation);
}

/// The images of CIFAR-10 in the hands of a program, which prepares them in its own way.
std::shared_ptr<io::MemoryDataset> in_memory(const fs::path& directory, io::Split split) {
  const auto from = io::open_cifar(directory, {.split = split});
  auto made = std::make_shared<io::MemoryDataset>("own", from->image_shape(), from->classes());
  for (std::int64_t n = 0; n < from->size(); ++n) {
    std::vector<std::uint8_t> image(static_cast<std::size_t>(from->image_shape().elements()));
    PixelScaling scaling;
    (void)from->read(n, {}, image, scaling);
    made->add(image, from->label(n));
  }
  return made;
}

TEST_F(TrainRunTest, ImagesOfOnesOwnArePreparedAlikeAndNeedTheirProgram) {
  const Images own{.train = in_memory(data(), io::Split::Train),
                   .validation = in_memory(data(), io::Split::Validation)};
  run::Run run = small("own");
  run.data.directory.clear();
  (void)train(RuntimeOfTests::runtime(), run, {}, own);
  const auto losses = [&](const auto& images) {
    std::vector<double> all;
    for (const Validated& one : validate(RuntimeOfTests::runtime(), place("own"), images))
      all.push_back(one.loss);
    return all;
  };
  EXPECT_EQ(losses(data()), losses(own.validation));
  expect_error(ErrorKind::Data,
               {"images of a program's own, own, 64 images", "only that program can continue it"},
               [&] { (void)restore(RuntimeOfTests::runtime(), place("own")); });
  EXPECT_EQ(restore(RuntimeOfTests::runtime(), place("own"), {}, own).updates, 8);
}

/// Run by mpirun.
TEST_F(TrainRunTest, TwoRanksHaveTheBitsOfOne) {
  if (std::getenv("MILLRACE_TEST_RANKS") == nullptr) GTEST_SKIP() << "needs mpirun";
  const comm::World& world = world_of(RuntimeOfTests::runtime());
  ASSERT_EQ(world.size(), 2);
  const fs::path shared = world.broadcast(place("").string());
  run::Run run = small("");
  run.data.directory = shared / data().filename();
  run.micro_batches = 2;
  run.layout.shards = 2;
  run.layout.splits = {"auto"};
  run.logging.place = (shared / "two").string();
  EXPECT_EQ(train(RuntimeOfTests::runtime(), run).updates, 4);
  struct Own : std::exception {};
  run.logging = {.keeps = false};
  run.saving = {};
  const Callbacks throws = {.after_update = [&](const Update&) {
    if (world.rank() == 1) throw Own();
  }};
  const auto again = [&] { (void)train(RuntimeOfTests::runtime(), run, throws); };
  if (world.rank() == 1)
    EXPECT_THROW(again(), Own);
  else
    expect_error(ErrorKind::Peer, "a callback of another process ended the run", again);
  if (world.rank() == 0) {
    const auto command = test::run_process(
        "/usr/bin/env", {"-i", "PATH=/usr/bin:/bin", MILLRACE_BINARY, "train", "--config",
                         (shared / "two" / "config.toml").string(), "--ranks", "1", "--quiet",
                         "--run-dir", (shared / "one").string(), "--threads-per-device", "1"});
    EXPECT_EQ(command.code, 0) << command.output;
    EXPECT_EQ(digest(shared / "two"), digest(shared / "one"));
  }
  (void)world.maximum(0);  // the files stay until all have seen them
}

}  // namespace
}  // namespace millrace::training
