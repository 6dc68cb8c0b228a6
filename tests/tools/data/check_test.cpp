// SPDX-License-Identifier: Apache-2.0
#include "tools/data/check.hpp"

#include <sys/stat.h>

#include "io/data/dataset_kinds.hpp"
#include "io/data/record_set.hpp"
#include "tests/io/records/shards.hpp"
#include "tools/data/statistics.hpp"

namespace millrace::io {
namespace {

CheckOptions options_for(std::int64_t classes) {
  CheckOptions options;
  options.inspect = nullptr;  // the images are fakes
  options.threads = 2;
  options.classes = classes;
  return options;
}

CheckReport check(const fs::path& root, const CheckOptions& options = options_for(10)) {
  return check_images(root, Split::Train, options);
}

using Lines = std::vector<std::string>;

Lines lines_of(const CheckReport& report) {
  Lines lines;
  for (const Finding& finding : report.findings) lines.push_back(to_string(finding));
  return lines;
}

struct CheckTest : testing::Test {
  const TemporaryDirectory root;
};

TEST_F(CheckTest, WholeShardsHaveNoFindingsAndACompressedOneHasOne) {
  const fs::path second = root / "train-00001-of-00002";
  write_shard(root / "train-00000-of-00002", 0, 30);
  write_shard(second, 30, 12);
  CheckReport report = check(root.path());
  EXPECT_TRUE(report.findings.empty());
  EXPECT_EQ(report.files, 2u);
  EXPECT_EQ(report.records, 42u);
  EXPECT_EQ(report.bytes, fs::file_size(root / "train-00000-of-00002") + fs::file_size(second));
  Bytes gzip = bytes_of("\x1f\x8b\x08");
  gzip.resize(2000);
  store(second, gzip);
  report = check(root.path());
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_TRUE(report.findings[0].problem.starts_with("is compressed with GZIP"))
      << report.findings[0].problem;
}

TEST_F(CheckTest, EveryFlippedByteIsFoundWithItsPlace) {
  const fs::path path = root / "train-00000-of-00001";
  const auto places = write_shard(path, 0, 3);
  for (std::uint64_t byte = 0; byte < places[3]; ++byte) {
    flip_byte(path, byte);
    const CheckReport report = check(root.path());
    flip_byte(path, byte);
    const std::uint64_t record = byte < places[1] ? 0 : byte < places[2] ? 1 : 2;
    ASSERT_EQ(report.findings.size(), 1u) << byte;
    EXPECT_EQ(report.findings[0].file, path.string());
    EXPECT_EQ(report.findings[0].record, record) << byte;
    EXPECT_EQ(report.findings[0].offset, places[record]) << byte;
    EXPECT_EQ(report.records, 3u) << byte;
  }
}

TEST_F(CheckTest, ListsEverythingThatIsBad) {
  const fs::path first = root / "train-00000-of-00003";
  const auto places = write_shard(first, 0, 10);
  flip_byte(first, places[2]);
  flip_byte(first, places[5] + 30);
  const fs::path last = root / "train-00002-of-00003";
  const auto ends = write_shard(last, 0, 4);
  cut(last, ends[3] + 5);
  CheckOptions options = options_for(9);
  options.inspect = [](std::span<const std::byte> bytes) -> std::string {
    return text_of(bytes).find("image 7") != std::string::npos ? "upside down" : "";
  };
  const std::string a = first.string();
  EXPECT_EQ(
      lines_of(check(root.path(), options)),
      (Lines{
          (root / "train-00001-of-00003").string() + ": the shard is missing",
          fmt::format("{}, record 2 at offset {}: record length checksum mismatch", a, places[2]),
          fmt::format("{}, record 5 at offset {}: data checksum mismatch", a, places[5]),
          fmt::format("{}, record 7 at offset {}: the image: upside down", a, places[7]),
          fmt::format("{}, record 9 at offset {}: label 10 is not one of 1 to 9", a, places[9]),
          fmt::format("{}, record 3 at offset {}: 5 bytes are left, but a record has at least 16: "
                      "the file is truncated",
                      last.string(), ends[3]),
      }));
}

TEST_F(CheckTest, IdxFilesAreComparedWithTheirShards) {
  const fs::path path = root / "train-00000-of-00001";
  const auto places = write_shard(path, 0, 3);
  store(path.string() + ".idx",
        fmt::format("0 {}\n{} {}\n", places[1], places[1], places[2] - places[1]));
  EXPECT_EQ(lines_of(check(root.path())),
            Lines{fmt::format("{}.idx: no line for the record of {} bytes at offset {}",
                              path.string(), places[3] - places[2], places[2])});
  store(path.string() + ".idx", std::string_view("nonsense\n"));
  EXPECT_EQ(lines_of(check(root.path())),
            Lines{path.string() + ".idx: line 1 is not \"offset bytes\""});
}

TEST_F(CheckTest, LeftoversOfAnInterruptedCopyAreFound) {
  const fs::path path = root / "train-00000-of-00002";
  const auto places = write_shard(path, 0, 3);
  store(path.string() + ".idx",
        fmt::format("0 {}\n{} {}\n{} {}\n", places[1], places[1], places[2] - places[1], places[2],
                    places[3] - places[2]));
  store(root / "train-00001-of-00002", std::string_view(""));
  cut(path, places[2]);
  const Lines lines = lines_of(check(root.path()));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], (root / "train-00001-of-00002").string() +
                          ": the shard is empty: fetch or convert it again");
  EXPECT_TRUE(lines[1].starts_with(
      fmt::format("{}: ends at {}, but the records in its .idx end at {}: the shard is truncated",
                  path.string(), places[2], places[3])))
      << lines[1];
}

