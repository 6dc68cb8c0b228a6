// SPDX-License-Identifier: Apache-2.0
//
// TFRecord files: iteration over frames and indexing. The first byte of an input selects whether
// checksums are corrected first; otherwise few mutations pass the first checksum.
#include <algorithm>
#include <array>
#include <string>

#include "io/data/example.hpp"
#include "io/data/little_endian.hpp"
#include "io/data/record_frame.hpp"
#include "io/data/record_index.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/io/records/example_bytes.hpp"

namespace millrace::fuzz {
namespace {

using namespace io;

/// Corrects the checksums of every record whose length fits.
void repair(Bytes& file) {
  std::size_t at = 0;
  while (file.size() - at >= kFrameBytes) {
    const auto length = load_little<std::uint64_t>(file.data() + at);
    store_little(masked_crc32c(std::span(file).subspan(at, 8)), file.data() + at + 8);
    if (length > file.size() - at - kFrameBytes) return;
    const std::size_t payload = at + kFrameHeadBytes;
    store_little(masked_crc32c(std::span(file).subspan(payload, length)),
                 file.data() + payload + length);
    at += kFrameBytes + length;
  }
}

void walk_over(std::span<const std::byte> bytes) {
  ByteWindow file(bytes, "input");
  FrameWalk walk(file);
  std::uint64_t offset = 0;
  for (;;) {
    const Frame frame = walk.next();
    if (frame.kind == Frame::Kind::End) break;
    require(frame.begin == offset && frame.end > offset && frame.end <= bytes.size(),
            "frames follow each other within the file");
    require((frame.kind == Frame::Kind::Damage) == !frame.problem.empty(),
            "only damage has a problem");
    offset = frame.end;
  }
  require(offset == bytes.size(), "frames cover the file");
}

Bytes file_of(std::span<const Bytes> payloads) {
  Bytes file;
  for (const Bytes& payload : payloads) {
    std::array<std::byte, kFrameHeadBytes> head{};
    store_little(static_cast<std::uint64_t>(payload.size()), head.data());
    file.insert(file.end(), head.begin(), head.end());
    file.insert(file.end(), payload.begin(), payload.end());
    file.resize(file.size() + sizeof(std::uint32_t));
  }
  repair(file);
  return file;
}

Bytes example(std::size_t image_bytes) {
  return example_bytes({.encoded = std::string(image_bytes, 'U'), .label = 3});
}

}  // namespace

void run_one(std::span<const std::byte> input) {
  if (input.empty()) return;
  Bytes file(input.begin() + 1, input.end());
  if (input[0] != std::byte{0}) repair(file);
  walk_over(file);
  ByteWindow window(file, "input");
  const FileRecords records = scan_records(window);
  for (const RecordEntry& entry : records.entries)
    require(entry.offset + entry.bytes + kFrameBytes <= file.size(), "entries lie in the file");
}

std::vector<Bytes> seeds() {
  const std::vector<std::vector<Bytes>> files = {
      {example(3), example(200), example(1)}, {Bytes(), Bytes(), Bytes(5)}, {example(5000)}};
  std::vector<Bytes> inputs;
  for (const auto& payloads : files)
    for (const unsigned repaired : {0u, 1u}) inputs.push_back(tagged(repaired, file_of(payloads)));
  return inputs;
}

}  // namespace millrace::fuzz
