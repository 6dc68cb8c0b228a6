// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <numeric>

#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"
#include "io/manifest.hpp"
#include "io/tensor_checks.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

// About 30,000 tensors.
constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{8} << 20;

// An unreadable file makes the checkpoint unusable, whatever the reason.
template <class Read>
auto as_checkpoint_error(Read read) {
  try {
    return read();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Io) throw;
    throw Error(ErrorKind::Checkpoint, error.what());
  }
}

struct SealedManifest {
  Manifest manifest;
  std::uint32_t seal;
};

SealedManifest load_manifest(const fs::path& directory) {
  const fs::path path = directory / kManifestName;
  std::error_code ignored;
  if (!fs::exists(path, ignored))
    fail(ErrorKind::Checkpoint, "{}: not a checkpoint: {} is missing", directory.string(),
         kManifestName);
  const auto bytes = as_checkpoint_error([&] { return read_file(path, kMaxManifestBytes); });
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  SealedManifest sealed{parse_manifest(text, path.string()), crc32c(bytes)};
  const std::int64_t iteration = sealed.manifest.header.iteration;
  const auto named = iteration_in(directory.filename().string());
  if (named && *named != iteration)
    fail(ErrorKind::Checkpoint, "{}: contains iteration {}: rename it to {}", directory.string(),
         iteration, checkpoint_name(iteration));
  return sealed;
}

}  // namespace

void require_intact(const fs::path& path, const FileChecksum& expected) {
  std::error_code ignored;
  if (!fs::exists(path, ignored))
    fail(ErrorKind::Checkpoint, "{}: is missing, but the manifest lists it", path.string());
  const auto actual = as_checkpoint_error([&] { return checksum_file(path); });
  if (actual.bytes != expected.bytes)
    fail(ErrorKind::Checkpoint, "{}: {} bytes expected, {} found: truncated or damaged",
         path.string(), expected.bytes, actual.bytes);
  if (actual.crc32c != expected.crc32c)
    fail(ErrorKind::Checkpoint, "{}: damaged: checksum {:08x} expected, {:08x} found",
         path.string(), expected.crc32c, actual.crc32c);
}

std::vector<PartEntry> parts_of(const fs::path& directory) {
  return load_manifest(directory).manifest.parts;
}

std::int64_t TensorInfo::elements() const noexcept {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

CheckpointReader::CheckpointReader(const fs::path& directory) : path_(directory) {
  auto [manifest, seal] = load_manifest(directory);
  seal_ = seal;
  header_ = std::move(manifest.header);
  struct Place {
    TensorEntry* entry;
    std::size_t part;
  };
  std::vector<Place> places;
  for (PartEntry& part : manifest.parts) {
    const fs::path file = path_ / part.file;
    require_intact(file, part.checksum);
    for (TensorEntry& entry : part.tensors) places.push_back({&entry, parts_.size()});
    parts_.emplace_back(file);
  }
  std::sort(places.begin(), places.end(),
            [](const Place& a, const Place& b) { return a.entry->info.name < b.entry->info.name; });
  for (const Place& place : places) {
    tensors_.push_back(std::move(place.entry->info));
    part_of_.push_back(place.part);
    crc_of_.push_back(place.entry->crc32c);
  }
}

const TensorInfo* CheckpointReader::find(const std::string& name) const {
  const auto found =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const TensorInfo& info, const std::string& n) { return info.name < n; });
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

void CheckpointReader::read(const std::string& name, std::span<std::byte> out) const {
  const TensorInfo* const info = find(name);
  if (info == nullptr) fail(ErrorKind::Checkpoint, "{}: no tensor {}", path_.string(), name);
  if (out.size() != static_cast<std::size_t>(info->bytes()))
    fail(ErrorKind::Internal, "{}: {} has {} bytes, but the buffer has {}", path_.string(), name,
         info->bytes(), out.size());
  const auto at = static_cast<std::size_t>(info - tensors_.data());
  parts_[part_of_[at]].read(dataset_path(*info), info->type, info->shape, out);
  if (const std::uint32_t actual = crc32c(out); actual != crc_of_[at])
    fail(ErrorKind::Checkpoint, "{}: {}: damaged: checksum {:08x} expected, {:08x} found",
         path_.string(), name, crc_of_[at], actual);
}

}  // namespace millrace::io
