// SPDX-License-Identifier: Apache-2.0
#include "io/hdf5.hpp"

#include <fcntl.h>
#include <hdf5.h>

#include <algorithm>
#include <array>
#include <bit>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/hdf5_handles.hpp"
#include "io/tensor_checks.hpp"

namespace millrace::io {
namespace {

static_assert(std::endian::native == std::endian::little,
              "tensors are stored in the byte order of memory");

constexpr auto kChunkBytes = static_cast<hsize_t>(kHdf5PieceBytes);
constexpr std::size_t kMetadataBytes = std::size_t{512} << 10;
constexpr const char* kTypeAttribute = "dtype";

// Keeps the innermost reason, which comes first, on one line.
extern "C" herr_t millrace_first_reason(unsigned, const H5E_error2_t* entry, void* text) {
  auto& reason = *static_cast<std::string*>(text);
  if (reason.empty() && entry->desc != nullptr) reason = entry->desc;
  std::replace(reason.begin(), reason.end(), '\n', ' ');
  return 0;
}

// Converts HDF5 results to exceptions that name the file.
struct Reporter {
  ErrorKind kind;
  std::string path;

  [[noreturn]] void failed(std::string_view action, std::string_view name) const {
    std::string reason;
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, millrace_first_reason, &reason);
    fail(kind, "{}: cannot {} {}: {}", path, action, name,
         reason.empty() ? "HDF5 gives no reason" : reason);
  }
  template <class Result>
  Result check(Result result, std::string_view action, std::string_view name) const {
    if (result < 0) failed(action, name);
    return result;
  }
};

// Type in the file; also the type in memory, which is little-endian too.
TypeHandle make_type(DType type) {
  switch (type) {
    case DType::F32:
      return TypeHandle(H5Tcopy(H5T_IEEE_F32LE));
    case DType::BF16:
      return TypeHandle(H5Tcopy(H5T_STD_U16LE));
    case DType::U8:
      return TypeHandle(H5Tcopy(H5T_STD_U8LE));
    case DType::I32:
      return TypeHandle(H5Tcopy(H5T_STD_I32LE));
    case DType::F16:
      break;
  }
  TypeHandle half(H5Tcopy(H5T_IEEE_F32LE));  // IEEE binary16, which HDF5 does not predefine
  H5Tset_fields(half.get(), 15, 10, 5, 0, 10);
  H5Tset_size(half.get(), 2);
  H5Tset_ebias(half.get(), 15);
  return half;
}

// A chunked dataset needs one extent at least.
std::vector<hsize_t> stored_extents(std::span<const std::int64_t> shape) {
  if (shape.empty()) return {1};
  return {shape.begin(), shape.end()};
}

// Splits leading extents until a chunk has at most kChunkBytes. Pieces have about equal size
// because the last chunk is stored in full.
std::vector<hsize_t> chunk_extents(std::vector<hsize_t> extents, hsize_t element_bytes) {
  hsize_t bytes = element_bytes;
  for (const hsize_t extent : extents) bytes *= extent;
  for (hsize_t& extent : extents) {
    if (bytes <= kChunkBytes) break;
    const hsize_t row = bytes / extent;
    const hsize_t fitting = std::max<hsize_t>(1, kChunkBytes / row);
    const hsize_t pieces = (extent + fitting - 1) / fitting;
    extent = (extent + pieces - 1) / pieces;
    bytes = row * extent;
  }
  return extents;
}

// Access to an open file through our driver, with a small cache of metadata: by default it grows
// with the number of tensors, to 32 MB.
PropertyHandle access_to(Hdf5Stream& stream, const Reporter& report) {
  PropertyHandle access(H5Pcreate(H5P_FILE_ACCESS));
  Hdf5Stream* const information = &stream;
  report.check(H5Pset_driver(access.get(), hdf5_driver(), &information), "set up", "the file");
  H5AC_cache_config_t cache{};
  cache.version = H5AC__CURR_CACHE_CONFIG_VERSION;
  report.check(H5Pget_mdc_config(access.get(), &cache), "set up", "the file");
  cache.set_initial_size = true;
  cache.initial_size = cache.min_size = cache.max_size = kMetadataBytes;
  cache.incr_mode = H5C_incr__off;
  cache.flash_incr_mode = H5C_flash_incr__off;
  cache.decr_mode = H5C_decr__off;
  report.check(H5Pset_mdc_config(access.get(), &cache), "set up", "the file");
  return access;
}

/// A file of the library; what both readers and writers have.
class OpenFile {
 public:
  OpenFile(ErrorKind kind, const std::filesystem::path& path, UniqueFd file)
      : report_{kind, path.string()}, stream_{std::move(file)} {}
  ~OpenFile() {
    const Hdf5Session session;
    static_cast<void>(file_.close());
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

 protected:
  Reporter report_;
  Hdf5Stream stream_;  // must outlive file_
  FileHandle file_;
};

}  // namespace

class Hdf5Writer::State : OpenFile {
 public:
  explicit State(const std::filesystem::path& path)
      : OpenFile(ErrorKind::Io, path, open_file(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW)) {
    const Hdf5Session session;
    const PropertyHandle access = access_to(stream_, report_);
    report_.check(H5Pset_libver_bounds(access.get(), H5F_LIBVER_EARLIEST, H5F_LIBVER_LATEST),
                  "choose the format of", "the file");
    file_ = FileHandle(
        report_.check(H5Fcreate(report_.path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()),
                      "create", "the file"));
  }

