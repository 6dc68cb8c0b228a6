// SPDX-License-Identifier: Apache-2.0
//
// Files of tensors in HDF5. Besides this, only weights/keras_file uses the HDF5 library. A file
// holds tensors as chunked datasets with the Fletcher32 filter; a tensor's path is its name, with
// slashes as groups. bfloat16 is stored as uint16 with an attribute `dtype` = "bfloat16". Files use
// the oldest possible format, so every HDF5 version reads them.
//
// The HDF5 library is not thread-safe: all calls take one process-wide lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/json.hpp"

namespace millrace::io {

/// Tensors are stored in pieces of at most this size.
inline constexpr std::int64_t kHdf5PieceBytes = std::int64_t{4} << 20;

/// Writes a new file. Errors: Io, with the path and the operating system's reason. After an error
/// the file is unusable, and no handle stays open.
class Hdf5Writer {
 public:
  /// Creates `path`, which must not exist.
  explicit Hdf5Writer(const std::filesystem::path& path);
  Hdf5Writer(Hdf5Writer&&) noexcept;
  Hdf5Writer& operator=(Hdf5Writer&&) noexcept;
  ~Hdf5Writer();

  /// Adds a dataset and its groups. An empty shape means one element. Extents must be positive.
  void write(const std::string& name, DType type, std::span<const std::int64_t> shape,
             std::span<const std::byte> data);
  /// Adds an attribute to a dataset, or with the name "/" to the file: a text, a number, or a list
  /// of numbers. Other values, empty texts and empty lists are left out.
  void describe(const std::string& name, const std::string& attribute, const Json& value);
  /// Adds a dataset of texts (UTF-8, padded with zeros), which is for people and other programs.
  void write_texts(const std::string& name, std::span<const std::string> texts);
  /// Flushes, closes and syncs. The file is complete and durable only after this returns.
  void close();

 private:
  class State;
  std::unique_ptr<State> state_;
};

/// Reads a file of Hdf5Writer. Damaged files can crash the library: open only one whose bytes have
/// been compared with their checksum, or any in a child process (hdf5_in_child). Datasets must
/// have exactly the expected type and extents. HDF5's own checksums are not verified, so callers
/// must verify one of the bytes. Errors: Checkpoint.
class Hdf5Reader {
 public:
  explicit Hdf5Reader(const std::filesystem::path& path);
  Hdf5Reader(Hdf5Reader&&) noexcept;
  Hdf5Reader& operator=(Hdf5Reader&&) noexcept;
  ~Hdf5Reader();

  /// Whether the file has a group or dataset of this name at its top.
  [[nodiscard]] bool has(const std::string& name) const;
  /// Fills `out`, which must have the size of a tensor of `shape` and `type`.
  void read(const std::string& name, DType type, std::span<const std::int64_t> shape,
            std::span<std::byte> out) const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

// Damaged files can crash the HDF5 library or keep it busy for ever (1.10.8). A file whose bytes
// were not compared with a checksum of ours is therefore read in a child process.

/// What a child may use.
struct ChildLimits {
  std::uint64_t seconds = 0;  ///< of processor time; ten times as many on the clock
  std::uint64_t bytes = 0;    ///< of memory, besides what this process has mapped
};

/// Returns what `read` returns, which runs in a child process. The child is a fork: it has a copy
/// of all memory, but no other threads. So `read` may use the HDF5 library, read files and compute,
/// but not use MPI, devices or OpenMP, nor wait for a lock that another thread may hold. What it
/// prints is lost. The limits, unless given, are far above what a file of this size needs.
/// Errors: those of `read`; `kind`, naming the file, if the child crashes or needs more than its
/// limits; Io if no child can be started.
[[nodiscard]] std::string hdf5_in_child(const std::filesystem::path& file, ErrorKind kind,
                                        const std::function<std::string()>& read,
                                        std::optional<ChildLimits> limits = std::nullopt);

}  // namespace millrace::io
