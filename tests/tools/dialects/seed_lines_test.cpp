// SPDX-License-Identifier: Apache-2.0
//
// The command lines in the guides of the five seeds, which seed_lines.txt quotes, and the words
// that stand beside them.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "cli/commands.hpp"
#include "run/field_rows.hpp"
#include "seed_lines.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests
using run::LearningRateKind;
namespace fs = std::filesystem;

constexpr Precision kFloat{DType::F32, DType::F32};
constexpr Precision kHalf{DType::BF16, DType::BF16};

std::string summary_of(const run::Run& c) {
  const auto bits = [](DType type) { return 8 * size_of(type); };
  return fmt::format(
      "{}-{}, {} parameters, {} x {} images, {}, {}, decay {}, smoothing {}, {}.{}, loss x {}",
      c.model.model, c.model.size, parameters_of(c), c.iterations, c.total_batch(),
      name_of(c.optimiser.kind),
      choice_at(*find_field("lr-schedule"), static_cast<std::size_t>(c.learning_rate.kind)),
      c.optimiser.weight_decay, c.label_smoothing, bits(c.precision.activations),
      bits(c.precision.master), c.loss_scaling.initial);
}

/// Compares the line with the summary that stands below it in the file, and with its rates.
void expect_line(const std::string& dialect_and_line, const std::string& summary,
                 const std::string& rates) {
  SCOPED_TRACE(dialect_and_line);
  const std::size_t colon = dialect_and_line.find(": ");
  const Read read =
      read_seed(dialect_and_line.substr(0, colon), dialect_and_line.substr(colon + 2));
  EXPECT_EQ(read.command, Command::Train);
  const run::Run config = config_of(read);
  EXPECT_EQ("= " + summary_of(config), summary);
  // NVIDIA's mixed precision is float16, that of the others here bfloat16.
  EXPECT_EQ(config.precision.activations == DType::F16, contains(dialect_and_line, "use_tf_amp"));
  expect_rates(config, rates.substr(2));
}

TEST(SeedLinesTest, ResolveToThePublishedNumbers) {
  std::ifstream file(fs::path(MILLRACE_SOURCE_DIR) / "tests/tools/dialects/seed_lines.txt");
  int lines = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.starts_with('#')) continue;
    std::string summary;
    std::string rates;
    std::getline(file, summary);
    std::getline(file, rates);
    expect_line(line, summary, rates);
    ++lines;
  }
  EXPECT_EQ(lines, 37);
}

/// Whether config.toml holds all that a run is: it is read back, on a larger machine.
void expect_recorded(const run::Run& config) {
  const Patch options = parse_config(to_toml(config), "config.toml");
  const DatasetFacts facts = published_facts(options);
  run::Run again = resolve(options, facts, {.cores = 64}).config;
  EXPECT_EQ(to_toml(again), to_toml(config));
  // Whose words these were, and what was open at first, is no part of what a run is.
  again.layout = config.layout;
  again.asked_layout = config.asked_layout;
  EXPECT_EQ(again, config) << to_toml(config);
}

TEST(SeedLinesTest, AreTheSameRunsWhenTheyAreReadBack) {
  std::ifstream file(fs::path(MILLRACE_SOURCE_DIR) / "tests/tools/dialects/seed_lines.txt");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.empty() || std::string_view("#=@").find(line[0]) != std::string_view::npos) continue;
    SCOPED_TRACE(line);
    expect_recorded(config_of(read_seed(line.substr(0, colon), line.substr(colon + 2))));
  }
}

TEST(SeedLinesTest, RecipesAreTheSameRunsWhenTheyAreReadBack) {
  for (const auto& entry : fs::directory_iterator(fs::path(MILLRACE_SOURCE_DIR) / "configs")) {
    if (entry.path().extension() != ".toml") continue;
    SCOPED_TRACE(entry.path().string());
    const Patch options = read_config_file(entry.path());
    expect_recorded(resolve(options, published_facts(options), {.cores = 2}).config);
  }
}

