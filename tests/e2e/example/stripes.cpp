// SPDX-License-Identifier: Apache-2.0
//
// Trains a network of two layers to tell horizontal stripes from vertical ones.
#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <millrace/io/data/memory_dataset.hpp>
#include <millrace/models/graph.hpp>
#include <millrace/train/training.hpp>
#include <random>
#include <utility>

using namespace millrace;

namespace {

constexpr Shape kImage = {.h = 8, .w = 8, .c = 1};
constexpr int kClasses = 2;

/// Gray stripes, two pixels wide, somewhere and with noise.
std::shared_ptr<io::MemoryDataset> stripes(int count, unsigned seed) {
  auto images = std::make_shared<io::MemoryDataset>("stripes", kImage, kClasses);
  std::mt19937 random(seed);
  for (int n = 0; n < count; ++n) {
    const int label = n % kClasses;
    const unsigned begin = random() % 4;
    std::array<std::uint8_t, 64> pixels = {};
    for (unsigned p = 0; p < pixels.size(); ++p) {
      const unsigned across = label == 0 ? p / 8 : p % 8;
      const bool bright = (across + begin) / 2 % 2 == 1;
      pixels[p] = static_cast<std::uint8_t>((bright ? 128 : 0) + random() % 128);
    }
    images->add(pixels, label);
  }
  return images;
}

models::Graph network() {
  models::GraphBuilder b("two-layers", kImage, kClasses);
  b.begin_layer("filters");
  models::ValueId x =
      b.conv("conv", b.input(), {.out_channels = 8, .kernel = {3, 3}, .pad = models::same(1)});
  x = b.activation("relu", x, {Activation::Relu});
  b.begin_layer("classes");
  x = b.global_average_pool("mean", x);
  x = b.dense("dense", x, {.units = kClasses});
  b.softmax_loss("loss", x);
  return std::move(b).build();
}

}  // namespace

int main() {
  const training::Runtime runtime({.processes = training::Processes::Launched});
  run::Run run;
  run.batch_size = 16;
  run.micro_batches = 2;
  run.optimiser = run::usual_optimiser(UpdateRule::Momentum);
  // Two stages: `filters`, and what begins with `classes`. `mpirun -n 2` gives each a process.
  run.layout.splits = {"classes"};
  training::Training training(runtime, network(), stripes(512, 1), run, stripes(128, 2));
  for (int step = 1; step <= 100; ++step) {
    const training::Score score = training.step(0.1);
    if (step % 20 == 0 && runtime.rank() == 0)
      std::printf("step %3d  loss %.4f  accuracy %5.1f %%\n", step, score.loss,
                  100 * score.accuracy);
  }
  const training::Score score = training.evaluate();
  const auto checkpoint = training.save("stripes-checkpoints");
  if (runtime.rank() == 0)
    std::printf("new images: accuracy %.1f %%; saved %s\n", 100 * score.accuracy,
                checkpoint.c_str());
}
