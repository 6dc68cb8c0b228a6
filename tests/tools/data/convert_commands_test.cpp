// SPDX-License-Identifier: Apache-2.0
//
// Raw images to shards and packed files, and what the tools then say of these.
#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "cli/commands.hpp"
#include "io/atomic_file.hpp"
#include "io/data/dataset_kinds.hpp"
#include "io/data/packed_images.hpp"
#include "tests/cli/support.hpp"
#include "tests/io/images/test_images.hpp"
#include "tests/io/records/shards.hpp"
#include "tests/support/leftover.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests

using io::files_below;
using io::store;

void store_image(const fs::path& path, std::int32_t width = 6, std::int32_t height = 5) {
  store(path, io::encode_jpeg(io::make_image(width, height)));
}

constexpr std::string_view kNoImage = "\xff\xd8\xff, and then nothing of a image";

/// Three images in each of the classes n1 and n2 below `folder`.
void write_classes(const fs::path& folder) {
  for (const char* const name : {"n1", "n2"})
    for (int i = 0; i < 3; ++i) store_image(folder / name / fmt::format("{}.JPEG", i), 6 + i, 5);
}

std::vector<std::int32_t> labels_of(const fs::path& root, io::Split split) {
  const auto source = io::open_image_dataset(root, split, {}, io::PackedFile::Counts);
  std::vector<std::int32_t> labels;
  for (std::int64_t i = 0; i < source->size(); ++i) labels.push_back(source->label(i));
  return labels;
}

Outcome convert(const fs::path& raw, const fs::path& out, std::vector<std::string> more = {}) {
  std::vector<std::string> line = {"data", "convert", out.string(), "--raw-dir", raw.string()};
  line.insert(line.end(), more.begin(), more.end());
  return run_words(line);
}

Outcome pack(const fs::path& data, const fs::path& out, std::vector<std::string> more = {}) {
  std::vector<std::string> line = {"data",     "convert",    out.string(),
                                   "--packed", "--data-dir", data.string()};
  line.insert(line.end(), more.begin(), more.end());
  return run_words(line);
}

/// Makes files of three images in each of two classes.
struct Maker {
  Outcome (*run)(const fs::path& from, const fs::path& out, std::vector<std::string> more);
  std::vector<std::string> options;
  fs::path folder;  ///< of the files, in `out`
  std::string file;

  [[nodiscard]] Outcome make(const fs::path& from, const fs::path& out,
                             const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = options;
    all.insert(all.end(), more.begin(), more.end());
    return run(from, out, all);
  }
};
const Maker kMakers[] = {
    {convert, {"--train-shards", "2", "--split", "train"}, "train", "train-00000-of-00002"},
    {pack, {"--shorter-side", "8", "--split", "train"}, "", "train.packed"}};

TEST(DataMakersTest, LeaveOutBadImagesUpToTheFraction) {
  const TemporaryDirectory root;
  write_classes(root / "train");
  store(root / "train" / "n1" / "1.JPEG", kNoImage);
  for (const Maker& maker : kMakers) {
    const fs::path out = root / ("out-" + maker.file);
    expect_said(maker.make(root.path(), out, {"--max-bad-fraction", "0"}), 3,
                {"1 of 6 images", "--max-bad-fraction", "n1/1.JPEG: "});
    const std::size_t finished = fs::exists(out) ? files_below(out).size() : 0;  // whole shards
    expect_said(maker.make(root.path(), out), 0,
                {"n1/1.JPEG: ", "training: 5 images, 1 bad one left out"});
    EXPECT_LT(finished, files_below(out).size());
    std::vector<std::int32_t> labels = labels_of(out, io::Split::Train);
    std::ranges::sort(labels);
    EXPECT_EQ(labels, (std::vector<std::int32_t>{0, 0, 1, 1, 1}));
  }
  // Those of shards that are kept still count.
  const fs::path out = root / ("out-" + kMakers[0].file);
  expect_said(kMakers[0].make(root.path(), out), 0,
              {"already converted: 5 images, 1 bad one left out"});
  EXPECT_EQ(kMakers[0].make(root.path(), out, {"--max-bad-fraction", "0"}).code, 3);
}

