// SPDX-License-Identifier: Apache-2.0
//
// Each of the five guides played from its first command to its last, with its own command lines on
// a few small photos: prepare the data, train, look at what was promised, stop, continue, evaluate,
// export, measure. What is added to a line makes it small: --image-size, --model-size, --ranks.
#include <regex>

#include "millrace.hpp"
#include "mpirun.hpp"
#include "run_tables.hpp"
#include "tests/io/images/test_images.hpp"

namespace millrace::test {
namespace {

const Words kTiny = "--image-size 32 --model-size 10 --threads-per-device 1";

void write_photo(const fs::path& path, int number) {
  write_file(path, io::encode_jpeg(io::make_image(40 + number, 60 - number)));
}

/// ImageNet in small, as the archives of the guides leave it: folders of classes for training, and
/// numbered files for validation with their labels in a list.
void write_raw(const fs::path& raw, const std::string& train, const std::string& validation) {
  int number = 0;
  std::ofstream labels;
  fs::create_directories(raw);
  labels.open(raw / "synset_labels.txt");
  for (const char* name : {"n01440764", "n01443537", "n01484850"})
    for (int i = 0; i < 8; ++i, ++number) {
      write_photo(raw / train / name / (std::to_string(number) + ".JPEG"), number);
      if (i % 4 != 0) continue;
      const std::string place = std::to_string(10'000'000 + number).substr(1);
      write_photo(raw / validation / ("ILSVRC2012_val_" + place + ".JPEG"), number);
      labels << name << "\n";
    }
}

/// The TFRecord files that `data convert` makes of them: 24 images, and 6 for validation. Made
/// once.
const fs::path& records() {
  static const TemporaryDirectory directory;
  static const fs::path made = [] {
    write_raw(directory / "imagenet", "train", "validation");
    fs::path out = directory / "imagenet" / "tf_records";
    expect_end(millrace({"data convert", out, "--raw-dir", directory / "imagenet",
                         "--train-shards 2 --validation-shards 1"}),
               0, {"training: 24 images of 3 classes", "validation: 6 images"});
    expect_end(millrace({"data check", out}), 0, {"24 images", "0 bad"});
    return out;
  }();
  return made;
}

/// The run directory that a training says it saves to.
fs::path run_of(const ProcessResult& result) {
  std::smatch match;
  EXPECT_TRUE(std::regex_search(result.output, match, std::regex(R"(Saving to (\S+))")))
      << result.output;
  return match.empty() ? fs::path() : fs::path(match[1].str());
}

/// The accuracies and losses in the lines of validations, without times.
std::vector<std::string> validations_in(const std::string& output) {
  std::vector<std::string> found;
  const std::regex line(
      R"(top-1 accuracy \[(?:ckpt-\d+|untrained weights)\].*: +(.*% \(top-5: .*\)))");
  for (std::sregex_iterator i(output.begin(), output.end(), line), end; i != end; ++i)
    found.push_back((*i)[1]);
  return found;
}

// Guide 002: the IPU trainer.

TEST(IpuGuideTest, CifarFromTheFirstLineToTheLast) {
  const TemporaryDirectory place;
  const Words line =
      "train --dialect ipu python3 train.py --dataset cifar-10 --model-size 8 --iterations 6 "
      "--batch-size 16 --gradients-to-accumulate 2 --seed 1 --log-freq 2 --threads-per-device 1 "
      "--momentum 0.9";
  const Words data = {"DATA_DIR=" + small_data().string()};
  const ProcessResult whole = millrace_with(data, line + Words{"--run-dir", place / "whole"});
  expect_end(whole, 0,
             {"Total Parameters: ", " Batch Size: 32", "--momentum has no effect here",
              "Validation top-1 accuracy"});
  for (const char* file : {"log.txt", "training.csv", "validation.csv", "config.toml"})
    EXPECT_TRUE(fs::exists(place / "whole" / file)) << file;
  EXPECT_EQ(Table(place / "whole" / "training.csv").last("iteration"), 6.0);
  // Stopped in the middle and continued.
  expect_end(millrace_with(data, line + Words{"--stop-after 3 --log-dir", place / "logs"}), 75);
  const fs::path run = fs::directory_iterator(place / "logs")->path();
  expect_end(millrace({"train --dialect ipu restore.py --restore-path", run}), 0,
             {"Restoring training from latest checkpoint"});
  EXPECT_EQ(digest_of(run), digest_of(place / "whole"));
  // Validated like the training, and exported.
  const ProcessResult validated =
      millrace({"train --dialect ipu python validation.py --model-size 8 --restore-path", run});
  EXPECT_EQ(validations_in(validated.output), validations_in(whole.output)) << validated.output;
  for (const char* format : {"onnx", "hdf5", "safetensors"}) {
    const fs::path file = place / format;
    expect_end(millrace({"export", run, "--to", format, "--output", file}), 0);
    EXPECT_GT(fs::file_size(file), 1000u) << format;
  }
  // The same training as a pipeline.
  expect_end(
      millrace_with(data, line + Words{"--shards 2 --ranks 1 --pipeline-splits b2/0/relu --run-dir",
                                       place / "staged"}),
      0);
  EXPECT_EQ(digest_of(place / "staged"), digest_of(place / "whole"));
}

TEST(IpuGuideTest, ImageNetFromTheFirstLineToTheLast) {
  const TemporaryDirectory place;
  const Words small = "--image-size 32 --iterations 2 --ranks 1 --threads-per-device 1";
  const Words first = {"train --dialect ipu train.py --dataset imagenet --data-dir", records()};
  const ProcessResult stages =
      millrace(first +
               "--model-size 14 --batch-size 2 --xla-recompute --no-validation --shards 2 "
               "--pipeline-depth 4 --pipeline-splits b3/0/relu --available-memory-proportion 0.1 "
               "--standard-imagenet --no-dataset-cache" +
               small + Words{"--run-dir", place / "stages"});
  expect_end(stages, 0,
             {" Batch Size: 8", "--standard-imagenet has no effect here: there is only one order"});
  expect_end(millrace(first +
                      "--model efficientnet --model-size B0 --shards 4 --batch-size 2 "
                      "--pipeline-depth 4 --pipeline-splits block2b block4a block6a "
                      "--xla-recompute --pipeline-schedule Grouped --optimiser RMSprop "
                      "--precision 16.32" +
                      small + Words{"--run-dir", place / "efficient"}),
             0, {" Batch Size: 8", "Validation top-1 accuracy"});
  const ProcessResult profiled =
      millrace(Words{"train --dialect ipu gc-profile -d", place / "profile",
                     "-- python train.py --gc-profile --dataset imagenet --data-dir", records(),
                     "--model-size 14 --batch-size 2 --no-validation"} +
               small + Words{"--run-dir", place / "profiled"});
  expect_end(profiled, 0);
  EXPECT_TRUE(fs::exists(place / "profile" / "trace.json"));
  const ProcessResult inference = millrace(
      "train --dialect ipu python validation.py --model efficientnet --model-size B0 --dataset "
      "imagenet --batch-size 8 --synthetic-data --repeat 3 --batch-norm --image-size 32 "
      "--max-eval-steps 2 --threads-per-device 1");
  EXPECT_EQ(inference.code, 0) << inference.output;
  EXPECT_EQ(validations_in(inference.output).size(), 3u) << inference.output;
  expect_in(inference.output, {"img/sec:", "latency (ms):"});
}

// 16 bits are the trainer's default. Where products are not made of them they only cost time.
TEST(IpuGuideTest, ProcessorsWithoutHalfProductsAreToldOfFloat32) {
  const Words line =
      "train --dialect ipu train.py --dataset cifar-10 --synthetic-data --model-size 8 "
      "--iterations 1 --batch-size 4 --no-validation --no-logs --threads-per-device 1";
  const std::string said = "--precision 32.32 is faster than 16.16, the default of --dialect ipu";
  const Words old = {"MILLRACE_MAX_ISA=avx2"};
  expect_end(millrace_with(old, line), 0, {said});
  for (const Words& more : {Words("--precision 16.16"), Words("--precision 32.32")})
    EXPECT_EQ(millrace_with(old, line + more).output.find(said), std::string::npos);
}

Words distributed_line(const fs::path& run) {
  return Words{"train --dialect ipu python train.py --dataset cifar-10 --data-dir", small_data(),
               "--model-size 8 --batch-size 4 --batches-per-step 1 --distributed "
               "--no-stochastic-rounding --iterations 2 --seed 1 --no-validation "
               "--threads-per-device 1 --run-dir",
               run};
}
Words tf_config(const std::string& index) {
  return {R"(TF_CONFIG={"cluster":{"worker":["localhost:3636","localhost:3637"]},)"
          R"("task":{"type":"worker")" +
          index + "}}"};
}

TEST(IpuGuideTest, EveryWorkerHasItsOwnLine) {
  const TemporaryDirectory place;
  expect_end(millrace_with(tf_config(",\"index\":1"), distributed_line(place / "run")), 0,
             {"Task 1 has nothing to do: task 0 on localhost starts all 2 ranks."});
  EXPECT_FALSE(fs::exists(place / "run"));
}

TEST(IpuGuideTest, WorkersUnderMpirunNeedNoIndex) {
  const TemporaryDirectory place;
  const auto train = [&](const std::string& index, const char* run) {
    const Words launch = tf_config(index) + kMpirun + Words{"--tag-output -x TF_CONFIG -np 2"};
    const ProcessResult result =
        run_process("/usr/bin/env",
                    launch + Words{std::string(MILLRACE_BINARY)} + distributed_line(place / run));
    expect_end(result, 0, {" Batch Size: 8"});
    return digest_of(place / run);
  };
  EXPECT_EQ(train("", "without"), train(",\"index\":0", "with"));
}

// Guide 001: NVIDIA's ResNet-50.

TEST(NvidiaGuideTest, FromTheFirstLineToTheLast) {
  const TemporaryDirectory place;
  const Words data = {"--batch_size=4", "--data_dir=" + records().string()};
  const Words results = {"--results_dir=" + (place / "results").string()};
  const Words main = "train --dialect nvidia python ./main.py";
  const Words line = main +
                     "--mode=train_and_evaluate --iter_unit=batch --num_iter=4 --seed=3 "
                     "--lr_warmup_epochs 5" +
                     data + kTiny;
  const ProcessResult trained = millrace(line + results);
  expect_end(trained, 0, {"the warm-up covers all 4 updates and would take 20"});
  ASSERT_EQ(validations_in(trained.output).size(), 1u) << trained.output;
  const fs::path run = run_of(trained);
  EXPECT_EQ(run.parent_path(), place / "results");
  // The guide evaluates with the directory that training was given.
  for (const Words& directory : {results, Words{"--results_dir=" + run.string()}}) {
    const ProcessResult evaluated =
        millrace(main + "--mode=evaluate --seed 4 --mixup 0.2 --use_dali" + data + directory);
    EXPECT_EQ(validations_in(evaluated.output), validations_in(trained.output)) << evaluated.output;
    if (directory == results) expect_in(evaluated.output, {run.string()});
  }
  // Stopped, and continued by the same line.
  const Words stopped = {"--results_dir=" + (place / "stopped").string()};
  expect_end(millrace(line + stopped + "--stop-after 2"), 75);
  const ProcessResult continued =
      millrace(line + stopped + Words{"--restore-path", place / "stopped"});
  expect_end(continued, 0, {"taking the only run in it"});
  EXPECT_EQ(validations_in(continued.output), validations_in(trained.output));
  write_photo(place / "photo.jpg", 3);
  expect_end(millrace(main + "--mode predict --model_dir" +
                      Words{place / "results", "--to_predict", place / "photo.jpg"} + results),
             0, {run.string(), "photo.jpg", "\"probability\":"});
  expect_end(millrace(main +
                      "--mode=training_benchmark --use_tf_amp --warmup_steps 1 --iter_unit "
                      "batch --num_iter 3" +
                      data + results + kTiny),
             0, {"throughput ", "images/s"});
  expect_end(millrace(main +
                      "--mode=inference_benchmark --use_tf_amp --warmup_steps 1 --train_iter 4 "
                      "--iter_unit batch" +
                      data + results + kTiny),
             0, {"throughput ", "images/s"});
  // Two GPUs, in mixed precision.
  const ProcessResult both =
      mpirun(2, main + "--iter_unit=batch --num_iter=2 --use_tf_amp" + data + results + kTiny,
             "--allow-run-as-root");
  expect_end(both, 0, {" Batch Size: 8", "Precision: 16.32", "float16"});
}

TEST(NvidiaGuideTest, ScriptsOfTheQuickStartCutShort) {
  const TemporaryDirectory place;
  const ProcessResult script =
      millrace({"train --dialect nvidia ./scripts/RN50_FP16_1GPU.sh .", records(), place / "script",
                "--iterations 1 --model-size 14 --image-size 32 --batch_size 4 --warmup-epochs 0 "
                "--threads-per-device 1"});
  expect_end(script, 0, {"Precision: 16.32", "float16"});
  const ProcessResult validation = millrace({"train --dialect nvidia ./scripts/RN50_FP16_EVAL.sh .",
                                             records(), place / "script", "--batch_size 4"});
  ASSERT_EQ(validations_in(validation.output).size(), 2u) << validation.output;  // all checkpoints
  EXPECT_EQ(validations_in(validation.output).back(), validations_in(script.output).back());
}

// Guide 000: Habana's ResNeXt.

TEST(ResNeXtGuideTest, FromTheFirstLineToTheLast) {
  const TemporaryDirectory place;
  const Words main = "train --dialect habana python imagenet_main.py -dt bf16 -dlit bf16 -bs 4";
  const Words small = "--image-size 32 --resnet_size 14 --threads-per-device 1";
  const Words data = {"--data_dir", records()};
  const ProcessResult trained =
      millrace(main +
               "-te 90 -ebe 90 --hooks ProfilerHook --profile_steps 2,3 --max_train_steps 4 "
               "--use_train_and_evaluate" +
               data + small + Words{"--model_dir", place / "model"});
  expect_end(trained, 0, {"trace.json shows every action"});
  const fs::path run = run_of(trained);
  expect_in(read_text(run / "trace.json"), {"traceEvents"});
  ASSERT_EQ(validations_in(trained.output).size(), 1u) << trained.output;
  const Words evaluation = main + "--eval_only --model_dir" + Words{place / "model"} + data;
  EXPECT_EQ(validations_in(millrace(evaluation).output), validations_in(trained.output));
  const ProcessResult part = millrace(evaluation + "--max_eval_steps 1");
  EXPECT_EQ(validations_in(part.output).size(), 1u) << part.output;
  EXPECT_NE(validations_in(part.output), validations_in(trained.output));
  // JPEG files, whose validation images valprep.sh moves into folders of classes.
  write_raw(place / "jpeg", "train", "flat");
  int number = 0;
  for (const char* name : {"n01440764", "n01443537", "n01484850"})
    write_photo(place / "jpeg" / "val" / name / "1.JPEG", ++number);
  const ProcessResult jpeg =
      millrace(main + "-te 1 -ebe 1 --disable_checkpoints --jpeg_data_dir" +
               Words{place / "jpeg", "--model_dir", place / "model"} + small);
  expect_end(jpeg, 0, {"Validation top-1 accuracy"});
  EXPECT_FALSE(fs::exists(run_of(jpeg) / "checkpoints" / "ckpt-0"));
  EXPECT_TRUE(fs::exists(run_of(jpeg) / "checkpoints" / "ckpt-6"));
}

// Guide 003: Habana's ResNet-50 in Keras.

TEST(KerasGuideTest, FromTheFirstLineToTheLast) {
  const TemporaryDirectory place;
  write_raw(place / "raw", "img_train", "img_val");
  const fs::path data = place / "raw" / "tf_records";
  expect_end(millrace({"data convert", data, "--raw-dir", place / "raw",
                       "--train-shards 2 --validation-shards 1"}),
             0);
  const Words demo =
      Words{
          "train --dialect habana python demo_resnet_keras.py -dt bf16 -dlit bf16 "
          "-bs 4 -dd",
          data} +
      kTiny;
  const ProcessResult trained = millrace(
      demo +
      "--train_epochs 2 --train_steps 3 -ebe 1 --log_steps 1 --steps_per_loop 50 --clean "
      "--enable_checkpoint_and_export --enable_tensorboard --experimental_preloading=False "
      "--use_keras_mixed_precision --horovod_hierarchical_allreduce -md" +
      Words{place / "model"});
  expect_end(trained, 0,
             {"--clean has no effect here: every run gets its own directory",
              "--horovod_hierarchical_allreduce has no effect here"});
  const fs::path run = run_of(trained);
  EXPECT_EQ(Table(run / "training.csv").last("iteration"), 6.0);
  EXPECT_EQ(Table(run / "training.csv")["iteration"].size(), 6u);
  EXPECT_EQ(validations_in(trained.output).size(), 2u) << "after each shortened epoch";
  for (const char* checkpoint : {"ckpt-3", "ckpt-6"})
    EXPECT_TRUE(fs::exists(run / "checkpoints" / checkpoint)) << checkpoint;
  EXPECT_FALSE(fs::is_empty(run / "export"));
}

// Guide 004: SURFsara's ResNet-50.

TEST(SurfsaraGuideTest, FromTheFirstLineToTheLast) {
  const TemporaryDirectory place;
  const Words threads =
      "--num_intra_threads 1 --num_inter_threads 2 --use_tpu=False "
      "--kmp_blocktime 1";
  const Words small = "--image-size 32 --model-size 10";
  const Words line =
      Words{"train --dialect surfsara python resnet_main.py --train_batch_size 8 --train_steps 4",
            "--data_dir=" + records().string()} +
      threads + small;
  const ProcessResult trained = mpirun(2, line + Words{"--model_dir", place / "model_batch_8"});
  expect_end(trained, 0, {" Batch Size: 8", "the warm-up covers all 4 updates"});
  const Words stopped = {"--model_dir", place / "stopped"};
  expect_end(mpirun(2, line + stopped + "--stop-after 2"), 75);
  const ProcessResult continued =
      mpirun(2, line + stopped + Words{"--restore-path", place / "stopped"});
  expect_end(continued, 0, {"Restoring training from latest checkpoint"});
  EXPECT_EQ(validations_in(continued.output), validations_in(trained.output));
  ASSERT_EQ(validations_in(trained.output).size(), 1u) << "only at the end";
  const ProcessResult evaluated =
      millrace(Words{"train --dialect surfsara python resnet_eval.py --eval_batch_size 3",
                     "--data_dir=" + records().string(), "--model_dir", place / "model_batch_8"} +
               threads);
  expect_end(evaluated, 0, {"top-5: ", "loss: "});
  EXPECT_EQ(validations_in(evaluated.output), validations_in(trained.output));
  // The guide trains on a folder without validation images.
  write_raw(place / "scratch", "train", "elsewhere");
  const ProcessResult alone =
      millrace(Words{"train --dialect surfsara resnet_main.py --train_batch_size 8 --train_steps 2",
                     "--data_dir=" + (place / "scratch").string(), "--model_dir", place / "alone"} +
               threads + small);
  expect_end(alone, 0, {"holds no validation images: this run does not validate"});
}

}  // namespace
}  // namespace millrace::test
