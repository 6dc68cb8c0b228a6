// SPDX-License-Identifier: Apache-2.0
//
// manifest.json of a checkpoint, as data. The text is JSON whose last line but one is a seal,
//
//    "crc32c": "0a1b2c3d"
//
// the CRC-32C of every byte before that line. It is checked before the JSON is parsed, so any
// flipped bit is detected. The seal is part of every format version.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"

namespace millrace::io {

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::int64_t kCheckpointFormatVersion = 1;

struct TensorEntry {
  TensorInfo info;
  std::uint32_t crc32c = 0;  ///< of the data as stored in memory
  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

struct PartEntry {
  std::string file;  ///< "part-000.h5"
  FileChecksum checksum;
  std::vector<TensorEntry> tensors;
  friend bool operator==(const PartEntry&, const PartEntry&) = default;
};

struct Manifest {
  CheckpointHeader header;
  std::vector<PartEntry> parts;
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

/// "parameter", "state", "slot".
[[nodiscard]] std::string_view name_of(TensorRole role) noexcept;

/// Text of manifest.json. Errors: Config, if a string in the header is not UTF-8.
[[nodiscard]] std::string to_text(const Manifest& manifest);

/// Parses `text`; error messages begin with `label` (a path). Safe for any bytes. Errors:
/// Checkpoint.
[[nodiscard]] Manifest parse_manifest(std::string_view text, std::string_view label);

/// Appends the seal to a JSON object that ends with "\n}\n".
[[nodiscard]] std::string seal_manifest(std::string_view unsealed);

/// Why `name` is not a valid tensor name (empty parts, "." and "..", control characters, too long);
/// "" if it is valid.
[[nodiscard]] std::string_view name_problem(std::string_view name) noexcept;

// Names of checkpoints and of what is in them (checkpoint_list.cpp).

inline constexpr std::string_view kReplacedSuffix = ".replaced";
inline constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{8} << 20;

/// "ckpt-1200".
[[nodiscard]] std::string checkpoint_name(std::int64_t iteration);
/// ".ckpt-1200.tmp.4711": name of "ckpt-1200" while process 4711 writes or removes it.
[[nodiscard]] std::string temporary_name(std::string_view name, std::int64_t process);
/// "part-000.h5".
[[nodiscard]] std::string part_name(int number);
/// "/parameters/b0/conv/kernel": path of a tensor in its part.
[[nodiscard]] std::string dataset_path(const TensorInfo& info);

/// The iteration in "ckpt-1200" or "ckpt-1200.replaced"; nothing for other names.
[[nodiscard]] std::optional<std::int64_t> iteration_in(std::string_view name);
/// The process in a temporary_name; nothing for other names.
[[nodiscard]] std::optional<std::int64_t> process_in(std::string_view name);

/// Removes a checkpoint if it exists. A kill never leaves a partial checkpoint under its name.
/// Errors: Io.
void remove_checkpoint(const std::filesystem::path& checkpoint);

}  // namespace millrace::io
