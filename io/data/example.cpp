// SPDX-License-Identifier: Apache-2.0
#include "io/data/example.hpp"

#include <fmt/format.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "io/data/record_frame.hpp"

namespace millrace::io {
namespace {

namespace pb = google::protobuf;
using pb::internal::WireFormatLite;

constexpr int kMaxDepth = 8;

// The part of a window that holds one Example, as a stream that can skip.
class WindowStream final : public pb::io::ZeroCopyInputStream {
 public:
  WindowStream(ByteWindow& file, std::uint64_t begin, std::uint64_t bytes)
      : file_(file), begin_(begin), at_(begin), end_(begin + bytes) {}

  bool Next(const void** data, int* size) override {
    if (at_ >= end_) return false;
    const std::span<const std::byte> piece = file_.from(at_);
    const std::uint64_t taken = std::min<std::uint64_t>(piece.size(), end_ - at_);
    *data = piece.data();
    *size = static_cast<int>(taken);  // fits in an int because records are limited
    at_ += taken;
    return true;
  }
  void BackUp(int count) override { at_ -= static_cast<std::uint64_t>(count); }
  bool Skip(int count) override {
    const auto wanted = static_cast<std::uint64_t>(count);
    const bool there = wanted <= end_ - at_;
    at_ = there ? at_ + wanted : end_;
    return there;
  }
  [[nodiscard]] std::int64_t ByteCount() const override {
    return static_cast<std::int64_t>(at_ - begin_);
  }

 private:
  ByteWindow& file_;
  std::uint64_t begin_;
  std::uint64_t at_;
  std::uint64_t end_;
};

constexpr std::uint32_t tag_of(int field, WireFormatLite::WireType type) {
  return (static_cast<std::uint32_t>(field) << 3) | static_cast<std::uint32_t>(type);
}
// The first field of all messages except Feature: a message, bytes, or packed numbers.
constexpr std::uint32_t kNested = tag_of(1, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);

enum class Kind : std::uint8_t { None = 0, Bytes = 1, Floats = 2, Integers = 3 };

std::string_view kind_name(Kind kind) {
  constexpr std::array<std::string_view, 4> kNames = {"no values", "bytes", "floats", "integers"};
  return kNames[static_cast<std::size_t>(kind)];
}

// The needed parts of a feature's list: position of its last bytes value, its last integer, all its
// floats.
struct List {
  Kind kind = Kind::None;
  std::uint64_t count = 0;
  int begin = 0;  // of the last bytes value, in the payload
  int bytes = 0;
  std::uint64_t integer = 0;
};

// A feature to find in an Example, and the result.
struct Wanted {
  std::string_view name;
  List list;
  bool found = false;
  std::vector<float>* floats = nullptr;
};

// Parses the fields of an Example. Functions return false if the bytes are not valid protobuf;
// problem_ describes other errors.
class Walk {
 public:
  Walk(pb::io::CodedInputStream& in, std::span<Wanted> wanted, std::vector<float>& floats)
      : in_(in), wanted_(wanted), floats_(floats) {
    in_.SetRecursionLimit(kMaxDepth);
  }

  std::string run(int bytes) {
    const bool fine = message(bytes, [this](std::uint32_t tag) {
      return tag == kNested ? nested([this](std::uint32_t inner) { return entry_of(inner); })
                            : skip(tag);
    });
    if (!problem_.empty()) return problem_;
    return fine ? "" : "the record is not a tf.Example";
  }

 private:
  bool skip(std::uint32_t tag) { return WireFormatLite::SkipField(&in_, tag); }

  // Reads the length of a nested message; false if it exceeds the enclosing one.
  bool length(int& bytes) {
    return in_.ReadVarintSizeAsInt(&bytes) && bytes <= in_.BytesUntilLimit();
  }

  // Calls on_field(tag) for every field of the next `bytes` bytes.
  template <class OnField>
  bool message(int bytes, OnField on_field) {
    const pb::io::CodedInputStream::Limit outer = in_.PushLimit(bytes);
    for (std::uint32_t tag = in_.ReadTag(); tag != 0; tag = in_.ReadTag())
      if (!on_field(tag)) return false;
    const bool whole = in_.ConsumedEntireMessage() && in_.BytesUntilLimit() == 0;
    in_.PopLimit(outer);
    return whole;
  }

  template <class OnField>
  bool nested(OnField on_field) {
    int bytes = 0;
    return length(bytes) && message(bytes, on_field);
  }

