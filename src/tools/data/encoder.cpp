// SPDX-License-Identifier: Apache-2.0
#include "tools/data/image_codec.hpp"

// jpeglib.h needs <cstdio>.
#include <cstdio>

#include <jpeglib.h>

#include <csetjmp>
#include <cstdlib>

#include "core/error.hpp"

namespace millrace::io {
namespace {

struct Messages : jpeg_error_mgr {
  std::jmp_buf on_error;
  char error[JMSG_LENGTH_MAX];
};

[[noreturn]] void on_error(j_common_ptr codec) {
  Messages& messages = *static_cast<Messages*>(codec->err);
  (*messages.format_message)(codec, messages.error);
  std::longjmp(messages.on_error, 1);
}

/// A codec and its output memory. Each file needs a new codec: after a progressive file, a codec
/// writes damaged files.
struct Writer {
  Writer() : codec{}, messages{} {
    codec.err = jpeg_std_error(&messages);
    messages.error_exit = on_error;
  }
  ~Writer() {
    jpeg_destroy_compress(&codec);
    std::free(memory);  // NOLINT(cppcoreguidelines-no-malloc): the library allocated it with malloc
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  jpeg_compress_struct codec;
  Messages messages;
  unsigned char* memory = nullptr;  ///< allocated by the library with malloc
  unsigned long bytes = 0;
};

/// Must own nothing, because the library leaves it by longjmp on errors. Returns false then.
bool write(Writer& writer, const PixelView& view, int quality) {
  if (setjmp(writer.messages.on_error) != 0) return false;
  jpeg_compress_struct& codec = writer.codec;
  jpeg_create_compress(&codec);
  jpeg_mem_dest(&codec, &writer.memory, &writer.bytes);
  codec.image_width = static_cast<JDIMENSION>(view.width());
  codec.image_height = static_cast<JDIMENSION>(view.height());
  codec.input_components = 3;
  codec.in_color_space = JCS_RGB;
  jpeg_set_defaults(&codec);
  jpeg_set_quality(&codec, quality, TRUE);
  codec.comp_info[0].h_samp_factor = 1;
  codec.comp_info[0].v_samp_factor = 1;
  jpeg_start_compress(&codec, TRUE);
  while (codec.next_scanline < codec.image_height) {
    const auto y = static_cast<std::int64_t>(codec.next_scanline);
    // The library reads rows through non-const pointers.
    auto* row = const_cast<unsigned char*>(view.pixels + y * view.stride);
    jpeg_write_scanlines(&codec, &row, 1);
  }
  jpeg_finish_compress(&codec);
  return true;
}

}  // namespace

std::vector<std::byte> encode_rgb_jpeg(const PixelView& view, int quality) {
  MILLRACE_ASSERT(quality >= 1 && quality <= 100 && view.width() > 0 && view.height() > 0);
  Writer writer;
  if (!write(writer, view, quality))
    fail(ErrorKind::Internal, "JPEG: an image of {}x{} cannot be written: {}", view.width(),
         view.height(), writer.messages.error);
  const auto* const begin = reinterpret_cast<const std::byte*>(writer.memory);
  return {begin, begin + writer.bytes};
}

}  // namespace millrace::io
