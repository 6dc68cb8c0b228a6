// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.hpp"
#include "cli/datasets.hpp"
#include "cli/resolve.hpp"
#include "core/error.hpp"
#include "core/json.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "io/data/cifar_files.hpp"
#include "io/data/imagenet.hpp"
#include "io/data/packed_images.hpp"
#include "io/run_lock.hpp"
#include "io/tools/check.hpp"
#include "io/tools/convert.hpp"
#include "io/tools/generate.hpp"
#include "io/tools/pack.hpp"
#include "io/tools/statistics.hpp"
#include "train/progress.hpp"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

unsigned threads_of(const Options& options) {
  return static_cast<unsigned>(options.integer("threads").value_or(0));
}

/// Files beside the images that the user names.
io::GivenFiles given_files(const Options& options) {
  return {.train_annotations = options.text("train-annotations").value_or(""),
          .validation_annotations = options.text("validation-annotations").value_or(""),
          .class_list = options.text("class-list").value_or("")};
}

io::OpenOptions open_options(const Invocation& invocation, io::Split split) {
  const Options& options = invocation.options;
  io::OpenOptions source;
  source.label_offset = static_cast<std::int32_t>(options.value<std::int64_t>("label-offset"));
  source.classes = options.value<std::int64_t>("data-classes");
  source.classes_are_told = options.typed("data-classes") != nullptr;
  source.given = given_files(options);
  source.max_bad_fraction = options.value<double>("max-bad-fraction");
  if (options.flag("allow-missing-shards")) source.missing = io::MissingShards::Accepted;
  source.index.threads = threads_of(options);
  source.index.cache_folder = cache_folder();
  source.index.progress =
      progress_line(fmt::format("indexing {} images", split_name(split)), is_quiet(options));
  source.index.tell = [](const std::string& what) { fmt::print(stderr, "note: {}\n", what); };
  return source;
}

std::vector<io::Split> asked_splits(const Options& options) {
  const auto split = options.value<std::string>("split");
  if (split == "train") return {io::Split::Train};
  if (split == "validation") return {io::Split::Validation};
  return {io::Split::Train, io::Split::Validation};
}

io::Storage storage_in(const fs::path& directory, io::Split split, const Options& options) {
  return io::storage_in(directory, split, io::PackedFile::Counts, given_files(options));
}

/// Errors: Usage, with this reason, for options given on the command line that nothing reads.
void refuse_idle(const Options& options, std::initializer_list<std::string_view> names,
                 std::string_view reason) {
  for (const std::string_view name : names)
    if (const Setting* const given = options.typed(name))
      fail(ErrorKind::Usage, "{} has no effect here: {}", given->where, reason);
}

