// SPDX-License-Identifier: Apache-2.0
//
// Lines that are typed as the guides type them: with their programs in front, for other data sets
// and batches than theirs, and shorter.
#include <fmt/format.h>

#include "seed_lines.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests

/// Every guide starts its program in one of these ways.
TEST(DialectTest, TheProgramOfTheGuideMayStandInFront) {
  const auto read = [](std::string_view line) {
    return read_command_line(Command::Train, words(line), 0, environment_of({}));
  };
  for (const char* program : {"", "train.py ", "python train.py ", "python3 ./train.py ",
                              "/usr/bin/python3.9 -u cnns/train.py ", "python3 -m cnns.train "}) {
    const CommandLine line =
        read("--dialect ipu " + std::string(program) + "--dataset cifar-10 --batch-size 7");
    EXPECT_EQ(line.options.integer("batch-size"), 7) << program;
    EXPECT_EQ(line.command, Command::Train);
  }
  EXPECT_EQ(read("python3 -m validation --dialect ipu --restore-path logs/a").command,
            Command::Validate);
  EXPECT_EQ(read("--dialect=ipu restore.py --restore-path logs/a").command, Command::Restore);
  EXPECT_EQ(read("--dialect nvidia python ./main.py --batch_size 7").options.integer("batch-size"),
            7);
  EXPECT_EQ(
      read("--dialect habana python -m resnet_ctl_imagenet_main -bs 7").options.text("padding"),
      "keras");
  EXPECT_EQ(read("--dialect habana imagenet_main.py -bs 7").options.text("padding"), "same");
  EXPECT_EQ(read("--dialect surfsara python models/resnet_eval.py").command, Command::Validate);
  for (const char* line :
       {"--dialect ipu python3 --dataset cifar-10", "train.py --dataset imagenet",
        "--dialect nvidia --batch_size 7 main.py"})
    EXPECT_TRUE(contains(failure_of([&] { (void)read(line); }).text, "unexpected argument"))
        << line;
}

// Two guides begin with programs that prepare the data.
TEST(DialectTest, AProgramThatListsDevicesNamesTheCommandThatDoes) {
  for (const char* line : {"gc-info -l", "train --dialect ipu gc-info -l"}) {
    const Outcome outcome = run_words(words(line));
    EXPECT_EQ(outcome.code, 2) << line;
    EXPECT_TRUE(
        contains(outcome.err, "gc-info lists devices and trains nothing: use millrace doctor"))
        << outcome.err;
  }
}

TEST(DialectTest, AProgramThatPreparesDataNamesTheCommandThatDoes) {
  const auto refusal = [](const char* dialect, const char* line) {
    return failure_of([&] { (void)read_seed(dialect, line); }).text;
  };
  EXPECT_EQ(
      refusal("habana", "python3 preprocess_imagenet.py --raw_data_dir=raw --local_scratch_dir tf"),
      "preprocess_imagenet.py does not train but prepares data: use millrace data convert tf "
      "--raw-dir raw");
  EXPECT_EQ(refusal("surfsara", "imagenet_to_gcs.py --nogcs_upload"),
            "imagenet_to_gcs.py does not train but prepares data: use millrace data convert OUT "
            "--raw-dir DIR");
}

