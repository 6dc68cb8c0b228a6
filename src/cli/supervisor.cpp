// SPDX-License-Identifier: Apache-2.0
#include "cli/supervisor.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cli/command_line.hpp"
#include "cli/launch.hpp"
#include "cli/launcher_end.hpp"
#include "cli/launcher_process.hpp"
#include "cli/run_hosts.hpp"
#include "cli/this_machine.hpp"
#include "core/clock.hpp"
#include "core/counted.hpp"
#include "core/error.hpp"
#include "core/json.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"
#include "millrace_version.hpp"
#include "partition/choose.hpp"
#include "partition/layout.hpp"
#include "partition/spread.hpp"
#include "train/line_file.hpp"
#include "train/memory.hpp"
#include "train/partner_snapshots.hpp"
#include "train/run_name.hpp"
#include "train/setup.hpp"
#include "train/slow_devices.hpp"

namespace millrace::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// "a, b".
std::string listed(const std::set<std::string>& names) {
  return join(std::vector<std::string>(names.begin(), names.end()), ", ");
}
/// "a answers", "a, b answer".
std::string they(const std::set<std::string>& names, std::string_view one, std::string_view more) {
  return fmt::format("{} {}", listed(names), names.size() == 1 ? one : more);
}

/// How one launch went.
struct Attempt {
  int code = 0;
  bool for_host = false;       ///< they were asked to, as a host is back
  bool for_speed = false;      ///< they were asked to, as a host is slow
  bool trained = false;        ///< made an update
  std::set<std::string> lost;  ///< hosts whose ranks were silent, and that do not answer
  std::string ended = {};      ///< the host of a rank that a signal ended; "": it is not known
  std::set<std::string> unstarted = {};  ///< hosts that the launcher was still waiting for
  /// awaited_hosts(), if all hosts answer.
  std::map<std::string, int> awaited = {};
};

bool is_final(int code) {
  constexpr auto kFinal =
      std::to_array({ErrorKind::Usage, ErrorKind::Data, ErrorKind::Numeric, ErrorKind::Checkpoint,
                     ErrorKind::Preempted, ErrorKind::Interrupted, ErrorKind::Internal});
  return code == 0 ||
         std::ranges::any_of(kFinal, [&](ErrorKind kind) { return code == exit_code(kind); });
}

/// What happened to a run, as lines on standard error and for its report.
class Journal {
 public:
  explicit Journal(const std::filesystem::path& run)
      : file_(run / training::kSupervisorLog, training::LineFile::Open::Append) {}

  void tell(std::string_view event, int ranks, std::span<const Host> hosts,
            const std::string& checkpoint, const std::string& what) {
    print_error(fmt::format("millrace: elastic: {}", what));
    Json names = Json::list();
    for (const Host& host : hosts) names.push_back(host.name);
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    file_.write(Json::object({{"time", std::chrono::duration<double>(now).count()},
                              {"event", event},
                              {"ranks", ranks},
                              {"hosts", std::move(names)},
                              {"checkpoint", checkpoint},
                              {"what", what}})
                    .dump());
  }

 private:
  training::LineFile file_;
};

class Supervisor {
 public:
  Supervisor(const run::Run& config, const Invocation& invocation,
             const std::optional<Cluster>& cluster, const std::function<int()>& received,
             std::filesystem::path run)
      : config_(config),
        invocation_(invocation),
        distributed_(cluster.has_value()),
        received_(received),
        run_(std::move(run)),
        place_(io::file_identity(run_)),
        lock_(run_, "run directory", training::kSupervisorLock),
        lock_text_(io::lock_text(run_, training::kSupervisorLock)),
        journal_(run_),
        hosts_(cluster, config.pipeline.ranks.ranks),
        least_(static_cast<int>(invocation.options.value<std::int64_t>("min-ranks"))),
        most_restarts_(invocation.options.value<std::int64_t>("restarts")),
        probe_every_(invocation.options.value<std::int64_t>("probe-every")) {}

