// SPDX-License-Identifier: Apache-2.0
//
// What the data commands ask of a decoder of pictures, in the forms in which io/records calls it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "io/records/convert.hpp"
#include "io/records/packed_pictures.hpp"
#include "io/records/statistics.hpp"

namespace millrace::cli {

/// What is wrong with a picture's header (size, kind), or "".
[[nodiscard]] std::string picture_problem(std::span<const std::byte> file);

/// Height and width by the header; nothing when it is damaged.
[[nodiscard]] std::optional<io::PictureSize> picture_size(std::span<const std::byte> file);

/// Its size, and an RGB JPEG of quality 100 for CMYK and PNG files. Errors: Data.
[[nodiscard]] io::PreparedPicture prepare_picture(std::span<const std::byte> file);

/// Decodes a picture and resizes it to its packed size. Errors: Data, also for that size.
void shrink_picture(std::span<const std::byte> file, std::int32_t shorter_side,
                    io::PixelBuffer& out);

}  // namespace millrace::cli
