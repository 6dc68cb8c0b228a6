// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoints.hpp"

#include <fmt/format.h>

#include <system_error>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "io/atomic_file.hpp"
#include "run/complete.hpp"
#include "train/agreement.hpp"
#include "train/averaging.hpp"
#include "train/cadence.hpp"
#include "train/divergence.hpp"
#include "train/kernel_rules.hpp"
#include "train/network_facts.hpp"
#include "train/setup.hpp"

namespace millrace::training {
namespace {

constexpr const char* kWriting = "is writing a checkpoint";

}  // namespace

Checkpoints::Checkpoints(const run::Run& config, const io::Dataset& dataset,
                         const comm::World& world, const StandInLimit& bad_images,
                         Reporter& reporter, Watchdog& watchdog)
    : config_(config),
      dataset_(dataset),
      world_(world),
      bad_images_(bad_images),
      reporter_(reporter),
      watchdog_(watchdog),
      place_(io::file_identity(config.run_directory)),
      lock_(world.rank() == 0 ? io::lock_text(config.run_directory) : ""),
      data_(config.run_directory.empty() ? "" : io::describe(dataset)) {}

std::filesystem::path Checkpoints::directory() const {
  return config_.run_directory / "checkpoints";
}

void Checkpoints::follow(const Session& session) {
  session_ = &session;
  if (!config_.run_directory.empty()) writer_.emplace(world_, session, directory(), hooks());
}

void Checkpoints::reserve() {
  if (!writer_ || !config_.saves_on_the_way()) return;
  if (config_.partner_every > 0) {
    writer_->release();  // the copies of a checkpoint at the start, which take as much
    partners_.emplace(world_, *session_, config_);
    if (partners_->works())
      reporter_.line(partners_->notice());
    else
      reporter_.important(partners_->notice());
  }
  writer_->reserve(partners_ ? &*partners_ : nullptr);
}

/// What the writing threads call.
CheckpointWriter::Hooks Checkpoints::hooks() {
  return {.before =
              [this](const Snapshot& snapshot, const io::CheckpointHeader& header) {
                if (const std::string name = first_not_finite(snapshot); !name.empty())
                  fail_diverged(config_, fmt::format("{} is no longer finite", name),
                                header.iteration);
                reporter_.sync();  // the checkpoint relies on these rows
              },
          .saved = [this](const std::filesystem::path& path) { reporter_.saved(path); },
          .waiting =
              [this](bool own) {
                reporter_.show_saving();
                watchdog_.answered(own ? kWriting : "has written its part of a checkpoint");
              },
          .gave_up = [this](const std::string& why) { reporter_.important(why); }};
}

io::CheckpointHeader Checkpoints::header_of(std::int64_t done) const {
  io::CheckpointHeader header;
  header.iteration = done;
  header.epoch = config_.epoch_after(done);
  header.next_position = done * config_.total_batch();
  header.model = session_->graph().name;
  header.config_toml = run::to_toml(config_);
  header.network = to_json(facts_of(config_));
  header.environment = environment_of(config_);
  header.data = data_;
  header.log_state = reporter_.log_state();
  header.scaling_state = to_json(session_->scaling());
  header.skipped_in_row = session_->scaling().skipped_in_row;
  if (done > 0 && epoch_of(config_, done - 1) == epoch_of(config_, done))
    header.stand_ins = bad_images_.in_epoch();
  return header;
}

void Checkpoints::save(std::int64_t done) {
  if (!writer_) return;
  (void)reporter_.note_bad_images(dataset_, "training");
  compare_replicas(done);
  const Watchdog::Disk disk(watchdog_, kWriting);
  FailTogether(world_).lead([this] {
    require_place();
    keep_configuration();
  });
  restart_clock();
  reporter_.saving(fmt::format("ckpt-{}", done));
  write([&] { writer_->begin(header_of(done), retention()); });
}

io::Retention Checkpoints::retention() const {
  return {.keep = config_.max_checkpoints_to_keep,
          .validated = reporter_.accuracies(),
          .keep_best = config_.keep_best};
}

void Checkpoints::retire() const { io::retire_checkpoints(directory(), retention()); }

bool Checkpoints::keep_in_memory(std::int64_t done) {
  if (!partners_ || !partners_->works()) return true;
  if (writer_->is_saving()) return false;
  const Watchdog::Disk disk(watchdog_, kWriting);
  io::CheckpointHeader header = header_of(done);
  header.log_state = world_.broadcast(std::move(header.log_state));  // whoever is lost
  reporter_.saving(fmt::format("a snapshot of update {}", done));
  writer_->begin_snapshot(std::move(header));
  return true;
}

void Checkpoints::save_ema(std::int64_t done, Session& session) {
  if (!writer_) return;
  release();  // the other copy of the tensors
  const std::string name = ema_name(config_);
  const std::filesystem::path place = place_of_average(config_.run_directory, name);
  std::optional<io::RunLock> lock;
  FailTogether(world_).lead([&] {
    std::error_code error;
    std::filesystem::create_directories(place, error);
    if (error) io::fail_io("make", place, error.value());
    lock.emplace(place);
    io::write_file_atomically(place / "config.toml", run::to_toml(config_));
  });
  const Watchdog::Disk disk(watchdog_, kWriting);
  CheckpointWriter writer(world_, session, place / "checkpoints", hooks());
  io::CheckpointHeader header = header_of(done);
  header.environment = fmt::format("{} of the weights; {}", name, header.environment);
  session.exchange_averages();
  try {
    write([&] { writer.begin(std::move(header), {.keep = 1}); });
  } catch (...) {
    session.exchange_averages();
    throw;
  }
  session.exchange_averages();
  write([&] { writer.settle(); });
}

void Checkpoints::settle() {
  if (!writer_) return;
  const Watchdog::Disk disk(watchdog_, kWriting);
  write([&] { writer_->settle(); });
}

void Checkpoints::release() {
  settle();
  if (partners_) partners_->forget();
  if (writer_) writer_->release();
  partners_.reset();
}

void Checkpoints::advance(std::int64_t slowest) {
  if (writer_) write([&] { writer_->advance(slowest); });
}

bool Checkpoints::is_due() const {
  const double minutes = config_.checkpoint_minutes;
  return minutes > 0.0 && since_save_.seconds() >= 60.0 * minutes;
}

void Checkpoints::save_if_failing(std::int64_t done, const std::function<void()>& task) {
  try {
    task();
  } catch (const Error& error) {
    const bool alike = world_.size() == 1 || world_.failing_together();
    if (!alike || error.kind() == ErrorKind::Numeric || config_.run_directory.empty()) throw;
    save(done);
    settle();
    throw Error(error.kind(), fmt::format("{} (update {}, which is saved)", error.what(), done));
  }
}

/// A directory that was removed or replaced during the run must not become a partial one again, and
/// one that another host has taken over is left to it.
void Checkpoints::require_place() const {
  if (io::file_identity(config_.run_directory) == place_)
    return io::require_lock(config_.run_directory, lock_);
  fail(ErrorKind::Io, "{}: was removed or replaced during the run: nothing more is written to it",
       config_.run_directory.string());
}

/// Runs a part of what writes a checkpoint. What fails because the directory is gone says so.
void Checkpoints::write(const std::function<void()>& part) const {
  try {
    part();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::Io) require_place();
    throw;
  }
}

