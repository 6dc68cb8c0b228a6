// SPDX-License-Identifier: Apache-2.0
//
// `data convert`: TFRecord files of original images, or a file of packed images.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "cli/command_line.hpp"
#include "cli/commands.hpp"
#include "cli/open_run.hpp"
#include "core/counted.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "tools/data/convert.hpp"
#include "tools/data/data_sources.hpp"
#include "tools/data/pack.hpp"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

/// Reports why an image is left out.
void report_bad(const std::string& problem) {
  fmt::print(stderr, "left out: {}\n", printable(problem));
}

/// For example ", 2 bad ones left out".
std::string describe_bad(std::int64_t bad) {
  if (bad == 0) return "";
  return fmt::format(", {} bad {} left out", with_commas(bad), bad == 1 ? "one" : "ones");
}

io::ConvertOptions convert_options(const Patch& options, io::Split split) {
  io::ConvertOptions convert;
  convert.shards =
      options.value<std::int64_t>(split == io::Split::Train ? "train-shards" : "validation-shards");
  convert.seed = static_cast<std::uint64_t>(options.integer("seed").value_or(0));
  convert.threads = threads_of(options);
  convert.max_bad_fraction = options.value<double>("max-bad-fraction");
  convert.report_bad = report_bad;
  convert.progress =
      progress_line(fmt::format("converting {} images", split_name(split)), is_quiet(options));
  return convert;
}

/// A split; all of them are found before the first is converted.
struct RawSplit {
  io::Split split = io::Split::Train;
  io::RawImages raw;
};

/// The requested splits; if both were requested, those that exist. Errors: Data if there is none.
std::vector<RawSplit> find_raw_splits(const fs::path& raw_directory, const Patch& options) {
  const std::vector<io::Split> asked = asked_splits(options);
  const fs::path labels = options.text("validation-labels").value_or("");
  std::vector<RawSplit> found;
  for (const io::Split split : asked) {
    // Training comes first, because it defines the class numbers of both.
    const auto& classes = found.empty() ? std::vector<std::string>{} : found.front().raw.classes;
    if (auto raw = io::look_for_raw_images(raw_directory, split, labels, classes))
      found.push_back({split, std::move(*raw)});
  }
  if (found.empty()) (void)io::find_raw_images(raw_directory, asked.front(), labels);
  if (found.size() < asked.size())
    fmt::print(stderr, "note: no {} images in '{}': converting only the {} images\n",
               split_name(found[0].split == asked[0] ? asked[1] : asked[0]),
               printable(raw_directory.string()), split_name(found[0].split));
  for (const RawSplit& part : found) {
    for (const std::string& notice : part.raw.notices)
      fmt::print(stderr, "note: {}\n", printable(respelled(notice, Patch())));
    if (!part.raw.others.empty())
      fmt::print(
          stderr, "note: {} left out, neither JPEG nor PNG, for example {}\n",
          counted(std::ssize(part.raw.others), fmt::format("{} file", split_name(part.split))),
          printable(part.raw.others.front()));
  }
  return found;
}

void convert_split(const RawSplit& part, const fs::path& out, const Patch& options) {
  const io::ConvertOptions convert = convert_options(options, part.split);
  const std::int64_t shards = io::shards_filled(part.raw.images.size(), convert.shards);
  if (shards != convert.shards)
    fmt::print(stderr, "note: {} instead of {}: more would be empty, with {}\n",
               counted(shards, fmt::format("{} shard", split_name(part.split))), convert.shards,
               counted(std::ssize(part.raw.images), "image"));
  const io::ConvertReport report = io::convert_to_records(part.raw, part.split, out, convert);
  const std::string what = fmt::format(
      "{}{}{} of {} in {}", counted(static_cast<std::int64_t>(report.images), "image"),
      describe_bad(report.bad), report.bad == 0 ? "" : ",",
      counted(std::ssize(part.raw.classes), "class", "classes"), counted(shards, "shard"));
  if (report.shards_written == 0)
    fmt::print("{}: already converted: {}\n", split_name(part.split), what);
  else
    fmt::print(
        "{}: {}, {} written now{}\n", split_name(part.split), what,
        human_bytes(static_cast<std::int64_t>(report.bytes)),
        report.replaced == 0 ? "" : fmt::format(", {} re-encoded as RGB JPEG", report.replaced));
}

