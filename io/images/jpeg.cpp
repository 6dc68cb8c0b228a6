// SPDX-License-Identifier: Apache-2.0
//
// JPEG with libjpeg-turbo. The library reports errors through a function that must not return. It
// jumps back to JpegCodec::guarded, across frames of the library and of functions that own
// nothing.

// jpeglib.h needs <cstdio>, jerror.h needs jpeglib.h.
#include <cstdio>

#include <jpeglib.h>

#include <jerror.h>

#include <csetjmp>

#include "io/images/reader.hpp"

namespace millrace::io {
namespace {

/// Extra columns decoded on either side of a box. Subsampled chroma is interpolated from
/// neighboring columns, and libjpeg-turbo uses another method for fewer than three of them.
constexpr std::int32_t kColumnMargin = 8;

constexpr JDIMENSION kRowsPerCall = 4;

/// The library's error manager with our fields; its address equals that of the base.
struct Messages : jpeg_error_mgr {
  std::jmp_buf on_error;
  char error[JMSG_LENGTH_MAX];
  char warning[JMSG_LENGTH_MAX];
  bool damaged;
  bool ended_early;  ///< the file ended before the end marker
};

struct Progress : jpeg_progress_mgr {
  std::int64_t pixels;
};

Messages& messages_of(j_common_ptr codec) { return *static_cast<Messages*>(codec->err); }

[[noreturn]] void on_error(j_common_ptr codec) {
  Messages& messages = messages_of(codec);
  if (messages.msg_code == JERR_NO_BACKING_STORE)
    std::snprintf(messages.error, sizeof messages.error,
                  "its passes need more than the limit of %ld MB per image", kMaxCodecBytes >> 20);
  else
    (*messages.format_message)(codec, messages.error);
  std::longjmp(messages.on_error, 1);
}

/// Level -1 is a warning, higher ones are traces.
void on_message(j_common_ptr codec, int level) {
  if (level >= 0) return;
  Messages& messages = messages_of(codec);
  if (messages.warning[0] == '\0') (*messages.format_message)(codec, messages.warning);
  switch (messages.msg_code) {
    case JWRN_JPEG_EOF:
      messages.ended_early = true;
      break;
    case JWRN_ARITH_BAD_CODE:
    case JWRN_BOGUS_PROGRESSION:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_MUST_RESYNC:
      messages.damaged = true;
      break;
    default:
      break;
  }
}

/// A few bytes of a progressive file can request another pass over the whole image.
void on_progress(j_common_ptr common) {
  const auto& codec = *reinterpret_cast<j_decompress_ptr>(common);
  const std::int64_t scans = codec.input_scan_number;
  const std::int64_t pixels = static_cast<const Progress*>(codec.progress)->pixels;
  if (scans <= kMaxScans && scans * pixels <= kMaxScanPixels) return;
  Messages& messages = messages_of(common);
  std::snprintf(messages.error, sizeof messages.error,
                "it makes more than %lld passes over the image",
                static_cast<long long>(std::min<std::int64_t>(kMaxScans, kMaxScanPixels / pixels)));
  std::longjmp(messages.on_error, 1);
}

/// Owns a codec. If it was never created, it has no memory manager, which the library's destroy
/// function checks.
struct Codec : jpeg_decompress_struct {
  Codec() : jpeg_decompress_struct{} {}
  ~Codec() { jpeg_destroy_decompress(this); }
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;
};

ColourSpace colours_of(const jpeg_decompress_struct& codec) {
  switch (codec.jpeg_color_space) {
    case JCS_GRAYSCALE:
      return ColourSpace::Gray;
    case JCS_RGB:
      return ColourSpace::Rgb;
    case JCS_YCbCr:
      return ColourSpace::YCbCr;
    case JCS_CMYK:
      return ColourSpace::Cmyk;
    case JCS_YCCK:
      return ColourSpace::Ycck;
    default:
      break;
  }
  fail(ErrorKind::Data, "JPEG: unknown color space with {} channels", codec.num_components);
}

bool is_inked(ColourSpace colours) {
  return colours == ColourSpace::Cmyk || colours == ColourSpace::Ycck;
}

/// Converts four ink channels to RGB in place: writing never overtakes reading.
void inks_to_rgb(std::uint8_t* row, std::int32_t width, bool stores_light) {
  const int flip = stores_light ? 0 : 255;
  for (std::ptrdiff_t x = 0; x < width; ++x) {
    const std::uint8_t* const inks = row + 4 * x;
    const int black = inks[3] ^ flip;  // 255 - byte
    for (std::ptrdiff_t c = 0; c < 3; ++c)
      row[3 * x + c] = static_cast<std::uint8_t>(((inks[c] ^ flip) * black + 127) / 255);
  }
}

/// A file whose header has been read. Each file needs a new codec: a reused codec would decode a
/// damaged file without tables with the tables of the last file.
class JpegCodec final : public ImageCodec {
 public:
  explicit JpegCodec(std::span<const std::byte> encoded) {
    codec_.err = jpeg_std_error(&messages_);
    messages_.error_exit = on_error;
    messages_.emit_message = on_message;
    progress_.progress_monitor = on_progress;
    guarded([this, encoded] {
      jpeg_create_decompress(&codec_);
      codec_.mem->max_memory_to_use = kMaxCodecBytes;
      codec_.progress = &progress_;
      jpeg_mem_src(&codec_, reinterpret_cast<const unsigned char*>(encoded.data()), encoded.size());
      jpeg_read_header(&codec_, TRUE);
    });
    check_image_size(codec_.image_width, codec_.image_height);
    header_ = {.format = ImageFormat::Jpeg,
               .width = static_cast<std::int32_t>(codec_.image_width),
               .height = static_cast<std::int32_t>(codec_.image_height),
               .colours = colours_of(codec_),
               .progressive = jpeg_has_multiple_scans(&codec_) != FALSE};
    progress_.pixels = std::int64_t{header_.width} * header_.height;
  }

