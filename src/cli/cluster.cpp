// SPDX-License-Identifier: Apache-2.0
#include "cli/cluster.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/text.hpp"

namespace millrace::cli {
namespace {

/// A host's name goes to programs that would take other things for options of theirs.
void check_host(std::string_view host, std::string_view where) {
  const bool good = !host.empty() && host.front() != '-' &&
                    std::all_of(host.begin(), host.end(), [](unsigned char c) {
                      return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_' || c == '@';
                    });
  if (!good) fail(ErrorKind::Usage, "{}: '{}' is no name of a host", where, host);
}

/// "name" or "name:ranks"; gives the number, or 0.
std::int64_t check_slots(std::string_view host, std::string_view where) {
  const std::size_t colon = host.find(':');
  check_host(host.substr(0, colon), where);
  if (colon == std::string_view::npos) return 0;
  const std::int64_t slots = parse_number<std::int64_t>(host.substr(colon + 1)).value_or(0);
  if (slots < 1)
    fail(ErrorKind::Usage, "{}: '{}' is not a host and its number of ranks, as in a:8", where,
         host);
  return slots;
}

}  // namespace

void check_room(const Cluster& cluster, std::int64_t ranks) {
  std::int64_t room = 0;
  for (const std::string& host : cluster.hosts) {
    const std::int64_t slots = check_slots(host, "--hosts");
    if (slots == 0) return;  // takes what comes
    room += slots;
  }
  if (room < ranks)
    fail(ErrorKind::Usage, "--hosts: {} have room for {} ranks, the run has {}: give them more",
         fmt::join(cluster.hosts, " "), room, ranks);
}

Cluster parse_tf_config(std::string_view json) {
  const nlohmann::json config = nlohmann::json::parse(json, nullptr, false);
  const auto missing = [](std::string_view key) {
    fail(ErrorKind::Usage,
         "TF_CONFIG: {} is missing; expected is "
         R"({{"cluster": {{"worker": ["host:port", ..]}}, "task": {{"index": N}}}})",
         key);
  };
  if (!config.is_object()) fail(ErrorKind::Usage, "TF_CONFIG: is not a JSON object");
  const auto cluster = config.find("cluster");
  if (cluster == config.end() || !cluster->contains("worker")) missing("cluster.worker");
  const auto task = config.find("task");
  if (task == config.end() || !task->contains("index")) missing("task.index");
  Cluster result;
  if (!cluster->at("worker").is_array()) missing("a list in cluster.worker");
  for (const nlohmann::json& worker : cluster->at("worker")) {
    if (!worker.is_string()) missing("a text in cluster.worker");
    const std::string address = worker.get<std::string>();
    result.hosts.push_back(address.substr(0, address.rfind(':')));
    check_host(result.hosts.back(), "TF_CONFIG");
  }
  const nlohmann::json& index = task->at("index");
  if (!index.is_number_integer()) missing("a number in task.index");
  const auto task_index = index.get<std::int64_t>();
  if (task_index < 0 || task_index >= std::ssize(result.hosts))
    fail(ErrorKind::Usage, "TF_CONFIG: task {} is not among the {} workers", task_index,
         result.hosts.size());
  result.task = static_cast<int>(task_index);
  return result;
}

std::optional<Cluster> cluster_of(const Options& options, const Environment& environment) {
  std::optional<Cluster> cluster;
  if (options.flag("distributed"))
    if (const auto config = environment("TF_CONFIG")) cluster = parse_tf_config(*config);
  if (const auto hosts = options.text("hosts"); hosts && !cluster) {
    cluster.emplace();
    cluster->hosts = split_list(*hosts, ' ');
    for (const std::string& host : cluster->hosts) check_slots(host, options.find("hosts")->where);
  }
  if (!cluster) {
    for (const char* name : {"ssh-port", "interface"})
      if (const Setting* given = options.find(name); given && given->origin == Origin::CommandLine)
        fail(ErrorKind::Usage,
             "{} has no effect here: it needs --hosts, or --distributed and TF_CONFIG",
             given->where);
    return cluster;
  }
  cluster->ssh_port = static_cast<int>(options.integer("ssh-port").value_or(0));
  cluster->interface = options.text("interface").value_or("");
  return cluster;
}

Options for_all_workers(Options options, const std::optional<Cluster>& cluster) {
  if (!cluster || !options.flag("distributed")) return options;
  const std::int64_t each = options.integer("replicas").value_or(1);
  options.set(*find_option("replicas"),
              {.value = each * static_cast<std::int64_t>(cluster->hosts.size()),
               .origin = Origin::Environment,
               .where = "--replicas on the workers in TF_CONFIG"});
  return options;
}

}  // namespace millrace::cli