TEST(DataMakersTest, NeverWriteIntoOneFolderAndRemoveWhatKilledOnesLeft) {
  const TemporaryDirectory root;
  write_classes(root / "train");
  for (const Maker& maker : kMakers) {
    const fs::path out = root / ("out-" + maker.file);
    const fs::path folder = out / maker.folder;
    const fs::path dead = test::leave_temporary(folder / maker.file);
    const fs::path other = folder / (maker.file + ".tmp.notes");
    store(other, std::string_view("of the user"));
    {
      const io::RunLock first(folder);
      expect_said(maker.make(root.path(), out), 2,
                  {fmt::format("is in use by process {}", ::getpid())});
      EXPECT_TRUE(fs::exists(dead));
      EXPECT_FALSE(fs::exists(folder / maker.file));
    }
    EXPECT_EQ(maker.make(root.path(), out).code, 0);
    EXPECT_FALSE(fs::exists(dead));
    EXPECT_TRUE(fs::exists(other));
  }
}

TEST(ConvertCommandTest, ASplitThatIsDoneIsSkipped) {
  const TemporaryDirectory root;
  write_classes(root / "raw" / "train");
  const std::vector<std::string> shards = {"--train-shards", "2", "--validation-shards", "1"};
  expect_said(convert(root / "raw", root / "out", shards), 0, {"no validation images in"});
  const auto training = files_below(root / "out");
  EXPECT_EQ(training.size(), 2u);
  write_classes(root / "raw" / "val");
  expect_said(convert(root / "raw", root / "out", shards), 0,
              {"training: already converted: 6 images"});
  auto all = files_below(root / "out");
  EXPECT_EQ(all.erase("validation/validation-00000-of-00001"), 1u);
  EXPECT_EQ(all, training);
  store_image(root / "raw" / "train" / "n1" / "3.JPEG", 9, 5);
  expect_said(convert(root / "raw", root / "out", shards), 2, {"of 6 pictures", "of 7 pictures"});
}

TEST(ConvertCommandTest, BothSplitsAreLookedForBeforeWorkBegins) {
  const TemporaryDirectory root;
  write_classes(root / "raw" / "train");
  store_image(root / "raw" / "val" / "a.JPEG");
  expect_said(convert(root / "raw", root / "out"), 3, {"--validation-labels", "synset_labels.txt"});
  EXPECT_FALSE(fs::exists(root / "out"));
  fs::remove(root / "raw" / "val" / "a.JPEG");
  EXPECT_EQ(convert(root / "raw", root / "out", {"--split", "validation"}).code, 3);
}

TEST(ConvertCommandTest, ShardsThatWouldHideTheNewOnesAreRefused) {
  const TemporaryDirectory root;
  write_classes(root / "raw" / "train");
  write_classes(root / "raw" / "val");
  store(root / "out" / "validation-00000-of-00002", std::string_view("of somebody"));
  expect_said(convert(root / "raw", root / "out", {"--train-shards", "2"}), 2,
              {(root / "out" / "validation-00000-of-00002").string()});
  EXPECT_FALSE(fs::exists(root / "out" / "train"));
  EXPECT_EQ(convert(root / "raw", root / "out", {"--train-shards", "2", "--split", "train"}).code,
            0);
}

TEST(ConvertCommandTest, ClassFoldersMayLieDirectlyInTheRawFolder) {
  const TemporaryDirectory root;
  write_classes(root / "raw");
  write_classes(root / "raw" / "val");
  ASSERT_EQ(convert(root / "raw", root / "out", {"--split", "train"}).code, 0);
  EXPECT_EQ(labels_of(root / "out", io::Split::Train).size(), 6u);
  fs::create_directories(root / "raw" / "train");
  EXPECT_EQ(convert(root / "raw", root / "other", {"--split", "train"}).code, 3);
}

TEST(ConvertCommandTest, ThereAreNoMoreShardsThanImages) {
  const TemporaryDirectory root;
  write_classes(root / "raw" / "train");
  const Outcome outcome = convert(root / "raw", root / "out");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(files_below(root / "out").size(), 6u);
  EXPECT_TRUE(fs::exists(root / "out" / "train" / "train-00005-of-00006"));
  EXPECT_TRUE(contains(outcome.err, "6 training shards instead of 1024")) << outcome.err;
}

