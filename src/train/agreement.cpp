// SPDX-License-Identifier: Apache-2.0
#include "train/agreement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "core/text.hpp"
#include "train/together.hpp"

namespace millrace::train {
namespace {

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

/// Rank 0 opens what `choose` returns; the others open the same path.
io::CheckpointReader open_together(const comm::World& world,
                                   const std::function<io::CheckpointReader()>& choose) {
  const Together together(world);
  std::optional<io::CheckpointReader> reader;
  together.lead([&] { reader.emplace(choose()); });
  const std::string path = world.broadcast(reader ? reader->path().string() : "");
  const std::string seal = world.broadcast(reader ? fmt::format("{:08x}", reader->seal()) : "");
  together.run([&] {
    if (!reader) reader.emplace(path);
    if (const std::string here = fmt::format("{:08x}", reader->seal()); here != seal)
      fail(ErrorKind::Checkpoint,
           "{}: differs from the checkpoint of that name on rank 0 (manifest {} here, {} there): "
           "give all ranks the same files",
           path, here, seal);
  });
  return std::move(*reader);
}

}  // namespace

void require_alike(const comm::World& world, const std::vector<Fact>& facts) {
  if (world.size() == 1) return;
  const Together together(world);
  for (const Fact& fact : facts) {
    const std::string leading = world.broadcast(fact.value);
    together.run([&] {
      if (fact.value == leading) return;
      const auto [here, there] = first_difference(fact.value, leading);
      fail(fact.kind, "{}: {} here, {} on rank 0: {}", fact.name, here, there, fact.remedy);
    });
  }
}

io::CheckpointReader agreed_newest(const comm::World& world, const std::filesystem::path& directory,
                                   std::vector<std::string>& complaints) {
  return open_together(world, [&] { return io::open_newest(directory, complaints); });
}

io::CheckpointReader agreed_checkpoint(const comm::World& world,
                                       const std::filesystem::path& path_of_leader) {
  return open_together(world, [&] { return io::CheckpointReader(path_of_leader); });
}

}  // namespace millrace::train
