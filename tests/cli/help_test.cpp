// SPDX-License-Identifier: Apache-2.0
//
// What the tables of commands and options become: help by topic, manual pages, completion, and the
// list of recipes.
#include <fmt/format.h>

#include "cli/option_text.hpp"
#include "run/recipes.hpp"
#include "support.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests
using Kind = HelpTopic::Kind;

/// Whether an entry of the text begins with the option.
bool has_entry(const std::string& text, const Field& spec) {
  const std::string name = fmt::format("\n  --{}", spec.name);
  return std::ranges::any_of(std::string_view(" ,\n"),
                             [&](char end) { return contains(text, name + end); });
}

TEST(HelpTest, AllListsEveryOptionOfTheCommandWithDefaultsAndUnits) {
  const std::string text = run_words({"train", "--help-all"}).out;
  EXPECT_TRUE(text.starts_with("usage: millrace train [options]\n")) << text;
  EXPECT_TRUE(contains(text, "\nModel:\n"));
  for (const char* family : {"ResNet and ResNeXt", "ResNeXt", "SqueezeNet", "EfficientNet"})
    EXPECT_TRUE(contains(text, "\n" + std::string(family) + ":\n")) << family;
  EXPECT_TRUE(contains(text, "--batch-size N"));
  EXPECT_TRUE(contains(text, "or $DATA_DIR"));
  EXPECT_TRUE(contains(text, "default 0.97"));
  for (const Field& spec : field_table())
    EXPECT_EQ(has_entry(text, spec), spec.taken_by(Command::Train)) << spec.name;
  for (const std::string& line : lines_of(text)) EXPECT_LE(line.size(), 100u) << line;
}

TEST(HelpTest, TrainFitsAScreen) {
  const std::vector<std::string> lines = lines_of(run_words({"train", "--help"}).out);
  EXPECT_LE(lines.size(), 50u);
  for (const std::string& line : lines) EXPECT_LE(line.size(), 100u) << line;
  EXPECT_EQ(std::ranges::count_if(lines, [](const auto& line) { return line.starts_with("  --"); }),
            25);
}

TEST(HelpTest, TopicsTogetherListEveryOptionOnce) {
  for (const CommandSpec& command : command_table()) {
    std::string all;
    for (const std::string& topic : topics_of(command))
      all += command_help(command, {.kind = Kind::Section, .section = topic});
    for (const Field& spec : field_table())
      EXPECT_EQ(has_entry(all, spec), spec.taken_by(command.id)) << command.name << spec.name;
  }
  EXPECT_EQ(run_words({"train", "--help", "lr"}).out, run_words({"help", "train", "lr"}).out);
  EXPECT_EQ(run_words({"train", "--help=all"}).out, run_words({"train", "--help-all"}).out);
}

TEST(HelpTest, RestoreListsWhatMayChange) {
  const std::string text = run_words({"restore", "--help"}).out;
  for (const Field& spec : field_table())
    EXPECT_EQ(has_entry(text, spec), spec.taken_by(Command::Restore) && spec.idle.empty() &&
                                         spec.decides != Decides::Mathematics)
        << spec.name;
}

// Options of small commands are no options of `train`, which has too many to list.
TEST(HelpTest, CommandsListTheirOwnOptions) {
  for (const CommandSpec& command : command_table()) {
    const std::string text = command_help(command, {});
    for (const Field& spec : field_table())
      EXPECT_TRUE(has_entry(text, spec) || !spec.taken_by(command.id) ||
                  spec.taken_by(Command::Train))
          << command.name << spec.name;
  }
}

TEST(HelpTest, ModelAddsTheOptionsOfItsFamily) {
  const std::string text = run_words({"train", "--model", "squeezenet", "--help"}).out;
  EXPECT_TRUE(contains(text, "\nSqueezeNet:\n  --use-bypass")) << text;
  EXPECT_FALSE(contains(text, "--squeeze-excitation"));
}

