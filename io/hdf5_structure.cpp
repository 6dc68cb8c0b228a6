// SPDX-License-Identifier: Apache-2.0
#include "io/hdf5_structure.hpp"

#include <fcntl.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <system_error>

#include "io/tensor_checks.hpp"

namespace millrace::io {
namespace {

static_assert(std::endian::native == std::endian::little, "HDF5's own numbers are little-endian");

constexpr std::uint64_t kMaxNames = std::uint64_t{16} << 20;  ///< bytes of the names of a group
constexpr std::uint64_t kMaxLinks = 200'000;
constexpr std::uint64_t kMaxHeader = std::uint64_t{1} << 20;
constexpr unsigned kMaxLevel = 16;  ///< of a B-tree
constexpr std::uint64_t kSymbolBytes = 40;

// Types of messages in the header of an object.
constexpr std::uint16_t kExtents = 0x01;
constexpr std::uint16_t kType = 0x03;
constexpr std::uint16_t kLayout = 0x08;
constexpr std::uint16_t kFilters = 0x0b;
constexpr std::uint16_t kAttribute = 0x0c;
constexpr std::uint16_t kContinuation = 0x10;
constexpr std::uint16_t kSymbolTable = 0x11;

/// Size of a string in a message, padded to whole words.
std::size_t padded(std::size_t bytes) { return (bytes + 7) / 8 * 8; }

/// The null-terminated string at an offset of `names`.
std::string_view text_at(std::span<const std::byte> names, std::uint64_t offset,
                         const Hdf5Place& place) {
  if (offset >= names.size()) place.damaged("a name is outside the name heap");
  const std::string_view rest(reinterpret_cast<const char*>(names.data()) + offset,
                              names.size() - offset);
  const std::string_view text = rest.substr(0, rest.find('\0'));
  if (text.empty() || text.size() == rest.size() || text.size() > kMaxNameLength)
    place.damaged("a name is empty, unterminated or too long");
  return text;
}

std::vector<std::int64_t> parse_extents(std::span<const std::byte> body, const Hdf5Place& place) {
  Hdf5Cursor in(body, place);
  const auto version = in.take<std::uint8_t>();
  const std::size_t rank = in.take<std::uint8_t>();
  if (version < 1 || version > 2 || rank > kMaxRank) place.damaged("its extents are invalid");
  in.skip(version == 1 ? 6 : 2);
  std::vector<std::int64_t> extents;
  for (std::size_t i = 0; i < rank; ++i) extents.push_back(in.take<std::int64_t>());
  return extents;
}

/// Other layouts leave dataset.chunk empty.
void parse_layout(std::span<const std::byte> body, const Hdf5Place& place, StoredDataset& dataset) {
  constexpr std::uint8_t kVersion = 3;
  constexpr std::uint8_t kChunked = 2;
  Hdf5Cursor in(body, place);
  if (in.take<std::uint8_t>() != kVersion || in.take<std::uint8_t>() != kChunked) return;
  // One more than the rank: the bytes of an element.
  const std::size_t numbers = in.take<std::uint8_t>();
  if (numbers < 2 || numbers > kMaxRank + 1) place.damaged("its chunk shape is invalid");
  dataset.chunks_at = in.take<std::uint64_t>();
  for (std::size_t i = 0; i + 1 < numbers; ++i) dataset.chunk.push_back(in.take<std::uint32_t>());
  dataset.element_bytes = in.take<std::uint32_t>();
}

/// Whether Fletcher32 is the only filter.
bool is_our_filter(std::span<const std::byte> body, const Hdf5Place& place) {
  constexpr std::uint16_t kFletcher32 = 3;
  Hdf5Cursor in(body, place);
  const auto version = in.take<std::uint8_t>();
  const auto filters = in.take<std::uint8_t>();
  if (version == 1) in.skip(6);
  return (version == 1 || version == 2) && filters == 1 && in.take<std::uint16_t>() == kFletcher32;
}

/// The value of the attribute `dtype`, if it is this one: a string of fixed length.
std::optional<std::string> type_name_in(std::span<const std::byte> body, const Hdf5Place& place) {
  constexpr std::string_view kName = "dtype";
  constexpr std::size_t kMaxText = 16;
  Hdf5Cursor in(body, place);
  if (in.take<std::uint8_t>() != 1) return {};
  in.skip(1);
  const std::size_t name_bytes = in.take<std::uint16_t>();
  const std::size_t type_bytes = in.take<std::uint16_t>();
  const std::size_t space_bytes = in.take<std::uint16_t>();
  const auto name = in.take_bytes(padded(name_bytes));
  if (name_bytes != kName.size() + 1 ||
      !std::ranges::equal(name.first(kName.size()), std::as_bytes(std::span(kName))))
    return {};
  Hdf5Cursor type(in.take_bytes(padded(type_bytes)), place);
  constexpr std::uint8_t kText = 0x13;  // version 1, class 3
  if (type.take<std::uint8_t>() != kText) return {};
  type.skip(3);
  const auto length = type.take<std::uint32_t>();
  in.skip(padded(space_bytes));
  if (length > kMaxText) return {};
  const auto text = in.take_bytes(length);
  return std::string(reinterpret_cast<const char*>(text.data()), text.size());
}

}  // namespace

void Hdf5Cursor::expect(std::string_view signature) {
  if (!std::ranges::equal(take_bytes(signature.size()), std::as_bytes(std::span(signature))))
    place_.damaged("the signature {} is missing", signature);
}

Hdf5Structure::Hdf5Structure(const std::filesystem::path& path) : path_(path.string()) {
  try {
    file_ = open_file(path, O_RDONLY);
    size_ = regular_size(file_.get(), path);
  } catch (const Error& error) {
    throw Error(ErrorKind::Checkpoint, error.what());
  }
  constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";
  constexpr std::size_t kSuperblock = 96;
  const Hdf5Place place{path_, "the file"};
  const std::vector<std::byte> bytes =
      bytes_at(0, std::min<std::uint64_t>(size_, kSuperblock), place);
  Hdf5Cursor in(bytes, place);
  if (bytes.size() < kSuperblock ||
      !std::ranges::equal(in.take_bytes(kSignature.size()), std::as_bytes(std::span(kSignature))))
    fail(ErrorKind::Checkpoint, "{}: cannot open the file: no HDF5 signature", path_);
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
                         const Hdf5Place& place) const {
  if (address > size_ || out.size() > size_ - address)
    place.damaged("{} bytes at {} are outside its {} bytes", out.size(), address, size_);
  const std::int64_t done = read_at(file_.get(), out, address);
  if (done < 0)
    fail(ErrorKind::Checkpoint, "{}: cannot read {}: {}", path_, place.name,
         std::generic_category().message(errno));
  if (done != std::ssize(out)) place.damaged("the file was truncated while it was read");
}

/// Counts the bytes of a structure that is read for the first time.
void Hdf5Structure::count(std::uint64_t bytes, const Hdf5Place& place) {
  counted_ += bytes;
  require_apart(place);
}

void Hdf5Structure::count_chunks(std::uint64_t tree_bytes, const Hdf5Place& place) {
  if (walked_.emplace(place.name).second) count(tree_bytes, place);
}

void Hdf5Structure::require_apart(const Hdf5Place& place) const {
  if (counted_ > size_) place.damaged("its parts overlap: together they are longer than the file");
}

std::vector<std::byte> Hdf5Structure::bytes_at(std::uint64_t address, std::uint64_t count,
                                               const Hdf5Place& place) const {
  require_apart(place);
  if (address > size_ || count > size_ - address)  // before memory is allocated
    place.damaged("{} bytes at {} are outside its {} bytes", count, address, size_);
  std::vector<std::byte> bytes(count);
  read(address, bytes, place);
  return bytes;
}

Hdf5Structure::Header Hdf5Structure::header_at(std::uint64_t address,
                                               const Hdf5Place& place) const {
  constexpr std::size_t kPrefix = 16;
  const std::vector<std::byte> prefix = bytes_at(address, kPrefix, place);
  Hdf5Cursor in(prefix, place);
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
    const std::vector<std::byte> block = bytes_at(blocks[b].address, blocks[b].bytes, place);
    Hdf5Cursor rows(block, place);
    while (rows.left() >= 8) {
      const auto type = rows.take<std::uint16_t>();
      const std::size_t length = rows.take<std::uint16_t>();
      rows.skip(4);  // flags: our files have no shared messages
      const auto body = rows.take_bytes(length);
      if (type == kContinuation) {
        Hdf5Cursor next(body, place);
        const auto more = next.take<std::uint64_t>();
        blocks.push_back({more, next.take<std::uint64_t>()});
      } else {
        header.messages.push_back({type, {body.begin(), body.end()}});
      }
    }
  }
  return header;
}

