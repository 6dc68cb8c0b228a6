// SPDX-License-Identifier: Apache-2.0
#include "io/tools/statistics.hpp"

#include <gtest/gtest.h>

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
  EXPECT_EQ(all.bytes, std::filesystem::file_size(path));
  EXPECT_EQ(all.per_class, (std::vector<std::int64_t>{3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 0}));
  EXPECT_EQ(all.measured, 24);
  EXPECT_EQ(all.height.smallest, static_cast<std::int64_t>(fake_image(0).size()));
  EXPECT_EQ(all.height.largest, static_cast<std::int64_t>(fake_image(24).size()));
  EXPECT_EQ(all.width, (Spread{5, 5, 5}));
}

TEST(StatisticsTest, BadImagesAreListedUpToAShare) {
  const TemporaryDirectory root;
  const auto path = root / "train-00000-of-00001";
  const auto places = write_shard(path, 0, 10);
  OpenOptions options;
  options.classes = 10;
  const auto source = open_image_dataset(root.path(), Split::Train, options);
  flip_byte(path, places[4] + 40);
  const MeasureImage measure = [](std::span<const std::byte>) { return ImageSize{3, 4}; };
  const ImageStatistics found = collect_statistics(*source, 0.1, measure);
  EXPECT_EQ(found.images, 10);
  EXPECT_EQ(found.measured, 9);
  EXPECT_EQ(found.bad, std::vector<std::string>{source->where(4) + ": data checksum mismatch"});
  expect_error(ErrorKind::Data, {"1 of 10 images", source->where(4), "--max-bad-fraction"},
               [&] { (void)collect_statistics(*source, 0.09, measure); });
}

}  // namespace
}  // namespace millrace::io
