// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "cli/options.hpp"
#include "support.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests

Failure parse_failure(const std::string& text) {
  return failure_of([&] { (void)parse_config(text, "a.toml"); });
}

TEST(ConfigFileTest, ReadsEveryType) {
  const Patch options = parse_config(
      "# a recipe\n[model]\nmodel-size = 20  # a whole number stands for a text\n\n[lr]\n"
      "base-learning-rate = -6\nlearning-rate-schedule = [0.5, 0.75]\n[data]\nsynthetic-data = "
      "true\ndataset = \"CIFAR-10\"\n",
      "a.toml");
  EXPECT_EQ(options.text("model-size"), "20");
  EXPECT_EQ(options.real("base-learning-rate"), -6.0);
  EXPECT_EQ(options.value<std::vector<double>>("learning-rate-schedule"),
            (std::vector<double>{0.5, 0.75}));
  EXPECT_TRUE(options.flag("synthetic-data"));
  EXPECT_EQ(options.text("dataset"), "cifar-10");
  EXPECT_EQ(options.find("model-size")->where, "a.toml:3: [model] model-size");
}

TEST(ConfigFileTest, KeysOfFeaturesThatAreGoneAreLeftOut) {
  const Patch options =
      parse_config("[pipeline]\nkernel-table = \"/old/t.json\"\nshards = 2\n", "config.toml");
  EXPECT_EQ(options.settings().size(), 1u);
  EXPECT_EQ(options.integer("shards"), 2);
}

TEST(ConfigFileTest, ErrorsNameFileAndLine) {
  const std::vector<std::pair<std::string, std::string>> table = {
      {"[train]\nbatchsize = 3\n",
       "a.toml:2: [train] batchsize: unknown key; did you mean batch-size?"},
      {"[train]\nzzzzzzzzzzzz = 3\n",
       "a.toml:2: [train] zzzzzzzzzzzz: unknown key; configs/README.md lists the keys"},
      {"\n[trian]\nseed = 3\n", "a.toml:2: unknown section [trian]; did you mean [train]?"},
      {"[model]\nbatch-size = 3\n",
       "a.toml:2: [model] batch-size: this key belongs to section [train]"},
      {"[log]\nrun-dir = \"x\"\n",
       "a.toml:2: [log] run-dir: this option can only be given on the command line"},
      {"[train]\n\nbatch-size = 0\n",
       "a.toml:3: [train] batch-size: '0' is not a whole number from 1 to 2147483647"},
      {"[train]\nbatch-size = \"8\"\n",
       "a.toml:2: [train] batch-size: expected a whole number, found \"8\"; allowed: a whole "
       "number from 1 to 2147483647"},
      {"[train]\nbatch-size = 2.5\n",
       "a.toml:2: [train] batch-size: expected a whole number, found 2.5; allowed: a whole number "
       "from 1 to 2147483647"},
      {"[model]\nbatch-norm = \"yes\"\n",
       "a.toml:2: [model] batch-norm: expected true or false, found \"yes\"; allowed: true or "
       "false"},
      {"[train]\nepochs = [1, \"a\", true]\n",
       "a.toml:2: [train] epochs: expected a number, found [1, \"a\", true]; allowed: a number "
       "above 0"},
      {"[train]\nepochs = {a = 1}\n",
       "a.toml:2: [train] epochs: expected a number, found a table; allowed: a number above 0"},
      {"[train]\nepochs = 1979-05-27\n",
       "a.toml:2: [train] epochs: expected a number, found a date or time; allowed: a number above "
       "0"},
      {"[train]\nprecision = 16.32\n",
       "a.toml:2: [train] precision: expected a quoted string, found 16.32; allowed: one of 16.16, "
       "16.32, 32.32"},
      {"[lr]\nlearning-rate-schedule = [0.75, 0.5]\n",
       "a.toml:2: [lr] learning-rate-schedule: '0.75,0.5' is not a list of ascending numbers from "
       "0 to 1"},
  };
  for (const auto& [text, expected] : table) {
    expect_refusal(ErrorKind::Config, expected, [&] { (void)parse_config(text, "a.toml"); });
  }
}

TEST(ConfigFileTest, BrokenSyntaxIsOneLineWithItsPlace) {
  const std::vector<std::pair<std::string, std::string>> table = {
      {"seed = 3\n", "a.toml:1: key seed is outside a section"},
      {"[train]\nseed = 3\nbatch-size 32\n", "a.toml:3: "},
      {"[train]\nseed = 1\nepochs = =\n", "a.toml:3: "},
      {"[train]\nseed = 3\nseed = \"unfinished\n", "a.toml:3: "},
      {"[train]\nseed = 3\nseed = 4\n", "a.toml:"}};
  for (const auto& [text, begin] : table) {
    const Failure failure = parse_failure(text);
    EXPECT_EQ(failure.kind, ErrorKind::Config);
    EXPECT_TRUE(failure.text.starts_with(begin)) << failure.text;
    EXPECT_FALSE(contains(failure.text, "\n")) << failure.text;
  }
}