TEST(DialectTest, LengthsFollowTheDataSetThatIsThere) {
  const auto config = [](std::string_view dialect, const char* line, std::int64_t images) {
    const Read read = read_seed(dialect, line);
    DatasetFacts facts = published_facts(read.options);
    facts.train_size = images;
    return resolve(read.for_images(images), facts, read.machine).config;
  };
  const char* const nvidia =
      "main.py --iter_unit batch --num_iter 30 --batch_size 8 --lr_warmup_epochs 2 --use_cosine_lr "
      "--data_dir /imagenet";
  const run::Run batches = config("nvidia", nvidia, 100);
  // 12 batches an epoch: 30 of them are 3 epochs, of 10 each for the warm-up.
  EXPECT_EQ(batches.learning_rate.warmup_iterations, 2 * 10);
  EXPECT_EQ(batches.learning_rate.horizon, 90 * 100 / 8);
  const char* const keras = "demo_resnet_keras.py -dd /imagenet -bs 8 -te 3 --train_steps ";
  EXPECT_EQ(config("habana", (std::string(keras) + "50").c_str(), 100).iterations, 3 * 12);
  EXPECT_EQ(config("habana", (std::string(keras) + "5").c_str(), 100).iterations, 3 * 5);
  const run::Run surfsara =
      config("surfsara", "resnet_main.py --train_batch_size 8 --data_dir /imagenet", 100);
  EXPECT_EQ(surfsara.iterations, 90 * 12);
  EXPECT_EQ(surfsara.learning_rate.warmup_iterations, 5 * 100 / 8);
  EXPECT_EQ(surfsara.learning_rate.base_rate, 8 / 2560.0);
  EXPECT_EQ(surfsara.learning_rate.initial_rate, 8 / 2560.0) << "a warm-up does not fall";
}

// The IPU trainer warms up for epochs x updates, whatever the length of the run: 5 epochs of 20
// updates are 100, of which the runs below see 40 and 10. Elsewhere a warm-up ends with its run.
TEST(IpuLinesTest, AShortRunSeesTheBeginningOfTheWarmUp) {
  const std::string two =
      "train.py --dataset cifar-10 --synthetic-data --batch-size 2500 "
      "--abs-learning-rate 0.25 --epochs 2";
  for (const char* more : {"", " --warmup-epochs 5"})
    expect_rates(config_of(read_seed("ipu", two + more)), "9: 0.0225, 20: 0.05");
  const std::string half =
      "--dataset cifar-10 --synthetic-data --batch-size 2500 --lr 0.05 "
      "--epochs 0.5 --lr-schedule cosine";
  expect_rates(config_of(read_seed("ipu", "train.py " + half)), "5: 0.00125");
  const run::Run own = resolve_line(half).config;
  expect_rates(own, "5: 0.0125");
  EXPECT_EQ(own.learning_rate.warmup_iterations, 10);
}

// What the guide's programs are called; others are no options of its training.
TEST(DialectTest, UnknownProgramsAreNamedWithThoseThatAreKnown) {
  const std::pair<const char*, const char*> lines[] = {
      {"ipu", "python3 trian.py --dataset cifar-10"},
      {"ipu", "imagenet_main.py"},
      {"nvidia", "bash scripts/docker/build.sh"},
      {"habana", "python -m official.resnet_main -bs 8"},
      {"surfsara", "resnet_train.py --train_batch_size 8"}};
  const std::map<std::string, std::string> known = {
      {"ipu", "train.py, validation.py, restore.py"},
      {"nvidia",
       "main.py, predict.py, RN50_FP16_1GPU.sh, RN50_FP16_4GPU.sh, RN50_FP16_8GPU.sh, "
       "RN50_FP16_EVAL.sh, RN50_FP32_1GPU.sh, RN50_FP32_4GPU.sh, RN50_FP32_8GPU.sh, "
       "RN50_FP32_EVAL.sh"},
      {"habana", "imagenet_main.py, demo_resnet_keras.py, resnet_ctl_imagenet_main.py"},
      {"surfsara", "resnet_main.py, resnet_eval.py"}};
  for (const auto& [dialect, line] : lines) {
    const Failure failure = failure_of([&, d = dialect, l = line] {
      (void)read_command_line(Command::Train, words("--dialect " + std::string(d) + " " + l), 0,
                              environment_of({}));
    });
    EXPECT_EQ(failure.kind, ErrorKind::Usage) << line;
    EXPECT_TRUE(failure.text.starts_with("unknown program '")) << failure.text;
    EXPECT_TRUE(contains(failure.text, "those of --dialect " + std::string(dialect) + " are " +
                                           known.at(dialect) + ","))
        << failure.text;
  }
}

