// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <system_error>
#include <tuple>

#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "core/json.hpp"
#include "core/sha256.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"
#include "io/hdf5.hpp"
#include "io/manifest.hpp"
#include "io/tensor_checks.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

// About 30,000 tensors.

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

/// Errors: Checkpoint, if the file is missing or its size or checksum differs.
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

}  // namespace

std::int64_t TensorInfo::elements() const noexcept {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

CheckpointReader::CheckpointReader(const fs::path& directory) : path_(directory) {
  auto [manifest, seal] = load_manifest(directory);
  seal_ = seal;
  header_ = std::move(manifest.header);
  std::map<std::string, std::pair<TensorInfo, Stored>> by_name;
  for (const PartEntry& part : manifest.parts) {
    const fs::path file = path_ / part.file;
    require_intact(file, part.checksum);
    for (const TensorEntry& entry : part.tensors)
      by_name.emplace(entry.info.name, std::pair(entry.info, Stored{parts_.size(), entry.crc32c}));
    parts_.emplace_back(file);
  }
  for (auto& [name, tensor] : by_name) {
    tensors_.push_back(std::move(tensor.first));
    stored_.push_back(tensor.second);
  }
}

const TensorInfo* CheckpointReader::find(const std::string& name) const {
  const auto found = std::ranges::lower_bound(tensors_, name, {}, &TensorInfo::name);
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

void CheckpointReader::read(const std::string& name, std::span<std::byte> out) const {
  const TensorInfo* const info = find(name);
  if (info == nullptr) fail(ErrorKind::Checkpoint, "{}: no tensor {}", path_.string(), name);
  if (out.size() != static_cast<std::size_t>(info->bytes()))
    fail(ErrorKind::Internal, "{}: {} has {} bytes, but the buffer has {}", path_.string(), name,
         info->bytes(), out.size());
  const auto [part, expected] = stored_[static_cast<std::size_t>(info - tensors_.data())];
  parts_[part].read(dataset_path(*info), info->type, info->shape, out);
  if (const std::uint32_t actual = crc32c(out); actual != expected)
    fail(ErrorKind::Checkpoint, "{}: {}: damaged: checksum {:08x} expected, {:08x} found",
         path_.string(), name, expected, actual);
}

// ---- what `millrace inspect` says ---------------------------------------------------------------

namespace {

/// The message of the error that `action` throws, or "".
std::string problem_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Checkpoint) throw;
    return error.what();
  }
  return {};
}

/// The unreadable tensors of a part, one line each. The part may be damaged.
std::vector<std::string> bad_tensors(const fs::path& file, const PartEntry& part) {
  const std::string lines = hdf5_in_child(file, ErrorKind::Checkpoint, [&] {
    const Hdf5Reader reader(file);
    std::vector<std::byte> data;
    std::vector<std::string> problems;
    for (const TensorEntry& entry : part.tensors) {
      const TensorInfo& info = entry.info;
      data.resize(static_cast<std::size_t>(info.bytes()));
      std::string problem =
          problem_of([&] { reader.read(dataset_path(info), info.type, info.shape, data); });
      if (problem.empty() && crc32c(data) != entry.crc32c)
        problem = fmt::format("{}: {}: damaged: checksum {:08x} expected, {:08x} found",
                              file.string(), info.name, entry.crc32c, crc32c(data));
      if (!problem.empty()) problems.push_back(std::move(problem));
    }
    return join(problems, "\n");
  });
  return split_list(lines, '\n');
}

// Hashes description, line break and bytes. Names have no line breaks, and the description
// determines the number of bytes, so different sets of tensors never give equal input.
void feed(Sha256& sha, const TensorInfo& info, std::span<const std::byte> data) {
  const std::string line = fmt::format("{} {} {} {}\n", info.name, name_of(info.role),
                                       name_of(info.type), join(info.shape, "x"));
  sha.update(std::as_bytes(std::span(line)));
  sha.update(data);
}

struct Total {
  std::int64_t tensors = 0;
  std::int64_t elements = 0;
  std::int64_t bytes = 0;
};

std::map<TensorRole, Total> totals_of(const CheckpointReader& checkpoint) {
  std::map<TensorRole, Total> totals;
  for (const TensorInfo& info : checkpoint.tensors()) {
    Total& total = totals[info.role];
    total.tensors += 1;
    total.elements += info.elements();
    total.bytes += info.bytes();
  }
  return totals;
}

}  // namespace

