// SPDX-License-Identifier: Apache-2.0
//
// Files of packed images. The first byte of an input selects whether the checksums of header and
// table are corrected first.
#include <algorithm>
#include <array>
#include <string_view>

#include "core/crc32c.hpp"
#include "io/data/little_endian.hpp"
#include "io/data/packed_images.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace millrace::fuzz {
namespace {

using namespace io;

constexpr std::size_t kHeadBytes = 64;

void repair(Bytes& file) {
  if (file.size() < kHeadBytes + 4) return;
  const auto table = load_little<std::uint64_t>(file.data() + 32);
  if (table <= file.size() - 4)
    store_little(crc32c(std::span(file).subspan(table, file.size() - 4 - table)),
                 file.data() + file.size() - 4);
  store_little(crc32c(std::span(file).first(60)), file.data() + 60);
}

/// Two images of 2 x 3 and 1 x 1 pixels, the second with a box.
Bytes packed_file() {
  Bytes file(kHeadBytes + 128, std::byte{7});
  ByteWriter head;
  head.put_bytes(std::as_bytes(std::span(std::string_view("MLRPACKD"))));
  head.put(std::uint32_t{1});
  head.put(std::uint32_t{1});
  head.put(std::uint64_t{2});
  head.put(std::uint64_t{5});
  head.put(static_cast<std::uint64_t>(file.size()));
  std::ranges::copy(head.bytes(), file.begin());
  constexpr std::array<float, 4> kBox = {0.0f, 0.0f, 0.5f, 1.0f};
  const auto box = std::as_bytes(std::span(kBox));
  std::ranges::copy(box, file.begin() + 128 + 4);
  ByteWriter table;
  const auto row = [&](std::uint64_t at, std::uint32_t height, std::uint32_t width,
                       std::uint32_t boxes, std::size_t bytes) {
    table.put(at);
    table.put(height);
    table.put(width);
    table.put(std::uint32_t{4});
    table.put(boxes);
    table.put(crc32c(std::span(file).subspan(at, bytes)));
    table.put(std::uint32_t{0});
  };
  row(64, 2, 3, 0, 20);
  row(128, 1, 1, 1, 20);
  file.insert(file.end(), table.bytes().begin(), table.bytes().end());
  file.resize(file.size() + 4);
  repair(file);
  return file;
}

}  // namespace

void run_one(std::span<const std::byte> input) {
  if (input.empty()) return;
  Bytes file(input.begin() + 1, input.end());
  if (input[0] != std::byte{0}) repair(file);
  fails_only_as(ErrorKind::Data, [&] {
    const PackedImages packed(file, "input");
    ReadBuffer buffer;
    for (std::int64_t i = 0; i < packed.size(); ++i) {
      require(packed.label(i) >= 0 && packed.label(i) < packed.classes(), "labels are classes");
      const StoredImage image = packed.stored(i, buffer);
      require(image.bytes.data() >= file.data() &&
                  std::as_bytes(image.boxes).data() + image.boxes.size_bytes() <=
                      file.data() + file.size(),
              "images are in the file");
      require(image.bytes.size() == std::size_t{3} * static_cast<std::size_t>(image.height) *
                                        static_cast<std::size_t>(image.width),
              "pixels fill the image");
    }
  });
}

std::vector<Bytes> seeds() { return {tagged(0, packed_file()), tagged(1, packed_file())}; }

}  // namespace millrace::fuzz
