// SPDX-License-Identifier: Apache-2.0
//
// The tools for data, from words to exit codes.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/commands.hpp"
#include "tests/cli/support.hpp"
#include "tests/io/images/test_images.hpp"
#include "tests/io/records/shards.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests

/// A shard of six images, labels 1, 2, 3, 1, 2, 3.
fs::path write_shard(const fs::path& folder) {
  const io::Bytes image = io::encode_jpeg(io::make_image(1, 1));
  io::Shard shard;
  for (int i = 0; i < 6; ++i)
    shard.append(io::example_bytes({.encoded = io::text_of(image), .label = 1 + i % 3}));
  shard.write(folder / "train-00000-of-00001");
  return folder / "train-00000-of-00001";
}

TEST(DataCommandsTest, IndexIsMadeAndFoundAgain) {
  const TemporaryDirectory root;
  write_shard(root.path());
  const Outcome first = run_words({"data", "index", root.path().string()});
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_TRUE(first.out.starts_with("training: 6 images of 1,000 classes, imagenet records, "))
      << first.out;
  EXPECT_TRUE(fs::exists(root.path() / "millrace-train.index"));
  EXPECT_EQ(run_words({"data", "index", root.path().string()}).code, 0);
}

TEST(DataCommandsTest, CheckNamesFileRecordAndOffsetAndEndsWithThree) {
  const TemporaryDirectory root;
  const fs::path path = write_shard(root.path());
  expect_said(run_words({"data", "check", root.path().string()}), 0,
              {"training: 1 file, 6 images, ", ": 0 bad\n"});
  const std::uintmax_t record_bytes = fs::file_size(path) / 6;
  io::flip_byte(path, 4 * record_bytes + 50);
  expect_said(run_words({"data", "check", root.path().string()}), 3,
              {fmt::format("{}, record 4 at offset {}: data checksum mismatch\n", path.string(),
                           4 * record_bytes)});
  EXPECT_EQ(run_words({"data", "check", root.path().string(), "--data-classes", "2"}).code, 3);
  EXPECT_EQ(run_words({"data", "check", root.path().string(), "--split", "validation"}).code, 3);
}

TEST(DataCommandsTest, StatsCountClassesAndBytes) {
  const TemporaryDirectory root;
  const fs::path path = write_shard(root.path());
  const Outcome outcome =
      run_words({"data", "stats", root.path().string(), "--json", "--data-classes", "4"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json.at("training").at("pictures"), 6);
  EXPECT_EQ(json.at("training").at("bytes"), fs::file_size(path));
  EXPECT_EQ(json.at("training").at("per_class"), (std::vector<int>{2, 2, 2, 0}));
  const Outcome text = run_words({"data", "stats", root.path().string()});
  EXPECT_TRUE(contains(text.out, "3 of 1000 have images")) << text.out;
  EXPECT_TRUE(contains(text.out, "\n    class 0             2\n")) << "without a name" << text.out;
}

TEST(DataCommandsTest, NamesThatAreNoUtf8AndNoTextAreEscaped) {
  const TemporaryDirectory root;
  const fs::path folder = root / "train/n1";
  io::store(folder / "a.JPEG", io::encode_jpeg(io::make_image(2, 2)));
  io::store(folder / "t\xfe\n.JPEG", std::string_view("\xff\xd8\xff no image"));
  io::store(folder / "README.txt", std::string_view("text"));
  const Outcome stats = run_words({"data", "stats", root.path().string(), "--json"});
  ASSERT_EQ(stats.code, 0) << stats.err;
  const auto json = nlohmann::json::parse(stats.out);
  ASSERT_EQ(json.at("training").at("bad").size(), 1u);
  EXPECT_TRUE(contains(json.at("training").at("bad")[0].get<std::string>(), "n1/t\\xfe\\n.JPEG: "))
      << stats.out;
  EXPECT_EQ(json.at("training").at("class_names"), std::vector<std::string>{"n1"});
  const Outcome text = run_words({"data", "stats", root.path().string()});
  expect_in(text.out, {"headers                1 bad of 2 read; `millrace data check` ",
                       "class 0             2  n1\n"});
  expect_said(run_words({"data", "check", root.path().string()}), 3,
              {"n1/t\\xfe\\n.JPEG: ", "note: ", "2 images"});
}

TEST(DataCommandsTest, MistakesAreExplained) {
  const TemporaryDirectory root;
  expect_said(run_words({"data", "index", root.path().string()}), 3, {"no training images in"});
  expect_said(run_words({"data", "convert", root.path().string()}), 2, {"needs --raw-dir DIR"});
  expect_said(run_words({"data", "convert", root.path().string(), "--packed"}), 2,
              {"which is not given"});
  expect_said(run_words({"data", "convert", (root.path() / "out").string(), "--raw-dir",
                         root.path().string()}),
              3, {"class archives (.tar)"});
}

TEST(DataCommandsTest, GeneratesData) {
  const TemporaryDirectory root;
  const fs::path directory = root.path() / "cifar-10-batches-bin";
  const Outcome outcome = run_words(
      {"data", "generate", directory.string(), "--train-images", "20", "--test-images=10"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(fs::file_size(directory / "data_batch_1.bin"), 20u * 3073u);
  EXPECT_EQ(fs::file_size(directory / "test_batch.bin"), 10u * 3073u);
}

TEST(DataCommandsTest, TheFirstWordOfACommandListsAllThatBeginWithIt) {
  const std::string list = run_words({"data", "--help"}).out;
  EXPECT_TRUE(list.starts_with("usage: millrace data <command> [options]\n")) << list;
  for (const CommandSpec& command : command_table())
    EXPECT_EQ(contains(list, fmt::format("\n  {} ", command.name)),
              command.name.starts_with("data "))
        << command.name;
  for (const std::vector<std::string>& asked :
       {std::vector<std::string>{"help", "data"}, {"data", "-h"}, {"data", "help"}}) {
    const Outcome outcome = run_words(asked);
    EXPECT_EQ(outcome.code, 0);
    EXPECT_EQ(outcome.out, list);
  }
  const Outcome alone = run_words({"data"});
  EXPECT_EQ(alone.code, 2);
  EXPECT_EQ(alone.err, list);
}

TEST(DataCommandsTest, BothWordsAreCompletedExplainedAndCorrected) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(completions({"millrace", "data", "c"}), (Words{"check", "convert"}));
  EXPECT_EQ(completions({"millrace", "data", "stats", "--sp"}), (Words{"--split"}));
  const std::map<std::string, std::string> pages = manual_pages();
  EXPECT_TRUE(contains(pages.at("millrace-data-convert.1"), "\\fB\\-\\-raw\\-dir\\fR"));
  EXPECT_TRUE(contains(pages.at("millrace.1"), ".BR millrace\\-data\\-convert (1)"));
  expect_said(run_words({"data", "generat", "x"}), 2,
              {"unknown command 'data generat'; did you mean 'data generate'?"});
  expect_said(run_words({"data", "generate", "x", "--train-images", "0"}), 2,
              {"--train-images: '0' is not a whole number from 1 to 500000"});
}

}  // namespace
}  // namespace millrace::cli