TEST_F(CheckTest, OnlyWhatIsNamedAsAnImageIsBadInAClassFolder) {
  const fs::path folder = root / "train/n01";
  store(folder / "a.JPEG", fake_image(1));
  store(folder / "b.JPEG", std::string_view("text"));
  store(folder / "c", fake_image(2));
  store(folder / "d.JPEG", std::string_view(""));
  store(folder / "README.txt", std::string_view("text"));
  fs::create_directories(folder / "folder.JPEG");
  fs::create_directories(folder / "notes");
  fs::create_symlink("nowhere", folder / "gone.JPEG");
  fs::create_symlink("/dev/zero", folder / "zeros.JPEG");
  ASSERT_EQ(mkfifo((folder / "pipe.JPEG").c_str(), 0600), 0);
  const CheckReport report = check(root.path());
  EXPECT_EQ(report.records, 4u);
  Lines lines = lines_of(report);
  std::ranges::sort(lines);
  const auto line = [&](const char* name, const char* problem) {
    return (folder / name).string() + ": " + problem;
  };
  EXPECT_EQ(lines, (Lines{line("b.JPEG", "is neither JPEG nor PNG"), line("d.JPEG", "is empty"),
                          line("folder.JPEG", "is a folder with the name of an image"),
                          line("gone.JPEG", "is not a regular file, or is a broken link"),
                          line("pipe.JPEG", "is not a regular file, or is a broken link"),
                          line("zeros.JPEG", "is not a regular file, or is a broken link")}));
  ASSERT_EQ(report.notices.size(), 1u);
  test::expect_in(report.notices[0], {"1 file left out, neither JPEG nor PNG", "n01/README.txt"});
}

TEST_F(CheckTest, AFindingNamesItsPlaceOnceAndInOneLine) {
  const std::string place = "d/train-00001-of-00008, record 41 at offset 65525";
  const std::string cases[][3] = {
      {place, "d/train-00001-of-00008: the file ends at offset 65000",
       place + ": the file ends at offset 65000"},
      {place, place + ": data checksum", place + ": data checksum"},
      {place, "d/train-00001: another file", place + ": d/train-00001: another file"},
      {"a.JPEG", "a.JPEG: cut", "a.JPEG: cut"},
      {"a.JPEG", "cut", "a.JPEG: cut"},
      {"a.JPEG", "cannot open a.JPEG: no such file", "a.JPEG: cannot open: no such file"},
      {"a.JPEG", "cannot open b/a.JPEG: no such file",
       "a.JPEG: cannot open b/a.JPEG: no such file"},
      {"a\x1b\n.JPEG", "a\x1b\n.JPEG: cut", "a\\x1b\\n.JPEG: cut"}};
  for (const auto& [at, problem, told] : cases) EXPECT_EQ(problem_at(at, problem), told);
  EXPECT_EQ(to_string(Finding{.file = "a\n", .problem = "cut"}), "a\\n: cut");
  EXPECT_EQ(describe_place("a\n", 1, 2), "a\\n, record 1 at offset 2");
  std::vector<std::string> notices;
  leave_out_bad({.bad = 1, .all = 9, .max_fraction = 0.2}, "", "in a\n", notices,
                [](std::size_t) { return "b\x1b"; });
  EXPECT_EQ(notices, (std::vector<std::string>{"in a\\n", "left out: b\\x1b"}));
}

