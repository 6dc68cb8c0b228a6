// SPDX-License-Identifier: Apache-2.0
#include "tools/data/data_sources.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <vector>

#include "cli/datasets.hpp"
#include "cli/resolve.hpp"
#include "core/error.hpp"
#include "core/text.hpp"

namespace millrace::cli {

unsigned threads_of(const Patch& options) {
  return static_cast<unsigned>(options.integer("threads").value_or(0));
}

io::OpenOptions open_options(const Invocation& invocation, io::Split split) {
  const Patch& options = invocation.options;
  io::OpenOptions source;
  source.label_offset = static_cast<std::int32_t>(options.value<std::int64_t>("label-offset"));
  source.classes = options.value<std::int64_t>("data-classes");
  source.classes_are_told = options.typed("data-classes") != nullptr;
  source.max_bad_fraction = options.value<double>("max-bad-fraction");
  if (options.flag("allow-missing-shards")) source.missing = io::MissingShards::Accepted;
  source.index.threads = threads_of(options);
  source.index.cache_folder = cache_folder();
  source.index.progress =
      progress_line(fmt::format("indexing {} images", split_name(split)), is_quiet(options));
  source.index.tell = [](const std::string& what) {
    fmt::print(stderr, "note: {}\n", printable(what));
  };
  return source;
}

std::vector<io::Split> asked_splits(const Patch& options) {
  const auto split = options.value<std::string>("split");
  if (split == "train") return {io::Split::Train};
  if (split == "validation") return {io::Split::Validation};
  return {io::Split::Train, io::Split::Validation};
}

void refuse_idle(const Patch& options, std::initializer_list<std::string_view> names,
                 std::string_view reason) {
  for (const std::string_view name : names)
    if (const Setting* const given = options.typed(name))
      fail(ErrorKind::Usage, "{} has no effect here: {}", given->where, reason);
}

std::unique_ptr<io::ImageDataset> open_set(const std::filesystem::path& directory, io::Split split,
                                           const Invocation& invocation, io::PackedFile packed) {
  auto source = io::open_image_dataset(directory, split, open_options(invocation, split), packed);
  for (const std::string& notice : source->notices())
    fmt::print(stderr, "note: {}\n", printable(notice));
  return source;
}

}  // namespace millrace::cli
