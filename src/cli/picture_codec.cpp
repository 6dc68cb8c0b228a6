// SPDX-License-Identifier: Apache-2.0
#include "cli/picture_codec.hpp"

#include <string_view>

#include "core/error.hpp"
#include "io/records/image_folder.hpp"

namespace millrace::cli {
namespace {

[[noreturn]] void fail_without_decoder(std::string_view what) {
  fail(ErrorKind::Config, "this build has no decoder of pictures, which {} needs", what);
}

}  // namespace

std::string picture_problem(std::span<const std::byte> file) {
  return io::picture_kind(file) == io::PictureKind::Unknown ? "neither JPEG nor PNG" : "";
}

std::optional<io::PictureSize> picture_size(std::span<const std::byte> /*file*/) { return {}; }

io::PreparedPicture prepare_picture(std::span<const std::byte> /*file*/) {
  fail_without_decoder("data convert");
}

void shrink_picture(std::span<const std::byte> /*file*/, std::int32_t /*shorter_side*/,
                    io::PixelBuffer& /*out*/) {
  fail_without_decoder("data convert --packed");
}

}  // namespace millrace::cli
