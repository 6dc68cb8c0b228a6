// SPDX-License-Identifier: Apache-2.0
#include "io/hdf5.hpp"

#include <fcntl.h>
#include <hdf5.h>
#if H5_VERSION_GE(1, 13, 2)
#include <H5FDdevelop.h>
#endif
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "io/hdf5_handles.hpp"
#include "io/tensor_checks.hpp"

namespace millrace::io {
namespace {

static_assert(std::endian::native == std::endian::little,
              "tensors are stored in the byte order of memory");

constexpr auto kChunkBytes = static_cast<hsize_t>(kHdf5PieceBytes);
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
  std::string path;

  [[noreturn]] void failed(std::string_view action, std::string_view name) const {
    std::string reason;
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, millrace_first_reason, &reason);
    fail(ErrorKind::Io, "{}: cannot {} {}: {}", path, action, name,
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

// ------------------------------------------------------------------------------------------------
// Writing uses our own file driver. HDF5's drivers fail on a full disk: if the final flush fails,
// H5Fclose leaves the file open, and the library crashes when it closes it again at process exit
// (1.10.8). Our driver records the first failure and then reports success, so HDF5 always closes
// cleanly; Hdf5Writer then throws the recorded error.

struct Output {
  UniqueFd fd;
  int first_error = 0;
  void note(int error) noexcept {
    if (first_error == 0) first_error = error;
  }
};

struct DriverFile {
  H5FD_t base;  // must stay first: HDF5 sees only this
  Output* output;
  haddr_t end_of_allocation;
};
static_assert(std::is_standard_layout_v<DriverFile>);

DriverFile* own(H5FD_t* file) noexcept { return reinterpret_cast<DriverFile*>(file); }
const DriverFile* own(const H5FD_t* file) noexcept {
  return reinterpret_cast<const DriverFile*>(file);
}

extern "C" {

H5FD_t* millrace_driver_open(const char*, unsigned, hid_t access, haddr_t) {
  Output* output = nullptr;
  const void* const info = H5Pget_driver_info(access);
  if (info == nullptr) return nullptr;
  std::memcpy(&output, info, sizeof output);
  auto* const file = new (std::nothrow) DriverFile{};
  if (file == nullptr) return nullptr;
  file->output = output;
  return &file->base;
}

herr_t millrace_driver_close(H5FD_t* file) {
  delete own(file);
  return 0;
}

herr_t millrace_driver_query(const H5FD_t*, unsigned long* flags) {
  *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
           H5FD_FEAT_AGGREGATE_SMALLDATA;
  return 0;
}

haddr_t millrace_driver_get_eoa(const H5FD_t* file, H5FD_mem_t) {
  return own(file)->end_of_allocation;
}

herr_t millrace_driver_set_eoa(H5FD_t* file, H5FD_mem_t, haddr_t address) {
  own(file)->end_of_allocation = address;
  return 0;
}

haddr_t millrace_driver_get_eof(const H5FD_t* file, H5FD_mem_t) {
  struct stat status {};
  if (::fstat(own(file)->output->fd.get(), &status) != 0) return HADDR_UNDEF;
  // HDF5 compares the two on close; a failed write must not cause an error there.
  return own(file)->output->first_error != 0 ? own(file)->end_of_allocation
                                             : static_cast<haddr_t>(status.st_size);
}

herr_t millrace_driver_read(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, std::size_t size,
                            void* buffer) {
  const std::span out(static_cast<std::byte*>(buffer), size);
  const std::int64_t done = read_at(own(file)->output->fd.get(), out, address);
  if (done < 0) own(file)->output->note(errno);
  // Zeros after the end, like HDF5's own drivers.
  std::ranges::fill(out.subspan(static_cast<std::size_t>(std::max<std::int64_t>(done, 0))),
                    std::byte{0});
  return 0;
}

herr_t millrace_driver_write(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, std::size_t size,
                             const void* buffer) {
  Output& output = *own(file)->output;
  if (output.first_error != 0) return 0;
  output.note(write_at(output.fd.get(), {static_cast<const std::byte*>(buffer), size}, address));
  return 0;
}

herr_t millrace_driver_truncate(H5FD_t* file, hid_t, hbool_t) {
  Output& output = *own(file)->output;
  if (output.first_error != 0) return 0;
  const auto size = static_cast<off_t>(own(file)->end_of_allocation);
  if (::ftruncate(output.fd.get(), size) != 0) output.note(errno);
  return 0;
}

}  // extern "C"

hid_t register_driver() {
  // HDF5 keeps the pointer for as long as the driver is registered.
  static const H5FD_class_t driver = [] {
    H5FD_class_t d{};
#if H5_VERSION_GE(1, 13, 2)
    d.version = H5FD_CLASS_VERSION;
    d.value = 600;  // from the range for private use
#endif
    d.name = "millrace";
    d.maxaddr = static_cast<haddr_t>(std::numeric_limits<off_t>::max());
    d.fc_degree = H5F_CLOSE_STRONG;
    d.fapl_size = sizeof(Output*);
    d.open = millrace_driver_open;
    d.close = millrace_driver_close;
    d.query = millrace_driver_query;
    d.get_eoa = millrace_driver_get_eoa;
    d.set_eoa = millrace_driver_set_eoa;
    d.get_eof = millrace_driver_get_eof;
    d.read = millrace_driver_read;
    d.write = millrace_driver_write;
    d.truncate = millrace_driver_truncate;
    constexpr std::array<H5FD_mem_t, H5FD_MEM_NTYPES> kOneHeap = H5FD_FLMAP_DICHOTOMY;
    std::copy(kOneHeap.begin(), kOneHeap.end(), std::begin(d.fl_map));
    return d;
  }();
  static const hid_t id = H5FDregister(&driver);
  return id;
}

}  // namespace

class Hdf5Writer::State {
 public:
  explicit State(const std::filesystem::path& path)
      : report_{path.string()}, output_{open_file(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW)} {
    const Hdf5Session session;
    const PropertyHandle access(H5Pcreate(H5P_FILE_ACCESS));
    report_.check(H5Pset_libver_bounds(access.get(), H5F_LIBVER_EARLIEST, H5F_LIBVER_LATEST),
                  "choose the format of", "the file");
    Output* const output = &output_;
    report_.check(H5Pset_driver(access.get(), register_driver(), &output), "set up", "the file");
    file_ = FileHandle(
        report_.check(H5Fcreate(report_.path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()),
                      "create", "the file"));
  }

