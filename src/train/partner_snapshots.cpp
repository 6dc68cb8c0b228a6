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
#include <random>
#include <sstream>
#include <system_error>
#include <utility>

#include "core/counted.hpp"
#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "core/json.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "train/agreement.hpp"

namespace millrace::train {
namespace {

namespace fs = std::filesystem;

/// In the run directory: id of the run, number of the start, last_taken().
constexpr const char* kSeriesFile = ".snapshots";
constexpr std::int64_t kPiece = std::int64_t{64} << 20;       // of a message
constexpr std::uint64_t kMostText = std::uint64_t{8} << 20;  // as of a manifest

struct Series {
  std::string run;
  std::int64_t start = 0;
  std::int64_t taken = -1;
  [[nodiscard]] std::string name() const { return fmt::format("{}-{}", run, start); }
};

/// Without a run if it never had snapshots.
Series read_series(const fs::path& run_directory) {
  Series series;
  std::error_code ignored;
  const fs::path file = run_directory / kSeriesFile;
  if (!fs::exists(file, ignored)) return series;
  std::istringstream(io::read_text(file, kMostText)) >> series.run >> series.start >> series.taken;
  if (series.run.find_first_not_of("0123456789abcdef") != std::string::npos) series.run.clear();
  return series;
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

/// The snapshots of this user on this host.
fs::path memory_directory() {
  const char* const named = std::getenv("MILLRACE_MEMORY_DIRECTORY");
  return named != nullptr && *named != '\0'
             ? fs::path(named)
             : fs::path(fmt::format("/dev/shm/millrace-{}", ::geteuid()));
}

/// Everybody may write to /dev/shm. Errors: Io, if others could read or replace the snapshots.
void make_memory_directory() {
  const fs::path directory = memory_directory();
  if (::mkdir(directory.c_str(), S_IRWXU) != 0 && errno != EEXIST)
    io::fail_io("create", directory, errno);
  struct stat found = {};
  if (::lstat(directory.c_str(), &found) != 0) io::fail_io("examine", directory, errno);
  if (S_ISDIR(found.st_mode) && found.st_uid == ::geteuid() &&
      (found.st_mode & (S_IRWXG | S_IRWXO)) == 0)
    return;
  fail(ErrorKind::Io, "{}: is not a directory that this user alone can open: remove it",
       directory.string());
}

/// Removes all series of a run on this host.
void remove_series(const std::string& run) {
  std::error_code error;
  for (fs::directory_iterator it(memory_directory(), error), end; !error && it != end;
       it.increment(error))
    if (std::error_code ignored; it->path().filename().string().starts_with(run + '-'))
      fs::remove_all(it->path(), ignored);
}

/// The host of each rank, as far as its memory goes. Collective.
std::vector<std::string> hosts_of(const comm::World& world) {
  return split_list(world.gather_everywhere(fmt::format("{}:{}\n", comm::host_name(),
                                                        printable(memory_directory().string()))),
                    '\n');
}

/// A rank on the next host; ranks of one host have different partners there. -1: there is none.
int partner_of(int rank, std::span<const std::string> hosts) {
  const auto count = static_cast<int>(hosts.size());
  const auto host = [&](int r) { return hosts[static_cast<std::size_t>(r % count)]; };
  int next = rank + 1;
  while (next < rank + count && host(next) == host(rank)) ++next;
  if (next == rank + count) return -1;
  std::vector<int> there;
  for (int r = 0; r < count; ++r)
    if (host(r) == host(next)) there.push_back(r);
  const auto before = std::count(hosts.begin(), hosts.begin() + rank, host(rank));
  return there[static_cast<std::size_t>(before) % there.size()];
}

/// The message of the error that `f` throws, or "".
std::string trouble_of(const std::function<void()>& f) {
  try {
    f();
    return {};
  } catch (const std::exception&) {
    return printable(current_error().what());
  }
}

}  // namespace

std::vector<PartPlaces> places_of_parts(const pipeline::PipelinePlan& plan, bool divided,
                                        std::span<const std::string> hosts) {
  const pipeline::RankMap& map = plan.ranks;
  std::vector<PartPlaces> all;
  for (std::int32_t replica = 0; replica < (divided ? map.replicas : 1); ++replica) {
    for (std::int32_t stage = 0; stage < plan.schedule.stages; ++stage) {
      const auto rank_of = [&](std::int32_t r) {
        return map.rank_of(r, plan.schedule.device(stage));
      };
      PartPlaces place{.stage = stage, .replica = replica, .first = rank_of(replica)};
      const std::string& host = hosts[static_cast<std::size_t>(place.first)];
      for (std::int32_t r = 1; !divided && place.second < 0 && r < map.replicas; ++r)
        if (hosts[static_cast<std::size_t>(rank_of(r))] != host)
          place = {stage, replica, place.first, rank_of(r), r};
      if (place.second < 0) place.second = partner_of(place.first, hosts);
      all.push_back(place);
    }
  }
  return all;
}

// ---- what a restore finds

std::vector<HeldPart> parts_in(const fs::path& series, int rank,
                               std::vector<std::string>& complaints) {
  std::vector<HeldPart> held;
  std::error_code error;
  for (fs::recursive_directory_iterator it(series, error), end; !error && it != end;
       it.increment(error)) {
    const fs::path& path = it->path();
    if (path.extension() != ".json") continue;
    const std::string trouble = trouble_of([&] {
      HeldPart part{.rank = rank, .file = {}, .text = io::read_text(path, kMostText), .reads = {}};
      part.reads = io::parse_manifest(part.text, path.string());
      const io::PartEntry& entry = part.reads.parts.at(0);
      part.file = path.parent_path() / entry.file;
      if (io::checksum_file(part.file) != entry.checksum)
        fail(ErrorKind::Checkpoint, "{}: damaged: its checksum differs", part.file.string());
      held.push_back(std::move(part));
    });
    if (!trouble.empty()) complaints.push_back(trouble + "; it is left out");
  }
  return held;
}

std::vector<HeldPart> newest_whole(std::span<const HeldPart> held,
                                   std::span<const io::TensorInfo> network, std::int64_t behind,
                                   std::vector<std::string>& complaints) {
  std::map<std::int64_t, std::map<std::string, const HeldPart*>, std::greater<>> snapshots;
  for (const HeldPart& part : held)
    if (part.reads.header.iteration > behind)
      snapshots[part.reads.header.iteration].emplace(part.reads.parts[0].file, &part);
  for (const auto& [iteration, parts] : snapshots) {
    std::vector<HeldPart> found;
    std::vector<io::TensorInfo> tensors;
    for (const auto& [file, part] : parts) {
      for (const io::TensorEntry& entry : part->reads.parts[0].tensors)
        tensors.push_back(entry.info);
      found.push_back(*part);
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

/// What the hosts hold, as rank 0 learns it: lines of complaints, or file and description of a
/// part. Collective.
std::vector<HeldPart> gather_parts(const comm::World& world, const std::string& series,
                                   std::vector<std::string>& complaints) {
  const std::vector<std::string> hosts = hosts_of(world);
  const auto own = static_cast<std::size_t>(world.rank());
  std::string found;
  std::vector<std::string> troubles;
  if (std::find(hosts.begin(), hosts.end(), hosts[own]) == hosts.begin() + world.rank()) {
    if (const std::string trouble = trouble_of(make_memory_directory); !trouble.empty())
      troubles.push_back(trouble);
    else
      for (const HeldPart& part : parts_in(memory_directory() / series, world.rank(), troubles))
        found += part.file.string() + '\n' + part.text + '\0';
    for (const std::string& trouble : troubles) found += trouble + '\0';
  }
  std::vector<HeldPart> held;
  int rank = 0;
  for (const std::string& texts : world.gather(found)) {
    for (const std::string& text : split_list(texts, '\0')) {
      const std::size_t end = text.find('\n');
      if (end == std::string::npos) {
        complaints.push_back(fmt::format("{}: {}", hosts[static_cast<std::size_t>(rank)], text));
        continue;
      }
      std::string description = text.substr(end + 1);
      io::Manifest reads = io::parse_manifest(description, "description of a part");
      held.push_back({rank, text.substr(0, end), std::move(description), std::move(reads)});
    }
    ++rank;
  }
  return held;
}

void copy_durably(const fs::path& from, const fs::path& to) {
  fs::copy_file(from, to);
  const io::UniqueFd file = io::open_file(to, O_RDONLY);
  if (const int error = io::sync_descriptor(file.get()); error != 0) io::fail_io("sync", to, error);
}

/// Makes a checkpoint of `parts`, which rank 0 knows: each holder copies its own. Returns why that
/// failed, or "". Collective.
std::string make_checkpoint(const comm::World& world, const fs::path& run_directory,
                            std::span<const HeldPart> parts,
                            std::span<const io::TensorInfo> network) {
  std::optional<io::CheckpointStaging> staging;
  Json orders = Json::list();
  std::string trouble = trouble_of([&] {
    if (parts.empty()) return;
    staging.emplace(run_directory / "checkpoints", parts[0].reads.header);
    for (const HeldPart& part : parts)
      orders.push_back(Json::object({{"rank", part.rank},
                                     {"from", part.file.string()},
                                     {"to", (staging->path() / part.file.filename()).string()}}));
  });
  const Json all = Json::parse(world.broadcast(orders.dump(-1, Json::NotUtf8::Replaced)));
  const std::string copying = trouble_of([&] {
    for (const Json& order : all.items())
      if (order.at("rank").as_int64() == world.rank())
        copy_durably(order.at("from").text(), order.at("to").text());
  });
  const auto troubles = split_list(world.gather_everywhere(copying + '\n'), '\n');
  if (world.rank() == 0 && trouble.empty())
    trouble = !troubles.empty() ? troubles[0] : trouble_of([&] {
      std::vector<std::string> texts;
      for (const HeldPart& part : parts) texts.push_back(part.text);
      (void)staging->commit(texts, network);
    });
  return world.broadcast(trouble);
}

}  // namespace

std::string take_snapshot(const comm::World& world, const fs::path& run_directory,
                          std::vector<std::string>& complaints) {
  Series series;
  FailTogether(world).lead([&] { series = read_series(run_directory); });
  const std::string run = world.broadcast(series.run);
  if (run.empty()) return {};
  const std::vector<HeldPart> held =
      gather_parts(world, world.broadcast(series.name()), complaints);
  std::vector<io::TensorInfo> network;
  std::vector<HeldPart> parts;
  if (world.rank() == 0) {
    // Without a sound checkpoint the restore says so.
    (void)trouble_of([&] {
      std::vector<std::string> told_later;
      const io::CheckpointReader newest = io::open_newest(run_directory, told_later);
      network = newest.tensors();
      parts = newest_whole(held, network, newest.header().iteration, complaints);
    });
  }
  std::string told;
  if (!parts.empty())
    told = fmt::format("The run goes on from the snapshot after update {} in memory",
                       parts[0].reads.header.iteration);
  told = world.broadcast(told);
  if (!told.empty()) {
    const std::string trouble = make_checkpoint(world, run_directory, parts, network);
    if (!trouble.empty()) {
      complaints.push_back(fmt::format("The snapshots in memory are left out: {}", trouble));
      told.clear();
    } else if (world.rank() == 0) {
      series.taken = parts[0].reads.header.iteration;
      keep_series(run_directory, series);
    }
  }
  world.barrier();  // everybody has read what is removed now
  remove_series(run);
  return told;
}

std::int64_t last_taken(const fs::path& run_directory) { return read_series(run_directory).taken; }

// ---- while the run trains

PartnerSnapshots::PartnerSnapshots(const comm::World& world, const Session& session,
                                   const run::Run& config)
    : world_(&world),
      session_(&session),
      hosts_(hosts_of(world)),
      places_(places_of_parts(config.pipeline, config.optimiser.sharded, hosts_)),
      sums_(places_.size(), -1) {
  std::string series;
  FailTogether(world).lead([&] { series = begin_series(config.run_directory); });
  series_ = memory_directory() / world.broadcast(series);
  hold_parts();
  if (std::ranges::any_of(places_, &PartPlaces::is_sent)) prepare_messages();
  require_room();
  if (works_) notice_ = describe(config.partner_every);
}

/// Memory for the parts that this process has by itself.
void PartnerSnapshots::hold_parts() {
  for (std::size_t part = 0; part < places_.size(); ++part) {
    const PartPlaces& place = places_[part];
    const bool first = place.first == world_->rank();
    const bool again = place.second == world_->rank() && !place.is_sent();
    if (!first && !again) continue;
    for (pipeline::LocalStage unit : session_->units()) {
      if (unit.stage != place.stage ||
          unit.replica != (first ? place.replica : place.other_replica))
        continue;
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
  const auto in_pieces = [](std::span<std::byte> bytes, const auto& prepare) {
    for (std::int64_t at = 0; at < std::ssize(bytes); at += kPiece)
      prepare(bytes.data() + at, std::min(kPiece, std::ssize(bytes) - at));
  };
  io::Manifest told;
  for (StageCopy& copy : copies_) {
    const PartPlaces& place = places_[static_cast<std::size_t>(copy.part)];
    if (!place.is_sent()) continue;
    io::PartEntry entry{io::part_name(copy.part), {copy.values.bytes().size(), 0}, {}};
    for (const io::NamedTensor& tensor : copy.values.tensors())
      entry.tensors.push_back({tensor.info, 0});
    told.parts.push_back(std::move(entry));
    in_pieces(copy.values.bytes(), [&](const std::byte* data, std::int64_t bytes) {
      messages_.push_back(transport_->prepare_send(data, bytes, place.second, copy.part));
    });
  }
  const auto texts = split_list(world_->gather_everywhere(io::to_text(told) + '\0'), '\0');
  for (int part = 0; part < static_cast<int>(places_.size()); ++part) {
    const PartPlaces& place = places_[static_cast<std::size_t>(part)];
    if (!place.is_sent() || place.second != world_->rank()) continue;
    std::vector<io::TensorInfo> infos;
    for (const io::PartEntry& entry :
         io::parse_manifest(texts[static_cast<std::size_t>(place.first)], "parts of a rank").parts)
      for (const io::TensorEntry& tensor : entry.tensors)
        if (entry.file == io::part_name(part)) infos.push_back(tensor.info);
    Received& received = received_.emplace_back(Received{part, Snapshot(std::move(infos))});
    held_bytes_ += std::ssize(received.values.bytes());
    in_pieces(received.values.bytes(), [&](std::byte* data, std::int64_t bytes) {
      messages_.push_back(transport_->prepare_receive(data, bytes, place.first, part));
    });
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
    make_memory_directory();
    const auto room = static_cast<std::int64_t>(fs::space(memory_directory()).available);
    if (room < need)
      fail(ErrorKind::Io, "{} on {} has {} free, but two snapshots need {}",
           memory_directory().string(), comm::host_name(), human_bytes(room), human_bytes(need));
  });
  if (const auto all = split_list(world_->gather_everywhere(trouble + '\n'), '\n'); !all.empty()) {
    works_ = false;
    notice_ = fmt::format("No snapshots are kept in memory: {}", all[0]);
  }
}

std::string PartnerSnapshots::describe(std::int64_t every) const {
  const std::string begin = fmt::format("Snapshots in memory: after every {}",
                                        every == 1 ? "update" : counted(every, "update"));
  if (places_[0].second < 0)
    return begin + "; there is one host, so they outlive its ranks, and not the host";
  return fmt::format("{}, each part on two hosts; {} of {} parts are sent", begin,
                     std::ranges::count_if(places_, &PartPlaces::is_sent), places_.size());
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
    std::error_code error;  // ranks of this host remove the same
    for (fs::directory_iterator it(series_, error), end; !error && it != end; it.increment(error))
      if (const fs::path name = it->path().filename();
          name != std::to_string(whole_) && name != std::to_string(header.iteration))
        if (std::error_code ignored; true) fs::remove_all(it->path(), ignored);
    for (const StageCopy& copy : copies) write_part(copy.part, copy.values, header);
  });
}

std::string PartnerSnapshots::write_received(const io::CheckpointHeader& header) {
  return trouble_of([&] {
    for (const Received& part : received_) write_part(part.part, part.values, header);
  });
}

void PartnerSnapshots::write_part(int part, const Snapshot& values,
                                  const io::CheckpointHeader& header) {
  const fs::path directory = series_ / std::to_string(header.iteration);
  fs::create_directories(directory);
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
}

}  // namespace millrace::train