  int run() {
    std::int64_t losses = 0;  // in a row, without a new checkpoint
    bool lost = false;        // the last ranks, before they could save
    bool rescued = false;     // they were to stop, and have been started once more to save
    const auto stops = [&] {
      return asked() != 0 && (!lost || rescued || !training::has_snapshots(run_));
    };
    for (bool first = true;; first = false) {
      if (!first) wait_for_lock();
      const std::string before = newest();
      if (stops()) return finish(code_of_stop());
      const std::vector<Host> used = wait_for_hosts();
      if (stops() || (distributed_ && used.empty())) return finish(code_of_stop());
      rescued = asked() != 0;
      const Attempt end = launch_on(used);
      lost = false;
      if (end.trained) prove(used);
      patience_ = end.for_speed ? kRest : 1;
      if ((end.for_host || end.for_speed) && end.code == exit_code(ErrorKind::Preempted) &&
          asked() == 0)
        continue;
      for (Host& host : hosts_.all()) {
        host.suspected = end.lost.contains(host.name);
        // What comes back in its place may lack the data or the program.
        if (end.trained && (host.suspected || host.name == end.ended)) host.proven = false;
      }
      if (!end.trained && asked() == 0 &&
          (leave_out_unstarted(used, end.unstarted) || leave_out_newcomers(used, end.code) ||
           need_more(used, end.code)))
        continue;
      if (is_final(end.code)) {
        if (end.trained) forget_on_others(used);
        return finish(rescued && end.code != 0 ? code_of_stop() : end.code);
      }
      lost = true;
      losses = newest() == before ? losses + 1 : 1;
      leave_out_awaited(used, end, losses);
      if (asked() == 0 && losses > most_restarts_) {
        tell("given up", {},
             fmt::format("{} without a new checkpoint: giving up",
                         counted(losses, "loss", "losses")));
        return finish(end.code);
      }
      pause_before_restart(losses, end);
    }
  }

 private:
  /// The signal that asked to stop; 0: none.
  [[nodiscard]] int asked() const { return asked_to_stop() != 0 ? asked_to_stop() : received_(); }

  /// A run that was asked to stop can be restored, whatever else happens to its ranks.
  [[nodiscard]] int code_of_stop() const {
    return exit_code(asked() == SIGINT ? ErrorKind::Interrupted : ErrorKind::Preempted);
  }

  /// Waits, unless somebody asks to stop.
  void pause_for(milliseconds length) const {
    constexpr milliseconds kPiece{50};
    for (milliseconds done{0}; done < length && asked() == 0; done += kPiece)
      std::this_thread::sleep_for(kPiece);
  }

  /// These hosts have made updates together.
  void prove(std::span<const Host> used) {
    for (Host& host : hosts_.all()) {
      host.proven = is_among(used, host.name);
      if (host.proven) host.failures = 0;
    }
  }

  /// For a while, which grows.
  void leave_out(const std::set<std::string>& names, std::string_view why) {
    for (const std::string& name : names) hosts_.at(name).leave_out(probe_every_);
    tell("left out", {}, fmt::format("{} left out: {}", they(names, "is", "are"), why));
  }

  /// When a start made no update, hosts that had no part in the last one that did may lack the data
  /// or the program: they are left out. Returns whether others go on.
  bool leave_out_newcomers(std::span<const Host> used, int code) {
    if (code == 0 || code == exit_code(ErrorKind::Preempted) ||
        code == exit_code(ErrorKind::Interrupted) || std::ranges::none_of(used, &Host::proven))
      return false;
    std::set<std::string> out;
    for (const Host& host : used)
      if (!host.proven) out.insert(host.name);
    if (out.empty()) return false;
    leave_out(out, fmt::format("the start with {} failed (code {})",
                               out.size() == 1 ? "it" : "them", code));
    return true;
  }

  /// Whether these hosts are enough without those.
  [[nodiscard]] bool can_spare(std::span<const Host> used,
                               const std::set<std::string>& names) const {
    std::vector<Host> others(used.begin(), used.end());
    std::erase_if(others, [&](const Host& host) { return names.contains(host.name); });
    return hosts_.ranks_on(others) >= std::max(1, least_);
  }

