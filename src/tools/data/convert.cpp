// SPDX-License-Identifier: Apache-2.0
#include "tools/data/convert.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "core/random.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "io/data/record_frame.hpp"
#include "io/data/record_index.hpp"
#include "tools/data/write_records.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxShards = 99'999;  // as its name has five digits
constexpr std::uint64_t kMaxStateBytes = std::uint64_t{16} << 20;

std::string shard_name(std::string_view prefix, std::size_t shard, std::int64_t shards) {
  return fmt::format("{}-{:05}-of-{:05}", prefix, shard, shards);
}

// Whether a name has the form of shard_name().
bool is_shard_name(std::string_view name, std::string_view prefix) {
  const std::optional<ShardNumber> shard = parse_shard_number(name);
  return shard && shard_name(prefix, shard->number, shard->total) == name;
}

std::string_view prefix_of(Split split) { return split == Split::Train ? "train" : "validation"; }

// The output is a function of this text.
std::string describe(const RawImages& raw, std::int64_t shards, std::uint64_t seed) {
  std::uint32_t crc = 0;
  for (const RawImage& image : raw.images) {
    const std::string line =
        fmt::format("{}/{} {}\n", raw.classes[static_cast<std::size_t>(image.class_index)],
                    image.name, image.bytes);
    crc = crc32c(std::as_bytes(std::span(line)), crc);
  }
  return fmt::format("{} pictures {:08x} of {} classes in {} shards, seed {}", raw.images.size(),
                     crc, raw.classes.size(), shards, seed);
}

std::string describe(const RawImage& image) {
  if (image.offset == 0) return image.file.string();
  return fmt::format("{}, {} at offset {}", image.file.string(), image.name, image.offset);
}

class Conversion {
 public:
  Conversion(const RawImages& raw, Split split, const fs::path& out, const ConvertOptions& options)
      : raw_(raw),
        options_(options),
        split_(split),
        prefix_(prefix_of(split)),
        folder_(out / prefix_),
        state_(folder_ / fmt::format(".millrace-{}.conversion", prefix_)),
        shards_(shards_filled(raw.images.size(), options.shards)),
        description_(describe(raw, shards_, options.seed)),
        order_(conversion_order(raw.images.size(), split, options.seed)),
        chunk_((raw.images.size() + shard_count() - 1) / shard_count()),
        meter_(options.progress, raw.images.size()),
        bad_(static_cast<std::int64_t>(raw.images.size()), options.max_bad_fraction,
             options.report_bad) {}

  ConvertReport run() {
    refuse_hidden_shards(folder_.parent_path(), split_);
    std::error_code error;
    fs::create_directories(folder_, error);
    if (error) fail_io("create", folder_, error.value());
    const RunLock lock(folder_, "folder");
    begin();
    parallel_for(shard_count(), options_.threads, [this](std::size_t shard) { write(shard); });
    report_.bad = bad_.count();
    report_.images = raw_.images.size() - static_cast<std::size_t>(report_.bad);
    return report_;
  }

 private:
  [[nodiscard]] std::size_t shard_count() const { return static_cast<std::size_t>(shards_); }
  [[nodiscard]] fs::path path_of(std::size_t shard) const {
    return folder_ / shard_name(prefix_, shard, shards_);
  }

  // Continues the same conversion, and fails if the folder contains another one.
  void begin() {
    const std::string text = fs::exists(state_) ? read_text(state_, kMaxStateBytes) : "";
    const std::string_view found = std::string_view(text).substr(0, text.find('\n'));
    const fs::path shard = any_shard();
    if (found != description_ && !shard.empty()) {
      if (found.empty())
        fail(ErrorKind::Usage, "{}: already exists: remove it or choose another folder",
             shard.string());
      fail(ErrorKind::Usage,
           "{}: contains a conversion of {}, but this one is of {}: remove its files or choose "
           "another folder",
           folder_.string(), found, description_);
    }
    remove_leftovers(folder_, [this](std::string_view name) { return is_written(name); });
    if (found == description_)
      restore_problems(std::string_view(text).substr(found.size()));
    else
      write_state();
  }

  // The state file beside the shards has the description of their input and one line per bad image,
  // so that a later run that keeps a shard knows which images it lacks.
  void write_state() const {
    std::string text = description_ + "\n";
    for (const auto& [position, problem] : problems_)
      text += fmt::format("{} {}\n", position, problem);
    write_file_atomically(state_, text);
  }

  void restore_problems(std::string_view text) {
    for (const std::string& line : split_list(text, '\n')) {
      const std::size_t blank = std::min(line.find(' '), line.size());
      const auto position = parse_number<std::size_t>(std::string_view(line).substr(0, blank));
      if (!position || *position >= order_.size()) continue;
      std::error_code ignored;
      if (fs::exists(path_of(*position / chunk_), ignored))
        add_problem(*position, line.substr(std::min(blank + 1, line.size())));
    }
  }

  void add_problem(std::size_t position, std::string problem) {
    std::ranges::replace(problem, '\n', ' ');
    bad_.add(problem);
    problems_.emplace(position, std::move(problem));
  }

