// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"
#include "io/checkpoint_layout.hpp"
#include "io/manifest.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

/// The message of what `action` throws, or "".
std::string problem_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Checkpoint) throw;
    return error.what();
  }
  return {};
}

/// The tensors of a part that do not read back, a line each.
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

/// The lines that `find` gives in a process of its own; nothing when that process crashed, or took
/// too long.
std::vector<std::string> find_apart(const std::function<std::vector<std::string>()>& find) {
  constexpr unsigned kSeconds = 60;
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) return {};
  const pid_t child = fork();
  if (child == 0) {
    alarm(kSeconds);
    std::string text;
    try {
      text = join(find(), "\n");
    } catch (const std::exception&) {  // the caller knows already that the file is bad
    }
    (void)!write(ends[1], text.data(), text.size());
    _exit(0);
  }
  const UniqueFd from(ends[0]);
  close(ends[1]);
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t n = 0; (n = read(from.get(), buffer.data(), buffer.size())) != 0;) {
    if (n < 0 && errno != EINTR) break;
    if (n > 0) text.append(buffer.data(), static_cast<std::size_t>(n));
  }
  if (child > 0) (void)waitpid(child, nullptr, 0);
  return split_list(text, '\n');
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
    const auto tensors = [&] { return bad_tensors(file, part); };
    if (std::string problem = problem_of([&] { require_intact(file, part.checksum); });
        !problem.empty()) {
      problems.push_back(std::move(problem));
      append(problems, find_apart(tensors));
      continue;
    }
    if (std::string problem = problem_of([&] { append(problems, tensors()); }); !problem.empty())
      problems.push_back(std::move(problem));
  }
  return problems;
}

}  // namespace millrace::io