Hdf5Node Hdf5Structure::node_at(std::uint64_t address, Hdf5Tree tree, std::optional<unsigned> level,
                                const Hdf5Place& place) const {
  const std::vector<std::byte> head = bytes_at(address, Hdf5Node::kHeadBytes, place);
  Hdf5Cursor in(head, place);
  in.expect("TREE");
  const auto type = in.take<std::uint8_t>();
  const Hdf5Node node{.level = in.take<std::uint8_t>(), .entries = in.take<std::uint16_t>()};
  if (type != static_cast<std::uint8_t>(tree) || node.level > kMaxLevel ||
      node.level != level.value_or(node.level))
    place.damaged("a {} node is in the wrong place", tree == Hdf5Tree::Group ? "group" : "chunk");
  return node;
}

const Hdf5Structure::Group& Hdf5Structure::group_at(std::uint64_t address, const Hdf5Place& place) {
  if (const auto found = groups_.find(address); found != groups_.end()) return found->second;
  const Header header = header_at(address, place);
  const auto table = std::ranges::find(header.messages, kSymbolTable, &Message::type);
  if (table == header.messages.end())
    place.refuse("its parent is not a group of the expected format");
  Hdf5Cursor in(table->body, place);
  const auto tree = in.take<std::uint64_t>();
  const std::vector<std::byte> heap = bytes_at(in.take<std::uint64_t>(), 32, place);
  Hdf5Cursor names(heap, place);
  names.expect("HEAP");
  names.skip(4);
  const auto names_bytes = names.take<std::uint64_t>();
  names.skip(8);
  if (names_bytes > kMaxNames)
    place.damaged("the names of a group have {} bytes, more than the limit", names_bytes);
  count(header.bytes + names_bytes, place);
  const std::vector<std::byte> text = bytes_at(names.take<std::uint64_t>(), names_bytes, place);
  Group group;
  read_links(tree, std::nullopt, {group, text}, place);
  return groups_.emplace(address, std::move(group)).first->second;
}