// `train` starts whatever the line means. The other commands take their own program, and those that
// concern a training take that, too.
TEST(DialectTest, CommandAndProgramAgreeOrBothAreNamed) {
  struct Program {
    const char* line;  ///< behind --dialect
    const char* name;  ///< in the refusal
    Command means;
  };
  const Program programs[] = {
      {"ipu train.py --dataset cifar-10", "train.py", Command::Train},
      {"ipu python3 restore.py", "restore.py", Command::Restore},
      {"ipu python -m validation", "validation.py", Command::Validate},
      {"nvidia main.py --batch_size 8", "main.py", Command::Train},
      {"nvidia main.py --batch_size 8 --mode=train", "--mode train", Command::Train},
      {"nvidia main.py --mode evaluate --results_dir r", "--mode evaluate", Command::Validate},
      {"nvidia main.py --batch_size 8 --mode training_benchmark --iter_unit batch --num_iter 300",
       "--mode training_benchmark", Command::Bench},
      {"nvidia predict.py -m r -f i.jpg", "predict.py", Command::Predict},
      {"nvidia RN50_FP16_EVAL.sh m d r", "RN50_FP16_EVAL.sh", Command::Validate},
      {"habana imagenet_main.py", "imagenet_main.py", Command::Train},
      {"habana imagenet_main.py --eval_only", "--eval_only", Command::Validate},
      {"habana demo_resnet_keras.py", "demo_resnet_keras.py", Command::Train},
      {"surfsara resnet_main.py", "resnet_main.py", Command::Train},
      {"surfsara resnet_eval.py", "resnet_eval.py", Command::Validate},
      {"surfsara --eval_batch_size 8", "--eval_batch_size", Command::Validate}};
  const std::map<Command, const char*> names = {
      {Command::Train, "train"}, {Command::Restore, "restore"}, {Command::Validate, "validate"},
      {Command::Bench, "bench"}, {Command::Plan, "plan"},       {Command::Predict, "predict"}};
  for (const Program& program : programs)
    for (const Command typed :
         {Command::Train, Command::Restore, Command::Validate, Command::Bench, Command::Plan}) {
      SCOPED_TRACE(fmt::format("{} --dialect {}", names.at(typed), program.line));
      const auto read = [&] {
        return read_command_line(typed, words("--dialect " + std::string(program.line)), 0,
                                 environment_of({}))
            .command;
      };
      const bool of_training = program.means == Command::Train && typed != Command::Validate;
      if (typed == Command::Train || typed == program.means) {
        EXPECT_EQ(read(), program.means);
      } else if (of_training) {
        EXPECT_EQ(read(), typed);
      } else {
        EXPECT_EQ(failure_of([&] { (void)read(); }).text,
                  fmt::format("millrace {0} and {1} contradict each other: {1} means millrace {2}; "
                              "type that, or leave {1} out",
                              names.at(typed), program.name, names.at(program.means)));
      }
    }
}

// As with `millrace restore RUN`, and whatever command was typed.
TEST(DialectTest, ARunToContinueMayStandAloneBehindItsProgram) {
  for (const Command typed : {Command::Train, Command::Restore}) {
    const CommandLine read =
        read_command_line(typed, words("--dialect ipu restore.py logs/a"),
                          typed == Command::Restore ? 1 : 0, environment_of({}));
    EXPECT_EQ(read.arguments, std::vector<std::string>{"logs/a"});
    EXPECT_EQ(read.options.find("precision"), nullptr) << "the run has recorded its own";
  }
  EXPECT_EQ(failure_of([] {
              (void)read_command_line(Command::Restore,
                                      words("--dialect nvidia main.py --restore-path logs/a"), 1,
                                      environment_of({}));
            }).text,
            "--batch_size is missing: a run is continued by the whole line that began it, or "
            "without --dialect by millrace restore --restore-path RUN_DIR");
}

TEST(DialectTest, ALauncherStandsBeforeMillrace) {
  EXPECT_EQ(failure_of([] {
              (void)read_command_line(Command::Train,
                                      words("--dialect surfsara mpirun -np 512 -ppn 2 python "
                                            "resnet_main.py --train_batch_size 24576"),
                                      0, environment_of({}));
            }).text,
            "mpirun stands before millrace: mpirun .. millrace train --dialect surfsara ..; Open "
            "MPI's word for -ppn N is --map-by ppr:N:node");
}