// What a summary does not hold.
TEST(SeedLinesTest, ResolveToTheDetailsOfTheirTrainers) {
  const run::Run ipu = config_of(read_seed("ipu", "train.py --dataset imagenet --data-dir d"));
  EXPECT_EQ(ipu.optimiser.decay_excludes, (std::vector<std::string>{"beta", "gamma"}));
  EXPECT_TRUE(ipu.stochastic_rounding);
  const run::Run efficient = config_of(
      read_seed("ipu", "train.py --model efficientnet --data-dir imagenet --optimiser RMSprop"));
  EXPECT_EQ(efficient.optimiser.epsilon, 1e-3);
  EXPECT_EQ(efficient.model.groups, 4);
  const run::Run staged = config_of(
      read_seed("ipu",
                "train.py --data-dir imagenet --batches-per-step 1 --shards 2 --pipeline-depth 4 "
                "--pipeline-splits b3/0/relu --replicas 4 --no-stochastic-rounding"));
  EXPECT_EQ(staged.splits, (std::vector<std::string>{"b3/0/relu"}));
  EXPECT_FALSE(staged.stochastic_rounding);
  EXPECT_EQ(staged.log_every, 1);
  EXPECT_EQ(staged.pipeline.ranks.replicas, 4);
  const run::Run nvidia = config_of(read_seed(
      "nvidia", "main.py --batch_size=256 --use_tf_amp --label_smoothing=0.1 --num_iter=50"));
  EXPECT_EQ(nvidia.loss_scaling.kind, run::ScalingKind::Dynamic);
  EXPECT_EQ(nvidia.optimiser.momentum, 0.9);
  EXPECT_EQ(nvidia.model.residual.initialisers, models::InitialiserSet::Nvidia);
  EXPECT_EQ(nvidia.model.batch_norm_decay, 0.9);
  EXPECT_EQ(nvidia.smoothing, run::SmoothingForm::AllClasses);
  EXPECT_EQ(nvidia.validate_every, 50 * 5004);
  const run::Run resnext = config_of(read_seed("habana", "imagenet_main.py -te 90 -ebe 90"));
  EXPECT_EQ(resnext.optimiser.momentum, 0.875);
  EXPECT_EQ(resnext.model.padding, models::PaddingRule::Same);
  EXPECT_EQ(resnext.validate_every, resnext.iterations);
  const run::Run keras = config_of(read_seed("habana", "demo_resnet_keras.py"));
  EXPECT_EQ(keras.optimiser.decay_form, run::DecayForm::Square);
  EXPECT_EQ(keras.model.padding, models::PaddingRule::Keras);
  EXPECT_EQ(keras.model.residual.initialisers, models::InitialiserSet::HabanaKeras);
  const Read lars = read_seed("habana", "demo_resnet_keras.py --optimizer LARS");
  EXPECT_EQ(config_of(lars).optimiser.epsilon, 1e-7);
  const run::Run surfsara = config_of(read_seed(
      "surfsara", "mpirun -np 512 resnet_main.py --train_batch_size 24576 --num_intra_threads 22"));
  EXPECT_EQ(surfsara.batch_size, 48);
  EXPECT_EQ(surfsara.threads, 22);
  EXPECT_EQ(surfsara.model.batch_norm_decay, 0.95);
  EXPECT_EQ(surfsara.data.normalisation, run::Normalisation::ImageNet);
}

TEST(IpuLinesTest, OtherScripts) {
  const Read validation = read_seed(
      "ipu",
      R"(python validation.py --model efficientnet --model-size B0 --dataset imagenet --batch-size 8 \
--synthetic-data --repeat 10 --batch-norm)");
  EXPECT_EQ(validation.command, Command::Validate);
  EXPECT_EQ(validation.options.integer("repeat"), 10);
  const run::Run config = config_of(validation);
  EXPECT_EQ(config.model.norm, models::NormKind::Batch);
  EXPECT_EQ(config.validation_batch_size, 8);
  const Read restore =
      read_seed("ipu", "python restore.py --restore-path logs/RN20_bs32_BN_16.16_v0.9.115_3S9/");
  EXPECT_EQ(restore.options.text("restore-path"), "logs/RN20_bs32_BN_16.16_v0.9.115_3S9/");
  const Read profile =
      read_seed("ipu", "gc-profile -d profile_dir -- python train.py --gc-profile ");
  EXPECT_EQ(profile.options.text("gc-profile"), "IPU_PROFILE");
}

TEST(NvidiaLinesTest, MixesWithTheReversedBatch) {
  const run::Run mixed = config_of(read_seed(
      "nvidia", "python main.py --batch_size=256 --mixup=0.2 --num_iter 250 --data_dir=/imagenet"));
  EXPECT_EQ(mixed.data.mixing.mixup_alpha, 0.2);
  EXPECT_EQ(mixed.data.mixing.form, run::MixingForm::Reversed);
}

