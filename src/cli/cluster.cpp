// SPDX-License-Identifier: Apache-2.0
#include "cli/cluster.hpp"

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/text.hpp"

namespace millrace::cli {

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
  for (const nlohmann::json& worker : cluster->at("worker")) {
    if (!worker.is_string()) missing("a text in cluster.worker");
    const std::string address = worker.get<std::string>();
    result.hosts.push_back(address.substr(0, address.rfind(':')));
  }
  const nlohmann::json& index = task->at("index");
  if (!index.is_number_integer()) missing("a number in task.index");
  result.task = index.get<int>();
  if (result.task < 0 || result.task >= static_cast<int>(result.hosts.size()))
    fail(ErrorKind::Usage, "TF_CONFIG: task {} is not among the {} workers", result.task,
         result.hosts.size());
  return result;
}

std::optional<Cluster> cluster_of(const Options& options, const Environment& environment) {
  std::optional<Cluster> cluster;
  if (options.flag("distributed"))
    if (const auto config = environment("TF_CONFIG")) cluster = parse_tf_config(*config);
  if (const auto hosts = options.text("hosts"); hosts && !cluster) {
    cluster.emplace();
    cluster->hosts = split_list(*hosts, ' ');
  }
  if (!cluster) return cluster;
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
