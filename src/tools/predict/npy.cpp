// SPDX-License-Identifier: Apache-2.0
#include "tools/predict/npy.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstddef>
#include <string>
#include <string_view>

#include "core/error.hpp"

namespace millrace::io {
namespace {

static_assert(std::endian::native == std::endian::little, "values are written as in memory");

/// Version 1.0 of the format: a signature, the length of a Python dictionary, the dictionary. The
/// values begin at a multiple of 64 bytes.
std::string head_of(std::int64_t rows, std::int64_t columns) {
  constexpr std::string_view kSignature("\x93NUMPY\x01\x00", 8);
  constexpr std::size_t kLength = 2;
  constexpr std::size_t kAlign = 64;
  std::string text =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
  const std::size_t before = kSignature.size() + kLength;
  text.resize((before + text.size() + kAlign) / kAlign * kAlign - before - 1, ' ');
  text += '\n';
  std::string head(kSignature);
  head += static_cast<char>(text.size() % 256);
  head += static_cast<char>(text.size() / 256);
  return head + text;
}

}  // namespace

NpyFile::NpyFile(const std::filesystem::path& path, std::int64_t rows, std::int64_t columns)
    : file_(path), columns_(columns) {
  const std::string head = head_of(rows, columns);
  file_.write(std::as_bytes(std::span(head)), 0);
  begin_ = head.size();
}

void NpyFile::write(std::int64_t row, std::span<const float> values) const {
  MILLRACE_ASSERT(std::ssize(values) % columns_ == 0);
  file_.write(std::as_bytes(values),
              begin_ + static_cast<std::uint64_t>(row * columns_) * sizeof(float));
}

}  // namespace millrace::io