TEST(NvidiaLinesTest, LengthInBatchesHasItsOwnHorizon) {
  const run::Run config = config_of(
      read_seed("nvidia",
                "python main.py --iter_unit batch --num_iter 1000 --batch_size 256 --use_cosine_lr "
                "--lr_warmup_epochs 5 --data_dir=/imagenet"));
  EXPECT_EQ(config.iterations, 1000);
  EXPECT_EQ(config.learning_rate.horizon, 450'410);          // 90 x 1,281,167 // 256
  EXPECT_EQ(config.learning_rate.warmup_iterations, 5'000);  // less than an epoch counts as one
}

TEST(NvidiaLinesTest, OtherModes) {
  const Read evaluate = read_seed(
      "nvidia",
      "python ./main.py --mode=evaluate --use_tf_amp --batch_size <batch size> --data_dir=<path to "
      "imagenet> --results_dir=<path to checkpoint>");
  EXPECT_EQ(evaluate.command, Command::Validate);
  EXPECT_EQ(evaluate.options.text("restore-path"), "/tmp/results");
  EXPECT_EQ(evaluate.options.text("precision"), "16.32");
  for (const char* line :
       {"python ./main.py --mode=training_benchmark --warmup_steps 200 --batch_size <batch size> "
        "--data_dir=<path to imagenet> --results_dir=<path to results directory>",
        "python ./main.py --mode=training_benchmark --use_tf_amp --warmup_steps 200 --batch_size "
        "<batch size> --data_dir=<path to imagenet> --results_dir=<path to results directory>"}) {
    const Read bench = read_seed("nvidia", line);
    EXPECT_EQ(bench.command, Command::Bench);
    EXPECT_EQ(bench.options.integer("warmup-steps"), 200);
    EXPECT_EQ(bench.options.real("measured-epochs"), 1.0);
    EXPECT_EQ(bench.options.text("results-file"), "/tmp/results/training_benchmark.json");
    EXPECT_TRUE(bench.notices.empty()) << bench.notices.front();
    EXPECT_EQ(bench.options.integer("batch-size"), 256);
  }
  for (const char* line :
       {"mpiexec --allow-run-as-root --bind-to socket -np <num_gpus> python ./main.py "
        "--mode=training_benchmark --batch_size <batch size> --data_dir=<path to imagenet> "
        "--results_dir=<path to results directory>",
        "mpiexec --allow-run-as-root --bind-to socket -np <num_gpus> python ./main.py "
        "--mode=training_benchmark --use_tf_amp --batch_size <batch size> --data_dir=<path to "
        "imagenet> --results_dir=<path to results directory>"}) {
    const Read bench = read_seed("nvidia", line);
    EXPECT_EQ(bench.command, Command::Bench);
    EXPECT_EQ(bench.options.integer("replicas"), 8);
    EXPECT_EQ(bench.options.integer("warmup-steps"), 200);  // as the guide says of all its lines
  }
  for (const char* line :
       {"python ./main.py --mode=inference_benchmark --warmup_steps 20 --train_iter 100 "
        "--iter_unit batch --batch_size <batch size> --data_dir=<path to imagenet> --log_dir=<path "
        "to results directory>",
        "python ./main.py --mode=inference_benchmark --use_tf_amp --warmup_steps 20 --train_iter "
        "100 --iter_unit batch --batch_size <batch size> --data_dir=<path to imagenet> "
        "--log_dir=<path to results directory>"}) {
    const Read bench = read_seed("nvidia", line);
    EXPECT_EQ(bench.command, Command::Bench) << line;
    EXPECT_TRUE(bench.options.flag("inference"));
    EXPECT_EQ(bench.options.integer("warmup-steps"), 20);
    EXPECT_EQ(bench.options.integer("steps"), 80);
    EXPECT_EQ(bench.options.text("results-file"), "/tmp/results/eval_benchmark.json");
    EXPECT_TRUE(bench.notices.empty()) << bench.notices.front();
  }
}

TEST(NvidiaLinesTest, Predictions) {
  const Read read = read_seed("nvidia",
                              "python main.py --mode predict --model_dir m "
                              "--to_predict i.jpg --results_dir r");
  EXPECT_EQ(read.command, Command::Predict);
  EXPECT_EQ(read.options.arguments, std::vector<std::string>{"i.jpg"});
  EXPECT_EQ(read.options.text("restore-path"), "m");
  const Read script = read_seed("nvidia", "python scripts/inference/predict.py -m m -f photo.jpg");
  EXPECT_EQ(script.command, Command::Predict);
  EXPECT_EQ(script.options.arguments, std::vector<std::string>{"photo.jpg"});
  for (const auto& [line, missing] :
       {std::pair{"python main.py --mode predict --to_predict i.jpg", "--model_dir is missing"},
        {"python main.py --mode predict --model_dir m", "--to_predict is missing"},
        {"python scripts/inference/predict.py -f i.jpg", "-m is missing"}}) {
    const auto failure = failure_of([line = line] { (void)read_seed("nvidia", line); });
    EXPECT_EQ(failure.kind, ErrorKind::Usage);
    EXPECT_TRUE(contains(failure.text, missing)) << failure.text;
  }
}

TEST(HabanaResNeXtLinesTest, Profiler) {
  const Read read = read_seed(
      "habana",
      R"($PYTHON imagenet_main.py -dt bf16 -dlit bf16 -bs 128 -te 90 -ebe 90 --data_dir /data/tensorflow/imagenet/tf_records/ \
--hooks ProfilerHook --profile_steps 5,8 --max_train_steps 10)");
  const run::Run config = config_of(read);
  EXPECT_EQ(config.iterations, 10);
  EXPECT_EQ(config.learning_rate.horizon, 900'810);  // the rates of 90 epochs
  EXPECT_NEAR(rate_at(config, 9), 0.128 * 9 / 80'072, 1e-12);
  EXPECT_EQ(config.trace, "trace.json");
  EXPECT_EQ(config.trace_first, 5);
  EXPECT_EQ(config.trace_last, 8);
}

TEST(HabanaKerasLinesTest, PolynomialWithoutAPeakTakesThatOfItsBatch) {
  const auto peak = [](const char* batch) {
    return config_of(read_seed("habana", std::string("python resnet_ctl_imagenet_main.py "
                                                     "--optimizer LARS --lr_schedule polynomial "
                                                     "-te 40 -bs ") +
                                             batch))
        .learning_rate.base_rate;
  };
  EXPECT_EQ(peak("8192"), 10.0);
  EXPECT_EQ(peak("16384"), 25.0);
  EXPECT_EQ(peak("32768"), 31.2);
}

TEST(SurfsaraLinesTest, Evaluation) {
  const Read read = read_seed("surfsara",
                              R"(OMP_NUM_THREADS=46 python <path-to>/resnet_eval.py \
--eval_batch_size 200 \
--num_intra_threads 46 --num_inter_threads 2 \
--data_dir=<path-to-local-scratch-validation-dir> \
--model_dir=<path-to-model-dir>/model_batch_24k_90ep \
--use_tpu=False --kmp_blocktime 1)");
  EXPECT_EQ(read.command, Command::Validate);
  EXPECT_EQ(read.options.integer("valid-batch-size"), 200);
  EXPECT_EQ(read.options.integer("threads-per-device"), 46);
  EXPECT_EQ(read.options.text("restore-path"), "<path-to-model-dir>/model_batch_24k_90ep");
}

// Words that stand beside those of the guides: rows of B.3 to B.6.

TEST(RefusalsTest, SayWhatIsWrong) {
  std::ifstream file(fs::path(MILLRACE_SOURCE_DIR) / "tests/tools/dialects/refusals.txt");
  int lines = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.starts_with('#')) continue;
    SCOPED_TRACE(line);
    const std::size_t colon = line.find(": ");
    const std::string who = line.substr(0, colon);
    const std::string rest = line.substr(colon + 2);
    const std::string set = who == "cifar" ? "cifar-10" : who;
    std::string message;
    std::getline(file, message);
    const auto notices = [&] {
      if (who == "cifar" || who == "imagenet")
        return resolve_line("--dataset " + set + " --synthetic-data " + rest).notices;
      const Read read = read_seed(who, rest);
      return resolve(read.options, published_facts(read.options), read.machine).notices;
    };
    ++lines;
    if (message.starts_with("~ ")) {
      EXPECT_EQ(notices(), std::vector<std::string>{message.substr(2)});
      continue;
    }
    const Failure failure = failure_of([&] { (void)notices(); });
    EXPECT_EQ((failure.kind == ErrorKind::Config ? "!! " : "! ") + failure.text, message);
    EXPECT_TRUE(failure.kind == ErrorKind::Config || failure.kind == ErrorKind::Usage);
  }
  EXPECT_EQ(lines, 74);
}

std::string refusal_of(std::string_view dialect, const std::string& line) {
  SCOPED_TRACE(line);
  const Failure failure = failure_of([&] { (void)config_of(read_seed(dialect, line)); });
  EXPECT_EQ(failure.kind, ErrorKind::Usage) << line;
  return failure.text;
}

bool says(const Read& read, std::string_view notice) {
  return std::ranges::find(read.notices, notice) != read.notices.end();
}

TEST(IpuLinesTest, ValidationIsTypedAsTheTrainingWas) {
  const Read read = read_seed(
      "ipu",
      "validation.py --restore-path logs/run --dataset cifar-10 --synthetic-data --model-size 20 "
      "--batch-size 8 --replicas 2 --shards 2 --pipeline-depth 4 --pipeline-splits b2/0/relu "
      "--distributed --optimiser RMSprop --weight-decay 0.1 --loss-scaling 64 --epochs 3 "
      "--label-smoothing 0.1 --base-learning-rate -6 --no-stochastic-rounding --log-dir logs "
      "--name-suffix x --no-logs=false --log-freq 5 --ckpts-per-epoch 2 --no-validation "
      "--xla-recompute --available-memory-proportion 0.1 --gc-profile --fp-exceptions "
      "--batches-per-step 10");
  ASSERT_EQ(read.notices.size(), 1u);
  const std::string& notice = read.notices.front();
  EXPECT_TRUE(notice.ends_with(
      ": no effect on validation, which reads every image once and changes no weights"))
      << notice;
  for (const std::string& name : words(
           "pipeline-depth distributed optimiser weight-decay loss-scaling epochs "
           "label-smoothing base-learning-rate no-stochastic-rounding log-dir name-suffix no-logs "
           "log-freq ckpts-per-epoch no-validation xla-recompute available-memory-proportion "
           "gc-profile fp-exceptions batches-per-step")) {
    EXPECT_TRUE(contains(notice, "--" + name)) << name;
    EXPECT_EQ(read.options.find(name), nullptr) << name;
  }
  for (const char* name : {"restore-path", "dataset", "synthetic-data", "model-size", "batch-size",
                           "replicas", "shards", "pipeline-splits"})
    EXPECT_NE(read.options.find(name), nullptr) << name;
}

TEST(IpuLinesTest, EveryOptionOfTrainingIsUnderstoodInValidation) {
  for (const Field& spec : field_table()) {
    const bool of_training = spec.taken_by(Command::Train) && spec.section != Section::Command;
    EXPECT_TRUE(!of_training || spec.understood_by(Command::Validate)) << spec.name;
  }
  const auto read = [](std::string_view line) {
    return read_command_line(Command::Validate, words(line), 0, environment_of({}));
  };
  EXPECT_EQ(read("--dataset cifar-10 --iterations 5").notices.size(), 1u);
  EXPECT_TRUE(read("--dataset cifar-10 --model-size 20").notices.empty());
  EXPECT_EQ(failure_of([&] { (void)read("--itterations 5"); }).text,
            "unknown option --itterations; did you mean --iterations?");
  EXPECT_EQ(failure_of([&] { (void)read("--smoke"); }).text,
            "--smoke is not an option of this command; --help lists its options");
  EXPECT_EQ(failure_of([&] { (void)read("--epochs x"); }).kind, ErrorKind::Usage);
}

TEST(IpuLinesTest, ARunThatIsValidatedHasItsOwnPrecision) {
  EXPECT_EQ(read_seed("ipu", "validation.py --dataset cifar-10").options.text("precision"),
            "16.16");
  EXPECT_EQ(read_seed("ipu", "validation.py --restore-path logs/run").options.find("precision"),
            nullptr);
}

TEST(NvidiaLinesTest, LossScalingIsAutomaticStaticOrSaidToBeNone) {
  const std::string line = "main.py --batch_size 8 --momentum 0.9 --data_dir=/imagenet ";
  const auto scaling = [&](const std::string& rest) {
    return config_of(read_seed("nvidia", line + rest)).loss_scaling;
  };
  for (const char* off : {"--nouse_auto_loss_scaling", "--use_auto_loss_scaling=False"}) {
    const run::LossScaling fixed = scaling(std::string("--use_tf_amp ") + off);
    EXPECT_EQ(fixed.kind, run::ScalingKind::Static) << off;
    EXPECT_EQ(fixed.initial, 256.0) << off;
    EXPECT_EQ(scaling(std::string("--use_tf_amp --loss_scale 64 ") + off).initial, 64.0) << off;
  }
  EXPECT_EQ(scaling("--use_tf_amp --use_static_loss_scaling").initial, 256.0);
  EXPECT_EQ(scaling("--use_tf_amp").kind, run::ScalingKind::Dynamic);
  EXPECT_EQ(scaling("--loss_scale 64").initial, 1.0);
  EXPECT_EQ(scaling("--use_static_loss_scaling --loss_scale 64").initial, 1.0);
  EXPECT_EQ(scaling("--use_auto_loss_scaling").kind, run::ScalingKind::Static);
  EXPECT_EQ(read_seed("nvidia", line + "--use_auto_loss_scaling").notices,
            (std::vector<std::string>{
                "--use_auto_loss_scaling has no effect here: it needs --use_tf_amp"}));
  EXPECT_EQ(read_seed("nvidia", line + "--use_tf_amp --loss_scale 64").notices,
            (std::vector<std::string>{
                "--loss_scale has no effect here: it needs --use_static_loss_scaling"}));
  // Without mixed precision the trainer scales nothing.
  EXPECT_EQ(read_seed("nvidia", line + "--loss_scale 64").notices,
            (std::vector<std::string>{"--loss_scale has no effect here: it needs --use_tf_amp and "
                                      "--use_static_loss_scaling"}));
  EXPECT_EQ(read_seed("nvidia", line + "--use_static_loss_scaling --loss_scale 64").notices,
            (std::vector<std::string>{
                "--use_static_loss_scaling has no effect here: it needs --use_tf_amp",
                "--loss_scale has no effect here: it needs --use_tf_amp"}));
}

TEST(NvidiaLinesTest, AnEvaluationSaysWhatItDoesNotKeep) {
  const Read evaluate = read_seed(
      "nvidia", "main.py --mode=evaluate --results_dir run --lr_init 0.2 --weight_decay 1e-5");
  EXPECT_EQ(evaluate.notices,
            (std::vector<std::string>{
                "--lr_init, --weight_decay (--weight-decay): no effect on validation, which reads "
                "every image once and changes no weights"}));
}

TEST(NvidiaLinesTest, ABenchmarkOfTrainingMeasuresWhatIsLeftBehindItsWarmup) {
  const std::string line = "main.py --mode training_benchmark --batch_size 8 --warmup_steps 20 ";
  const Read read = read_seed("nvidia", line + "--iter_unit batch --num_iter 120");
  EXPECT_EQ(read.options.integer("steps"), 100);
  EXPECT_EQ(read.options.integer("warmup-steps"), 20);
  EXPECT_TRUE(read.notices.empty());
  EXPECT_TRUE(
      says(read_seed("nvidia", line + "--num_iter 3"),
           "--num_iter has no effect here: random images have no epochs: --iter_unit batch counts "
           "batches, --data_dir has epochs"));
  EXPECT_EQ(
      read_seed("nvidia", line + "--num_iter 3 --data_dir /d").options.real("measured-epochs"),
      3.0);
}

TEST(NvidiaLinesTest, ValidatesOnceBehindTheTraining) {
  const std::string line = "main.py --batch_size 256 --data_dir=/imagenet ";
  const run::Run batches =
      config_of(read_seed("nvidia", line + "--iter_unit batch --num_iter 10008"));
  EXPECT_EQ(batches.iterations, 10'008);
  EXPECT_EQ(batches.validate_every, 10'008);
  EXPECT_EQ(config_of(read_seed("nvidia", line + "--num_iter 2.5")).validate_every, 3 * 5'004);
  EXPECT_EQ(config_of(read_seed("nvidia", line + "--train_iter 4")).iterations, 4 * 5'004);
  EXPECT_TRUE(says(read_seed("nvidia", line + "--model_dir a --results_dir b"),
                   "--results_dir has no effect here: --model_dir sets the directory"));
}

TEST(DialectTest, BatchesOfNothingAreRefused) {
  for (const char* script : {"imagenet_main.py", "demo_resnet_keras.py"})
    for (const char* size : {"0", "-1", "1.5"})
      EXPECT_EQ(refusal_of("habana", std::string(script) + " -dd /imagenet -bs " + size),
                "-bs: '" + std::string(size) + "' is not a whole number from 1");
}

TEST(HabanaKerasLinesTest, WorkersAreAWholeNumber) {
  const std::string line = "demo_resnet_keras.py -dd /imagenet -md d --num_workers_per_hls ";
  for (const char* number : {"x", "0", "3.7", "99999999999"})
    EXPECT_EQ(refusal_of("habana", line + number), "--num_workers_per_hls: '" +
                                                       std::string(number) +
                                                       "' is not a whole number from 1 to 65536");
  const Read read = read_seed("habana", line + "8");
  EXPECT_EQ(read.options.integer("replicas"), 8);
  EXPECT_TRUE(read.notices.empty());
}

TEST(HabanaKerasLinesTest, LeftoversAreNoBeginningsOfOtherNames) {
  const Read read = read_seed("habana", "demo_resnet_keras.py -dd /imagenet -md d --xla");
  EXPECT_EQ(read.notices,
            (std::vector<std::string>{"--xla has no effect here: kernels are always fused"}));
  EXPECT_EQ(read.options.find("xla-recompute"), nullptr);
  EXPECT_EQ(refusal_of("nvidia", "main.py --batch_size 8 --epoch 3").find("unknown option --epoch"),
            0u);
}

TEST(HabanaKerasLinesTest, ShortEpochsAreValidatedToo) {
  const run::Run config = config_of(
      read_seed("habana", "demo_resnet_keras.py -dd /imagenet --train_steps 5 -te 3 -ebe 1"));
  EXPECT_EQ(config.iterations, 15);
  EXPECT_EQ(config.validate_every, 5);
  EXPECT_EQ(config_of(read_seed("habana",
                                "demo_resnet_keras.py -dd /imagenet --train_steps 5 -te 3 "
                                "--enable_checkpoint_and_export"))
                .checkpoint_every,
            5);
  const run::Run two = config_of(read_seed(
      "habana", "demo_resnet_keras.py -dd /imagenet --train_steps 5 -te 4 -ebe 2 -mts 12"));
  EXPECT_EQ(two.validate_every, 10);
  EXPECT_EQ(two.iterations, 12);
  EXPECT_EQ(config_of(read_seed("habana", "demo_resnet_keras.py -dd /imagenet -te 4 -ebe 2"))
                .validate_every,
            2 * 5'004);
}

TEST(HabanaKerasLinesTest, NamesOfTheOtherScript) {
  const Read read = read_seed(
      "habana",
      "resnet_ctl_imagenet_main.py -synth -ls 64 -dis 7 -mts 9 -mc 4 -md d --hooks "
      "ProfilerHook --no_hpu --disable_checkpoints --dummy_epoch --dataset_parallel_calls "
      "auto --intra_op_parallelism_threads 0 -bs 8");
  const run::Run config = config_of(read);
  EXPECT_EQ(config.data.source, run::ImageSource::Device);
  EXPECT_EQ(config.loss_scaling.initial, 64.0);
  EXPECT_EQ(config.log_every, 7);
  EXPECT_EQ(config.iterations, 9);
  EXPECT_EQ(config.data.max_cpus, 4);
  EXPECT_EQ(config.trace, "trace.json");
  EXPECT_TRUE(read.options.flag("disable-checkpoints"));
  EXPECT_EQ(read.notices,
            (std::vector<std::string>{
                "--no_hpu has no effect here: there are no HPUs",
                "--dummy_epoch has no effect here: no compilation slows down the first epoch"}));
}

TEST(HabanaKerasLinesTest, TensorBoard) {
  const std::string line = "demo_resnet_keras.py -dd /imagenet -md d ";
  EXPECT_FALSE(config_of(read_seed("habana", line)).tensorboard);
  const Read read = read_seed("habana", line + "--enable_tensorboard");
  EXPECT_TRUE(config_of(read).tensorboard);
  EXPECT_TRUE(read.notices.empty());
  const run::Run other =
      config_of(read_seed("habana", "imagenet_main.py -dd /imagenet --save_summary_steps 50"));
  EXPECT_TRUE(other.tensorboard);
  EXPECT_EQ(other.summary_every, 50);
}

TEST(HabanaKerasLinesTest, EndOfThePolynomial) {
  const std::string line = "resnet_ctl_imagenet_main.py -dd /imagenet --end_learning_rate 0.01 ";
  EXPECT_EQ(config_of(read_seed("habana", line + "--lr_schedule polynomial -te 40"))
                .learning_rate.end_rate,
            0.01);
  EXPECT_TRUE(says(read_seed("habana", line),
                   "--end_learning_rate has no effect here: it needs --lr_schedule polynomial"));
}

TEST(HabanaKerasLinesTest, ModelsOfKerasApplications) {
  const std::string line = "demo_resnet_keras.py -dd /imagenet -md d --keras_applications_model ";
  const Read first = read_seed("habana", line + "ResNet101");
  EXPECT_EQ(config_of(first).model.size, "101");
  EXPECT_EQ(first.notices.size(), 1u);
  EXPECT_TRUE(contains(first.notices.at(0), "has biases in its convolutions"));
  const Read second = read_seed("habana", line + "ResNet50V2");
  EXPECT_EQ(config_of(second).model.residual.version, models::ResNetVersion::V2);
  EXPECT_TRUE(second.notices.empty());
  for (const char* name : {"ResNet34", "ResNet200", "ResNet", "ResNet50V3"})
    EXPECT_EQ(refusal_of("habana", line + name),
              "--keras_applications_model: '" + std::string(name) +
                  "' is not one of ResNet50, ResNet101, ResNet152 or these with V2");
}

TEST(HabanaResNeXtLinesTest, WordsThatNeedOthersSaySo) {
  const std::string line = "imagenet_main.py -dd /imagenet ";
  EXPECT_EQ(
      read_seed("habana", line + "--start_learning_rate 3 --epochs_for_lars 20").notices,
      (std::vector<std::string>{"--start_learning_rate has no effect here: it needs --enable_lars",
                                "--epochs_for_lars has no effect here: it needs --enable_lars"}));
  const Read lars = read_seed(
      "habana", line + "--enable_lars --start_learning_rate 3 --epochs_for_lars 20 -te 40");
  EXPECT_TRUE(lars.notices.empty());
  EXPECT_EQ(config_of(lars).learning_rate.base_rate, 3.0);
  EXPECT_EQ(read_seed("habana", line + "--profile_steps 5,8").notices,
            (std::vector<std::string>{
                "--profile_steps has no effect here: it needs --hooks ProfilerHook"}));
  EXPECT_TRUE(read_seed("habana", line + "-rv 1 --dataset_parallel_calls auto").notices.empty());
  EXPECT_EQ(config_of(read_seed("habana", line + "--dataset_parallel_calls 3")).data.loader_threads,
            3);
}

TEST(HabanaResNeXtLinesTest, LabelsAreTakenAsTheyAre) {
  EXPECT_EQ(data_request(read_seed("habana", "imagenet_main.py -dd /imagenet").options)
                .files.open.label_offset,
            0);
  for (const char* line :
       {"demo_resnet_keras.py -dd /imagenet", "resnet_ctl_imagenet_main.py -dd /imagenet"})
    EXPECT_EQ(data_request(read_seed("habana", line).options).files.open.label_offset, 1);
}

TEST(DialectTest, DefaultsWithoutEffectAreSilent) {
  const Read read = read_seed("habana", "imagenet_main.py -dd /imagenet --disable_warmup");
  const Resolution resolution = resolve(read.options, published_facts(read.options), read.machine);
  EXPECT_EQ(resolution.config.learning_rate.warmup_iterations, 0);
  EXPECT_TRUE(resolution.notices.empty()) << resolution.notices.front();
}

// Lines that ask for help: seed 000, seed 001 and seed 003.

TEST(DialectTest, HelpListsTheNamesOfTheScript) {
  const auto help = [](const std::string& line) {
    ::testing::internal::CaptureStdout();
    const int code = run(words("train --dialect " + line), environment_of({}));
    EXPECT_EQ(code, 0) << line;
    return ::testing::internal::GetCapturedStdout();
  };
  const std::string resnext = help("habana imagenet_main.py --helpfull");
  const std::string keras = help("habana resnet_ctl_imagenet_main.py --helpfull");
  const std::string both = help("habana --help");
  const std::string nvidia = help("nvidia main.py --help");
  EXPECT_EQ(help("nvidia --help"), nvidia);
  for (const char* line : {"nvidia RN50_FP16_8GPU.sh --help", "nvidia RN50_FP16_8GPU.sh . d r -h"})
    EXPECT_EQ(help(line), nvidia) << line;
  EXPECT_TRUE(contains(resnext, "--epochs_for_lars") && !contains(resnext, "--steps_per_loop"));
  EXPECT_TRUE(contains(keras, "--steps_per_loop") && !contains(keras, "--epochs_for_lars"));
  EXPECT_TRUE(contains(both, "--epochs_for_lars") && contains(both, "--steps_per_loop"));
  EXPECT_TRUE(contains(resnext, "--batch_size, -bs")) << resnext;
  EXPECT_TRUE(contains(nvidia, "no effect: kernels are always fused")) << nvidia;
  EXPECT_TRUE(contains(resnext, "--stop_threshold, -st")) << resnext;
  EXPECT_TRUE(contains(nvidia, "--weight-decay: coefficient of weight decay")) << nvidia;
  EXPECT_TRUE(contains(help("surfsara --help"), "--train_batch_size"));
  EXPECT_TRUE(contains(help("ipu --model efficientnet --help"), "EfficientNet:"));
}

// What dialects have in common.

TEST(DialectTest, ExportsBelongToTheRun) {
  const auto folder = [](const char* dialect, const std::string& line) {
    return read_seed(dialect, line).options.text("export-dir").value_or("none");
  };
  EXPECT_EQ(folder("nvidia", "python main.py --batch_size 4 --export_dir /out"), "/out");
  EXPECT_EQ(folder("habana", "python imagenet_main.py -bs 4 -ed /out"), "/out");
  const std::string keras = "python resnet_ctl_imagenet_main.py --batch_size 4";
  EXPECT_EQ(folder("habana", keras), "none");
  EXPECT_EQ(folder("habana", keras + " --enable_checkpoint_and_export"), "RUN_DIR/export");
  EXPECT_EQ(folder("habana", keras + " --enable_checkpoint_and_export --export_dir /out"), "/out");
}

TEST(DialectTest, OwnOptionsStandBesideAndOverrule) {
  const Read read = read_seed("nvidia",
                              "python main.py --batch_size 4 --num_iter 1 --data_dir=/imagenet "
                              "--lr-schedule cosine --model-size 18 --shards 2 --pipeline-splits "
                              "b3/0/relu --no-validation");
  const run::Run config = config_of(read);
  EXPECT_EQ(config.model.size, "18");
  EXPECT_EQ(config.learning_rate.kind, LearningRateKind::Cosine);
  EXPECT_EQ(config.pipeline.ranks.devices, 2);
}

TEST(DialectTest, MistakesNameTheWordAsTyped) {
  EXPECT_TRUE(
      contains(refusal_of("nvidia", "main.py --batch_size 8 --batchsize 8"), "unknown option"));
}

TEST(DialectTest, WhatHasNoEffectIsSaidOnce) {
  const Read read =
      read_seed("nvidia",
                "main.py --batch_size 8 --momentum 0.9 --use_xla --use_dali --nouse_tf_amp "
                "--gpu_memory_fraction 0.7 --data_dir=/imagenet");
  EXPECT_EQ(read.notices,
            (std::vector<std::string>{
                "--use_xla has no effect here: kernels are always fused",
                "--gpu_memory_fraction has no effect here: memory is planned exactly"}));
  EXPECT_EQ(config_of(read).precision, kFloat);
}

/// Preset, normalisation and type of the pictures that a line trains on.
std::string pictures_of(std::string_view dialect, const std::string& text) {
  const Read read = read_seed(dialect, text + " --data_dir /imagenet");
  const DataRequest request = data_request(read.options);
  const std::optional<DType> type = config_of(read).data.image_type;
  const io::ImagePreset& preset = request.files.images.preset;
  return fmt::format(
      "{} {} {}", preset.name,
      choice_at(*find_field("image-normalisation"), static_cast<std::size_t>(preset.normalisation)),
      type ? name_of(*type) : "-");
}

TEST(DialectTest, PicturesAreReadAsItsScriptReadsThem) {
  EXPECT_EQ(pictures_of("nvidia", "main.py --batch_size 8"), "tf nvidia2019 -");
  EXPECT_EQ(pictures_of("nvidia", "main.py --batch_size 8 --use_dali"), "dali2019 dali2019 -");
  EXPECT_EQ(pictures_of("habana", "imagenet_main.py -bs 8"), "tf mean -");
  EXPECT_EQ(pictures_of("habana", "imagenet_main.py -bs 8 -dlit bf16"), "tf mean bfloat16");
  EXPECT_EQ(pictures_of("habana", "demo_resnet_keras.py -bs 8 -dlit uint8"), "tf mean uint8");
  EXPECT_EQ(pictures_of("surfsara", "resnet_main.py --train_batch_size 8"), "tpu torch -");
  const Failure failure =
      failure_of([] { (void)read_seed("habana", "imagenet_main.py -bs 8 -dlit int8"); });
  EXPECT_EQ(failure.text, "--data_loader_image_type: 'int8' is not one of fp32, bf16, fp16, uint8");
}

TEST(DialectTest, LoadersKeepToWhatTheScriptGivesThem) {
  const Read read = read_seed("habana", "imagenet_main.py -bs 8 -mc 6 --data_dir /imagenet");
  EXPECT_EQ(config_of(read).data.max_cpus, 6);
  const Read cached = read_seed(
      "habana", "demo_resnet_keras.py -bs 8 --training_dataset_cache --data_dir /imagenet");
  EXPECT_EQ(data_request(cached.options).files.cached_bytes,
            std::numeric_limits<std::int64_t>::max());
}

TEST(DialectTest, Float16IsTakenAsItIsMeant) {
  const Read read = read_seed("habana", "imagenet_main.py -dt fp16 -bs 8 --data_dir /imagenet");
  EXPECT_EQ(config_of(read).precision, (Precision{DType::F16, DType::F32}));
}

TEST(DialectTest, DefaultOfTheIpuTrainerGivesWay) {
  EXPECT_EQ(config_of(read_seed("ipu", "train.py --dataset cifar-10 --synthetic-data")).precision,
            kHalf);
  EXPECT_EQ(
      config_of(read_seed("ipu", "train.py --dataset cifar-10 --synthetic-data --precision 32.32"))
          .precision,
      kFloat);
}

}  // namespace
}  // namespace millrace::cli