TEST(DialectTest, VariablesOfAGuideAreSpokenOf) {
  const auto notes = [](const std::string& line, const char* variable) {
    return read_command_line(Command::Train, words("--dialect " + line), 0,
                             environment_of({{variable, "1"}}))
        .notices;
  };
  const std::string nvidia = "nvidia main.py --batch_size 8 --momentum 0.9";
  for (const char* name :
       {"TF_ENABLE_AUTO_MIXED_PRECISION", "TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE"}) {
    EXPECT_EQ(notes(nvidia, name),
              (std::vector<std::string>{std::string(name) +
                                        " has no effect here: --use_tf_amp sets mixed precision"}));
    EXPECT_TRUE(notes(nvidia + " --use_tf_amp", name).empty());
    EXPECT_TRUE(notes("surfsara resnet_main.py", name).empty()) << "of another guide";
  }
  const std::string keras = "habana demo_resnet_keras.py -md d";
  EXPECT_TRUE(contains(notes(keras, "HCCL_SOCKET_IFNAME").at(0),
                       "HCCL_SOCKET_IFNAME has no effect here: MPI_TCP_INCLUDE"));
  EXPECT_TRUE(contains(notes(keras, "MULTI_HLS_IPS").at(0), "3022: --ssh-port 3022"));
  EXPECT_TRUE(notes(keras + " --ssh-port 3022", "MULTI_HLS_IPS").empty());
}

TEST(DialectTest, WhatTheBareProgramHasIsSaid) {
  const auto says = [](const char* dialect, const char* line, const char* notice) {
    return std::ranges::any_of(read_seed(dialect, line).notices,
                               [&](const std::string& said) { return contains(said, notice); });
  };
  const char* const configuration = "the guide's default configuration is that of RN50";
  EXPECT_TRUE(says("nvidia", "main.py --batch_size 8 --data_dir d", configuration));
  EXPECT_FALSE(says("nvidia", "main.py --batch_size 8 --lr_init 0.256", configuration));
  EXPECT_FALSE(says("nvidia", "main.py --batch_size 8 --mode training_benchmark", configuration));
  EXPECT_TRUE(says("habana", "demo_resnet_keras.py", "not in the script's /tmp/resnet"));
  EXPECT_FALSE(says("habana", "demo_resnet_keras.py -md d", "/tmp/resnet"));
}

// The options of a training's line mean nothing to the evaluation that repeats it.
TEST(NvidiaLinesTest, AnEvaluationTakesTheLineOfTheTraining) {
  const std::string toml =
      to_toml(config_of(read_seed("nvidia", "main.py --batch_size 8 --data_dir imagenet")));
  for (const char* option :
       {"--use_dali", "--mixup 0.2", "--momentum 0.8", "--weight_decay 1e-5",
        "--label_smoothing 0.1", "--use_cosine_lr", "--use_auto_loss_scaling", "--num_iter 90",
        "--use_static_loss_scaling --loss_scale 64", "--lr_warmup_epochs 8", "--export_dir e"}) {
    const std::string line = "main.py --mode=evaluate --batch_size 8 --data_dir imagenet ";
    const Read untrained = read_seed("nvidia", line + option);
    const Patch alone = validated_options(untrained.options);
    EXPECT_NO_THROW((void)resolve(alone, published_facts(alone), untrained.machine)) << option;
    const Read trained = read_seed("nvidia", line + "--results_dir r " + option);
    EXPECT_NO_THROW((void)validated_options(trained.options, parse_config(toml, "config.toml")))
        << option;
  }
}

