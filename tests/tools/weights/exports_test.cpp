// SPDX-License-Identifier: Apache-2.0
//
// Weights that leave a run and come back.
#include "core/json.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"
#include "python_script.hpp"
#include "tests/io/images/test_images.hpp"
#include "tools/weights/tensor_file.hpp"

namespace millrace::test {
namespace {

/// What a checkpoint says of its network: classes, names, and how images are prepared.
std::string facts_of(const fs::path& run) {
  const fs::path manifest = io::list_checkpoints(run).back() / "manifest.json";
  return Json::parse(read_text(manifest)).at("network").text();
}

/// Eight images of two classes for training and four for validation.
const fs::path& small_photos() {
  static const TemporaryDirectory directory;
  if (!fs::exists(directory / "train"))
    for (const auto& [split, count] : {std::pair("train", 4), std::pair("val", 2)})
      for (const char* name : {"n01", "n02"})
        for (int i = 0; i < count; ++i)
          write_file(directory / split / name / (std::to_string(i) + ".png"),
                     io::encode_png(io::make_image(40 + 3 * i, 50 - i)));
  return directory.path();
}

struct RoundTrip {
  const char* name;
  Words network;
  Words how;            ///< of the export
  const char* written;  ///< of the line that export prints
  const char* dataset = "cifar-10";
};

class RoundTripTest : public testing::TestWithParam<RoundTrip> {};

// The second run is made of nothing but the file.
TEST_P(RoundTripTest, AFileIsEnoughForTheSameRun) {
  const RoundTrip& trip = GetParam();
  const TemporaryDirectory directory;
  const fs::path first = directory / "first";
  const bool photos = std::string_view(trip.dataset) == "imagenet";
  const Words data = {"--data-dir", photos ? small_photos() : small_data()};
  expect_end(millrace(Words{"train --iterations 2 --batch-size 8 --no-validation --precision 32.32 "
                            "--threads-per-device 1 --optimiser SGD --dataset",
                            std::string(trip.dataset), "--run-dir", first} +
                      (photos ? Words{"--image-size 32"} : Words{}) + trip.network + data),
             0);
  const fs::path file =
      directory / (std::string(trip.written).find(" with the names") == std::string::npos
                       ? "net.onnx"
                       : "net.safetensors");
  expect_end(millrace(Words{"export", first, "--output", file} + trip.how), 0, {trip.written});
  const fs::path second = directory / "second";
  expect_end(millrace({"import", file, second}), 0, {" as millrace exported it, with the options"});
  EXPECT_EQ(digest_of(first), digest_of(second));
  EXPECT_EQ(facts_of(first), facts_of(second));
  const auto validated = [&](const fs::path& run) {
    const ProcessResult result = millrace(
        Words{"validate --json --max-eval-steps 2 --threads-per-device 1 --restore-path", run} +
            data,
        Capture::Output);  // the file does not say how many threads it was
    EXPECT_EQ(result.code, 0) << result.output;
    return result.output.substr(std::min(result.output.rfind("top1"), result.output.size()));
  };
  EXPECT_EQ(validated(first / "checkpoints" / "ckpt-2"), validated(second));
}

INSTANTIATE_TEST_SUITE_P(
    Families, RoundTripTest,
    testing::Values(
        RoundTrip{"ResNet", "--model-size 8", {}, "resnet-8 with the names of akamaster: "},
        RoundTrip{"ResNetInNamesOfTimm", "--model-size 8 --normalise dataset --block basic",
                  "--like timm", "resnet-8 with the names of timm: "},
        RoundTrip{"ResNetVersion1", "--model-size 18 --resnet-version 1 --batch-norm",
                  "--like torchvision", "resnet-18 with the names of torchvision: ", "imagenet"},
        RoundTrip{"ResNetVersion2", "--model-size 50 --resnet-version 2 --batch-norm",
                  "--like keras", "resnet-50 with the names of keras: ", "imagenet"},
        RoundTrip{"ResNetOnnx", "--model-size 8 --normalise imagenet", "--to onnx", "resnet-8: "},
        RoundTrip{"ResNetGroupNormOnnx", "--model-size 8 --group-norm", "--to onnx", "resnet-8: "},
        RoundTrip{"ResNeXt",
                  "--model resnext --model-size 11 --group-dim 2 --convolution-groups 4",
                  {},
                  "resnext-11 with the names of akamaster: "},
        RoundTrip{"SqueezeNet",
                  "--model squeezenet --use-bypass",
                  {},
                  "squeezenet with the names of torchvision: ",
                  "imagenet"},
        RoundTrip{"EfficientNet",
                  "--model efficientnet --batch-norm --image-normalisation nvidia",
                  {},
                  "efficientnet-B0 with the names of torchvision: ",
                  "imagenet"},
        RoundTrip{"EfficientNetInNamesOfTimm", "--model efficientnet --batch-norm --use-relu",
                  "--like timm", "efficientnet-B0 with the names of timm: ", "imagenet"},
        RoundTrip{"EfficientNetInNamesOfKeras",
                  "--model efficientnet --batch-norm --image-mean 0,1,2 --image-deviation 3,4,5",
                  "--like keras", "efficientnet-B0 with the names of keras: ", "imagenet"},
        RoundTrip{"EfficientNetGroupNormOnnx", "--model efficientnet --group-norm", "--to onnx",
                  "efficientnet-B0: ", "imagenet"}),
    [](const auto& trip) { return std::string(trip.param.name); });

TEST(ExportTest, RefusesWhatItCannotDo) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  expect_end(train(run, "--epochs 1 --group-norm --no-validation"), 0);
  expect_end(millrace({"export", run}), 2,
             {"akamaster has no network like this resnet-8: nothing is like b0/norm, a group "
              "normalization; --to onnx writes every network"});
  expect_end(millrace({"export", run, "--to onnx"}), 0,
             {"ckpt-10 of resnet-8: ", " in " + (run / "resnet-8.onnx").string()});
  expect_end(millrace({"export", run, "--to onnx --like timm"}), 2,
             {"--like timm has no effect with --to onnx, which writes millrace's own names"});
  expect_end(millrace({"export", run, "--to hdf5 --like keras"}), 2,
             {"--like keras has no effect with --to hdf5, which writes millrace's own names"});
  expect_end(millrace({"export", directory / "none"}), 2, {"no such directory: give a run"});
  expect_end(millrace({"import", run / "config.toml", directory / "other"}), 3, {"config.toml"});
  const std::string file = (run / "resnet-8.onnx.pth").string();
  fs::copy(run / "resnet-8.onnx", file);
  expect_end(
      train(directory / "other", Words{"--iterations 1 --init-path", file}), 3,
      {file + ": its ", "bytes are neither safetensors, nor a file of torch.save, nor HDF5"});
  EXPECT_FALSE(fs::exists(directory / "other"));
}

TEST(ExportTest, AnImportThatCannotBeWrittenLeavesNothing) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  expect_end(train(run, "--iterations 1 --no-validation"), 0);
  const fs::path file = directory / "weights.safetensors";
  expect_end(millrace({"export", run, "--output", file}), 0);
  expect_end(millrace({"import", file, directory / "other", "--classes 4"}), 2,
             {"--classes 4: " + file.string() + " has 10 classes: leave the option out; ",
              "--init-path " + (directory / "other").string() + " --init-fresh fc1"});
  fs::create_directory(directory / "mine");
  for (const char* place : {"new/runs/x", "mine"}) {
    const std::string import = "ulimit -f 100; exec " + std::string(MILLRACE_BINARY) + " import " +
                               file.string() + " " + (directory / place).string();
    expect_end(run_process("/bin/bash", {"-c", import}), 5, {"File too large"});
    EXPECT_FALSE(fs::exists(directory / "new"));
    EXPECT_TRUE(fs::is_empty(directory / "mine"));
  }
}

