// SPDX-License-Identifier: Apache-2.0
#include "tools/weights/commands.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "models/registry.hpp"
#include "tests/cli/support.hpp"
#include "tests/io/fixtures.hpp"
#include "tests/support/expect_error.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests

constexpr const char* kFile = "net.safetensors";

ExportNotes notes(const std::string& config,
                  const std::string& network = R"({"classes":10,"image":[32,32,3]})") {
  return {{"millrace.config", config}, {"millrace.network", network}};
}

/// What a resnet-20 for CIFAR notes, with other options behind.
std::string resnet20(const std::string& more = "") {
  return "[model]\nmodel = \"resnet\"\nmodel-size = \"20\"\n" + more +
         "[data]\ndataset = \"cifar-10\"\n";
}

TEST(ExportNotesTest, MakeTheNetworkThatWasExported) {
  const std::optional<NotedExport> noted = read_notes(notes(resnet20()), kFile);
  ASSERT_TRUE(noted);
  EXPECT_EQ(network_of(*noted, kFile).size, "20");
  EXPECT_FALSE(read_notes({{"format", "pt"}}, kFile)) << "a file of another program";
}

// Nobody typed them: the file is damaged, whatever is wrong.
TEST(ExportNotesTest, DamagedOnesAreAnErrorOfTheFile) {
  for (const auto& [damaged, what] : {
           std::pair(notes("garbage"), "(millrace.config:1: "),
           {notes(resnet20("momentum = ")), "(millrace.config:4: "},
           {notes(resnet20("[train2]\n")), "(millrace.config:4: unknown section"},
           {notes(resnet20("block = \"round\"\n")), "(millrace.config:4: "},
           {notes(resnet20(), "{"), "(the facts about the network"},
           {notes(""), "(no data set"},
           {notes("[model]\nmodel-size = \"21\"\n[data]\ndataset = \"cifar-10\"\n"),
            "(model resnet has no size 21"},
       })
    expect_error(
        ErrorKind::Data,
        {"net.safetensors: what millrace noted in it is damaged, ", what, "): export it again, or"},
        [&, &d = damaged] { (void)network_of(read_notes(d, kFile).value(), kFile); });
}

TEST(ImportTest, WrongWordsAreNamed) {
  for (const auto& [line, expected] : {
           std::pair("import a",
                     "millrace import needs FILE RUN_DIR; millrace import --help shows the usage"),
           {"import a b --like nobody",
            "--like: 'nobody' is not one of torchvision, timm, akamaster, keras"},
       }) {
    const Outcome outcome = run_words(words(line));
    EXPECT_EQ(outcome.code, 2) << line;
    EXPECT_EQ(outcome.err, fmt::format("millrace: error: {}\n", expected));
  }
}

TEST(ImportTest, TheImageSizeInAFileIsThatOfTheImportedRun) {
  io::Identified found{.style = io::WeightStyle::Keras,
                       .model = models::default_options("resnet", models::Task::ImageNet)};
  const auto size = [&] {
    Patch options = train_options("--dataset imagenet");
    add_implied(options, options_shown(found), "net.h5");
    return options.integer("image-size");
  };
  EXPECT_EQ(size(), std::nullopt);
  found.input.image_side = 160;
  EXPECT_EQ(size(), 160);
}

TEST(ImportTest, ImportsAndInspectsATrainedNetwork) {
  const auto file = io::real_data("models/resnet_cifar10/resnet20-12fca82f.safetensors");
  if (!file) GTEST_SKIP() << "the trained CIFAR-10 networks are not at hand";
  const TemporaryDirectory root;
  const std::string run_directory = (root.path() / "run").string();
  const std::vector<std::string> import = {
      "import",         file->string(), run_directory, "--dataset", "cifar-10",
      "--shortcut-pad", "both",         "--normalise", "imagenet",  "--precision",
      "32.32",          "--optimiser",  "momentum"};
  expect_said(run_words(import), 0, {"Total Parameters: 269722\n"});
  EXPECT_TRUE(fs::exists(fs::path(run_directory) / "config.toml"));

  const Outcome inspected = run_words({"inspect", run_directory, "--json", "--digest", "--verify"});
  ASSERT_EQ(inspected.code, 0) << inspected.err;
  const auto json = nlohmann::json::parse(inspected.out);
  EXPECT_EQ(json.at("iteration"), 0);
  EXPECT_EQ(json.at("verified"), true);
  const std::string digest = json.at("digest");
  EXPECT_EQ(digest.size(), 64u);
  EXPECT_EQ(run_words({"inspect", run_directory, "--digest"}).out, digest + "\n");
  EXPECT_EQ(run_words({"inspect", run_directory, "--verify"}).code, 0);

  // An existing directory is never written into.
  expect_said(run_words(import), 2, {run_directory, "or choose another RUN_DIR\n"});
}

// A folder of checkpoints needs no import.
TEST(ImportTest, TakesAFileThatIsThere) {
  const TemporaryDirectory root;
  const auto refused = [&](const fs::path& file, int code, const std::string& said) {
    const fs::path made = root.path() / "other";
    const Outcome outcome =
        run_words({"import", file.string(), made.string(), "--dataset", "cifar-10"});
    expect_said(outcome, code, {file.string() + said});
    EXPECT_FALSE(fs::exists(made));
  };
  refused(root.path() / "none", 5, ": No such file or directory");
  fs::create_directories(root.path() / "run");
  std::ofstream(root.path() / "run/manifest.json") << "{}";  // of a checkpoint
  refused(root.path() / "run", 2,
          ": is a directory, not a file of weights: it holds checkpoints, "
          "which need no import: give it to validate, predict or --init-path as it is\n");
}

}  // namespace
}  // namespace millrace::cli
