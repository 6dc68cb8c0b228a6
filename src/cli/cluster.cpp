// SPDX-License-Identifier: Apache-2.0
#include "cli/cluster.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <utility>

#include "comm/world.hpp"
#include "core/error.hpp"
#include "core/json.hpp"
#include "core/machine_limits.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"

namespace millrace::cli {
namespace {

[[noreturn]] void fail_missing(std::string_view key) {
  fail(
      ErrorKind::Usage,
      "TF_CONFIG: {} is missing; expected "
      R"({{"cluster": {{"worker": ["host:port", ..]}}, "task": {{"type": "worker", "index": N}}}})",
      key);
}

/// Host names are passed to programs that might take other text for options.
void check_host(std::string_view host, std::string_view where) {
  const bool good = !host.empty() && host.front() != '-' &&
                    std::all_of(host.begin(), host.end(), [](unsigned char c) {
                      return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_' || c == '@';
                    });
  if (!good)
    fail(ErrorKind::Usage, "{}: '{}' is not a host name{}", where, host,
         host.find('/') == std::string_view::npos ? "" : ", and no file either");
}

/// Checks "name" or "name:ranks"; returns the number of ranks, or 0.
std::int64_t check_slots(std::string_view host, std::string_view where) {
  const std::size_t colon = host.find(':');
  check_host(host.substr(0, colon), where);
  if (colon == std::string_view::npos) return 0;
  constexpr std::int64_t kMost = 1'000'000;
  const std::int64_t slots = parse_number<std::int64_t>(host.substr(colon + 1)).value_or(0);
  if (slots < 1 || slots > kMost)
    fail(ErrorKind::Usage, "{}: '{}' is not a host with its number of ranks, such as a:8", where,
         host);
  return slots;
}

std::vector<std::string> hosts_of(const Json& cluster, const std::string& job) {
  std::vector<std::string> hosts;
  const Json* const list = cluster.find(job);
  if (list == nullptr) return hosts;
  if (!list->is_list()) fail_missing("a list in cluster." + job);
  for (const Json& worker : list->items()) {
    if (!worker.is_text()) fail_missing("a text in cluster." + job);
    const std::string& address = worker.text();
    hosts.push_back(address.substr(0, address.rfind(':')));
    check_host(hosts.back(), "TF_CONFIG");
  }
  return hosts;
}

/// A task is a worker or the chief, which TensorFlow counts before the workers.
std::string task_type(const Json& task) {
  const Json* const type = task.find("type");
  if (type == nullptr) return "worker";
  if (!type->is_text()) fail_missing("a text in task.type");
  const std::string& name = type->text();
  if (name == "worker" || name == "chief") return name;
  if (name == "ps")
    fail(ErrorKind::Usage,
         "TF_CONFIG: task.type is ps, but millrace has no parameter servers: do not start any");
  if (name == "evaluator")
    fail(ErrorKind::Usage,
         "TF_CONFIG: task.type is evaluator, but the run validates itself: do not start an "
         "evaluator, or use millrace validate");
  fail(ErrorKind::Usage, "TF_CONFIG: task.type '{}' is unknown: use worker or chief", name);
}

/// The host of this process, by its rank, if a launcher started it: equally many ranks run on each
/// of the `hosts`, one after another.
std::optional<int> launched_task(const Environment& environment, std::int64_t hosts) {
  using Names = std::pair<const char*, const char*>;
  for (const auto& [rank, size] :
       {Names{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, Names{"PMI_RANK", "PMI_SIZE"}}) {
    const auto place = parse_number<std::int64_t>(environment(rank).value_or(""));
    const auto ranks = parse_number<std::int64_t>(environment(size).value_or(""));
    if (place && ranks && *place >= 0 && *place < *ranks)
      return static_cast<int>(*place * hosts / *ranks);
  }
  return std::nullopt;
}

/// The host that task.index names; the chief, if there is one, comes before the workers.
int indexed_task(const Json& task, const std::string& type, std::int64_t chiefs,
                 std::int64_t workers) {
  if (!task.contains("index"))
    fail_missing("task.index (mpirun and srun, which number their ranks, replace it)");
  const Json& index = task.at("index");
  if (!index.is_integer()) fail_missing("a number in task.index");
  const std::int64_t number = index.as_int64();
  const std::int64_t most = type == "chief" ? chiefs : workers;
  if (number < 0 || number >= most)
    fail(ErrorKind::Usage, "TF_CONFIG: task {} is out of range: there are {} {}s", number, most,
         type);
  return static_cast<int>(type == "chief" ? number : chiefs + number);
}

}  // namespace

std::string name_of_host(std::string_view host) {
  return std::string(host.substr(0, host.find(':')));
}

std::string agent_arguments(const Cluster& cluster) {
  const char* const own = std::getenv("OMPI_MCA_plm_rsh_args");
  const std::string words = own != nullptr ? std::string(own) + ' ' : "";
  return cluster.ssh_port > 0 ? fmt::format("{}-p {}", words, cluster.ssh_port) : words;
}

bool names_this_machine(std::string_view name) {
  return name == "localhost" || name == "127.0.0.1" || name == host_name();
}

std::optional<std::int64_t> room_of(const Cluster& cluster) {
  std::int64_t room = 0;
  for (const std::string& host : cluster.hosts) {
    const std::int64_t slots = check_slots(host, "--hosts");
    if (slots == 0) return std::nullopt;
    room += slots;
  }
  return room;
}

void check_room(const Cluster& cluster, std::int64_t ranks) {
  const std::optional<std::int64_t> room = room_of(cluster);
  if (room && *room < ranks)
    fail(ErrorKind::Usage,
         "--hosts: {} have room for {} ranks, but the run has {}: raise their numbers of ranks",
         join(cluster.hosts, " "), *room, ranks);
}

std::vector<std::string> with_room(const Cluster& cluster, int ranks) {
  const auto hosts = static_cast<int>(cluster.hosts.size());
  std::vector<std::string> all;
  for (const std::string& host : cluster.hosts)
    all.push_back(host.find(':') == std::string::npos
                      ? fmt::format("{}:{}", host, (ranks + hosts - 1) / hosts)
                      : host);
  return all;
}

std::vector<std::string> hosts_by_rank(const Cluster& cluster, int ranks) {
  std::vector<std::string> by_rank;
  for (const std::string& host : with_room(cluster, ranks)) {
    const auto room = static_cast<std::size_t>(check_slots(host, "--hosts"));
    const std::size_t left = static_cast<std::size_t>(ranks) - by_rank.size();
    by_rank.insert(by_rank.end(), std::min(room, left), name_of_host(host));
  }
  return by_rank;
}

std::vector<std::string> hosts_without_rank(const Cluster& cluster, int ranks) {
  const std::vector<std::string> used = hosts_by_rank(cluster, ranks);
  std::vector<std::string> left;
  for (const std::string& host : cluster.hosts)
    if (const std::string name = name_of_host(host); std::ranges::find(used, name) == used.end())
      left.push_back(name);
  return left;
}

Cluster parse_tf_config(std::string_view json, const Environment& environment) {
  const std::optional<Json> config = Json::try_parse(json);
  if (!config || !config->is_object()) fail(ErrorKind::Usage, "TF_CONFIG: is not a JSON object");
  const Json* const cluster = config->find("cluster");
  const bool named = cluster != nullptr && cluster->is_object() &&
                     (cluster->contains("worker") || cluster->contains("chief"));
  if (!named) fail_missing("cluster.worker");
  const Json* const task = config->find("task");
  if (task == nullptr || !task->is_object()) fail_missing("task");
  const std::string type = task_type(*task);
  Cluster result;
  result.hosts = hosts_of(*cluster, "chief");
  const std::int64_t chiefs = std::ssize(result.hosts);
  if (chiefs > 1) fail(ErrorKind::Usage, "TF_CONFIG: {} chiefs, but only one is allowed", chiefs);
  const std::vector<std::string> workers = hosts_of(*cluster, "worker");
  result.hosts.insert(result.hosts.end(), workers.begin(), workers.end());
  if (result.hosts.empty()) fail_missing("a worker in cluster.worker");
  const std::optional<int> launched = launched_task(environment, std::ssize(result.hosts));
  result.task = launched ? *launched : indexed_task(*task, type, chiefs, std::ssize(workers));
  return result;
}

std::vector<std::string> hosts_in(const std::filesystem::path& file) {
  constexpr std::uint64_t kMostBytes = 1 << 20;
  constexpr std::string_view kSlots = "slots=";
  std::vector<std::string> hosts;
  for (const std::string& line : split_list(io::read_text(file, kMostBytes), '\n')) {
    std::string text = line.substr(0, line.find('#'));
    for (const char space : {'\t', '\r'}) std::ranges::replace(text, space, ' ');
    const std::vector<std::string> words = split_list(text, ' ');
    if (words.empty()) continue;
    hosts.push_back(words[0]);
    for (const std::string& word : std::span(words).subspan(1)) {
      if (word.starts_with("max_slots=") || word.starts_with("max-slots=")) continue;
      if (!word.starts_with(kSlots))
        fail(ErrorKind::Usage, "{}: '{}' in the line of {}: write its ranks as 'slots=4'",
             file.string(), printable(word), printable(words[0]));
      hosts.back() += ":" + word.substr(kSlots.size());
    }
    check_slots(hosts.back(), file.string());
  }
  if (hosts.empty()) fail(ErrorKind::Usage, "{}: no line names a host", file.string());
  return hosts;
}

std::optional<Cluster> cluster_of(const Patch& options, const Environment& environment) {
  std::optional<Cluster> cluster;
  if (options.flag("distributed"))
    if (const auto config = environment("TF_CONFIG"))
      cluster = parse_tf_config(*config, environment);
  if (const Setting* const hosts = options.typed("hosts"); hosts != nullptr && cluster)
    fail(ErrorKind::Usage,
         "{} and TF_CONFIG both name the machines of the run: leave one of them out", hosts->where);
  if (const auto hosts = options.text("hosts"); hosts && !cluster) {
    cluster.emplace();
    cluster->hosts = split_list(*hosts, ' ');
    if (cluster->hosts.size() == 1 && std::filesystem::is_regular_file(cluster->hosts.front())) {
      cluster->file = cluster->hosts.front();
      cluster->hosts = hosts_in(cluster->file);
    }
    for (const std::string& host : cluster->hosts) check_slots(host, options.find("hosts")->where);
  }
  if (!cluster) {
    for (const char* name : {"ssh-port", "interface"})
      if (const Setting* const given = options.typed(name))
        fail(ErrorKind::Usage,
             "{} has no effect here: it needs --hosts, or --distributed and TF_CONFIG",
             given->where);
    return cluster;
  }
  cluster->ssh_port = static_cast<int>(options.integer("ssh-port").value_or(0));
  cluster->interface = options.text("interface").value_or("");
  cluster->hang_timeout = static_cast<int>(options.integer("hang-timeout").value_or(0));
  return cluster;
}

Patch for_all_workers(Patch options, const std::optional<Cluster>& cluster) {
  if (!cluster || !options.flag("distributed")) return options;
  const std::int64_t each = options.integer("replicas").value_or(1);
  options.set(*find_field("replicas"),
              {.value = each * static_cast<std::int64_t>(cluster->hosts.size()),
               .origin = Origin::Environment,
               .where = "--replicas on the workers in TF_CONFIG"});
  return options;
}

}  // namespace millrace::cli
