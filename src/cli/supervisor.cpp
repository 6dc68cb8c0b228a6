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
#include "cli/host_probe.hpp"
#include "cli/launch.hpp"
#include "cli/launcher_end.hpp"
#include "cli/launcher_process.hpp"
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
using Clock = std::chrono::steady_clock;

/// What is known of a host of the run.
struct Host {
  std::string name;
  int room = 0;                      ///< ranks
  bool suspected = false;            ///< its ranks were silent, and it did not answer
  double speed = 1.0;                ///< of its ranks, as found in the last start
  bool proven = false;               ///< part of the last start that made updates
  int failures = 0;                  ///< starts in a row that took it in and failed because of it
  Clock::time_point out_until = {};  ///< not asked before
  [[nodiscard]] bool is_out() const { return Clock::now() < out_until; }
  /// For a while, which grows. `probe`: the time between two questions.
  void leave_out(seconds probe) {
    constexpr int kProbes = 10;
    out_until = Clock::now() + kProbes * probe * (1 << std::min(failures++, 10));
  }
};

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
        cluster_(cluster),
        received_(received),
        run_(std::move(run)),
        place_(io::file_identity(run_)),
        lock_(run_, "run directory", training::kSupervisorLock),
        journal_(run_),
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
      if (stops() || (cluster_ && used.empty())) return finish(code_of_stop());
      rescued = asked() != 0;
      const Attempt end = launch_on(used);
      lost = false;
      if (end.trained) prove(used);
      patience_ = end.for_speed ? kRest : 1;
      if ((end.for_host || end.for_speed) && end.code == exit_code(ErrorKind::Preempted) &&
          asked() == 0)
        continue;
      for (Host& host : hosts_) {
        host.suspected = end.lost.contains(host.name);
        // What comes back in its place may lack the data or the program.
        if (end.trained && (host.suspected || host.name == end.ended)) host.proven = false;
      }
      if (!end.trained && asked() == 0 &&
          (leave_out_newcomers(used, end.code) || need_more(used, end.code)))
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
    for (Host& host : hosts_) {
      host.proven = std::ranges::find(used, host.name, &Host::name) != used.end();
      if (host.proven) host.failures = 0;
    }
  }

  /// When a start made no update, hosts that had no part in the last one that did may lack the data
  /// or the program: they are left out for a while, which grows. Returns whether others go on.
  bool leave_out_newcomers(std::span<const Host> used, int code) {
    if (code == 0 || code == exit_code(ErrorKind::Preempted) ||
        code == exit_code(ErrorKind::Interrupted) || std::ranges::none_of(used, &Host::proven))
      return false;
    std::set<std::string> out;
    for (Host& host : hosts_) {
      if (host.proven || std::ranges::find(used, host.name, &Host::name) == used.end()) continue;
      host.leave_out(probe_every_);
      out.insert(host.name);
    }
    if (!out.empty())
      tell("left out", {},
           fmt::format("{} left out: the start with {} failed (code {})", they(out, "is", "are"),
                       out.size() == 1 ? "it" : "them", code));
    return !out.empty();
  }

  /// If ranks on hosts that all answer wait for each other in vain again and again, the network may
  /// lack a way between two of them: the host that most wait for is left out for a while. Not this
  /// machine, and only where the others are enough.
  void leave_out_awaited(std::span<const Host> used, const Attempt& end, std::int64_t losses) {
    // Ranks that only start do not know whom they wait for.
    if (losses == 1 || !end.awaited.empty()) awaited_ = end.awaited;
    if (losses == 1 || !end.lost.empty()) return;
    Host* worst = nullptr;
    int most = 0;
    for (Host& host : hosts_) {
      const auto found = awaited_.find(host.name);
      if (found == awaited_.end() || found->second <= most || host.is_out() ||
          is_this_machine(host.name))
        continue;
      worst = &host;
      most = found->second;
    }
    if (worst == nullptr) return;
    std::vector<Host> others(used.begin(), used.end());
    std::erase_if(others, [&](const Host& host) { return host.name == worst->name; });
    if (ranks_on(others) < std::max(1, least_)) return;
    worst->leave_out(probe_every_);
    tell("left out", {},
         fmt::format("{} is left out: it answers, but others wait for it in vain", worst->name));
  }

  /// Whether the run, which has trained on more ranks, waits for these because it does not fit on
  /// those that are left.
  bool need_more(std::span<const Host> used, int code) {
    const int ranks = ranks_on(used);
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
        const io::RunLock free(run_);
        return;
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::Usage) throw;  // it is not in use
        if (!told) tell("waiting", {}, error.what());
        pause_for(seconds{1});
      }
    }
  }

  /// The hosts of the run; a file may have changed. What is known of those that stay is kept.
  void find_hosts() {
    if (!cluster_->file.empty()) try {
        cluster_->hosts = hosts_in(cluster_->file);
      } catch (const Error& error) {  // perhaps it is just being written
        report_error(error, "the hosts stay as they were: ");
      }
    std::vector<Host> found;
    for (const std::string& text : with_room(*cluster_, config_.pipeline.ranks.ranks)) {
      const std::string name = name_of_host(text);
      const auto known = std::ranges::find(hosts_, name, &Host::name);
      Host& host = found.emplace_back(known != hosts_.end() ? *known : Host{.name = name});
      host.room = parse_number<int>(text.substr(name.size() + 1)).value_or(1);
    }
    hosts_ = std::move(found);
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

  [[nodiscard]] int ranks_on(std::span<const Host> hosts) const {
    const int most = config_.pipeline.ranks.ranks;
    if (!cluster_) return most;
    int room = 0;
    for (const Host& host : hosts) room += host.room;
    return std::min(room, most);
  }

  void tell(std::string_view event, std::span<const Host> hosts, const std::string& what) {
    journal_.tell(event, event == "start" ? ranks_on(hosts) : 0, hosts, newest(), what);
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
    if (pause.count() > 0) probe_.reset();  // its answers are old
  }

  /// The hosts that answer, once they have room for enough ranks; none if somebody asks to stop
  /// before. None on this machine.
  std::vector<Host> wait_for_hosts() {
    if (!cluster_) return {};
    for (bool told = false;; told = true) {
      find_hosts();
      std::vector<Host> answering = ask_hosts();
      const bool enough = ranks_on(answering) >= std::max(1, least_);
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
    for (const Host& host : hosts_)
      if (!host.is_out() && std::ranges::find(answering, host.name, &Host::name) == answering.end())
        missing.insert(host.name);
    std::string what = missing.empty() ? "" : they(missing, "does not answer", "do not answer");
    std::set<std::string> said;  // often the same of all
    for (const auto& [host, words] : refused_)
      if (missing.contains(host)) said.insert(words);
    if (!said.empty()) what += fmt::format(" ({})", fmt::join(said, "; "));
    if (!enough)
      what += fmt::format("{}there is room for {}: waiting until there is room for {}",
                          what.empty() ? "" : "; ", counted(ranks_on(answering), "rank"),
                          std::max(1, least_));
    if (!what.empty()) tell(enough ? "no answer" : "waiting", answering, what);
  }

  /// Those that are not left out.
  [[nodiscard]] std::set<std::string> hosts_to_ask() const {
    std::set<std::string> names;
    for (const Host& host : hosts_)
      if (!host.is_out()) names.insert(host.name);
    return names;
  }

  void begin_to_ask() {
    asked_hosts_ = hosts_to_ask();
    probe_.emplace(*cluster_, std::vector<std::string>(asked_hosts_.begin(), asked_hosts_.end()));
  }

  /// When the first rank gives up: the answers are there when the ranks have ended.
  void ask_early() try {
    if (cluster_) begin_to_ask();
  } catch (const Error& error) {  // asked again later
    report_error(error);
  }

  /// Hosts that answer, or did so just now, when ranks gave up. Those that are suspected get less
  /// time than those that may be busy.
  [[nodiscard]] std::vector<Host> ask_hosts() {
    std::set<std::string> suspected;
    for (const Host& host : hosts_)
      if (host.suspected) suspected.insert(host.name);
    const bool is_new = !probe_ || probe_->age() > 2 * kBusy ||
                        !std::ranges::includes(asked_hosts_, hosts_to_ask());
    if (is_new) begin_to_ask();
    probe_->wait(kBusy, suspected);
    probe_->wait(for_suspected());
    if (is_new) login_ = std::max(login_, probe_->slowest());  // looked at without a break
    refused_ = probe_->refused();
    std::vector<Host> answering;
    for (const Host& host : hosts_)
      if (!host.is_out() && probe_->answered().contains(host.name)) answering.push_back(host);
    probe_.reset();
    return answering;
  }

  /// The time for a host that may be lost to answer: thrice that of the slowest login so far.
  [[nodiscard]] milliseconds for_suspected() const {
    constexpr milliseconds kLeast{1000};
    return std::clamp(3 * login_, kLeast, kBusy);
  }

  /// Those of these hosts that have not answered since the first rank gave up. Ranks of others may
  /// have been too slow to speak.
  [[nodiscard]] std::set<std::string> unreached(std::set<std::string> hosts) {
    if (hosts.empty()) return hosts;
    if (!probe_) begin_to_ask();
    probe_->wait(for_suspected());
    for (const std::string& host : probe_->answered()) hosts.erase(host);
    return hosts;
  }

  /// What hosts without a part in the last start keep of the run in memory is of no use any more.
  void forget_on_others(std::span<const Host> used) const {
    const std::string command = training::removal_of_snapshots(run_);
    std::vector<std::string> others;
    for (const Host& host : hosts_)
      if (std::ranges::find(used, host.name, &Host::name) == used.end())
        others.push_back(host.name);
    if (!command.empty() && !others.empty())
      HostProbe(*cluster_, others, command).wait(for_suspected());
  }

  /// The speeds of the ranks on these hosts; empty as long as none was slow.
  [[nodiscard]] std::vector<double> speeds_on(std::span<const std::string> hosts_of_ranks) {
    std::vector<double> speeds;
    for (const std::string& name : hosts_of_ranks)
      speeds.push_back(std::ranges::find(hosts_, name, &Host::name)->speed);
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
      std::ranges::find(hosts_, hosts_of_ranks[rank], &Host::name)->speed = speeds[rank];
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
    std::optional<Cluster> cluster = cluster_;
    std::string where;
    if (cluster) {
      cluster->hosts.clear();
      for (const Host& host : used)
        cluster->hosts.push_back(fmt::format("{}:{}", host.name, host.room));
      where = join(cluster->hosts, " ");
    }
    const int ranks = ranks_on(used);
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
    tell("start", used, told_of_start(start.plan, where.empty() ? "this machine" : where));
    Occasion occasion(*this, used, start.plan, hosts);
    Attempt end;
    try {
      LauncherEnd ended = start_ranks(start, received_,
                                      {.ends = [&] { return occasion.is_due(); },
                                       .gave_up = [&] { ask_early(); },
                                       .grace = training::Watchdog::grace(true),
                                       .to_end = milliseconds{500}});
      end.lost = unreached(silent_hosts(ended, hosts));
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
      if (owner.ranks_on(used) == owner.config_.pipeline.ranks.ranks) return;  // others took over
      for (const Host& host : owner_.hosts_)
        if (std::ranges::find(used, host.name, &Host::name) == used.end()) left_.push_back(host);
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
      std::vector<std::string> names;
      for (const Host& host : left_)
        if (!host.is_out()) names.push_back(host.name);
      probe_.emplace(*owner_.cluster_, names);
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

  static constexpr int kRest = 5;             ///< checkpoints between two starts for slow hosts
  static constexpr milliseconds kBusy{5000};  ///< for a host that is there to answer

  const run::Run& config_;
  const Invocation& invocation_;
  std::optional<Cluster> cluster_;
  std::function<int()> received_;
  std::filesystem::path run_;
  io::FileIdentity place_;
  io::RunLock lock_;
  Journal journal_;
  std::vector<Host> hosts_;
  std::map<std::string, int> awaited_;          ///< of the last Attempt of these losses that has it
  std::optional<HostProbe> probe_;              ///< since ranks gave up, or for the next start
  std::set<std::string> asked_hosts_;           ///< by it
  std::map<std::string, std::string> refused_;  ///< by host, what the agent said at the last try
  milliseconds login_{0};                       ///< of the slowest host that has answered so far
  bool weighted_ = false;                       ///< whether a host was slow so far
  int patience_ = 1;  ///< checkpoints to wait for before a start for a slow host
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