TEST(ManualTest, EveryCommandHasAPageWithItsOptions) {
  const std::map<std::string, std::string> pages = manual_pages();
  EXPECT_EQ(pages.size(), command_table().size() + 1);
  const std::string& train = pages.at("millrace-train.1");
  EXPECT_TRUE(train.starts_with(".TH millrace\\-train 1 ")) << train.substr(0, 40);
  EXPECT_TRUE(contains(train, "\n.TP\n\\fB\\-\\-batch\\-size\\fR \\fIN\\fR\nimages per micro"));
  EXPECT_TRUE(contains(pages.at("millrace-average.1"), "\\fB\\-\\-decay\\fR"));
  EXPECT_TRUE(contains(pages.at("millrace.1"), ".BR millrace\\-average (1)"));
  EXPECT_FALSE(contains(pages.at("millrace-restore.1"), "\\-\\-label\\-smoothing\\fR"));
  // A line of text that begins with a dot or a quote would be a command of troff.
  for (const auto& [name, text] : pages)
    for (const std::string& line : lines_of(text))
      EXPECT_TRUE(line.empty() || line[0] != '\'') << name << ": " << line;
}

TEST(CompletionTest, OffersCommandsOptionsValuesTopicsAndFiles) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(completions({"millrace", "res"}), (Words{"restore"}));
  EXPECT_EQ(completions({"millrace", "train", "--pipeline-sp"}), (Words{"--pipeline-splits"}));
  EXPECT_EQ(completions({"millrace", "train", "--model", "r"}), (Words{"resnet", "resnext"}));
  EXPECT_EQ(completions({"millrace", "train", "--model", "=", "s"}), (Words{"squeezenet"}));
  EXPECT_EQ(completions({"millrace", "train", "--help", "pi"}), (Words{"pipeline"}));
  // The script is a file.
  EXPECT_EQ(completions({"millrace", "inspect", "mill"}), (Words{"millrace"}));
  EXPECT_EQ(completions({"millrace", "train", "--model", "mill"}), (Words{"millrace"}));
}

TEST(CompletionTest, OffersEveryOptionOfEveryCommand) {
  const std::string script = bash_completion();
  for (const CommandSpec& command : command_table()) {
    const std::size_t begin = script.find(fmt::format("  [\"{}\"]=\"--help", command.name));
    ASSERT_NE(begin, std::string::npos) << command.name;
    const std::string words = script.substr(begin, script.find("\"\n", begin) - begin);
    for (const Field& spec : field_table())
      EXPECT_EQ(contains(words + " ", fmt::format(" --{} ", spec.name)), spec.taken_by(command.id))
          << command.name << spec.name;
  }
}

TEST(ReferenceTest, CommittedPageIsTheGeneratedOne) {
  std::ifstream in(fs::path(MILLRACE_SOURCE_DIR) / "configs" / "README.md");
  ASSERT_TRUE(in) << "configs/README.md is missing";
  std::ostringstream committed;
  committed << in.rdbuf();
  EXPECT_EQ(committed.str(), option_reference())
      << "write it again: millrace --write-option-reference configs/README.md";
}

TEST(ReferenceTest, NamesEveryOption) {
  const std::string text = option_reference();
  for (const Field& spec : field_table())
    EXPECT_TRUE(contains(text, "| `" + std::string(spec.name) + "` |")) << spec.name;
}

TEST(RecipeListTest, NamesAreFoundWithAndWithoutTheirEnding) {
  const fs::path found = run::find_config("nvidia-resnet50-90epochs");
  EXPECT_TRUE(fs::equivalent(
      found, fs::path(MILLRACE_SOURCE_DIR) / "configs" / "nvidia-resnet50-90epochs.toml"));
  EXPECT_EQ(run::find_config("nvidia-resnet50-90epochs.toml"), found);
  EXPECT_EQ(run::find_config("folder/missing.toml"), "folder/missing.toml");
}

TEST(RecipeListTest, ListShowsEveryRecipeAndWhatItTrains) {
  const Outcome outcome = run_words({"train", "--config", "list"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(lines_of(outcome.out).size(), run::recipe_files().size());
  EXPECT_TRUE(contains(outcome.out, "ResNet-20 on CIFAR-10, 30 epochs.\n")) << outcome.out;
}

TEST(RecipeListTest, UnknownNameListsThemAll) {
  const Failure failure = failure_of([] { (void)run::find_config("resnet101-nvidia"); });
  EXPECT_EQ(failure.kind, ErrorKind::Usage);
  EXPECT_TRUE(failure.text.starts_with("--config: there is no file and no recipe 'resnet101-nvid"))
      << failure.text;
  for (const fs::path& file : run::recipe_files())
    EXPECT_TRUE(contains(failure.text, file.stem().string())) << failure.text;
  EXPECT_TRUE(contains(failure_of([] { (void)run::find_config("resnext101-nvidia"); }).text,
                       "did you mean nvidia-resnext101-250epochs or nvidia-resnext101-90epochs?"));
}

}  // namespace
}  // namespace millrace::cli