  /// If ranks on hosts that all answer wait for each other in vain again and again, the network may
  /// lack a way between two of them: the host that most wait for is left out for a while. Not this
  /// machine, and only where the others are enough.
  void leave_out_awaited(std::span<const Host> used, const Attempt& end, std::int64_t losses) {
    // Ranks that only start do not know whom they wait for.
    if (losses == 1 || !end.awaited.empty()) awaited_ = end.awaited;
    if (losses == 1 || !end.lost.empty()) return;
    const Host* worst = nullptr;
    int most = 0;
    for (const Host& host : hosts_.all()) {
      const auto found = awaited_.find(host.name);
      if (found == awaited_.end() || found->second <= most || host.is_out() ||
          is_this_machine(host.name))
        continue;
      worst = &host;
      most = found->second;
    }
    if (worst != nullptr && can_spare(used, {worst->name}))
      leave_out({worst->name}, "it answers, but others wait for it in vain");
  }

  /// Hosts that answer, but on which the launcher's daemon did not start, are left out for a while,
  /// if the others are enough. Returns whether there are any.
  bool leave_out_unstarted(std::span<const Host> used, const std::set<std::string>& unstarted) {
    if (unstarted.empty() || !can_spare(used, unstarted)) return false;
    leave_out(unstarted, "no daemon of the launcher has started there in time");
    return true;
  }

  /// Whether the run, which has trained on more ranks, waits for these because it does not fit on
  /// those that are left.
  bool need_more(std::span<const Host> used, int code) {
    const int ranks = hosts_.ranks_on(used);
    if (code != exit_code(ErrorKind::Config) || ranks >= config_.pipeline.ranks.ranks ||
        std::ranges::none_of(used, &Host::proven))
      return false;
    least_ = ranks + 1;
    tell("waiting", {},
         fmt::format("the run, as it trained before, does not start on {} (code {}): waiting until "
                     "there is room for {}",
                     counted(ranks, "rank"), code, least_));
    return true;
  }