void convert_raw(const fs::path& raw_directory, const fs::path& out, const Patch& options) {
  const std::vector<RawSplit> splits = find_raw_splits(raw_directory, options);
  for (const RawSplit& part : splits) io::refuse_hidden_shards(out, part.split);
  for (const RawSplit& part : splits) convert_split(part, out, options);
}

void pack_split(const fs::path& data_directory, io::Split split, const fs::path& out,
                const Invocation& invocation) {
  const Patch& options = invocation.options;
  const auto source = open_set(data_directory, split, invocation, io::PackedFile::CountsNot);
  io::PackOptions packing;
  packing.shorter_side = static_cast<std::int32_t>(options.value<std::int64_t>("shorter-side"));
  packing.threads = threads_of(options);
  packing.max_bad_fraction = options.value<double>("max-bad-fraction");
  packing.progress =
      progress_line(fmt::format("packing {} images", split_name(split)), is_quiet(options));
  packing.report_bad = report_bad;
  const fs::path path = io::packed_path(out, split);
  const io::PackReport report = io::write_packed_images(*source, path, packing);
  fmt::print("{}: {}{}, {} in {}\n", split_name(split), counted(report.images, "image"),
             describe_bad(report.bad), human_bytes(static_cast<std::int64_t>(report.bytes)),
             printable(path.string()));
}

/// Removes a folder in which a command that failed made nothing but its lock.
void remove_unused(const fs::path& folder) noexcept {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (entry.path().filename() != ".lock") return;
  fs::remove(folder / ".lock", ignored);
  fs::remove(folder, ignored);
}

/// Packs images of any other form, even if there are packed images next to them.
void pack(const fs::path& data_directory, const fs::path& out, const Invocation& invocation) {
  std::vector<io::Split> splits = asked_splits(invocation.options);
  if (splits.size() > 1)
    std::erase_if(splits, [&](io::Split split) {
      return io::storage_in(data_directory, split, io::PackedFile::CountsNot) == io::Storage::None;
    });
  if (splits.empty())
    io::fail_no_images(data_directory, io::Split::Train, io::PackedFile::CountsNot);
  std::error_code error;
  const bool is_new = fs::create_directories(out, error);
  if (error) io::fail_io("create", out, error.value());
  try {
    const io::RunLock lock(out, "folder");
    for (const io::Split split : splits) pack_split(data_directory, split, out, invocation);
  } catch (...) {
    if (is_new) remove_unused(out);
    throw;
  }
}

}  // namespace

int command_data_convert(const Invocation& invocation) {
  const Patch& options = invocation.options;
  const fs::path out = invocation.arguments.at(0);
  const auto raw = options.text("raw-dir");
  if (!options.flag("packed")) {
    if (!raw)
      fail(ErrorKind::Usage,
           "data convert needs --raw-dir DIR (original image files), or --packed and --data-dir "
           "DIR");
    refuse_idle(
        options,
        {"shorter-side", "label-offset", "data-classes", "allow-missing-shards", "data-dir"},
        "it needs --packed");
    convert_raw(*raw, out, options);
    return 0;
  }
  const auto data = options.text("data-dir");
  if (!data || raw)
    fail(ErrorKind::Usage, "data convert --packed packs the images of --data-dir DIR{}",
         raw ? ", not those of --raw-dir: convert them first" : ", which is not given");
  refuse_idle(options, {"train-shards", "validation-shards", "seed", "validation-labels"},
              "it needs --raw-dir");
  pack(*data, out, invocation);
  return 0;
}

}  // namespace millrace::cli
