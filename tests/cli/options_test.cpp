// SPDX-License-Identifier: Apache-2.0
#include "cli/options.hpp"

#include <fmt/format.h>

#include "support.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests

/// Some command that takes the option.
Command taker(const Field& spec) {
  for (unsigned bit = 1; bit != 0; bit <<= 1)
    if ((spec.commands & bit) != 0) return static_cast<Command>(bit);
  ADD_FAILURE() << spec.name << " belongs to no command";
  return Command::Train;
}

/// Texts that the option must refuse.
std::vector<std::string> bad_texts(const Field& spec) {
  switch (spec.type) {
    case ValueType::Flag:
      return {"maybe", "1"};
    case ValueType::Choice:
      return {"nonsense", spec.value_name == "A|B" ? "AB" : "x"};
    case ValueType::Text:
    case ValueType::NameList:
    case ValueType::Path:
      return {};
    case ValueType::Integer:
    case ValueType::Real:
    case ValueType::RealList:
      break;
  }
  std::vector<std::string> bad = {"x", "1x", "nan", "0x10"};
  if (spec.type == ValueType::Integer) bad.insert(bad.end(), {"1.5", "99999999999999999999"});
  if (spec.type == ValueType::RealList) bad.insert(bad.end(), {"0.5,0.5", "0.7,0.2", ",", "0.1,x"});
  if (spec.range.low_excluded)
    bad.push_back(fmt::format("{}", static_cast<std::int64_t>(spec.range.low)));
  if (!std::isinf(spec.range.low))
    bad.push_back(fmt::format("{}", static_cast<std::int64_t>(spec.range.low) - 1));
  if (!std::isinf(spec.range.high))
    bad.push_back(fmt::format("{}", static_cast<std::int64_t>(spec.range.high) + 1));
  return bad;
}

TEST(OptionTableTest, NamesAreUniqueAndSectionsTogether) {
  std::set<std::string_view> names;
  std::set<Section> finished;
  Section current = field_table().front().section;
  for (const Field& spec : field_table()) {
    EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
    EXPECT_TRUE(spec.alias.empty() || names.insert(spec.alias).second) << spec.alias;
    if (spec.section != current) finished.insert(current);
    current = spec.section;
    EXPECT_FALSE(finished.contains(current)) << spec.name << " stands apart from its section";
    EXPECT_FALSE(spec.help.empty()) << spec.name;
    EXPECT_FALSE(spec.source.empty()) << spec.name;
    EXPECT_NE(spec.commands, 0u) << spec.name;
    EXPECT_EQ(spec.type == ValueType::Flag, spec.value_name.empty()) << spec.name;
  }
}

TEST(OptionTableTest, EveryOptionRefusesBadValuesByName) {
  for (const Field& spec : field_table()) {
    for (const std::string& bad : bad_texts(spec)) {
      const std::string word = fmt::format("--{}={}", spec.name, bad);
      const Failure failure =
          failure_of([&] { (void)parse_arguments(taker(spec), std::vector{word}, 0); });
      EXPECT_EQ(failure.kind, ErrorKind::Usage) << word;
      EXPECT_TRUE(failure.text.starts_with(fmt::format("--{}: ", spec.name))) << failure.text;
      EXPECT_TRUE(contains(failure.text, fmt::format("'{}'", bad)) || bad == "," ||
                  spec.type == ValueType::RealList)
          << failure.text;
      EXPECT_TRUE(contains(failure.text, describe_values(spec))) << failure.text;
      EXPECT_FALSE(contains(failure.text, "\n")) << failure.text;
    }
  }
}

TEST(OptionTableTest, EveryVariableRefusesBadValuesByName) {
  for (const Field& spec : field_table()) {
    if (spec.environment.empty()) continue;
    const Patch options = read_environment(
        taker(spec), environment_of({{std::string(spec.environment), "some/where"}}));
    EXPECT_EQ(options.text(spec.name), "some/where");
    EXPECT_TRUE(contains(options.find(spec.name)->where, spec.environment));
    const bool any_text = spec.type == ValueType::Path || spec.type == ValueType::Text ||
                          spec.type == ValueType::NameList;
    EXPECT_TRUE(any_text) << "a variable of another type needs a test of bad values";
  }
}

