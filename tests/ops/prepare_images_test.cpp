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
  // share, area, partner, donor, box
  return {{0.75f, 0.0f, 3, 0, {}},
          {0.3f, 6.0f / 35.0f, 0, 3, {.top = 1, .left = 2, .bottom = 3, .right = 5}},
          {1.0f, 1.0f, 2, 0, {.top = 0, .left = 0, .bottom = 5, .right = 7}},
          {0.0f, 7.0f / 35.0f, 1, 1, {.top = 4, .left = 0, .bottom = 5, .right = 7}}};
}

/// One step after another, in double: blend, then cut and paste.
Values naive_mix(const Values& images, const std::vector<ImageMixing>& mixing) {
  constexpr auto kOfImage = static_cast<std::size_t>(kImage.elements());
  const auto of_image = [](const Values& all, std::int32_t n, std::size_t i) {
    return all[static_cast<std::size_t>(n) * kOfImage + i % kOfImage];
  };
  Values blended, result;
  for (std::size_t i = 0; i < images.size(); ++i) {
    const ImageMixing& m = mixing[i / kOfImage];
    const auto share = static_cast<double>(m.share);
    blended.push_back(share * images[i] + (1.0 - share) * of_image(images, m.partner, i));
  }
  for (std::size_t i = 0; i < images.size(); ++i) {
    const auto& [share, area, partner, donor, box] = mixing[i / kOfImage];
    const auto pixel = static_cast<std::int64_t>(i % kOfImage) / kImage.c;
    const std::int64_t y = pixel / kImage.w;
    const std::int64_t x = pixel % kImage.w;
    const bool cut = y >= box.top && y < box.bottom && x >= box.left && x < box.right;
    result.push_back(cut ? of_image(blended, donor, i) : blended[i]);
  }
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

constexpr PrepareImagesShape kShape{kBatch, kImage};

template <class T>
class PrepareImages : public OfStorageType<T> {
 protected:
  static DeviceValues<T> room_for(const PrepareImagesShape& s) {
    return DeviceValues<T>(s.batch * s.shape_in_memory().elements());
  }
  /// Images that arrive as values of Stored.
  template <class Stored = T>
  static Values mix(const Values& images, const std::vector<ImageMixing>& mixing,
                    const PrepareImagesShape& shape = kShape) {
    const device::ExecutionSpace space;
    DeviceValues<Stored> x(images);
    DeviceValues<T> y = room_for(shape);
    const DeviceRecords<ImageMixing> records(mixing);
    prepare_floats<T, Stored>(space, shape, y.data(), x.data(), records.data());
    return y.values();
  }
  static Values prepare(const Values& bytes, const std::vector<ImageMixing>& mixing,
                        const PrepareImagesShape& shape = kShape) {
    const device::ExecutionSpace space;
    DeviceValues<std::uint8_t> x(bytes);
    DeviceValues<T> y = room_for(shape);
    const DeviceRecords<ImageMixing> records(mixing);
    const DeviceRecords<PixelScaling> scales(some_scaling());
    prepare_bytes(space, shape, y.data(), x.data(), scales.data(), records.data());
    return y.values();
  }
};
TYPED_TEST_SUITE(PrepareImages, StorageTypes);

Values some_bytes() {
  const RandomStream stream(4, RandomPurpose::SyntheticData);
  Values bytes(static_cast<std::size_t>(kBatch * kImage.elements()));
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<double>(stream.block(0, i)[0] & 255u);
  return bytes;
}

/// Groups of `width` values, each with zeros behind it up to `padded_width`.
Values padded(const Values& values, std::int64_t width, std::int64_t padded_width) {
  Values all;
  for (auto first = values.begin(); first != values.end(); first += width) {
    all.insert(all.end(), first, first + width);
    all.resize(all.size() + static_cast<std::size_t>(padded_width - width));
  }
  return all;
}

TYPED_TEST(PrepareImages, PaddingIsZerosBehindTheChannels) {
  const Values bytes = some_bytes();
  const Values floats = random_as<TypeParam>(kBatch * kImage.elements(), 1, -3.0, 3.0);
  for (const std::int64_t channels : {4, 8})
    for (const auto& mixing : {std::vector<ImageMixing>{}, mixing_of_four()}) {
      const PrepareImagesShape shape{kBatch, kImage, Shape{kImage.h, kImage.w, channels}};
      EXPECT_EQ(this->prepare(bytes, mixing, shape),
                padded(this->prepare(bytes, mixing), kImage.c, channels));
      EXPECT_EQ(this->mix(floats, mixing, shape),
                padded(this->mix(floats, mixing), kImage.c, channels));
    }
}

/// Images of 6x8 pixels with blocks of 2x2 pixels as one of `channels`.
Values in_blocks(const Values& images, std::int64_t channels) {
  Values all(static_cast<std::size_t>(kBatch * 3 * 4 * channels));
  for (std::int64_t n = 0; n < kBatch; ++n)
    for (std::int64_t y = 0; y < 6; ++y)
      for (std::int64_t x = 0; x < 8; ++x)
        for (std::int64_t c = 0; c < 3; ++c) {
          const std::int64_t block = (n * 3 + y / 2) * 4 + x / 2;
          const std::int64_t place = (y % 2 * 2 + x % 2) * 3 + c;
          all.at(static_cast<std::size_t>(block * channels + place)) =
              images.at(static_cast<std::size_t>(((n * 6 + y) * 8 + x) * 3 + c));
        }
  return all;
}

constexpr Shape kEven{6, 8, 3};

/// Images of kImage with another column and another row.
Values even(const Values& images) {
  Values all =
      padded(padded(images, kImage.w * 3, kEven.w * 3), kImage.h * kEven.w * 3, kEven.elements());
  double next = 0.0;
  for (double& x : all)
    if (x == 0.0) x = next = next < 100.0 ? next + 1.0 : 0.0;
  return all;
}

// With channels that are written together, and not.
TYPED_TEST(PrepareImages, BlocksHoldTheirPixels) {
  const Values bytes = even(some_bytes());
  const Values floats = even(random_as<TypeParam>(kBatch * kImage.elements(), 1, -3.0, 3.0));
  for (const std::int64_t channels : {16, 14, 13, 12})
    for (const auto& mixing : {std::vector<ImageMixing>{}, mixing_of_four()}) {
      const PrepareImagesShape plain{kBatch, kEven};
      const PrepareImagesShape blocks{kBatch, kEven, Shape{3, 4, channels}};
      EXPECT_EQ(this->prepare(bytes, mixing, blocks),
                in_blocks(this->prepare(bytes, mixing, plain), channels));
      EXPECT_EQ(this->mix(floats, mixing, blocks),
                in_blocks(this->mix(floats, mixing, plain), channels));
    }
}

TYPED_TEST(PrepareImages, MixingIsTheReference) {
  using T = TypeParam;
  const Values images = random_as<T>(kBatch * kImage.elements(), 1, -3.0, 3.0);
  const Values mixed = this->mix(images, mixing_of_four());
  EXPECT_TRUE(stored<T>(mixed, naive_mix(images, mixing_of_four()), 0.0, 12.0));
  // A copied image keeps its bits: image 2 is a box of image 0's blend.
  const std::int64_t elements = kImage.elements();
  EXPECT_TRUE(std::equal(mixed.begin(), mixed.begin() + elements, mixed.begin() + 2 * elements));
}

// Values that all types represent exactly, and some that only float32 does.
TYPED_TEST(PrepareImages, FloatsOfAnyTypeAreRoundedAndThenMixed) {
  using T = TypeParam;
  const Values images = random_as<float>(kBatch * kImage.elements(), 6, -3.0, 3.0);
  const auto stored_as = [&]<class Stored>(Stored) {
    Values rounded;
    for (const double x : images) rounded.push_back(decode(encode<T>(decode(encode<Stored>(x)))));
    EXPECT_EQ(this->template mix<Stored>(images, {}), rounded);
    EXPECT_EQ(this->template mix<Stored>(images, mixing_of_four()),
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
  std::int64_t images = 0;
  while (const io::Batch* const expected = host.next()) {
    const io::Batch* const batch = bytes.next();
    ASSERT_NE(batch, nullptr);
    const DeviceRecords<std::byte> pixels({batch->images.begin(), batch->images.end()});
    const DeviceRecords<PixelScaling> scaling({batch->scaling.begin(), batch->scaling.end()});
    DeviceValues<T> y(kImages * image.elements());
    prepare_bytes<T>(space, {kImages, image}, y.data(),
                     reinterpret_cast<const std::uint8_t*>(pixels.data()), scaling.data(), nullptr);
    const std::vector<std::byte> made = y.bits();
    ASSERT_TRUE(
        std::equal(made.begin(), made.end(), expected->images.begin(), expected->images.end()))
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
  const Shape wide{kImage.h, kImage.w + 1, kImage.c};
  const auto widened = [&](const Values& images) {
    return padded(images, kImage.w * kImage.c, wide.w * wide.c);
  };
  const Values images = random_as<TypeParam>(kBatch * kImage.elements(), 7, -3.0, 3.0);
  EXPECT_EQ(this->mix(widened(images), {}, {kBatch, wide}), widened(images));
  EXPECT_EQ(this->mix(widened(images), mixing_of_four(), {kBatch, wide}),
            widened(this->mix(images, mixing_of_four())));
}

// Mixing gives the same bits for images that arrive as bytes and for images that arrive normalized.
TYPED_TEST(PrepareImages, MixedBytesAreMixedImages) {
  const Values bytes = some_bytes();
  EXPECT_EQ(this->prepare(bytes, mixing_of_four()),
            this->mix(this->prepare(bytes, {}), mixing_of_four()));
}

}  // namespace
}  // namespace millrace::ops
