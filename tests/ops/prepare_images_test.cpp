// SPDX-License-Identifier: Apache-2.0
#include "ops/prepare_images.hpp"

#include "core/float16.hpp"
#include "io/data/cifar.hpp"
#include "io/data/loader.hpp"
#include "io/data/synthetic.hpp"
#include "tests/io/cifar_records.hpp"
#include "tests/ops/device_values.hpp"

namespace millrace::ops {
namespace {

constexpr Shape kImage{5, 7, 3};
constexpr std::int64_t kBatch = 4;

std::vector<ImageMixing> mixing_of_four() {
  return {{.share = 0.75f, .area = 0.0f, .partner = 3, .donor = 0, .box = {}},
          {.share = 0.3f,
           .area = 6.0f / 35.0f,
           .partner = 0,
           .donor = 3,
           .box = {.top = 1, .left = 2, .bottom = 3, .right = 5}},
          {.share = 1.0f,
           .area = 1.0f,
           .partner = 2,
           .donor = 0,
           .box = {.top = 0, .left = 0, .bottom = 5, .right = 7}},
          {.share = 0.0f,
           .area = 7.0f / 35.0f,
           .partner = 1,
           .donor = 1,
           .box = {.top = 4, .left = 0, .bottom = 5, .right = 7}}};
}

std::size_t index(std::int64_t n, std::int64_t y, std::int64_t x, std::int64_t c) {
  return static_cast<std::size_t>(((n * kImage.h + y) * kImage.w + x) * kImage.c + c);
}

/// One step after another, in double: blend, then cut and paste.
Values naive_mix(const Values& images, const std::vector<ImageMixing>& mixing) {
  Values added(images.size());
  Values result(images.size());
  const auto each = [](auto&& f) {
    for (std::int64_t n = 0; n < kBatch; ++n)
      for (std::int64_t y = 0; y < kImage.h; ++y)
        for (std::int64_t x = 0; x < kImage.w; ++x)
          for (std::int64_t c = 0; c < kImage.c; ++c) f(n, y, x, c);
  };
  each([&](std::int64_t n, std::int64_t y, std::int64_t x, std::int64_t c) {
    const ImageMixing& m = mixing[static_cast<std::size_t>(n)];
    const auto share = static_cast<double>(m.share);
    added[index(n, y, x, c)] =
        share * images[index(n, y, x, c)] + (1.0 - share) * images[index(m.partner, y, x, c)];
  });
  each([&](std::int64_t n, std::int64_t y, std::int64_t x, std::int64_t c) {
    const ImageMixing& m = mixing[static_cast<std::size_t>(n)];
    const bool cut = y >= m.box.top && y < m.box.bottom && x >= m.box.left && x < m.box.right;
    result[index(n, y, x, c)] = added[index(cut ? m.donor : n, y, x, c)];
  });
  return result;
}

std::vector<PixelScaling> some_scaling() {
  std::vector<PixelScaling> scaling(kBatch);
  for (std::size_t n = 0; n < scaling.size(); ++n) {
    for (std::size_t c = 0; c < 3; ++c) {
      scaling[n].mean[c] = 100.3f + static_cast<float>(n) - 7.7f * static_cast<float>(c);
      scaling[n].scale[c] = 0.0171f + 0.001f * static_cast<float>(n * 3 + c);
    }
    scaling[n].real = {.top = 0, .left = 0, .bottom = 5, .right = 7};
  }
  scaling[1].real = {.top = 2, .left = 0, .bottom = 5, .right = 4};
  scaling[2].real = {};
  scaling[3].erased = {.top = 1, .left = 2, .bottom = 4, .right = 6};
  return scaling;
}

template <class T>
class PrepareImages : public testing::Test {
 protected:
  static constexpr PrepareImagesShape kShape{kBatch, kImage};
  static Values mix(const Values& images, const std::vector<ImageMixing>& mixing) {
    const device::ExecutionSpace space;
    DeviceValues<T> x(images), y(kBatch * kImage.elements());
    const DeviceRecords<ImageMixing> records(mixing);
    prepare_floats<T, T>(space, kShape, y.data(), x.data(), records.data());
    device::fence(space);
    return y.values();
  }
  template <class Stored>
  static Values convert(const Values& images, const std::vector<ImageMixing>& mixing) {
    const device::ExecutionSpace space;
    DeviceValues<Stored> x(images);
    DeviceValues<T> y(kBatch * kImage.elements());
    const DeviceRecords<ImageMixing> records(mixing);
    prepare_floats<T, Stored>(space, kShape, y.data(), x.data(), records.data());
    device::fence(space);
    return y.values();
  }
  static Values prepare(const Values& bytes, const std::vector<PixelScaling>& scaling,
                        const std::vector<ImageMixing>& mixing) {
    const device::ExecutionSpace space;
    DeviceValues<std::uint8_t> x(bytes);
    DeviceValues<T> y(kBatch * kImage.elements());
    const DeviceRecords<ImageMixing> records(mixing);
    const DeviceRecords<PixelScaling> scales(scaling);
    prepare_bytes(space, kShape, y.data(), x.data(), scales.data(), records.data());
    device::fence(space);
    return y.values();
  }
};
using StorageTypes = testing::Types<float, bfloat16, float16>;
TYPED_TEST_SUITE(PrepareImages, StorageTypes);

/// Pixels of `channels` channels, with zeros behind those of the images.
Values padded(const Values& images, std::int64_t channels) {
  Values all(images.size() / 3 * static_cast<std::size_t>(channels), 0.0);
  for (std::size_t i = 0; i < images.size(); ++i)
    all[i / 3 * static_cast<std::size_t>(channels) + i % 3] = images[i];
  return all;
}

Values some_bytes() {
  const RandomStream stream(4, RandomPurpose::SyntheticData);
  Values bytes(static_cast<std::size_t>(kBatch * kImage.elements()));
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<double>(stream.block(0, i)[0] & 255u);
  return bytes;
}

TYPED_TEST(PrepareImages, PaddingIsZerosBehindTheChannels) {
  using T = TypeParam;
  const device::ExecutionSpace space;
  const Values bytes = some_bytes();
  DeviceValues<std::uint8_t> x(bytes);
  const DeviceRecords<PixelScaling> scales(some_scaling());
  for (const std::int64_t channels : {4, 8})
    for (const bool mixes : {false, true}) {
      const std::vector<ImageMixing> mixing = mixes ? mixing_of_four() : std::vector<ImageMixing>{};
      const DeviceRecords<ImageMixing> records(mixing);
      const PrepareImagesShape shape{kBatch, kImage, channels};
      // What was there before must not stay.
      const Values before(static_cast<std::size_t>(kBatch * kImage.pixels() * channels), 7.0);
      DeviceValues<T> y(before);
      prepare_bytes(space, shape, y.data(), x.data(), scales.data(), records.data());
      device::fence(space);
      EXPECT_EQ(y.values(), padded(this->prepare(bytes, some_scaling(), mixing), channels));
      const Values floats = random_as<T>(kBatch * kImage.elements(), 1, -3.0, 3.0);
      DeviceValues<T> from(floats), to(before);
      prepare_floats<T, T>(space, shape, to.data(), from.data(), records.data());
      device::fence(space);
      EXPECT_EQ(to.values(), padded(this->mix(floats, mixing), channels));
    }
}

TYPED_TEST(PrepareImages, MixingIsTheReference) {
  using T = TypeParam;
  const Values images = random_as<T>(kBatch * kImage.elements(), 1, -3.0, 3.0);
  const Values expected = naive_mix(images, mixing_of_four());
  const Values mixed = this->mix(images, mixing_of_four());
  EXPECT_TRUE(close(mixed, expected, [&](std::size_t i) {
    return kUnit<T> * std::abs(expected[i]) + 4.0 * kFloatUnit * 3.0;
  }));
  // A copied image keeps its bits: image 2 is a box of image 0's blend.
  EXPECT_EQ(mixed[index(2, 3, 3, 1)], mixed[index(0, 3, 3, 1)]);
}

// Values that all types represent exactly, and some that only float32 does.
TYPED_TEST(PrepareImages, FloatsOfAnyTypeAreRoundedAndThenMixed) {
  using T = TypeParam;
  const Values images = random_as<float>(kBatch * kImage.elements(), 6, -3.0, 3.0);
  const auto stored_as = [&]<class Stored>(Stored) {
    Values rounded;
    for (const double x : images) rounded.push_back(decode(encode<T>(decode(encode<Stored>(x)))));
    EXPECT_EQ(this->template convert<Stored>(images, {}), rounded);
    EXPECT_EQ(this->template convert<Stored>(images, mixing_of_four()),
              this->mix(rounded, mixing_of_four()));
    return rounded;
  };
  // Rounding to float16 first makes no difference if T is float16.
  if constexpr (!std::is_same_v<TypeParam, float16>) {
    EXPECT_NE(stored_as(float{}), stored_as(float16{}));
  }
  (void)stored_as(bfloat16{});
}

/// Reads `dataset` twice, as bytes that the kernel normalizes and as images normalized on the host.
/// The tensors must have the same bits.
template <class T>
void expect_tensors_of_the_host(const std::shared_ptr<const io::Dataset>& dataset) {
  constexpr std::int64_t kImages = 50;
  const Shape image = dataset->image_shape();
  io::LoaderOptions options{.batch_size = kImages,
                            .type = device::dtype_of<T>(),
                            .threads = 1,
                            .seed = 3,
                            .augment = true,
                            .end_position = dataset->size()};
  const io::SampleOrder order = io::SampleOrder::shuffled(3, dataset->size());
  io::Loader host(dataset, order, options);
  options.type = DType::U8;
  io::Loader bytes(dataset, order, options);
  const device::ExecutionSpace space;
  DeviceRecords<std::uint8_t> pixels(
      std::vector<std::uint8_t>(static_cast<std::size_t>(kImages * image.elements())));
  DeviceValues<T> y(kImages * image.elements());
  std::vector<std::byte> made(static_cast<std::size_t>(y.bytes()));
  std::int64_t images = 0;
  while (const io::Batch* const expected = host.next()) {
    const io::Batch* const batch = bytes.next();
    ASSERT_NE(batch, nullptr);
    device::copy_to_device(
        const_cast<std::byte*>(reinterpret_cast<const std::byte*>(pixels.data())),
        batch->images.data(), std::ssize(batch->images));
    const DeviceRecords<PixelScaling> scaling({batch->scaling.begin(), batch->scaling.end()});
    prepare_bytes<T>(space, {kImages, image}, y.data(), pixels.data(), scaling.data(), nullptr);
    device::fence(space);
    device::copy_to_host(made.data(), y.raw(), y.bytes());
    ASSERT_EQ(expected->images.size(), made.size());
    ASSERT_EQ(std::memcmp(made.data(), expected->images.data(), made.size()), 0)
        << dataset->name() << ", batch at " << batch->first_position;
    images += batch->count;
  }
  EXPECT_EQ(images, dataset->size());
}

TYPED_TEST(PrepareImages, TensorsAreThoseOfTheHost) {
  using T = TypeParam;
  const io::TemporaryDirectory folder;
  io::write_cifar10(folder.path(), 1020, 1);
  for (const auto normalisation :
       {io::CifarNormalisation::Standardise, io::CifarNormalisation::Dataset})
    expect_tensors_of_the_host<T>(io::open_cifar(folder.path(), {.normalisation = normalisation}));
  const io::Augmentation augmentation{.operations = 2, .erasing = 0.7};
  expect_tensors_of_the_host<T>(io::open_cifar(folder.path(), {.augmentation = augmentation}));
  expect_tensors_of_the_host<T>(
      io::make_synthetic({.image_shape = {33, 20, 3}, .classes = 10, .size = 70}));
}

// Rows of a multiple of eight values, which accelerators write several at a time: the same pixels
// in rows of 8 columns as in rows of 7.
TYPED_TEST(PrepareImages, RowsOfAnyLengthHaveTheSamePixels) {
  using T = TypeParam;
  constexpr Shape kWide{kImage.h, kImage.w + 1, kImage.c};
  const Values images = random_as<T>(kBatch * kImage.elements(), 7, -3.0, 3.0);
  Values wide;
  for (std::size_t row = 0; row < static_cast<std::size_t>(kBatch * kImage.h); ++row) {
    const auto first = images.begin() + static_cast<std::ptrdiff_t>(row * kImage.w * kImage.c);
    wide.insert(wide.end(), first, first + kImage.w * kImage.c);
    wide.insert(wide.end(), kImage.c, 0.0);
  }
  for (const auto& mixing : {std::vector<ImageMixing>{}, mixing_of_four()}) {
    const device::ExecutionSpace space;
    const DeviceRecords<ImageMixing> records(mixing);
    DeviceValues<T> x(wide), y(kBatch * kWide.elements());
    prepare_floats<T, T>(space, {kBatch, kWide}, y.data(), x.data(), records.data());
    device::fence(space);
    const Values made = y.values();
    const Values narrow = mixing.empty() ? images : this->mix(images, mixing);
    for (std::size_t i = 0; i < made.size(); ++i) {
      const std::size_t column = i % (kWide.w * kWide.c);
      const std::size_t row = i / (kWide.w * kWide.c);
      if (column < kImage.w * kImage.c) {
        ASSERT_EQ(made[i], narrow[row * kImage.w * kImage.c + column]) << i;
      } else {
        ASSERT_EQ(made[i], 0.0) << i;
      }
    }
  }
}

// Mixing gives the same bits for images that arrive as bytes and for images that arrive normalized.
TYPED_TEST(PrepareImages, MixedBytesAreMixedImages) {
  const Values bytes = some_bytes();
  const Values images = this->prepare(bytes, some_scaling(), {});
  EXPECT_EQ(this->prepare(bytes, some_scaling(), mixing_of_four()),
            this->mix(images, mixing_of_four()));
}

}  // namespace
}  // namespace millrace::ops