TEST(ArgumentsTest, ReadsEveryTypeOfValue) {
  const Patch options = train_options(
      "--batch-size 8 --base-learning-rate -6 --learning-rate-schedule 0.5,0.75,0.875 --optimiser "
      "MOMENTUM --xla-recompute --name-suffix=-x=y --epochs 1e1");
  EXPECT_EQ(options.integer("batch-size"), 8);
  EXPECT_EQ(options.real("base-learning-rate"), -6.0);
  EXPECT_EQ(options.value<std::vector<double>>("learning-rate-schedule"),
            (std::vector<double>{0.5, 0.75, 0.875}));
  EXPECT_EQ(options.text("optimiser"), "momentum");
  EXPECT_TRUE(options.flag("xla-recompute"));
  EXPECT_EQ(options.text("name-suffix"), "-x=y");
  EXPECT_EQ(options.real("epochs"), 10.0);
  EXPECT_FALSE(options.integer("iterations").has_value());
}

TEST(ArgumentsTest, UnderstandsUniqueBeginningsAndAliases) {
  const Patch options = train_options("--epoch 3 --grad=4 --optimizer momentum --synth");
  EXPECT_EQ(options.real("epochs"), 3.0);
  EXPECT_EQ(options.integer("gradients-to-accumulate"), 4);
  EXPECT_EQ(options.text("optimiser"), "momentum");
  EXPECT_TRUE(options.flag("synthetic-data"));
  EXPECT_EQ(train_options("--lr 0.1").real("abs-learning-rate"), 0.1);
  // A name that begins another name is meant itself.
  EXPECT_EQ(train_options("--model resnet").text("model"), "resnet");
  EXPECT_EQ(train_options("--normalise dataset").text("normalise"), "dataset");
}

TEST(ArgumentsTest, TheLastOfSeveralCountsAndFlagsCanBeSwitchedOff) {
  EXPECT_EQ(train_options("--batch-size 8 --batch-size 16").integer("batch-size"), 16);
  EXPECT_FALSE(train_options("--no-validation=false").flag("no-validation"));
  EXPECT_NO_THROW((void)train_options("--batch-norm=false --group-norm"));
}

TEST(ArgumentsTest, WordsThatAreNotUnderstoodAreRefusedInOneLine) {
  const std::string names = " needs a value: NAME .., names separated by spaces or commas";
  const std::vector<std::pair<std::vector<std::string>, std::string>> table = {
      {{"--log", "3"},
       "--log is ambiguous: it could be any of --log-dir, --logs-per-epoch, --log-freq, "
       "--log-all-instances; write more of the name"},
      {{"--learning-rate", "0.1"},
       "--learning-rate is ambiguous: it could be any of --lr, --base-learning-rate, "
       "--initial-learning-rate, --learning-rate-decay, --learning-rate-schedule, "
       "--learning-rate-epochs; write more of the name"},
      {{"--bacth-size", "3"}, "unknown option --bacth-size; did you mean --batch-size?"},
      {{"-b", "3"}, "unknown option -b; options begin with two dashes"},
      {{"--digest"}, "--digest is not an option of this command; --help lists its options"},
      {{"--optimiser", "momentun"},
       "--optimiser: 'momentun' is not one of SGD, momentum, momentum-rate-inside, Nesterov, "
       "RMSprop, LARS, Adam, AdamW; did you mean momentum?"},
      {{"--weight-decay-excludes", "--seed", "1"}, "--weight-decay-excludes" + names},
      {{"--weight-decay-excludes", " , "}, "--weight-decay-excludes" + names},
      {{"--ranks", "--seed", "1"}, "--ranks needs a value: N, a whole number from 1 to 16384"},
      {{"--no-logs="}, "--no-logs needs a value: true or false"},
      {{"--save-checkpoint-steps", "60", "--ckpts-per-epoch", "2"},
       "--save-checkpoint-steps and --ckpts-per-epoch exclude each other: give one of them"},
      {{"--save-check=60", "--checkp", "2", "--ckpts-per-epoch", "2"},
       "--checkpoint-every and --ckpts-per-epoch exclude each other: give one of them"},
  };
  for (const auto& [line, expected] : table)
    expect_refusal(ErrorKind::Usage, expected, [&line = line] {
      (void)load_options(Command::Train, line, 0, environment_of({}));
    });
}

