// SPDX-License-Identifier: Apache-2.0
//
// What lines of other trainers do together: with the command that was typed, the run that they
// continue or evaluate, the help, and the words of messages.
#include <fmt/format.h>

#include "lines.hpp"
#include "run/field_rows.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests

Patch recorded_by(const std::string& line) {
  return parse_config(to_toml(config_of(line)), "config.toml");
}

TEST(DialectTest, AProgramThatListsDevicesNamesTheCommandThatDoes) {
  expect_said(run_words({"gc-info", "-l"}), 2,
              {"gc-info lists devices and trains nothing: use millrace doctor"});
}

// `train` starts whatever the line means. The other commands take their own program, and those that
// concern a training take that, too.
TEST(DialectTest, CommandAndProgramAgreeOrBothAreNamed) {
  struct Program {
    const char* line;   ///< behind --dialect
    const char* name;   ///< in the refusal
    const char* means;  ///< a command
  };
  const Program programs[] = {
      {"ipu train.py --dataset cifar-10", "train.py", "train"},
      {"ipu python3 restore.py", "restore.py", "restore"},
      {"ipu python -m validation", "validation.py", "validate"},
      {"nvidia main.py --batch_size 8", "main.py", "train"},
      {"nvidia main.py --batch_size 8 --mode=train", "--mode train", "train"},
      {"nvidia main.py --mode evaluate --results_dir r", "--mode evaluate", "validate"},
      {"nvidia main.py --batch_size 8 --mode training_benchmark --iter_unit batch --num_iter 300",
       "--mode training_benchmark", "bench"},
      {"nvidia predict.py -m r -f i.jpg", "predict.py", "predict"},
      {"nvidia RN50_FP16_EVAL.sh m d r", "RN50_FP16_EVAL.sh", "validate"},
      {"habana imagenet_main.py", "imagenet_main.py", "train"},
      {"habana imagenet_main.py --eval_only", "--eval_only", "validate"},
      {"habana demo_resnet_keras.py", "demo_resnet_keras.py", "train"},
      {"surfsara resnet_main.py", "resnet_main.py", "train"},
      {"surfsara resnet_eval.py", "resnet_eval.py", "validate"},
      {"surfsara --eval_batch_size 8", "--eval_batch_size", "validate"}};
  for (const Program& program : programs)
    for (const std::string command : {"train", "restore", "validate", "bench", "plan"}) {
      const std::string line = fmt::format("{} --dialect: {}", command, program.line);
      SCOPED_TRACE(line);
      const std::string means = program.means;
      const auto read = [&] { return spec_of(read_line(line).command).name; };
      if (command == "train" || command == means)
        EXPECT_EQ(read(), means);
      else if (means == "train" && command != "validate")
        EXPECT_EQ(read(), command);
      else
        EXPECT_EQ(failure_of([&] { (void)read(); }).text,
                  fmt::format("millrace {0} and {1} contradict each other: {1} means millrace {2}; "
                              "type that, or leave {1} out",
                              command, program.name, means));
    }
}

// What RN50_FP16_1GPU.sh and its like pass to main.py in NVIDIA's repository.
constexpr std::string_view kPassed =
    "--mode=train_and_evaluate --iter_unit=epoch --num_iter=50 --batch_size={} --warmup_steps=100 "
    "--use_cosine_lr --label_smoothing 0.1 --lr_init=0.256 --lr_warmup_epochs=8 --momentum=0.875 "
    "--weight_decay=3.0517578125e-05 {} --data_dir=/data/imagenet --results_dir=/tmp/results";

TEST(NvidiaScriptsTest, ComputeWhatTheirLineOfMainPyDoes) {
  for (const bool half : {true, false})
    for (const int gpus : {1, 4, 8}) {
      const Read script =
          read_line(fmt::format("nvidia: ./scripts/RN50_{}_{}GPU.sh . /data/imagenet /tmp/results",
                                half ? "FP16" : "FP32", gpus));
      const std::string passed =
          fmt::format(fmt::runtime(kPassed), half ? 256 : 128, half ? "--use_tf_amp" : "");
      EXPECT_EQ(to_toml(resolved(script).config),
                to_toml(config_of(
                    fmt::format("nvidia: mpiexec -np {} python main.py {}", gpus, passed))));
      EXPECT_EQ(script.options.text("log-dir"), "/tmp/results");
      EXPECT_TRUE(script.notices.empty()) << script.notices.front();
    }
}

