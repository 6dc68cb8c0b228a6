// SPDX-License-Identifier: Apache-2.0
#include "train/partner_snapshots.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <sstream>
#include <system_error>
#include <utility>

#include "core/counted.hpp"
#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "core/machine_limits.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "train/agreement.hpp"

namespace millrace::training {
namespace {

namespace fs = std::filesystem;

/// The message of the error that `f` throws, or "".
std::string trouble_of(const std::function<void()>& f) {
  try {
    f();
    return {};
  } catch (const std::exception&) {
    return printable(current_error().what());
  }
}

/// In the run directory: id of the run, number of the start, last_taken().
constexpr const char* kSeriesFile = ".snapshots";

struct Series {
  std::string run = {};
  std::int64_t start = 0;
  std::int64_t taken = -1;
  std::string trouble = {};  ///< why the file does not say
  [[nodiscard]] std::string name() const { return fmt::format("{}-{}", run, start); }
};

/// Without a run if it never had snapshots, or if its file cannot be read.
Series read_series(const fs::path& run_directory) {
  if (!has_snapshots(run_directory)) return {};
  const fs::path file = run_directory / kSeriesFile;
  Series series;
  const std::string trouble = trouble_of([&] {
    std::istringstream text(io::read_text(file, io::kMaxManifestBytes));
    text >> series.run >> series.start >> series.taken;
    if (!text || series.run.find_first_not_of("0123456789abcdef") != std::string::npos)
      fail(ErrorKind::Checkpoint, "{}: damaged", file.string());
  });
  return trouble.empty() ? series : Series{.trouble = trouble};
}

void keep_series(const fs::path& run_directory, const Series& series) {
  io::write_file_atomically(run_directory / kSeriesFile,
                            fmt::format("{} {} {}\n", series.run, series.start, series.taken));
}

std::string begin_series(const fs::path& run_directory) {
  Series series = read_series(run_directory);
  std::random_device random;
  if (series.run.empty()) series.run = fmt::format("{:08x}{:08x}", random(), random());
  ++series.start;
  keep_series(run_directory, series);
  return series.name();
}

constexpr const char* kMemoryVariable = "MILLRACE_MEMORY_DIRECTORY";

/// The snapshots of this user on this host.
fs::path memory_directory() {
  const char* const named = std::getenv(kMemoryVariable);
  return named != nullptr && *named != '\0'
             ? fs::path(named)
             : fs::path(fmt::format("/dev/shm/millrace-{}", ::geteuid()));
}

/// Everybody may write to /dev/shm. Errors: Io, if others could read or replace the snapshots.
void make_memory_directory() {
  const fs::path directory = memory_directory();
  struct stat found = {};
  do {  // until no other run removes it in between
    if (::mkdir(directory.c_str(), S_IRWXU) != 0 && errno != EEXIST)
      io::fail_io("create", directory, errno);
  } while (::lstat(directory.c_str(), &found) != 0 && errno == ENOENT);
  if (S_ISDIR(found.st_mode) && found.st_uid == ::geteuid() &&
      (found.st_mode & (S_IRWXG | S_IRWXO)) == 0)
    return;
  fail(ErrorKind::Io, "{}: is not a directory that this user alone can open: remove it",
       directory.string());
}

/// Makes the directory of a series, which keeps that of this user from being removed.
void make_series_directory(const fs::path& series) {
  std::error_code error;
  do make_memory_directory();
  while (!fs::create_directory(series, error) && error == std::errc::no_such_file_or_directory);
  if (error) io::fail_io("create", series, error.value());
}

/// Removes all series of a run on this host.
void remove_series(const std::string& run) {
  std::error_code error;
  std::error_code ignored;
  for (fs::directory_iterator it(memory_directory(), error), end; !error && it != end;
       it.increment(error))
    if (it->path().filename().string().starts_with(run + '-')) fs::remove_all(it->path(), ignored);
  ::rmdir(memory_directory().c_str());  // unless something is in it
}

/// A rank on another host, where those of one host have different partners; -1: there is none.
int partner_of(int rank, std::span<const std::string> hosts) {
  const auto count = static_cast<int>(hosts.size());
  const std::string& own = hosts[static_cast<std::size_t>(rank)];
  const auto here = static_cast<int>(std::ranges::count(hosts, own));
  int partner = rank + here;
  while (here < count && hosts[static_cast<std::size_t>(partner % count)] == own) ++partner;
  return here < count ? partner % count : -1;
}

/// Calls `prepare` for messages that carry `bytes`.
void in_pieces(std::span<std::byte> bytes,
               const std::function<void(std::byte* data, std::int64_t bytes)>& prepare) {
  constexpr std::int64_t kPiece = std::int64_t{64} << 20;
  for (std::int64_t at = 0; at < std::ssize(bytes); at += kPiece)
    prepare(bytes.data() + at, std::min(kPiece, std::ssize(bytes) - at));
}

}  // namespace

std::vector<std::string> memory_hosts(const comm::World& world) {
  return split_list(world.gather_everywhere(fmt::format("{}:{}\n", host_name(),
                                                        printable(memory_directory().string()))),
                    '\n');
}

std::vector<PartPlaces> places_of_parts(const pipeline::PipelinePlan& plan, bool divided,
                                        std::span<const std::string> hosts) {
  const std::int32_t replicas = plan.ranks.replicas;
  std::vector<PartPlaces> all;
  for (std::int32_t replica = 0; replica < (divided ? replicas : 1); ++replica) {
    for (std::int32_t stage = 0; stage < plan.schedule.stages; ++stage) {
      const auto rank_of = [&](std::int32_t r) { return plan.rank_of(r, stage); };
      PartPlaces place{.stage = stage, .replica = replica, .first = rank_of(replica)};
      const std::string& host = hosts[static_cast<std::size_t>(place.first)];
      for (std::int32_t r = 1; !divided && place.second < 0 && r < replicas; ++r)
        if (hosts[static_cast<std::size_t>(rank_of(r))] != host)
          place = {stage, replica, place.first, rank_of(r), r};
      if (place.second < 0) place.second = partner_of(place.first, hosts);
      all.push_back(place);
    }
  }
  return all;
}

// ---- what a restore finds

namespace {

HeldPart held_part(int rank, const fs::path& description, std::string text) {
  HeldPart part{.rank = rank, .file = {}, .text = std::move(text), .manifest = {}};
  part.manifest = io::parse_manifest(part.text, description.string());
  part.file = description.parent_path() / part.manifest.parts.at(0).file;
  return part;
}

}  // namespace

std::vector<HeldPart> parts_in(const fs::path& series, int rank,
                               std::vector<std::string>& complaints) {
  std::vector<HeldPart> held;
  std::error_code error;
  for (fs::recursive_directory_iterator it(series, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().extension() != ".json") continue;
    const std::string trouble = trouble_of([&] {
      HeldPart part = held_part(rank, it->path(), io::read_text(it->path(), io::kMaxManifestBytes));
      if (io::checksum_file(part.file) != part.manifest.parts[0].checksum)
        fail(ErrorKind::Checkpoint, "{}: damaged: its checksum differs", part.file.string());
      held.push_back(std::move(part));
    });
    if (!trouble.empty())
      complaints.push_back(fmt::format("{}: {}; it is left out", host_name(), trouble));
  }
  return held;
}

std::vector<HeldPart> newest_whole(std::span<const HeldPart> held,
                                   std::span<const io::TensorInfo> network, std::int64_t behind,
                                   std::vector<std::string>& complaints) {
  std::map<std::int64_t, std::map<std::string, HeldPart>, std::greater<>> snapshots;
  for (const HeldPart& part : held)
    if (part.manifest.header.iteration > behind)
      snapshots[part.manifest.header.iteration].emplace(part.file.filename(), part);
  for (const auto& [iteration, parts] : snapshots) {
    std::vector<HeldPart> found;
    std::vector<io::TensorInfo> tensors;
    for (const auto& [file, part] : parts) {
      found.push_back(part);
      for (const io::TensorEntry& entry : part.manifest.parts[0].tensors)
        tensors.push_back(entry.info);
    }
    std::ranges::sort(tensors, {}, &io::TensorInfo::name);
    if (std::ranges::equal(tensors, network)) return found;
    complaints.push_back(fmt::format(
        "The snapshot after update {} is not whole: {} of {} tensors are in memory; it is left out",
        iteration, tensors.size(), network.size()));
  }
  return {};
}

namespace {

/// The parts and complaints of all hosts, in the order of the ranks: one rank of each host looks.
/// Collective.
std::vector<HeldPart> gather_parts(const comm::World& world, const std::string& series,
                                   std::vector<std::string>& complaints) {
  const std::vector<std::string> hosts = memory_hosts(world);
  std::vector<std::string> troubles;
  std::string found;  // rank, file and description of each; a complaint has no line break
  const std::string& own = hosts[static_cast<std::size_t>(world.rank())];
  if (std::ranges::find(hosts, own) - hosts.begin() == world.rank()) {
    // Others cannot have written what is found.
    if (const std::string trouble = trouble_of(make_memory_directory); !trouble.empty())
      troubles.push_back(trouble);
    else
      for (const HeldPart& part : parts_in(memory_directory() / series, world.rank(), troubles))
        found += fmt::format("{} {}\n{}", part.rank, part.file.string(), part.text) + '\0';
  }
  for (const std::string& trouble : troubles) found += trouble + '\0';
  std::vector<HeldPart> held;
  for (const std::string& text : split_list(world.gather_everywhere(found), '\0')) {
    const std::size_t end = text.find('\n');
    if (end == std::string::npos) {
      complaints.push_back(text);
      continue;
    }
    const std::size_t blank = text.find(' ');
    held.push_back(held_part(std::stoi(text.substr(0, blank)),
                             text.substr(blank + 1, end - blank - 1), text.substr(end + 1)));
  }
  return held;
}

/// Where std::filesystem fails to copy, it does not say that a disk is full.
void copy_durably(const fs::path& from, const fs::path& to) {
  const auto check = [&](int error) {
    if (error == 0) return;
    io::fail_io(fmt::format("save {}, a snapshot in memory, as", from.string()), to, error);
  };
  const io::UniqueFd in = io::open_file(from, O_RDONLY);
  const io::UniqueFd out = io::open_file(to, O_WRONLY | O_CREAT | O_EXCL);
  std::vector<std::byte> piece(std::size_t{1} << 20);
  std::uint64_t done = 0;
  for (std::size_t n = 0; (n = io::read_some(in.get(), piece, from)) > 0; done += n)
    check(io::write_at(out.get(), std::span(piece).first(n), done));
  check(io::sync_descriptor(out.get()));
}

}  // namespace

std::string take_snapshot(const comm::World& world, const fs::path& run_directory,
                          std::vector<std::string>& complaints) {
  const FailTogether together(world);
  Series series;
  if (world.rank() == 0) series = read_series(run_directory);
  if (!series.trouble.empty())
    complaints.push_back(series.trouble +
                         "; snapshots in memory are left out, and the newest checkpoint is taken");
  series.run = world.broadcast(series.run);
  if (series.run.empty()) return {};
  std::vector<std::string> told_later;
  const io::CheckpointReader newest = agreed_newest(world, run_directory, told_later);
  const std::vector<HeldPart> parts =
      newest_whole(gather_parts(world, world.broadcast(series.name()), complaints),
                   newest.tensors(), newest.header().iteration, complaints);
  std::string told;
  if (!parts.empty()) {
    const io::CheckpointHeader& header = parts[0].manifest.header;
    std::optional<io::CheckpointStaging> staging;
    together.lead([&] { staging.emplace(run_directory / "checkpoints", header); });
    const fs::path place = world.broadcast(staging ? staging->path().string() : "");
    together.run([&] {
      for (const HeldPart& part : parts)
        if (part.rank == world.rank()) copy_durably(part.file, place / part.file.filename());
    });
    together.lead([&] {
      std::vector<std::string> texts(parts.size());
      std::ranges::transform(parts, texts.begin(), &HeldPart::text);
      (void)staging->commit(texts, newest.tensors());
      series.taken = header.iteration;
      keep_series(run_directory, series);
    });
    told = fmt::format("The run goes on from the snapshot after update {} in memory",
                       header.iteration);
  }
  if (trouble_of(make_memory_directory).empty()) remove_series(series.run);
  return told;
}

bool has_snapshots(const fs::path& run_directory) {
  std::error_code ignored;
  return fs::exists(run_directory / kSeriesFile, ignored);
}

std::string removal_of_snapshots(const fs::path& run_directory) {
  const std::string run = read_series(run_directory).run;
  if (run.empty()) return {};
  return fmt::format(R"(sh -c 'd="${{{}:-/dev/shm/millrace-$(id -u)}}"; rm -rf "$d/{}"-*; )"
                     R"(rmdir "$d" 2>/dev/null')",
                     kMemoryVariable, run);
}

std::int64_t last_taken(const fs::path& run_directory) { return read_series(run_directory).taken; }

// ---- while the run trains

PartnerSnapshots::PartnerSnapshots(const comm::World& world, const Session& session,
                                   const run::Run& config)
    : world_(&world),
      session_(&session),
      hosts_(memory_hosts(world)),
      places_(places_of_parts(config.pipeline, config.optimiser.sharded, hosts_)),
      sums_(places_.size(), -1) {
  std::string series;
  FailTogether(world).lead([&] { series = begin_series(config.run_directory); });
  series_ = memory_directory() / world.broadcast(series);
  hold_parts();
  if (std::ranges::any_of(places_, &PartPlaces::is_sent)) prepare_messages();
  require_room();
  if (!works_) return;
  const auto sent = std::ranges::count_if(places_, &PartPlaces::is_sent);
  notice_ = fmt::format(
      "Snapshots in memory: after every {}; {}", counted(config.partner_every, "update"),
      places_[0].second < 0
          ? "there is one host, so they outlive its ranks, and not the host"
          : fmt::format("each part on two hosts, {} of {} sent", sent, places_.size()));
}

/// Memory for the parts that this process has by itself.
void PartnerSnapshots::hold_parts() {
  for (std::size_t part = 0; part < places_.size(); ++part) {
    const PartPlaces& place = places_[part];
    for (pipeline::LocalStage unit : session_->units()) {
      const bool first = place.first == world_->rank() && unit.replica == place.replica;
      const bool again = place.second == world_->rank() && unit.replica == place.other_replica;
      if (unit.stage != place.stage || (!first && !again)) continue;
      unit.replica = place.replica;  // whose tensors it has, too
      StageTensors tensors = session_->tensors().of(unit);
      Snapshot values = tensors.make_snapshot();
      held_bytes_ += std::ssize(values.bytes());
      copies_.push_back({static_cast<int>(part), std::move(tensors), std::move(values), first});
    }
  }
}

/// Memory for the parts that others send, and the messages. Collective.
void PartnerSnapshots::prepare_messages() {
  transport_ = comm::make_transport(*world_, {});
  io::Manifest told;
  for (StageCopy& copy : copies_) {
    const PartPlaces& place = places_[static_cast<std::size_t>(copy.part)];
    if (!place.is_sent()) continue;
    io::PartEntry& entry = told.parts.emplace_back();
    entry = {io::part_name(copy.part), {copy.values.bytes().size(), 0}, {}};
    for (const io::NamedTensor& tensor : copy.values.tensors())
      entry.tensors.push_back({tensor.info, 0});
    in_pieces(copy.values.bytes(), [&](const std::byte* data, std::int64_t bytes) {
      messages_.push_back(transport_->prepare_send(data, bytes, place.second, copy.part));
    });
  }
  int from = 0;
  for (const std::string& text :
       split_list(world_->gather_everywhere(io::to_text(told) + '\0'), '\0')) {
    for (const io::PartEntry& entry : io::parse_manifest(text, "parts of a rank").parts) {
      const int part = std::stoi(entry.file.substr(5));  // part-003.h5
      if (places_[static_cast<std::size_t>(part)].second != world_->rank()) continue;
      std::vector<io::TensorInfo> infos;
      for (const io::TensorEntry& tensor : entry.tensors) infos.push_back(tensor.info);
      const auto received = received_.emplace(part, Snapshot(std::move(infos))).first;
      held_bytes_ += std::ssize(received->second.bytes());
      in_pieces(received->second.bytes(), [&](std::byte* data, std::int64_t bytes) {
        messages_.push_back(transport_->prepare_receive(data, bytes, from, part));
      });
    }
    ++from;
  }
}

/// Collective.
void PartnerSnapshots::require_room() {
  std::vector<std::int64_t> held(hosts_.size(), 0);
  const auto own = static_cast<std::size_t>(world_->rank());
  held[own] = held_bytes_;
  world_->maximum(held);
  std::int64_t need = 0;  // the newest whole one, and one that is being written
  for (std::size_t rank = 0; rank < held.size(); ++rank)
    if (hosts_[rank] == hosts_[own]) need += 2 * held[rank];
  const std::string trouble = trouble_of([&] {
    make_series_directory(series_);
    const auto room = static_cast<std::int64_t>(fs::space(series_).available);
    if (room < need)
      fail(ErrorKind::Io, "{} on {} has {} free, but two snapshots need {}",
           memory_directory().string(), host_name(), human_bytes(room), human_bytes(need));
  });
  if (const auto all = split_list(world_->gather_everywhere(trouble + '\n'), '\n'); !all.empty()) {
    works_ = false;
    forget();
    notice_ = fmt::format("No snapshots are kept in memory: {}", all[0]);
  }
}

void PartnerSnapshots::start_messages() {
  for (const int message : messages_) transport_->start(message);
}

bool PartnerSnapshots::arrived() {
  return std::ranges::all_of(messages_, [&](int message) { return transport_->done(message); });
}

std::string PartnerSnapshots::write(std::span<const StageCopy> copies,
                                    const io::CheckpointHeader& header) {
  return trouble_of([&] {
    std::error_code error;
    std::error_code ignored;  // other ranks of this host remove the same
    for (fs::directory_iterator it(series_, error), end; !error && it != end; it.increment(error))
      if (const fs::path name = it->path().filename();
          name != std::to_string(whole_) && name != std::to_string(header.iteration))
        fs::remove_all(it->path(), ignored);
    for (const StageCopy& copy : copies) write_part(copy.part, copy.values, header);
    for (const auto& [part, values] : received_) write_part(part, values, header);
  });
}

void PartnerSnapshots::write_part(int part, const Snapshot& values,
                                  const io::CheckpointHeader& header) {
  const fs::path directory = series_ / std::to_string(header.iteration);
  make_series_directory(series_);  // if somebody has removed it
  fs::create_directory(directory);
  const std::string text = io::write_checkpoint_part(directory, part, header, values.tensors());
  if (!text.empty())
    io::write_file_atomically((directory / io::part_name(part)).replace_extension("json"), text);
  sums_[static_cast<std::size_t>(part)] = crc32c(values.bytes());
}

std::string PartnerSnapshots::conclude(std::int64_t iteration, const std::string& trouble) {
  // Of each part the greatest checksum and the least, and whether a rank has failed.
  std::vector<std::int64_t> shared(2 * sums_.size() + 1, std::numeric_limits<std::int64_t>::min());
  for (std::size_t part = 0; part < sums_.size(); ++part) {
    if (sums_[part] < 0) continue;
    shared[2 * part] = sums_[part];
    shared[2 * part + 1] = -sums_[part];
  }
  shared.back() = trouble.empty() ? 0 : 1;
  world_->maximum(shared);
  if (shared.back() != 0) {
    works_ = false;
    forget();
    return fmt::format("No more snapshots are kept in memory: {}",
                       split_list(world_->gather_everywhere(trouble + '\n'), '\n').at(0));
  }
  for (std::size_t part = 0; part < sums_.size(); ++part) {
    if (shared[2 * part] == -shared[2 * part + 1]) continue;
    world_->fail_together();
    fail(ErrorKind::Peer,
         "update {}: stage {}: ranks {} and {} hold different weights in their snapshots: a device "
         "or a link between them computes or carries wrong bits",
         iteration, places_[part].stage, places_[part].first, places_[part].second);
  }
  whole_ = iteration;
  return {};
}

void PartnerSnapshots::forget() const {
  std::error_code ignored;
  fs::remove_all(series_, ignored);
  ::rmdir(series_.parent_path().c_str());  // unless something is in it
}

}  // namespace millrace::training
