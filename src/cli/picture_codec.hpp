// SPDX-License-Identifier: Apache-2.0
//
// The decoder functions that the data commands pass to io/records.
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

/// What is wrong with an image file, or "".
[[nodiscard]] std::string picture_problem(std::span<const std::byte> file);

/// Height and width according to the header; nothing if it is damaged.
[[nodiscard]] std::optional<io::PictureSize> picture_size(std::span<const std::byte> file);

/// The size of an image, and for CMYK and PNG files an RGB JPEG of quality 100. Errors: Data.
[[nodiscard]] io::PreparedPicture prepare_picture(std::span<const std::byte> file);

/// Decodes an image and resizes it for packing. Errors: Data, also for an unsuitable size.
void shrink_picture(std::span<const std::byte> file, std::int32_t shorter_side,
                    io::PixelBuffer& out);

}  // namespace millrace::cli