// What follows from other values is compared after them, and a message names the cause.
TEST(DialectTest, ContinuingNamesWhatDiffersFirst) {
  struct Case {
    const char* dialect;
    const char* begun;
    const char* continued;
    const char* message;
  };
  const char* const replicas =
      "this line has 1 replica(s), and the run was started with 2, from which rates and batches "
      "follow: start it under mpirun -np 2 or say --replicas 2";
  for (const Case& c : std::initializer_list<Case>{
           {"nvidia", "-np 2 main.py --batch_size 8", "main.py --batch_size 8", replicas},
           {"nvidia", "-np 2 main.py --batch_size 8 --lr_init 0.2",
            "main.py --batch_size 8 --lr_init 0.2", replicas},
           {"habana", "-np 2 demo_resnet_keras.py -bs 8", "demo_resnet_keras.py -bs 8", replicas},
           {"habana", "-np 2 imagenet_main.py -bs 8 --max_train_steps 9",
            "imagenet_main.py -bs 8 --max_train_steps 9", replicas},
           {"surfsara", "-np 2 resnet_main.py --train_batch_size 512",
            "resnet_main.py --train_batch_size 512", replicas},
           {"nvidia", "main.py --batch_size 8", "-np 2 main.py --batch_size 8",
            "this line has 2 replica(s), and the run was started with 1, from which rates and "
            "batches follow: start it without a launcher"},
           {"nvidia", "main.py --batch_size 8", "main.py --batch_size 16",
            "--batch_size (--batch-size) 16 would change"},
           {"nvidia", "-np 2 main.py --batch_size 8", "main.py --batch_size 8 --momentum 0.5",
            "--momentum 0.5 would change"},
           {"nvidia", "main.py --batch_size 8", "main.py --batch_size 8 --lr_init 0.5",
            "--lr_init (--abs-learning-rate) is here 0.015625, which would change the mathematics "
            "of the "
            "run, which started with 0.003125: "}}) {
    const std::string place = " --data_dir /imagenet";
    const Patch recorded =
        parse_config(to_toml(config_of(read_seed(c.dialect, c.begun + place))), "config.toml");
    const Patch line = read_seed(c.dialect, c.continued + place).options;
    EXPECT_TRUE(
        failure_of([&] { (void)continued_options(line, recorded); }).text.starts_with(c.message))
        << c.continued << ": " << failure_of([&] { (void)continued_options(line, recorded); }).text;
  }
}

// Advice names what the user typed, or could have typed instead of a default of the trainer.
TEST(DialectTest, AdviceSpeaksTheDialect) {
  const auto spelled = [](std::string_view dialect, const char* line) {
    const Read read = read_seed(dialect, line);
    const run::Run config = config_of(read);
    return respelled(fmt::format("{} {}", run::field_of_rate(config), run::field_of_warmup(config)),
                     read.options, read.spellings);
  };
  const std::string nvidia = "main.py --batch_size=8 --data_dir=/imagenet --num_iter=3 ";
  EXPECT_EQ(spelled("nvidia", (nvidia + "--iter_unit=batch").c_str()),
            "--lr_init --lr_warmup_epochs");
  EXPECT_EQ(spelled("nvidia", (nvidia + "--iter_unit=epoch --lr_init 0.2").c_str()),
            "--lr_init --lr_warmup_epochs");
  EXPECT_EQ(spelled("habana", "imagenet_main.py -dd /imagenet --enable_lars"),
            "--start_learning_rate --warmup_epochs");
  EXPECT_EQ(spelled("habana", "demo_resnet_keras.py -dd /imagenet --lr_schedule polynomial"),
            "--base_learning_rate --warmup_epochs");
  const Read read = read_seed(
      "habana", "imagenet_main.py -dd /imagenet --hooks ProfilerHook --profile_steps 2,4");
  const std::vector<std::string> notices =
      respelled(resolve(read.options, published_facts(read.options), read.machine).notices,
                read.options, read.spellings);
  EXPECT_TRUE(std::ranges::any_of(notices, [](const std::string& notice) {
    return notice.starts_with("--hooks: trace.json shows every action");
  }));
  EXPECT_TRUE(contains(failure_of([] {
                         (void)config_of(read_seed("habana",
                                                   "imagenet_main.py -dd /imagenet --hooks "
                                                   "ProfilerHook --profile_steps 4,2"));
                       }).text,
                       "--profile-steps: '4,2' is not the first"));
}

