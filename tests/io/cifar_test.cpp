// SPDX-License-Identifier: Apache-2.0
#include "io/data/cifar.hpp"

#include "io/images/presets.hpp"
#include "tests/io/cifar_records.hpp"
#include "tests/io/samples.hpp"

namespace millrace::io {
namespace {

constexpr std::size_t kRecord100 = 3074;

fs::path file_of(const fs::path& folder, int number) {
  return folder / ("data_batch_" + std::to_string(number) + ".bin");
}

/// Two training files of 3 and 2 records, one test file of 4.
void write_small_set(const fs::path& directory) {
  write_bytes(directory / "data_batch_1.bin", records10(3, 0, 1));
  write_bytes(directory / "data_batch_2.bin", records10(2, 7, 2));
  write_bytes(directory / "test_batch.bin", records10(4, 5, 3));
}

/// Expects an error that names these parts.
void refused(const fs::path& folder, const std::vector<std::string>& told,
             const CifarOptions& options = {}) {
  expect_error(ErrorKind::Data, told, [&] { (void)open_cifar(folder, options); });
}

constexpr CifarOptions kTest = {.split = Split::Validation};

struct CifarTest : testing::Test {
  const TemporaryDirectory folder;
};

TEST_F(CifarTest, ReadsTheFilesInOrder) {
  write_small_set(folder.path());
  const auto train = open_cifar(folder.path(), {});
  EXPECT_EQ(train->name(), "cifar-10");
  EXPECT_EQ(train->size(), 5);
  EXPECT_EQ(train->classes(), 10);
  EXPECT_EQ(train->image_shape(), (Shape{32, 32, 3}));
  std::vector<std::int32_t> labels;
  for (std::int64_t i = 0; i < train->size(); ++i) labels.push_back(train->label(i));
  EXPECT_EQ(labels, (std::vector<std::int32_t>{0, 1, 2, 7, 8}));
  EXPECT_EQ(open_cifar(folder.path(), {.split = Split::Validation})->size(), 4);
}

TEST_F(CifarTest, StandardisesEveryImage) {
  write_small_set(folder.path());
  const std::vector<std::uint8_t> bytes = records10(2, 7, 2);
  const std::vector<float> image = image_of(*open_cifar(folder.path(), {}), 4);
  const std::span<const std::uint8_t> pixels = std::span(bytes).subspan(kRecord10 + 1);
  double mean = 0.0;
  for (const std::uint8_t pixel : pixels) mean += pixel / 3072.0;
  double variance = 0.0;
  for (const std::uint8_t pixel : pixels) variance += (pixel - mean) * (pixel - mean) / 3072.0;
  for (std::size_t i = 0; i < 3072; ++i) {
    const double expected = (pixels[i % 3 * 1024 + i / 3] - mean) / std::sqrt(variance);
    ASSERT_NEAR(static_cast<double>(image[i]), expected, 2e-6) << i;
  }
}

// The stored image is augmented, then normalized by its new statistics, mirrored, shifted and
// erased.
TEST_F(CifarTest, AugmentationComesBeforeTheShiftAndErasingAfterIt) {
  write_small_set(folder.path());
  const Augmentation augmentation{.operations = 2, .erasing = 1.0, .saturation = 0.5};
  const auto plain = open_cifar(folder.path(), {});
  const auto augmented = open_cifar(folder.path(), {.augmentation = augmentation});
  const std::vector<std::uint8_t> records = records10(2, 7, 2);
  const std::span<const std::uint8_t, 3072> planes(records.data() + kRecord10 + 1, 3072);
  int erased = 0;
  for (std::uint64_t epoch = 0; epoch < 20; ++epoch) {
    const ReadKey key{.seed = 3, .epoch = epoch, .augment = true};
    std::array<std::uint8_t, 3072> changed{};
    augment_planes(augmentation, {.seed = 3, .epoch = epoch, .index = 4}, planes, changed);
    std::vector<std::uint8_t> expected(3072);
    decode_bytes(changed, draw_crop(key, 4), std::span(expected).first<3072>());
    std::vector<std::uint8_t> image(3072);
    PixelScaling scaling;
    (void)augmented->read(4, key, image, scaling);
    EXPECT_EQ(image, expected);
    EXPECT_EQ(scaling.mean[0], standardisation_of(changed).mean[0]);
    EXPECT_EQ(scaling.real, real_window(draw_crop(key, 4))) << "padding is where it was";
    erased += scaling.erased == PixelBox{} ? 0 : 1;
  }
  EXPECT_EQ(erased, 20);
  EXPECT_EQ(image_of(*augmented, 4), image_of(*plain, 4)) << "validation is not augmented";
}

TEST_F(CifarTest, ValidationIsNormalisedByTheTrainingImages) {
  write_small_set(folder.path());
  const ChannelStatistics statistics = measure_cifar(folder.path(), CifarKind::Cifar10);
  std::vector<std::uint8_t> train = records10(3, 0, 1);
  const std::vector<std::uint8_t> second = records10(2, 7, 2);
  train.insert(train.end(), second.begin(), second.end());
  for (std::size_t c = 0; c < 3; ++c) {
    double mean = 0.0;
    double square = 0.0;
    for (std::size_t record = 0; record < 5; ++record) {
      for (std::size_t i = 0; i < 1024; ++i) {
        const double pixel = train[record * kRecord10 + 1 + c * 1024 + i] / 255.0;
        mean += pixel / 5120.0;
        square += pixel * pixel / 5120.0;
      }
    }
    EXPECT_NEAR(statistics.mean[c], mean, 1e-12);
    EXPECT_NEAR(statistics.deviation[c], std::sqrt(square - mean * mean), 1e-12);
  }
  CifarOptions options{.split = Split::Validation, .normalisation = CifarNormalisation::Dataset};
  const std::vector<float> measured = image_of(*open_cifar(folder.path(), options), 0);
  options.statistics = statistics;
  EXPECT_EQ(measured, image_of(*open_cifar(folder.path(), options), 0));
  options.statistics = kImageNetStatistics;
  const std::vector<float> given = image_of(*open_cifar(folder.path(), options), 0);
  const std::vector<std::uint8_t> test = records10(4, 5, 3);
  for (std::size_t i = 0; i < 3072; ++i) {
    const std::size_t c = i % 3;
    const double expected = (test[1 + c * 1024 + i / 3] / 255.0 - kImageNetStatistics.mean[c]) /
                            kImageNetStatistics.deviation[c];
    ASSERT_NEAR(static_cast<double>(given[i]), expected, 1e-6);
  }
}

TEST_F(CifarTest, SaysHowImagesArePrepared) {
  write_small_set(folder.path());
  EXPECT_EQ(open_cifar(folder.path(), {})->preparation(), (run::Preparation{.by_image = true}));
  const CifarOptions options{.split = Split::Validation,
                             .normalisation = CifarNormalisation::Dataset};
  const auto set = open_cifar(folder.path(), options);
  const ChannelStatistics statistics = measure_cifar(folder.path(), CifarKind::Cifar10);
  const run::Preparation preparation = set->preparation().value();
  EXPECT_FALSE(preparation.by_image);
  for (std::size_t c = 0; c < 3; ++c) {
    EXPECT_EQ(preparation.mean[c], 255.0 * statistics.mean[c]);
    EXPECT_EQ(preparation.deviation[c], 255.0 * statistics.deviation[c]);
  }
  // The recorded numbers give the bits that a network reads.
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(kSmallPixels));
  PixelScaling scaling;
  set->read(1, {}, bytes, scaling);
  std::vector<float> image(bytes.size());
  normalise_bytes<float>(bytes, scaling_of(preparation, 32), set->image_shape(), image);
  EXPECT_EQ(image, image_of(*set, 1));
}

TEST_F(CifarTest, NamesOfClassesComeFromTheirFile) {
  write_small_set(folder.path());
  EXPECT_EQ(open_cifar(folder.path(), {})->class_names(), std::vector<std::string>{});
  const auto name = [&](const char* text) {
    test::write_file(folder / "batches.meta.txt", text);
    test::write_file(folder.path() / kRecordCountsName, "");
    return open_cifar(folder.path(), {})->class_names();
  };
  EXPECT_EQ(name("a\nb\nc\nd\ne\nf\ng\nh\ni\ntwo words\n\n"),
            (std::vector<std::string>{"a", "b", "c", "d", "e", "f", "g", "h", "i", "two words"}));
  EXPECT_EQ(name("a\nb\n"), std::vector<std::string>{});
}

TEST_F(CifarTest, StatisticsThatCannotDivideAreRefused) {
  write_small_set(folder.path());
  CifarOptions options{
      .normalisation = CifarNormalisation::Dataset,
      .statistics = ChannelStatistics{.mean = {0.5, 0.5, 0.5}, .deviation = {0.2, 0.0, 0.2}}};
  expect_error(ErrorKind::Config, {"channel 1", "deviation 0", "positive"},
               [&] { (void)open_cifar(folder.path(), options); });
  options.statistics->deviation[1] = std::nan("");
  expect_error(ErrorKind::Config, {"channel 1", "nan"},
               [&] { (void)open_cifar(folder.path(), options); });
}

TEST_F(CifarTest, AFlatSetDoesNotDivideByZero) {
  std::vector<std::uint8_t> flat(kRecord10, 9);
  write_bytes(folder / "data_batch_1.bin", flat);
  const auto train = open_cifar(folder.path(), {.normalisation = CifarNormalisation::Dataset});
  for (const float pixel : image_of(*train, 0)) ASSERT_EQ(pixel, 0.0f);
}

TEST_F(CifarTest, Cifar100UsesTheFineLabel) {
  std::vector<std::uint8_t> bytes(2 * kRecord100, 50);
  bytes[0] = 19;
  bytes[1] = 99;
  bytes[kRecord100] = 3;
  bytes[kRecord100 + 1] = 42;
  bytes[kRecord100 + 2] = 51;  // first red pixel
  write_bytes(folder / "cifar-100-binary/test.bin", bytes);
  const auto test =
      open_cifar(folder.path(), {.kind = CifarKind::Cifar100, .split = Split::Validation});
  EXPECT_EQ(test->name(), "cifar-100");
  EXPECT_EQ(test->classes(), 100);
  EXPECT_EQ(test->size(), 2);
  EXPECT_EQ(test->label(0), 99);
  EXPECT_EQ(test->label(1), 42);
  const std::vector<float> image = image_of(*test, 1);
  EXPECT_GT(image[0], image[1]);
  EXPECT_EQ(image[1], image[3071]);
  refused(folder.path(), {"train.bin", "missing"}, {.kind = CifarKind::Cifar100});
}

TEST_F(CifarTest, WalksSubFoldersAndLinks) {
  const fs::path inside = folder / "b/sets/cifar-10-batches-bin";
  write_small_set(inside);
  fs::create_directories(folder / "a/cifar-10-batches-bin");  // empty: not the set
  EXPECT_EQ(find_cifar(folder.path(), CifarKind::Cifar10), inside);
  EXPECT_EQ(open_cifar(folder.path(), {})->size(), 5);
  fs::create_directory_symlink(folder.path(), folder / "b/loop");
  EXPECT_EQ(find_cifar(folder / "b", CifarKind::Cifar10), inside);
  const TemporaryDirectory links;  // the folder itself may be one
  fs::create_directory_symlink(inside, links / "cifar-10-batches-bin");
  EXPECT_EQ(open_cifar(links.path(), {})->size(), 5);
}

TEST_F(CifarTest, MissingFilesAreNamed) {
  refused(folder.path(), {folder.path().string(), "cifar-10-batches-bin", "data_batch_1.bin",
                          "test_batch.bin", "30,730,000", "`data-dir`", "millrace data generate"});
  refused(folder / "nowhere", {"nowhere", "does not exist", "cifar-100-binary", "train.bin"},
          {.kind = CifarKind::Cifar100});
  write_bytes(folder / "data_batch_1.bin", records10(1, 0, 1));
  write_bytes(folder / "data_batch_3.bin", records10(1, 0, 1));
  refused(folder.path(), {"data_batch_2.bin", "missing", "1 to 3"});
  refused(folder.path(), {"test_batch.bin", "missing"}, kTest);
}

TEST_F(CifarTest, AllProblemsOfASetAreListed) {
  write_small_set(folder.path());
  EXPECT_TRUE(cifar_is_in(folder.path(), CifarKind::Cifar10));
  EXPECT_FALSE(cifar_is_in(folder.path(), CifarKind::Cifar100));
  EXPECT_EQ(check_cifar(folder.path(), CifarKind::Cifar10, Split::Train).problems.size(), 0u);
  std::vector<std::uint8_t> bytes = records10(3, 0, 1);
  bytes[0] = 10;
  bytes[2 * 3073] = 200;
  write_bytes(folder / "data_batch_1.bin", bytes);
  bytes.resize(3073 + 1);
  write_bytes(folder / "data_batch_2.bin", bytes);
  const CifarReport report = check_cifar(folder.path(), CifarKind::Cifar10, Split::Train);
  EXPECT_EQ(report.files, 2);
  EXPECT_EQ(report.records, 4);
  ASSERT_EQ(report.problems.size(), 3u);
  test::expect_in(report.problems[0],
                  {"data_batch_1.bin: record 0 has label 10, but cifar-10 labels end at 9"});
  test::expect_in(report.problems[1], {"record 2 has label 200"});
  test::expect_in(report.problems[2], {"data_batch_2.bin: 3074 bytes"});
}

// A file alone does not show that it was truncated between two records; the files around it do.
// Readers stop at the first problem.
TEST_F(CifarTest, EveryCutOrMissingFileIsListed) {
  const auto problems = [&](const std::vector<int>& sizes, const std::string& beside,
                            const std::string& text) {
    for (int number = 1; number <= 5; ++number) fs::remove(file_of(folder.path(), number));
    fs::remove(folder.path() / kRecordCountsName);
    for (std::size_t i = 0; i < sizes.size(); ++i)
      if (sizes[i] > 0)
        write_bytes(file_of(folder.path(), static_cast<int>(i) + 1), records10(sizes[i], 0, 1));
    if (!beside.empty()) test::write_file(folder / beside, text);
    return check_cifar(folder.path(), CifarKind::Cifar10, Split::Train).problems;
  };
  const auto begins = [&](const std::vector<std::string>& lines,
                          const std::vector<std::string>& expected) {
    ASSERT_EQ(lines.size(), expected.size());
    if (lines.empty()) return (void)open_cifar(folder.path(), {});
    refused(folder.path(), {lines[0]});
    for (std::size_t i = 0; i < lines.size(); ++i)
      EXPECT_TRUE(lines[i].starts_with(folder.path().string() + expected[i])) << lines[i];
  };
  begins(problems({6, 3, 6, 2}, "", ""),
         {"/data_batch_4.bin: 2 records, but 6 are in data_batch_1.bin",
          "/data_batch_2.bin: 3 records, but 6 are in"});
  const std::string counts(kRecordCountsName);
  begins(problems({4, 2}, counts, "data_batch_1.bin 4\ndata_batch_2.bin 2\n"), {});
  for (const char* const text : {"\n", "data_batch_1.bin\n", "data_batch_1.bin x\n"})
    begins(problems({4}, counts, text), {"/" + counts + ": line 1 is not"});
  begins(problems({6, 0, 6, 2, 6}, "", ""),
         {"/data_batch_2.bin: missing from the training set", "/data_batch_4.bin: 2 records"});
  begins(
      problems({3, 0, 2}, counts,
               "data_batch_1.bin 4\ndata_batch_2.bin 4\ndata_batch_3.bin 4\ndata_batch_4.bin 4\n"),
      {"/data_batch_2.bin: missing from", "/data_batch_1.bin: 3 records, but 4 were generated",
       "/data_batch_3.bin: 2 records, but 4 were", "/data_batch_4.bin: is missing, but 4 records"});
  begins(problems({4, 3, 2}, "batches.meta.txt", "airplane\n"),
         {": 3 training files, but 5 are", "/data_batch_1.bin: 4 records, but 10000 are in the",
          "/data_batch_2.bin: 3 records", "/data_batch_3.bin: 2 records"});
  write_bytes(folder / "test_batch.bin", records10(4, 0, 1));
  refused(folder.path(), {"test_batch.bin: 4 records, but 10000 are in the published file"}, kTest);
}

TEST_F(CifarTest, FilesOfOtherLengthsAreRefused) {
  const fs::path file = folder / "test_batch.bin";
  std::vector<std::uint8_t> bytes = records10(2, 0, 1);
  bytes.pop_back();
  write_bytes(file, bytes);
  refused(folder.path(), {file.string(), "6145 bytes", "3073 bytes", "3072 left over"}, kTest);
  write_bytes(file, {});
  refused(folder.path(), {file.string(), "empty", "3073 bytes"}, kTest);
  // Before memory is allocated.
  write_bytes(file, records10(1, 0, 1));
  std::error_code error;
  fs::resize_file(file, std::uintmax_t{1} << 40, error);  // sparse
  if (error) GTEST_SKIP() << "no sparse files of 1 TiB in the temporary directory";
  refused(folder.path(), {file.string(), "1099511627776 bytes"}, kTest);
}

TEST_F(CifarTest, LabelsOutOfRangeAreRefused) {
  const CifarOptions fine{.kind = CifarKind::Cifar100};
  std::vector<std::uint8_t> bytes(kRecord100);
  for (const auto& [coarse, label, told] :
       {std::tuple{20, 0, "label 20, but cifar-100 labels end at 19"}, {19, 100, "end at 99"}}) {
    bytes[0] = static_cast<std::uint8_t>(coarse);
    bytes[1] = static_cast<std::uint8_t>(label);
    write_bytes(folder / "train.bin", bytes);
    refused(folder.path(), {"train.bin: record 0 has label ", told}, fine);
  }
}

TEST_F(CifarTest, ReadsThePublishedSet) {
  const auto directory = real_data("cifar-10-batches-bin");
  if (!directory) GTEST_SKIP() << "the published CIFAR-10 is not beside the project";
  const auto train = open_cifar(*directory, {});
  const auto test = open_cifar(directory->parent_path(), {.split = Split::Validation});
  EXPECT_EQ(train->size(), 50'000);
  EXPECT_EQ(test->size(), 10'000);
  EXPECT_EQ(train->label(0), 6);  // the frog
  EXPECT_EQ(test->label(0), 3);   // the cat
  std::vector<int> counts(10, 0);
  for (std::int64_t i = 0; i < train->size(); ++i)
    ++counts[static_cast<std::size_t>(train->label(i))];
  EXPECT_EQ(counts, std::vector<int>(10, 5000));

  const ChannelStatistics statistics = measure_cifar(*directory, CifarKind::Cifar10);
  const ChannelStatistics published{.mean = {0.49140, 0.48216, 0.44653},
                                    .deviation = {0.24703, 0.24348, 0.26159}};
  for (std::size_t c = 0; c < 3; ++c) {
    EXPECT_NEAR(statistics.mean[c], published.mean[c], 1e-5);
    EXPECT_NEAR(statistics.deviation[c], published.deviation[c], 1e-5);
  }
}

}  // namespace
}  // namespace millrace::io
