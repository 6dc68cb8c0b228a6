// SPDX-License-Identifier: Apache-2.0
#include "train/agreement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "core/text.hpp"
#include "io/atomic_file.hpp"

namespace millrace::training {
namespace {

/// An error as text for communication: its kind, the length of its table, the table and the
/// message behind `place`, with spaces between. Empty: no error.
std::string text_of(const std::function<void()>& f, std::string_view place) {
  try {
    f();
    return {};
  } catch (const std::exception&) {
    const Error error = current_error();
    return fmt::format("{} {} {} {}{}", static_cast<int>(error.kind()), error.table().size(),
                       error.table(), place, error.what());
  }
}

[[noreturn]] void throw_text(const std::string& text) {
  std::size_t kind_ends = 0;
  const int kind = std::stoi(text, &kind_ends);
  std::size_t length_ends = 0;
  const std::string rest = text.substr(kind_ends + 1);
  const auto length = static_cast<std::size_t>(std::stoul(rest, &length_ends));
  throw Error(static_cast<ErrorKind>(kind), rest.substr(length_ends + length + 2),
              rest.substr(length_ends + 1, length));
}

/// The part of a line before its value, or the whole line.
std::string_view key_of(std::string_view line) { return line.substr(0, line.find(" = ")); }

/// The first line of `lines` that `others` lack, and the value that `others` have for its key.
std::optional<std::pair<std::string, std::string>> first_lacking(
    const std::vector<std::string>& lines, const std::vector<std::string>& others) {
  for (const std::string& line : lines) {
    if (line.starts_with('[') || std::ranges::find(others, line) != others.end()) continue;
    const auto other = std::ranges::find(others, key_of(line), key_of);
    return std::pair(line, other != others.end() ? *other : "not given");
  }
  return std::nullopt;
}

/// The values at the first difference between `own` and `leading`. Both are single lines, or lines
/// of "key = value" below headings in brackets.
std::pair<std::string, std::string> first_difference(std::string_view own,
                                                     std::string_view leading) {
  const std::vector<std::string> here = split_list(own, '\n');
  const std::vector<std::string> there = split_list(leading, '\n');
  const bool lines = own.find('\n') != own.npos || leading.find('\n') != leading.npos;
  if (!lines) return {std::string(own), std::string(leading)};
  if (const auto found = first_lacking(here, there)) return *found;
  if (const auto found = first_lacking(there, here)) return {found->second, found->first};
  return {"the same lines in a different order", "the original order"};
}

/// Rank 0 opens what `choose` returns, if anything; the others open the same path.
std::optional<io::CheckpointReader> open_together(
    const comm::World& world, const std::function<std::optional<io::CheckpointReader>()>& choose) {
  const FailTogether together(world);
  std::optional<io::CheckpointReader> reader;
  together.lead([&] { reader = choose(); });
  const std::string path = world.broadcast(reader ? reader->path().string() : "");
  if (path.empty()) return std::nullopt;
  const std::string seal = world.broadcast(reader ? fmt::format("{:08x}", reader->seal()) : "");
  together.run([&] {
    if (!reader) reader.emplace(path);
    if (const std::string here = fmt::format("{:08x}", reader->seal()); here != seal)
      fail(ErrorKind::Checkpoint,
           "{}: differs from the checkpoint of that name on rank 0 (manifest {} here, {} there): "
           "give all ranks the same files",
           path, here, seal);
  });
  return reader;
}

/// Over NFS, a host that has found no such folder knows of none for half a minute. To open one asks
/// the server.
void look_anew(const std::filesystem::path& directory) {
  std::error_code ignored;
  std::filesystem::path folder;
  for (const auto& name : std::filesystem::absolute(directory, ignored))
    (void)std::filesystem::directory_iterator(folder /= name, ignored);
}

}  // namespace

void FailTogether::run(const std::function<void()>& f) const {
  if (world_->size() == 1) return f();
  // Later ranks are named: the others are fine.
  const std::string place = world_->rank() == 0 ? "" : fmt::format("rank {}: ", world_->rank());
  const std::vector<std::string> texts = world_->gather(text_of(f, place));
  const auto failed = std::ranges::find_if_not(texts, &std::string::empty);
  const std::string first = world_->broadcast(failed == texts.end() ? "" : *failed);
  if (first.empty()) return;
  world_->fail_together();
  throw_text(first);
}

void FailTogether::lead(const std::function<void()>& f) const {
  run([&] {
    if (world_->rank() == 0) f();
  });
}

void require_alike(const comm::World& world, const std::vector<Fact>& facts) {
  if (world.size() == 1) return;
  const FailTogether together(world);
  for (const Fact& fact : facts) {
    const std::string leading = world.broadcast(fact.value);
    together.run([&] {
      if (fact.value == leading) return;
      const auto [here, there] = first_difference(fact.value, leading);
      fail(fact.kind, "{}: {} here, {} on rank 0: {}", fact.name, here, there, fact.remedy);
    });
  }
}

void require_shared(const comm::World& world, const std::filesystem::path& run_directory) {
  if (world.size() == 1 || run_directory.empty()) return;
  const std::string leading =
      world.broadcast(world.rank() == 0 ? io::lock_text(run_directory) : "");
  FailTogether(world).run([&] {
    constexpr std::chrono::milliseconds kPause{100};
    constexpr int kAttempts = 100;
    for (int attempt = 1; !leading.empty() && io::lock_text(run_directory) != leading; ++attempt) {
      if (attempt == kAttempts)
        fail(ErrorKind::Io,
             "{} is not the run directory of rank 0: give a directory that all machines share",
             run_directory.string());
      std::this_thread::sleep_for(kPause);
      look_anew(run_directory);
    }
  });
}

io::CheckpointReader agreed_newest(const comm::World& world, const std::filesystem::path& directory,
                                   std::vector<std::string>& complaints) {
  return *open_together(world, [&] { return io::open_newest(directory, complaints); });
}

std::optional<io::CheckpointReader> agreed_next(const comm::World& world,
                                                io::CheckpointWalk& walk) {
  return open_together(world, [&] { return walk.next(); });
}

io::CheckpointReader agreed_checkpoint(const comm::World& world,
                                       const std::filesystem::path& path_of_leader) {
  return *open_together(world, [&] { return io::CheckpointReader(path_of_leader); });
}

}  // namespace millrace::training
