// SPDX-License-Identifier: Apache-2.0
//
// Training on images of any size from class folders, WebDataset archives, TFRecord
// files and packed files made from the same images. The weights do not depend on the
// source or on where a run was stopped.
#include <regex>

#include "millrace.hpp"
#include "tests/io/fixtures.hpp"
#include "tests/io/images/test_images.hpp"
#include "tests/io/records/tar_writer.hpp"
#include "tests/support/file_bytes.hpp"

namespace millrace::test {
namespace {

/// 24 images of three classes for training and 9 for validation, including a PNG and a CMYK file.
void write_folders(const fs::path& folder) {
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

/// Everything below a folder.
std::set<fs::path> paths_below(const fs::path& folder) {
  return {fs::recursive_directory_iterator(folder), fs::recursive_directory_iterator()};
}

/// The same images as archives, in the order of class folders.
void write_archives(const fs::path& folders, const fs::path& archives) {
  for (const char* split : {"train", "validation"}) {
    std::vector<fs::path> images;
    std::ranges::copy_if(paths_below(folders / split), std::back_inserter(images),
                         [](const fs::path& path) { return fs::is_regular_file(path); });
    for (std::size_t begin = 0; begin < images.size(); begin += 10) {
      io::Tar tar;
      for (std::size_t i = begin; i < std::min(begin + 10, images.size()); ++i) {
        const std::string label = images[i].parent_path().filename().string();
        const std::string key = std::to_string(i);
        tar.add(key + ".jpeg", file_bytes(images[i]));
        tar.add(key + ".cls", std::as_bytes(std::span(label)));
      }
      const std::string number = std::to_string(begin / 10);
      write_file(archives / (std::string(split) + "-00" + number + ".tar"), tar.bytes());
    }
  }
}

/// Created once: class folders, and the TFRecord files and packed images made from them.
class ImagesTest : public testing::Test {
 protected:
  static const TemporaryDirectory& place() {
    static const TemporaryDirectory directory;
    return directory;
  }
  static void SetUpTestSuite() {
    write_folders(place() / "folders");
    expect_end(millrace({"data convert", place() / "records", "--raw-dir", place() / "folders",
                         "--train-shards 3 --validation-shards 2"}),
               0, {"2 re-encoded as RGB JPEG"});
    expect_end(millrace({"data convert", place() / "packed", "--packed --data-dir",
                         place() / "folders", "--shorter-side 48"}),
               0);
  }
  /// A copy of the class folders in which some images are cut short.
  static fs::path damaged_folders(const TemporaryDirectory& directory,
                                  const std::vector<std::string>& images) {
    fs::copy(place() / "folders", directory / "folders", fs::copy_options::recursive);
    for (const std::string& image : images) fs::resize_file(directory / "folders" / image, 300);
    return directory / "folders";
  }
  /// Four images per update, six updates per epoch.
  static ProcessResult train_on(const char* data, const fs::path& run, const Words& more = {}) {
    return millrace(
        Words{"train --dataset imagenet --data-dir", place() / data,
              "--model-size 10 --image-size 32 --batch-size 2 --gradients-to-accumulate 2 "
              "--iterations 9 --warmup-epochs 0 --seed 3 --threads-per-device 1 --run-dir",
              run} +
        more);
  }
};

TEST_F(ImagesTest, AllFormsTrainAndValidate) {
  const TemporaryDirectory directory;
  for (const char* data : {"folders", "records", "packed"}) {
    const ProcessResult result = train_on(data, directory / data);
    expect_end(result, 0, {"Validation top-1 accuracy", " to read images"});
    EXPECT_LE(peaks_in(result.output).at(0), predicted_in(result.output).at(0)) << data;
  }
}

// The same files in the same order give the same weights, whatever holds them.
TEST_F(ImagesTest, ArchivesGiveTheWeightsOfClassFolders) {
  const TemporaryDirectory directory;
  write_archives(place() / "folders", directory / "archives");
  const auto before = paths_below(place() / "folders");
  const auto digest = [&](const fs::path& data, const char* run) {
    expect_end(train_on("folders", directory / run, {"--data-dir", data, "--classes 3"}), 0,
               {"Validation top-1 accuracy"});
    return digest_of(directory / run);
  };
  const std::string folders = digest(place() / "folders", "run-1");
  EXPECT_EQ(digest(directory / "archives", "run-3"), folders);
  EXPECT_EQ(paths_below(place() / "folders"), before) << "nothing is left among images";
  expect_end(millrace({"data check", directory / "archives"}), 0,
             {"training: ", " 24 images", "0 bad"});
  // The classes are known from the data: 3, not ImageNet's 1000.
  expect_end(train_on("folders", directory / "run-4",
                      {"--data-dir", directory / "archives", "--stop-after 1"}),
             75);
  const std::string manifest = read_text(directory / "run-4/checkpoints/ckpt-1/manifest.json");
  EXPECT_TRUE(std::regex_search(manifest, std::regex(R"(classes\\*":\s*3\b)"))) << manifest;
  expect_end(restore(directory / "run-4"), 0);
  // So does the page about the run, which needs no data.
  const ProcessResult report = millrace({"report", directory / "run-4"});
  expect_end(report, 0);
  expect_not_in(report.output, {"planned network"});
}

TEST_F(ImagesTest, ACommandThatFailsLeavesNothing) {
  const TemporaryDirectory directory;
  write_archives(place() / "folders", directory / "archives");
  fs::resize_file(directory / "archives/train-001.tar", 900);
  fs::create_directory(directory / "empty");
  const auto before = paths_below(directory.path());
  for (const auto& [data, told] : {std::pair("archives", directory.path().string()),
                                   std::pair("empty", std::string("train-*"))})
    expect_end(train_on("folders", directory / "run", {"--data-dir", directory / data}), 3, {told});
  expect_end(millrace({"data convert", directory / "packed", "--packed --data-dir",
                       directory / "archives"}),
             3);
  EXPECT_EQ(paths_below(directory.path()), before);
}

TEST_F(ImagesTest, TheWayToTheDeviceChangesNothing) {
  const TemporaryDirectory directory;
  const Words ways[] = {{},
                        "--pipeline-num-parallel 4",
                        {"--no-hostside-norm"},
                        {"--data-loader-image-type float32"},
                        {"--dataset-cache all"},
                        {"--dataset-cache 2kB --max-cpus 1"}};
  std::vector<std::string> digests;
  for (const Words& way : ways) {
    const fs::path run = directory / std::to_string(digests.size());
    const ProcessResult result = train_on("records", run, Words{"--no-validation"} + way);
    ASSERT_EQ(result.code, 0) << result.output;
    digests.push_back(digest_of(run));
    EXPECT_EQ(digests.back(), digests.front()) << result.output;
  }
  const fs::path half = directory / "half";
  ASSERT_EQ(train_on("records", half, "--no-validation --data-loader-image-type float16").code, 0);
  EXPECT_NE(digest_of(half), digests.front()) << "numbers up to 151 lose bits";
}

const Words kAugmented =
    "--no-validation --randaugment 2,9 --color-jitter 0.4,0.4,0.4,0.1 --random-erasing 0.5";

TEST_F(ImagesTest, AugmentationIsTheSameForEveryLayoutAndRestart) {
  const TemporaryDirectory directory;
  const std::pair<const char*, Words> ways[] = {
      {"one", {}},
      {"threads", "--pipeline-num-parallel 4"},
      {"bytes", "--no-hostside-norm"},
      {"stages", "--shards 2 --pipeline-splits b3/0 --ranks 2 --pipeline-num-parallel 2"}};
  std::vector<std::string> digests;
  for (const auto& [run, way] : ways) {
    expect_end(train_on("folders", directory / run, kAugmented + way), 0);
    digests.push_back(digest_of(directory / run));
    EXPECT_EQ(digests.back(), digests.front()) << run;
  }
  const fs::path parts = directory / "parts";
  ASSERT_EQ(train_on("folders", parts, kAugmented + Words{"--stop-after 4"}).code, 75);
  expect_end(restore(parts, "--randaugment 2,10"), 2, {"--randaugment", "2,9", "2,10"});
  expect_end(restore(parts, "--random-erasing 0.25"), 2, {"--random-erasing", "0.5", "0.25"});
  expect_end(restore(parts), 0);
  EXPECT_EQ(digest_of(parts), digests.front());
  expect_end(train_on("folders", directory / "plain", "--no-validation"), 0);
  EXPECT_NE(digest_of(directory / "plain"), digests.front());
}

TEST_F(ImagesTest, TheBenchmarkOfTheLoadersSaysWhatLimits) {
  const TemporaryDirectory directory;
  expect_end(train_on("records", directory / "run", "--dataset-benchmark"), 0,
             {"loaders alone ", "devices alone ", "limit         the "});
  EXPECT_FALSE(fs::exists(directory / "run"));
  expect_end(
      millrace("train --dataset imagenet --model-size 18 --synthetic-data --dataset-benchmark"), 2,
      {"--synthetic-data reads none"});
}

TEST_F(ImagesTest, TwoStagesAndReplicasSeeTheSame) {
  const TemporaryDirectory directory;
  const Words layout = {
      "--no-validation --shards 2 --replicas 2 --pipeline-splits b3/0 --iterations 4"};
  ASSERT_EQ(train_on("records", directory / "one", layout + "--ranks 1").code, 0);
  const ProcessResult four =
      train_on("records", directory / "four", layout + "--pipeline-num-parallel 4 --max-cpus 4");
  ASSERT_EQ(four.code, 0) << four.output;
  EXPECT_EQ(digest_of(directory / "four"), digest_of(directory / "one"));
}

/// Number of weight updates in a run's log.
std::ptrdiff_t logged_updates(const fs::path& run) {
  const std::string rows = read_text(run / "training.csv");
  return std::count(rows.begin(), rows.end(), '\n') - 1;
}

/// The number of stand-ins of the current epoch that a checkpoint passes on to a restored run; -1:
/// not recorded.
int handed_on(const fs::path& run, std::ptrdiff_t updates) {
  const std::string manifest =
      read_text(run / ("checkpoints/ckpt-" + std::to_string(updates)) / "manifest.json");
  std::smatch count;
  const bool found = std::regex_search(manifest, count, std::regex(R"("stand_ins":\s*([0-9]+))"));
  return found ? std::stoi(count[1]) : -1;
}

// The third of three bad images is one too many, whichever ranks and processes found them.
TEST_F(ImagesTest, TooManyBadImagesEndARunAtTheSameUpdateInEveryLayout) {
  const TemporaryDirectory directory;
  const auto folders =
      damaged_folders(directory, {"train/n01/2.JPEG", "train/n02/9.JPEG", "train/n03/20.JPEG"});
  const auto train = [&](const char* run, const Words& more) {
    return train_on("folders", directory / run,
                    Words{"--data-dir", folders,
                          "--no-validation --max-bad-fraction 0.1 --replicas 2 "
                          "--gradients-to-accumulate 1 --logs-per-epoch 6 --threads-per-device 1"} +
                        more);
  };
  const ProcessResult one = train("one", "--ranks 1");
  expect_end(one, 3, {"3 of the 24 images for training are bad so far in this epoch"});
  const std::ptrdiff_t updates = logged_updates(directory / "one");
  ASSERT_GT(updates, 0) << one.output;
  const ProcessResult two = train("two", "--ranks 2 --pipeline-num-parallel 3");
  EXPECT_EQ(two.code, 3) << two.output;
  EXPECT_EQ(logged_updates(directory / "two"), updates) << two.output;

  ASSERT_EQ(train("parts", {"--ranks 2 --stop-after", std::to_string(updates)}).code, 75);
  const std::string parts = (directory / "parts").string();
  ASSERT_EQ(handed_on(parts, updates), 2) << "the third one alone would be allowed";
  const ProcessResult rest = restore(parts, "--ranks 1");
  EXPECT_EQ(rest.code, 3) << rest.output;
  EXPECT_EQ(logged_updates(parts), updates) << rest.output;

  // The run that ended was saved, and continues with a higher limit.
  const std::string ended = (directory / "one").string();
  expect_end(restore(ended, "--max-bad-fraction 0.2"), 0, {"Bad images: 3 of 24"});
  expect_in(read_text(directory / "one/log.txt"), {"n01/2.JPEG", "n02/9.JPEG", "n03/20.JPEG"});
}

TEST_F(ImagesTest, BadImagesOfAValidationAreCounted) {
  const TemporaryDirectory directory;
  const auto folders = damaged_folders(directory, {"validation/n02/28.JPEG"});
  const std::string expected = "Bad images: 1 of 9 for validation";
  const std::string run = (directory / "run").string();
  const std::string counted = ", bad images replaced: 1)\n";
  expect_end(train_on("folders", run, {"--data-dir", folders}), 0, {expected, counted});
  expect_in(read_text(directory / "run/log.txt"), {"n02/28.JPEG"});
  expect_end(millrace({"validate --restore-path", run}), 0, {expected, counted});
  expect_end(millrace({"validate --restore-path", run, "--max-bad-fraction 0"}), 3,
             {"1 of the 9 images for validation is bad"});

  // If validation fails, the weights of the epoch are still saved.
  const std::string strict = (directory / "strict").string();
  expect_end(train_on("folders", strict, {"--data-dir", folders, "--max-bad-fraction 0"}), 3,
             {"(update 6, which is saved)"});
  expect_end(restore(strict, "--max-bad-fraction 0.001"), 0);
  EXPECT_EQ(digest_of(strict), digest_of(run));
}

// A folder with validation images alone, in which every class of the network has a folder.
TEST_F(ImagesTest, AValidationNeedsNoTrainingImages) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  ASSERT_EQ(train_on("folders", run, "--no-validation").code, 0);
  const auto validated = [&](const fs::path& data) {
    return millrace({"validate --json --restore-path", run, "--data-dir", data}, Capture::Output);
  };
  const fs::path alone = directory / "alone";
  fs::create_directories(alone);
  fs::copy(place() / "folders/validation", alone / "val", fs::copy_options::recursive);
  const ProcessResult whole = validated(place() / "folders");
  expect_end(whole, 0);
  EXPECT_EQ(validated(alone).output, whole.output);
  // Otherwise n02 would be class 0.
  fs::rename(alone / "val/n01", alone / "val/n00");
  expect_end(millrace({"validate --restore-path", run, "--data-dir", alone}), 3,
             {"class 0 is n00 there, but n01 in "});
  fs::remove_all(alone / "val/n00");
  expect_end(millrace({"validate --restore-path", run, "--data-dir", alone}), 3,
             {"has images of 2 classes, but ", " has 3: give the data set of the run"});
}

// A checkpoint as torchvision writes it, and photos of three classes, with the words of the docs.
TEST_F(ImagesTest, AnImportedNetworkIsFineTuned) {
  const TemporaryDirectory directory;
  const Words small = "--image-size 32 --batch-size 4 --iterations 1 --threads-per-device 1";
  expect_end(
      millrace(Words{"train --dataset imagenet --synthetic-data --model-size 18 --batch-norm "
                     "--stage-one-shortcut identity --padding torch --no-validation --run-dir",
                     directory / "first"} +
               small),
      0);
  const fs::path file = directory / "resnet18.safetensors";
  expect_end(millrace({"export", directory / "first", "--like torchvision --output", file}), 0);
  const fs::path imported = directory / "r18";
  expect_end(millrace({"import", file, imported, "--like torchvision"}), 0);
  const Words photos =
      Words{"train --init-path", imported, "--data-dir", place() / "folders"} + small;
  // 11,689,512 of torchvision's ResNet-18 less its last layer, and 3 x 512 + 3.
  const std::string parameters = "Total Parameters: 11178051\n";
  const std::string rates = "no option sets the learning rate";
  expect_end(millrace(photos + Words{"--init-fresh fc1 --run-dir", directory / "a"}), 0,
             {parameters, rates});
  expect_end(millrace(photos + Words{"--init-fresh fc1 --config", imported / "config.toml",
                                     "--run-dir", directory / "b"}),
             0, {parameters, rates});
  expect_end(restore(directory / "a", "--iterations 2"), 0, {parameters});
  expect_end(millrace(photos + Words{"--lr 0.001 --run-dir", directory / "c"}), 0,
             {"resnet-18 has 1000 outputs for the 3 classes of the data set\n",
              "Total Parameters: 11689512\n"});
}

}  // namespace
}  // namespace millrace::test
