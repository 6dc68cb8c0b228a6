// SPDX-License-Identifier: Apache-2.0
#include "tools/data/statistics.hpp"

#include "io/data/imagenet.hpp"
#include "shards.hpp"

namespace millrace::io {
namespace {

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
        Row{40, 1.0, 40}}) {
    EXPECT_EQ(most_bad(all, share), most) << all << " " << share;
    EXPECT_FALSE(too_many_bad(most, all, share)) << all << " " << share;
    EXPECT_TRUE(too_many_bad(most + 1, all, share)) << all << " " << share;
  }
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
