// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <system_error>

#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"
#include "io/checkpoint_layout.hpp"
#include "io/hdf5.hpp"
#include "io/manifest.hpp"
#include "io/tensor_shape.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

void rename_directory(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) fail_io(fmt::format("rename {} to", from.string()), to, error.value());
}

void make_directories(const fs::path& directory) {
  std::error_code error;
  const bool made = fs::create_directories(directory, error);
  if (error) fail_io("create", directory, error.value());
  if (made) sync_directory(fs::absolute(directory).parent_path());
}

// An empty directory that is removed again unless it was released.
class StagingDirectory {
 public:
  explicit StagingDirectory(fs::path path) : path_(std::move(path)) {
    std::error_code error;
    fs::remove_all(path_, error);  // left by an earlier process of this number
    if (error) fail_io("remove", path_, error.value());
    fs::create_directory(path_, error);
    if (error) fail_io("create", path_, error.value());
  }
  ~StagingDirectory() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  StagingDirectory(const StagingDirectory&) = delete;
  StagingDirectory& operator=(const StagingDirectory&) = delete;

  [[nodiscard]] const fs::path& path() const noexcept { return path_; }
  void release() noexcept { path_.clear(); }

 private:
  fs::path path_;
};

// Mistakes of the caller, found before anything is written.
void require_sound(std::span<const NamedTensor> tensors) {
  std::set<std::string> names;
  std::set<std::string> datasets;
  for (const NamedTensor& tensor : tensors) {
    const TensorInfo& info = tensor.info;
    const auto elements = checked_elements(info.shape, size_of(info.type));
    MILLRACE_ASSERT(name_problem(info.name).empty());
    MILLRACE_ASSERT(elements && *elements > 0);
    MILLRACE_ASSERT(tensor.data.size() == static_cast<std::size_t>(info.bytes()));
    MILLRACE_ASSERT(names.insert(info.name).second);
    datasets.insert(dataset_path(info));
  }
  for (const std::string& dataset : datasets) {  // no dataset may be a group as well
    for (auto end = dataset.rfind('/'); end > 0; end = dataset.rfind('/', end - 1)) {
      MILLRACE_ASSERT(!datasets.contains(dataset.substr(0, end)));
    }
  }
}

PartEntry write_part(const fs::path& directory, std::span<const NamedTensor> tensors) {
  PartEntry part;
  part.file = part_name(0);
  const fs::path path = directory / part.file;
  Hdf5Writer file(path);
  for (const NamedTensor& tensor : tensors) {
    part.tensors.push_back({tensor.info, crc32c(tensor.data)});
    file.write(dataset_path(tensor.info), tensor.info.type, tensor.info.shape, tensor.data);
  }
  file.close();
  part.checksum = checksum_file(path);
  return part;
}

// Reads everything back as any reader would; the tensors must be those the caller still holds.
void verify_written(const fs::path& directory, const CheckpointHeader& header,
                    std::span<const NamedTensor> tensors) {
  const CheckpointReader reader(directory);
  const bool complete = reader.header() == header && reader.tensors().size() == tensors.size();
  if (!complete) fail(ErrorKind::Io, "{}: does not read back as written", directory.string());
  std::vector<std::byte> data;
  for (const NamedTensor& tensor : tensors) {
    data.resize(tensor.data.size());
    reader.read(tensor.info.name, data);
    if (std::memcmp(data.data(), tensor.data.data(), data.size()) != 0) {
      fail(ErrorKind::Io, "{}: {} does not read back as written", directory.string(),
           tensor.info.name);
    }
  }
}

void write_into(const fs::path& directory, const CheckpointHeader& header,
                std::span<const NamedTensor> tensors) {
  Manifest manifest;
  manifest.header = header;
  manifest.parts.push_back(write_part(directory, tensors));
  write_file_atomically(directory / kManifestName, to_text(manifest));
  try {
    verify_written(directory, header, tensors);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Checkpoint) throw;
    fail(ErrorKind::Io, "verification after writing: {}", error.what());
  }
}

// Gives the finished directory its name. Whenever the process is killed, `final_path` or, while
// that is missing, its `.replaced` is a whole checkpoint.
void commit(StagingDirectory& temporary, const fs::path& final_path) {
  const fs::path replaced = fs::path(final_path) += std::string(kReplacedSuffix);
  std::error_code ignored;
  const bool replaces = fs::exists(fs::symlink_status(final_path, ignored));
  if (replaces) {
    remove_checkpoint(replaced);
    rename_directory(final_path, replaced);
  }
  try {
    rename_directory(temporary.path(), final_path);
  } catch (const Error&) {
    if (replaces) fs::rename(replaced, final_path, ignored);
    throw;
  }
  temporary.release();
  sync_directory(final_path.parent_path());
  remove_checkpoint(replaced);
}

}  // namespace

fs::path write_checkpoint(const fs::path& checkpoints_directory, const CheckpointHeader& header,
                          std::span<const NamedTensor> tensors) {
  require_sound(tensors);
  make_directories(checkpoints_directory);
  const std::string name = checkpoint_name(header.iteration);
  fs::path final_path = checkpoints_directory / name;
  StagingDirectory temporary(checkpoints_directory / temporary_name(name, ::getpid()));
  write_into(temporary.path(), header, tensors);
  commit(temporary, final_path);
  return final_path;
}

}  // namespace millrace::io
