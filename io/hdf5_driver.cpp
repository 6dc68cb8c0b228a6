// SPDX-License-Identifier: Apache-2.0
#include "io/hdf5_handles.hpp"

#include <hdf5.h>
#if H5_VERSION_GE(1, 13, 2)
#include <H5FDdevelop.h>
#endif
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <limits>
#include <new>
#include <span>
#include <type_traits>

namespace millrace::io {
namespace {

struct DriverFile {
  H5FD_t base;  // must stay first: HDF5 sees only this
  Hdf5Stream* stream;
  haddr_t end_of_allocation;
  bool writes;
};
static_assert(std::is_standard_layout_v<DriverFile>);

DriverFile* own(H5FD_t* file) noexcept { return reinterpret_cast<DriverFile*>(file); }
const DriverFile* own(const H5FD_t* file) noexcept {
  return reinterpret_cast<const DriverFile*>(file);
}

extern "C" {

H5FD_t* millrace_driver_open(const char*, unsigned flags, hid_t access, haddr_t) {
  Hdf5Stream* stream = nullptr;
  const void* const info = H5Pget_driver_info(access);
  if (info == nullptr) return nullptr;
  std::memcpy(&stream, info, sizeof stream);
  auto* const file = new (std::nothrow) DriverFile{};
  if (file == nullptr) return nullptr;
  file->stream = stream;
  file->writes = (flags & H5F_ACC_RDWR) != 0;
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
  if (::fstat(own(file)->stream->fd.get(), &status) != 0) return HADDR_UNDEF;
  // HDF5 compares the two on close; a failed write must not cause an error there.
  return own(file)->stream->first_error != 0 ? own(file)->end_of_allocation
                                             : static_cast<haddr_t>(status.st_size);
}

herr_t millrace_driver_read(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, std::size_t size,
                            void* buffer) {
  const std::span out(static_cast<std::byte*>(buffer), size);
  const std::int64_t done = read_at(own(file)->stream->fd.get(), out, address);
  if (done < 0 && !own(file)->writes) return -1;
  if (done < 0) own(file)->stream->note(errno);
  // Zeros after the end, like HDF5's own drivers.
  std::ranges::fill(out.subspan(static_cast<std::size_t>(std::max<std::int64_t>(done, 0))),
                    std::byte{0});
  return 0;
}

herr_t millrace_driver_write(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, std::size_t size,
                             const void* buffer) {
  Hdf5Stream& stream = *own(file)->stream;
  if (stream.first_error != 0) return 0;
  stream.note(write_at(stream.fd.get(), {static_cast<const std::byte*>(buffer), size}, address));
  return 0;
}

herr_t millrace_driver_truncate(H5FD_t* file, hid_t, hbool_t) {
  Hdf5Stream& stream = *own(file)->stream;
  if (stream.first_error != 0) return 0;
  const auto size = static_cast<off_t>(own(file)->end_of_allocation);
  if (::ftruncate(stream.fd.get(), size) != 0) stream.note(errno);
  return 0;
}

}  // extern "C"

}  // namespace

hid_t hdf5_driver() {
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
    d.fapl_size = sizeof(Hdf5Stream*);
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

}  // namespace millrace::io