TEST(DialectTest, EveryMessageSpeaksTheDialect) {
  struct Case {
    const char* dialect;
    const char* line;
    const char* message;
    const char* asked;
  };
  const char* const nvidia = "main.py --batch_size 8 --lr_init 0.1 --num_iter 3 --data_dir d";
  for (const Case& c : std::initializer_list<Case>{
           {"nvidia", nvidia, "lower --abs-learning-rate or lengthen --warmup-epochs",
            "lower --lr_init or lengthen --lr_warmup_epochs"},
           {"nvidia", nvidia, "change --epochs", "change --num_iter"},
           {"nvidia", nvidia, "give the data set with --data-dir, or --synthetic-data",
            "give the data set with --data_dir, or --synthetic-data"},
           {"nvidia", nvidia, "--batch-size 4 fits", "--batch_size 4 fits"},
           {"nvidia", nvidia, "--lr_init (--abs-learning-rate) 0.1 would change",
            "--lr_init (--abs-learning-rate) 0.1 would change"},
           {"habana", "imagenet_main.py -bs 8 --enable_lars", "lower --batch-size or --lr-schedule",
            "lower -bs or --lr-schedule"},
           {"habana", "demo_resnet_keras.py --optimizer LARS", "lower --abs-learning-rate",
            "lower --base_learning_rate"},
           {"habana", "demo_resnet_keras.py", "lengthen --warmup-epochs",
            "lengthen --warmup_epochs"},
           {"surfsara", "resnet_main.py --train_batch_size 8", "lower --batch-size",
            "lower --train_batch_size"},
           {"surfsara", "resnet_main.py --train_batch_size 8", "--batch-size 4 fits",
            "--batch-size 4 fits"},  // of one rank: another number
           {"ipu", "train.py --dataset cifar-10", "lower --abs-learning-rate",
            "lower --abs-learning-rate"},
           {"ipu", "train.py --dataset cifar-10",
            "--batch-size 4 fits; --recompute segments, more --shards or --recompute auto",
            "--batch-size 4 fits; --xla-recompute, more --shards or --recompute auto"},
           {"nvidia", nvidia, "--recompute segments, more --shards",
            "--recompute segments, more --shards"}}) {
    const Read read = read_seed(c.dialect, c.line);
    EXPECT_EQ(respelled(std::string(c.message), read.options, read.spellings), c.asked)
        << c.dialect << ": " << c.line;
  }
}

TEST(DialectTest, TheCropsOfTheGuidesTextsAreAnOption) {
  const auto crop = [](std::string_view dialect, const char* line) {
    return data_request(read_seed(dialect, line).options).files.images.preset.crop;
  };
  const char* const line = "imagenet_main.py -dd /imagenet --crop-area 0.08 1";
  EXPECT_EQ(crop("habana", line).min_area, 0.08);
  EXPECT_EQ(crop("habana", line).max_area, 1.0);
  EXPECT_EQ(crop("habana", "imagenet_main.py -dd /imagenet").min_area, 0.05);
  EXPECT_EQ(
      crop("nvidia", "main.py --batch_size 8 --data_dir /imagenet --crop-area 0.1 0.9").max_area,
      0.9);
}

TEST(DialectTest, TheNumbersOfANormalizationAreOptions) {
  const auto statistics = [](const std::string& more) {
    return data_request(read_seed("habana", "imagenet_main.py -dd /imagenet " + more).options)
        .files.images.preset.statistics();
  };
  EXPECT_EQ(statistics("--image-mean 0,1,2.5").mean, (std::array{0.0, 1.0, 2.5}));
  EXPECT_EQ(statistics("--image-mean 0,1,2").deviation, (std::array{1.0, 1.0, 1.0}));
  EXPECT_EQ(statistics("--image-deviation 255,3,4").deviation, (std::array{255.0, 3.0, 4.0}));
  EXPECT_EQ(statistics("--image-deviation 255,3,4").mean, (std::array{123.68, 116.78, 103.94}));
}

}  // namespace
}  // namespace millrace::cli
