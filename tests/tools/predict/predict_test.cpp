// SPDX-License-Identifier: Apache-2.0
//
// What a network says of images: the same as a validation that reads them from its data set.
#include <nlohmann/json.hpp>

#include "millrace.hpp"
#include "tests/io/fixtures.hpp"
#include "tests/io/images/test_images.hpp"
#include "tools/weights/tensor_file.hpp"

namespace millrace::test {
namespace {

using nlohmann::json;

/// Records of a CIFAR-10 file.
struct Records {
  explicit Records(const fs::path& file) : bytes(io::read_bytes(file)) {}
  [[nodiscard]] int label(std::size_t i) const { return bytes.at(i * kBytes); }
  [[nodiscard]] io::Image image(std::size_t i) const {
    io::Image image{.width = 32, .height = 32, .bytes = {}};
    for (std::size_t at = 0; at < 1024; ++at)
      for (std::size_t c = 0; c < 3; ++c)
        image.bytes.push_back(bytes.at(i * kBytes + 1 + c * 1024 + at));
    return image;
  }
  static constexpr std::size_t kBytes = 3073;
  std::vector<std::uint8_t> bytes;
};

/// The first `count` images as 000.png, 001.png, ...
std::vector<fs::path> write_pngs(const Records& records, std::size_t count,
                                 const fs::path& folder) {
  std::vector<fs::path> files;
  for (std::size_t i = 0; i < count; ++i) {
    files.push_back(folder / (std::to_string(1000 + i).substr(1) + ".png"));
    write_file(files.back(), io::encode_png(records.image(i)));
  }
  return files;
}

/// A file of numpy, as its documentation describes version 1.0.
struct Matrix {
  explicit Matrix(const fs::path& file) {
    const std::vector<std::uint8_t> bytes = io::read_bytes(file);
    const std::string text(bytes.begin(), bytes.end());
    EXPECT_EQ(text.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
    const std::size_t begin = 10 + bytes.at(8) + std::size_t{256} * bytes.at(9);
    EXPECT_EQ(begin % 64, 0u);
    head = text.substr(10, begin - 10);
    values.resize((bytes.size() - begin) / sizeof(float));
    std::memcpy(values.data(), bytes.data() + begin, bytes.size() - begin);
  }
  [[nodiscard]] std::vector<float> row(std::size_t i, std::size_t columns = 10) const {
    const auto at = values.begin() + static_cast<std::ptrdiff_t>(i * columns);
    return {at, at + static_cast<std::ptrdiff_t>(columns)};
  }
  std::string head;
  std::vector<float> values;
};

std::vector<json> json_lines(const std::string& text) {
  std::vector<json> lines;
  for (const std::string& line : lines_of(text)) lines.push_back(json::parse(line));
  return lines;
}

Words predict(const fs::path& run) { return {"predict", run, "--threads-per-device 1"}; }

/// A trained network of two stages, made once.
struct PredictTest : testing::Test {
  static const fs::path& run() {
    static const TemporaryDirectory directory;
    static const fs::path made = [] {
      expect_end(train(directory / "run",
                       "--epochs 1 --shards 2 --pipeline-splits b2/0/relu "
                       "--ranks 1 --precision 16.32 --no-validation"),
                 0);
      return directory / "run";
    }();
    return made;
  }
  const TemporaryDirectory directory;
};

// Accuracy and loss that follow from the logits are those of `validate`; images that were written
// as PNG files give the bits of the same images in the data set.
TEST_F(PredictTest, LogitsAreThoseOfAValidation) {
  const Records records(small_data() / "test_batch.bin");
  const std::vector<fs::path> files = write_pngs(records, 40, directory / "pngs");
  for (const char* precision : {"32.32", "16.32"}) {
    const Words as = {"--batch-size 32 --precision", std::string(precision)};
    const fs::path set = directory / "set.npy";
    expect_end(millrace(predict(run()) + as + Words{"--top-k 0 --logits", set}, Capture::Output),
               0);
    const Matrix logits(set);
    expect_in(logits.head, {"'descr': '<f4', 'fortran_order': False, 'shape': (200, 10)"});
    ASSERT_EQ(logits.values.size(), 2000u);
    int top1 = 0;
    int top5 = 0;
    double loss = 0.0;
    for (std::size_t i = 0; i < 200; ++i) {
      const std::vector<float> row = logits.row(i);
      const auto label = static_cast<std::size_t>(records.label(i));
      double total = 0.0;
      for (const float x : row)
        total += std::exp(static_cast<double>(x) - static_cast<double>(row[label]));
      loss += std::log(total) / 200.0;
      int ahead = 0;  // of equal logits the lower class comes first
      for (std::size_t k = 0; k < row.size(); ++k)
        ahead += row[k] > row[label] || (row[k] == row[label] && k < label) ? 1 : 0;
      top1 += ahead == 0 ? 1 : 0;
      top5 += ahead < 5 ? 1 : 0;
    }
    const ProcessResult validated =
        millrace(Words{"validate --json --threads-per-device 1 --restore-path", run()} + as,
                 Capture::Output);
    const json result = json::parse(validated.output);
    EXPECT_NEAR(result.at("loss").get<double>(), loss, 1e-5);
    EXPECT_EQ(std::lround(result.at("top1").get<double>() * 200), top1) << precision;
    EXPECT_EQ(std::lround(result.at("top5").get<double>() * 200), top5) << precision;

    const fs::path alone = directory / "alone.npy";
    expect_end(millrace(predict(run()) + as + Words{directory / "pngs", "--logits", alone},
                        Capture::Output),
               0);
    const Matrix of_files(alone);
    for (std::size_t i = 0; i < files.size(); ++i) EXPECT_EQ(of_files.row(i), logits.row(i)) << i;
  }
}

TEST_F(PredictTest, NamesClassesInJsonLines) {
  const Records records(small_data() / "test_batch.bin");
  const std::vector<fs::path> files = write_pngs(records, 3, directory.path());
  const std::string names = (directory / "list.txt").string();
  std::ofstream(names) << files[2].string() << "\n" << files[0].string() << "\n";
  const ProcessResult result = run_process(
      "/bin/sh",
      {"-c", "exec \"$0\" predict \"$1\" - --top-k 2 --logits \"$3\" < \"$2\"",
       std::string(MILLRACE_BINARY), run().string(), names, (directory / "l.npy").string()},
      Capture::Output);
  EXPECT_EQ(result.code, 0);
  const std::vector<json> lines = json_lines(result.output);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].at("image"), files[2].string());
  EXPECT_EQ(lines[1].at("image"), files[0].string());
  const Matrix logits(directory / "l.npy");
  const std::vector<std::string> drawn = {"disc",  "ring", "square", "frame",   "triangle",
                                          "cross", "plus", "rows",   "columns", "checkers"};
  for (std::size_t i = 0; i < 2; ++i) {
    ASSERT_EQ(lines[i].at("top").size(), 2u);
    const json& first = lines[i].at("top")[0];
    const json& second = lines[i].at("top")[1];
    const std::vector<float> row = logits.row(i);
    const auto best = static_cast<std::size_t>(std::ranges::max_element(row) - row.begin());
    EXPECT_EQ(first.at("class"), best);
    EXPECT_EQ(first.at("name"), drawn[best]);
    double total = 0.0;
    for (const float x : row)
      total += std::exp(static_cast<double>(x) - static_cast<double>(row[best]));
    EXPECT_NEAR(first.at("probability").get<double>(), 1.0 / total, 1e-12);
    EXPECT_GE(first.at("probability"), second.at("probability"));
  }
}

TEST_F(PredictTest, OneBadImageDoesNotStopTheOthers) {
  const Records records(small_data() / "test_batch.bin");
  const std::vector<fs::path> files = write_pngs(records, 2, directory.path());
  write_file(directory / "cut.png", [&] {
    io::Bytes bytes = io::encode_png(records.image(0));
    bytes.resize(bytes.size() / 2);
    return bytes;
  }());
  const fs::path npy = directory / "l.npy";
  const Words images = {files[0], directory / "cut.png", directory / "none.png", files[1]};
  expect_end(millrace(predict(run()) + images + Words{"--logits", npy}), 3,
             {"millrace: " + (directory / "cut.png").string() + ": PNG: ",
              "millrace: " + (directory / "none.png").string() + ": cannot open: No such file"});
  const ProcessResult out = millrace(predict(run()) + images, Capture::Output);
  const std::vector<json> lines = json_lines(out.output);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1].at("image"), files[1].string());
  const Matrix logits(npy);
  ASSERT_EQ(logits.values.size(), 40u);
  for (std::size_t i = 0; i < 40; ++i)
    EXPECT_EQ(std::isnan(logits.values[i]), i >= 10 && i < 30) << i;
}

