// SPDX-License-Identifier: Apache-2.0
#include "tools/onnx/node.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>

#include "core/bfloat16.hpp"
#include "core/error.hpp"
#include "core/float16.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "models/graph.hpp"

namespace millrace::io {
namespace {

using onnx::TensorProto;

[[noreturn]] void damaged(const TensorProto& tensor, const OnnxPlace& place,
                          const std::string& what) {
  fail(ErrorKind::Data, "{}: tensor '{}' {}: the file is damaged: export it again", place.label,
       tensor.name(), what);
}

std::int64_t count_of(const TensorProto& tensor, const OnnxPlace& place) {
  double count = 1.0;
  for (const std::int64_t extent : extents_of(tensor, place)) count *= static_cast<double>(extent);
  if (count > static_cast<double>(models::kMostParameters))
    damaged(tensor, place, fmt::format("has {:.3g} elements", count));
  return static_cast<std::int64_t>(count);
}

bool lies_outside(const TensorProto& tensor) {
  return tensor.data_location() == TensorProto::EXTERNAL;
}

/// The value of a key of a tensor that lies outside, or "".
std::string_view external(const TensorProto& tensor, std::string_view key) {
  for (const onnx::StringStringEntryProto& entry : tensor.external_data())
    if (entry.key() == key) return entry.value();
  return {};
}

std::uint64_t external_number(const TensorProto& tensor, std::string_view key,
                              std::uint64_t otherwise, const OnnxPlace& place) {
  const std::string_view text = external(tensor, key);
  if (text.empty()) return otherwise;
  const std::optional<std::uint64_t> number = parse_number<std::uint64_t>(text);
  if (!number) damaged(tensor, place, fmt::format("has the {} '{}'", key, text));
  return *number;
}

[[noreturn]] void refuse_location(const TensorProto& tensor, const OnnxPlace& place,
                                  std::string_view why) {
  fail(ErrorKind::Config,
       "{}: tensor '{}' lies in '{}', {}, or export with the weights in the file", place.label,
       tensor.name(), printable(external(tensor, "location")), why);
}

/// The file that a tensor names. It may not lead out of the folder, not by a link either. A path
/// that steps back from a folder that is missing would hide what its last part links to.
std::filesystem::path external_file(const TensorProto& tensor, const OnnxPlace& place) {
  const std::string_view name = external(tensor, "location");
  const std::filesystem::path location(name);
  if (name.empty() || name.find('\0') != std::string_view::npos)
    refuse_location(tensor, place, "which is no name of a file: export it again");
  if (std::find(location.begin(), location.end(), "..") != location.end())
    refuse_location(tensor, place, "and a path with '..' is refused: export it beside the file");
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::weakly_canonical(
      place.folder.empty() ? place.folder : std::filesystem::absolute(place.folder), error);
  std::filesystem::path file = std::filesystem::weakly_canonical(folder / location, error);
  const auto [end, ignored] = std::mismatch(folder.begin(), folder.end(), file.begin(), file.end());
  if (place.folder.empty() || location.is_absolute() || error || end != folder.end() ||
      file == folder)
    refuse_location(tensor, place, "which is not in the folder of the file: move it there");
  return file;
}

std::string read_external(const TensorProto& tensor, std::size_t bytes, const OnnxPlace& place) {
  const std::filesystem::path file = external_file(tensor, place);
  const std::uint64_t offset = external_number(tensor, "offset", 0, place);
  if (external_number(tensor, "length", bytes, place) != bytes)
    damaged(tensor, place,
            fmt::format("has {} bytes in {}, not {}", external(tensor, "length"), file.string(),
                        bytes));
  const UniqueFd descriptor = open_file(file, O_RDONLY);
  const std::uint64_t size = regular_size(descriptor.get(), file);
  if (offset > size || size - offset < bytes)
    damaged(
        tensor, place,
        fmt::format("ends at byte {} of {}, which has {}",
                    static_cast<double>(offset) + static_cast<double>(bytes), file.string(), size));
  std::string result(bytes, '\0');
  read_exactly(descriptor.get(), offset, std::as_writable_bytes(std::span(result)), file);
  return result;
}

/// The little-endian bytes of `count` elements of this size.
std::string bytes_of(const TensorProto& tensor, std::int64_t count, std::size_t size,
                     const OnnxPlace& place) {
  const std::size_t bytes = static_cast<std::size_t>(count) * size;
  if (lies_outside(tensor)) return read_external(tensor, bytes, place);
  if (tensor.raw_data().size() != bytes)
    damaged(tensor, place,
            fmt::format("has {} bytes for {} elements", tensor.raw_data().size(), count));
  return tensor.raw_data();
}

bool has_bytes(const TensorProto& tensor) { return lies_outside(tensor) || tensor.has_raw_data(); }

/// The elements, which the format keeps as bytes or as the numbers of a field.
template <class Stored, class Result, class Field, class Convert>
std::vector<Result> elements_of(const TensorProto& tensor, const Field& field,
                                const OnnxPlace& place, const Convert& convert) {
  const std::int64_t count = count_of(tensor, place);
  const bool packed = has_bytes(tensor);
  const std::string bytes = packed ? bytes_of(tensor, count, sizeof(Stored), place) : "";
  if (!packed && field.size() != count)
    damaged(tensor, place, fmt::format("has {} elements, not {}", field.size(), count));
  std::vector<Result> result;
  result.reserve(static_cast<std::size_t>(count));
  if (!packed)
    for (const auto value : field) result.push_back(convert(value));
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(Stored)) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + at, sizeof stored);
    result.push_back(convert(stored));
  }
  return result;
}