TEST(ConfigFileTest, RefusesTextThatIsNotUtf8) {
  for (const char* text :
       {"[train]\n# \xff\n", "[train]\n'\xbf)'", "[train]\n\xed\xa0\x80 = 3\n"}) {
    expect_refusal(ErrorKind::Config, "a.toml:2: is not UTF-8 text: save the file as UTF-8",
                   [&] { (void)parse_config(text, "a.toml"); });
  }
}

TEST(ConfigFileTest, EveryKeyRefusesAValueOfAnotherType) {
  for (const Field& spec : field_table()) {
    if (spec.section == Section::Command) continue;
    const std::string bad = "1979-05-27";  // a date suits no option
    const Failure failure =
        parse_failure(fmt::format("[{}]\n{} = {}\n", section_key(spec.section), spec.name, bad));
    EXPECT_EQ(failure.kind, ErrorKind::Config);
    EXPECT_TRUE(failure.text.starts_with(
        fmt::format("a.toml:2: [{}] {}: expected ", section_key(spec.section), spec.name)))
        << failure.text;
  }
}

TEST(ConfigFileTest, MissingFileNamesItsPath) {
  const TemporaryDirectory directory;
  const fs::path path = directory.path() / "none.toml";
  expect_refused(ErrorKind::Io, {path.string()}, [&] { (void)read_config_file(path); });
}

// What toml11 would follow down to the end of the stack, or for minutes.
TEST(ConfigFileTest, DeepOnesAreRefusedBeforeTheyAreParsed) {
  std::string dotted = "a";
  std::string tables = "x = ";
  for (int i = 0; i < 4000; ++i) {
    dotted += ".a";
    tables += "{a=";
  }
  // Brackets behind quotes that a simple look would take for the begin of a string.
  const std::string lists = "y = " + std::string(40'000, '[');
  for (const std::string& text :
       {lists, tables, "x = \"\"\" \" \"\"\"; " + lists, "x = ''' ' '''; " + lists}) {
    expect_refusal(ErrorKind::Config, "deep.toml:2: more than 512 brackets: nested too deeply",
                   [&] { (void)parse_config("\n" + text, "deep.toml"); });
  }
  for (const std::string& text :
       {"[" + dotted + "]\n", dotted + " = 1\n", "x = {" + dotted + " = 1}\n"}) {
    expect_refusal(ErrorKind::Config,
                   "deep.toml:2: more than 512 dots in a line: nested too deeply",
                   [&] { (void)parse_config("\n" + text, "deep.toml"); });
  }
  std::string list = "x = [";
  for (int i = 0; i < 20'000; ++i) list += "1,";
  expect_refusal(ErrorKind::Config, "wide.toml:2: more than 2048 commas: a list is too long",
                 [&] { (void)parse_config("\n" + list + "1]\n", "wide.toml"); });
  const std::string quoted =
      "[data]\ndata-dir = \"" + std::string(40, '[') + "\" # [[[[[[[[[[[[[[[[[[";
  EXPECT_NO_THROW((void)parse_config(quoted, "quoted.toml"));
  const Failure large =
      failure_of([&] { (void)parse_config(std::string(70'000, '\n'), "a.toml"); });
  EXPECT_TRUE(contains(large.text, "has 70000 bytes; the maximum is 65536")) << large.text;
}

TEST(ConfigFileTest, WritesWhatItReads) {
  const std::map<std::string, Value, std::less<>> values = {
      {"dataset", std::string("cifar-10")},
      {"data-dir", std::string("C:\\a \"b\"\tc\x7f/\xc3\xa4")},
      {"synthetic-data", false},
      {"batch-size", std::int64_t{32}},
      {"epochs", 10.0},
      {"weight-decay", 1e-6},
      {"base-learning-rate", -6.0},
      {"learning-rate-schedule", std::vector<double>{0.5, 1.0}},
  };
  const std::string text = to_toml(values);
  EXPECT_TRUE(text.starts_with("[data]\ndataset = \"cifar-10\"\n")) << text;
  const Patch options = parse_config(text, "a.toml");
  EXPECT_EQ(options.settings().size(), values.size());
  for (const auto& [name, setting] : options.settings())
    EXPECT_EQ(setting.value, values.at(name)) << name << "\n" << text;
}

}  // namespace
}  // namespace millrace::cli
