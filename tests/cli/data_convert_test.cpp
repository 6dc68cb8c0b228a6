// SPDX-License-Identifier: Apache-2.0
//
// Raw images to shards and packed files, and what the tools then say of these.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "io/data/imagenet.hpp"
#include "io/data/packed_images.hpp"
#include "io/run_lock.hpp"
#include "support.hpp"
#include "tests/io/images/test_images.hpp"
#include "tests/support/file_bytes.hpp"
#include "tests/support/leftover.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests
namespace fs = std::filesystem;

using Files = std::map<std::string, std::vector<std::byte>>;

void store(const fs::path& path, std::span<const std::byte> bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(file.good()) << path;
}

void store(const fs::path& path, std::string_view text) {
  store(path, std::as_bytes(std::span(text)));
}

void store_image(const fs::path& path, std::int32_t width = 6, std::int32_t height = 5) {
  store(path, io::encode_jpeg(io::make_image(width, height)));
}

constexpr std::string_view kNoImage = "\xff\xd8\xff, and then nothing of a image";

/// Three images in each of the classes n1 and n2 below `folder`.
void write_classes(const fs::path& folder) {
  for (const char* const name : {"n1", "n2"})
    for (int i = 0; i < 3; ++i) store_image(folder / name / fmt::format("{}.JPEG", i), 6 + i, 5);
}

bool is_helper(const std::string& name) {
  return name.starts_with('.') || name.ends_with(".index") || name.ends_with(".folders");
}

/// Every file with images.
Files files_below(const fs::path& root) {
  Files files;
  for (const auto& entry : fs::recursive_directory_iterator(root))
    if (entry.is_regular_file() && !is_helper(entry.path().filename().string()))
      files[fs::relative(entry.path(), root).string()] = test::file_bytes(entry.path());
  return files;
}

std::vector<std::int32_t> labels_of(const fs::path& root, io::Split split) {
  const auto source = io::open_image_dataset(root, split, {});
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

TEST(PackTest, AImageThatIsTooThinIsBadAndNamed) {
  const TemporaryDirectory root;
  write_classes(root / "train");
  store_image(root / "train" / "n1" / "thin.JPEG", 1, 100);
  const Outcome refused = pack(root.path(), root / "out", {"--max-bad-fraction", "0"});
  EXPECT_EQ(refused.code, 3);
  EXPECT_TRUE(contains(refused.err, "n1/thin.JPEG: ")) << refused.err;
  EXPECT_TRUE(contains(refused.err, "25600 x 256")) << refused.err;
  EXPECT_FALSE(fs::exists(root / "out" / "train.packed"));
}

TEST(PackTest, BadImagesAreLeftOutNamedAndCounted) {
  const TemporaryDirectory root;
  write_classes(root / "train");
  store(root / "train" / "n1" / "1.JPEG", kNoImage);
  const Outcome refused = pack(root.path(), root / "none", {"--max-bad-fraction", "0"});
  EXPECT_EQ(refused.code, 3);
  EXPECT_TRUE(contains(refused.err, "1 of 6 images")) << refused.err;
  EXPECT_TRUE(contains(refused.err, "--max-bad-fraction")) << refused.err;
  EXPECT_TRUE(contains(refused.err, "n1/1.JPEG: ")) << refused.err;
  const Outcome taken = pack(root.path(), root / "out", {"--threads", "1", "--shorter-side", "8"});
  ASSERT_EQ(taken.code, 0) << taken.err;
  EXPECT_TRUE(contains(taken.err, "n1/1.JPEG: ")) << taken.err;
  EXPECT_TRUE(contains(taken.out, "training: 5 images, 1 bad one left out, ")) << taken.out;
  const io::PackedImages packed(root / "out" / "train.packed");
  EXPECT_EQ(packed.size(), 5);
  EXPECT_EQ(packed.shorter_side(), 8);
}

TEST(PackTest, WhatAKilledPackingLeftIsRemoved) {
  const TemporaryDirectory root;
  write_classes(root / "train");
  const fs::path dead = test::leave_temporary(root / "out" / "train.packed");
  const io::StagedFile writer(root / "out" / "validation.packed");
  const fs::path living = test::temporary_of(root / "out" / "validation.packed");
  const fs::path other = root / "out" / "train.packed.tmp.notes";
  store(other, "of the user");
  write_classes(root / "val");
  ASSERT_EQ(pack(root.path(), root / "out", {"--shorter-side", "8"}).code, 0);
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(living));
  EXPECT_TRUE(fs::exists(other));
}

