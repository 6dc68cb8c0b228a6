// SPDX-License-Identifier: Apache-2.0
#include "io/data/example.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "io/data/record_frame.hpp"
#include "io/data/wire.hpp"

namespace millrace::io {
namespace {

enum class Kind : std::uint8_t { None = 0, Bytes = 1, Floats = 2, Integers = 3 };

std::string_view kind_name(Kind kind) {
  constexpr std::array<std::string_view, 4> kNames = {"no values", "bytes", "floats", "integers"};
  return kNames[static_cast<std::size_t>(kind)];
}

// The needed parts of a feature's list: its last value, and the number of all.
struct List {
  Kind kind = Kind::None;
  std::uint64_t count = 0;
  WireField bytes = {};
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
  Walk(ByteWindow& file, std::span<Wanted> wanted, std::vector<float>& floats)
      : file_(file), wanted_(wanted), floats_(floats) {}

  std::string run(std::uint64_t begin, std::uint64_t bytes) {
    const bool fine = each(WireReader(file_, begin, bytes), [this](const WireField& features) {
      return !is_nested(features) || each(WireReader(file_, features), [this](const WireField& in) {
        return !is_nested(in) || entry(in);
      });
    });
    if (!problem_.empty()) return problem_;
    return fine ? "" : "the record is not a tf.Example";
  }

 private:
  // The first field of all messages except Feature: a message, bytes, or packed numbers.
  static bool is_nested(const WireField& field) { return field.is(1, WireType::Bytes); }

  template <class OnField>
  static bool each(WireReader message, OnField on_field) {
    for (WireField field; message.next(field);)
      if (!on_field(field)) return false;
    return message.ok();
  }

  // One entry of the map: name 1, feature 2. Writers put the name first, but need not.
  bool entry(const WireField& place) {
    if (++features_ > kMaxFeatures) {
      problem_ = fmt::format("the tf.Example has more than {} features", kMaxFeatures);
      return false;
    }
    name_bytes_ = 0;
    List list;
    floats_.clear();
    const bool fine = each(WireReader(file_, place), [&](const WireField& field) {
      if (is_nested(field)) return read_name(field);
      return !field.is(2, WireType::Bytes) ||
             each(WireReader(file_, field),
                  [&](const WireField& inner) { return feature(inner, list); });
    });
    if (!fine) return false;
    keep(list);
    return problem_.empty();
  }

  bool read_name(const WireField& field) {
    if (field.bytes > name_.size()) {
      problem_ = fmt::format("the name of a feature has {} bytes; the limit is {}", field.bytes,
                             kMaxFeatureName);
      return false;
    }
    name_bytes_ = static_cast<std::size_t>(field.bytes);
    std::ranges::copy(file_.at(field.begin, name_bytes_),
                      std::as_writable_bytes(std::span(name_)).begin());
    return true;
  }
  [[nodiscard]] std::string_view name() const { return {name_.data(), name_bytes_}; }

  [[nodiscard]] Wanted* find() const {
    const auto found = std::ranges::find(wanted_, name(), &Wanted::name);
    return found == wanted_.end() ? nullptr : &*found;
  }

  // For a duplicate name the last entry counts, as in a map.
  void keep(const List& list) {
    Wanted* const wanted = find();
    if (wanted == nullptr) return;
    wanted->list = list;
    wanted->found = true;
    if (wanted->floats == nullptr) return;
    std::swap(*wanted->floats, floats_);
    if (list.kind == Kind::Floats && list.count > kMaxBoxes)
      problem_ = fmt::format("{} has more than {} values", name(), kMaxBoxes);
  }

  // One of three kinds of lists; the last one in the message counts. Numbers may be packed.
  bool feature(const WireField& field, List& list) {
    if (field.number > 3 || field.type != WireType::Bytes) return true;
    const auto kind = static_cast<Kind>(field.number);
    if (kind != list.kind) {
      list = List{.kind = kind};
      floats_.clear();
    }
    return each(WireReader(file_, field), [&](const WireField& value) {
      if (value.number != 1) return true;
      return kind == Kind::Bytes ? bytes_value(value, list) : numbers(value, list);
    });
  }

  static bool bytes_value(const WireField& value, List& list) {
    if (value.type != WireType::Bytes) return true;
    list.bytes = value;
    ++list.count;
    return true;
  }

  bool numbers(const WireField& value, List& list) {
    const bool floats = list.kind == Kind::Floats;
    if (value.type == (floats ? WireType::Fixed32 : WireType::Varint))
      add_number(value.value, list);
    if (value.type != WireType::Bytes) return true;
    WireReader packed(file_, value);
    while (packed.more()) {
      const std::uint64_t bits = floats ? packed.fixed<std::uint32_t>() : packed.varint();
      if (packed.ok()) add_number(bits, list);
    }
    return packed.ok();
  }

  void add_number(std::uint64_t bits, List& list) {
    ++list.count;
    list.integer = bits;
    if (list.kind != Kind::Floats || floats_.size() >= kMaxBoxes) return;
    // While the name is unknown, any list may be one of box sides.
    const Wanted* const wanted = find();
    if (name_bytes_ == 0 || (wanted != nullptr && wanted->floats != nullptr))
      floats_.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  }

  ByteWindow& file_;
  std::span<Wanted> wanted_;
  std::vector<float>& floats_;                // of the current list
  std::array<char, kMaxFeatureName> name_{};  // of the current entry
  std::size_t name_bytes_ = 0;
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

/// Parses the Example in [begin, begin + bytes). The first wanted features are image and label.
std::string parse(ByteWindow& file, std::uint64_t begin, std::uint64_t bytes,
                  std::span<Wanted> wanted, std::vector<float>& floats) {
  wanted[0].name = kEncodedKey;
  wanted[1].name = kLabelKey;
  if (bytes > kMaxRecordBytes) return "the record is too large";
  std::string problem = Walk(file, wanted, floats).run(begin, bytes);
  if (problem.empty()) problem = check_list(wanted[0], Kind::Bytes);
  if (problem.empty()) problem = check_list(wanted[1], Kind::Integers);
  return problem;
}

}  // namespace

std::string parse_example(std::span<const std::byte> payload, Example& example,
                          ReadBuffer& buffer) {
  std::array<Wanted, 6> wanted{};
  buffer.boxes.clear();
  for (std::size_t side = 0; side < kBoxKeys.size(); ++side) {
    buffer.sides[side].clear();
    wanted[2 + side].name = kBoxKeys[side];
    wanted[2 + side].floats = &buffer.sides[side];
  }
  ByteWindow bytes(payload, "");
  std::string problem = parse(bytes, 0, payload.size(), wanted, buffer.floats);
  for (std::size_t side = 0; side < kBoxKeys.size() && problem.empty(); ++side)
    problem = check_box_list(wanted[2 + side]);
  if (problem.empty()) problem = join_boxes(buffer);
  if (!problem.empty()) return problem;
  const WireField& encoded = wanted[0].list.bytes;
  example.encoded = bytes.at(encoded.begin, static_cast<std::size_t>(encoded.bytes));
  example.label = static_cast<std::int64_t>(wanted[1].list.integer);
  return {};
}

std::string parse_label(ByteWindow& file, std::uint64_t begin, std::uint64_t bytes,
                        std::int64_t& label) {
  std::array<Wanted, 2> wanted{};
  std::vector<float> no_floats;
  std::string problem = parse(file, begin, bytes, wanted, no_floats);
  label = static_cast<std::int64_t>(wanted[1].list.integer);
  return problem;
}

}  // namespace millrace::io
