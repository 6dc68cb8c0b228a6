// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command_line.hpp"
#include "cli/commands.hpp"
#include "cli/open_run.hpp"
#include "core/counted.hpp"
#include "core/error.hpp"
#include "core/json.hpp"
#include "core/text.hpp"
#include "io/data/cifar.hpp"
#include "io/data/dataset_kinds.hpp"
#include "io/data/packed_images.hpp"
#include "tools/data/check.hpp"
#include "tools/data/data_sources.hpp"
#include "tools/data/generate.hpp"
#include "tools/data/statistics.hpp"

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
  source.index.cache_folder = training::cache_folder();
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

namespace {

namespace fs = std::filesystem;

/// The requested splits; if both were requested, those that exist. Errors: Data if there is none.
std::vector<io::Split> present_splits(const fs::path& directory, const Patch& options) {
  const std::vector<io::Split> asked = asked_splits(options);
  std::vector<io::Split> splits = asked;
  const auto is_in = [&](io::Storage storage) {
    return [&directory, storage](io::Split split) {
      return io::storage_in(directory, split, io::PackedFile::Counts) == storage;
    };
  };
  std::erase_if(splits, is_in(io::Storage::None));
  if (splits.empty()) io::fail_no_images(directory, asked.front(), io::PackedFile::Counts);
  const auto has = [&](io::Storage storage) { return std::ranges::any_of(splits, is_in(storage)); };
  const auto idle = [&](std::string_view option, std::string_view needed) {
    refuse_idle(options, {option},
                fmt::format("it needs {}, but {} has none", needed, directory.string()));
  };
  const bool has_records = has(io::Storage::Records);
  const bool has_shards = has_records || has(io::Storage::Archives);
  if (!has_records) idle("label-offset", "TFRecord files");
  if (!has_shards) idle("allow-missing-shards", "TFRecord files or WebDataset archives");
  if (!has_shards) idle("data-classes", "TFRecord files or WebDataset archives");
  if (std::ranges::all_of(splits, is_in(io::Storage::Packed)))
    refuse_idle(options, {"max-bad-fraction"},
                "a file of packed images is read only if all are valid");
  return splits;
}

std::string describe(const io::ImageDataset& set) {
  const auto* const packed = dynamic_cast<const io::PackedImages*>(&set);
  return packed == nullptr ? set.name()
                           : fmt::format("packed images, shorter side {}", packed->shorter_side());
}

std::string human(std::uint64_t bytes) { return human_bytes(static_cast<std::int64_t>(bytes)); }

Json to_json(const io::Spread& spread) {
  return Json::object(
      {{"smallest", spread.smallest}, {"median", spread.median}, {"largest", spread.largest}});
}

Json to_json(const io::ImageStatistics& statistics, const std::vector<std::string>& names) {
  Json json = Json::object({{"pictures", statistics.images},
                            {"bytes", statistics.bytes},
                            {"stored_bytes", to_json(statistics.stored_bytes)},
                            {"per_class", statistics.per_class},
                            {"class_names", names}});
  if (statistics.measured > 0) {
    json.set("measured", statistics.measured);
    json.set("bad", statistics.bad);
    json.set("height", to_json(statistics.height));
    json.set("width", to_json(statistics.width));
  }
  return json;
}

/// `names` of the classes may be missing.
void print_statistics(const io::ImageStatistics& statistics,
                      const std::vector<std::string>& names) {
  const auto row = [](const char* what, const io::Spread& spread, const char* unit) {
    fmt::print("  {:<22} {} to {} {}, median {}\n", what, with_commas(spread.smallest),
               with_commas(spread.largest), unit, with_commas(spread.median));
  };
  const auto filled = std::ranges::count_if(statistics.per_class, [](auto n) { return n > 0; });
  fmt::print("  {:<22} {}, {} in total\n", "images", with_commas(statistics.images),
             human(statistics.bytes));
  row("stored", statistics.stored_bytes, "bytes");
  if (statistics.measured > 0) {
    row("height", statistics.height, "pixels");
    row("width", statistics.width, "pixels");
    fmt::print(
        "  {:<22} {} bad of {} read; `millrace data check` reads whole images, and those left "
        "out\n",
        "headers", statistics.bad.size(), std::ssize(statistics.bad) + statistics.measured);
    for (const std::string& what : statistics.bad) fmt::print("    {}\n", printable(what));
  }
  fmt::print("  {:<22} {} of {} have images\n", "classes", filled, statistics.per_class.size());
  row("images per class", io::spread_of(statistics.per_class), "images");
  for (std::size_t c = 0; c < statistics.per_class.size(); ++c)
    if (statistics.per_class[c] > 0)
      fmt::print("    class {:<5} {:>9}{}\n", c, with_commas(statistics.per_class[c]),
                 c < names.size() ? "  " + printable(names[c]) : "");
}

io::CheckReport check_split(const fs::path& directory, io::Split split,
                            const Invocation& invocation) {
  const io::OpenOptions source = open_options(invocation, split);
  io::CheckOptions check;
  check.threads = threads_of(invocation.options);
  check.label_offset = source.label_offset;
  check.classes = source.classes;
  check.progress = progress_line(fmt::format("checking {} images", split_name(split)),
                                 is_quiet(invocation.options));
  if (io::storage_in(directory, split, io::PackedFile::Counts) == io::Storage::Packed)
    return io::check_packed(io::packed_path(directory, split), check.threads, check.progress);
  return io::check_images(directory, split, check, source);
}

/// The kind of a CIFAR set, if the directory holds nothing else.
std::optional<io::CifarKind> cifar_alone(const fs::path& directory) {
  for (const io::Split split : {io::Split::Train, io::Split::Validation})
    if (io::storage_in(directory, split, io::PackedFile::Counts) != io::Storage::None)
      return std::nullopt;
  for (const io::CifarKind kind : {io::CifarKind::Cifar10, io::CifarKind::Cifar100})
    if (io::cifar_is_in(directory, kind)) return kind;
  return std::nullopt;
}

/// Number of problems in the requested splits.
std::size_t check_cifar(const fs::path& directory, io::CifarKind kind, const Patch& options) {
  refuse_idle(options, {"label-offset", "data-classes"}, "it needs TFRecord files");
  const fs::path folder = io::find_cifar(directory, kind);
  std::size_t problems = 0;
  for (const io::Split split : asked_splits(options)) {
    const io::CifarReport report = io::check_cifar(folder, kind, split);
    for (const std::string& problem : report.problems) fmt::print("{}\n", printable(problem));
    fmt::print("{}: {}, {}, {}: {} bad\n", split_name(split), counted(report.files, "file"),
               counted(report.records, "image"), human_bytes(report.bytes), report.problems.size());
    problems += report.problems.size();
  }
  return problems;
}

}  // namespace

