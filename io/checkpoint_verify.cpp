// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <functional>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "io/checkpoint.hpp"
#include "io/checkpoint_layout.hpp"
#include "io/manifest.hpp"
#include "io/tensor_values.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

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

/// The unreadable tensors of a part, one line each.
std::vector<std::string> bad_tensors(const fs::path& file, const PartEntry& part) {
  const Hdf5Reader reader(file);
  std::vector<std::string> problems;
  std::vector<std::byte> data;
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
  return problems;
}

bool is_regular(const fs::path& file) {
  std::error_code ignored;
  return fs::is_regular_file(file, ignored);
}

void append(std::vector<std::string>& problems, std::vector<std::string> more) {
  for (std::string& line : more) problems.push_back(std::move(line));
}

}  // namespace

std::vector<std::string> verify(const fs::path& directory) {
  std::vector<std::string> problems;
  std::vector<PartEntry> parts;
  if (std::string problem = problem_of([&] { parts = parts_of(directory); }); !problem.empty())
    return {std::move(problem)};
  for (const PartEntry& part : parts) {
    const fs::path file = directory / part.file;
    if (std::string problem = problem_of([&] { require_intact(file, part.checksum); });
        !problem.empty()) {
      problems.push_back(std::move(problem));
      if (!is_regular(file)) continue;  // already reported
    }
    if (std::string problem = problem_of([&] { append(problems, bad_tensors(file, part)); });
        !problem.empty())
      problems.push_back(std::move(problem));
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
    if (const std::string bad = bad_value(values, info.shape, value_rule(info.name)); !bad.empty())
      problems.push_back(fmt::format("{}: {}{}", checkpoint.path().string(), info.name, bad));
  }
  return problems;
}

}  // namespace millrace::io