std::vector<std::string> verify(const fs::path& directory) {
  std::vector<std::string> problems;
  // Whether an action succeeds; notes its problem if not.
  const auto succeeds = [&](const std::function<void()>& action) {
    std::string problem = problem_of(action);
    if (problem.empty()) return true;
    problems.push_back(std::move(problem));
    return false;
  };
  std::vector<PartEntry> parts;
  if (!succeeds([&] { parts = load_manifest(directory).manifest.parts; })) return problems;
  for (const PartEntry& part : parts) {
    const fs::path file = directory / part.file;
    std::error_code ignored;
    if (!succeeds([&] { require_intact(file, part.checksum); }) &&
        !fs::is_regular_file(file, ignored))
      continue;  // already reported
    succeeds([&] { std::ranges::move(bad_tensors(file, part), std::back_inserter(problems)); });
  }
  return problems;
}

std::vector<std::string> bad_values(const CheckpointReader& checkpoint) {
  std::vector<std::string> problems;
  std::vector<float> values;
  for (const TensorInfo& info : checkpoint.tensors()) {
    if (info.type != DType::F32) continue;
    values.resize(static_cast<std::size_t>(info.elements()));
    checkpoint.read(info.name, std::as_writable_bytes(std::span(values)));
    if (const std::string bad = bad_value(values, info.shape, info.name); !bad.empty())
      problems.push_back(fmt::format("{}: {}{}", checkpoint.path().string(), info.name, bad));
  }
  return problems;
}

std::string digest(std::span<const NamedTensor> tensors) {
  std::vector<const NamedTensor*> ordered;
  for (const NamedTensor& tensor : tensors) ordered.push_back(&tensor);
  std::ranges::sort(ordered, {}, [](const NamedTensor* tensor) {
    return std::tie(tensor->info.name, tensor->info.role);
  });
  Sha256 sha;
  for (const NamedTensor* const tensor : ordered) feed(sha, tensor->info, tensor->data);
  return sha.hex_digest();
}

std::string digest(const CheckpointReader& checkpoint) {
  Sha256 sha;
  std::vector<std::byte> data;
  for (const TensorInfo& info : checkpoint.tensors()) {  // in name order, names unique
    data.resize(static_cast<std::size_t>(info.bytes()));
    checkpoint.read(info.name, data);
    feed(sha, info, data);
  }
  return sha.hex_digest();
}

std::string describe(const CheckpointReader& checkpoint) {
  const CheckpointHeader& header = checkpoint.header();
  std::string text =
      fmt::format("{}\nmodel {}, iteration {}, epoch {}, next position {}\n{}\n\n",
                  printable(checkpoint.path().string()), printable(header.model), header.iteration,
                  header.epoch, header.next_position, printable(header.environment));
  std::size_t width = 4;
  for (const TensorInfo& info : checkpoint.tensors())
    width = std::max(width, printable(info.name).size());
  const auto row = [&](auto name, auto role, auto type, auto shape, auto bytes) {
    text += fmt::format("{:<{}}  {:<9}  {:<8}  {:<20}  {:>13}\n", name, width, role, type, shape,
                        bytes);
  };
  row("name", "role", "type", "shape", "bytes");
  for (const TensorInfo& info : checkpoint.tensors())
    row(printable(info.name), name_of(info.role), name_of(info.type), shape_text(info.shape),
        with_commas(info.bytes()));
  text += '\n';
  for (const auto& [role, total] : totals_of(checkpoint))
    text += fmt::format("{:<9}  {} tensors, {} elements, {}\n", name_of(role), total.tensors,
                        with_commas(total.elements), human_bytes(total.bytes));
  return text;
}

std::string describe_json(const CheckpointReader& checkpoint) {
  const CheckpointHeader& header = checkpoint.header();
  Json tensors = Json::list();
  for (const TensorInfo& info : checkpoint.tensors()) {
    tensors.push_back(Json::object({{"name", info.name},
                                    {"role", name_of(info.role)},
                                    {"dtype", name_of(info.type)},
                                    {"shape", info.shape},
                                    {"bytes", info.bytes()}}));
  }
  Json totals = Json::object();
  for (const auto& [role, total] : totals_of(checkpoint)) {
    totals.set(name_of(role), Json::object({{"tensors", total.tensors},
                                            {"elements", total.elements},
                                            {"bytes", total.bytes}}));
  }
  const Json all = Json::object({{"path", checkpoint.path().string()},
                                 {"iteration", header.iteration},
                                 {"epoch", header.epoch},
                                 {"next_position", header.next_position},
                                 {"model", header.model},
                                 {"environment", header.environment},
                                 {"tensors", std::move(tensors)},
                                 {"totals", std::move(totals)}});
  // A path need not be UTF-8.
  return all.dump(1, Json::NotUtf8::Replaced);
}

}  // namespace millrace::io