TEST(ArgumentsTest, OptionsForNewRunsAreRefusedByOthers) {
  const std::vector<std::string> line = {"--restore-path", "r", "--compile-only"};
  EXPECT_TRUE(
      contains(failure_of([&] { (void)parse_arguments(Command::Restore, line, 0); }).text,
               "--compile-only is for new runs, and this line continues one: leave it out"));
}

TEST(ArgumentsTest, WordsThatAreNoOptionsAreCounted) {
  const std::vector<std::string> line = {"a", "--json", "b"};
  std::vector<std::string> arguments;
  (void)parse_arguments(Command::Inspect, line, 2, &arguments);
  EXPECT_EQ(arguments, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(failure_of([&] { (void)parse_arguments(Command::Inspect, line, 1); }).text,
            "unexpected argument 'b'; --help shows the usage");
}

TEST(PrecedenceTest, CommandLineBeforeEnvironmentBeforeFile) {
  const TemporaryDirectory directory;
  const std::string file = (directory.path() / "a.toml").string();
  std::ofstream(file) << "[data]\ndata-dir = \"file\"\n[train]\nbatch-size = 4\nseed = 5\n";
  const std::string with_file = "--config " + file;
  EXPECT_EQ(train_options(with_file).text("data-dir"), "file");
  EXPECT_EQ(train_options(with_file, {{"DATA_DIR", "env"}}).text("data-dir"), "env");
  const Patch options =
      train_options(with_file + " --data-dir line --batch-size 8", {{"DATA_DIR", "env"}});
  EXPECT_EQ(options.text("data-dir"), "line");
  EXPECT_EQ(options.integer("batch-size"), 8);
  EXPECT_EQ(options.integer("seed"), 5);
}

TEST(PrecedenceTest, AStrongerOptionReplacesOneThatItExcludes) {
  const Patch file = parse_config("[train]\nepochs = 3\n[log]\nlogs-per-epoch = 2\n", "a.toml");
  const Patch merged = merge(train_options("--iterations 7 --log-freq 1"), file);
  EXPECT_EQ(merged.integer("iterations"), 7);
  EXPECT_FALSE(merged.real("epochs").has_value());
  EXPECT_EQ(merged.integer("log-freq"), 1);
  EXPECT_FALSE(merged.integer("logs-per-epoch").has_value());
}

TEST(PrecedenceTest, ConflictsInOnePlaceAreRefused) {
  const std::vector<std::string> lines = {
      "--epochs 1 --iterations 2",       "--batch-norm --group-norm",
      "--logs-per-epoch 1 --log-freq 2", "--validation-mode all --no-validation",
      "--run-dir a --log-dir b",         "--run-dir a --name-suffix b",
      "--no-logs --run-dir a",           "--no-logs --log-dir b",
      "--no-logs --name-suffix b",       "--ckpts-per-epoch 1 --disable-checkpoints",
  };
  for (const std::string& line : lines) {
    expect_refused(ErrorKind::Usage, {"exclude each other"}, [&] { (void)train_options(line); });
  }
  EXPECT_EQ(failure_of([] {
              check_conflicts(parse_config("[train]\nepochs = 3\niterations = 4\n", "a.toml"));
            }).text,
            "a.toml:2: [train] epochs and a.toml:3: [train] iterations exclude each other: give "
            "one of them");
}

// Whatever the option: never the words of the parser behind ours.
TEST(OptionTableTest, EveryOptionSaysThatItNeedsAValue) {
  for (const Field& spec : field_table()) {
    const std::string name = fmt::format("--{}", spec.name);
    const bool flag = spec.type == ValueType::Flag;
    std::vector<std::vector<std::string>> lines = {{name + "="}};
    if (!flag) lines.push_back({name, ""});
    if (!flag && spec.bare.empty()) lines.insert(lines.end(), {{name}, {name, name, "1"}});
    for (const std::vector<std::string>& line : lines) {
      const Failure failure = failure_of([&] { (void)parse_arguments(taker(spec), line, 0); });
      EXPECT_EQ(failure.kind, ErrorKind::Usage);
      EXPECT_TRUE(failure.text.starts_with(name + " needs a value: ")) << failure.text;
    }
  }
}

}  // namespace
}  // namespace millrace::cli