  void write(const std::string& name, DType type, std::span<const std::int64_t> shape,
             std::span<const std::byte> data) {
    const auto elements = checked_elements(shape, size_of(type));
    MILLRACE_ASSERT(elements && *elements > 0);
    MILLRACE_ASSERT(data.size() == static_cast<std::size_t>(*elements * size_of(type)));
    const Hdf5Session session;
    const TypeHandle stored = make_type(type);
    fill(create(name, stored, type, shape), stored, data.data(), name);
    if (type != DType::BF16) return;
    add_type_attribute(name, name_of(type));
    throw_noted();
  }

  void describe(const std::string& name, const std::string& attribute, const Json& value) {
    const Hdf5Session session;
    if (value.is_text()) {
      if (!value.text().empty()) add_text(name, attribute, value.text());
    } else if (value.is_number()) {
      add_numbers(name, attribute, {&value, 1}, Numbers::One);
    } else if (value.is_list() && !value.items().empty()) {
      add_numbers(name, attribute, value.items(), Numbers::List);
    }
    throw_noted();
  }

  void write_texts(const std::string& name, std::span<const std::string> texts) {
    MILLRACE_ASSERT(!texts.empty());
    const Hdf5Session session;
    std::size_t longest = 1;
    for (const std::string& text : texts) longest = std::max(longest, text.size());
    std::string padded;
    for (const std::string& text : texts) padded.append(text).append(longest - text.size(), '\0');
    const TypeHandle type = text_type(longest, name);
    const hsize_t extent = texts.size();
    const SpaceHandle space(report_.check(H5Screate_simple(1, &extent, nullptr), "set up", name));
    fill(create(name, type, space, dataset_properties(name)), type, padded.data(), name);
  }

  void close() {
    const Hdf5Session session;
    const herr_t flushed = H5Fflush(file_.get(), H5F_SCOPE_GLOBAL);
    const herr_t closed = file_.close();
    throw_noted();
    report_.check(flushed, "flush", "the file");
    report_.check(closed, "close", "the file");
    if (const int error = sync_descriptor(stream_.fd.get()); error != 0)
      fail_io("sync", report_.path, error);
    if (const int error = stream_.fd.close(); error != 0) fail_io("close", report_.path, error);
  }

 private:
  DatasetHandle create(const std::string& name, const TypeHandle& stored, DType type,
                       std::span<const std::int64_t> shape) const {
    const std::vector<hsize_t> extents = stored_extents(shape);
    const int rank = static_cast<int>(extents.size());
    const std::vector<hsize_t> chunk = chunk_extents(extents, static_cast<hsize_t>(size_of(type)));
    const PropertyHandle layout = dataset_properties(name);
    report_.check(H5Pset_chunk(layout.get(), rank, chunk.data()), "set up", name);
    report_.check(H5Pset_fletcher32(layout.get()), "set up", name);
    report_.check(H5Pset_fill_time(layout.get(), H5D_FILL_TIME_NEVER), "set up", name);
    const SpaceHandle space(
        report_.check(H5Screate_simple(rank, extents.data(), nullptr), "set up", name));
    return create(name, stored, space, layout);
  }