/// The requested splits; if both were requested, those that exist. Errors: Data if there is none.
std::vector<io::Split> present_splits(const fs::path& directory, const Options& options) {
  const std::vector<io::Split> asked = asked_splits(options);
  std::vector<io::Split> splits = asked;
  const auto is_in = [&](io::Storage storage) {
    return [&directory, &options, storage](io::Split split) {
      return storage_in(directory, split, options) == storage;
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
  if (!has_shards && !has(io::Storage::Annotated))
    idle("data-classes", "TFRecord files, WebDataset archives or an annotation file");
  if (std::ranges::all_of(splits, is_in(io::Storage::Packed)))
    refuse_idle(options, {"max-bad-fraction"},
                "a file of packed images is read only if all are valid");
  return splits;
}

std::unique_ptr<io::ImageDataset> open_set(const fs::path& directory, io::Split split,
                                           const Invocation& invocation,
                                           io::PackedFile packed = io::PackedFile::Counts) {
  auto source = io::open_image_dataset(directory, split, open_options(invocation, split), packed);
  for (const std::string& notice : source->notices())
    fmt::print(stderr, "note: {}\n", printable(notice));
  return source;
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

Json to_json(const io::ImageStatistics& statistics) {
  Json json = Json::object({{"pictures", statistics.images},
                            {"bytes", statistics.bytes},
                            {"stored_bytes", to_json(statistics.stored_bytes)},
                            {"per_class", statistics.per_class}});
  if (statistics.measured > 0) {
    json.set("measured", statistics.measured);
    json.set("bad", statistics.bad);
    json.set("height", to_json(statistics.height));
    json.set("width", to_json(statistics.width));
  }
  return json;
}

void print_statistics(const io::ImageStatistics& statistics) {
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
    fmt::print("  {:<22} {} of {} checked\n", "bad", statistics.bad.size(),
               std::ssize(statistics.bad) + statistics.measured);
    for (const std::string& what : statistics.bad) fmt::print("    {}\n", what);
  }
  fmt::print("  {:<22} {} of {} have images\n", "classes", filled, statistics.per_class.size());
  row("images per class", io::spread_of(statistics.per_class), "images");
  for (std::size_t c = 0; c < statistics.per_class.size(); ++c)
    if (statistics.per_class[c] > 0)
      fmt::print("    class {:<5} {}\n", c, with_commas(statistics.per_class[c]));
}

/// Reports why an image is left out.
void report_bad(const std::string& problem) {
  fmt::print(stderr, "left out: {}\n", printable(problem));
}

/// For example ", 2 bad ones left out".
std::string describe_bad(std::int64_t bad) {
  if (bad == 0) return "";
  return fmt::format(", {} bad {} left out", with_commas(bad), bad == 1 ? "one" : "ones");
}

io::ConvertOptions convert_options(const Options& options, io::Split split) {
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
std::vector<RawSplit> find_raw_splits(const fs::path& raw_directory, const Options& options) {
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
               split_name(found[0].split == asked[0] ? asked[1] : asked[0]), raw_directory.string(),
               split_name(found[0].split));
  for (const RawSplit& part : found) {
    for (const std::string& notice : part.raw.notices)
      fmt::print(stderr, "note: {}\n", printable(notice));
    if (!part.raw.others.empty())
      fmt::print(
          stderr, "note: {} {} files are neither JPEG nor PNG and are left out, for example {}\n",
          part.raw.others.size(), split_name(part.split), printable(part.raw.others.front()));
  }
  return found;
}

void convert_split(const RawSplit& part, const fs::path& out, const Options& options) {
  const io::ConvertOptions convert = convert_options(options, part.split);
  const std::int64_t shards = io::shards_filled(part.raw.images.size(), convert.shards);
  if (shards != convert.shards)
    fmt::print(stderr, "note: {} {} shards instead of {}: {} images do not fill more\n", shards,
               split_name(part.split), convert.shards, part.raw.images.size());
  const io::ConvertReport report = io::convert_to_records(part.raw, part.split, out, convert);
  const std::string what =
      fmt::format("{} images{}{} of {} classes in {} shards",
                  with_commas(static_cast<std::int64_t>(report.images)), describe_bad(report.bad),
                  report.bad == 0 ? "" : ",", part.raw.classes.size(), shards);
  if (report.shards_written == 0)
    fmt::print("{}: already converted: {}\n", split_name(part.split), what);
  else
    fmt::print(
        "{}: {}, {} written now{}\n", split_name(part.split), what, human(report.bytes),
        report.replaced == 0 ? "" : fmt::format(", {} re-encoded as RGB JPEG", report.replaced));
}

void convert_raw(const fs::path& raw_directory, const fs::path& out, const Options& options) {
  const std::vector<RawSplit> splits = find_raw_splits(raw_directory, options);
  for (const RawSplit& part : splits) io::refuse_hidden_shards(out, part.split);
  for (const RawSplit& part : splits) convert_split(part, out, options);
}

void pack_split(const fs::path& data_directory, io::Split split, const fs::path& out,
                const Invocation& invocation) {
  const Options& options = invocation.options;
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
  fmt::print("{}: {} images{}, {} in {}\n", split_name(split), with_commas(report.images),
             describe_bad(report.bad), human(report.bytes), path.string());
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
      return io::storage_in(data_directory, split, io::PackedFile::CountsNot,
                            given_files(invocation.options)) == io::Storage::None;
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

io::CheckReport check_split(const fs::path& directory, io::Split split,
                            const Invocation& invocation) {
  const io::OpenOptions source = open_options(invocation, split);
  io::CheckOptions check;
  check.threads = threads_of(invocation.options);
  check.label_offset = source.label_offset;
  check.classes = source.classes;
  check.progress = progress_line(fmt::format("checking {} images", split_name(split)),
                                 is_quiet(invocation.options));
  if (storage_in(directory, split, invocation.options) == io::Storage::Packed)
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
std::size_t check_cifar(const fs::path& directory, io::CifarKind kind, const Options& options) {
  refuse_idle(options, {"label-offset", "data-classes"}, "it needs TFRecord files");
  const fs::path folder = io::find_cifar(directory, kind);
  std::size_t problems = 0;
  for (const io::Split split : asked_splits(options)) {
    const io::CifarReport report = io::check_cifar(folder, kind, split);
    for (const std::string& problem : report.problems) fmt::print("{}\n", printable(problem));
    fmt::print("{}: {} files, {} images, {}: {} bad\n", split_name(split), report.files,
               with_commas(report.records), human_bytes(report.bytes), report.problems.size());
    problems += report.problems.size();
  }
  return problems;
}

}  // namespace

int command_data_generate(const Invocation& invocation) {
  const Options& options = invocation.options;
  const fs::path directory = options.arguments.at(0);
  io::GenerateOptions generate;
  generate.train_records = options.value<std::int64_t>("train-images");
  generate.test_records = options.value<std::int64_t>("test-images");
  generate.seed = static_cast<std::uint64_t>(options.integer("seed").value_or(0));
  io::generate_cifar10_like(directory, generate);
  fmt::print("{} training and {} test images in {}\n", generate.train_records,
             generate.test_records, directory.string());
  return 0;
}

int command_data_index(const Invocation& invocation) {
  const fs::path directory = invocation.options.arguments.at(0);
  for (const io::Split split : present_splits(directory, invocation.options)) {
    const auto begin = std::chrono::steady_clock::now();
    const auto source = open_set(directory, split, invocation);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    const std::string what =
        fmt::format("{}: {} images of {} classes, {}", split_name(split),
                    with_commas(source->size()), source->classes(), describe(*source));
    if (storage_in(directory, split, invocation.options) == io::Storage::Packed)
      fmt::print("{}: has its own table and needs no index\n", what);
    else
      fmt::print("{}, opened in {:.2f} s\n", what, seconds.count());
  }
  return 0;
}

int command_data_check(const Invocation& invocation) {
  const Options& options = invocation.options;
  const fs::path directory = options.arguments.at(0);
  std::size_t findings = 0;
  if (const auto kind = cifar_alone(directory))
    return check_cifar(directory, *kind, options) == 0 ? 0 : exit_code(ErrorKind::Data);
  for (const io::Split split : present_splits(directory, options)) {
    const io::CheckReport report = check_split(directory, split, invocation);
    for (const std::string& notice : report.notices) fmt::print(stderr, "note: {}\n", notice);
    for (const io::Finding& finding : report.findings) fmt::print("{}\n", to_string(finding));
    fmt::print("{}: {} files, {} images, {}: {} bad\n", split_name(split), report.files,
               with_commas(static_cast<std::int64_t>(report.records)), human(report.bytes),
               report.findings.size());
    findings += report.findings.size();
  }
  return findings == 0 ? 0 : exit_code(ErrorKind::Data);
}

int command_data_stats(const Invocation& invocation) {
  const fs::path directory = invocation.options.arguments.at(0);
  Json json;
  for (const io::Split split : present_splits(directory, invocation.options)) {
    const auto set = open_set(directory, split, invocation);
    const io::ImageStatistics statistics =
        io::collect_statistics(*set, open_options(invocation, split).max_bad_fraction);
    if (invocation.options.flag("json")) {
      json.set(split_name(split), to_json(statistics));
    } else {
      fmt::print("{} ({})\n", split_name(split), describe(*set));
      print_statistics(statistics);
    }
  }
  if (invocation.options.flag("json")) fmt::print("{}\n", json.dump(2, Json::NotUtf8::Replaced));
  return 0;
}

int command_data_convert(const Invocation& invocation) {
  const Options& options = invocation.options;
  const fs::path out = options.arguments.at(0);
  const auto raw = options.text("raw-dir");
  if (!options.flag("packed")) {
    if (!raw)
      fail(ErrorKind::Usage,
           "data convert needs --raw-dir DIR (original image files), or --packed and --data-dir "
           "DIR");
    refuse_idle(options,
                {"shorter-side", "label-offset", "data-classes", "allow-missing-shards", "data-dir",
                 "train-annotations", "validation-annotations", "class-list"},
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
