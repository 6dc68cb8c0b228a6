// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <set>
#include <system_error>

#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "core/json.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"
#include "io/manifest.hpp"
#include "io/tensor_checks.hpp"

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

// Errors of the caller, detected before anything is written.
void require_sound(std::span<const NamedTensor> tensors) {
  std::set<std::string> names;
  for (const NamedTensor& tensor : tensors) {
    const TensorInfo& info = tensor.info;
    const auto elements = checked_elements(info.shape, size_of(info.type));
    MILLRACE_ASSERT(name_problem(info.name).empty());
    MILLRACE_ASSERT(elements && *elements > 0);
    MILLRACE_ASSERT(tensor.data.size() == static_cast<std::size_t>(info.bytes()));
    MILLRACE_ASSERT(names.insert(info.name).second);
  }
}

constexpr const char* kFile = "/";

/// The facts about the network, whose texts in lists are the names of the classes. Those of an
/// object within them become attributes like the others.
void describe_network(Hdf5Writer& file, const Json& facts) {
  for (const auto& [key, value] : facts.members()) {
    if (key == "graph") continue;  // of a network that was given: too long for an attribute
    if (value.is_object()) {
      describe_network(file, value);
    } else if (key == "class_names") {
      std::vector<std::string> names;
      for (const Json& name : value.items()) names.push_back(name.text());
      if (!names.empty()) file.write_texts("/class_names", names);
    } else {
      file.describe(kFile, key, value);
    }
  }
}

/// How the extents of a kernel are ordered; "" for other tensors. Its slots have the same order.
std::string_view layout_of(const TensorInfo& info) {
  constexpr std::string_view kKernel = "/kernel";
  const std::size_t at = info.name.rfind(kKernel);
  if (at == std::string::npos) return "";
  const std::size_t end = at + kKernel.size();
  if (end != info.name.size() && info.name[end] != '/') return "";
  return info.shape.size() == 4 ? "OHWI" : info.shape.size() == 2 ? "OI" : "";
}

/// Describes a file for which no dataset has been written yet.
void describe_file(Hdf5Writer& file, const CheckpointHeader& header) {
  file.describe(kFile, "format", "millrace checkpoint");
  file.describe(kFile, "format_version", kCheckpointFormatVersion);
  file.describe(kFile, "model", header.model);
  file.describe(kFile, "iteration", header.iteration);
  file.describe(kFile, "epoch", header.epoch);
  file.describe(kFile, "layout", "OHWI");
  if (const std::optional<Json> facts = Json::try_parse(header.network);
      facts && facts->is_object())
    describe_network(file, *facts);
}

void write_tensor(Hdf5Writer& file, const TensorInfo& info, std::span<const std::byte> data) {
  const std::string path = dataset_path(info);
  file.write(path, info.type, info.shape, data);
  file.describe(path, "layout", layout_of(info));
}

PartEntry write_part(const fs::path& directory, int number, const CheckpointHeader& header,
                     std::span<const NamedTensor> tensors) {
  PartEntry part;
  part.file = part_name(number);
  const fs::path path = directory / part.file;
  Hdf5Writer file(path);
  describe_file(file, header);
  for (const NamedTensor& tensor : tensors) {
    part.tensors.push_back({tensor.info, crc32c(tensor.data)});
    write_tensor(file, tensor.info, tensor.data);
  }
  file.close();
  part.checksum = checksum_file(path);
  return part;
}

// Processes at different steps or with different configurations must not write one checkpoint.
void require_same_step(const fs::path& part, const CheckpointHeader& own,
                       const CheckpointHeader& leading) {
  const auto require = [&part](std::string_view what, const auto& here, const auto& there) {
    if (here != there)
      fail(ErrorKind::Checkpoint,
           "{}: its process is at {} {}, but the first process is at {}: nothing was saved",
           part.string(), what, here, there);
  };
  require("iteration", own.iteration, leading.iteration);
  require("position", own.next_position, leading.next_position);
  require("model", own.model, leading.model);
  require("loss scale", own.scaling_state, leading.scaling_state);
  require("data", own.data, leading.data);
  require("configuration", fmt::format("{:08x}", crc32c(std::as_bytes(std::span(own.config_toml)))),
          fmt::format("{:08x}", crc32c(std::as_bytes(std::span(leading.config_toml)))));
}

// All parts together must be the network: no tensor missing, duplicate, unknown or of another
// shape.
void require_whole(const fs::path& directory, const Manifest& manifest,
                   std::span<const TensorInfo> expected) {
  std::map<std::string_view, const TensorInfo*> missing;
  for (const TensorInfo& info : expected) missing.emplace(info.name, &info);
  for (const PartEntry& part : manifest.parts) {
    for (const TensorEntry& entry : part.tensors) {
      const TensorInfo& found = entry.info;
      const auto wanted = missing.find(found.name);
      const auto refuse = [&](std::string_view why) {
        fail(ErrorKind::Checkpoint, "{}: tensor {} {}: nothing was saved",
             (directory / part.file).string(), found.name, why);
      };
      if (wanted == missing.end()) refuse("is in two parts, or does not belong to the network");
      if (*wanted->second != found)
        refuse(fmt::format("is a {} of {} {}, but the network needs a {} of {} {}",
                           name_of(found.role), shape_text(found.shape), name_of(found.type),
                           name_of(wanted->second->role), shape_text(wanted->second->shape),
                           name_of(wanted->second->type)));
      missing.erase(wanted);
    }
  }
  if (missing.empty()) return;
  fail(ErrorKind::Checkpoint, "{}: tensor {}{} is missing from all parts: nothing was saved",
       directory.string(), missing.begin()->first,
       missing.size() > 1 ? fmt::format(" (and {} more)", missing.size() - 1) : "");
}

