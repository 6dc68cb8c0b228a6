// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "io/images/header.hpp"

namespace millrace::io {

/// Encodes the pixels of a view as a baseline JPEG file in YCbCr, without chroma subsampling.
/// `quality` is 1 to 100. Equal pixels give equal bytes. Errors: Internal, if the library fails.
[[nodiscard]] std::vector<std::byte> encode_rgb_jpeg(const PixelView& view, int quality);

}  // namespace millrace::io
