// SPDX-License-Identifier: Apache-2.0
#include "train/trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <tuple>

#include "core/error.hpp"
#include "io/atomic_file.hpp"
#include "pipeline/schedule/render.hpp"
#include "train/agreement.hpp"

namespace millrace::training {
namespace {

using pipeline::Action;
using pipeline::ActionKind;
using pipeline::Doing;
using pipeline::KernelPiece;
using pipeline::Piece;

double microseconds(std::int64_t nanoseconds) { return 1e-3 * static_cast<double>(nanoseconds); }

std::string_view category(ActionKind kind, Doing doing) {
  if (doing == Doing::Add) return "reduce";
  if (!is_work(doing)) return "wait";
  if (kind == ActionKind::Forward) return "forward";
  if (pipeline::is_compute(kind)) return "backward";
  if (pipeline::is_send(kind)) return "send";
  if (kind == ActionKind::Update) return "update";
  return kind == ActionKind::Reduce ? "reduce" : "receive";
}

/// Identical at both ends of a message.
std::string flow_id(std::int64_t step, std::int32_t replica, const Action& send) {
  return fmt::format("{}.{}.{}", step, replica, to_string(send));
}

}  // namespace

/// Makes the text of a process' trace events, and passes it on in pieces that end with an event.
class TraceWriter {
 public:
  using Pass = std::function<void(const std::string&)>;

  TraceWriter(std::int64_t clock_offset, Pass pass)
      : offset_(clock_offset), pass_(std::move(pass)) {}

  void name_device(std::int32_t pid, std::int32_t replica, std::int32_t device, std::int32_t rank) {
    if (!named_.insert(pid).second) return;
    const std::string name = fmt::format("replica {} device {} (rank {})", replica, device, rank);
    add(R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":"{}"}}}})", pid, name);
  }

  void slice(std::int32_t pid, std::int64_t step, const Action& action, const Piece& piece) {
    const std::string text = to_string(action);
    const bool works = piece.doing == Doing::Work;
    add(R"({{"ph":"X","name":"{}","cat":"{}","pid":{},"tid":0,"ts":{:.3f},"dur":{:.3f},"args":)"
        R"({{"step":{},"action":"{}"}}}})",
        works ? text : name_of(piece.doing), category(action.kind, piece.doing), pid,
        microseconds(piece.begin + offset_), microseconds(piece.end - piece.begin), step, text);
  }

  void kernel(std::int32_t pid, std::int64_t step, const Action& action, const std::string& name,
              const KernelPiece& piece) {
    if (kernels_named_.insert(pid).second)
      for (const auto& [tid, track] : {std::pair{0, "actions"}, {1, "kernels"}})
        add(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}"}}}})", pid,
            tid, track);
    const std::string text = to_string(action);
    add(R"({{"ph":"X","name":"{}","cat":"kernel","pid":{},"tid":1,"ts":{:.3f},"dur":{:.3f},)"
        R"("args":{{"step":{},"action":"{}"}}}})",
        name, pid, microseconds(piece.begin + offset_), microseconds(piece.end - piece.begin), step,
        text);
  }

  /// A weight update of a device as a whole, with the time in which it works.
  void update(std::int32_t pid, std::int64_t step, const Piece& whole, std::int64_t work) {
    add(R"({{"ph":"X","name":"update {}","cat":"step","pid":{},"tid":0,"ts":{:.3f},"dur":{:.3f},)"
        R"("args":{{"step":{},"work_us":{:.3f}}}}})",
        step, pid, microseconds(whole.begin + offset_), microseconds(whole.end - whole.begin), step,
        microseconds(work));
  }

  void flow(char phase, std::int32_t pid, const std::string& id, std::int64_t when) {
    add(R"({{"ph":"{}","bp":"e","name":"message","cat":"message","id":"{}","pid":{},"tid":0,)"
        R"("ts":{:.3f}}})",
        phase, id, pid, microseconds(when + offset_));
  }

  /// The events since the last piece.
  [[nodiscard]] const std::string& rest() const { return text_; }

 private:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    if (!text_.empty()) text_ += ",\n";
    text_ += fmt::vformat(format, fmt::make_format_args(args...));
    if (text_.size() < kTracePiece) return;
    pass_(text_);
    text_.clear();
  }

  std::int64_t offset_;
  Pass pass_;
  std::set<std::int32_t> named_;
  std::set<std::int32_t> kernels_named_;
  std::string text_;
};

std::pair<std::int64_t, std::int64_t> trace_window(const run::Run& config, std::int64_t first) {
  const bool asked = config.trace_first > 0;
  const std::int64_t begin = asked ? config.trace_first : first + 1;
  const std::int64_t end = asked ? config.trace_last : first + config.trace_last;
  return {begin, std::max(begin, std::min(end, config.iterations))};
}