TEST(PackTest, TwoNeverWriteIntoOneFolder) {
  const TemporaryDirectory root;
  write_classes(root / "train");
  fs::create_directories(root / "out");
  {
    const io::RunLock first(root / "out");
    const Outcome second = pack(root.path(), root / "out", {"--shorter-side", "8"});
    EXPECT_EQ(second.code, 2);
    EXPECT_TRUE(contains(second.err, fmt::format("folder {} is in use by process {}",
                                                 (root / "out").string(), ::getpid())))
        << second.err;
    EXPECT_FALSE(fs::exists(root / "out" / "train.packed"));
  }
  EXPECT_EQ(pack(root.path(), root / "out", {"--shorter-side", "8"}).code, 0);
}

TEST(ConvertCommandTest, ASplitThatIsDoneIsSkipped) {
  const TemporaryDirectory root;
  write_classes(root / "raw" / "train");
  const std::vector<std::string> shards = {"--train-shards", "2", "--validation-shards", "1"};
  const Outcome first = convert(root / "raw", root / "out", shards);
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_TRUE(contains(first.err, "no validation images in")) << first.err;
  const Files training = files_below(root / "out");
  EXPECT_EQ(training.size(), 2u);
  write_classes(root / "raw" / "val");
  const Outcome second = convert(root / "raw", root / "out", shards);
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_TRUE(contains(second.out, "training: already converted: 6 images")) << second.out;
  Files all = files_below(root / "out");
  EXPECT_EQ(all.erase("validation/validation-00000-of-00001"), 1u);
  EXPECT_EQ(all, training);
  store_image(root / "raw" / "train" / "n1" / "3.JPEG", 9, 5);
  const Outcome other = convert(root / "raw", root / "out", shards);
  EXPECT_EQ(other.code, 2);
  EXPECT_TRUE(contains(other.err, "of 6 pictures")) << other.err;
  EXPECT_TRUE(contains(other.err, "of 7 pictures")) << other.err;
}

TEST(ConvertCommandTest, BothSplitsAreLookedForBeforeWorkBegins) {
  const TemporaryDirectory root;
  write_classes(root / "raw" / "train");
  store_image(root / "raw" / "val" / "a.JPEG");
  const Outcome outcome = convert(root / "raw", root / "out");
  EXPECT_EQ(outcome.code, 3);
  EXPECT_TRUE(contains(outcome.err, "--validation-labels")) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "synset_labels.txt")) << outcome.err;
  EXPECT_FALSE(fs::exists(root / "out"));
  fs::remove(root / "raw" / "val" / "a.JPEG");
  EXPECT_EQ(convert(root / "raw", root / "out", {"--split", "validation"}).code, 3);
}

TEST(ConvertCommandTest, BadImagesObeyTheFraction) {
  const TemporaryDirectory root;
  write_classes(root / "raw" / "train");
  store(root / "raw" / "train" / "n2" / "0.JPEG", kNoImage);
  const std::vector<std::string> strict = {"--train-shards", "2", "--max-bad-fraction", "0"};
  const Outcome refused = convert(root / "raw", root / "out", strict);
  EXPECT_EQ(refused.code, 3);
  EXPECT_TRUE(contains(refused.err, "1 of 6 images")) << refused.err;
  EXPECT_TRUE(contains(refused.err, "n2/0.JPEG: ")) << refused.err;
  const std::vector<std::string> lenient = {"--train-shards", "2"};
  const Outcome taken = convert(root / "raw", root / "out", lenient);
  ASSERT_EQ(taken.code, 0) << taken.err;
  EXPECT_TRUE(contains(taken.out, "training: 5 images, 1 bad one left out, of 2 classes"))
      << taken.out;
  std::vector<std::int32_t> labels = labels_of(root / "out", io::Split::Train);
  std::ranges::sort(labels);
  EXPECT_EQ(labels, (std::vector<std::int32_t>{0, 0, 0, 1, 1}));
  ASSERT_EQ(convert(root / "raw", root / "straight", lenient).code, 0);
  EXPECT_EQ(files_below(root / "out" / "train"), files_below(root / "straight" / "train"));
  const Outcome again = convert(root / "raw", root / "out", lenient);
  EXPECT_TRUE(contains(again.out, "already converted: 5 images, 1 bad one left out")) << again.out;
  EXPECT_EQ(convert(root / "raw", root / "out", strict).code, 3);
}

