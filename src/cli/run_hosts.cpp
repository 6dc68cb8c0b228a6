// SPDX-License-Identifier: Apache-2.0
#include "cli/run_hosts.hpp"

#include <fmt/format.h>

#include "cli/launch.hpp"
#include "core/error.hpp"
#include "core/text.hpp"

namespace millrace::cli {

using std::chrono::milliseconds;

bool is_among(std::span<const Host> hosts, const std::string& name) {
  return std::ranges::find(hosts, name, &Host::name) != hosts.end();
}

RunHosts::RunHosts(const std::optional<Cluster>& cluster, int ranks)
    : cluster_(cluster), ranks_(ranks) {}

void RunHosts::find() {
  if (!cluster_->file.empty()) try {
      cluster_->hosts = hosts_in(cluster_->file);
    } catch (const Error& error) {  // perhaps it is just being written
      report_error(error, "the hosts stay as they were: ");
    }
  std::vector<Host> found;
  for (const std::string& text : with_room(*cluster_, ranks_)) {
    const std::string name = name_of_host(text);
    Host& host = found.emplace_back(is_among(hosts_, name) ? at(name) : Host{.name = name});
    host.room = parse_number<int>(text.substr(name.size() + 1)).value_or(1);
  }
  hosts_ = std::move(found);
}

Host& RunHosts::at(const std::string& name) {
  return *std::ranges::find(hosts_, name, &Host::name);
}

std::vector<Host> RunHosts::besides(std::span<const Host> hosts) const {
  std::vector<Host> others = hosts_;
  std::erase_if(others, [&](const Host& host) { return is_among(hosts, host.name); });
  return others;
}

int RunHosts::ranks_on(std::span<const Host> hosts) const {
  if (!cluster_) return ranks_;
  int room = 0;
  for (const Host& host : hosts) room += host.room;
  return std::min(room, ranks_);
}

std::optional<Cluster> RunHosts::cluster_of(std::span<const Host> hosts) const {
  std::optional<Cluster> cluster = cluster_;
  if (cluster) cluster->hosts.clear();
  for (const Host& host : hosts)
    cluster->hosts.push_back(fmt::format("{}:{}", host.name, host.room));
  return cluster;
}

HostProbe RunHosts::ask(std::span<const Host> hosts) const {
  std::vector<std::string> names;
  for (const Host& host : hosts)
    if (!host.is_out()) names.push_back(host.name);
  return HostProbe(*cluster_, names);
}

void RunHosts::command(std::span<const Host> hosts, const std::string& command) const {
  std::vector<std::string> names;
  for (const Host& host : hosts) names.push_back(host.name);
  if (!names.empty()) HostProbe(*cluster_, names, command).wait(for_suspected());
}

void RunHosts::ask_early() try {
  if (cluster_) probe_.emplace(ask(hosts_));
} catch (const Error& error) {  // asked again later
  report_error(error);
}

std::vector<Host> RunHosts::answering() {
  std::set<std::string> suspected;
  for (const Host& host : hosts_)
    if (host.suspected) suspected.insert(host.name);
  const bool is_new =
      !probe_ || probe_->age() > 2 * kBusy || std::ranges::any_of(hosts_, [&](const Host& host) {
        return !host.is_out() && !probe_->asked().contains(host.name);
      });
  if (is_new) probe_.emplace(ask(hosts_));
  probe_->wait(kBusy, suspected);
  probe_->wait(for_suspected());
  if (is_new) login_ = std::max(login_, probe_->slowest());  // looked at without a break
  refused_ = probe_->refused();
  std::vector<Host> answering = hosts_;
  std::erase_if(answering, [&](const Host& host) {
    return host.is_out() || !probe_->answered().contains(host.name);
  });
  probe_.reset();
  return answering;
}

milliseconds RunHosts::for_suspected() const {
  constexpr milliseconds kLeast{1000};
  return std::clamp(3 * login_, kLeast, kBusy);
}

std::set<std::string> RunHosts::unreached(std::set<std::string> names) {
  if (names.empty()) return names;
  if (!probe_) probe_.emplace(ask(hosts_));
  probe_->wait(for_suspected());
  for (const std::string& name : probe_->answered()) names.erase(name);
  return names;
}

}  // namespace millrace::cli
