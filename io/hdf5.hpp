// SPDX-License-Identifier: Apache-2.0
//
// The only place that knows the HDF5 library. A file holds tensors as chunked datasets with the
// Fletcher32 filter; a tensor's path is its name, with slashes as groups. bfloat16 is stored as
// uint16 with an attribute `dtype` = "bfloat16". Files are in the oldest format that can hold them,
// so every HDF5 reads them.
//
// The HDF5 library is not safe for threads: all calls of it take one lock of the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "core/dtype.hpp"

namespace millrace::io {

/// Writes a new file. Errors: Io, with the path and the reason of the operating system. After an
/// error the file is worthless, and nothing is left open.
class Hdf5Writer {
 public:
  /// Creates `path`, which must not exist.
  explicit Hdf5Writer(const std::filesystem::path& path);
  Hdf5Writer(Hdf5Writer&&) noexcept;
  Hdf5Writer& operator=(Hdf5Writer&&) noexcept;
  ~Hdf5Writer();

  /// Adds a dataset; groups on the way are made. No extents: one element. Extents must be positive.
  void write(const std::string& name, DType type, std::span<const std::int64_t> shape,
             std::span<const std::byte> data);
  /// Flushes, closes and syncs: only after it has returned is the file complete and durable.
  void close();

 private:
  class State;
  std::unique_ptr<State> state_;
};

/// Reads a file of Hdf5Writer, without the HDF5 library, which changed bytes can crash (see
/// hdf5_structure.hpp). Files of others are refused as far as they differ: only datasets behind
/// hard links, of exactly the expected type, extents and filter, are read. The checksums of the
/// chunks are left to HDF5's own readers, so compare one over the bytes. Errors: Checkpoint.
class Hdf5Reader {
 public:
  explicit Hdf5Reader(const std::filesystem::path& path);
  Hdf5Reader(Hdf5Reader&&) noexcept;
  Hdf5Reader& operator=(Hdf5Reader&&) noexcept;
  ~Hdf5Reader();

  /// Fills `out`, whose size is that of `shape` elements of `type`.
  void read(const std::string& name, DType type, std::span<const std::int64_t> shape,
            std::span<std::byte> out) const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

/// "1.10.8": version of the library in use.
[[nodiscard]] std::string hdf5_version();

}  // namespace millrace::io