  ~State() {
    const Hdf5Session session;
    static_cast<void>(file_.close());
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void write(const std::string& name, DType type, std::span<const std::int64_t> shape,
             std::span<const std::byte> data) {
    const Hdf5Session session;
    const TypeHandle stored = make_type(type);
    DatasetHandle dataset = create(name, stored, type, shape);
    const herr_t written =
        H5Dwrite(dataset.get(), stored.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, data.data());
    throw_noted();
    report_.check(written, "write", name);
    if (type == DType::BF16) add_type_attribute(dataset, name, type);
    report_.check(dataset.close(), "finish", name);
    throw_noted();
  }

  void close() {
    const Hdf5Session session;
    const herr_t flushed = H5Fflush(file_.get(), H5F_SCOPE_GLOBAL);
    const herr_t closed = file_.close();
    throw_noted();
    report_.check(flushed, "flush", "the file");
    report_.check(closed, "close", "the file");
    if (const int error = sync_descriptor(output_.fd.get()); error != 0)
      fail_io("sync", report_.path, error);
    if (const int error = output_.fd.close(); error != 0) fail_io("close", report_.path, error);
  }

 private:
  DatasetHandle create(const std::string& name, const TypeHandle& stored, DType type,
                       std::span<const std::int64_t> shape) const {
    const std::vector<hsize_t> extents = stored_extents(shape);
    const int rank = static_cast<int>(extents.size());
    const std::vector<hsize_t> chunk = chunk_extents(extents, static_cast<hsize_t>(size_of(type)));
    const PropertyHandle layout(H5Pcreate(H5P_DATASET_CREATE));
    report_.check(H5Pset_chunk(layout.get(), rank, chunk.data()), "set up", name);
    report_.check(H5Pset_fletcher32(layout.get()), "set up", name);
    report_.check(H5Pset_fill_time(layout.get(), H5D_FILL_TIME_NEVER), "set up", name);
    // Equal contents give equal files.
    report_.check(H5Pset_obj_track_times(layout.get(), false), "set up", name);
    const PropertyHandle links(H5Pcreate(H5P_LINK_CREATE));
    report_.check(H5Pset_create_intermediate_group(links.get(), 1), "set up", name);
    const SpaceHandle space(
        report_.check(H5Screate_simple(rank, extents.data(), nullptr), "set up", name));
    return DatasetHandle(
        report_.check(H5Dcreate2(file_.get(), name.c_str(), stored.get(), space.get(), links.get(),
                                 layout.get(), H5P_DEFAULT),
                      "create", name));
  }

  void add_type_attribute(const DatasetHandle& dataset, const std::string& name, DType type) const {
    const std::string_view value = name_of(type);
    const TypeHandle text(H5Tcopy(H5T_C_S1));
    report_.check(H5Tset_size(text.get(), value.size()), "describe", name);
    const SpaceHandle space(H5Screate(H5S_SCALAR));
    const AttributeHandle attribute(
        report_.check(H5Acreate2(dataset.get(), kTypeAttribute, text.get(), space.get(),
                                 H5P_DEFAULT, H5P_DEFAULT),
                      "describe", name));
    report_.check(H5Awrite(attribute.get(), text.get(), value.data()), "describe", name);
  }

  void throw_noted() const {
    if (output_.first_error != 0) fail_io("write", report_.path, output_.first_error);
  }

  Reporter report_;
  Output output_;  // must outlive file_
  FileHandle file_;
};

Hdf5Writer::Hdf5Writer(const std::filesystem::path& path) : state_(std::make_unique<State>(path)) {}
Hdf5Writer::Hdf5Writer(Hdf5Writer&&) noexcept = default;
Hdf5Writer& Hdf5Writer::operator=(Hdf5Writer&&) noexcept = default;
Hdf5Writer::~Hdf5Writer() = default;

void Hdf5Writer::write(const std::string& name, DType type, std::span<const std::int64_t> shape,
                       std::span<const std::byte> data) {
  const auto elements = checked_elements(shape, size_of(type));
  MILLRACE_ASSERT(elements && *elements > 0);
  MILLRACE_ASSERT(data.size() == static_cast<std::size_t>(*elements * size_of(type)));
  state_->write(name, type, shape, data);
}

void Hdf5Writer::close() { state_->close(); }

}  // namespace millrace::io
