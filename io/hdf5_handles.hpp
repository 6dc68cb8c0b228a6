// SPDX-License-Identifier: Apache-2.0
//
// What the code that uses the HDF5 library shares.
#pragma once

#include <hdf5.h>

#include <mutex>
#include <utility>

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

}  // namespace millrace::io