  void fill(DatasetHandle dataset, const TypeHandle& type, const void* data,
            const std::string& name) const {
    const herr_t written = H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, data);
    throw_noted();
    report_.check(written, "write", name);
    report_.check(dataset.close(), "finish", name);
    throw_noted();
  }

  [[nodiscard]] PropertyHandle dataset_properties(const std::string& name) const {
    PropertyHandle layout(H5Pcreate(H5P_DATASET_CREATE));
    // Equal contents give equal files.
    report_.check(H5Pset_obj_track_times(layout.get(), false), "set up", name);
    return layout;
  }

  [[nodiscard]] DatasetHandle create(const std::string& name, const TypeHandle& stored,
                                     const SpaceHandle& space, const PropertyHandle& layout) const {
    const PropertyHandle links(H5Pcreate(H5P_LINK_CREATE));
    report_.check(H5Pset_create_intermediate_group(links.get(), 1), "set up", name);
    return DatasetHandle(
        report_.check(H5Dcreate2(file_.get(), name.c_str(), stored.get(), space.get(), links.get(),
                                 layout.get(), H5P_DEFAULT),
                      "create", name));
  }

  [[nodiscard]] TypeHandle text_type(std::size_t bytes, const std::string& name) const {
    TypeHandle type(H5Tcopy(H5T_C_S1));
    report_.check(H5Tset_size(type.get(), bytes), "describe", name);
    if (bytes != H5T_VARIABLE)
      report_.check(H5Tset_strpad(type.get(), H5T_STR_NULLPAD), "describe", name);
    report_.check(H5Tset_cset(type.get(), H5T_CSET_UTF8), "describe", name);
    return type;
  }

  /// Of any length, because h5py returns only those as str.
  void add_text(const std::string& name, const std::string& attribute,
                const std::string& text) const {
    const TypeHandle type = text_type(H5T_VARIABLE, name);
    const SpaceHandle space(report_.check(H5Screate(H5S_SCALAR), "describe", name));
    const char* const begin = text.c_str();
    add_attribute(name, attribute, type, space, &begin);
  }

  /// Of fixed length.
  void add_type_attribute(const std::string& name, std::string_view value) const {
    const TypeHandle type = text_type(value.size(), name);
    const SpaceHandle space(report_.check(H5Screate(H5S_SCALAR), "describe", name));
    add_attribute(name, kTypeAttribute, type, space, value.data());
  }

  enum class Numbers { One, List };
  /// Integers as 64-bit integers, if all are; otherwise as doubles.
  void add_numbers(const std::string& name, const std::string& attribute,
                   std::span<const Json> values, Numbers form) const {
    if (!std::ranges::all_of(values, &Json::is_number)) return;
    const hsize_t extent = values.size();
    const SpaceHandle space(report_.check(
        form == Numbers::One ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, &extent, nullptr),
        "describe", name));
    if (std::ranges::all_of(values, &Json::is_integer)) {
      std::vector<std::int64_t> numbers;
      for (const Json& value : values) numbers.push_back(value.as_int64());
      add_attribute(name, attribute, TypeHandle(H5Tcopy(H5T_STD_I64LE)), space, numbers.data());
    } else {
      std::vector<double> numbers;
      for (const Json& value : values) numbers.push_back(value.as_double());
      add_attribute(name, attribute, TypeHandle(H5Tcopy(H5T_IEEE_F64LE)), space, numbers.data());
    }
  }

  void add_attribute(const std::string& name, const std::string& attribute, const TypeHandle& type,
                     const SpaceHandle& space, const void* value) const {
    const AttributeHandle made(
        report_.check(H5Acreate_by_name(file_.get(), name.c_str(), attribute.c_str(), type.get(),
                                        space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                      "describe", name));
    report_.check(H5Awrite(made.get(), type.get(), value), "describe", name);
  }

  void throw_noted() const {
    if (stream_.first_error != 0) fail_io("write", report_.path, stream_.first_error);
  }
};