// Their rows stay among those of the images.
TEST_F(PredictTest, FilesThatAreNoImagesDoNotGoThroughTheNetwork) {
  const Records records(small_data() / "test_batch.bin");
  const std::vector<fs::path> files = write_pngs(records, 1, directory.path());
  std::ofstream(directory / "text.png") << "this is text";
  const Words bad = {directory / "text.png", directory / "none.png"};
  const fs::path npy = directory / "l.npy";
  const Words first = predict(run()) + Words{"--batch-size 1 --logits", npy};
  expect_end(millrace(first + bad), 3,
             {"text.png: neither a JPEG nor a PNG: it begins", "none.png: cannot open"});
  EXPECT_EQ(Matrix(npy).values.size(), 20u);
  expect_end(millrace(first + bad + Words{files[0]} + bad), 3);
  const Matrix logits(npy);
  ASSERT_EQ(logits.values.size(), 50u);
  for (std::size_t i = 0; i < 50; ++i)
    EXPECT_EQ(std::isnan(logits.values[i]), i < 20 || i >= 30) << i;
}

TEST_F(PredictTest, AnImageOnStandardInputIsNoListOfNames) {
  const Records records(small_data() / "test_batch.bin");
  const std::vector<fs::path> files = write_pngs(records, 1, directory.path());
  const auto piped = [&](const fs::path& input) {
    return run_process("/bin/sh", {"-c", "exec \"$0\" predict \"$1\" - < \"$2\"",
                                   std::string(MILLRACE_BINARY), run().string(), input.string()});
  };
  const std::string refusal = "- reads names of images, one per line; this is not text";
  expect_end(piped(files[0]), 3, {refusal});
  std::ofstream(directory / "long") << std::string(5000, 'a');
  expect_end(piped(directory / "long"), 3, {refusal});
  std::ofstream(directory / "dos") << files[0].string() << "\r\n";
  expect_end(piped(directory / "dos"), 0);
}