/// Trains a network for a moment and exports it.
void export_to(const fs::path& file, const Words& network, const Words& how = {}) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  expect_end(
      millrace(Words{"train --synthetic-data --iterations 1 --batch-size 2 --precision 32.32 "
                     "--no-validation --threads-per-device 1 --run-dir",
                     run} +
               network),
      0);
  expect_end(millrace(Words{"export", run, "--output", file} + how), 0);
}

/// The same tensors as another program would write them.
void forget_notes(const fs::path& file) {
  const std::string text = io::format_safetensors(io::read_safetensors(file).tensors(), {});
  io::write_file_atomically(file, text);
}

TEST(ExportTest, FilesComeBackOnlyAsWhatTheyAre) {
  const TemporaryDirectory directory;
  const fs::path cifar = directory / "cifar.safetensors";
  const fs::path photos = directory / "photos.safetensors";
  const fs::path mobile = directory / "mobile.safetensors";
  export_to(cifar, {"--dataset cifar-10 --model-size 8"});
  export_to(photos, {"--dataset imagenet --image-size 32 --model-size 18 --batch-norm"});
  export_to(mobile, {"--dataset imagenet --image-size 32 --batch-norm --model efficientnet"},
            {"--like timm"});
  for (const fs::path& file : {cifar, photos, mobile}) forget_notes(file);
  const std::string held = " contradicts " + cifar.string() +
                           ", which holds a resnet-8 for CIFAR with 10 classes, as in akamaster";
  struct Case {
    fs::path file;
    const char* options;
    int code;
    std::vector<std::string> said;
  };
  for (const auto& [file, options, code, said] : std::vector<Case>{
           {cifar,
            "--dataset cifar-100",
            3,
            {"cifar.safetensors: its network has 10 classes, but cifar-100 has 100: leave "}},
           {cifar, "--model efficientnet", 2, {"--model efficientnet" + held}},
           {cifar, "--model-size 20", 2, {"--model-size 20" + held}},
           {cifar, "--dataset imagenet", 2, {"--dataset imagenet" + held}},
           {cifar, "--block bottleneck", 2, {"--block bottleneck" + held}},
           {cifar,
            "--resnet-version 2",
            2,
            {"--resnet-version 2" + held + ", whose blocks normalize after each convolution",
             ": leave it out, or give --resnet-version 1.5"}},
           {cifar,
            "--like torchvision",
            0,
            {"As in torchvision: --padding torch --norm-epsilon 1e-05"}},
           {photos,
            "--resnet-version 2",
            2,
            {"which holds a resnet-18 for ImageNet", "or give --resnet-version 1.5"}},
           {photos, "--resnet-version 1", 0, {}},
           {mobile,
            "--like torchvision",
            3,
            {"its names are those of timm: --like timm, or leave --like out"}},
           {mobile, "", 0, {"\nAs in timm: --padding torch --norm-epsilon 1e-05"}},
           {mobile,
            "--padding same --norm-epsilon 1e-3",
            0,
            {"\nAs in timm: --image-preset torch --image-normalisation torch\n"}}}) {
    SCOPED_TRACE(file.string() + " " + options);
    const TemporaryDirectory runs;
    expect_end(millrace(Words{"import", file, runs / "run", options}), code, said);
  }
}