// Reads everything back like any reader. The manifest has the checksums of the tensors in the
// writers' memory, with which reading compares them.
void verify_written(const fs::path& directory, const std::string& manifest) {
  const CheckpointReader reader(directory);
  if (reader.seal() != crc32c(std::as_bytes(std::span(manifest))))
    fail(ErrorKind::Io, "{}: does not read back as written", directory.string());
  std::int64_t largest = 0;
  for (const TensorInfo& info : reader.tensors()) largest = std::max(largest, info.bytes());
  std::vector<std::byte> room(static_cast<std::size_t>(largest));  // once: growing needs both sizes
  for (const TensorInfo& info : reader.tensors())
    reader.read(info.name, std::span(room).first(static_cast<std::size_t>(info.bytes())));
}

// Renames the finished directory. At any time, `final_path` or, if it is missing, its `.replaced`
// is a complete checkpoint.
void give_name(const fs::path& temporary, const fs::path& final_path) {
  const fs::path replaced = fs::path(final_path) += std::string(kReplacedSuffix);
  std::error_code ignored;
  const bool replaces = fs::exists(fs::symlink_status(final_path, ignored));
  if (replaces) {
    remove_checkpoint(replaced);
    rename_directory(final_path, replaced);
  }
  try {
    rename_directory(temporary, final_path);
  } catch (const Error&) {
    if (replaces) fs::rename(replaced, final_path, ignored);
    throw;
  }
  sync_directory(final_path.parent_path());
  remove_checkpoint(replaced);
}

}  // namespace

CheckpointStaging::CheckpointStaging(fs::path checkpoints_directory, CheckpointHeader header)
    : directory_(std::move(checkpoints_directory)), header_(std::move(header)) {
  make_directories(directory_);
  const fs::path path = directory_ / temporary_name(checkpoint_name(header_.iteration), ::getpid());
  std::error_code error;
  fs::remove_all(path, error);  // left by an earlier process with this id
  if (error) fail_io("remove", path, error.value());
  fs::create_directory(path, error);
  if (error) fail_io("create", path, error.value());
  temporary_ = path;
}

CheckpointStaging::~CheckpointStaging() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

fs::path CheckpointStaging::commit(std::span<const std::string> parts,
                                   std::span<const TensorInfo> expected) {
  Manifest manifest;
  manifest.header = header_;
  for (const std::string& part_text : parts) {
    if (part_text.empty()) continue;
    Manifest told = parse_manifest(part_text, "description of a part");
    for (PartEntry& part : told.parts) {
      require_same_step(temporary_ / part.file, told.header, header_);
      manifest.parts.push_back(std::move(part));
    }
  }
  require_whole(temporary_, manifest, expected);
  const std::string text = to_text(manifest);
  write_file_atomically(temporary_ / kManifestName, text);
  try {
    verify_written(temporary_, text);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Checkpoint) throw;
    fail(ErrorKind::Io, "verification after writing failed: {}", error.what());
  }
  fs::path final_path = directory_ / checkpoint_name(header_.iteration);
  give_name(temporary_, final_path);
  temporary_.clear();
  return final_path;
}

std::string write_checkpoint_part(const fs::path& staging, int number,
                                  const CheckpointHeader& header,
                                  std::span<const NamedTensor> tensors) {
  if (tensors.empty()) return {};
  require_sound(tensors);
  Manifest manifest;
  manifest.header = header;
  manifest.parts.push_back(write_part(staging, number, header, tensors));
  return to_text(manifest);
}

fs::path write_checkpoint(const fs::path& checkpoints_directory, const CheckpointHeader& header,
                          std::span<const NamedTensor> tensors) {
  require_sound(tensors);
  CheckpointStaging staging(checkpoints_directory, header);
  const std::string part = write_checkpoint_part(staging.path(), 0, header, tensors);
  std::vector<TensorInfo> infos;
  for (const NamedTensor& tensor : tensors) infos.push_back(tensor.info);
  return staging.commit({&part, 1}, infos);
}

void write_merged(const CheckpointReader& checkpoint, const std::filesystem::path& path) {
  const fs::path temporary = temporary_for(path);
  std::error_code error;
  try {
    Hdf5Writer file(temporary);
    describe_file(file, checkpoint.header());
    file.write_texts("/config", {&checkpoint.header().config_toml, 1});
    std::vector<std::byte> bytes;
    for (const TensorInfo& info : checkpoint.tensors()) {
      bytes.resize(static_cast<std::size_t>(info.bytes()));
      checkpoint.read(info.name, bytes);
      write_tensor(file, info, bytes);
    }
    file.close();
    fs::rename(temporary, path, error);
    if (error) fail_io("rename a file to", path, error.value());
  } catch (...) {
    fs::remove(temporary, error);
    throw;
  }
  sync_directory(fs::absolute(path).parent_path());
}

}  // namespace millrace::io
