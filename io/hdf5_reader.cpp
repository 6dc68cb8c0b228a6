// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/hdf5.hpp"
#include "io/hdf5_structure.hpp"
#include "io/tensor_shape.hpp"

namespace millrace::io {
namespace {

/// HDF5's description of our element types. The version in the upper half of the first byte may
/// differ.
struct TypeMessage {
  DType type;
  std::size_t length;
  std::array<std::uint8_t, 20> bytes;
};
constexpr std::array<TypeMessage, 5> kTypes = {{
    {DType::F32, 20, {0x11, 0x20, 31, 0, 4, 0, 0, 0, 0, 0, 32, 0, 23, 8, 0, 23, 127, 0, 0, 0}},
    {DType::F16, 20, {0x11, 0x20, 15, 0, 2, 0, 0, 0, 0, 0, 16, 0, 10, 5, 0, 10, 15, 0, 0, 0}},
    {DType::BF16, 12, {0x10, 0, 0, 0, 2, 0, 0, 0, 0, 0, 16, 0}},  // as unsigned integers
    {DType::U8, 12, {0x10, 0, 0, 0, 1, 0, 0, 0, 0, 0, 8, 0}},
    {DType::I32, 12, {0x10, 0x08, 0, 0, 4, 0, 0, 0, 0, 0, 32, 0}},
}};

bool is_stored_as(DType type, const StoredDataset& dataset) {
  const auto row = std::ranges::find(kTypes, type, &TypeMessage::type);
  if (row == kTypes.end() || dataset.type.size() < row->length) return false;
  std::array<std::uint8_t, 20> found{};
  std::memcpy(found.data(), dataset.type.data(), row->length);
  found[0] = static_cast<std::uint8_t>((found[0] & 0x0f) | 0x10);
  return found == row->bytes && (type != DType::BF16 || dataset.type_name == name_of(type));
}

/// Copies chunks to their place in a tensor.
class Placing {
 public:
  Placing(const Hdf5Structure& file, const std::string& name, const StoredDataset& dataset,
          std::span<std::byte> out)
      : file_(file), name_(name), dataset_(dataset), out_(out) {}

  void operator()(const StoredChunk& chunk) {
    if (is_contiguous())
      file_.read(chunk.address, out_.subspan(offset_of(chunk.begin), present_bytes(chunk)), name_);
    else
      scatter(chunk);
  }

 private:
  [[nodiscard]] std::size_t rank() const { return dataset_.extents.size(); }
  /// Number of the chunk's elements along a dimension that are in the tensor.
  [[nodiscard]] std::int64_t present(const StoredChunk& chunk, std::size_t d) const {
    return std::min(dataset_.chunk[d], dataset_.extents[d] - chunk.begin[d]);
  }
  [[nodiscard]] std::size_t present_bytes(const StoredChunk& chunk) const {
    std::int64_t bytes = dataset_.element_bytes;
    for (std::size_t d = 0; d < rank(); ++d) bytes *= present(chunk, d);
    return static_cast<std::size_t>(bytes);
  }
  /// Whether chunk and tensor have the same element order, so that one copy is enough: only the
  /// first extent that is not 1 may be split.
  [[nodiscard]] bool is_contiguous() const {
    std::size_t d = 0;
    while (d < rank() && dataset_.chunk[d] == 1) ++d;
    for (++d; d < rank(); ++d)
      if (dataset_.chunk[d] != dataset_.extents[d]) return false;
    return true;
  }
  [[nodiscard]] std::size_t offset_of(std::span<const std::int64_t> place) const {
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < rank(); ++d) offset = offset * dataset_.extents[d] + place[d];
    return static_cast<std::size_t>(offset) * dataset_.element_bytes;
  }

  /// Row by row, in the order of the chunk.
  void scatter(const StoredChunk& chunk) {
    const auto row = static_cast<std::size_t>(dataset_.chunk.back()) * dataset_.element_bytes;
    const auto used = static_cast<std::size_t>(present(chunk, rank() - 1)) * dataset_.element_bytes;
    std::vector<std::byte> bytes(row);
    std::vector<std::int64_t> at(chunk.begin.begin(), chunk.begin.end());
    std::uint64_t address = chunk.address;
    for (bool more = true; more; more = next_row(chunk, at)) {
      if (is_within(at)) file_.read(address, out_.subspan(offset_of(at), used), name_);
      address += row;
    }
  }
  [[nodiscard]] bool is_within(const std::vector<std::int64_t>& at) const {
    for (std::size_t d = 0; d < rank(); ++d)
      if (at[d] >= dataset_.extents[d]) return false;
    return true;
  }
  bool next_row(const StoredChunk& chunk, std::vector<std::int64_t>& at) const {
    for (std::size_t d = rank() - 1; d-- > 0;) {
      if (++at[d] < chunk.begin[d] + dataset_.chunk[d]) return true;
      at[d] = chunk.begin[d];
    }
    return false;
  }

  const Hdf5Structure& file_;
  const std::string& name_;
  const StoredDataset& dataset_;
  std::span<std::byte> out_;
};

}  // namespace

class Hdf5Reader::State {
 public:
  explicit State(const std::filesystem::path& path) : file_(path) {}

  void read(const std::string& name, DType type, std::span<const std::int64_t> shape,
            std::span<std::byte> out) {
    const std::lock_guard lock(mutex_);  // guards the structure's cache of groups
    const StoredDataset dataset = file_.find(name);
    if (!is_stored_as(type, dataset)) refuse(name, "is not stored as {}", name_of(type));
    // A chunked dataset needs one extent at least.
    const std::vector<std::int64_t> expected =
        shape.empty() ? std::vector<std::int64_t>{1}
                      : std::vector<std::int64_t>(shape.begin(), shape.end());
    if (dataset.extents != expected)
      refuse(name, "has shape [{}], expected [{}]", join(dataset.extents, ", "),
             join(expected, ", "));
    if (dataset.chunk.empty() || dataset.element_bytes != static_cast<std::uint32_t>(size_of(type)))
      refuse(name, "is not stored in chunks with only the Fletcher32 filter");
    file_.visit_chunks(name, dataset, Placing(file_, name, dataset, out));
  }

 private:
  template <class... Args>
  [[noreturn]] void refuse(std::string_view name, fmt::format_string<Args...> format,
                           Args&&... args) const {
    fail(ErrorKind::Checkpoint, "{}: {}: {}", file_.path(), name,
         fmt::format(format, std::forward<Args>(args)...));
  }

  Hdf5Structure file_;
  std::mutex mutex_;
};

Hdf5Reader::Hdf5Reader(const std::filesystem::path& path) : state_(std::make_unique<State>(path)) {}
Hdf5Reader::Hdf5Reader(Hdf5Reader&&) noexcept = default;
Hdf5Reader& Hdf5Reader::operator=(Hdf5Reader&&) noexcept = default;
Hdf5Reader::~Hdf5Reader() = default;

void Hdf5Reader::read(const std::string& name, DType type, std::span<const std::int64_t> shape,
                      std::span<std::byte> out) const {
  const auto elements = checked_elements(shape, size_of(type));
  MILLRACE_ASSERT(elements && out.size() == static_cast<std::size_t>(*elements * size_of(type)));
  state_->read(name, type, shape, out);
}

}  // namespace millrace::io
