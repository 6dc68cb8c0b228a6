// SPDX-License-Identifier: Apache-2.0
#include "cli/open_run.hpp"

#include "models/graph.hpp"
#include "run/learning_rate.hpp"
#include "support.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests

run::Run config_of(std::string_view data, std::string_view rest) {
  return resolve_line(std::string(data) + std::string(rest)).config;
}

// The rest of these recipes stands in the table of FamilyDefaultsTest.
TEST(ResolveTest, CifarRecipe) {
  const run::Run config = config_of(kCifar, "");
  EXPECT_EQ(config.model.shortcut, 'A');
  EXPECT_EQ(config.model.classes, 10);
  EXPECT_EQ(config.iterations_per_epoch, 1562);
  EXPECT_EQ(config.learning_rate.warmup_iterations, 5 * 1562);
  EXPECT_EQ(config.learning_rate.boundaries, (std::vector<double>{0.5, 0.75}));
  EXPECT_EQ(config.log_every, 97);
  EXPECT_EQ(config.checkpoint_every, 1562);
  EXPECT_EQ(config.validate_every, 1562);
  EXPECT_EQ(config.max_checkpoints_to_keep, 1);
  EXPECT_EQ(config.loss_scaling.initial, 128.0);
  EXPECT_EQ(config.precision, (Precision{DType::BF16, DType::F32}));
  EXPECT_EQ(config.threads, 2);
}