  bool entry_of(std::uint32_t tag) {
    if (tag != kNested) return skip(tag);
    if (++features_ > kMaxFeatures) {
      problem_ = fmt::format("the tf.Example has more than {} features", kMaxFeatures);
      return false;
    }
    return entry();
  }

  // One entry of the map: name 1, feature 2. Writers put the name first, but need not.
  bool entry() {
    std::array<char, kMaxFeatureName> name{};
    std::size_t name_bytes = 0;
    List list;
    floats_.clear();
    const bool fine = nested([&](std::uint32_t tag) {
      if (tag == kNested) return read_name(name, name_bytes);
      if (tag == tag_of(2, WireFormatLite::WIRETYPE_LENGTH_DELIMITED))
        return nested([&](std::uint32_t inner) {
          return feature(inner, std::string_view(name.data(), name_bytes), list);
        });
      return skip(tag);
    });
    if (!fine) return false;
    keep(std::string_view(name.data(), name_bytes), list);
    return problem_.empty();
  }

  bool read_name(std::span<char> name, std::size_t& name_bytes) {
    int bytes = 0;
    if (!length(bytes)) return false;
    if (static_cast<std::size_t>(bytes) > name.size()) {
      problem_ = fmt::format("the name of a feature has {} bytes; the limit is {}", bytes,
                             kMaxFeatureName);
      return false;
    }
    name_bytes = static_cast<std::size_t>(bytes);
    return in_.ReadRaw(name.data(), bytes);
  }

  Wanted* find(std::string_view name) {
    const auto found = std::ranges::find(wanted_, name, &Wanted::name);
    return found == wanted_.end() ? nullptr : &*found;
  }

  // For a duplicate name the last entry counts, as in a map.
  void keep(std::string_view name, const List& list) {
    Wanted* const wanted = find(name);
    if (wanted == nullptr) return;
    wanted->list = list;
    wanted->found = true;
    if (wanted->floats == nullptr) return;
    std::swap(*wanted->floats, floats_);
    if (list.kind == Kind::Floats && list.count > kMaxBoxes)
      problem_ = fmt::format("{} has more than {} values", name, kMaxBoxes);
  }

  // One of three kinds of lists; the last one in the message counts.
  bool feature(std::uint32_t tag, std::string_view name, List& list) {
    const std::uint32_t field = tag >> 3;
    if (field < 1 || field > 3 || (tag & 7u) != (kNested & 7u)) return skip(tag);
    const auto kind = static_cast<Kind>(field);
    if (kind != list.kind) {
      list = List{.kind = kind};
      floats_.clear();
    }
    return nested([&](std::uint32_t inner) {
      if ((inner >> 3) != 1) return skip(inner);
      switch (kind) {
        case Kind::Bytes:
          return bytes_value(inner, list);
        case Kind::Floats:
          return float_values(inner, name, list);
        default:
          return integer_values(inner, list);
      }
    });
  }

  bool bytes_value(std::uint32_t tag, List& list) {
    if (tag != kNested) return skip(tag);
    if (!length(list.bytes)) return false;
    list.begin = in_.CurrentPosition();
    ++list.count;
    return in_.Skip(list.bytes);
  }

  bool float_value(std::string_view name, List& list) {
    std::uint32_t bits = 0;
    if (!in_.ReadLittleEndian32(&bits)) return false;
    ++list.count;
    // While the name is unknown, any list may be one of box sides.
    const Wanted* const wanted = find(name);
    const bool side = name.empty() || (wanted != nullptr && wanted->floats != nullptr);
    if (side && floats_.size() < kMaxBoxes) floats_.push_back(WireFormatLite::DecodeFloat(bits));
    return true;
  }

  bool float_values(std::uint32_t tag, std::string_view name, List& list) {
    if (tag == tag_of(1, WireFormatLite::WIRETYPE_FIXED32)) return float_value(name, list);
    return tag == kNested ? packed([&] { return float_value(name, list); }) : skip(tag);
  }

  bool integer_value(List& list) {
    ++list.count;
    return in_.ReadVarint64(&list.integer);
  }

  bool integer_values(std::uint32_t tag, List& list) {
    if (tag == tag_of(1, WireFormatLite::WIRETYPE_VARINT)) return integer_value(list);
    return tag == kNested ? packed([&] { return integer_value(list); }) : skip(tag);
  }

  template <class ReadOne>
  bool packed(ReadOne read_one) {
    int bytes = 0;
    if (!length(bytes)) return false;
    const pb::io::CodedInputStream::Limit outer = in_.PushLimit(bytes);
    while (in_.BytesUntilLimit() > 0)
      if (!read_one()) return false;
    in_.PopLimit(outer);
    return true;
  }