Hdf5Writer::Hdf5Writer(const std::filesystem::path& path) : state_(std::make_unique<State>(path)) {}
Hdf5Writer::Hdf5Writer(Hdf5Writer&&) noexcept = default;
Hdf5Writer& Hdf5Writer::operator=(Hdf5Writer&&) noexcept = default;
Hdf5Writer::~Hdf5Writer() = default;

void Hdf5Writer::write(const std::string& name, DType type, std::span<const std::int64_t> shape,
                       std::span<const std::byte> data) {
  state_->write(name, type, shape, data);
}

void Hdf5Writer::describe(const std::string& name, const std::string& attribute,
                          const Json& value) {
  state_->describe(name, attribute, value);
}

void Hdf5Writer::write_texts(const std::string& name, std::span<const std::string> texts) {
  state_->write_texts(name, texts);
}

void Hdf5Writer::close() { state_->close(); }

class Hdf5Reader::State : OpenFile {
 public:
  explicit State(const std::filesystem::path& path)
      : OpenFile(ErrorKind::Checkpoint, path, open_to_read(path)) {
    const Hdf5Session session;
    const PropertyHandle access = access_to(stream_, report_);
    file_ = FileHandle(report_.check(H5Fopen(report_.path.c_str(), H5F_ACC_RDONLY, access.get()),
                                     "open", "the file"));
  }

  [[nodiscard]] bool has(const std::string& name) const {
    const Hdf5Session session;
    return H5Lexists(file_.get(), name.c_str(), H5P_DEFAULT) > 0;
  }

  void read(const std::string& name, DType type, std::span<const std::int64_t> shape,
            std::span<std::byte> out) const {
    const auto elements = checked_elements(shape, size_of(type));
    MILLRACE_ASSERT(elements && out.size() == static_cast<std::size_t>(*elements * size_of(type)));
    const Hdf5Session session;
    const DatasetHandle dataset(
        report_.check(H5Dopen2(file_.get(), name.c_str(), H5P_DEFAULT), "open", name));
    require_shape(dataset, name, shape);
    const TypeHandle found(report_.check(H5Dget_type(dataset.get()), "read", name));
    const TypeHandle wanted = make_type(type);
    if (report_.check(H5Tequal(found.get(), wanted.get()), "read", name) == 0)
      fail(report_.kind, "{}: {}: is not stored as {}", report_.path, name, name_of(type));
    const PropertyHandle transfer(H5Pcreate(H5P_DATASET_XFER));
    H5Pset_edc_check(transfer.get(), H5Z_DISABLE_EDC);  // a caller's checksum finds more
    report_.check(
        H5Dread(dataset.get(), wanted.get(), H5S_ALL, H5S_ALL, transfer.get(), out.data()), "read",
        name);
  }

 private:
  static UniqueFd open_to_read(const std::filesystem::path& path) {
    try {
      return open_file(path, O_RDONLY);
    } catch (const Error& error) {
      throw Error(ErrorKind::Checkpoint, error.what());
    }
  }

  void require_shape(const DatasetHandle& dataset, const std::string& name,
                     std::span<const std::int64_t> shape) const {
    const SpaceHandle space(report_.check(H5Dget_space(dataset.get()), "read", name));
    std::array<hsize_t, H5S_MAX_RANK> extents{};
    const int rank = report_.check(H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr),
                                   "read", name);
    const std::vector<std::int64_t> found(extents.begin(), extents.begin() + rank);
    const std::vector<hsize_t> stored = stored_extents(shape);
    const std::vector<std::int64_t> expected(stored.begin(), stored.end());
    if (found != expected)
      fail(report_.kind, "{}: {}: has shape {}, expected {}", report_.path, name, shape_text(found),
           shape_text(expected));
  }
};

Hdf5Reader::Hdf5Reader(const std::filesystem::path& path) : state_(std::make_unique<State>(path)) {}
Hdf5Reader::Hdf5Reader(Hdf5Reader&&) noexcept = default;
Hdf5Reader& Hdf5Reader::operator=(Hdf5Reader&&) noexcept = default;
Hdf5Reader::~Hdf5Reader() = default;

bool Hdf5Reader::has(const std::string& name) const { return state_->has(name); }

void Hdf5Reader::read(const std::string& name, DType type, std::span<const std::int64_t> shape,
                      std::span<std::byte> out) const {
  state_->read(name, type, shape, out);
}

}  // namespace millrace::io