TEST(ConvertCommandTest, TwoNeverWriteIntoOneFolder) {
  const TemporaryDirectory root;
  write_classes(root / "raw" / "train");
  const fs::path foreign = test::leave_temporary(root / "out" / "train" / "train-00000-of-00002");
  {
    const io::RunLock first(root / "out" / "train");
    const Outcome second = convert(root / "raw", root / "out", {"--train-shards", "2"});
    EXPECT_EQ(second.code, 2);
    EXPECT_TRUE(contains(second.err, fmt::format("in use by process {}", ::getpid())))
        << second.err;
    EXPECT_TRUE(fs::exists(foreign));
  }
  EXPECT_EQ(convert(root / "raw", root / "out", {"--train-shards", "2"}).code, 0);
  EXPECT_FALSE(fs::exists(foreign));
}

TEST(ConvertCommandTest, ShardsThatWouldHideTheNewOnesAreRefused) {
  const TemporaryDirectory root;
  write_classes(root / "raw" / "train");
  write_classes(root / "raw" / "val");
  store(root / "out" / "validation-00000-of-00002", "of somebody");
  const Outcome outcome = convert(root / "raw", root / "out", {"--train-shards", "2"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_TRUE(contains(outcome.err, (root / "out" / "validation-00000-of-00002").string()))
      << outcome.err;
  EXPECT_FALSE(fs::exists(root / "out" / "train"));
  EXPECT_EQ(convert(root / "raw", root / "out", {"--train-shards", "2", "--split", "train"}).code,
            0);
}

TEST(ConvertCommandTest, ClassFoldersMayLieDirectlyInTheRawFolder) {
  const TemporaryDirectory root;
  write_classes(root / "raw");
  write_classes(root / "raw" / "val");
  store_image(root / "raw" / "val" / "flat.JPEG");
  fs::remove(root / "raw" / "val" / "flat.JPEG");
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
  // Of 2 images a shard, the fourth would be empty.
  ASSERT_EQ(convert(root / "raw", root / "four", {"--train-shards", "4"}).code, 0);
  EXPECT_EQ(files_below(root / "four").size(), 3u);
}

TEST(ConvertCommandTest, ImagesAreToldByContent) {
  const TemporaryDirectory root;
  write_classes(root / "raw" / "train");
  store_image(root / "raw" / "train" / "n1" / "without-an-ending", 7, 7);
  store(root / "raw" / "train" / "n1" / "LICENSE", "no image");
  const Outcome good = convert(root / "raw", root / "good");
  ASSERT_EQ(good.code, 0) << good.err;
  EXPECT_EQ(labels_of(root / "good", io::Split::Train).size(), 7u);
  EXPECT_TRUE(contains(good.err, "n1/LICENSE")) << good.err;
  store(root / "raw" / "train" / "n1" / "text.JPEG", "no image either");
  const Outcome bad = convert(root / "raw", root / "bad", {"--max-bad-fraction", "0"});
  EXPECT_EQ(bad.code, 3);
  EXPECT_TRUE(contains(bad.err, "n1/text.JPEG: neither a JPEG nor a PNG")) << bad.err;
}

TEST(ConvertCommandTest, ListsOfLabelsMayHaveLineEndsOfWindows) {
  const TemporaryDirectory root;
  write_classes(root / "raw" / "train");
  for (const char* const name : {"a.JPEG", "b.JPEG"}) store_image(root / "raw" / "val" / name);
  store(root / "raw" / "synset_labels.txt", "n2\r\nn1\r\n");
  const Outcome outcome = convert(root / "raw", root / "out", {"--split", "validation"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(labels_of(root / "out", io::Split::Validation), (std::vector<std::int32_t>{1, 0}));
}

TEST(ConvertCommandTest, ValidationAloneHasNoNumbersOfClasses) {
  const TemporaryDirectory root;
  write_classes(root / "raw" / "val");
  fs::remove_all(root / "raw" / "val" / "n1");
  const Outcome refused = convert(root / "raw", root / "out", {"--split", "validation"});
  EXPECT_EQ(refused.code, 3);
  EXPECT_TRUE(contains(refused.err, "an empty folder for each class")) << refused.err;
  for (const char* const name : {"n1", "n2"}) fs::create_directories(root / "raw" / "train" / name);
  ASSERT_EQ(convert(root / "raw", root / "out", {"--split", "validation"}).code, 0);
  EXPECT_EQ(labels_of(root / "out", io::Split::Validation), (std::vector<std::int32_t>{1, 1, 1}));
}

TEST(ConvertCommandTest, OptionsWithoutEffectAreRefused) {
  const TemporaryDirectory root;
  write_classes(root / "raw" / "train");
  for (const char* const option : {"--shorter-side", "--label-offset", "--data-classes"}) {
    const Outcome outcome = convert(root / "raw", root / "out", {option, "7"});
    EXPECT_EQ(outcome.code, 2) << option;
    EXPECT_TRUE(contains(outcome.err, fmt::format("{} has no effect", option))) << outcome.err;
  }
  for (const char* const option : {"--train-shards", "--validation-shards", "--seed"}) {
    const Outcome outcome = pack(root / "raw", root / "out", {option, "7"});
    EXPECT_EQ(outcome.code, 2) << option;
    EXPECT_TRUE(contains(outcome.err, fmt::format("{} has no effect", option))) << outcome.err;
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
    const Outcome idle = run_words({"data", tool, out.string(), "--label-offset", "0"});
    EXPECT_EQ(idle.code, 2) << tool;
    EXPECT_TRUE(contains(idle.err, "--label-offset has no effect here: it needs TFRecord files"))
        << idle.err;
  }
  const Outcome stats = run_words({"data", "stats", out.string(), "--json"});
  ASSERT_EQ(stats.code, 0) << stats.err;
  const auto json = nlohmann::json::parse(stats.out).at("training");
  EXPECT_EQ(json.at("pictures"), 6);
  EXPECT_EQ(json.at("per_class"), (std::vector<int>{3, 3}));
  EXPECT_EQ(json.at("height").at("median"), 10);
  EXPECT_EQ(json.at("width").at("largest"), 16);
  const Outcome whole = run_words({"data", "check", out.string()});
  EXPECT_EQ(whole.code, 0) << whole.err;
  EXPECT_TRUE(contains(whole.out, "training: 1 file, 6 images, ")) << whole.out;
  for (const std::streamoff at : {70, 64 + 10 * 12 * 3 + 24 + 5}) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(at);
    file.put('\x7f');
  }
  const Outcome damaged = run_words({"data", "check", out.string()});
  EXPECT_EQ(damaged.code, 3);
  EXPECT_TRUE(contains(damaged.out, "image 0 at offset 64: data checksum mismatch")) << damaged.out;
  EXPECT_TRUE(contains(damaged.out, "image 1 at offset 448: data checksum mismatch"))
      << damaged.out;
  EXPECT_TRUE(contains(damaged.out, ": 2 bad")) << damaged.out;
  fs::resize_file(path, 1000);
  const Outcome cut = run_words({"data", "check", out.string()});
  EXPECT_EQ(cut.code, 3);
  EXPECT_TRUE(contains(cut.out, "the file is truncated")) << cut.out;
  fs::remove(path);
  const Outcome nothing = run_words({"data", "check", out.string()});
  EXPECT_EQ(nothing.code, 3);
  EXPECT_TRUE(contains(nothing.err, "train.packed")) << nothing.err;
}

}  // namespace
}  // namespace millrace::cli
