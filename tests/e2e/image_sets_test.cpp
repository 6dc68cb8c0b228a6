// SPDX-License-Identifier: Apache-2.0
//
// Training on images of any size from class folders, TFRecord files and packed files made from the
// same images. The weights do not depend on the source or on where a run was stopped.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "millrace.hpp"
#include "tests/io/fixtures.hpp"
#include "tests/io/images/test_images.hpp"

namespace millrace::test {
namespace {

void write_file(const std::filesystem::path& path, const io::Bytes& bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

/// 24 images of three classes for training and 9 for validation, including a PNG and a CMYK file.
void write_folders(const std::filesystem::path& folder) {
  int number = 0;
  for (const char* split : {"train", "validation"})
    for (const char* name : {"n01", "n02", "n03"})
      for (int i = 0; i < (split == std::string("train") ? 8 : 3); ++i, ++number) {
        const io::Image image = io::make_image(40 + 3 * number, 90 - number);
        const io::Bytes bytes = number == 3 ? io::encode_png(image)
                                : number == 5
                                    ? io::encode_jpeg(image, {.colours = io::JpegColours::Cmyk})
                                    : io::encode_jpeg(image, {.horizontal = 1 + number % 2});
        write_file(folder / split / name / (std::to_string(number) + ".JPEG"), bytes);
      }
}

/// Created once: class folders, and the TFRecord files and packed images made from them.
class PicturesTest : public testing::Test {
 protected:
  static const TemporaryDirectory& place() {
    static const TemporaryDirectory directory;
    return directory;
  }
  static void SetUpTestSuite() {
    write_folders(place() / "folders");
    const ProcessResult records = millrace({"data", "convert", (place() / "records").string(),
                                            "--raw-dir", (place() / "folders").string(),
                                            "--train-shards", "3", "--validation-shards", "2"});
    ASSERT_EQ(records.code, 0) << records.output;
    EXPECT_NE(records.output.find("2 re-encoded as RGB JPEG"), std::string::npos) << records.output;
    const ProcessResult packed =
        millrace({"data", "convert", (place() / "packed").string(), "--packed", "--data-dir",
                  (place() / "folders").string(), "--shorter-side", "48"});
    ASSERT_EQ(packed.code, 0) << packed.output;
  }
  /// Four images per update, six updates per epoch.
  static ProcessResult train_on(const char* data, const std::filesystem::path& run,
                                const Words& more = {}) {
    return millrace(Words{"train",
                          "--dataset",
                          "imagenet",
                          "--data-dir",
                          (place() / data).string(),
                          "--model-size",
                          "10",
                          "--image-size",
                          "32",
                          "--batch-size",
                          "2",
                          "--gradients-to-accumulate",
                          "2",
                          "--iterations",
                          "9",
                          "--warmup-epochs",
                          "0",
                          "--seed",
                          "3",
                          "--threads-per-device",
                          "1",
                          "--run-dir",
                          run.string()} +
                    more);
  }
};

TEST_F(PicturesTest, AllFormsTrainAndValidate) {
  const TemporaryDirectory directory;
  for (const char* data : {"folders", "records", "packed"}) {
    const ProcessResult result = train_on(data, directory / data);
    EXPECT_EQ(result.code, 0) << data << "\n" << result.output;
    EXPECT_NE(result.output.find("Validation top-1 accuracy"), std::string::npos) << data;
    std::smatch peak;
    const std::regex pattern(R"(Process peak: ([0-9.]+) MB \(([0-9.]+) MB predicted\))");
    ASSERT_TRUE(std::regex_search(result.output, peak, pattern)) << result.output;
    EXPECT_LE(std::stod(peak[1]), std::stod(peak[2]) * 1.001) << data;
    EXPECT_NE(result.output.find(" to read images"), std::string::npos) << result.output;
  }
}

TEST_F(PicturesTest, ThreadsOfTheLoaderChangeNothing) {
  const TemporaryDirectory directory;
  ASSERT_EQ(train_on("records", directory / "one", {"--no-validation"}).code, 0);
  ASSERT_EQ(
      train_on("records", directory / "four", {"--no-validation", "--pipeline-num-parallel", "4"})
          .code,
      0);
  EXPECT_EQ(digest_of(directory / "four"), digest_of(directory / "one"));
}

TEST_F(PicturesTest, NeitherDoesTheWayToTheDevice) {
  const TemporaryDirectory directory;
  const Words ways[] = {{},
                        {"--no-hostside-norm"},
                        {"--data-loader-image-type", "float32"},
                        {"--dataset-cache", "all"},
                        {"--dataset-cache", "2kB", "--max-cpus", "1"}};
  std::vector<std::string> digests;
  for (const Words& way : ways) {
    const std::filesystem::path run = directory / std::to_string(digests.size());
    const ProcessResult result = train_on("records", run, Words{"--no-validation"} + way);
    ASSERT_EQ(result.code, 0) << result.output;
    digests.push_back(digest_of(run));
    EXPECT_EQ(digests.back(), digests.front()) << result.output;
  }
  const std::filesystem::path half = directory / "half";
  ASSERT_EQ(
      train_on("records", half, {"--no-validation", "--data-loader-image-type", "float16"}).code,
      0);
  EXPECT_NE(digest_of(half), digests.front()) << "numbers up to 151 lose bits";
}

TEST_F(PicturesTest, TheBenchmarkOfTheLoadersSaysWhatLimits) {
  const TemporaryDirectory directory;
  const ProcessResult result = train_on("records", directory / "run", {"--dataset-benchmark"});
  ASSERT_EQ(result.code, 0) << result.output;
  for (const char* line : {"loaders alone ", "devices alone ", "limit         the "})
    EXPECT_NE(result.output.find(line), std::string::npos) << line << "\n" << result.output;
  EXPECT_FALSE(std::filesystem::exists(directory / "run"));
  const ProcessResult nothing = millrace({"train", "--dataset", "imagenet", "--model-size", "18",
                                          "--synthetic-data", "--dataset-benchmark"});
  EXPECT_EQ(nothing.code, 2) << nothing.output;
  EXPECT_NE(nothing.output.find("--synthetic-data reads none"), std::string::npos)
      << nothing.output;
}

TEST_F(PicturesTest, TwoStagesAndReplicasSeeTheSame) {
  const TemporaryDirectory directory;
  const Words layout = {
      "--no-validation", "--shards", "2", "--replicas", "2", "--pipeline-splits", "b3/0",
      "--iterations",    "4"};
  ASSERT_EQ(train_on("records", directory / "one", layout + Words{"--ranks", "1"}).code, 0);
  const ProcessResult four =
      train_on("records", directory / "four",
               layout + Words{"--pipeline-num-parallel", "4", "--max-cpus", "4"});
  ASSERT_EQ(four.code, 0) << four.output;
  EXPECT_EQ(digest_of(directory / "four"), digest_of(directory / "one"));
}

// Photographs, some of them with thousands of pixels per side.
TEST(RealPicturesTest, AResNet26TrainsAlikeAloneAndAsTwoStagesOfTwoReplicas) {
  const std::pair<const char*, Words> sets[] = {
      {"tfrecord_imagenet_format", {"--label-offset", "0"}}, {"image_folder", {}}};
  for (const auto& [name, more] : sets) {
    const auto data = io::real_data(name);
    if (!data) GTEST_SKIP() << "no " << name << " beside the project";
    const TemporaryDirectory directory;
    io::copy_writable(*data, directory / "data");
    const auto digest = [&, reading = more](const std::string& run, const Words& layout) {
      const ProcessResult result = millrace(Words{"train",
                                                  "--dataset",
                                                  "imagenet",
                                                  "--data-dir",
                                                  (directory / "data").string(),
                                                  "--model",
                                                  "resnet",
                                                  "--model-size",
                                                  "26",
                                                  "--image-size",
                                                  "96",
                                                  "--batch-size",
                                                  "2",
                                                  "--gradients-to-accumulate",
                                                  "2",
                                                  "--replicas",
                                                  "2",
                                                  "--iterations",
                                                  "2",
                                                  "--warmup-epochs",
                                                  "0",
                                                  "--no-validation",
                                                  "--threads-per-device",
                                                  "1",
                                                  "--run-dir",
                                                  (directory / run).string()} +
                                            reading + layout);
      EXPECT_EQ(result.code, 0) << result.output;
      return digest_of(directory / run);
    };
    const std::string alone = digest("alone", {"--ranks", "1"});
    EXPECT_FALSE(alone.empty());
    EXPECT_EQ(digest("four", {"--shards", "2", "--pipeline-splits", "b3/1/relu", "--ranks", "4",
                              "--pipeline-num-parallel", "4"}),
              alone)
        << name;
  }
}

TEST_F(PicturesTest, ARestoredRunGoesOnWithTheVeryNextPicture) {
  const TemporaryDirectory directory;
  ASSERT_EQ(train_on("folders", directory / "whole").code, 0);
  const std::filesystem::path parts = directory / "parts";
  ASSERT_EQ(train_on("folders", parts, {"--stop-after", "4"}).code, 75);
  const ProcessResult rest = millrace({"restore", "--restore-path", parts.string()});
  ASSERT_EQ(rest.code, 0) << rest.output;
  EXPECT_EQ(digest_of(parts), digest_of(directory / "whole"));
}

TEST_F(PicturesTest, CheckFindsOneFlippedByte) {
  const TemporaryDirectory directory;
  std::filesystem::copy(place() / "records", directory / "records",
                        std::filesystem::copy_options::recursive);
  const std::string path = (directory / "records").string();
  EXPECT_EQ(millrace({"data", "check", path}).code, 0);
  const std::string name = "train/train-00001-of-00003";
  std::string shard = read_text(directory / "records" / name);
  shard[shard.size() / 2] = static_cast<char>(shard[shard.size() / 2] ^ 4);
  std::ofstream(directory / "records" / name, std::ios::binary) << shard;
  const ProcessResult checked = millrace({"data", "check", path});
  EXPECT_EQ(checked.code, 3) << checked.output;
  EXPECT_NE(checked.output.find("train-00001-of-00003, record "), std::string::npos)
      << checked.output;
  EXPECT_NE(checked.output.find(" at offset "), std::string::npos) << checked.output;
}

TEST_F(PicturesTest, BadPicturesAreReplacedUpToALimit) {
  const TemporaryDirectory directory;
  std::filesystem::copy(place() / "folders", directory / "folders",
                        std::filesystem::copy_options::recursive);
  const std::filesystem::path bad = directory / "folders/train/n02/9.JPEG";
  std::filesystem::resize_file(bad, std::filesystem::file_size(bad) / 2);
  const std::string folders = (directory / "folders").string();
  const Words lenient = {"--data-dir", folders, "--no-validation", "--max-bad-fraction", "0.1"};
  const ProcessResult replaced = train_on("folders", directory / "lenient", lenient);
  EXPECT_EQ(replaced.code, 0) << replaced.output;
  EXPECT_NE(replaced.output.find("n02/9.JPEG"), std::string::npos) << replaced.output;
  EXPECT_NE(replaced.output.find("Bad images: 1 of 24 for training"), std::string::npos)
      << replaced.output;
  EXPECT_NE(read_text(directory / "lenient/log.txt").find("n02/9.JPEG"), std::string::npos);
  const ProcessResult refused =
      train_on("folders", directory / "strict", {"--data-dir", folders, "--no-validation"});
  EXPECT_EQ(refused.code, 3) << refused.output;
  EXPECT_NE(refused.output.find("n02/9.JPEG"), std::string::npos) << refused.output;
}

/// Number of weight updates in a run's log.
std::ptrdiff_t logged_updates(const std::filesystem::path& run) {
  const std::string rows = read_text(run / "training.csv");
  return std::count(rows.begin(), rows.end(), '\n') - 1;
}

/// The number of stand-ins of the current epoch that a checkpoint passes on to a restored run; -1:
/// not recorded.
int handed_on(const std::filesystem::path& run, std::ptrdiff_t updates) {
  const std::string manifest =
      read_text(run / ("checkpoints/ckpt-" + std::to_string(updates)) / "manifest.json");
  std::smatch count;
  const bool found = std::regex_search(manifest, count, std::regex(R"("stand_ins":\s*([0-9]+))"));
  return found ? std::stoi(count[1]) : -1;
}

// The third of three bad images is one too many, whichever ranks and processes found them.
TEST_F(PicturesTest, TooManyBadPicturesEndARunAtTheSameUpdateInEveryLayout) {
  const TemporaryDirectory directory;
  std::filesystem::copy(place() / "folders", directory / "folders",
                        std::filesystem::copy_options::recursive);
  for (const char* name : {"n01/2.JPEG", "n02/9.JPEG", "n03/20.JPEG"})
    std::filesystem::resize_file(directory / "folders/train" / name, 300);
  const std::string folders = (directory / "folders").string();
  const auto train = [&](const char* run, const Words& more) {
    return train_on("folders", directory / run,
                    Words{"--data-dir", folders, "--no-validation", "--max-bad-fraction", "0.1",
                          "--replicas", "2", "--gradients-to-accumulate", "1", "--logs-per-epoch",
                          "6", "--threads-per-device", "1"} +
                        more);
  };
  const ProcessResult one = train("one", {"--ranks", "1"});
  EXPECT_EQ(one.code, 3) << one.output;
  EXPECT_NE(one.output.find("3 of the 24 images for training are bad so far in this epoch"),
            std::string::npos)
      << one.output;
  const std::ptrdiff_t updates = logged_updates(directory / "one");
  ASSERT_GT(updates, 0) << one.output;
  const ProcessResult two = train("two", {"--ranks", "2", "--pipeline-num-parallel", "3"});
  EXPECT_EQ(two.code, 3) << two.output;
  EXPECT_EQ(logged_updates(directory / "two"), updates) << two.output;

  ASSERT_EQ(train("parts", {"--ranks", "2", "--stop-after", std::to_string(updates)}).code, 75);
  const std::string parts = (directory / "parts").string();
  ASSERT_EQ(handed_on(parts, updates), 2) << "the third one alone would be allowed";
  const ProcessResult rest = millrace({"restore", "--restore-path", parts, "--ranks", "1"});
  EXPECT_EQ(rest.code, 3) << rest.output;
  EXPECT_EQ(logged_updates(parts), updates) << rest.output;

  // The run that ended was saved, and continues with a higher limit.
  const std::string ended = (directory / "one").string();
  const ProcessResult more =
      millrace({"restore", "--restore-path", ended, "--max-bad-fraction", "0.2"});
  EXPECT_EQ(more.code, 0) << more.output;
  EXPECT_NE(more.output.find("Bad images: 3 of 24"), std::string::npos) << more.output;
}

// Two bad images of 24 are found in each of two epochs; three in one epoch would be too many.
TEST_F(PicturesTest, BadPicturesOfTwoEpochsAreNotAddedUp) {
  const TemporaryDirectory directory;
  std::filesystem::copy(place() / "folders", directory / "folders",
                        std::filesystem::copy_options::recursive);
  for (const char* name : {"n01/2.JPEG", "n02/9.JPEG"})
    std::filesystem::resize_file(directory / "folders/train" / name, 300);
  const std::string folders = (directory / "folders").string();
  const auto train = [&](const std::string& run, const Words& more) {
    return train_on("folders", directory / run,
                    Words{"--data-dir", folders, "--no-validation", "--max-bad-fraction", "0.1",
                          "--iterations", "12"} +
                        more);
  };
  const ProcessResult whole = train("whole", {});
  ASSERT_EQ(whole.code, 0) << whole.output;
  // Stopped within the first epoch, after both images, and between the epochs.
  for (const auto& [updates, carried] : {std::pair{5, 2}, {6, 0}}) {
    const std::string run = "to " + std::to_string(updates);
    const ProcessResult begun = train(run, {"--stop-after", std::to_string(updates)});
    ASSERT_EQ(begun.code, 75) << begun.output;
    EXPECT_EQ(handed_on(directory / run, updates), carried);
    const ProcessResult rest = millrace({"restore", "--restore-path", (directory / run).string()});
    EXPECT_EQ(rest.code, 0) << rest.output;
    EXPECT_EQ(digest_of(directory / run), digest_of(directory / "whole"));
  }
}

TEST_F(PicturesTest, BadPicturesOfAValidationAreCounted) {
  const TemporaryDirectory directory;
  std::filesystem::copy(place() / "folders", directory / "folders",
                        std::filesystem::copy_options::recursive);
  const std::filesystem::path bad = directory / "folders/validation/n02/28.JPEG";
  std::filesystem::resize_file(bad, std::filesystem::file_size(bad) / 2);
  const std::string folders = (directory / "folders").string();
  const std::string expected = "Bad images: 1 of 9 for validation";
  const std::string run = (directory / "run").string();
  const ProcessResult trained =
      train_on("folders", run, {"--data-dir", folders, "--max-bad-fraction", "0.2"});
  EXPECT_EQ(trained.code, 0) << trained.output;
  EXPECT_NE(trained.output.find(expected), std::string::npos) << trained.output;
  EXPECT_NE(read_text(directory / "run/log.txt").find("n02/28.JPEG"), std::string::npos);
  const ProcessResult validated = millrace({"validate", "--restore-path", run});
  EXPECT_EQ(validated.code, 0) << validated.output;
  EXPECT_NE(validated.output.find(expected), std::string::npos) << validated.output;
  const ProcessResult refused =
      millrace({"validate", "--restore-path", run, "--max-bad-fraction", "0.1"});
  EXPECT_EQ(refused.code, 3) << refused.output;
  EXPECT_NE(refused.output.find("1 of the 9 images for validation are bad"), std::string::npos)
      << refused.output;

  // If validation fails, the weights of the epoch are still saved.
  const std::string strict = (directory / "strict").string();
  const ProcessResult ended = train_on("folders", strict, {"--data-dir", folders});
  EXPECT_EQ(ended.code, 3) << ended.output;
  EXPECT_NE(ended.output.find("(iteration 6, which is saved)"), std::string::npos) << ended.output;
  const ProcessResult rest =
      millrace({"restore", "--restore-path", strict, "--max-bad-fraction", "0.2"});
  EXPECT_EQ(rest.code, 0) << rest.output;
  EXPECT_EQ(digest_of(strict), digest_of(run));
}

TEST_F(PicturesTest, APlaceWithoutPicturesNamesAllThatWasLookedAt) {
  const TemporaryDirectory directory;
  const ProcessResult result =
      train_on("folders", directory / "run", {"--data-dir", directory.path().string()});
  EXPECT_EQ(result.code, 3) << result.output;
  EXPECT_NE(result.output.find("train-*"), std::string::npos) << result.output;
}

}  // namespace
}  // namespace millrace::test
