// SPDX-License-Identifier: Apache-2.0
//
// Networks trained by PyTorch give PyTorch's results here.
#include "tools/weights/import.hpp"
#include "device/compat.hpp"
#include "io/data/cifar.hpp"
#include "io/data/loader.hpp"
#include "millrace.hpp"
#include "models/registry.hpp"
#include "pipeline/stage.hpp"
#include "tests/support/device_floats.hpp"
#include "tests/support/stage_calls.hpp"
#include "tools/weights/tensor_file.hpp"

namespace millrace::test {
namespace {

struct Net {
  const char* size;
  const char* file;
  const char* reference;
  std::int64_t correct;
  double cross_entropy;
};
void PrintTo(const Net& net, std::ostream* out) { *out << net.size; }

class ImportTest : public testing::TestWithParam<Net> {
 protected:
  void SetUp() override {
    if (!fs::exists(shared_data() / "models/resnet_cifar10") ||
        !fs::exists(shared_data() / "cifar-10-batches-bin")) {
      GTEST_SKIP() << "needs the trained networks and CIFAR-10 below " << shared_data();
    }
  }
  static io::TensorFile file(const char* name) {
    return io::read_safetensors(shared_data() / "models/resnet_cifar10" / name);
  }
  /// Logits of the first `count` test images, row by row.
  static std::vector<float> logits(std::int64_t count);
};

models::Graph graph_of(const char* size) {
  models::ModelOptions options;
  options.size = size;
  options.block = models::BlockKind::Basic;
  options.shortcut_pad = models::ShortcutPadSide::Both;
  return models::build_model(options);
}

std::vector<float> ImportTest::logits(std::int64_t count) {
  const models::Graph graph = graph_of(GetParam().size);
  const auto backend = ops::make_default_backend();
  pipeline::StageOptions options;
  options.batch = 0;
  options.evaluation_batch = 128;
  pipeline::Stage stage(graph, pipeline::whole(graph), options, *backend);
  device::Arena arena(stage.bytes());
  stage.bind(arena.at(0));
  for (const io::ImportedParameter& imported : io::import_weights(
           io::read_tensor_file(shared_data() / "models/resnet_cifar10" / GetParam().file), graph,
           io::WeightStyle::Akamaster)) {
    for (const models::ParameterId id : stage.parameters().ids()) {
      if (graph.parameter(id).name != imported.name) continue;
      test::write_floats(stage.parameters().value(id), imported.values);
    }
  }
  std::shared_ptr<const io::Dataset> images = io::open_cifar(
      shared_data() / "cifar-10-batches-bin", {.kind = io::CifarKind::Cifar10,
                                               .split = io::Split::Validation,
                                               .normalisation = io::CifarNormalisation::Dataset,
                                               .statistics = io::kImageNetStatistics});
  io::LoaderOptions loader_options;
  loader_options.batch_size = 128;
  loader_options.end_position = count;
  io::Loader loader(images, io::SampleOrder::sequential(images->size()), loader_options);
  pipeline::BoundProgram& program = stage.evaluation();
  const device::ExecutionSpace space;
  program.begin_step(space);
  const pipeline::BufferId out =
      program.program().phase(pipeline::Phase::Forward).back().at(pipeline::Role::X);
  std::vector<float> result;
  while (const io::Batch* batch = loader.next()) {
    pipeline::load(program, {}, batch->images, batch->labels);
    pipeline::run_phase(program, space, pipeline::Phase::Forward, {});
    const std::vector<float> rows =
        test::read_floats(program.address(out, {}), batch->count * graph.classes);
    result.insert(result.end(), rows.begin(), rows.end());
  }
  return result;
}

TEST_P(ImportTest, LogitsAgreeWithPyTorch) {
  const io::TensorFile reference = file(GetParam().reference);
  const std::vector<float> expected = reference.tensors().at("logits_f32_test_all").to_floats();
  ASSERT_EQ(expected.size(), 100'000u);
  const std::vector<float> actual = logits(whole() ? 10'000 : 1'000);
  float worst = 0.0f;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    worst = std::max(worst, std::abs(actual[i] - expected[i]));
  }
  EXPECT_LT(worst, 2e-4f);

  const io::SafeTensor& exact = reference.tensors().at("logits_f64_test_first64");
  double worst_exact = 0.0;
  for (std::size_t i = 0; i < 640; ++i) {
    double value = 0.0;
    std::memcpy(&value, exact.data.data() + 8 * i, 8);
    worst_exact = std::max(worst_exact, std::abs(static_cast<double>(actual[i]) - value));
  }
  EXPECT_LT(worst_exact, 1e-4);
  std::printf("largest difference of logits: %.2e to float32, %.2e to float64\n",
              static_cast<double>(worst), worst_exact);
}

TEST_P(ImportTest, ValidateCountsTheSameImages) {
  if (!whole() && GetParam().size != std::string("20")) GTEST_SKIP() << "a long test";
  const TemporaryDirectory directory;
  expect_end(millrace({"import", shared_data() / "models/resnet_cifar10" / GetParam().file,
                       directory / "run", "--dataset cifar-10 --model-size", GetParam().size,
                       "--block basic --shortcut-pad both --normalise imagenet --precision 32.32"}),
             0);
  const auto validated = [&](const Words& precision) {
    const ProcessResult result =
        millrace(Words{"validate --restore-path", directory / "run", "--json --data-dir",
                       shared_data() / "cifar-10-batches-bin", "--threads-per-device 1"} +
                 precision);
    EXPECT_EQ(result.code, 0) << result.output;
    return result.output;
  };
  const auto field = [](const std::string& output, const std::string& name) {
    const std::size_t at = output.find("\"" + name + "\":");
    return std::stod(output.substr(at + name.size() + 3));
  };
  const std::string exact = validated({});
  EXPECT_EQ(std::llround(field(exact, "top1") * 10'000), GetParam().correct);
  EXPECT_EQ(std::llround(field(exact, "images")), 10'000);
  EXPECT_NEAR(field(exact, "loss"), GetParam().cross_entropy, 2e-5);
  for (const char* half : {"bf16", "fp16"}) {
    const std::string rounded = validated({"--precision 16.32 --half", half});
    EXPECT_NEAR(field(rounded, "top1") * 10'000, static_cast<double>(GetParam().correct), 15.0)
        << half;
  }
}

INSTANTIATE_TEST_SUITE_P(Cifar10, ImportTest,
                         testing::Values(Net{"20", "resnet20-12fca82f.safetensors",
                                             "resnet20_reference.safetensors", 9173, 0.373269},
                                         Net{"56", "resnet56-4bfd9763.safetensors",
                                             "resnet56_reference.safetensors", 9339, 0.345804}),
                         [](const auto& test) { return "ResNet" + std::string(test.param.size); });

}  // namespace
}  // namespace millrace::test