// The advice of the refusal is followed.
TEST(ExportTest, GroupNormalizationIsRefusedWithTheStatisticsOfBatches) {
  const TemporaryDirectory directory;
  const fs::path file = directory / "cifar.safetensors";
  export_to(file, {"--dataset cifar-10 --model-size 8 --shortcut-pad both"});
  const fs::path run = directory / "run";
  const ProcessResult refused = millrace({"import", file, run, "--group-norm"});
  expect_end(refused, 2,
             {"--group-norm contradicts " + file.string() + ", which holds a resnet-8",
              "batch normalization: leave it out",
              "train --group-norm --init-path RUN_DIR --init-fresh norm"});
  EXPECT_FALSE(fs::exists(run));
  expect_end(millrace({"import", file, run}), 0);
  expect_end(train(directory / "grouped",
                   Words{"--group-norm --shortcut-pad both --iterations 1 --no-validation "
                         "--init-fresh norm --init-path",
                         run}),
             0);
}

TEST(ExportTest, TrainingsExportWhenTheyAreComplete) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  const Words options = {"--epochs 1 --no-validation --export-dir RUN_DIR/export"};
  expect_end(train(run, options + Words{"--stop-after 4"}), 75);
  EXPECT_FALSE(fs::exists(run / "export"));
  expect_end(restore(run), 0,
             {"Exported ckpt-10 of resnet-8: ", " in " + (run / "export/resnet-8.onnx").string(),
              " in " + (run / "export/resnet-8.h5").string()});
  EXPECT_TRUE(fs::exists(run / "export/resnet-8.h5"));
  expect_end(millrace({"export", run, "--to hdf5"}), 0,
             {"ckpt-10 of resnet-8: ", (run / "resnet-8.h5").string()});
  EXPECT_EQ(file_bytes(run / "resnet-8.h5"), file_bytes(run / "export/resnet-8.h5"));
  expect_end(millrace(small_training() + Words{"--iterations 1 --no-logs --export-dir x"}), 2,
             {"--export-dir has no effect here: it needs a run directory"});
}