  /// Ranks on a host that is cut off hold the run until they notice, and a file server longer.
  void wait_for_lock() {
    for (bool told = false; asked() == 0; told = true) {
      try {
        if (io::file_identity(run_) != place_)
          fail(ErrorKind::Io, "{}: was removed or replaced while the run trained", run_.string());
        io::require_lock(run_, lock_text_, training::kSupervisorLock);
        const io::RunLock free(run_);
        return;
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::Usage) throw;  // it is not in use
        if (!told) tell("waiting", {}, error.what());
        pause_for(seconds{1});
      }
    }
  }

  /// The newest checkpoint, by name.
  [[nodiscard]] std::string newest() const {
    const auto all = io::list_checkpoints(run_);
    return all.empty() ? "" : all.back().filename().string();
  }

  /// Where the next ranks begin. Only they learn what is in memory.
  [[nodiscard]] std::string start_point() const {
    const std::string from = newest();
    if (from.empty()) return "the beginning";
    return from + (training::has_snapshots(run_) ? " or a newer snapshot in memory" : "");
  }

  void tell(std::string_view event, std::span<const Host> hosts, const std::string& what) {
    journal_.tell(event, event == "start" ? hosts_.ranks_on(hosts) : 0, hosts, newest(), what);
  }

  int finish(int code) {
    tell("end", {}, code == 0 ? "the run has ended" : fmt::format("ended with code {}", code));
    return code;
  }

  void pause_before_restart(std::int64_t losses, const Attempt& end) {
    constexpr std::int64_t kMost = 600;
    const seconds pause{
        losses == 1 ? 0
                    : std::min(kMost, std::int64_t{1} << std::min<std::int64_t>(losses - 2, 10))};
    const std::string lost = !end.lost.empty() ? "lost " + listed(end.lost)
                             : !end.ended.empty()
                                 ? fmt::format("a rank on {} ended", end.ended)
                                 : fmt::format("the ranks ended with code {}", end.code);
    if (asked() != 0) return tell("lost", {}, lost + "; asked to stop");
    tell("lost", {},
         fmt::format("{}; restart {} of {} from {}{}", lost, losses, most_restarts_, start_point(),
                     pause.count() > 0 ? fmt::format(" in {} s", pause.count()) : ""));
    pause_for(pause);
    if (pause.count() > 0) hosts_.forget_answers();
  }

  /// The hosts that answer, once they have room for enough ranks; none if somebody asks to stop
  /// before. None on this machine.
  std::vector<Host> wait_for_hosts() {
    if (!distributed_) return {};
    for (bool told = false;; told = true) {
      hosts_.find();
      std::vector<Host> answering = hosts_.answering();
      const bool enough = hosts_.ranks_on(answering) >= std::max(1, least_);
      if (enough || !told) tell_missing(answering, enough);
      if (enough) return answering;
      if (asked() != 0) return {};
      pause_for(std::min<milliseconds>(probe_every_, seconds{5}));
    }
  }

  /// Names the hosts that do not answer, with what the agent said of them, and says what the others
  /// are enough for.
  void tell_missing(std::span<const Host> answering, bool enough) {
    std::set<std::string> missing;
    for (const Host& host : hosts_.besides(answering))
      if (!host.is_out()) missing.insert(host.name);
    std::string what = missing.empty() ? "" : they(missing, "does not answer", "do not answer");
    std::set<std::string> said;  // often the same of all
    for (const auto& [host, words] : hosts_.refused())
      if (missing.contains(host)) said.insert(words);
    if (!said.empty()) what += fmt::format(" ({})", fmt::join(said, "; "));
    if (!enough)
      what += fmt::format("{}there is room for {}: waiting until there is room for {}",
                          what.empty() ? "" : "; ", counted(hosts_.ranks_on(answering), "rank"),
                          std::max(1, least_));
    if (!what.empty()) tell(enough ? "no answer" : "waiting", answering, what);
  }

  /// What hosts without a part in the last start keep of the run in memory is of no use any more.
  void forget_on_others(std::span<const Host> used) const {
    const std::string command = training::removal_of_snapshots(run_);
    if (!command.empty()) hosts_.command(hosts_.besides(used), command);
  }

  /// The speeds of the ranks on these hosts; empty as long as none was slow.
  [[nodiscard]] std::vector<double> speeds_on(std::span<const std::string> hosts_of_ranks) {
    std::vector<double> speeds;
    for (const std::string& name : hosts_of_ranks) speeds.push_back(hosts_.at(name).speed);
    weighted_ = weighted_ || std::ranges::any_of(speeds, [](double speed) { return speed < 1.0; });
    return weighted_ ? speeds : std::vector<double>{};
  }

  /// What the ranks on these hosts have found: each as fast as the slowest rank of its host. Empty
  /// if that has not changed since they began.
  [[nodiscard]] std::vector<double> found_speeds(
      std::span<const std::string> hosts_of_ranks) const {
    constexpr double kLeast = 0.1;
    std::vector<double> speeds = training::kept_speeds(run_);
    if (speeds.size() != hosts_of_ranks.size()) return {};
    std::map<std::string, double> slowest;
    for (std::size_t rank = 0; rank < speeds.size(); ++rank) {
      double& speed = slowest.try_emplace(hosts_of_ranks[rank], 1.0).first->second;
      speed = std::min(speed, std::max(kLeast, speeds[rank]));
    }
    for (std::size_t rank = 0; rank < speeds.size(); ++rank)
      speeds[rank] = slowest.at(hosts_of_ranks[rank]);
    return speeds;
  }

  /// Learns from the last start how fast the hosts are.
  void learn_speeds(std::span<const std::string> hosts_of_ranks) {
    const std::vector<double> speeds = found_speeds(hosts_of_ranks);
    training::drop_speeds(run_);
    for (std::size_t rank = 0; rank < speeds.size(); ++rank)
      hosts_.at(hosts_of_ranks[rank]).speed = speeds[rank];
  }

  /// The words of the next launch: a restore where there is something to restore.
  [[nodiscard]] std::vector<std::string> words(std::span<const double> speeds) const {
    const Patch& options = invocation_.options;
    std::vector<std::string> words = invocation_.words;
    const auto add = [&](const std::vector<std::string>& more) {
      words.insert(words.end(), more.begin(), more.end());
    };
    const std::string timeout = fmt::format("{}", hang_timeout());
    if (!newest().empty()) {
      // Ranks that start wait for each other before they have read what the run records.
      words = {"restore", "--restore-path", run_.string(), "--elastic", "--hang-timeout", timeout};
      // Also if it is 0 where another number was recorded.
      add({"--partner-every", fmt::format("{}", config_.partner_every)});
      // What no run records.
      for (const char* name : {"quiet", "verbose"})
        if (options.flag(name)) add({std::string("--") + name});
      if (!config_.layout.devices.empty()) add({"--select-ipus", config_.layout.devices});
    } else {
      if (options.typed("run-dir") == nullptr && options.typed("restore-path") == nullptr)
        add({"--run-dir", run_.string()});
      if (hang_timeout() != config_.hang_timeout) add({"--hang-timeout", timeout});
    }
    if (!speeds.empty()) add({"--speeds-of-ranks", fmt::format("{:.2g}", fmt::join(speeds, " "))});
    return words;
  }

  /// The layout that so many ranks will choose.
  [[nodiscard]] pipeline::PipelinePlan plan_for(int ranks, std::span<const double> speeds) const {
    if (ranks == config_.pipeline.ranks.ranks && speeds.empty()) return config_.pipeline;
    return choice_for(training::network_of(config_), ranks, speeds).run.pipeline;
  }
  [[nodiscard]] partition::Choice choice_for(const models::Graph& graph, int ranks,
                                             std::span<const double> speeds) const {
    run::Run run = config_;
    run.layout.ranks = ranks;
    run.layout.rank_shares.clear();
    run.layout.rank_speeds.assign(speeds.begin(), speeds.end());
    run.layout.spread = true;
    const partition::LayoutFacts facts =
        training::layout_facts(graph, run, training::this_machine());
    return partition::choose(graph, std::move(run), facts, training::sizer_of(graph));
  }

  /// The part of an update's time that ranks of these speeds would save if they got their work by
  /// them: simulated.
  [[nodiscard]] double gain_over(const pipeline::PipelinePlan& present,
                                 std::span<const double> speeds) const try {
    const models::Graph graph = training::network_of(config_);
    const partition::Choice choice = choice_for(graph, present.ranks.ranks, speeds);
    const partition::PlanRequest request =
        partition::plan_request(choice.run, choice.layout.request);
    const std::vector<partition::OpCost> costs = partition::costs_of(graph, request);
    const auto time_of = [&](const pipeline::PipelinePlan& plan) {
      return partition::seconds_of(graph, costs, request, plan, speeds);
    };
    return 1.0 - time_of(choice.run.pipeline) / time_of(present);
  } catch (const Error&) {  // what the next start would say
    return 0.0;
  }

  Attempt launch_on(const std::vector<Host>& used) {
    std::optional<Cluster> cluster = hosts_.cluster_of(used);
    const std::string where = cluster ? join(cluster->hosts, " ") : "this machine";
    const int ranks = hosts_.ranks_on(used);
    const std::vector<std::string> hosts =
        cluster ? hosts_by_rank(*cluster, ranks) : std::vector<std::string>{};
    const std::vector<double> speeds = speeds_on(hosts);
    // Nothing of what is left on this machine needs a network, which may be what was lost.
    if (std::ranges::all_of(used, is_this_machine, &Host::name)) cluster.reset();
    const RanksToStart start{.plan = plan_for(ranks, speeds),
                             .words = words(speeds),
                             .cluster = std::move(cluster),
                             .verbosity = config_.verbosity == run::Verbosity::Verbose
                                              ? run::Verbosity::Verbose
                                              : run::Verbosity::Quiet,  // told below
                             .to_begin = time_to_begin()};
    tell("start", used, told_of_start(start.plan, where));
    Occasion occasion(*this, used, start.plan, hosts);
    Attempt end;
    try {
      LauncherEnd ended = start_ranks(start, received_,
                                      {.ends = [&] { return occasion.is_due(); },
                                       .gave_up = [&] { hosts_.ask_early(); },
                                       .grace = training::Watchdog::grace(true),
                                       .to_end = milliseconds{500},
                                       .to_continue = seconds{hang_timeout()}});
      end.unstarted = unstarted_hosts(ended, hosts);
      end.lost = hosts_.unreached(silent_hosts(ended, hosts));
      // Ranks on other hosts may only have been too slow to speak.
      for (int rank = 0; !end.lost.empty() && rank < std::ssize(hosts); ++rank)
        if (!end.lost.contains(hosts[static_cast<std::size_t>(rank)]))
          ended.stuck_ranks.try_emplace(rank, -1);
      if (end.lost.empty()) end.awaited = awaited_hosts(ended, hosts);
      if (ended.ended_rank >= 0 && ended.ended_rank < std::ssize(hosts))
        end.ended = hosts[static_cast<std::size_t>(ended.ended_rank)];
      end.trained = ended.ranks_trained;
      learn_speeds(hosts);
      end.code = meaning_of(ended, "the launcher", start.plan, hosts);
    } catch (const Error& error) {
      report_error(error);
      end.code = exit_code(error.kind());
    }
    end.for_host = occasion.for_host();
    end.for_speed = occasion.for_speed();
    return end;
  }

  [[nodiscard]] int hang_timeout() const {
    const bool given =
        invocation_.options.find("hang-timeout") != nullptr ||  // or it was recorded
        config_.hang_timeout != std::get<std::int64_t>(*find_field("hang-timeout")->by_default);
    return given ? config_.hang_timeout : kSupervisedHangTimeout;
  }

  /// A launcher needs some seconds, and on many hosts more.
  [[nodiscard]] seconds time_to_begin() const {
    constexpr int kLeast = 10;
    return seconds{hang_timeout() > 0 ? kLeast + hang_timeout() : 0};
  }

  std::string told_of_start(const pipeline::PipelinePlan& plan, const std::string& where) const {
    return fmt::format(
        "{} on {}, from {}{}{}", counted(plan.ranks.ranks, "rank"), where, start_point(),
        plan.is_joint() ? fmt::format(", over which {} stages are spread", plan.schedule.stages)
                        : "",
        asked() != 0 ? ", to save and stop" : "");
  }

  /// Looks for reasons to start the ranks anew: a host that is not in use is back, or one of those
  /// in use has become slow. Not before they have written a checkpoint: what comes and goes must
  /// not keep a run from moving.
  class Occasion {
   public:
    Occasion(Supervisor& owner, std::span<const Host> used, const pipeline::PipelinePlan& plan,
             std::span<const std::string> hosts_of_ranks)
        : owner_(owner), plan_(plan), hosts_(hosts_of_ranks), newest_(owner.newest()) {
      if (owner.hosts_.ranks_on(used) < owner.config_.pipeline.ranks.ranks)  // or others took over
        left_ = owner.hosts_.besides(used);
    }

    [[nodiscard]] bool for_host() const { return asked_ && !for_speed_; }
    [[nodiscard]] bool for_speed() const { return for_speed_; }

    /// Whether the ranks are to end.
    [[nodiscard]] bool is_due() {
      if (looks_) look_for_snapshot();
      ask_hosts();
      if (asked_ || looked_.seconds() < 1.0) return asked_;
      looked_ = Timer();
      if (std::string now = owner_.newest(); now != newest_) {
        newest_ = std::move(now);
        ++saved_;
      }
      look_at_speeds();
      const bool is_back = probe_ && !probe_->answered().empty();
      for_speed_ = !is_back && gain_ >= kLeastGain && saved_ >= owner_.patience_;
      asked_ = for_speed_ || (is_back && saved_ > 0);
      if (asked_)
        owner_.tell(
            for_speed_ ? "slow" : "host back", {},
            fmt::format("{}: the ranks save and start anew",
                        for_speed_ ? "a slow host is to get less of the work"
                                   : they(probe_->answered(), "answers", "answer") + " again"));
      return asked_;
    }

   private:
    static constexpr double kLeastGain = 0.1;

    /// Tells where the ranks have begun, if that is a newer snapshot than the checkpoints.
    void look_for_snapshot() {
      if (began_.seconds() < 0.2) return;
      began_ = Timer();
      const std::int64_t taken = training::last_taken(owner_.run_);
      if (taken == taken_) return;
      looks_ = false;
      owner_.tell("snapshot", {},
                  fmt::format("going on from the snapshot after update {} in memory", taken));
    }

    /// Asks the hosts that are not in use from time to time whether they are back.
    void ask_hosts() {
      if (probe_) probe_->look();
      if (left_.empty() || (probe_ && !probe_->answered().empty())) return;
      if (probe_ && probe_->is_over()) probe_.reset();
      if (since_.seconds() < static_cast<double>(owner_.probe_every_.count())) return;
      since_ = Timer();
      probe_.emplace(owner_.hosts_.ask(left_));
    }

    void look_at_speeds() {
      const std::vector<double> speeds = owner_.found_speeds(hosts_);
      if (speeds.empty() || speeds == speeds_) return;
      speeds_ = speeds;
      gain_ = owner_.gain_over(plan_, speeds);
      std::set<std::string> slow;
      for (std::size_t rank = 0; rank < speeds.size(); ++rank)
        if (speeds[rank] < 1.0)
          slow.insert(
              fmt::format("{} takes {:.1f} times as long as others, and gets {:.2f} of their work",
                          hosts_[rank], 1.0 / speeds[rank], speeds[rank]));
      if (slow.empty()) return;
      const int left = std::max(0, owner_.patience_ - saved_);
      const std::string when = gain_ < kLeastGain ? "of which none is made for it"
                               : left > 0 ? "which follows " + counted(left, "more checkpoint")
                                          : "which follows now";
      owner_.tell("slow", {},
                  fmt::format("{} from the next start on, {}: an update is expected to take {:.0f} "
                              "% less time",
                              fmt::join(slow, "; "), when, 100.0 * std::max(0.0, gain_)));
    }

    Supervisor& owner_;
    const pipeline::PipelinePlan& plan_;
    std::span<const std::string> hosts_;                      ///< of the ranks
    std::string newest_;                                      ///< checkpoint
    int saved_ = 0;                                           ///< checkpoints since the start
    std::int64_t taken_ = training::last_taken(owner_.run_);  ///< the last snapshot taken before
    /// Whether these ranks may still take one.
    bool looks_ = !newest_.empty() && training::has_snapshots(owner_.run_);
    std::vector<Host> left_;
    std::optional<HostProbe> probe_;
    std::vector<double> speeds_;
    double gain_ = 0.0;
    Timer since_;
    Timer looked_;
    Timer began_;
    bool for_speed_ = false;
    bool asked_ = false;
  };

  static constexpr int kRest = 5;  ///< checkpoints between two starts for slow hosts

  const run::Run& config_;
  const Invocation& invocation_;
  bool distributed_;  ///< over hosts, or on this machine
  std::function<int()> received_;
  std::filesystem::path run_;
  io::FileIdentity place_;
  io::RunLock lock_;
  std::string lock_text_;  ///< ours
  Journal journal_;
  RunHosts hosts_;
  std::map<std::string, int> awaited_;  ///< of the last Attempt of these losses that has it
  bool weighted_ = false;               ///< whether a host was slow so far
  int patience_ = 1;                    ///< checkpoints to wait for before a start for a slow host
  int least_;
  std::int64_t most_restarts_;
  seconds probe_every_;
};

}  // namespace

int supervise(const run::Run& config, const Invocation& invocation,
              const std::optional<Cluster>& cluster, const std::function<int()>& received) {
  if (!config.logging.keeps || !config.saves_on_the_way())
    fail(ErrorKind::Usage,
         "--elastic goes on from checkpoints, but the run keeps none: leave --no-logs and "
         "--disable-checkpoints out");
  const auto least = invocation.options.value<std::int64_t>("min-ranks");
  if (least > config.pipeline.ranks.ranks)
    fail(ErrorKind::Usage, "--min-ranks {}: the run has only {}", least,
         counted(config.pipeline.ranks.ranks, "rank"));
  const std::filesystem::path run = config.run_directory.empty()
                                        ? training::create_run_directory(config, kVersion)
                                        : config.run_directory;
  return Supervisor(config, invocation, cluster, received, run).run();
}

}  // namespace millrace::cli
