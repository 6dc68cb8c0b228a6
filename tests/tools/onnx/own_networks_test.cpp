// SPDX-License-Identifier: Apache-2.0
//
// Networks in files of ONNX, as their users train them.
#include "python_script.hpp"
#include "tests/support/onnx_bytes.hpp"

namespace millrace::test {
namespace {

fs::path written(const fs::path& path, const OnnxBytes& network) {
  std::ofstream(path, std::ios::binary) << network.bytes();
  return path;
}

Words training(const fs::path& file, const fs::path& run, const Words& more = {}) {
  return Words{"train --model", file, "--data-dir", small_data(), "--run-dir", run} +
         "--dataset cifar-10 --abs-learning-rate 0.05 --warmup-epochs 0 --batch-size 8 "
         "--gradients-to-accumulate 4 --iterations 6 --no-validation --seed 5 --precision 32.32 "
         "--threads-per-device 1" +
         more;
}

// tests/tools/onnx/own_networks_golden_test.cpp says so of every network and every cut.
TEST(OwnNetworkRunTest, TrainsToTheSameBitsInTwoLayouts) {
  const TemporaryDirectory directory;
  const fs::path file = written(directory / "net.onnx", mobile_network(32));
  expect_end(millrace(training(file, directory / "one", "--optimiser momentum")), 0,
             {"onnx net on cifar-10", "Starting from the weights of " + file.string()});
  expect_end(millrace(training(
                 file, directory / "three",
                 {"--optimiser momentum --shards 3 --ranks 1 --pipeline-splits relu6 gate"})),
             0);
  EXPECT_EQ(digest_of(directory / "one"), digest_of(directory / "three"));
}

// Every command after the training works from the run alone.
TEST(OwnNetworkRunTest, NeedsItsFileNoMore) {
  const TemporaryDirectory directory;
  const fs::path file = written(directory / "net.onnx", depthwise_network(32));
  const fs::path run = directory / "run";
  const Words rate = {"--optimiser SGD"};
  expect_end(millrace(training(file, directory / "whole", rate)), 0);
  expect_end(millrace(training(file, run, rate + Words{"--stop-after 3"})), 75);
  fs::remove(file);
  expect_end(restore(run), 0);
  EXPECT_EQ(digest_of(run), digest_of(directory / "whole"));
  const auto validated = [](const fs::path& where) {
    const ProcessResult result = millrace(
        {"validate --json --data-dir", small_data(), "--restore-path", where}, Capture::Output);
    EXPECT_EQ(result.code, 0) << result.output;
    return result.output.substr(result.output.rfind("\"top1"));
  };
  const fs::path exported = directory / "trained.onnx";
  expect_end(millrace({"export", run, "--to onnx --output", exported}), 0);
  expect_end(millrace({"export", run}), 0,
             {"torchvision has no network like this net: nothing is like c1: the tensors have",
              "ckpt-6 of net with the names of millrace: "});
  expect_end(millrace({"export", run, "--to hdf5"}), 0, {"net.h5"});
  expect_end(millrace({"export", run, "--like timm"}), 2,
             {"timm has no network like this net: nothing is like c1; --to onnx writes every"});
  expect_end(millrace({"report", run}), 0);
  expect_end(millrace({"plan --config", run / "config.toml"}), 0, {"gate"});
  expect_end(millrace({"average", run, "--count 1"}), 0);
  EXPECT_EQ(validated(run / "averages" / "mean-of-1"), validated(run / "checkpoints" / "ckpt-6"));
  // What was exported is the same network, which a run can be made of.
  expect_end(millrace({"import", exported, directory / "again",
                       "--precision 32.32 --optimiser SGD --dataset cifar-10"}),
             0, {"net as millrace exported it, with the options of its run"});
  EXPECT_EQ(digest_of(directory / "again"), digest_of(run));
  EXPECT_EQ(validated(directory / "again"), validated(run / "checkpoints" / "ckpt-6"));
}

// Photos of a few classes, and nothing but the network that says of how many.
TEST(OwnNetworkRunTest, ItsOutputsAreTheClasses) {
  const TemporaryDirectory directory;
  const fs::path file = written(directory / "net.onnx", plain_network(32));
  const fs::path run = directory / "run";
  const Words train = {"train --dataset imagenet --synthetic-data --model", file};
  expect_end(millrace({"plan --dataset imagenet --model", file}), 0);
  expect_end(millrace(train + "--compile-only"), 0);
  expect_end(
      millrace(train + Words{"--batch-size 2 --iterations 2 --no-validation --run-dir", run}), 0,
      {"no option sets the learning rate", "for trained ones, as --model may have them"});
  const ProcessResult report = millrace({"report", run});
  expect_end(report, 0);
  expect_not_in(report.output, {"cannot plan the run"});
  expect_end(millrace(train + "--compile-only --classes 12"), 2,
             {"the network has 10 outputs, but --classes asks for 12 classes"});
  // The cuts of a plan are its layers.
  const fs::path dense = written(directory / "dense.onnx", dense_network(32));
  expect_end(millrace({"plan --dataset cifar-10 --shards 2 --pipeline-depth 4 --model", dense}), 0,
             {"d2.cat", "transition", "fc"});
}

TEST(OwnNetworkRunTest, RefusesWhatDoesNotFit) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  const fs::path small = written(directory / "small.onnx", plain_network(16));
  expect_end(millrace(training(small, run)), 2,
             {"the network reads images of 16x16x3, but those of the data set are 32x32x3"});
  const fs::path net = written(directory / "net.onnx", plain_network(32));
  expect_end(millrace({"train --no-logs --dataset cifar-100 --synthetic-data --model", net}), 2,
             {"the network has 10 outputs, but the data set has 100 classes"});
  expect_end(millrace(training(net, run, "--group-norm")), 2, {"--group-norm"});
  expect_end(millrace(training(net, run, "--model-size 20")), 2,
             {"--model-size has no effect here: " + net.string() +
              " is the whole network: remove the option"});
  expect_end(millrace(training(directory / "none.onnx", run)), 5, {"none.onnx"});
  OnnxBytes odd = plain_network(32);
  odd.graph().mutable_node(2)->set_op_type("Mish");
  odd.graph().mutable_node(5)->set_op_type("Erf");
  expect_end(millrace(training(written(directory / "odd.onnx", odd), run)), 2,
             {"odd.onnx: 2 of 8 nodes have no counterpart in millrace: r1 (Mish); r2 (Erf)"});
  EXPECT_FALSE(fs::exists(run));
  // Fresh weights need none in the file.
  OnnxBytes stripped = plain_network(32);
  for (io::onnx::TensorProto& tensor : *stripped.graph().mutable_initializer())
    tensor.clear_float_data();
  const fs::path bare = written(directory / "bare.onnx", stripped);
  for (const char* only : {"", "--compile-only"})
    expect_end(millrace(training(bare, run, only)), 3, {"give --init-weights fresh"});
  expect_end(millrace(training(bare, run, "--init-weights fresh")), 0);
}

// Needs torch, onnx and onnxscript from PyPI.
TEST(OwnNetworkRunTest, FollowsPyTorch) { run_comparison("train_onnx.py"); }

}  // namespace
}  // namespace millrace::test