TEST(ExportTest, FolderThatCannotBeWrittenIsNamedBeforeTheTraining) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  std::ofstream(directory / "file") << "x";
  const fs::path bad = directory / "file" / "exports";
  const Words options = {"--iterations 1 --no-validation --export-dir"};
  expect_end(train(run, options + Words{bad}), 5, {"--export-dir: cannot create " + bad.string()});
  EXPECT_FALSE(fs::exists(run));
  expect_end(train(run, Words{"--epochs 1 --no-validation --stop-after 1 --export-dir",
                              directory / "a" / "b"}),
             75);
  EXPECT_FALSE(fs::exists(directory / "a"));
  expect_end(restore(run, {"--export-dir", bad}), 5, {"--export-dir: cannot create "});
}

// Needs h5py, torch and safetensors from PyPI.
TEST(ExportTest, H5pyAloneIsEnough) {
  const char* const python = std::getenv("MILLRACE_TEST_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "set MILLRACE_TEST_PYTHON to a Python with h5py";
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  expect_end(train(run,
                   "--iterations 3 --no-validation --normalise dataset --padding torch "
                   "--shortcut-pad both"),
             0);
  for (const char* format : {"hdf5", "safetensors"})
    expect_end(millrace({"export", run, "--to", std::string(format)}), 0);
  fs::copy(run / "checkpoints/ckpt-3/part-000.h5", run / "part.h5");
  const std::string source = MILLRACE_SOURCE_DIR;
  const ProcessResult result = run_process(python, {source + "/tests/support/read_hdf5.py",
                                                    source + "/docs/checkpoints.md", run.string()});
  if (result.code == 77) GTEST_SKIP() << python << " lacks one of the libraries";
  EXPECT_EQ(result.code, 0) << result.output;
  expect_in(result.output, {"the example reads what safetensors hold"});
}

// Needs torch, torchvision, timm, onnx, onnxruntime and safetensors from PyPI.
TEST(ExportTest, OtherLibrariesGiveTheSameLogits) { run_comparison("compare_weights.py"); }

// Needs tensorflow and onnxruntime from PyPI.
TEST(ExportTest, KerasGivesTheSameLogits) { run_comparison("compare_keras.py"); }

}  // namespace
}  // namespace millrace::test
