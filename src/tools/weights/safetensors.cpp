// SPDX-License-Identifier: Apache-2.0

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <tuple>
#include <type_traits>
#include <utility>

#include "core/bfloat16.hpp"
#include "core/error.hpp"
#include "core/float16.hpp"
#include "core/json.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "io/tensor_checks.hpp"
#include "tools/weights/tensor_file.hpp"

namespace millrace::io {
namespace {

constexpr std::size_t kLengthBytes = 8;
// About 30,000 tensors; bounds the memory for a header that may be invalid.
constexpr std::uint64_t kMaxHeaderBytes = std::uint64_t{6} << 20;
constexpr const char* kMetadata = "__metadata__";

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

// The data need not be aligned.
template <class Element>
std::vector<float> convert(std::span<const std::byte> data) {
  std::vector<float> values(data.size() / sizeof(Element));
  for (std::size_t i = 0; i < values.size(); ++i) {
    Element element;
    std::memcpy(&element, data.data() + i * sizeof(Element), sizeof element);
    if constexpr (std::is_arithmetic_v<Element>)
      values[i] = static_cast<float>(element);
    else
      values[i] = to_float(element);
  }
  return values;
}

struct ElementType {
  std::string_view name;
  std::int64_t bytes;
  std::vector<float> (*to_floats)(std::span<const std::byte> data);  ///< nullptr: not read
};
constexpr std::array<ElementType, 15> kTypes = {{{"BOOL", 1, convert<std::uint8_t>},
                                                 {"U8", 1, convert<std::uint8_t>},
                                                 {"I8", 1, convert<std::int8_t>},
                                                 {"F8_E5M2", 1, nullptr},
                                                 {"F8_E4M3", 1, nullptr},
                                                 {"I16", 2, convert<std::int16_t>},
                                                 {"U16", 2, convert<std::uint16_t>},
                                                 {"F16", 2, convert<float16>},
                                                 {"BF16", 2, convert<bfloat16>},
                                                 {"I32", 4, convert<std::int32_t>},
                                                 {"U32", 4, convert<std::uint32_t>},
                                                 {"F32", 4, convert<float>},
                                                 {"F64", 8, convert<double>},
                                                 {"I64", 8, convert<std::int64_t>},
                                                 {"U64", 8, convert<std::uint64_t>}}};

// nullptr for an unknown type.
const ElementType* find_type(std::string_view name) {
  const auto* const found = std::ranges::find(kTypes, name, &ElementType::name);
  return found == kTypes.end() ? nullptr : found;
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
  if (list.items().size() > kMaxRank)
    fail(ErrorKind::Data, "{}: {}: {} has {} numbers; the limit is {}", label, name, key,
         list.items().size(), kMaxRank);
  std::vector<std::int64_t> counts;
  for (const Json& item : list.items()) counts.push_back(read_count(item, label, name));
  return counts;
}

// Names appear in one-line messages.
void require_printable(std::string_view name, std::string_view label) {
  if (name.size() > kMaxNameLength)
    fail(ErrorKind::Data, "{}: the name {}... has {} bytes; the limit is {}", label,
         printable(name.substr(0, 40)), name.size(), kMaxNameLength);
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (std::any_of(name.begin(), name.end(), control))
    fail(ErrorKind::Data, "{}: the name {} contains control characters", label, Json(name).dump());
}

/// A tensor as described by the header, and the place of its data.
struct Announced {
  SafeTensor tensor;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};
using Metadata = std::map<std::string, std::string>;
struct Contents {
  std::map<std::string, Announced> tensors;
  Metadata metadata;
};

Announced read_tensor(const Json& object, std::uint64_t size, std::string_view label,
                      std::string_view name) {
  SafeTensor tensor;
  const Json& type = read_member(object, "dtype", label, name);
  if (type.is_text()) tensor.type = type.text();
  const ElementType* const element = find_type(tensor.type);
  if (element == nullptr)
    fail(ErrorKind::Data, "{}: {}: dtype {} is unknown", label, name, type.dump());
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
  const auto elements = checked_elements(tensor.shape, element->bytes);
  if (!elements || *elements * element->bytes != bytes)
    fail(ErrorKind::Data, "{}: {}: {} bytes do not match shape {} of {}", label, name, bytes,
         shape_text(tensor.shape), tensor.type);
  return {std::move(tensor), static_cast<std::uint64_t>(offsets[0]),
          static_cast<std::uint64_t>(offsets[1])};
}

Metadata read_metadata(const Json& object, std::string_view label) {
  Metadata metadata;
  if (object.dump() == "null") return metadata;  // as some writers say that there is none
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
  std::vector<std::tuple<std::uint64_t, std::uint64_t, std::string_view>> ranges;
  for (const auto& [name, tensor] : tensors) ranges.emplace_back(tensor.begin, tensor.end, name);
  std::ranges::sort(ranges);
  std::uint64_t covered = 0;
  for (const auto& [begin, end, name] : ranges) {
    if (begin != covered)
      fail(ErrorKind::Data, "{}: {}: its data begins at {}, expected {}: {}", label, name, begin,
           covered, begin < covered ? "tensors overlap" : "a gap");
    covered = end;
  }
  if (covered != size)
    fail(ErrorKind::Data, "{}: {} bytes at the end belong to no tensor", label, size - covered);
}

// What the header says, which is checked against `size` bytes of data.
Contents read_header(std::string_view text, std::uint64_t size, std::string_view label) {
  const Json header = parse_header(text, label);
  Contents contents;
  for (const auto& [name, value] : header.members()) {
    if (name == kMetadata) {
      contents.metadata = read_metadata(value, label);
    } else {
      require_printable(name, label);
      contents.tensors.emplace(name, read_tensor(value, size, label, name));
    }
  }
  require_cover(contents.tensors, size, label);
  return contents;
}

// Size of the header, from the first bytes of a file of `size` bytes.
std::size_t header_bytes(std::span<const std::byte> begin, std::uint64_t size,
                         std::string_view label) {
  if (begin.size() < kLengthBytes)
    fail(ErrorKind::Data, "{}: {} bytes are too few for a safetensors file: fetch it again", label,
         begin.size());
  std::uint64_t length = 0;
  std::memcpy(&length, begin.data(), sizeof length);
  const std::uint64_t room = size - kLengthBytes;
  if (length > kMaxHeaderBytes || length > room)
    fail(ErrorKind::Data, "{}: the header should have {} bytes, but {} follow (the limit is {})",
         label, length, room, kMaxHeaderBytes);
  return static_cast<std::size_t>(length);
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::int64_t SafeTensor::elements() const noexcept {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::vector<float> SafeTensor::to_floats() const {
  const ElementType* const element = find_type(type);
  if (element == nullptr || element->to_floats == nullptr)
    fail(ErrorKind::Data, "a tensor of dtype {} cannot be read as numbers", type);
  return element->to_floats(data);
}

TensorFile parse_safetensors(std::vector<std::byte> bytes, const std::filesystem::path& path) {
  const std::string label = path.string();
  TensorFile file(path);
  const std::span<const std::byte> all = file.keep(std::move(bytes));
  const std::size_t length = header_bytes(all, all.size(), label);
  const std::span<const std::byte> data = all.subspan(kLengthBytes + length);
  Contents contents = read_header(as_text(all.subspan(kLengthBytes, length)), data.size(), label);
  file.set_metadata(std::move(contents.metadata));
  for (auto& [name, entry] : contents.tensors) {
    entry.tensor.data = data.subspan(entry.begin, entry.end - entry.begin);
    file.add(name, std::move(entry.tensor));
  }
  return file;
}

// The header is checked first.
TensorFile read_safetensors(const std::filesystem::path& path) {
  const UniqueFd file = open_file(path, O_RDONLY);
  const std::string label = path.string();
  const std::uint64_t size = std::filesystem::file_size(path);
  std::vector<std::byte> begin(kLengthBytes);
  begin.resize(read_some(file.get(), begin, path));
  std::vector<std::byte> header(header_bytes(begin, size, label));
  header.resize(read_some(file.get(), header, path));
  (void)read_header(as_text(header), size - kLengthBytes - header.size(), label);
  return parse_safetensors(read_file(path, size), path);
}

std::string format_safetensors(const SafeTensors& tensors,
                               const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  Json notes = Json::object();
  for (const auto& [key, value] : metadata) notes.set(key, value);
  header.set("__metadata__", notes);
  std::int64_t end = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::int64_t begin = end;
    end += std::ssize(tensor.data);
    header.set(name, Json::object({{"dtype", tensor.type},
                                   {"shape", tensor.shape},
                                   {"data_offsets", Json::list({begin, end})}}));
  }
  std::string text = header.dump();
  constexpr std::size_t kAlignment = 8;  // of the first tensor, as in other writers
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  const std::uint64_t length = text.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof length);
  file.reserve(sizeof length + text.size() + static_cast<std::size_t>(end));
  file += text;
  for (const auto& [name, tensor] : tensors)
    file.append(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
  return file;
}

}  // namespace millrace::io