float half_of(std::uint16_t bits, std::int32_t type) {
  return type == TensorProto::FLOAT16 ? to_float(float16{bits}) : to_float(bfloat16{bits});
}

}  // namespace

Integers extents_of(const TensorProto& tensor, const OnnxPlace& place) {
  constexpr int kMostExtents = 8;
  if (tensor.dims_size() > kMostExtents)
    damaged(tensor, place, fmt::format("has {} extents", tensor.dims_size()));
  for (const std::int64_t extent : tensor.dims())
    if (extent < 0 || extent > models::kMostElements)
      damaged(tensor, place, fmt::format("has the extent {}", extent));
  return {tensor.dims().begin(), tensor.dims().end()};
}

bool has_elements(const TensorProto& tensor) {
  return has_bytes(tensor) || tensor.float_data_size() > 0 || tensor.double_data_size() > 0 ||
         tensor.int32_data_size() > 0 || tensor.int64_data_size() > 0;
}

std::vector<float> floats_of(const TensorProto& tensor, const OnnxPlace& place) {
  const std::int32_t type = tensor.data_type();
  const auto narrow = [](auto value) { return static_cast<float>(value); };
  switch (type) {
    case TensorProto::FLOAT:
      return elements_of<float, float>(tensor, tensor.float_data(), place, narrow);
    case TensorProto::DOUBLE:
      return elements_of<double, float>(tensor, tensor.double_data(), place, narrow);
    case TensorProto::FLOAT16:
    case TensorProto::BFLOAT16:
      return elements_of<std::uint16_t, float>(
          tensor, tensor.int32_data(), place,
          [type](auto bits) { return half_of(static_cast<std::uint16_t>(bits), type); });
    default:
      fail(ErrorKind::Data,
           "{}: tensor '{}' has elements of type {}; weights must be float, double, float16 or "
           "bfloat16: export the network before it is quantized",
           place.label, tensor.name(), type);
  }
}

bool has_integers(const TensorProto& tensor) {
  return tensor.data_type() == TensorProto::INT64 || tensor.data_type() == TensorProto::INT32;
}

Integers integers_of(const TensorProto& tensor, const OnnxPlace& place) {
  constexpr std::int64_t kMost = 64;
  if (count_of(tensor, place) > kMost || lies_outside(tensor))
    damaged(tensor, place, "is too large for a shape");
  const auto widen = [](auto value) { return static_cast<std::int64_t>(value); };
  if (tensor.data_type() == TensorProto::INT64)
    return elements_of<std::int64_t, std::int64_t>(tensor, tensor.int64_data(), place, widen);
  MILLRACE_ASSERT(tensor.data_type() == TensorProto::INT32);
  return elements_of<std::int32_t, std::int64_t>(tensor, tensor.int32_data(), place, widen);
}

}  // namespace millrace::io