  /// A sequential file that ends too early may still have all its pixels. A progressive file may
  /// lack a pass, and the arithmetic decoder continues without a warning.
  [[nodiscard]] ImageState state() const noexcept override {
    const bool may_lack = header_.progressive || codec_.arith_code != FALSE;
    const bool damaged = messages_.damaged || (messages_.ended_early && may_lack);
    return damaged ? ImageState::Damaged : ImageState::Whole;
  }

  [[nodiscard]] const char* warning() const noexcept override { return messages_.warning; }

  PixelView decode(const PixelBox& box, std::vector<std::uint8_t>& pixels) override {
    const bool inked = is_inked(header_.colours);
    const std::int64_t channels = inked ? 4 : 3;
    JDIMENSION left = 0;
    start(box, inked ? JCS_CMYK : JCS_RGB, left);
    const std::int64_t stride = std::int64_t{codec_.output_width} * channels;
    make_room(pixels, static_cast<std::size_t>(stride * (box.bottom - box.top)));
    read_rows(box, stride, pixels.data());
    std::uint8_t* const first =
        pixels.data() + (box.left - static_cast<std::int32_t>(left)) * channels;
    const PixelView view{.pixels = first, .stride = stride, .box = box};
    for (std::int32_t y = 0; inked && y < view.height(); ++y)
      inks_to_rgb(first + y * stride, view.width(), codec_.saw_Adobe_marker != FALSE);
    return view;
  }

  void finish() override {
    guarded([this] { jpeg_finish_decompress(&codec_); });
  }

 private:
  /// Runs library calls; their errors jump back here. `calls` must own nothing.
  template <class Calls>
  void guarded(const Calls& calls) {
    if (setjmp(messages_.on_error) == 0)
      calls();
    else
      fail(ErrorKind::Data, "JPEG: {}", messages_.error);
  }

  /// Starts to decode the columns of `box` and some neighbors, from column `left` on.
  void start(const PixelBox& box, J_COLOR_SPACE colours, JDIMENSION& left) {
    const std::int32_t from = std::max(box.left - kColumnMargin, 0);
    const std::int32_t to = std::min(box.right + kColumnMargin, header_.width);
    guarded([this, colours, from, to, &left] {
      codec_.out_color_space = colours;
      codec_.dct_method = JDCT_ISLOW;
      // Block smoothing for missing passes would read beyond the decoded columns.
      codec_.do_block_smoothing = FALSE;
      jpeg_start_decompress(&codec_);
      if (to - from == header_.width) return;
      left = static_cast<JDIMENSION>(from);
      auto columns = static_cast<JDIMENSION>(to - from);
      jpeg_crop_scanline(&codec_, &left, &columns);
    });
  }

  void read_rows(const PixelBox& box, std::int64_t stride, std::uint8_t* pixels) {
    guarded([this, &box, stride, pixels] {
      const auto top = static_cast<JDIMENSION>(box.top);
      const auto bottom = static_cast<JDIMENSION>(box.bottom);
      if (top > 0) jpeg_skip_scanlines(&codec_, top);
      while (codec_.output_scanline < bottom) {
        JSAMPROW rows[kRowsPerCall];
        const JDIMENSION count = std::min(kRowsPerCall, bottom - codec_.output_scanline);
        for (JDIMENSION i = 0; i < count; ++i)
          rows[i] = pixels + (codec_.output_scanline - top + i) * stride;
        jpeg_read_scanlines(&codec_, rows, count);
      }
    });
  }

  Messages messages_{};
  Progress progress_{};
  Codec codec_;
};

}  // namespace

std::unique_ptr<ImageCodec> open_jpeg(std::span<const std::byte> encoded) {
  return std::make_unique<JpegCodec>(encoded);
}

}  // namespace millrace::io
