// SPDX-License-Identifier: Apache-2.0
//
// The command lines in the guides of the five seeds, which seed_lines.txt quotes, and the words
// that stand beside them.
#include <fmt/format.h>

#include "cli/commands.hpp"
#include "run/field_rows.hpp"
#include "seed_lines.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests

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

/// The lines of a table with what stands below each of them, up to an empty line.
std::vector<std::vector<std::string>> rows_of(const char* name) {
  std::ifstream file(fs::path(MILLRACE_SOURCE_DIR) / "tests/tools/dialects" / name);
  std::vector<std::vector<std::string>> rows(1);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    if (!line.empty())
      rows.back().push_back(line);
    else if (!rows.back().empty())
      rows.emplace_back();
  }
  if (rows.back().empty()) rows.pop_back();
  return rows;
}

/// "ipu: train.py .." as its user would type it.
Read read_row(const std::string& line) {
  const std::size_t colon = line.find(": ");
  return read_seed(line.substr(0, colon), line.substr(colon + 2));
}

/// The line, the summary of the training that it means, and some of its rates.
TEST(SeedLinesTest, ResolveToThePublishedNumbers) {
  const auto rows = rows_of("seed_lines.txt");
  for (const std::vector<std::string>& row : rows) {
    SCOPED_TRACE(row.front());
    const Read read = read_row(row.front());
    EXPECT_EQ(read.command, Command::Train);
    const run::Run config = config_of(read);
    EXPECT_EQ("= " + summary_of(config), row.at(1));
    // NVIDIA's mixed precision is float16, that of the others here bfloat16.
    EXPECT_EQ(config.precision.activations == DType::F16, contains(row.front(), "use_tf_amp"));
    expect_rates(config, row.at(2).substr(2));
  }
  EXPECT_EQ(rows.size(), 37u);
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
  for (const std::vector<std::string>& row : rows_of("seed_lines.txt")) {
    SCOPED_TRACE(row.front());
    expect_recorded(config_of(read_row(row.front())));
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

/// An option as the line sets it or, if it does not, as the training records it, or a number that
/// follows; - if there is none.
std::string meant(const Read& read, const std::string& name) {
  const Setting* found = find_field(name) != nullptr ? read.options.find(name) : nullptr;
  if (found != nullptr) return to_string(found->value);
  if (read.command != Command::Train) return "-";
  const run::Run config = config_of(read);
  const std::map<std::string, std::int64_t> numbers = {
      {"updates", config.iterations},
      {"updates-of-warm-up", config.learning_rate.warmup_iterations},
      {"updates-to-validation", config.validate_every},
      {"updates-to-checkpoint", config.checkpoint_every},
      {"updates-to-report", config.log_every},
      {"images-to-validate", config.data.validation_size}};
  if (numbers.contains(name)) return std::to_string(numbers.at(name));
  const Patch recorded = parse_config(to_toml(config), "config.toml");
  const Setting* const made = recorded.find(name);
  return made == nullptr ? "-" : to_string(made->value);
}

void expect_meaning(const std::vector<std::string>& row) {
  SCOPED_TRACE(row.front());
  const std::map<std::string, Command> commands = {
      {"validate", Command::Validate}, {"restore", Command::Restore}, {"bench", Command::Bench}};
  const Read read = read_row(row.front());
  Command command = Command::Train;
  std::vector<std::string> notices;
  for (const std::string& line : std::span(row).subspan(1)) {
    const std::string text = line.substr(2);
    if (line[0] == '@') expect_rates(config_of(read), text);
    if (line[0] == '~') notices.push_back(text);
    if (line[0] != '=') continue;
    for (const std::string& piece : split_list(text, ';')) {
      const std::string option = piece.substr(piece.find_first_not_of(' '));
      const std::size_t space = option.find(' ');
      const std::string name = option.substr(0, space);
      const std::string value = option.substr(space + 1);
      if (name == "command")
        command = commands.at(value);
      else
        EXPECT_EQ(meant(read, name), value) << name;
    }
  }
  EXPECT_EQ(read.command, command);
  if (notices.empty() || notices.back() != "..") {
    EXPECT_EQ(read.notices, notices);
    return;
  }
  notices.pop_back();
  for (const std::string& notice : notices)
    EXPECT_EQ(std::ranges::count(read.notices, notice), 1) << notice;
}

TEST(MeaningsTest, AreThoseOfTheTrainers) {
  const auto rows = rows_of("meanings.txt");
  for (const std::vector<std::string>& row : rows) expect_meaning(row);
  EXPECT_EQ(rows.size(), 100u);
}

TEST(NvidiaLinesTest, Predictions) {
  const Read read = read_seed("nvidia",
                              "python main.py --mode predict --model_dir m "
                              "--to_predict i.jpg --results_dir r");
  EXPECT_EQ(read.command, Command::Predict);
  EXPECT_EQ(read.arguments, std::vector<std::string>{"i.jpg"});
  EXPECT_EQ(read.options.text("restore-path"), "m");
  const Read script = read_seed("nvidia", "python scripts/inference/predict.py -m m -f photo.jpg");
  EXPECT_EQ(script.command, Command::Predict);
  EXPECT_EQ(script.arguments, std::vector<std::string>{"photo.jpg"});
  for (const auto& [line, missing] :
       {std::pair{"python main.py --mode predict --to_predict i.jpg", "--model_dir is missing"},
        {"python main.py --mode predict --model_dir m", "--to_predict is missing"},
        {"python scripts/inference/predict.py -f i.jpg", "-m is missing"}}) {
    const auto failure = failure_of([line = line] { (void)read_seed("nvidia", line); });
    EXPECT_EQ(failure.kind, ErrorKind::Usage);
    EXPECT_TRUE(contains(failure.text, missing)) << failure.text;
  }
}

// Words that stand beside those of the guides: rows of B.3 to B.6.

TEST(RefusalsTest, SayWhatIsWrong) {
  const auto rows = rows_of("refusals.txt");
  for (const std::vector<std::string>& row : rows) {
    SCOPED_TRACE(row.front());
    const std::string who = row.front().substr(0, row.front().find(": "));
    const auto notices = [&] {
      if (who == "cifar" || who == "imagenet")
        return resolve_line("--dataset " + (who == "cifar" ? "cifar-10" : who) +
                            " --synthetic-data " + row.front().substr(who.size() + 2))
            .notices;
      const Read read = read_row(row.front());
      return resolve(read.options, published_facts(read.options), read.machine).notices;
    };
    if (row.at(1).starts_with("~ ")) {
      EXPECT_EQ(notices(), std::vector<std::string>{row[1].substr(2)});
      continue;
    }
    const Failure failure = failure_of([&] { (void)notices(); });
    EXPECT_EQ((failure.kind == ErrorKind::Config ? "!! " : "! ") + failure.text, row[1]);
    EXPECT_TRUE(failure.kind == ErrorKind::Config || failure.kind == ErrorKind::Usage);
  }
  EXPECT_EQ(rows.size(), 95u);
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

}  // namespace
}  // namespace millrace::cli