TEST(ConvertCommandTest, ListsOfLabelsMayHaveLineEndsOfWindows) {
  const TemporaryDirectory root;
  write_classes(root / "raw" / "train");
  for (const char* const name : {"a.JPEG", "b.JPEG"}) store_image(root / "raw" / "val" / name);
  store(root / "raw" / "synset_labels.txt", std::string_view("n2\r\nn1\r\n"));
  const Outcome outcome = convert(root / "raw", root / "out", {"--split", "validation"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(labels_of(root / "out", io::Split::Validation), (std::vector<std::int32_t>{1, 0}));
}

TEST(ConvertCommandTest, ValidationAloneHasNoNumbersOfClasses) {
  const TemporaryDirectory root;
  write_classes(root / "raw" / "val");
  fs::remove_all(root / "raw" / "val" / "n1");
  expect_said(convert(root / "raw", root / "out", {"--split", "validation"}), 3,
              {"an empty folder for each class"});
  for (const char* const name : {"n1", "n2"}) fs::create_directories(root / "raw" / "train" / name);
  ASSERT_EQ(convert(root / "raw", root / "out", {"--split", "validation"}).code, 0);
  EXPECT_EQ(labels_of(root / "out", io::Split::Validation), (std::vector<std::int32_t>{1, 1, 1}));
}

TEST(ConvertCommandTest, OptionsWithoutEffectAreRefused) {
  const TemporaryDirectory root;
  write_classes(root / "raw" / "train");
  for (const char* const option : {"--shorter-side", "--label-offset", "--data-classes"}) {
    expect_said(convert(root / "raw", root / "out", {option, "7"}), 2,
                {fmt::format("{} has no effect", option)});
  }
  for (const char* const option : {"--train-shards", "--validation-shards", "--seed"}) {
    expect_said(pack(root / "raw", root / "out", {option, "7"}), 2,
                {fmt::format("{} has no effect", option)});
  }
  EXPECT_FALSE(fs::exists(root / "out"));
}

TEST(PackedToolsTest, CheckStatsAndIndexReadPackedImages) {
  const TemporaryDirectory root;
  write_classes(root / "train");
  const fs::path out = root / "out";
  ASSERT_EQ(pack(root.path(), out, {"--shorter-side", "10"}).code, 0);
  const fs::path path = out / "train.packed";
  const Outcome index = run_words({"data", "index", out.string()});
  EXPECT_EQ(index.code, 0) << index.err;
  EXPECT_TRUE(contains(index.out, "training: 6 images of 2 classes, packed")) << index.out;
  for (const char* const tool : {"index", "check", "stats"}) {
    expect_said(run_words({"data", tool, out.string(), "--label-offset", "0"}), 2,
                {"--label-offset has no effect here: it needs TFRecord files"});
  }
  const Outcome stats = run_words({"data", "stats", out.string(), "--json"});
  ASSERT_EQ(stats.code, 0) << stats.err;
  const auto json = nlohmann::json::parse(stats.out).at("training");
  EXPECT_EQ(json.at("pictures"), 6);
  EXPECT_EQ(json.at("per_class"), (std::vector<int>{3, 3}));
  EXPECT_EQ(json.at("height").at("median"), 10);
  EXPECT_EQ(json.at("width").at("largest"), 16);
  expect_said(run_words({"data", "check", out.string()}), 0, {"training: 1 file, 6 images, "});
  for (const std::uint64_t at : {70u, 64u + 10 * 12 * 3 + 24 + 5}) io::flip_byte(path, at);
  expect_said(run_words({"data", "check", out.string()}), 3,
              {"image 0 at offset 64: data checksum mismatch",
               "image 1 at offset 448: data checksum mismatch", ": 2 bad"});
  fs::resize_file(path, 1000);
  expect_said(run_words({"data", "check", out.string()}), 3, {"the file is truncated"});
  fs::remove(path);
  expect_said(run_words({"data", "check", out.string()}), 3, {"train.packed"});
}

}  // namespace
}  // namespace millrace::cli