// The options of a training's line mean nothing to the evaluation that repeats it.
TEST(NvidiaLinesTest, AnEvaluationTakesTheLineOfTheTraining) {
  const std::string training = "nvidia: main.py --batch_size 8 --data_dir imagenet";
  const Patch recorded = recorded_by(training);
  for (const char* option :
       {"--use_dali", "--mixup 0.2", "--momentum 0.8", "--weight_decay 1e-5",
        "--label_smoothing 0.1", "--use_cosine_lr", "--use_auto_loss_scaling", "--num_iter 90",
        "--use_static_loss_scaling --loss_scale 64", "--lr_warmup_epochs 8", "--export_dir e"}) {
    const std::string line = fmt::format("{} --mode=evaluate {}", training, option);
    Read untrained = read_line(line);
    untrained.options = validated_options(untrained.options);
    EXPECT_NO_THROW((void)resolved(untrained)) << option;
    const Read trained = read_line(line + " --results_dir r");
    EXPECT_NO_THROW((void)validated_options(trained.options, recorded)) << option;
  }
}

// main.py has one network, and a run knows its own.
TEST(NvidiaScriptsTest, EvaluateWhateverTheRunTrained) {
  const Patch recorded = recorded_by("nvidia: main.py --batch_size 8 --data_dir d --model-size 18");
  for (const char* name : {"RN50_FP16_EVAL.sh", "RN50_FP32_EVAL.sh"}) {
    Patch others = read_line(fmt::format("nvidia: {} . /data /tmp/results", name)).options;
    for (const char* own : {"batch-size", "precision", "half"}) others.erase(own);  // may differ
    EXPECT_EQ(validated_options(others, recorded).text("model-size"), "18");
  }
}

// What follows from other values is compared after them, and a message names the cause.
TEST(DialectTest, ContinuingNamesWhatDiffersFirst) {
  struct Case {
    const char* begun;
    const char* continued;
    const char* message;
  };
  const char* const replicas =
      "this line has 1 replica(s), and the run was started with 2, from which rates and batches "
      "follow: start it under mpirun -np 2 or say --replicas 2";
  for (const Case& c : std::initializer_list<Case>{
           {"nvidia: mpirun -np 2 main.py --batch_size 8", "nvidia: main.py --batch_size 8",
            replicas},
           {"nvidia: mpirun -np 2 main.py --batch_size 8 --lr_init 0.2",
            "nvidia: main.py --batch_size 8 --lr_init 0.2", replicas},
           {"habana: mpirun -np 2 demo_resnet_keras.py -bs 8", "habana: demo_resnet_keras.py -bs 8",
            replicas},
           {"habana: mpirun -np 2 imagenet_main.py -bs 8 --max_train_steps 9",
            "habana: imagenet_main.py -bs 8 --max_train_steps 9", replicas},
           {"surfsara: mpirun -np 2 resnet_main.py --train_batch_size 512",
            "surfsara: resnet_main.py --train_batch_size 512", replicas},
           {"nvidia: main.py --batch_size 8", "nvidia: mpirun -np 2 main.py --batch_size 8",
            "this line has 2 replica(s), and the run was started with 1, from which rates and "
            "batches follow: start it without a launcher"},
           {"nvidia: main.py --batch_size 8", "nvidia: main.py --batch_size 16",
            "--batch_size (--batch-size) 16 would change"},
           {"nvidia: mpirun -np 2 main.py --batch_size 8",
            "nvidia: main.py --batch_size 8 --momentum 0.5", "--momentum 0.5 would change"},
           {"nvidia: main.py --batch_size 8", "nvidia: main.py --batch_size 8 --lr_init 0.5",
            "--lr_init (--abs-learning-rate) is here 0.015625, which would change the mathematics "
            "of the run, which started with 0.003125: "}}) {
    const std::string place = " --data_dir /imagenet";
    const Patch recorded = recorded_by(c.begun + place);
    const Patch line = read_line(c.continued + place).options;
    const Failure failure = failure_of([&] { (void)continued_options(line, recorded); });
    EXPECT_TRUE(failure.text.starts_with(c.message)) << c.continued << ": " << failure.text;
  }
}