TEST_F(PredictTest, RefusesWhatItCannotPredict) {
  fs::create_directories(directory / "empty");
  expect_end(millrace(predict(run()) + Words{directory / "empty"}), 3, {"has no image"});
  std::ofstream(directory / "names.txt") << "cat\ndog\n";
  expect_end(millrace(predict(run()) + Words{"--class-names", directory / "names.txt"}), 3,
             {"names.txt: 2 names of classes, but there are 10 classes"});
}

// Notices are about what runs: they come once, and not with a refusal.
TEST_F(PredictTest, SaysOnceWhichRunItTakes) {
  const std::string notice = "taking the only run in it";
  const ProcessResult whole = millrace(predict(run().parent_path()));
  expect_end(whole, 0, {notice});
  EXPECT_EQ(whole.output.find(notice), whole.output.rfind(notice)) << whole.output;
  const ProcessResult refused =
      millrace(predict(run().parent_path()) + Words{"--class-names", directory / "none"});
  EXPECT_NE(refused.code, 0);
  expect_not_in(refused.output, {notice});
}

TEST_F(PredictTest, PhotosOfAnySizeAndClassFolders) {
  int number = 0;
  for (const char* split : {"train", "val"})
    for (const char* name : {"cat", "dog"})
      for (int i = 0; i < 3; ++i, ++number) {
        const io::Image image = io::make_image(60 + 5 * number, 90 - 3 * number);
        write_file(directory / "set" / split / name / (std::to_string(number) + ".JPEG"),
                   number % 2 == 0 ? io::encode_jpeg(image) : io::encode_png(image));
      }
  const fs::path made = directory / "run";
  expect_end(millrace({"train --dataset imagenet --image-preset torch --model-size 10 --image-size "
                       "32 --batch-size 2 --iterations 2 --warmup-epochs 0 --no-validation "
                       "--threads-per-device 1 --data-dir",
                       directory / "set", "--run-dir", made}),
             0);
  const Words as = "--batch-size 6 --logits";
  expect_end(millrace(predict(made) + as + Words{directory / "set.npy"}, Capture::Output), 0);
  const ProcessResult result = millrace(
      predict(made) + as + Words{directory / "files.npy", directory / "set/val"}, Capture::Output);
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(Matrix(directory / "set.npy").values, Matrix(directory / "files.npy").values);
  EXPECT_EQ(Matrix(directory / "set.npy").values.size(), 12u);
  const std::vector<json> lines = json_lines(result.output);
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_EQ(lines[0].at("image"), (directory / "set/val/cat/6.JPEG").string());
  EXPECT_TRUE(lines[0].at("top")[0].at("name") == "cat" ||
              lines[0].at("top")[0].at("name") == "dog");
}

TEST_F(PredictTest, TrainedNetworksGiveTheLogitsOfPyTorch) {
  const fs::path nets = shared_data() / "models/resnet_cifar10";
  const fs::path images = shared_data() / "cifar-10-batches-bin/test_batch.bin";
  if (!fs::exists(nets) || !fs::exists(images))
    GTEST_SKIP() << "needs the trained networks and CIFAR-10 below " << shared_data();
  expect_end(millrace({"import", nets / "resnet20-12fca82f.safetensors", directory / "run",
                       "--normalise imagenet --precision 32.32"}),
             0);
  (void)write_pngs(Records(images), 64, directory / "pngs");
  const fs::path npy = directory / "l.npy";
  expect_end(millrace(predict(directory / "run") + Words{directory / "pngs", "--logits", npy},
                      Capture::Output),
             0);
  const io::TensorFile reference = io::read_safetensors(nets / "resnet20_reference.safetensors");
  const std::vector<float> expected = reference.tensors().at("logits_f64_test_first64").to_floats();
  const Matrix logits(npy);
  ASSERT_EQ(logits.values.size(), expected.size());
  float worst = 0.0f;
  for (std::size_t i = 0; i < expected.size(); ++i)
    worst = std::max(worst, std::abs(logits.values[i] - expected[i]));
  EXPECT_LT(worst, 1e-4f);
}

}  // namespace
}  // namespace millrace::test