  // Whether a conversion of this split writes a file of this name.
  [[nodiscard]] bool is_written(std::string_view name) const {
    return name == state_.filename().string() || is_shard_name(name, prefix_);
  }

  // An existing shard, or an empty path. Temporary files do not count.
  [[nodiscard]] fs::path any_shard() const {
    for (const auto& entry : fs::directory_iterator(folder_))
      if (const std::string name = entry.path().filename().string();
          name.starts_with(prefix_ + "-") && name.find(".tmp.") == std::string::npos)
        return entry.path();
    return {};
  }

  void write(std::size_t shard) {
    const std::size_t first = std::min(shard * chunk_, order_.size());
    const std::size_t last = std::min(first + chunk_, order_.size());
    const fs::path path = path_of(shard);
    std::error_code ignored;
    if (fs::exists(path, ignored)) {
      meter_.add(last - first);
      const std::lock_guard lock(mutex_);
      ++report_.shards_kept;
      return;
    }
    RecordWriter writer(path);
    std::uint64_t replaced = 0;
    std::size_t bad = 0;
    std::vector<std::byte> file;
    std::vector<std::byte> payload;
    for (std::size_t i = first; i < last; ++i) {
      const RawImage& image = raw_.images[order_[i]];
      std::string problem;
      if (const auto prepared = prepare(image, file, problem)) {
        replaced += write_image(image, *prepared, file, payload);
        writer.append(payload);
      } else {
        ++bad;
        const std::lock_guard lock(mutex_);
        add_problem(i, std::move(problem));
      }
      meter_.add(1);
    }
    if (bad == last - first)
      fail(ErrorKind::Data,
           "{}: all of its images ({}) are bad, and a shard without images cannot be read: choose "
           "fewer shards",
           path.string(), bad);
    if (bad > 0) {
      const std::lock_guard lock(mutex_);
      write_state();
    }
    writer.commit();
    const std::lock_guard lock(mutex_);
    ++report_.shards_written;
    report_.bytes += writer.bytes();
    report_.replaced += replaced;
  }

  // Reads and prepares an image; empty, with its problem, if it is bad.
  std::optional<PreparedImage> prepare(const RawImage& image, std::vector<std::byte>& file,
                                       std::string& problem) const {
    try {
      read_raw_image(image, file);
      return options_.prepare(file);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::Data)
        fail(error.kind(), "{}: {}", describe(image), error.what());
      problem = problem_at(describe(image), error.what());
      return {};
    }
  }

  // Writes the record's payload; returns 1 if the image was replaced.
  std::uint64_t write_image(const RawImage& image, const PreparedImage& prepared,
                            std::span<const std::byte> file,
                            std::vector<std::byte>& payload) const {
    const bool replaced = !prepared.replacement.empty();
    write_example({.encoded = replaced ? std::span<const std::byte>(prepared.replacement) : file,
                   .height = prepared.height,
                   .width = prepared.width,
                   .label = std::int64_t{image.class_index} + 1,
                   .synset = raw_.classes[static_cast<std::size_t>(image.class_index)],
                   .filename = image.name,
                   .boxes = {}},
                  payload);
    return replaced ? 1 : 0;
  }

  const RawImages& raw_;
  const ConvertOptions& options_;
  Split split_;
  std::string prefix_;
  fs::path folder_;
  fs::path state_;
  std::int64_t shards_;
  std::string description_;
  std::vector<std::size_t> order_;
  std::size_t chunk_;  // images per shard
  ProgressMeter meter_;
  std::mutex mutex_;
  BadImages bad_;
  std::map<std::size_t, std::string> problems_;  ///< by position in the order
  ConvertReport report_;
};

}  // namespace

void refuse_hidden_shards(const fs::path& out, Split split) {
  const RecordFileSet set = find_record_files(out, split);
  if (set.files.empty() || set.folder != out) return;
  fail(ErrorKind::Usage,
       "{}: readers would find this shard before those converted into {}: remove these shards or "
       "choose another folder",
       (out / set.files.front()).string(), (out / prefix_of(split)).string());
}

std::int64_t shards_filled(std::size_t images, std::int64_t asked) {
  const auto count = static_cast<std::int64_t>(images);
  if (count == 0) return 1;
  const std::int64_t chunk = (count + asked - 1) / asked;
  return (count + chunk - 1) / chunk;
}

std::vector<std::size_t> conversion_order(std::size_t images, Split split, std::uint64_t seed) {
  std::vector<std::size_t> order(images);
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (split == Split::Validation || images == 0) return order;
  const Permutation mixed(seed, 0, images);
  std::ranges::transform(order, order.begin(), mixed);
  return order;
}

ConvertReport convert_to_records(const RawImages& raw, Split split, const fs::path& out,
                                 const ConvertOptions& options) {
  if (options.shards < 1 || options.shards > kMaxShards)
    fail(ErrorKind::Config, "{} shards: must be 1 to {}", options.shards, kMaxShards);
  MILLRACE_ASSERT(options.prepare != nullptr);
  return Conversion(raw, split, out, options).run();
}

}  // namespace millrace::io