/// Checkpoints contain the configuration too, but people look for it here.
void Checkpoints::keep_configuration() const {
  const std::filesystem::path file = config_.run_directory / "config.toml";
  if (std::filesystem::exists(file)) return;
  io::write_file_atomically(file, config_file_text(config_));
  reporter_.important(
      fmt::format("{}: was removed during the run and has been written again", file.string()));
}

void Checkpoints::compare_replicas(std::int64_t done) {
  if (config_.pipeline.ranks.replicas == 1 || done == compared_) return;
  compared_ = done;
  try {
    session_->compare_replicas();
  } catch (const Error& error) {
    world_.fail_together();  // all ranks know the sums
    settle();
    fail(error.kind(), "update {}: {}{}", done, error.what(), last_good());
  }
}

/// On rank 0, a clause about the newest checkpoint that verifies.
std::string Checkpoints::last_good() const {
  if (world_.rank() != 0 || !writer_) return {};
  try {
    std::vector<std::string> damaged;
    return fmt::format("; the last checkpoint, {}, is good: restore it on other hardware",
                       io::open_newest(directory(), damaged).path().string());
  } catch (const Error&) {
    return "; there is no good checkpoint";
  }
}

void Checkpoints::require_same_data(const io::CheckpointReader& checkpoint) const {
  const io::CheckpointHeader& header = checkpoint.header();
  if (!header.data.empty() && header.data != data_)
    fail(ErrorKind::Data,
         "{}: was trained on {}, but the data set found now is {}: give the data set of the run "
         "with `data-dir`",
         checkpoint.path().string(), header.data, data_);
  if (header.epoch == config_.epoch_after(header.iteration)) return;
  fail(ErrorKind::Data,
       "{}: was written at epoch {:.6g} of its data set, but with the {} training images found now "
       "it would be epoch {:.6g}: give the data set of the run with `data-dir`",
       checkpoint.path().string(), header.epoch, config_.data.train_size,
       config_.epoch_after(header.iteration));
}

void Checkpoints::report_costs() const {
  if (!writer_ || !config_.saves_on_the_way()) return;
  for (const std::string& text : {describe(writer_->costs(), process_seconds()),
                                  describe(writer_->snapshot_costs(), 0.0, "Snapshots in memory")})
    if (!text.empty()) reporter_.line(text);
}

}  // namespace millrace::training