namespace {

/// A trace file that the ranks write one after the other, a piece at a time, so that no process
/// holds much of its text. The old file stays until the new one is complete. Functions are
/// collective.
class SharedTraceFile {
 public:
  SharedTraceFile(const comm::World& world, const std::filesystem::path& file) : world_(&world) {
    FailTogether(world).lead([&] { file_.emplace(file); });
    append("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
  }

  /// Appends a piece of rank `from`; the other ranks pass nothing. Returns whether that rank says
  /// that there are more.
  bool pass(int from, const std::string& events, bool more) {
    const std::vector<std::string> all = world_->gather(events);
    if (!all.empty() && !all[static_cast<std::size_t>(from)].empty()) {
      if (any_) append(",\n");
      append(all[static_cast<std::size_t>(from)]);
      any_ = true;
    }
    return world_->maximum(more ? 1 : 0) != 0;
  }

  void commit() {
    append("\n]}\n");
    FailTogether(*world_).lead([&] {
      if (error_) std::rethrow_exception(error_);
      file_->commit();
    });
  }

 private:
  /// An error waits for commit(), because the other ranks go on passing pieces.
  void append(std::string_view text) {
    if (!file_ || error_) return;
    try {
      file_->write(std::as_bytes(std::span(text)), size_);
      size_ += text.size();
    } catch (const Error&) {
      error_ = std::current_exception();
    }
  }

  const comm::World* world_;
  std::optional<io::StagedFile> file_;  ///< on rank 0
  std::uint64_t size_ = 0;
  bool any_ = false;
  std::exception_ptr error_;
};

/// Number of a device among those of all replicas.
std::int32_t number_of(const pipeline::PipelinePlan& plan, const pipeline::LocalEntry& entry) {
  return plan.place_of(entry.replica, entry.action.stage);
}

/// Pieces that are hardly longer than reading the clock would only make files large.
bool is_short(std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kShortest = 1000;
  return end - begin < kShortest;
}

}  // namespace

Trace::Trace(const pipeline::Executor& executor, run::TraceDetail detail, std::int64_t first,
             std::int64_t last)
    : executor_(&executor), detail_(detail), first_(first), last_(last) {
  const auto steps = static_cast<std::size_t>(last - first + 1);
  pieces_.reserve(steps * executor.recording().most_pieces());
  kernels_.reserve(steps * executor.recording().most_kernels());
  steps_.reserve(steps);
}

void Trace::add(std::int64_t step) {
  if (step < first_ || step > last_) return;
  const pipeline::Recording& recording = executor_->recording();
  const std::size_t before = pieces_.size();
  const std::size_t kernels_before = kernels_.size();
  pieces_.insert(pieces_.end(), recording.pieces().begin(), recording.pieces().end());
  kernels_.insert(kernels_.end(), recording.kernels().begin(), recording.kernels().end());
  steps_.push_back({step, before, pieces_.size(), kernels_before, kernels_.size()});
}

void Trace::write_updates(TraceWriter& writer, const Step& step) const {
  std::map<std::int32_t, std::pair<Piece, std::int64_t>> devices;  // whole update, and its work
  for (const Piece& piece : pieces_of(step)) {
    const pipeline::LocalEntry& entry = executor_->recording().entries()[piece.entry];
    auto& [whole, work] =
        devices.try_emplace(number_of(executor_->plan(), entry), piece, 0).first->second;
    whole.end = std::max(whole.end, piece.end);
    if (is_work(piece.doing)) work += piece.end - piece.begin;
  }
  for (const auto& [pid, times] : devices)
    writer.update(pid, step.number, times.first, times.second);
}

void Trace::write_kernels(TraceWriter& writer, const Step& step) const {
  for (const KernelPiece& piece : kernels_of(step)) {
    if (is_short(piece.begin, piece.end)) continue;
    const pipeline::LocalEntry& entry = executor_->recording().entries()[piece.entry];
    writer.kernel(number_of(executor_->plan(), entry), step.number, entry.action,
                  executor_->name_of(piece), piece);
  }
}

void Trace::write_actions(TraceWriter& writer, const Step& step) const {
  // Posted receives whose reader has not started yet.
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t, bool>, std::vector<Action>> posted;
  std::int64_t received = -1;  // entry whose messages have arrived
  for (const Piece& piece : pieces_of(step)) {
    const pipeline::LocalEntry& local = executor_->recording().entries()[piece.entry];
    const auto& [replica, entry, action, unit] = local;
    const bool message = is_send(action.kind) || is_receive(action.kind);
    if (piece.doing == Doing::AwaitMessage) received = piece.entry;
    if (!message && is_short(piece.begin, piece.end)) continue;
    const std::int32_t pid = number_of(executor_->plan(), local);
    writer.slice(pid, step.number, action, piece);
    if (piece.doing != Doing::Work) continue;
    const auto key = [&action = action, owner = replica](bool gradient) {
      return std::tuple{owner, action.stage, action.micro_batch, gradient};
    };
    if (is_send(action.kind))
      writer.flow('s', pid, flow_id(step.number, replica, action), piece.begin);
    if (is_receive(action.kind))
      posted[key(action.kind == ActionKind::ReceiveGradient)].push_back(counterpart(action));
    if (!is_compute(action.kind) || received != piece.entry) continue;
    for (const Action& send : posted[key(action.kind != ActionKind::Forward)])
      writer.flow('f', pid, flow_id(step.number, replica, send), piece.begin);
    received = -1;
  }
}

void Trace::write_events(TraceWriter& writer) const {
  const pipeline::PipelinePlan& plan = executor_->plan();
  if (steps_.empty()) return;
  for (const pipeline::LocalEntry& entry : executor_->recording().entries())
    writer.name_device(number_of(plan, entry), entry.replica, entry.entry.device,
                       plan.rank_of(entry.replica, entry.action.stage));
  for (const Step& step : steps_) {
    if (detail_ == run::TraceDetail::Updates) {
      write_updates(writer, step);
      continue;
    }
    write_actions(writer, step);
    write_kernels(writer, step);
  }
}

/// The work of replica 0 in the last recorded step, or with a joint order of all ranks, in seconds
/// since the step began.
pipeline::TimeLine Trace::last_step(const comm::World& world) const {
  const pipeline::PipelinePlan& plan = executor_->plan();
  const std::int64_t offset = world.clock_offset();
  std::string own;
  for (const Piece& piece : steps_.empty() ? std::span<const Piece>() : pieces_of(steps_.back())) {
    const auto& [replica, entry, action, unit] = executor_->recording().entries()[piece.entry];
    if (replica != 0 && !plan.is_joint()) continue;
    const bool shown =
        is_work(piece.doing) && (is_compute(action.kind) || action.kind == ActionKind::Update);
    own += fmt::format("{} {} {} {} {} {} {}\n", plan.place_of(replica, action.stage),
                       static_cast<int>(action.kind), plan.unit(replica, action.stage),
                       action.micro_batch, piece.begin + offset, piece.end + offset, shown ? 1 : 0);
  }
  std::string all;
  for (const std::string& text : world.gather(own)) all += text;
  pipeline::TimeLine line;
  line.devices.resize(plan.is_joint() ? plan.joint.lists.size() : plan.schedule.lists.size());
  line.busy.resize(line.devices.size());
  std::istringstream words(all);
  struct Span {
    std::size_t device = 0;
    Action action;
    std::int64_t begin = 0;
    std::int64_t end = 0;
    int shown = 0;
  };
  std::vector<Span> spans;
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  int kind = 0;
  for (Span s; words >> s.device >> kind >> s.action.stage >> s.action.micro_batch >> s.begin >>
               s.end >> s.shown;) {
    s.action.kind = static_cast<ActionKind>(kind);
    spans.push_back(s);
    first = std::min(first, s.begin);
  }
  for (const Span& s : spans) {
    const pipeline::Interval interval{s.action, 1e-9 * static_cast<double>(s.begin - first),
                                      1e-9 * static_cast<double>(s.end - first)};
    line.makespan = std::max(line.makespan, interval.end);
    if (s.shown == 0) continue;
    line.devices[s.device].push_back(interval);
    line.busy[s.device] += interval.end - interval.begin;
  }
  return line;
}

void Trace::draw(const comm::World& world, const PipelineReport& report,
                 const std::filesystem::path& file) const {
  const pipeline::TimeLine measured = last_step(world);
  if (world.rank() != 0) return;
  const pipeline::TimeLine simulated =
      simulate(executor_->plan(), executor_->links(), report.costs);
  const std::array<pipeline::SvgPanel, 2> panels = {
      pipeline::SvgPanel{fmt::format("measured: {:.2f} ms, bubble {:.1f} %",
                                     1e3 * measured.makespan, 100.0 * measured.bubble()),
                         &measured},
      pipeline::SvgPanel{fmt::format("simulated with the mean costs of the run: {:.2f} ms, bubble "
                                     "{:.1f} %",
                                     1e3 * simulated.makespan, 100.0 * simulated.bubble()),
                         &simulated}};
  io::write_file_atomically(file, pipeline::to_svg(panels));
}

void Trace::write(const comm::World& world, const std::filesystem::path& file) const {
  const std::int64_t offset = world.clock_offset();
  SharedTraceFile shared(world, file);
  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank != world.rank()) {
      while (shared.pass(rank, "", false)) continue;
      continue;
    }
    TraceWriter writer(offset,
                       [&](const std::string& events) { (void)shared.pass(rank, events, true); });
    write_events(writer);
    (void)shared.pass(rank, writer.rest(), false);
  }
  shared.commit();
}

}  // namespace millrace::training
