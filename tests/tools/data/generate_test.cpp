// SPDX-License-Identifier: Apache-2.0
#include "tools/data/generate.hpp"

#include "core/sha256.hpp"
#include "io/data/cifar.hpp"
#include "tests/io/fixtures.hpp"
#include "tests/io/samples.hpp"

namespace millrace::io {
namespace {

std::string digest_of(const fs::path& file) {
  const std::vector<std::uint8_t> bytes = read_bytes(file);
  Sha256 digest;
  digest.update(std::as_bytes(std::span(bytes)));
  return digest.hex_digest();
}

struct GenerateTest : testing::Test {
  const TemporaryDirectory folder;
};

TEST_F(GenerateTest, BytesAreTheSameOnEveryMachine) {
  generate_cifar10_like(folder.path(), {.train_records = 20, .test_records = 10, .seed = 7});
  EXPECT_EQ(digest_of(folder / "data_batch_1.bin"),
            "a2b01b2031738685c8766b9ef71cda9dfadc804595d9df18463a5f24212f1767");
  EXPECT_EQ(digest_of(folder / "test_batch.bin"),
            "6c4c9294c7a8502af5c027c3666ff096e589a80a20556a165de7c0edb514faf0");
}

TEST_F(GenerateTest, HasTheLayoutOfCifar10) {
  generate_cifar10_like(folder / "deep/set", {.train_records = 30, .test_records = 20});
  const fs::path set = folder / "deep/set";
  EXPECT_EQ(fs::file_size(set / "data_batch_1.bin"), 30u * 3073u);
  EXPECT_EQ(fs::file_size(set / "test_batch.bin"), 20u * 3073u);
  const std::vector<std::uint8_t> names = read_bytes(set / "batches.meta.txt");
  EXPECT_EQ(std::string(names.begin(), names.end()),
            "disc\nring\nsquare\nframe\ntriangle\ncross\nplus\nrows\ncolumns\ncheckers\n");
  EXPECT_EQ(std::distance(fs::directory_iterator(set), fs::directory_iterator()), 4);

  const auto train = open_cifar(set, {});
  std::array<int, 10> counts{};
  for (std::int64_t i = 0; i < train->size(); ++i)
    ++counts[static_cast<std::size_t>(train->label(i))];
  EXPECT_EQ(counts, (std::array<int, 10>{3, 3, 3, 3, 3, 3, 3, 3, 3, 3}));
}

TEST_F(GenerateTest, HasTheLayoutOfCifar100) {
  const fs::path set = folder / "set";
  generate_cifar100_like(set, {.train_records = 300, .test_records = 100, .seed = 7});
  EXPECT_EQ(fs::file_size(set / "train.bin"), 300u * 3074u);
  EXPECT_EQ(fs::file_size(set / "test.bin"), 100u * 3074u);
  EXPECT_EQ(digest_of(set / "test.bin"),
            "ff1ed1b4307498f42dce33fa64967276287d07fb43a03adee1632509ae97e897");
  const std::vector<std::uint8_t> names = read_bytes(set / "fine_label_names.txt");
  EXPECT_EQ(std::count(names.begin(), names.end(), '\n'), 100);
  EXPECT_EQ(std::string(names.begin(), names.begin() + 20), "red disc\ngreen disc\n");
  const std::vector<std::uint8_t> bytes = read_bytes(set / "train.bin");
  const auto train = open_cifar(set, {.kind = CifarKind::Cifar100});
  EXPECT_EQ(train->classes(), 100);
  std::vector<int> counts(100, 0);
  for (std::int64_t i = 0; i < train->size(); ++i) {
    EXPECT_EQ(train->label(i), bytes[static_cast<std::size_t>(i) * 3074 + 1]);
    EXPECT_EQ(bytes[static_cast<std::size_t>(i) * 3074], train->label(i) / 5);
    ++counts[static_cast<std::size_t>(train->label(i))];
  }
  EXPECT_EQ(counts, std::vector<int>(100, 3));
  EXPECT_EQ(open_cifar(set, {.kind = CifarKind::Cifar100, .split = Split::Validation})->size(),
            100);
  expect_error(ErrorKind::Usage, {"already exists"}, [&] { generate_cifar100_like(set, {}); });
}

// One record more than fits in a file.
TEST_F(GenerateTest, LargeSetsHaveSeveralFiles) {
  generate_cifar10_like(folder.path(), {.train_records = 10'001, .test_records = 1});
  EXPECT_EQ(fs::file_size(folder / "data_batch_1.bin"), 5000u * 3073u);
  EXPECT_EQ(fs::file_size(folder / "data_batch_2.bin"), 5001u * 3073u);
  EXPECT_FALSE(fs::exists(folder / "data_batch_3.bin"));
}

TEST_F(GenerateTest, NeverOverwritesASet) {
  const fs::path file = folder / "data_batch_4.bin";
  write_bytes(file, std::vector<std::uint8_t>{1, 2, 3});
  expect_error(ErrorKind::Usage, {file.string(), "already exists", "another directory"},
               [&] { generate_cifar10_like(folder.path(), {}); });
  EXPECT_EQ(read_bytes(file), (std::vector<std::uint8_t>{1, 2, 3}));
  EXPECT_FALSE(fs::exists(folder / "test_batch.bin"));
}

TEST_F(GenerateTest, ImpossibleRequestsAreRefused) {
  expect_error(ErrorKind::Config, {"0 training images", "1 to 500000"}, [&] {
    generate_cifar10_like(folder.path(), {.train_records = 0, .test_records = 1});
  });
  expect_error(ErrorKind::Config, {"100001 test images", "1 to 100000"}, [&] {
    generate_cifar10_like(folder.path(), {.train_records = 1, .test_records = 100'001});
  });
  write_bytes(folder / "file", std::vector<std::uint8_t>{1});
  expect_error(ErrorKind::Io, {"file/set", "cannot be created"},
               [&] { generate_cifar10_like(folder / "file/set", {}); });
}

}  // namespace
}  // namespace millrace::io