TEST_F(CheckTest, RealShards) {
  const auto format = real_data("tfrecord_imagenet_format");
  const auto photos = real_data("tfrecord_imagenet_photos");
  if (!format || !photos) GTEST_SKIP() << "no shards beside the project";
  CheckOptions options = options_for(1000);
  EXPECT_EQ(check(*photos, options).findings.size(), 1u);  // the missing shard
  options.label_offset = 0;
  EXPECT_TRUE(check(*format, options).findings.empty());
  const CheckReport validation = check_images(*format, Split::Validation, options);
  EXPECT_TRUE(validation.findings.empty());
  EXPECT_EQ(validation.records, 128u);
}

// ---- statistics ---------------------------------------------------------------------------------

TEST(StatisticsTest, SpreadOfNumbers) {
  EXPECT_EQ(spread_of({}), (Spread{0, 0, 0}));
  EXPECT_EQ(spread_of({7}), (Spread{7, 7, 7}));
  EXPECT_EQ(spread_of({9, 1, 5, 3, 7}), (Spread{1, 5, 9}));
}

TEST(StatisticsTest, CountsClassesAndBytes) {
  const TemporaryDirectory root;
  const auto path = root / "train-00000-of-00001";
  write_shard(path, 0, 25);  // labels in turn: classes 0 to 4 have one more
  OpenOptions options;
  options.classes = 11;
  const auto source = open_image_dataset(root.path(), Split::Train, options);
  int asked = 0;
  const ImageStatistics all = collect_statistics(
      *source, 0.04, [&](std::span<const std::byte> bytes) -> std::optional<ImageSize> {
        if (++asked == 3) return {};
        return ImageSize{static_cast<std::int32_t>(bytes.size()), 5};
      });
  EXPECT_EQ(all.bad, std::vector<std::string>{source->where(2) + ": its size cannot be read"});
  EXPECT_EQ(all.images, 25);
  EXPECT_EQ(all.bytes, fs::file_size(path));
  EXPECT_EQ(all.per_class, (std::vector<std::int64_t>{3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 0}));
  EXPECT_EQ(all.measured, 24);
  EXPECT_EQ(all.height.smallest, static_cast<std::int64_t>(fake_image(0).size()));
  EXPECT_EQ(all.height.largest, static_cast<std::int64_t>(fake_image(24).size()));
  EXPECT_EQ(all.width, (Spread{5, 5, 5}));
}

TEST(BadImagesTest, OneOfSeveralMayAlwaysBeBad) {
  struct Row {
    std::int64_t all;
    double share;
    std::int64_t most;
  };
  for (const auto& [all, share, most] :
       {Row{91, 0.001, 1}, Row{2, 0.001, 1}, Row{1, 0.001, 0}, Row{1, 1.0, 1}, Row{91, 0.0, 0},
        Row{999, 0.001, 1}, Row{2000, 0.001, 2}, Row{1'281'167, 0.001, 1281}, Row{24, 0.1, 2},
        Row{40, 1.0, 40}})
    EXPECT_EQ(most_bad(all, share), most) << all << " " << share;
  EXPECT_EQ(describe_limit(1'281'167, 0.001), "`max-bad-fraction` 0.001 allows at most 1,281");
}

TEST(StatisticsTest, OneBadImageOf91IsNamed) {
  const TemporaryDirectory root;
  const auto path = root / "train-00000-of-00001";
  const auto places = write_shard(path, 0, 91);
  const auto source = open_image_dataset(root.path(), Split::Train, {});
  flip_byte(path, places[4] + 40);
  const double share = OpenOptions().max_bad_fraction;
  const MeasureImage measure = [](std::span<const std::byte>) { return ImageSize{3, 4}; };
  const ImageStatistics found = collect_statistics(*source, share, measure);
  EXPECT_EQ(found.measured, 90);
  EXPECT_EQ(found.bad, std::vector<std::string>{source->where(4) + ": data checksum mismatch"});
  flip_byte(path, places[5] + 40);
  expect_error(ErrorKind::Data,
               {"2 of 91 images", source->where(5), "`max-bad-fraction` 0.001 allows at most 1"},
               [&] { (void)collect_statistics(*source, share, measure); });
}

}  // namespace
}  // namespace millrace::io