void Hdf5Structure::read_links(std::uint64_t node, std::optional<unsigned> wanted_level,
                               Links links, const Hdf5Place& place) {
  const auto [level, entries] = node_at(node, Hdf5Tree::Group, wanted_level, place);
  if (wanted_level && entries == 0) place.damaged("a group node is in the wrong place");
  count(Hdf5Node::kHeadBytes + entries * 16, place);
  const std::vector<std::byte> body = bytes_at(node + Hdf5Node::kHeadBytes, entries * 16, place);
  Hdf5Cursor rows(body, place);
  for (std::size_t i = 0; i < entries; ++i) {
    rows.skip(8);  // the smallest name
    const auto child = rows.take<std::uint64_t>();
    if (level > 0)
      read_links(child, level - 1, links, place);
    else
      read_symbols(child, links, place);
  }
}

void Hdf5Structure::read_symbols(std::uint64_t node, Links links, const Hdf5Place& place) {
  constexpr std::uint32_t kSoft = 2;
  const std::vector<std::byte> head = bytes_at(node, 8, place);
  Hdf5Cursor in(head, place);
  in.expect("SNOD");
  in.skip(2);
  const std::uint64_t symbols = in.take<std::uint16_t>();
  // In a valid file each link is listed once, so all of them fit in the file.
  links_ += symbols;
  if (symbols == 0 || links_ > kMaxLinks || links_ > size_ / kSymbolBytes)
    place.damaged("its groups list {} links: too few or too many", links_);
  const std::vector<std::byte> body = bytes_at(node + 8, symbols * kSymbolBytes, place);
  Hdf5Cursor rows(body, place);
  for (std::uint64_t i = 0; i < symbols; ++i) {
    const auto text = rows.take<std::uint64_t>();
    Target target{.link = Link::Hard, .header = rows.take<std::uint64_t>()};
    if (rows.take<std::uint32_t>() == kSoft) target.link = Link::Soft;
    rows.skip(4 + 16);
    if (!links.group.emplace(text_at(links.names, text, place), target).second)
      place.damaged("a group lists a name twice");
  }
}

StoredDataset Hdf5Structure::find(const Hdf5Place& place) {
  const std::string_view name = place.name;
  std::uint64_t address = root_;
  for (std::size_t begin = 1; begin <= name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    const Group& group = group_at(address, place);
    const auto found = group.find(name.substr(begin, end - begin));
    if (found == group.end()) place.refuse("is missing from the file");
    if (found->second.link == Link::Soft) place.refuse("{} is a soft link", name.substr(0, end));
    address = found->second.header;
    begin = end + 1;
  }
  StoredDataset dataset;
  bool filtered = false;
  const Header header = header_at(address, place);
  if (found_.emplace(name).second) count(header.bytes, place);
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

}  // namespace millrace::io