// Advice names what the user typed, or could have typed instead of a default of the trainer. {rate}
// and {warmup} stand for the options that set these.
TEST(DialectTest, EveryMessageSpeaksTheDialect) {
  struct Case {
    const char* line;
    const char* message;
    const char* asked;
  };
  const char* const nvidia =
      "nvidia: main.py --batch_size 8 --lr_init 0.1 --num_iter 3 --data_dir d";
  const char* const batches =
      "nvidia: main.py --batch_size=8 --data_dir=d --num_iter=3 --iter_unit=batch";
  const char* const advice = "lower {rate} or lengthen {warmup}";
  for (const Case& c : std::initializer_list<Case>{
           {nvidia, advice, "lower --lr_init or lengthen --lr_warmup_epochs"},
           {batches, advice, "lower --lr_init or lengthen --lr_warmup_epochs"},
           {nvidia, "change --epochs", "change --num_iter"},
           {nvidia, "give the data set with --data-dir, or --synthetic-data",
            "give the data set with --data_dir, or --synthetic-data"},
           {nvidia, "--batch-size 4 fits", "--batch_size 4 fits"},
           {nvidia, "--lr_init (--abs-learning-rate) 0.1 would change",
            "--lr_init (--abs-learning-rate) 0.1 would change"},
           {nvidia, "--recompute segments, more --shards", "--recompute segments, more --shards"},
           {"habana: imagenet_main.py -bs 8 --enable_lars", "lower --batch-size or --lr-schedule",
            "lower -bs or --lr-schedule"},
           {"habana: imagenet_main.py --enable_lars", advice,
            "lower --start_learning_rate or lengthen --warmup_epochs"},
           {"habana: demo_resnet_keras.py --lr_schedule polynomial", advice,
            "lower --base_learning_rate or lengthen --warmup_epochs"},
           {"habana: demo_resnet_keras.py --optimizer LARS", "lower --abs-learning-rate",
            "lower --base_learning_rate"},
           {"surfsara: resnet_main.py --train_batch_size 8", "lower --batch-size",
            "lower --train_batch_size"},
           {"surfsara: resnet_main.py --train_batch_size 8", "--batch-size 4 fits",
            "--batch-size 4 fits"},  // of one rank: another number
           {"ipu: train.py --dataset cifar-10", "lower --abs-learning-rate",
            "lower --abs-learning-rate"},
           {"ipu: train.py --dataset cifar-10",
            "--batch-size 4 fits; --recompute segments, more --shards or --recompute auto",
            "--batch-size 4 fits; --xla-recompute, more --shards or --recompute auto"}}) {
    const Read read = read_line(c.line);
    const run::Run config = resolved(read).config;
    const std::string message =
        fmt::format(fmt::runtime(c.message), fmt::arg("rate", run::field_of_rate(config)),
                    fmt::arg("warmup", run::field_of_warmup(config)));
    EXPECT_EQ(respelled(message, read.options, read.spellings), c.asked) << c.line;
  }
}

TEST(DialectTest, HelpListsTheNamesOfTheScript) {
  const auto help = [](const std::string& line) {
    const Outcome outcome = run_words(words("train --dialect " + line));
    EXPECT_EQ(outcome.code, 0) << line;
    return outcome.out;
  };
  const std::string resnext = help("habana imagenet_main.py --helpfull");
  const std::string keras = help("habana resnet_ctl_imagenet_main.py --helpfull");
  const std::string nvidia = help("nvidia main.py --help");
  expect_in(resnext, {"--epochs_for_lars", "--batch_size, -bs", "--stop_threshold, -st"});
  expect_in(keras, {"--steps_per_loop"});
  EXPECT_FALSE(contains(resnext, "--steps_per_loop"));
  EXPECT_FALSE(contains(keras, "--epochs_for_lars"));
  expect_in(help("habana --help"), {"--epochs_for_lars", "--steps_per_loop"});
  expect_in(nvidia,
            {"no effect: kernels are always fused", "--weight-decay: coefficient of weight decay"});
  for (const char* same : {"--help", "RN50_FP16_8GPU.sh --help", "RN50_FP16_8GPU.sh . d r -h"})
    EXPECT_EQ(help(fmt::format("nvidia {}", same)), nvidia) << same;
  expect_in(help("surfsara --help"), {"--train_batch_size"});
  expect_in(help("ipu --model efficientnet --help"), {"EfficientNet:"});
  expect_in(help("ipu python validation.py --help"), {"usage: millrace validate "});
}

TEST(IpuLinesTest, EveryOptionOfTrainingIsUnderstoodInValidation) {
  for (const Field& spec : field_table()) {
    const bool of_training = spec.taken_by(Command::Train) && spec.section != Section::Command;
    EXPECT_TRUE(!of_training || spec.understood_by(Command::Validate)) << spec.name;
  }
}

}  // namespace
}  // namespace millrace::cli
