// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <mutex>

#include "core/text.hpp"
#include "io/hdf5.hpp"
#include "io/hdf5_structure.hpp"
#include "io/tensor_checks.hpp"

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

/// Walks the B-tree of a dataset's chunks in index order, and copies each to its place in a tensor.
class ChunkReader {
 public:
  ChunkReader(const Hdf5Structure& file, const Hdf5Place& place, const StoredDataset& dataset,
              std::span<std::byte> out)
      : file_(file), place_(place), dataset_(dataset), out_(out) {
    if (dataset.chunk.size() != rank())
      place.damaged("its chunks have {} extents, expected {}", dataset.chunk.size(), rank());
    bytes_ = dataset.element_bytes;
    std::uint64_t whole = bytes_;
    for (std::size_t d = 0; d < rank(); ++d) {
      const std::int64_t extent = dataset.extents[d];
      const std::int64_t chunk = dataset.chunk[d];
      if (chunk < 1 || chunk > extent) place.damaged("its chunks do not fit its extents");
      // The extents equal those of the manifest, so their product does not exceed the file size.
      expected_ *= static_cast<std::uint64_t>((extent + chunk - 1) / chunk);
      bytes_ *= static_cast<std::uint64_t>(chunk);
      whole *= static_cast<std::uint64_t>(extent);
    }
    // Only one extent of our datasets is split unevenly, so the chunks have at most twice the
    // tensor's bytes.
    if (expected_ > 2 * whole / bytes_)
      place.damaged("{} chunks of {} bytes are too many for its shape", expected_, bytes_);
  }

  /// Returns the size of the tree in bytes. A missing chunk is an error.
  std::uint64_t run() {
    walk(dataset_.chunks_at, std::nullopt);
    if (seen_ != expected_)
      place_.damaged("{} of its {} chunks are missing", expected_ - seen_, expected_);
    return tree_bytes_;
  }

 private:
  void walk(std::uint64_t node, std::optional<unsigned> wanted_level) {
    const auto [level, entries] = file_.node_at(node, Hdf5Tree::Chunks, wanted_level, place_);
    // Each entry leads to at least one chunk.
    if (entries < 1 || entries > expected_ - seen_)
      place_.damaged("a chunk node has {} entries, but {} chunks are left", entries,
                     expected_ - seen_);
    const std::size_t entry = 8 + 8 * (rank() + 1) + 8;
    tree_bytes_ += Hdf5Node::kHeadBytes + entries * entry;
    if (tree_bytes_ > file_.size()) place_.damaged("its chunks are listed repeatedly");
    std::vector<std::byte> body(entries * entry);
    file_.read(node + Hdf5Node::kHeadBytes, body, place_);
    Hdf5Cursor rows(body, place_);
    for (std::size_t i = 0; i < entries; ++i) one_entry(rows, level);
  }

  void one_entry(Hdf5Cursor& rows, unsigned level) {
    constexpr std::uint64_t kChecksumBytes = 4;
    const std::uint64_t bytes = rows.take<std::uint32_t>();
    const auto left_out = rows.take<std::uint32_t>();  // mask of skipped filters
    std::vector<std::int64_t> begin;
    for (std::size_t d = 0; d < rank(); ++d) begin.push_back(rows.take<std::int64_t>());
    rows.skip(8);  // within an element
    const auto child = rows.take<std::uint64_t>();
    if (level > 0) return walk(child, level - 1);
    if (bytes != bytes_ + kChecksumBytes || left_out != 0)
      place_.damaged("a chunk has {} bytes, expected {}", bytes, bytes_ + kChecksumBytes);
    for (std::size_t d = 0; d < rank(); ++d)
      if (begin[d] < 0 || begin[d] >= dataset_.extents[d] || begin[d] % dataset_.chunk[d] != 0)
        place_.damaged("a chunk is outside its extents");
    // In strict order there are no duplicates, so the expected number means all chunks.
    if (seen_ > 0 && begin <= begin_) place_.damaged("its chunks are out of order");
    if (seen_ == expected_) place_.damaged("it has too many chunks");
    begin_ = std::move(begin);
    ++seen_;
    if (is_contiguous())
      file_.read(child, out_.subspan(offset_of(begin_), present_bytes()), place_);
    else
      scatter(child);
  }

  [[nodiscard]] std::size_t rank() const { return dataset_.extents.size(); }
  /// Number of the chunk's elements along a dimension that are in the tensor.
  [[nodiscard]] std::int64_t present(std::size_t d) const {
    return std::min(dataset_.chunk[d], dataset_.extents[d] - begin_[d]);
  }
  [[nodiscard]] std::size_t present_bytes() const {
    std::int64_t bytes = dataset_.element_bytes;
    for (std::size_t d = 0; d < rank(); ++d) bytes *= present(d);
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
  void scatter(std::uint64_t address) {
    const auto row = static_cast<std::size_t>(dataset_.chunk.back()) * dataset_.element_bytes;
    const auto used = static_cast<std::size_t>(present(rank() - 1)) * dataset_.element_bytes;
    std::vector<std::int64_t> at = begin_;
    for (bool more = true; more; more = next_row(at)) {
      if (is_within(at)) file_.read(address, out_.subspan(offset_of(at), used), place_);
      address += row;
    }
  }
  [[nodiscard]] bool is_within(const std::vector<std::int64_t>& at) const {
    for (std::size_t d = 0; d < rank(); ++d)
      if (at[d] >= dataset_.extents[d]) return false;
    return true;
  }
  bool next_row(std::vector<std::int64_t>& at) const {
    for (std::size_t d = rank() - 1; d-- > 0;) {
      if (++at[d] < begin_[d] + dataset_.chunk[d]) return true;
      at[d] = begin_[d];
    }
    return false;
  }

  const Hdf5Structure& file_;
  const Hdf5Place& place_;
  const StoredDataset& dataset_;
  std::span<std::byte> out_;
  std::uint64_t bytes_ = 0;  ///< of a chunk, without its checksum
  std::uint64_t expected_ = 1;
  std::uint64_t seen_ = 0;
  std::uint64_t tree_bytes_ = 0;
  std::vector<std::int64_t> begin_;  ///< indices of the last chunk's first element
};

}  // namespace

class Hdf5Reader::State {
 public:
  explicit State(const std::filesystem::path& path) : file_(path) {}

  void read(const std::string& name, DType type, std::span<const std::int64_t> shape,
            std::span<std::byte> out) {
    const std::lock_guard lock(mutex_);  // guards the structure's cache of groups
    const Hdf5Place place{file_.path(), name};
    const StoredDataset dataset = file_.find(place);
    if (!is_stored_as(type, dataset)) place.refuse("is not stored as {}", name_of(type));
    // A chunked dataset needs one extent at least.
    const std::vector<std::int64_t> expected =
        shape.empty() ? std::vector<std::int64_t>{1}
                      : std::vector<std::int64_t>(shape.begin(), shape.end());
    if (dataset.extents != expected)
      place.refuse("has shape [{}], expected [{}]", join(dataset.extents, ", "),
                   join(expected, ", "));
    if (dataset.chunk.empty() || dataset.element_bytes != static_cast<std::uint32_t>(size_of(type)))
      place.refuse("is not stored in chunks with only the Fletcher32 filter");
    file_.count_chunks(ChunkReader(file_, place, dataset, out).run(), place);
  }

 private:
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