  pb::io::CodedInputStream& in_;
  std::span<Wanted> wanted_;
  std::vector<float>& floats_;  // of the current list
  std::string problem_;
  int features_ = 0;
};

std::string check_list(const Wanted& wanted, Kind kind) {
  if (!wanted.found) return fmt::format("{} is missing", wanted.name);
  if (wanted.list.kind != kind)
    return fmt::format("{} contains {}, expected {}", wanted.name, kind_name(wanted.list.kind),
                       kind_name(kind));
  if (wanted.list.count != 1)
    return fmt::format("{} contains {} values, expected one", wanted.name, wanted.list.count);
  return {};
}

std::string check_box_list(const Wanted& wanted) {
  if (!wanted.found || wanted.list.kind == Kind::None || wanted.list.kind == Kind::Floats)
    return {};
  return fmt::format("{} contains {}, expected floats", wanted.name, kind_name(wanted.list.kind));
}

// Joins four lists of sides to boxes.
std::string join_boxes(ReadBuffer& buffer) {
  const auto& [top, left, bottom, right] = buffer.sides;
  const std::size_t count = top.size();
  if (left.size() != count || bottom.size() != count || right.size() != count)
    return fmt::format(
        "image/object/bbox has {} ymin, {} xmin, {} ymax and {} xmax; the numbers must be equal",
        count, left.size(), bottom.size(), right.size());
  for (std::size_t i = 0; i < count; ++i) {
    const ObjectBox box{top[i], left[i], bottom[i], right[i]};
    if (!is_within_image(box))
      return fmt::format(
          "box {} of image/object/bbox is not inside the image: y {} to {}, x {} to {}", i, box.top,
          box.bottom, box.left, box.right);
    buffer.boxes.push_back(box);
  }
  return {};
}

constexpr std::string_view kEncodedKey = "image/encoded";
constexpr std::string_view kLabelKey = "image/class/label";
constexpr std::array<std::string_view, 4> kBoxKeys = {
    "image/object/bbox/ymin", "image/object/bbox/xmin", "image/object/bbox/ymax",
    "image/object/bbox/xmax"};

}  // namespace

std::string parse_example(std::span<const std::byte> payload, Example& example,
                          ReadBuffer& buffer) {
  std::array<Wanted, 6> wanted{};
  wanted[0].name = kEncodedKey;
  wanted[1].name = kLabelKey;
  buffer.boxes.clear();
  for (std::size_t side = 0; side < kBoxKeys.size(); ++side) {
    buffer.sides[side].clear();
    wanted[2 + side].name = kBoxKeys[side];
    wanted[2 + side].floats = &buffer.sides[side];
  }
  if (payload.size() > kMaxRecordBytes) return "the record is too large";
  const auto bytes = static_cast<int>(payload.size());
  pb::io::CodedInputStream in(reinterpret_cast<const std::uint8_t*>(payload.data()), bytes);
  std::string problem = Walk(in, wanted, buffer.floats).run(bytes);
  if (problem.empty()) problem = check_list(wanted[0], Kind::Bytes);
  if (problem.empty()) problem = check_list(wanted[1], Kind::Integers);
  for (std::size_t side = 0; side < kBoxKeys.size() && problem.empty(); ++side)
    problem = check_box_list(wanted[2 + side]);
  if (problem.empty()) problem = join_boxes(buffer);
  if (!problem.empty()) return problem;
  const auto part = [&](const List& list) {
    return payload.subspan(static_cast<std::size_t>(list.begin),
                           static_cast<std::size_t>(list.bytes));
  };
  example.encoded = part(wanted[0].list);
  example.label = static_cast<std::int64_t>(wanted[1].list.integer);
  return {};
}

std::string parse_label(ByteWindow& file, std::uint64_t begin, std::uint64_t bytes,
                        std::int64_t& label) {
  std::array<Wanted, 2> wanted{};
  wanted[0].name = kEncodedKey;
  wanted[1].name = kLabelKey;
  if (bytes > kMaxRecordBytes) return "the record is too large";
  WindowStream stream(file, begin, bytes);
  pb::io::CodedInputStream in(&stream);
  std::vector<float> no_floats;
  std::string problem = Walk(in, wanted, no_floats).run(static_cast<int>(bytes));
  if (problem.empty()) problem = check_list(wanted[0], Kind::Bytes);
  if (problem.empty()) problem = check_list(wanted[1], Kind::Integers);
  label = static_cast<std::int64_t>(wanted[1].list.integer);
  return problem;
}

}  // namespace millrace::io
