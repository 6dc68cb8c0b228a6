// SPDX-License-Identifier: Apache-2.0
//
// PNG with libpng. Errors as in jpeg.cpp: the library jumps back to PngCodec::guarded, across
// frames that own nothing.
#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "io/images/reader.hpp"

namespace millrace::io {
namespace {

constexpr std::int64_t kChannels = 3;

struct Messages {
  std::jmp_buf on_error;
  char error[200];
  char warning[200];
};

/// The file and the read position.
struct Source {
  std::span<const std::byte> encoded;
  std::size_t position = 0;
};

[[noreturn]] void on_error(png_structp codec, png_const_charp text) {
  auto& messages = *static_cast<Messages*>(png_get_error_ptr(codec));
  std::snprintf(messages.error, sizeof messages.error, "%s", text);
  std::longjmp(messages.on_error, 1);
}

void on_warning(png_structp codec, png_const_charp text) {
  auto& messages = *static_cast<Messages*>(png_get_error_ptr(codec));
  if (messages.warning[0] == '\0')
    std::snprintf(messages.warning, sizeof messages.warning, "%s", text);
}

void on_read(png_structp codec, png_bytep to, std::size_t bytes) {
  auto& source = *static_cast<Source*>(png_get_io_ptr(codec));
  if (bytes > source.encoded.size() - source.position) png_error(codec, "the file ends too early");
  std::memcpy(to, source.encoded.data() + source.position, bytes);
  source.position += bytes;
}

ColourSpace colours_of(int type) {
  if ((type & PNG_COLOR_MASK_PALETTE) != 0) return ColourSpace::Palette;
  return (type & PNG_COLOR_MASK_COLOR) != 0 ? ColourSpace::Rgb : ColourSpace::Gray;
}

/// A file whose header has been read.
class PngCodec final : public ImageCodec {
 public:
  explicit PngCodec(std::span<const std::byte> encoded) : source_{.encoded = encoded} {
    codec_.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &messages_, on_error, on_warning);
    if (codec_.png == nullptr)
      fail(ErrorKind::Data, "PNG: libpng cannot be used: {}", messages_.warning);
    guarded([this] {
      codec_.info = png_create_info_struct(codec_.png);
      png_set_read_fn(codec_.png, &source_, on_read);
      // Skips all chunks except those with pixels, because some are compressed.
      png_set_keep_unknown_chunks(codec_.png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
      png_set_user_limits(codec_.png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
      png_read_info(codec_.png, codec_.info);
    });
    const auto width = png_get_image_width(codec_.png, codec_.info);
    const auto height = png_get_image_height(codec_.png, codec_.info);
    check_image_size(width, height);
    header_ = {
        .format = ImageFormat::Png,
        .width = static_cast<std::int32_t>(width),
        .height = static_cast<std::int32_t>(height),
        .colours = colours_of(png_get_color_type(codec_.png, codec_.info)),
        .progressive = png_get_interlace_type(codec_.png, codec_.info) != PNG_INTERLACE_NONE};
  }

  [[nodiscard]] const char* warning() const noexcept override { return messages_.warning; }

  /// Decodes whole rows from `box.top` on (all rows if interlaced).
  PixelView decode(const PixelBox& box, std::vector<std::uint8_t>& pixels) override {
    guarded([this] { start(); });
    const std::int64_t stride = header_.width * kChannels;
    const std::int32_t first = header_.progressive ? 0 : box.top;
    const std::int32_t behind = header_.progressive ? header_.height : box.bottom;
    make_room(pixels, static_cast<std::size_t>(stride * (behind - first)));
    read_rows(first, behind, stride, pixels.data());
    return {.pixels = pixels.data() + (box.top - first) * stride + box.left * kChannels,
            .stride = stride,
            .box = box};
  }

  void finish() override {
    guarded([this] { png_read_end(codec_.png, nullptr); });
  }

 private:
  struct Codec {
    png_structp png = nullptr;
    png_infop info = nullptr;
    Codec() = default;
    ~Codec() { png_destroy_read_struct(&png, &info, nullptr); }
    Codec(const Codec&) = delete;
    Codec& operator=(const Codec&) = delete;
  };

  /// Runs library calls; their errors jump back here. `calls` must own nothing.
  template <class Calls>
  void guarded(const Calls& calls) {
    if (setjmp(messages_.on_error) == 0)
      calls();
    else
      fail(ErrorKind::Data, "PNG: {}", messages_.error);
  }

  /// Requests three bytes per pixel for every format.
  void start() const {
    png_set_expand(codec_.png);
    png_set_strip_16(codec_.png);
    png_set_gray_to_rgb(codec_.png);
    png_set_strip_alpha(codec_.png);
    png_set_interlace_handling(codec_.png);
    png_read_update_info(codec_.png, codec_.info);
    if (png_get_rowbytes(codec_.png, codec_.info) !=
        static_cast<std::size_t>(header_.width * kChannels))
      png_error(codec_.png, "its pixels cannot be converted to RGB");
  }

  /// Rows above `first` are decoded into the buffer of the first row, which overwrites them.
  void read_rows(std::int32_t first, std::int32_t behind, std::int64_t stride,
                 std::uint8_t* pixels) {
    guarded([this, first, behind, stride, pixels] {
      const int passes = header_.progressive ? PNG_INTERLACE_ADAM7_PASSES : 1;
      for (int pass = 0; pass < passes; ++pass)
        for (std::int32_t y = 0; y < behind; ++y)
          png_read_row(codec_.png, pixels + std::max(y - first, 0) * stride, nullptr);
    });
  }

  Messages messages_{};
  Source source_;
  Codec codec_;
};

}  // namespace

std::unique_ptr<ImageCodec> open_png(std::span<const std::byte> encoded) {
  return std::make_unique<PngCodec>(encoded);
}

}  // namespace millrace::io