int command_data_generate(const Invocation& invocation) {
  const Patch& options = invocation.options;
  const fs::path directory = invocation.arguments.at(0);
  io::GenerateOptions generate;
  generate.train_records = options.value<std::int64_t>("train-images");
  generate.test_records = options.value<std::int64_t>("test-images");
  generate.seed = static_cast<std::uint64_t>(options.integer("seed").value_or(0));
  io::generate_cifar10_like(directory, generate);
  fmt::print("{} training and {} test images in {}\n", generate.train_records,
             generate.test_records, printable(directory.string()));
  return 0;
}

int command_data_index(const Invocation& invocation) {
  const fs::path directory = invocation.arguments.at(0);
  for (const io::Split split : present_splits(directory, invocation.options)) {
    const auto begin = std::chrono::steady_clock::now();
    const auto source = open_set(directory, split, invocation);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    const std::string what =
        fmt::format("{}: {} of {}, {}", split_name(split), counted(source->size(), "image"),
                    counted(source->classes(), "class", "classes"), printable(describe(*source)));
    if (io::storage_in(directory, split, io::PackedFile::Counts) == io::Storage::Packed)
      fmt::print("{}: has its own table and needs no index\n", what);
    else
      fmt::print("{}, opened in {:.2f} s\n", what, seconds.count());
  }
  return 0;
}

int command_data_check(const Invocation& invocation) {
  const Patch& options = invocation.options;
  const fs::path directory = invocation.arguments.at(0);
  std::size_t findings = 0;
  if (const auto kind = cifar_alone(directory))
    return check_cifar(directory, *kind, options) == 0 ? 0 : exit_code(ErrorKind::Data);
  for (const io::Split split : present_splits(directory, options)) {
    const io::CheckReport report = check_split(directory, split, invocation);
    for (const std::string& notice : report.notices)
      fmt::print(stderr, "note: {}\n",
                 printable(respelled(notice, invocation.options, invocation.spellings)));
    for (const io::Finding& finding : report.findings) fmt::print("{}\n", to_string(finding));
    fmt::print("{}: {}, {}, {}: {} bad\n", split_name(split),
               counted(static_cast<std::int64_t>(report.files), "file"),
               counted(static_cast<std::int64_t>(report.records), "image"), human(report.bytes),
               report.findings.size());
    findings += report.findings.size();
  }
  return findings == 0 ? 0 : exit_code(ErrorKind::Data);
}

int command_data_stats(const Invocation& invocation) {
  const fs::path directory = invocation.arguments.at(0);
  Json json;
  for (const io::Split split : present_splits(directory, invocation.options)) {
    const auto set = open_set(directory, split, invocation);
    const io::ImageStatistics statistics =
        io::collect_statistics(*set, open_options(invocation, split).max_bad_fraction);
    if (invocation.options.flag("json")) {
      json.set(split_name(split), to_json(statistics, set->class_names()));
    } else {
      fmt::print("{} ({})\n", split_name(split), printable(describe(*set)));
      print_statistics(statistics, set->class_names());
    }
  }
  if (invocation.options.flag("json")) fmt::print("{}\n", json.dump(2, Json::NotUtf8::Replaced));
  return 0;
}

}  // namespace millrace::cli

namespace millrace::tools {

cli::Tool data_tool() {
  using cli::Command;
  static constexpr auto kCommands = std::to_array<cli::CommandSpec>({
      {Command::Generate, "data generate", "DIR", cli::command_data_generate,
       "Generates a small data set of shapes in the format of CIFAR-10.",
       "millrace data generate data/cifar-10-batches-bin --train-images 10000"},
      {Command::DataIndex, "data index", "DIR", cli::command_data_index,
       "Creates the index of TFRecord files or class folders before the first training.",
       "millrace data index /data/imagenet"},
      {Command::DataCheck, "data check", "DIR", cli::command_data_check,
       "Reads every image and lists bad ones by file, record and offset.",
       "millrace data check /data/imagenet --split validation"},
      {Command::DataStats, "data stats", "DIR", cli::command_data_stats,
       "Shows the number of images per class and their sizes.",
       "millrace data stats /data/imagenet --json"},
      {Command::DataConvert, "data convert", "OUT", cli::command_data_convert,
       "Writes TFRecord files from raw ImageNet, or packed files of scaled-down images.",
       "millrace data convert /data/imagenet --raw-dir /data/raw"},
  });
  return {.commands = kCommands};
}

}  // namespace millrace::tools