TEST(ResolveTest, ImageNetRecipe) {
  const run::Run config = config_of(kImageNet, "");
  EXPECT_EQ(config.model.shortcut, 'B');
  EXPECT_EQ(config.model.classes, 1000);
  EXPECT_EQ(config.model.image, (Shape{224, 224, 3}));
  EXPECT_EQ(config.iterations_per_epoch, 320'291);
  EXPECT_EQ(config.optimiser.decay_excludes, (std::vector<std::string>{"beta", "gamma"}));
  EXPECT_EQ(config.data.normalisation, run::Normalisation::MeanOnly);
}

TEST(ResolveTest, LengthIsExact) {
  EXPECT_EQ(config_of(kCifar, "--epochs 0.5").iterations, 781);
  EXPECT_EQ(config_of(kCifar, "--epochs 0.5").learning_rate.warmup_iterations, 781);
  const Resolution resolution =
      resolve_line(std::string(kCifar) + "--iterations 10 --warmup-epochs 2");
  EXPECT_EQ(resolution.config.iterations, 10);
  EXPECT_EQ(resolution.config.log_every, 500);
  EXPECT_EQ(resolution.config.learning_rate.warmup_iterations, 0);
  ASSERT_EQ(resolution.notices.size(), 1u);
  EXPECT_EQ(resolution.notices[0],
            "--warmup-epochs is ignored: --iterations sets the length of the run");
  EXPECT_TRUE(
      resolve_line(std::string(kCifar) + "--iterations 10 --warmup-epochs 0").notices.empty());
}

TEST(ResolveTest, MoreThreadsThanCoresAreSpokenOf) {
  const auto notices = [](const std::string& rest) {
    const Patch options = train_options(std::string(kCifar) + rest);
    std::vector<std::string> all =
        respelled(resolve(options, published_facts(options), {.cores = 2}).notices, options);
    std::erase_if(all, [](const std::string& notice) { return !contains(notice, "take turns"); });
    return all;
  };
  EXPECT_EQ(
      notices("--threads-per-device 64"),
      std::vector<std::string>{"64 threads share the 2 cores of this machine and take turns, which "
                               "is much slower: --threads-per-device 2 gives each thread a core"});
  EXPECT_TRUE(notices("--threads-per-device 2").empty());
}

TEST(ResolveTest, ManyCoresAreAsManyThreadsAsCanBeRecorded) {
  const Patch options = train_options(kCifar);
  const Resolution on_many = resolve(options, published_facts(options), {.cores = 512});
  EXPECT_EQ(on_many.config.threads, 256);
  EXPECT_NO_THROW((void)parse_config(to_toml(on_many.config), "config.toml"));
}

TEST(ResolveTest, NamesOfChoicesReachTheConfiguration) {
  const run::Run config =
      config_of(kCifar,
                "--block basic --shortcut-pad both --normalise imagenet --precision 32.32 "
                "--lr-schedule cosine --optimiser momentum --momentum 0.8 --xla-recompute "
                "--train-with-valid-preprocessing --label-smoothing 0.1 --seed 7 "
                "--threads-per-device 3 --pipeline-num-parallel 4 --model-size 56 --BN-decay 0.9 "
                "--loss-scaling 1 --valid-batch-size 100 --epochs-between-evals 2");
  EXPECT_EQ(config.model.block, models::BlockKind::Basic);
  EXPECT_EQ(config.model.shortcut_pad, models::ShortcutPadSide::Both);
  EXPECT_EQ(config.model.batch_norm_decay, 0.9);
  EXPECT_EQ(config.data.normalisation, run::Normalisation::ImageNet);
  EXPECT_FALSE(config.data.augment);
  EXPECT_EQ(config.data.loader_threads, 4);
  EXPECT_EQ(config.precision.activations, DType::F32);
  EXPECT_EQ(config.learning_rate.kind, run::LearningRateKind::Cosine);
  EXPECT_EQ(config.optimiser.kind, run::OptimiserKind::Momentum);
  EXPECT_EQ(config.optimiser.momentum, 0.8);
  EXPECT_EQ(config.recompute, run::Recompute::Stage);
  EXPECT_EQ(config.label_smoothing, 0.1);
  EXPECT_EQ(config.seed, 7u);
  EXPECT_EQ(config.threads, 3);
  EXPECT_EQ(config.loss_scaling.initial, 1.0);
  EXPECT_EQ(config.validation_batch_size, 100);
  EXPECT_EQ(config.validate_every, 2 * 1562);
}

TEST(ResolveTest, ValidationModes) {
  const run::Run end = config_of(kCifar, "--validation-mode end");
  EXPECT_EQ(end.validation, run::ValidationMode::End);
  EXPECT_EQ(end.max_checkpoints_to_keep, 0);
  EXPECT_EQ(
      config_of(kCifar, "--validation-mode end --max-ckpts-to-keep 3").max_checkpoints_to_keep, 3);
  EXPECT_EQ(config_of(kCifar, "--no-validation").validation, run::ValidationMode::None);
  EXPECT_EQ(config_of(kCifar, "--disable-checkpoints").checkpoint_every, 0);
  EXPECT_EQ(config_of(kCifar, "--ckpts-per-epoch 0").checkpoint_every, 0);
  EXPECT_EQ(config_of(kCifar, "--ckpts-per-epoch 4").checkpoint_every, 390);
  EXPECT_EQ(resolve_line(std::string(kCifar) + "--validation-mode end --disable-checkpoints")
                .notices.size(),
            1u);
}

TEST(ResolveTest, CheckpointsByStepsEpochsOrTheClock) {
  const auto every = [](const std::string& text) {
    const run::Run config = config_of(kCifar, "--checkpoint-every " + text);
    return std::pair(config.checkpoint_every, config.checkpoint_minutes);
  };
  EXPECT_EQ(every("500"), std::pair(std::int64_t{500}, 0.0));
  EXPECT_EQ(every("1step"), std::pair(std::int64_t{1}, 0.0));
  EXPECT_EQ(every("70steps"), std::pair(std::int64_t{70}, 0.0));
  EXPECT_EQ(every("2epochs"), std::pair(std::int64_t{2 * 1562}, 0.0));
  EXPECT_EQ(every("0.5epochs"), std::pair(std::int64_t{781}, 0.0));
  EXPECT_EQ(every("10minutes"), std::pair(std::int64_t{0}, 10.0));
  EXPECT_EQ(every("0.25minutes"), std::pair(std::int64_t{0}, 0.25));
  for (const char* bad : {"0", "1.5", "5hours", "minutes", "1e3", "1..5epochs", "99999999999",
                          "0minutes", "5steps,"}) {
    expect_refused(ErrorKind::Usage, {"--checkpoint-every"},
                   [&] { (void)config_of(kCifar, std::string("--checkpoint-every ") + bad); });
  }
  for (const char* rival : {"--ckpts-per-epoch 2", "--disable-checkpoints"})
    EXPECT_EQ(failure_of([&] {
                (void)config_of(kCifar, std::string("--checkpoint-every 5 ") + rival);
              }).kind,
              ErrorKind::Usage)
        << rival;
}

TEST(ResolveTest, KeepingTheBestNeedsAccuracies) {
  EXPECT_TRUE(config_of(kCifar, "--keep-best").keep_best);
  EXPECT_FALSE(config_of(kCifar, "").keep_best);
  for (const char* without : {"--no-validation", "--validation-mode end"}) {
    expect_refused(ErrorKind::Usage, {"--keep-best needs validation"},
                   [&] { (void)config_of(kCifar, std::string("--keep-best ") + without); });
  }
}

TEST(ResolveTest, WithoutARunDirectoryNothingAsksForCheckpoints) {
  for (const char* more :
       {"--stop-after 3", "--validation-mode end", "--checkpoint-every 2", "--keep-best"}) {
    expect_refused(ErrorKind::Usage, {"--no-logs"},
                   [&] { (void)config_of(kCifar, "--no-logs " + std::string(more)); });
  }
  EXPECT_EQ(config_of(kCifar, "--no-logs").checkpoint_every, 0);
  for (const char* more : {"--max-ckpts-to-keep 2", "--ckpts-per-epoch 2", "--disable-checkpoints"})
    EXPECT_EQ(config_of(kCifar, "--no-logs " + std::string(more)).checkpoint_every, 0);
}

TEST(ResolveTest, SuffixOfTheNameIsNoPath) {
  expect_refused(ErrorKind::Usage, {"'a/b'"},
                 [&] { (void)config_of(kCifar, "--name-suffix a/b"); });
}

TEST(ResolveTest, OptionsOfAFileWithoutEffectAreNoticed) {
  const Patch options =
      merge(train_options(std::string(kCifar) + "--optimiser SGD"),
            parse_config("[optimizer]\noptimiser = \"momentum\"\nmomentum = 0.8\n", "a.toml"));
  const Resolution resolution =
      resolve(options, published_facts(data_request(options)), {.cores = 1});
  ASSERT_EQ(resolution.notices.size(), 1u);
  EXPECT_EQ(resolution.notices[0],
            "a.toml:3: [optimizer] momentum has no effect here: it needs `optimiser` momentum, "
            "RMSprop, LARS or Nesterov");
}

TEST(ResolveTest, ResolvedFileReproducesTheConfiguration) {
  const std::vector<std::pair<std::string_view, std::string>> lines = {
      {kCifar, ""},
      {kCifar, "--iterations 10 --group-norm --groups 8 --no-validation"},
      {kCifar, "--lr-schedule cosine --optimiser momentum --ckpts-per-epoch 0"},
      {kCifar,
       "--model efficientnet --optimiser RMSprop --rmsprop-base-decay-exp -9 --precision 16.16"},
      {kCifar,
       "--model resnext --model-size 29 --optimiser LARS --lars-weight-decay 0.1 --lr-schedule "
       "lars-polynomial --lr-horizon-epochs 38"},
      {kCifar,
       "--model squeezenet --use-bypass --lr-schedule polynomial_decay_lr --loss-scaling dynamic"},
      {kCifar,
       "--lr-schedule piecewise --weight-decay-excludes none --mixup-alpha 0.2 --max-iterations 7"},
      {kCifar,
       "--lr-schedule gradual-warmup --iterations 9 --warmup-iterations 3 --abs-learning-rate 4.8 "
       "--init-path a/b --variable-filter fc1 --weight-avg-N 3 --no-hostside-norm --BN-span 2 "
       "--replicas 2 --ranks 1 --shard-optimizer --batches-per-step 3"},
      {kImageNet, "--normalise-input --batch-norm --weight-decay 0 --log-freq 3"},
      {"",
       "--data-dir some/cifar-100/here --epochs 1.5 --warmup-epochs 0.5 --validation-mode end "
       "--name-suffix é\""},
  };
  for (const auto& [data, rest] : lines) expect_recorded(config_of(data, rest));
}

TEST(ResolveTest, RanksTakeOverWhatRank0Decided) {
  for (const char* line :
       {"--shards 3 --pipeline-depth 6 --pipeline-splits auto --pipeline-schedule auto --chunks 1",
        "--shards 2 --pipeline-depth 4 --pipeline-splits auto --no-logs",
        "--shards 2 --stop-after 3", "--shards 2 --sharding-include-filter b2",
        "--shards 2 --sharding-exclude-filter b1 --gradients-to-accumulate 4",
        "--replicas 2 --trace trace.json --quiet --shards 2 --chunks 2 "
        "--pipeline-schedule Looped --pipeline-depth 4 --pipeline-splits auto",
        "--shards 2 --pipeline-depth 4 --pipeline-splits auto --device-memory 90MB --recompute "
        "auto"}) {
    const Patch options = train_options(std::string(kCifar) + line);
    const DatasetFacts facts = published_facts(options);
    // Rank 0 knows more of its memory, so it repeats more than another rank would by itself.
    run::Run decided = resolve(options, facts, {.cores = 8}).config;
    EXPECT_EQ(decided.chosen_segments.empty(), !contains(line, "recompute auto"));
    for (pipeline::ChosenSegments& stage : decided.chosen_segments)
      stage = {.segments = {{0}, {2}, {5}}, .kept = {{1}}};
    run::Run taken = taken_over(handed_over(decided), options, facts, {.cores = 8}).config;
    EXPECT_EQ(to_toml(taken), to_toml(decided)) << line;
    EXPECT_EQ(taken.asked_layout, decided.asked_layout) << line;
    taken.layout = decided.layout;  // what was open at first
    EXPECT_EQ(taken, decided) << line;
  }
}

TEST(DataRequestTest, TellsTheSetFromItsPlace) {
  const auto request = [](std::string_view line) { return data_request(train_options(line)); };
  EXPECT_EQ(request("--data-dir /d/cifar-10-batches-bin").dataset, "cifar-10");
  EXPECT_EQ(request("--data-dir /d/CIFAR-100-binary").dataset, "cifar-100");
  EXPECT_EQ(request("--data-dir /d/cifar100").dataset, "cifar-100");
  EXPECT_EQ(request("--data-dir /d/x --dataset Cifar-10").dataset, "cifar-10");
  EXPECT_EQ(data_request(train_options("", {{"DATA_DIR", "/e/cifar"}})).files.directory,
            "/e/cifar");
  EXPECT_EQ(data_request(train_options("--data-dir /d/imagenet-data"), DataNeed::Name).dataset,
            "imagenet");
}

TEST(DataRequestTest, TellsHowMuchMayStayInMemory) {
  const auto bytes = [](std::string_view line) {
    return data_request(train_options("--dataset imagenet --data-dir /d " + std::string(line)))
        .files.cached_bytes;
  };
  EXPECT_EQ(bytes(""), 0);
  EXPECT_EQ(bytes("--no-dataset-cache"), 0);
  EXPECT_EQ(bytes("--dataset-cache 8GiB"), std::int64_t{8} << 30);
  EXPECT_EQ(bytes("--dataset-cache 1500"), 1500);
  EXPECT_EQ(failure_of([&] { (void)bytes("--dataset-cache much"); }).text,
            "--dataset-cache: 'much' is neither all nor a valid size; examples: 512MiB, 8GB. Leave "
            "the option out to cache nothing");
}

// Sets of other classes than ImageNet's lie in the same kinds of files.
TEST(DataRequestTest, PicturesAreOfAsManyClassesAsTheNetworkHas) {
  const auto classes = [](std::string_view line) {
    return data_request(train_options("--dataset imagenet --data-dir /d " + std::string(line)))
        .files.open.classes;
  };
  EXPECT_EQ(classes(""), 1000);
  EXPECT_EQ(classes("--classes 1001"), 1001);
  EXPECT_EQ(classes("--classes 7"), 7);
  const Resolution few = resolve_line("--dataset imagenet --synthetic-data --classes 7");
  EXPECT_EQ(few.config.model.classes, 7);
}

// A network in a file says how many classes there are where the data do not.
TEST(DataRequestTest, PicturesAreOfAsManyClassesAsANetworkOfOnesOwnHas) {
  const auto given = [](std::string_view line) {
    Patch options = train_options("--dataset imagenet --model net.onnx " + std::string(line));
    auto graph = std::make_shared<models::Graph>();
    graph->input_shape = {.h = 64, .w = 64, .c = 3};
    graph->classes = 10;
    options.network = std::move(graph);
    return options;
  };
  const auto classes = [&](std::string_view line) {
    return data_request(given("--data-dir /d " + std::string(line))).files.open.classes;
  };
  EXPECT_EQ(classes(""), 10);
  EXPECT_EQ(classes("--classes 7"), 7);
  EXPECT_FALSE(data_request(given("--data-dir /d")).files.open.classes_are_told);
  EXPECT_EQ(published_facts(given("--synthetic-data")).classes, 10);
  // NVIDIA's recipes say 1001 of their own network.
  Patch recipe = given("--data-dir /d");
  recipe.set(*find_field("classes"),
             {.value = std::int64_t{1001}, .origin = Origin::File, .where = "nvidia.toml"});
  EXPECT_EQ(data_request(recipe).files.open.classes, 10);
}

TEST(DataRequestTest, TellsWhereImagesComeFrom) {
  const auto source = [](std::string_view line) {
    return resolve_line("--dataset cifar-10 " + std::string(line)).config.data.source;
  };
  EXPECT_EQ(source("--data-dir /d"), run::ImageSource::Files);
  EXPECT_EQ(source("--generated-data"), run::ImageSource::Host);
  EXPECT_EQ(source("--synthetic-data"), run::ImageSource::Device);
  EXPECT_TRUE(failure_of([&] {
                (void)source("--synthetic-data --generated-data");
              }).text.find("exclude each other") != std::string::npos);
}

TEST(DataRequestTest, ASingleColorJitterIsThatOfThreeProperties) {
  const auto jitter = [](std::string_view numbers) {
    const io::Augmentation found =
        resolve_line("--dataset imagenet --data-dir /d --color-jitter " + std::string(numbers))
            .config.data.augmentation;
    return std::vector{found.brightness, found.contrast, found.saturation, found.hue};
  };
  EXPECT_EQ(jitter("0.4"), (std::vector{0.4, 0.4, 0.4, 0.0}));
  EXPECT_EQ(jitter("0.1,0.2,0.3"), (std::vector{0.1, 0.2, 0.3, 0.0}));
  EXPECT_EQ(jitter("0.1,0.2,0.3,0.4"), (std::vector{0.1, 0.2, 0.3, 0.4}));
  expect_in(failure_of([&] { (void)jitter("0.4,0.4"); }).text,
            {"'0.4,0.4' is not X, B,C,S or B,C,S,H"});
}

TEST(DataRequestTest, PicturesForAGpuAreReadByItsShareOfTheCores) {
  const auto threads = [](std::string_view line, const MachineFacts& machine) {
    const Patch options = train_options("--dataset imagenet " + std::string(line));
    return resolve(options, published_facts(options), machine).config.data.loader_threads;
  };
  const MachineFacts gpus{.cores = 64, .local_ranks = 8, .has_gpu = true};
  EXPECT_EQ(threads("--data-dir /d", gpus), 8);
  EXPECT_EQ(threads("--data-dir /d --pipeline-num-parallel 3", gpus), 3);
  EXPECT_EQ(threads("--synthetic-data", gpus), 1);
  EXPECT_EQ(threads("--data-dir /d", {.cores = 64, .has_gpu = true}), 16);
  EXPECT_EQ(threads("--data-dir /d", {.cores = 64}), 1);
  // All machines use the number of the smallest, because ranks compare their options.
  EXPECT_EQ(
      threads("--data-dir /d", {.cores = 64, .local_ranks = 8, .threads = 3, .has_gpu = true}), 3);
}

TEST(DataRequestTest, SaysWhatIsMissing) {
  const auto failure = [](std::string_view line) {
    return failure_of([&] { (void)data_request(train_options(line)); });
  };
  EXPECT_EQ(
      failure("").text,
      "no data set: give --data-dir DIR or set DATA_DIR, or use --dataset with --synthetic-data");
  EXPECT_EQ(failure("--synthetic-data").text,
            "--synthetic-data needs --dataset: give the data set that it stands for");
  EXPECT_EQ(
      failure("--dataset cifar-10").text,
      "no directory for cifar-10: give --data-dir DIR or set DATA_DIR, or use --synthetic-data");
  EXPECT_EQ(failure("--data-dir /d/pets").text,
            "--data-dir '/d/pets' does not name a known data set: give --dataset cifar-10, "
            "cifar-100 or imagenet");
  EXPECT_EQ(
      failure("--dataset imagenet --data-dir /d --normalise-input --image-normalisation mean").text,
      "--normalise-input and --image-normalisation contradict each other: --normalise-input is "
      "--image-normalisation torch");
}

TEST(ResolveTest, ProcessesThatSmokeLeavesIdleAreToldSo) {
  const auto refusal = [](const std::string& rest) {
    const Patch options = train_options("--dataset cifar-10 --synthetic-data " + rest);
    return failure_of([&] {
             (void)resolve(options, published_facts(options),
                           {.cores = 2, .ranks = 2, .local_ranks = 2});
           })
        .text;
  };
  const std::string smoke =
      "2 processes were started, but --smoke runs one replica in one process: start it without a "
      "launcher";
  EXPECT_TRUE(contains(refusal("--smoke"), smoke)) << refusal("--smoke");
  EXPECT_TRUE(contains(refusal("--smoke --ranks 1"), smoke)) << refusal("--smoke --ranks 1");
  EXPECT_FALSE(contains(refusal(""), "--smoke"));
}

TEST(ResolveTest, ProcessesWithoutWorkAreToldHowToGetIt) {
  const auto refusal = [](int ranks, const std::string& rest) {
    const Patch options = train_options("--dataset cifar-10 --synthetic-data " + rest);
    return failure_of([&] {
             (void)resolve(options, published_facts(options),
                           {.cores = 8, .ranks = ranks, .local_ranks = ranks});
           })
        .text;
  };
  const std::string staged = "--shards 2 --pipeline-depth 2 --pipeline-splits b2/0/relu";
  EXPECT_TRUE(contains(refusal(2, ""), "; --replicas 2 gives all of them work, as --distributed"));
  EXPECT_TRUE(contains(refusal(4, staged), "; --replicas 2 gives all of them work"));
  EXPECT_FALSE(contains(refusal(3, staged), "--replicas"));  // no number of replicas does
}

}  // namespace
}  // namespace millrace::cli
