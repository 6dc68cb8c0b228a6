// SPDX-License-Identifier: Apache-2.0
//
// What a program gets from the network of a checkpoint: the logits of a validation.
#include "train/classifier.hpp"

#include <thread>

#include "io/checkpoint.hpp"
#include "io/data/loose_images.hpp"
#include "io/data/memory_dataset.hpp"
#include "run/complete.hpp"
#include "tests/io/images/test_images.hpp"
#include "tests/io/samples.hpp"
#include "tests/support/expect_error.hpp"
#include "tests/support/file_bytes.hpp"
#include "tests/support/runtime_of_tests.hpp"
#include "tests/support/temporary_directory.hpp"
#include "train/network_facts.hpp"
#include "train/runtime_call.hpp"
#include "train/session.hpp"

namespace millrace::training {
namespace {

const comm::World kAlone{comm::World::Alone{}};
constexpr std::int64_t kClasses = 10;

/// A run of CIFAR-10 in these bits, whose data are not here.
run::Run run_of(const std::string& precision, const std::string& model = "resnet") {
  run::Patch asked;
  impose(asked, "model", model);
  if (model == "resnet") impose(asked, "model-size", std::string("8"));
  impose(asked, "dataset", std::string("cifar-10"));
  impose(asked, "synthetic-data", true);
  impose(asked, "precision", precision);
  run::DatasetFacts facts{.train_size = 50'000,
                          .validation_size = 10'000,
                          .classes = kClasses,
                          .image = {32, 32, 3},
                          .directory = {},
                          .class_names = {"plane", "car", "bird"},
                          .preparation = run::Preparation{.by_image = true}};
  return run::complete(asked, facts, {}).run;
}

/// Writes a checkpoint of random weights below `directory`.
void write_network(const run::Run& config, const fs::path& directory) {
  Session session(config, Use::Evaluation, kAlone);
  session.allocate();
  session.initialise(3);
  io::CheckpointHeader header;
  header.iteration = 7;
  header.model = session.graph().name;
  header.config_toml = run::to_toml(config);
  header.network = to_json(facts_of(config));
  (void)io::write_checkpoint(directory, header, session.tensors().snapshot().tensors());
}

/// Images of several sizes.
std::vector<io::Image> pictures() {
  std::vector<io::Image> all;
  for (int i = 0; i < 9; ++i) all.push_back(io::make_image(32 + 3 * i, 32 + 5 * (i % 3)));
  return all;
}

struct ClassifierTest : testing::Test {
  explicit ClassifierTest(const std::string& precision = "16.32") : config(run_of(precision)) {
    for (const auto& [width, height, bytes] : made)
      images.push_back({.bytes = bytes, .width = width, .height = height});
    write_network(config, directory.path());
  }

  [[nodiscard]] std::shared_ptr<const io::LooseImages> set() const {
    std::vector<io::StoredImage> stored;
    for (const Image& image : images)
      stored.push_back(
          {.bytes = std::as_bytes(image.bytes), .height = image.height, .width = image.width});
    return std::make_shared<io::ImagesInMemory>(
        std::move(stored), run::Preparation{.by_image = true}, config.model.image, kClasses);
  }
  /// By a validation.
  [[nodiscard]] std::vector<float> expected(std::int64_t batch) const {
    run::Run validated = config;
    validated.validation_batch_size = batch;
    validated.data.validation_size = std::ssize(images);
    Session session(validated, Use::Evaluation, kAlone);
    session.allocate();
    session.load(io::CheckpointReader(checkpoint()));
    std::vector<float> logits(images.size() * kClasses);
    (void)session.evaluate(
        session.feeder().validation(set()), std::ssize(images), [](std::int64_t) { return false; },
        [&](std::int64_t first, std::span<const float> rows) {
          std::ranges::copy(rows, logits.begin() + first * kClasses);
        });
    return logits;
  }
  [[nodiscard]] std::vector<float> floats() const {
    std::vector<float> all;
    for (std::int64_t i = 0; i < std::ssize(images); ++i)
      std::ranges::copy(io::image_of(*set(), i), std::back_inserter(all));
    return all;
  }
  [[nodiscard]] fs::path checkpoint() const { return directory / "ckpt-7"; }
  [[nodiscard]] Classifier classifier(const ClassifierOptions& options = {}) const {
    return {RuntimeOfTests::runtime(), directory.path(), options};
  }
  [[nodiscard]] std::string refusal(ErrorKind kind, const ClassifierOptions& options) const {
    return message_of(kind, [&] { (void)classifier(options); });
  }

