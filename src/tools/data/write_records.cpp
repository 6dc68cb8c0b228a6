// SPDX-License-Identifier: Apache-2.0
#include "tools/data/write_records.hpp"

#include <bit>
#include <cstring>
#include <string_view>

#include "core/error.hpp"
#include "io/data/record_frame.hpp"
#include "io/data/wire.hpp"

namespace millrace::io {
namespace {

constexpr std::size_t kWritePiece = std::size_t{1} << 20;

/// The kinds of lists that a feature may have.
constexpr int kBytes = 1;
constexpr int kFloats = 2;
constexpr int kIntegers = 3;

/// The map of a tf.Example, whose features are added in the order of their names.
class Features {
 public:
  void add(std::string_view name, int kind, std::string_view value) {
    const std::size_t list = WireMessage::size_of_bytes(value.size());
    const std::size_t feature = WireMessage::size_of_bytes(list);
    message_.begin(1, WireMessage::size_of_bytes(name.size()) + WireMessage::size_of_bytes(feature))
        .bytes(1, name)
        .begin(2, feature)
        .begin(kind, list)
        .bytes(1, value);
  }
  void add(std::string_view name, std::int64_t value) {
    add(name, kIntegers, WireMessage().varint(static_cast<std::uint64_t>(value)).str());
  }
  void add(std::string_view name, std::span<const ObjectBox> boxes, float ObjectBox::*side) {
    WireMessage values;
    for (const ObjectBox& box : boxes) values.fixed(std::bit_cast<std::uint32_t>(box.*side));
    if (!boxes.empty()) add(name, kFloats, values.str());
  }
  void write(std::vector<std::byte>& payload) const {
    const std::string& map = message_.str();
    const std::string head = WireMessage().begin(1, map.size()).str();
    payload.resize(head.size() + map.size());
    std::memcpy(payload.data(), head.data(), head.size());
    std::memcpy(payload.data() + head.size(), map.data(), map.size());
  }

 private:
  WireMessage message_;
};

}  // namespace

void write_example(const ExampleContent& content, std::vector<std::byte>& payload) {
  Features features;
  features.add("image/channels", std::int64_t{3});
  features.add("image/class/label", content.label);
  features.add("image/class/synset", kBytes, content.synset);
  features.add("image/colorspace", kBytes, "RGB");
  features.add("image/encoded", kBytes,
               {reinterpret_cast<const char*>(content.encoded.data()), content.encoded.size()});
  features.add("image/filename", kBytes, content.filename);
  features.add("image/format", kBytes, "JPEG");
  features.add("image/height", content.height);
  features.add("image/object/bbox/xmax", content.boxes, &ObjectBox::right);
  features.add("image/object/bbox/xmin", content.boxes, &ObjectBox::left);
  features.add("image/object/bbox/ymax", content.boxes, &ObjectBox::bottom);
  features.add("image/object/bbox/ymin", content.boxes, &ObjectBox::top);
  features.add("image/width", content.width);
  features.write(payload);
}

RecordWriter::RecordWriter(const std::filesystem::path& path) : path_(path), file_(path) {
  pending_.reserve(kWritePiece);
}

void RecordWriter::append(std::span<const std::byte> payload) {
  if (payload.size() > kMaxRecordBytes)
    fail(ErrorKind::Data, "{}: a record of {} bytes cannot be written; the limit is {}",
         path_.string(), payload.size(), kMaxRecordBytes);
  append_frame(payload, pending_);
  if (pending_.size() >= kWritePiece) flush();
}

void RecordWriter::flush() {
  file_.write(pending_, written_);
  written_ += pending_.size();
  pending_.clear();
}

void RecordWriter::commit() {
  flush();
  file_.commit();
}

}  // namespace millrace::io
