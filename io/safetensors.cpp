// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "core/bfloat16.hpp"
#include "core/error.hpp"
#include "core/json.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "io/tensor_shape.hpp"

namespace millrace::io {
namespace {

constexpr std::size_t kLengthBytes = 8;
// About 30,000 tensors; bounds the memory for a header that may be invalid.
constexpr std::uint64_t kMaxHeaderBytes = std::uint64_t{6} << 20;
constexpr const char* kMetadata = "__metadata__";

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

// Bytes of one element; empty for an unknown type.
std::optional<std::int64_t> element_bytes(std::string_view type) {
  struct Row {
    std::string_view name;
    std::int64_t bytes;
  };
  constexpr std::array<Row, 15> kRows = {{{"BOOL", 1},
                                          {"U8", 1},
                                          {"I8", 1},
                                          {"F8_E5M2", 1},
                                          {"F8_E4M3", 1},
                                          {"I16", 2},
                                          {"U16", 2},
                                          {"F16", 2},
                                          {"BF16", 2},
                                          {"I32", 4},
                                          {"U32", 4},
                                          {"F32", 4},
                                          {"F64", 8},
                                          {"I64", 8},
                                          {"U64", 8}}};
  for (const Row& row : kRows) {
    if (row.name == type) return row.bytes;
  }
  return std::nullopt;
}

// IEEE binary16; exact.
float half_to_float(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int fraction = bits & 0x3ff;
  float magnitude = 0.0f;
  if (exponent == 0x1f) {
    magnitude = fraction == 0 ? std::numeric_limits<float>::infinity()
                              : std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(fraction), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(fraction | 0x400), exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// The data need not be aligned.
template <class Element, class Convert>
std::vector<float> converted(std::span<const std::byte> data, Convert convert) {
  std::vector<float> values(data.size() / sizeof(Element));
  for (std::size_t i = 0; i < values.size(); ++i) {
    Element element;
    std::memcpy(&element, data.data() + i * sizeof(Element), sizeof element);
    values[i] = convert(element);
  }
  return values;
}

template <class Element>
std::vector<float> cast(std::span<const std::byte> data) {
  return converted<Element>(data, [](Element x) { return static_cast<float>(x); });
}

// Duplicate keys are rejected because JSON libraries differ in which one they keep.
Json parse_header(std::string_view text, std::string_view label) {
  try {
    Json header = Json::parse(text, Json::Duplicates::Refused);
    if (!header.is_object()) fail(ErrorKind::Data, "{}: the header is not a JSON object", label);
    return header;
  } catch (const JsonDuplicate& duplicate) {
    fail(ErrorKind::Data, "{}: {} is in the header twice", label, duplicate.what());
  } catch (const JsonError& error) {
    if (error.byte() == 0 && !text.empty())
      fail(ErrorKind::Data, "{}: the header exceeds a limit: {}", label, error.what());
    fail(ErrorKind::Data, "{}: the header is not valid JSON: is it a complete safetensors file?",
         label);
  }
}

std::int64_t read_count(const Json& value, std::string_view label, std::string_view name) {
  const bool fits =
      value.is_unsigned() &&
      value.as_uint64() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (!fits) fail(ErrorKind::Data, "{}: {}: {} is not a size", label, name, value.dump());
  return value.as_int64();
}

const Json& read_member(const Json& object, const char* key, std::string_view label,
                        std::string_view name) {
  const Json* const found = object.find(key);
  if (found == nullptr) fail(ErrorKind::Data, "{}: {}: {} is missing", label, name, key);
  return *found;
}

std::vector<std::int64_t> read_counts(const Json& object, const char* key, std::string_view label,
                                      std::string_view name) {
  const Json& list = read_member(object, key, label, name);
  if (!list.is_list()) fail(ErrorKind::Data, "{}: {}: {} is not a list", label, name, key);
  if (list.items().size() > kMaxRank) {
    fail(ErrorKind::Data, "{}: {}: {} has {} numbers; the limit is {}", label, name, key,
         list.items().size(), kMaxRank);
  }
  std::vector<std::int64_t> counts;
  for (const Json& item : list.items()) counts.push_back(read_count(item, label, name));
  return counts;
}

// Names appear in one-line messages.
void require_printable(std::string_view name, std::string_view label) {
  if (name.size() > kMaxNameLength) {
    fail(ErrorKind::Data, "{}: the name {}... has {} bytes; the limit is {}", label,
         printable(name.substr(0, 40)), name.size(), kMaxNameLength);
  }
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (std::any_of(name.begin(), name.end(), control)) {
    fail(ErrorKind::Data, "{}: the name {} contains control characters", label, Json(name).dump());
  }
}

/// A tensor as described by the header, before the data is read.
struct Announced {
  SafeTensor tensor;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

Announced read_tensor(const Json& object, std::uint64_t size, std::string_view label,
                      std::string_view name) {
  SafeTensor tensor;
  const Json& type = read_member(object, "dtype", label, name);
  if (type.is_text()) tensor.type = type.text();
  const auto width = element_bytes(tensor.type);
  if (!width) fail(ErrorKind::Data, "{}: {}: dtype {} is unknown", label, name, type.dump());
  tensor.shape = read_counts(object, "shape", label, name);
  const auto offsets = read_counts(object, "data_offsets", label, name);
  if (offsets.size() != 2 || offsets[0] > offsets[1] ||
      static_cast<std::uint64_t>(offsets[1]) > size) {
    fail(ErrorKind::Data,
         "{}: {}: data_offsets {} are not within the {} bytes of data: the file is truncated: "
         "fetch it again",
         label, name, shape_text(offsets), size);
  }
  const std::int64_t bytes = offsets[1] - offsets[0];
  const auto elements = checked_elements(tensor.shape, *width);
  if (!elements || *elements * *width != bytes) {
    fail(ErrorKind::Data, "{}: {}: {} bytes do not match shape {} of {}", label, name, bytes,
         shape_text(tensor.shape), tensor.type);
  }
  return {std::move(tensor), static_cast<std::uint64_t>(offsets[0]),
          static_cast<std::uint64_t>(offsets[1])};
}

std::map<std::string, std::string> read_metadata(const Json& object, std::string_view label) {
  std::map<std::string, std::string> metadata;
  if (!object.is_object()) fail(ErrorKind::Data, "{}: {} is not an object", label, kMetadata);
  for (const auto& [key, value] : object.members()) {
    if (!value.is_text())
      fail(ErrorKind::Data, "{}: {}: a value is not a string", label, kMetadata);
    metadata.emplace(key, value.text());
  }
  return metadata;
}

// Together the tensors must cover the data exactly.
void require_cover(const std::map<std::string, Announced>& tensors, std::uint64_t size,
                   std::string_view label) {
  using Entry = std::pair<const std::string, Announced>;
  std::vector<const Entry*> entries;
  entries.reserve(tensors.size());
  for (const Entry& entry : tensors) entries.push_back(&entry);
  std::ranges::sort(entries, {}, [](const Entry* entry) {
    return std::pair(entry->second.begin, entry->second.end);
  });
  std::uint64_t covered = 0;
  for (const Entry* const entry : entries) {
    const auto& [name, tensor] = *entry;
    if (tensor.begin != covered) {
      fail(ErrorKind::Data, "{}: {}: its data begins at {}, expected {}: {}", label, name,
           tensor.begin, covered, tensor.begin < covered ? "tensors overlap" : "a gap");
    }
    covered = tensor.end;
  }
  if (covered != size)
    fail(ErrorKind::Data, "{}: {} bytes at the end belong to no tensor", label, size - covered);
}

// The content according to the header, which was checked against `size` bytes of data.
struct Announcement {
  std::map<std::string, Announced> tensors;
  std::map<std::string, std::string> metadata;
};

Announcement read_announcement(std::string_view text, std::uint64_t size, std::string_view label) {
  const Json header = parse_header(text, label);
  Announcement content;
  for (const auto& [name, value] : header.members()) {
    if (name == kMetadata) {
      content.metadata = read_metadata(value, label);
    } else {
      require_printable(name, label);
      content.tensors.emplace(name, read_tensor(value, size, label, name));
    }
  }
  require_cover(content.tensors, size, label);
  return content;
}

// Size of the header, from the first bytes of a file of `size` bytes.
std::size_t header_bytes(std::span<const std::byte> begin, std::uint64_t size,
                         std::string_view label) {
  if (begin.size() < kLengthBytes) {
    fail(ErrorKind::Data, "{}: {} bytes are too few for a safetensors file: fetch it again", label,
         begin.size());
  }
  std::uint64_t length = 0;
  std::memcpy(&length, begin.data(), sizeof length);
  const std::uint64_t room = size - kLengthBytes;
  if (length > kMaxHeaderBytes || length > room) {
    fail(ErrorKind::Data, "{}: the header should have {} bytes, but {} follow (the limit is {})",
         label, length, room, kMaxHeaderBytes);
  }
  return static_cast<std::size_t>(length);
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Checks the header before reading the data.
std::vector<std::byte> read_checked(const std::filesystem::path& path) {
  const UniqueFd file = open_file(path, O_RDONLY);
  const std::string label = path.string();
  const std::uint64_t size = std::filesystem::file_size(path);
  std::vector<std::byte> begin(kLengthBytes);
  begin.resize(read_some(file.get(), begin, path));
  std::vector<std::byte> header(header_bytes(begin, size, label));
  header.resize(read_some(file.get(), header, path));
  (void)read_announcement(as_text(header), size - kLengthBytes - header.size(), label);
  return read_file(path, size);
}

using Entry = std::pair<const std::string, SafeTensor>;

// The order in which the data is written.
std::vector<const Entry*> by_alignment(const SafeTensors& content) {
  std::vector<const Entry*> ordered;
  for (const Entry& entry : content.tensors) {
    const auto width = element_bytes(entry.second.type);
    const auto elements = width ? checked_elements(entry.second.shape, *width) : std::nullopt;
    MILLRACE_ASSERT(elements &&
                    entry.second.data.size() == static_cast<std::size_t>(*elements * *width));
    ordered.push_back(&entry);
  }
  std::stable_sort(ordered.begin(), ordered.end(), [](const Entry* a, const Entry* b) {
    return *element_bytes(a->second.type) > *element_bytes(b->second.type);
  });
  return ordered;
}

std::string make_header(const SafeTensors& content, std::span<const Entry* const> ordered) {
  Json::Object header;
  if (!content.metadata.empty()) {
    Json metadata = Json::object();
    for (const auto& [key, value] : content.metadata) metadata.set(key, value);
    header.push_back({kMetadata, std::move(metadata)});
  }
  std::size_t offset = 0;
  for (const Entry* const entry : ordered) {
    const auto& [name, tensor] = *entry;
    header.push_back({name, Json::object({{"dtype", tensor.type},
                                          {"shape", tensor.shape},
                                          {"data_offsets",
                                           Json::list({offset, offset + tensor.data.size()})}})});
    offset += tensor.data.size();
  }
  std::string text = Json(std::move(header)).dump();
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  return text;
}

}  // namespace

std::int64_t SafeTensor::elements() const noexcept {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::vector<float> SafeTensor::to_floats() const {
  if (type == "F32") return cast<float>(data);
  if (type == "F64") return cast<double>(data);
  if (type == "F16") return converted<std::uint16_t>(data, half_to_float);
  if (type == "BF16") return converted<bfloat16>(data, [](bfloat16 x) { return to_float(x); });
  if (type == "I64") return cast<std::int64_t>(data);
  if (type == "U64") return cast<std::uint64_t>(data);
  if (type == "I32") return cast<std::int32_t>(data);
  if (type == "U32") return cast<std::uint32_t>(data);
  if (type == "I16") return cast<std::int16_t>(data);
  if (type == "U16") return cast<std::uint16_t>(data);
  if (type == "I8") return cast<std::int8_t>(data);
  if (type == "U8" || type == "BOOL") return cast<std::uint8_t>(data);
  fail(ErrorKind::Data, "a tensor of dtype {} cannot be read as numbers", type);
}

SafeTensors parse_safetensors(std::span<const std::byte> bytes, std::string_view label) {
  const std::size_t length = header_bytes(bytes, bytes.size(), label);
  const std::span<const std::byte> data = bytes.subspan(kLengthBytes + length);
  Announcement announced =
      read_announcement(as_text(bytes.subspan(kLengthBytes, length)), data.size(), label);
  SafeTensors content;
  content.metadata = std::move(announced.metadata);
  for (auto& [name, entry] : announced.tensors) {
    entry.tensor.data = data.subspan(entry.begin, entry.end - entry.begin);
    content.tensors.emplace(name, std::move(entry.tensor));
  }
  return content;
}

SafeTensorsFile::SafeTensorsFile(const std::filesystem::path& path)
    : path_(path), bytes_(read_checked(path)), content_(parse_safetensors(bytes_, path.string())) {}

const SafeTensor& SafeTensorsFile::at(const std::string& name) const {
  const auto found = content_.tensors.find(name);
  if (found != content_.tensors.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& entry : content_.tensors) names.push_back(entry.first);
  const std::string nearest = nearest_match(name, names);
  fail(ErrorKind::Data, "{}: no tensor {}{}", path_.string(), name,
       nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest));
}

void write_safetensors(const std::filesystem::path& path, const SafeTensors& content) {
  const std::vector<const Entry*> ordered = by_alignment(content);
  const std::string header = make_header(content, ordered);
  const std::uint64_t length = header.size();
  std::vector<std::span<const std::byte>> pieces = {std::as_bytes(std::span(&length, 1)),
                                                    std::as_bytes(std::span(header))};
  for (const Entry* const entry : ordered) pieces.push_back(entry->second.data);
  write_file_atomically(path, pieces);
}

}  // namespace millrace::io