  const test::TemporaryDirectory directory;
  const std::vector<io::Image> made = pictures();
  std::vector<Image> images;
  run::Run config;
};

struct InTheseBits : ClassifierTest, testing::WithParamInterface<const char*> {
  InTheseBits() : ClassifierTest(GetParam()) {}
};

// Whatever the number of images of a call, and the form in which they come.
TEST_P(InTheseBits, LogitsAreThoseOfAValidation) {
  const std::vector<float> prepared = floats();
  const auto elements = static_cast<std::size_t>(config.model.image.elements());
  for (const std::int64_t batch : {1, 4}) {
    const std::vector<float> all = expected(batch);
    const Classifier classifier = this->classifier({.batch_sizes = {batch}, .threads = 2});
    for (const std::size_t count : {1UL, 3UL, 4UL, 9UL}) {
      const std::vector<float> few(all.begin(),
                                   all.begin() + static_cast<std::ptrdiff_t>(count * kClasses));
      EXPECT_EQ(classifier.logits(std::span<const Image>(images).first(count)), few);
      EXPECT_EQ(classifier.logits(std::span(prepared).first(count * elements)), few);
    }
    std::vector<float> of_set;
    classifier.logits(set(), [&](std::int64_t first, std::span<const float> rows) {
      EXPECT_EQ(std::ssize(of_set), first * kClasses);
      of_set.insert(of_set.end(), rows.begin(), rows.end());
    });
    EXPECT_EQ(of_set, all);
  }
}
INSTANTIATE_TEST_SUITE_P(Precisions, InTheseBits, testing::Values("32.32", "16.32"));

TEST_F(ClassifierTest, SizesOfBatchesAgreeToRounding) {
  const std::vector<float> all = expected(4);
  const std::vector<float> mixed = classifier({.batch_sizes = {1, 4}}).logits(images);
  ASSERT_EQ(mixed.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_NEAR(mixed[i], all[i], 0.02f) << i;
}

TEST_F(ClassifierTest, StagesAndPrecision) {
  EXPECT_EQ(classifier({.batch_sizes = {4}, .splits = {"b1/0/relu", "b3/0"}}).logits(images),
            expected(4));
  const std::vector<float> as_trained = expected(4);
  config.precision.activations = DType::F32;
  const std::vector<float> precise = expected(4);
  EXPECT_NE(precise, as_trained);
  EXPECT_EQ(classifier({.batch_sizes = {4}, .precision = "32.32"}).logits(images), precise);
}

TEST_F(ClassifierTest, KnowsItsNetwork) {
  const Classifier classifier = this->classifier();
  EXPECT_EQ(classifier.image_shape(), config.model.image);
  EXPECT_EQ(classifier.classes(), kClasses);
  EXPECT_EQ(classifier.class_names(), (std::vector<std::string>{"plane", "car", "bird"}));
  EXPECT_TRUE(classifier.notices().empty());
  EXPECT_TRUE(classifier.logits(std::span<const float>()).empty());
  EXPECT_TRUE(classifier.logits(std::span<const Image>()).empty());
}

TEST_F(ClassifierTest, ReadsFilesAndOtherPixels) {
  const Classifier classifier = this->classifier({.batch_sizes = {2}});
  const io::Image& one = made[4];
  const std::vector<float> expected = classifier.logits(std::span(images).subspan(4, 1));
  const io::Bytes png = io::encode_png(one);
  test::write_file(directory / "a.png", png);
  EXPECT_EQ(classifier.logits(std::vector<fs::path>{directory / "a.png"}), expected);
  const std::span file(reinterpret_cast<const std::uint8_t*>(png.data()), png.size());
  EXPECT_EQ(classifier.logits(std::vector<Image>{{.bytes = file}}), expected);

  std::vector<std::uint8_t> with_alpha, gray, gray_as_rgb;
  for (std::size_t at = 0; at < one.bytes.size(); at += 3) {
    with_alpha.insert(with_alpha.end(), {one.bytes[at], one.bytes[at + 1], one.bytes[at + 2], 9});
    gray.push_back(one.bytes[at]);
    gray_as_rgb.insert(gray_as_rgb.end(), 3, one.bytes[at]);
  }
  const auto logits_of = [&](const std::vector<std::uint8_t>& bytes, std::int32_t channels) {
    return classifier.logits(std::vector<Image>{{bytes, one.width, one.height, channels}});
  };
  EXPECT_EQ(logits_of(with_alpha, 4), expected);
  EXPECT_EQ(logits_of(gray, 1), logits_of(gray_as_rgb, 3));
}

TEST_F(ClassifierTest, ThreadsTakeTurns) {
  const std::vector<float> all = expected(4);
  const Classifier shared = classifier({.batch_sizes = {4}});
  const Classifier other = classifier({.batch_sizes = {4}});
  std::vector<std::thread> threads;
  std::vector<int> right(4);
  for (std::size_t t = 0; t < right.size(); ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5; ++i)
        right[t] += (t == 3 ? other : shared).logits(images) == all ? 1 : 0;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, std::vector<int>(4, 5));
}

TEST_F(ClassifierTest, WhatCannotBeClassifiedIsNamed) {
  const Classifier classifier = this->classifier({.batch_sizes = {2}});
  const auto refused = [&](const auto& given) {
    return message_of(ErrorKind::Data, [&] { (void)classifier.logits(given); });
  };
  EXPECT_EQ(refused(std::vector<float>(100)),
            "100 floats are no whole images: an image of 32x32x3 has 3072");
  std::vector<Image> bad = images;
  bad[3] = {.bytes = images[3].bytes};  // not the bytes of a file
  EXPECT_TRUE(refused(bad).starts_with("image 3: neither a JPEG nor a PNG")) << refused(bad);
  bad[2].channels = 2;
  EXPECT_TRUE(refused(bad).starts_with("image 2: has ")) << refused(bad);
  EXPECT_NE(refused(std::vector<fs::path>{directory / "none.png"}).find("none.png: cannot open"),
            std::string::npos);
  EXPECT_EQ(classifier.logits(images).size(), images.size() * kClasses) << "afterwards";
}

TEST_F(ClassifierTest, OptionsThatDoNotGoTogetherAreRefused) {
  EXPECT_EQ(refusal(ErrorKind::Config, {.batch_sizes = {4, 0}}),
            "a Classifier of 1 threads, and of 2 batch sizes from 0 on: give at least 1 of each");
  EXPECT_NE(refusal(ErrorKind::Usage, {.precision = "8.8"}).find("ClassifierOptions::precision"),
            std::string::npos);
  EXPECT_NE(refusal(ErrorKind::Config, {.splits = {"nowhere"}}).find("nowhere"), std::string::npos);
  fs::remove_all(checkpoint());
  EXPECT_NE(refusal(ErrorKind::Checkpoint, {}), "");
}

// Without a preparation a network has floats alone.
TEST_F(ClassifierTest, ImagesNeedAPreparation) {
  config.data.preparation.reset();
  config.data.normalisation = run::Normalisation::Dataset;
  write_network(config, directory.path());
  const Classifier classifier = this->classifier();
  EXPECT_EQ(classifier.logits(floats()).size(), images.size() * kClasses);
  EXPECT_NE(message_of(ErrorKind::Checkpoint, [&] { (void)classifier.logits(images); })
                .find("does not say how its images are prepared"),
            std::string::npos);
}

// They are packed once, and again after others were loaded.
TEST_F(ClassifierTest, AnEvaluationHasTheWeightsThatWereLoadedLast) {
  run::Run validated = config;
  validated.validation_batch_size = 4;
  Session session(validated, Use::Serving, kAlone);
  session.allocate();
  const auto loss = [&] {
    return session
        .evaluate(session.feeder().validation(set()), std::ssize(images),
                  [](std::int64_t) { return false; })
        .loss;
  };
  session.initialise(3);
  const double expected = loss();
  EXPECT_EQ(loss(), expected);
  session.initialise(4);
  EXPECT_NE(loss(), expected);
  session.load(io::CheckpointReader(checkpoint()));
  EXPECT_EQ(loss(), expected);
}

TEST(TopTest, OfNoLogits) { EXPECT_TRUE(top({}, 3).empty()); }

// The stages of a network in two processes; each of these gets all logits.
TEST_F(ClassifierTest, TwoRanksShareANetwork) {
  if (std::getenv("MILLRACE_TEST_RANKS") == nullptr) GTEST_SKIP() << "needs mpirun";
  const comm::World& world = world_of(RuntimeOfTests::runtime());
  ASSERT_EQ(world.size(), 2);
  const fs::path place = world.broadcast(directory.path().string());
  if (world.rank() == 0) test::write_file(place / "a.png", io::encode_png(made[4]));
  for (const std::vector<std::string>& splits :
       {std::vector<std::string>{}, {"b2/0/relu"}, {"b1/0/relu", "b3/0"}}) {
    const Classifier classifier(RuntimeOfTests::runtime(), place,
                                {.batch_sizes = {2}, .splits = splits});
    EXPECT_EQ(classifier.logits(images), expected(2));
    EXPECT_EQ(classifier.logits(floats()), expected(2));
    std::vector<Image> bad = images;
    bad[5].bytes = bad[5].bytes.first(1);
    EXPECT_EQ(message_of(ErrorKind::Data, [&] { (void)classifier.logits(bad); }).substr(0, 8),
              "image 5:");
    // In one process alone, all learn of it and may go on.
    const auto refused = [&](const auto& here, const auto& there) {
      return message_of(ErrorKind::Data,
                        [&] { (void)classifier.logits(world.rank() == 1 ? here : there); });
    };
    EXPECT_TRUE(refused(bad, images).starts_with("rank 1: image 5:")) << refused(bad, images);
    bad[5].channels = 2;
    EXPECT_TRUE(refused(bad, images).starts_with("rank 1: image 5: has"));
    EXPECT_TRUE(refused(std::vector<float>(1), floats()).starts_with("rank 1: 1 floats"));
    using Files = std::vector<fs::path>;
    EXPECT_NE(refused(Files{place / "none.png"}, Files{place / "a.png"}).find("none.png: cannot"),
              std::string::npos);
    EXPECT_EQ(classifier.logits(images), expected(2));
  }
  world.barrier();
}

// SqueezeNet for CIFAR has two for each class.
TEST(SpareLogitsTest, ARowHasAllLogitsOfAnImage) {
  const test::TemporaryDirectory directory;
  const run::Run config = run_of("32.32", "squeezenet");
  write_network(config, directory.path());
  const Classifier classifier(RuntimeOfTests::runtime(), directory.path(), {.batch_sizes = {2}});
  ASSERT_EQ(classifier.classes(), 2 * kClasses);
  const std::vector<float> images(3 * 32 * 32 * 3, 0.5f);
  const std::vector<float> logits = classifier.logits(images);
  ASSERT_EQ(std::ssize(logits), 3 * 2 * kClasses);
  for (std::size_t i = 0; i < 2 * kClasses; ++i) {
    EXPECT_EQ(logits[i], logits[i + 2 * kClasses]);
    EXPECT_EQ(logits[i], logits[i + 4 * kClasses]);
  }
}

TEST_F(ClassifierTest, SetsThatDoNotFitAreRefused) {
  const Classifier classifier(RuntimeOfTests::runtime(), directory.path());
  const auto take = [](std::int64_t, std::span<const float>) {};
  expect_error(ErrorKind::Config, {"no data set"}, [&] { classifier.logits(nullptr, take); });
  const auto small = std::make_shared<io::MemoryDataset>("small", Shape{8, 8, 3}, 2);
  small->add(std::vector<std::uint8_t>(8 * 8 * 3), 1);
  expect_error(ErrorKind::Config, {"small: images of 8x8x3", "32x32x3"},
               [&] { classifier.logits(small, take); });
}

}  // namespace
}  // namespace millrace::training
