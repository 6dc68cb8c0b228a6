// SPDX-License-Identifier: Apache-2.0
#include "io/hdf5_structure.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "io/tensor_shape.hpp"

namespace millrace::io {
namespace {

static_assert(std::endian::native == std::endian::little, "HDF5's own numbers are little-endian");

constexpr std::uint64_t kMaxNames = std::uint64_t{16} << 20;  ///< bytes of the names of a group
constexpr std::uint64_t kMaxLinks = 200'000;
constexpr std::uint64_t kMaxHeader = std::uint64_t{1} << 20;
constexpr unsigned kMaxLevel = 16;  ///< of a B-tree
constexpr std::uint64_t kSymbolBytes = 40;
constexpr std::size_t kNodeHead = 24;

// Types of messages in the header of an object.
constexpr std::uint16_t kExtents = 0x01;
constexpr std::uint16_t kType = 0x03;
constexpr std::uint16_t kLayout = 0x08;
constexpr std::uint16_t kFilters = 0x0b;
constexpr std::uint16_t kAttribute = 0x0c;
constexpr std::uint16_t kContinuation = 0x10;
constexpr std::uint16_t kSymbolTable = 0x11;

/// The damaged object: a tensor, or "the file".
struct Place {
  const std::string& path;
  std::string_view name;

  template <class... Args>
  [[noreturn]] void damaged(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorKind::Checkpoint, "{}: {}: the structure of the file is damaged: {}", path, name,
         fmt::format(format, std::forward<Args>(args)...));
  }
};

/// Reads consecutive numbers and strings.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, const Place& place) : rest_(bytes), place_(place) {}

