// SPDX-License-Identifier: Apache-2.0
//
// What a program that links the library writes is a run like others.
#include "io/data/memory_dataset.hpp"
#include "millrace.hpp"
#include "tests/io/images/test_images.hpp"
#include "train/train_run.hpp"

namespace millrace::test {
namespace {

using training::Runtime;

/// Kokkos starts once per process.
const Runtime& runtime() {
  static const auto* const held = new Runtime(1);  // NOLINT: ends with the process
  return *held;
}

run::Run small(const fs::path& place) {
  run::Run run = training::recipe("resnet", "cifar-10");
  run.model.size = "8";
  run.data.directory = small_data();
  run.batch_size = 32;
  run.length = {};
  run.length.iterations = 3;
  run.logging.place = place.string();
  return run;
}

/// The loss of the first update.
double first_loss(run::Run run) {
  double first = 0.0;
  run.logging.keeps = false;
  run.logging.place.clear();
  run.length = {};
  run.length.iterations = 1;
  (void)training::train(runtime(), run,
                        {.after_update = [&](const training::Update& u) { first = u.loss; }});
  return first;
}

TEST(LibraryTest, EveryCommandTakesItsRun) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  run::Run asked = small(run);
  asked.saving.export_folder = "RUN_DIR/export";
  std::string told;
  (void)training::train(runtime(), asked, {.tell = [&](std::string_view line) { told += line; }});
  expect_in(told, {"Exported ckpt-3 of "});
  EXPECT_FALSE(fs::is_empty(run / "export"));
  for (const Words& words :
       {Words{"inspect", run, "--verify"}, Words{"validate", run, "--threads-per-device 1"},
        Words{"report", run}, Words{"export", run, "--output", directory / "a.safetensors"},
        Words{"export", run, "--to onnx --output", directory / "a.onnx"}})
    EXPECT_EQ(millrace(words).code, 0) << words.front() << ": " << millrace(words).output;
  // Weights in any form begin the same training.
  std::vector<double> losses;
  run::Run next = small("");
  for (const fs::path& weights :
       {run / "checkpoints" / "ckpt-3", directory / "a.safetensors", directory / "a.onnx"}) {
    next.init_path = weights;
    losses.push_back(first_loss(next));
  }
  EXPECT_EQ(losses[1], losses[0]);
  EXPECT_EQ(losses[2], losses[0]);
  next.init_path.clear();
  EXPECT_NE(first_loss(next), losses[0]);
  next.network = (directory / "a.onnx").string();
  EXPECT_EQ(first_loss(next), losses[0]);
  expect_end(restore(run, "--iterations 4"), 0);
}

TEST(LibraryTest, SavedStepsCanBeExportedAndPredict) {
  const TemporaryDirectory directory;
  auto images = std::make_shared<io::MemoryDataset>("shades", Shape{8, 8, 3}, 2);
  const std::vector<std::uint8_t> dark(192, 10);
  for (int n = 0; n < 8; ++n) images->add(dark, 0);
  for (int n = 0; n < 8; ++n) images->add(std::vector<std::uint8_t>(192, 200), 1);
  models::GraphBuilder b("own", {8, 8, 3}, 2);
  b.begin_layer("classes");
  b.softmax_loss("loss", b.dense("dense", b.global_average_pool("mean", b.input()), {.units = 2}));
  run::Run run;
  run.batch_size = 8;
  training::Training training(runtime(), std::move(b).build(), images, run);
  (void)training.step(0.1);
  const fs::path saved = training.save(directory.path());
  const fs::path onnx = directory / "own.onnx";
  EXPECT_EQ(millrace({"export", saved, "--to onnx --output", onnx}).code, 0);
  const ProcessResult again = millrace({"import", onnx, directory / "again"});
  EXPECT_EQ(again.code, 0) << again.output;
  const io::Bytes file = io::encode_png({.width = 8, .height = 8, .bytes = dark});
  const fs::path photo = directory / "photo.png";
  std::ofstream(photo).write(reinterpret_cast<const char*>(file.data()), std::ssize(file));
  const ProcessResult seen = millrace({"predict", saved, photo, "--threads-per-device 1"});
  EXPECT_EQ(seen.code, 0) << seen.output;
  expect_end(millrace({"report", directory.path()}), 0, {"there are no curves", "report.html"});
  expect_in(read_text(directory / "report.html"), {"there are no curves", "<title>classes: "});
  fs::remove(directory / "report.html");
  expect_end(millrace({"report", saved}), 0);
  EXPECT_TRUE(fs::exists(directory / "report.html")) << "beside the checkpoint, not in it";
  expect_end(restore(directory.path()), 3,
             {"shades, 16 images", "only that program can continue it, by Training::load()"});
}

TEST(LibraryTest, ACommandContinuesTheStepsOfARun) {
  const TemporaryDirectory directory;
  (void)training::train(runtime(), small(directory / "whole"));
  training::Training steps(runtime(), small(""));
  (void)steps.step();
  const fs::path saved = steps.save(directory / "steps");
  expect_end(restore(saved), 2,
             {"a checkpoint without a run (its folder can be continued as one)"});
  fs::create_directory(directory / "steps/checkpoints");  // as a run leaves it that was killed
  for (int time = 0; time < 2; ++time) {
    const ProcessResult rest = restore(directory / "steps", time == 0 ? "--stop-after 1" : "");
    expect_end(rest, time == 0 ? 75 : 0);
  }
  EXPECT_EQ(digest_of(directory / "steps"), digest_of(directory / "whole"));
  expect_end(millrace({"report", directory / "steps"}), 0);
}

}  // namespace
}  // namespace millrace::test
