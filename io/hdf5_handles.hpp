// SPDX-License-Identifier: Apache-2.0
//
// What the code that uses the HDF5 library shares.
#pragma once

#include <hdf5.h>

#include <mutex>
#include <utility>

#include "io/atomic_file.hpp"

namespace millrace::io {

/// Every use of the library happens inside a session. Each use creates a new one because in
/// thread-safe builds the switch for printing errors is per thread.
class Hdf5Session {
 public:
  Hdf5Session() : lock_(mutex()) {
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    H5PLset_loading_state(0);
  }

 private:
  static std::mutex& mutex() {
    static std::mutex instance;
    return instance;
  }
  std::lock_guard<std::mutex> lock_;
};

template <herr_t (*kClose)(hid_t)>
class Hdf5Handle {
 public:
  Hdf5Handle() = default;
  explicit Hdf5Handle(hid_t id) noexcept : id_(id) {}
  Hdf5Handle(Hdf5Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)) {}
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  ~Hdf5Handle() {
    if (id_ >= 0) kClose(id_);
  }
  [[nodiscard]] hid_t get() const noexcept { return id_; }
  [[nodiscard]] herr_t close() noexcept {
    const hid_t id = std::exchange(id_, H5I_INVALID_HID);
    return id >= 0 ? kClose(id) : 0;
  }

 private:
  hid_t id_ = H5I_INVALID_HID;
};
using FileHandle = Hdf5Handle<H5Fclose>;
using DatasetHandle = Hdf5Handle<H5Dclose>;
using SpaceHandle = Hdf5Handle<H5Sclose>;
using TypeHandle = Hdf5Handle<H5Tclose>;
using PropertyHandle = Hdf5Handle<H5Pclose>;
using AttributeHandle = Hdf5Handle<H5Aclose>;

// Our files are written and read with our own file driver. HDF5's drivers fail on a full disk: if
// the final flush fails, H5Fclose leaves the file open, and the library crashes when it closes it
// again at process exit (1.10.8). Our driver records the first failure of writing and then reports
// success, so HDF5 always closes cleanly; Hdf5Writer then throws the recorded error. The driver
// takes no locks, which some network file systems refuse.

/// An open file, and the first error of writing.
struct Hdf5Stream {
  UniqueFd fd;
  int first_error = 0;
  void note(int error) noexcept {
    if (first_error == 0) first_error = error;
  }
};

/// The driver's id. Its information is a pointer to the Hdf5Stream.
[[nodiscard]] hid_t hdf5_driver();

}  // namespace millrace::io