  template <class T>
  T take() {
    T value;
    std::memcpy(&value, take_bytes(sizeof value).data(), sizeof value);
    return value;
  }
  std::span<const std::byte> take_bytes(std::size_t count) {
    if (count > rest_.size()) place_.damaged("a record ends early");
    const auto bytes = rest_.first(count);
    rest_ = rest_.subspan(count);
    return bytes;
  }
  void skip(std::size_t count) { (void)take_bytes(count); }
  void expect(std::string_view signature) {
    const auto found = take_bytes(signature.size());
    if (!std::ranges::equal(found, std::as_bytes(std::span(signature))))
      place_.damaged("the signature {} is missing", signature);
  }
  [[nodiscard]] std::size_t left() const noexcept { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
  const Place& place_;
};

/// Size of a string in a message, padded to whole words.
std::size_t padded(std::size_t bytes) { return (bytes + 7) / 8 * 8; }

/// The null-terminated string at an offset of `names`.
std::string_view text_at(std::span<const std::byte> names, std::uint64_t offset,
                         const Place& place) {
  if (offset >= names.size()) place.damaged("a name is outside the name heap");
  const std::string_view rest(reinterpret_cast<const char*>(names.data()) + offset,
                              names.size() - offset);
  const std::string_view text = rest.substr(0, rest.find('\0'));
  if (text.empty() || text.size() == rest.size() || text.size() > kMaxNameLength)
    place.damaged("a name is empty, unterminated or too long");
  return text;
}

std::vector<std::int64_t> parse_extents(std::span<const std::byte> body, const Place& place) {
  Cursor in(body, place);
  const auto version = in.take<std::uint8_t>();
  const std::size_t rank = in.take<std::uint8_t>();
  if (version < 1 || version > 2 || rank > kMaxRank) place.damaged("its extents are invalid");
  in.skip(version == 1 ? 6 : 2);
  std::vector<std::int64_t> extents;
  for (std::size_t i = 0; i < rank; ++i) extents.push_back(in.take<std::int64_t>());
  return extents;
}

/// Other layouts leave dataset.chunk empty.
void parse_layout(std::span<const std::byte> body, const Place& place, StoredDataset& dataset) {
  constexpr std::uint8_t kVersion = 3;
  constexpr std::uint8_t kChunked = 2;
  Cursor in(body, place);
  if (in.take<std::uint8_t>() != kVersion || in.take<std::uint8_t>() != kChunked) return;
  // One more than the rank: the bytes of an element.
  const std::size_t numbers = in.take<std::uint8_t>();
  if (numbers < 2 || numbers > kMaxRank + 1) place.damaged("its chunk shape is invalid");
  dataset.chunks_at = in.take<std::uint64_t>();
  for (std::size_t i = 0; i + 1 < numbers; ++i) dataset.chunk.push_back(in.take<std::uint32_t>());
  dataset.element_bytes = in.take<std::uint32_t>();
}

/// Whether Fletcher32 is the only filter.
bool is_our_filter(std::span<const std::byte> body, const Place& place) {
  constexpr std::uint16_t kFletcher32 = 3;
  Cursor in(body, place);
  const auto version = in.take<std::uint8_t>();
  const auto filters = in.take<std::uint8_t>();
  if (version == 1) in.skip(6);
  return (version == 1 || version == 2) && filters == 1 && in.take<std::uint16_t>() == kFletcher32;
}

/// The value of the attribute `dtype`, if it is this one: a string of fixed length.
std::optional<std::string> type_name_in(std::span<const std::byte> body, const Place& place) {
  constexpr std::string_view kName = "dtype";
  constexpr std::size_t kMaxText = 16;
  Cursor in(body, place);
  if (in.take<std::uint8_t>() != 1) return {};
  in.skip(1);
  const std::size_t name_bytes = in.take<std::uint16_t>();
  const std::size_t type_bytes = in.take<std::uint16_t>();
  const std::size_t space_bytes = in.take<std::uint16_t>();
  const auto name = in.take_bytes(padded(name_bytes));
  if (name_bytes != kName.size() + 1 ||
      !std::ranges::equal(name.first(kName.size()), std::as_bytes(std::span(kName))))
    return {};
  Cursor type(in.take_bytes(padded(type_bytes)), place);
  constexpr std::uint8_t kText = 0x13;  // version 1, class 3
  if (type.take<std::uint8_t>() != kText) return {};
  type.skip(3);
  const auto length = type.take<std::uint32_t>();
  in.skip(padded(space_bytes));
  if (length > kMaxText) return {};
  const auto text = in.take_bytes(length);
  return std::string(reinterpret_cast<const char*>(text.data()), text.size());
}

/// Visits the B-tree of a dataset's chunks in index order.
class ChunkWalk {
 public:
  ChunkWalk(const Hdf5Structure& file, const Place& place, const StoredDataset& dataset,
            const std::function<void(const StoredChunk&)>& visit)
      : file_(file), place_(place), dataset_(dataset), visit_(visit) {
    bytes_ = dataset.element_bytes;
    std::uint64_t whole = bytes_;
    for (std::size_t d = 0; d < dataset.chunk.size(); ++d) {
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

  /// Returns the size of the tree in bytes.
  std::uint64_t run() {
    walk(dataset_.chunks_at, std::nullopt);
    if (seen_ != expected_)
      place_.damaged("{} of its {} chunks are missing", expected_ - seen_, expected_);
    return tree_bytes_;
  }

 private:
  void walk(std::uint64_t node, std::optional<unsigned> wanted_level) {
    constexpr std::uint8_t kChunkTree = 1;
    std::array<std::byte, kNodeHead> head{};
    file_.read(node, head, place_.name);
    Cursor in(head, place_);
    in.expect("TREE");
    const auto type = in.take<std::uint8_t>();
    const unsigned level = in.take<std::uint8_t>();
    const std::size_t entries = in.take<std::uint16_t>();
    if (type != kChunkTree || level > kMaxLevel || level != wanted_level.value_or(level))
      place_.damaged("a chunk node is in the wrong place");
    // Each entry leads to at least one chunk.
    if (entries < 1 || entries > expected_ - seen_)
      place_.damaged("a chunk node has {} entries, but {} chunks are left", entries,
                     expected_ - seen_);
    const std::size_t rank = dataset_.extents.size();
    const std::size_t entry = 8 + 8 * (rank + 1) + 8;
    tree_bytes_ += kNodeHead + entries * entry;
    if (tree_bytes_ > file_.size()) place_.damaged("its chunks are listed repeatedly");
    std::vector<std::byte> body(entries * entry);
    file_.read(node + kNodeHead, body, place_.name);
    Cursor rows(body, place_);
    for (std::size_t i = 0; i < entries; ++i) one_entry(rows, level);
  }

  void one_entry(Cursor& rows, unsigned level) {
    constexpr std::uint64_t kChecksumBytes = 4;
    const std::uint64_t bytes = rows.take<std::uint32_t>();
    const auto left_out = rows.take<std::uint32_t>();  // mask of skipped filters
    std::vector<std::int64_t> begin;
    for (std::size_t d = 0; d < dataset_.extents.size(); ++d)
      begin.push_back(rows.take<std::int64_t>());
    rows.skip(8);  // within an element
    const auto child = rows.take<std::uint64_t>();
    if (level > 0) return walk(child, level - 1);
    if (bytes != bytes_ + kChecksumBytes || left_out != 0)
      place_.damaged("a chunk has {} bytes, expected {}", bytes, bytes_ + kChecksumBytes);
    for (std::size_t d = 0; d < begin.size(); ++d)
      if (begin[d] < 0 || begin[d] >= dataset_.extents[d] || begin[d] % dataset_.chunk[d] != 0)
        place_.damaged("a chunk is outside its extents");
    // In strict order there are no duplicates, so the expected number means all chunks.
    if (seen_ > 0 && begin <= last_) place_.damaged("its chunks are out of order");
    if (seen_ == expected_) place_.damaged("it has too many chunks");
    last_ = std::move(begin);
    ++seen_;
    visit_({.begin = last_, .address = child});
  }

  const Hdf5Structure& file_;
  const Place& place_;
  const StoredDataset& dataset_;
  const std::function<void(const StoredChunk&)>& visit_;
  std::uint64_t bytes_ = 0;  ///< of a chunk, without its checksum
  std::uint64_t expected_ = 1;
  std::uint64_t seen_ = 0;
  std::uint64_t tree_bytes_ = 0;
  std::vector<std::int64_t> last_;
};

}  // namespace

Hdf5Structure::Hdf5Structure(const std::filesystem::path& path) : path_(path.string()) {
  try {
    file_ = open_file(path, O_RDONLY);
  } catch (const Error& error) {
    throw Error(ErrorKind::Checkpoint, error.what());
  }
  struct stat status {};
  if (::fstat(file_.get(), &status) == 0) size_ = static_cast<std::uint64_t>(status.st_size);
  constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";
  constexpr std::size_t kSuperblock = 96;
  const std::vector<std::byte> bytes =
      bytes_at(0, std::min<std::uint64_t>(size_, kSuperblock), "the file");
  if (bytes.size() < kSuperblock || !std::ranges::equal(std::span(bytes).first(kSignature.size()),
                                                        std::as_bytes(std::span(kSignature))))
    fail(ErrorKind::Checkpoint, "{}: cannot open the file: no HDF5 signature", path_);
  const Place place{path_, "the file"};
  Cursor in({bytes.data() + kSignature.size(), bytes.size() - kSignature.size()}, place);
  const auto version = in.take<std::uint8_t>();
  in.skip(4);
  const auto offset_bytes = in.take<std::uint8_t>();
  const auto length_bytes = in.take<std::uint8_t>();
  if (version != 0 || offset_bytes != 8 || length_bytes != 8)
    fail(ErrorKind::Checkpoint,
         "{}: cannot open the file: HDF5 version {} with {}-byte offsets, expected version 0 with "
         "8-byte offsets",
         path_, version, offset_bytes);
  in.skip(1 + 2 + 2 + 4);
  if (in.take<std::uint64_t>() != 0) place.damaged("its base address is not 0");
  in.skip(8 + 8 + 8 + 8);
  root_ = in.take<std::uint64_t>();
}

void Hdf5Structure::read(std::uint64_t address, std::span<std::byte> out,
                         std::string_view name) const {
  const Place place{path_, name};
  if (address > size_ || out.size() > size_ - address)
    place.damaged("{} bytes at {} are outside its {} bytes", out.size(), address, size_);
  while (!out.empty()) {
    const auto n = ::pread(file_.get(), out.data(), out.size(), static_cast<off_t>(address));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      fail(ErrorKind::Checkpoint, "{}: cannot read {}: {}", path_, name,
           std::generic_category().message(errno));
    if (n == 0) place.damaged("the file was truncated while it was read");
    out = out.subspan(static_cast<std::size_t>(n));
    address += static_cast<std::uint64_t>(n);
  }
}

/// Counts the bytes of a structure that is read for the first time.
void Hdf5Structure::count(std::uint64_t bytes, std::string_view name) {
  counted_ += bytes;
  require_apart(name);
}

void Hdf5Structure::require_apart(std::string_view name) const {
  if (counted_ > size_)
    Place{path_, name}.damaged("its parts overlap: together they are longer than the file");
}

std::vector<std::byte> Hdf5Structure::bytes_at(std::uint64_t address, std::uint64_t count,
                                               std::string_view name) const {
  require_apart(name);
  if (address > size_ || count > size_ - address)  // before memory is allocated
    Place{path_, name}.damaged("{} bytes at {} are outside its {} bytes", count, address, size_);
  std::vector<std::byte> bytes(count);
  read(address, bytes, name);
  return bytes;
}

Hdf5Structure::Header Hdf5Structure::header_at(std::uint64_t address, std::string_view name) const {
  constexpr std::size_t kPrefix = 16;
  const Place place{path_, name};
  const std::vector<std::byte> prefix = bytes_at(address, kPrefix, name);
  Cursor in(prefix, place);
  if (in.take<std::uint8_t>() != 1) place.damaged("its object header is not version 1");
  in.skip(7);
  struct Block {
    std::uint64_t address;
    std::uint64_t bytes;
  };
  std::vector<Block> blocks = {{address + kPrefix, in.take<std::uint32_t>()}};
  Header header;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    header.bytes += std::min(blocks[b].bytes, kMaxHeader) + 1;
    if (header.bytes > kMaxHeader) place.damaged("its header is too long");
    const std::vector<std::byte> block = bytes_at(blocks[b].address, blocks[b].bytes, name);
    Cursor rows(block, place);
    while (rows.left() >= 8) {
      const auto type = rows.take<std::uint16_t>();
      const std::size_t length = rows.take<std::uint16_t>();
      rows.skip(4);  // flags: our files have no shared messages
      const auto body = rows.take_bytes(length);
      if (type == kContinuation) {
        Cursor next(body, place);
        const auto more = next.take<std::uint64_t>();
        blocks.push_back({more, next.take<std::uint64_t>()});
      } else {
        header.messages.push_back({type, {body.begin(), body.end()}});
      }
    }
  }
  return header;
}

const Hdf5Structure::Group& Hdf5Structure::group_at(std::uint64_t address, std::string_view name) {
  if (const auto found = groups_.find(address); found != groups_.end()) return found->second;
  const Place place{path_, name};
  const Header header = header_at(address, name);
  const auto table = std::ranges::find(header.messages, kSymbolTable, &Message::type);
  if (table == header.messages.end())
    fail(ErrorKind::Checkpoint, "{}: {}: its parent is not a group of the expected format", path_,
         name);
  Cursor in(table->body, place);
  const auto tree = in.take<std::uint64_t>();
  const std::vector<std::byte> heap = bytes_at(in.take<std::uint64_t>(), 32, name);
  Cursor names(heap, place);
  names.expect("HEAP");
  names.skip(4);
  const auto names_bytes = names.take<std::uint64_t>();
  names.skip(8);
  if (names_bytes > kMaxNames)
    place.damaged("the names of a group have {} bytes, more than the limit", names_bytes);
  count(header.bytes + names_bytes, name);
  const std::vector<std::byte> text = bytes_at(names.take<std::uint64_t>(), names_bytes, name);
  Group group;
  read_links(tree, std::nullopt, {group, text}, name);
  return groups_.emplace(address, std::move(group)).first->second;
}

void Hdf5Structure::read_links(std::uint64_t node, std::optional<unsigned> wanted_level,
                               Links links, std::string_view name) {
  const Place place{path_, name};
  const std::vector<std::byte> head = bytes_at(node, kNodeHead, name);
  Cursor in(head, place);
  in.expect("TREE");
  const auto type = in.take<std::uint8_t>();
  const unsigned level = in.take<std::uint8_t>();
  const std::uint64_t entries = in.take<std::uint16_t>();
  if (type != 0 || level > kMaxLevel || level != wanted_level.value_or(level) ||
      (wanted_level && entries == 0))
    place.damaged("a group node is in the wrong place");
  count(kNodeHead + entries * 16, name);
  const std::vector<std::byte> body = bytes_at(node + kNodeHead, entries * 16, name);
  Cursor rows(body, place);
  for (std::uint64_t i = 0; i < entries; ++i) {
    rows.skip(8);  // the smallest name
    const auto child = rows.take<std::uint64_t>();
    if (level > 0)
      read_links(child, level - 1, links, name);
    else
      read_symbols(child, links, name);
  }
}

void Hdf5Structure::read_symbols(std::uint64_t node, Links links, std::string_view name) {
  constexpr std::uint32_t kSoft = 2;
  const Place place{path_, name};
  const std::vector<std::byte> head = bytes_at(node, 8, name);
  Cursor in(head, place);
  in.expect("SNOD");
  in.skip(2);
  const std::uint64_t symbols = in.take<std::uint16_t>();
  // In a valid file each link is listed once, so all of them fit in the file.
  links_ += symbols;
  if (symbols == 0 || links_ > kMaxLinks || links_ > size_ / kSymbolBytes)
    place.damaged("its groups list {} links: too few or too many", links_);
  const std::vector<std::byte> body = bytes_at(node + 8, symbols * kSymbolBytes, name);
  Cursor rows(body, place);
  for (std::uint64_t i = 0; i < symbols; ++i) {
    const auto text = rows.take<std::uint64_t>();
    Target target{.link = Link::Hard, .header = rows.take<std::uint64_t>()};
    if (rows.take<std::uint32_t>() == kSoft) target.link = Link::Soft;
    rows.skip(4 + 16);
    if (!links.group.emplace(text_at(links.names, text, place), target).second)
      place.damaged("a group lists a name twice");
  }
}

StoredDataset Hdf5Structure::find(const std::string& name) {
  const Place place{path_, name};
  std::uint64_t address = root_;
  for (std::size_t begin = 1; begin <= name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    const Group& group = group_at(address, name);
    const auto found = group.find(std::string_view(name).substr(begin, end - begin));
    if (found == group.end())
      fail(ErrorKind::Checkpoint, "{}: {}: is missing from the file", path_, name);
    if (found->second.link == Link::Soft)
      fail(ErrorKind::Checkpoint, "{}: {}: {} is a soft link", path_, name, name.substr(0, end));
    address = found->second.header;
    begin = end + 1;
  }
  StoredDataset dataset;
  bool filtered = false;
  const Header header = header_at(address, name);
  if (found_.insert(name).second) count(header.bytes, name);
  for (const Message& message : header.messages) {
    if (message.type == kType) dataset.type = message.body;
    if (message.type == kExtents) dataset.extents = parse_extents(message.body, place);
    if (message.type == kLayout) parse_layout(message.body, place, dataset);
    if (message.type == kFilters) filtered = is_our_filter(message.body, place);
    if (message.type == kAttribute)
      if (auto type = type_name_in(message.body, place)) dataset.type_name = std::move(*type);
  }
  if (!filtered) dataset.chunk.clear();
  return dataset;
}

void Hdf5Structure::visit_chunks(const std::string& name, const StoredDataset& dataset,
                                 const std::function<void(const StoredChunk&)>& visit) {
  const Place place{path_, name};
  if (dataset.chunk.size() != dataset.extents.size())
    place.damaged("its chunks have {} extents, expected {}", dataset.chunk.size(),
                  dataset.extents.size());
  const std::uint64_t bytes = ChunkWalk(*this, place, dataset, visit).run();
  if (walked_.insert(name).second) count(bytes, name);
}

}  // namespace millrace::io
