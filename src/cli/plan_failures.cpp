// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "cli/command_line.hpp"
#include "cli/planning.hpp"
#include "cli/supervisor.hpp"
#include "core/error.hpp"
#include "core/json.hpp"

namespace millrace::cli {
namespace {

/// Options without an effect unless --failures-per-day is given.
constexpr auto kOfFailures =
    std::to_array<std::string_view>({"devices-per-host", "repair-hours", "restart-time",
                                     "checkpoint-stall", "partner-interval", "hang-timeout"});

/// At which a process writes its part of a checkpoint: disks and file systems of clusters write and
/// sync 0.3 to 0.9 GB/s for each.
constexpr double kWrittenPerSecond = 0.5e9;
/// To find the hosts that are left: they answer in seconds or not at all.
constexpr double kProbeSeconds = 10.0;

}  // namespace

void require_failures(const Patch& options) {
  if (!options.real("failures-per-day")) {
    for (const std::string_view name : kOfFailures)
      if (const Setting* typed = options.typed(name))
        fail(ErrorKind::Usage, "{} has no effect without --failures-per-day", typed->where);
    return;
  }
  if (options.integer("devices"))
    fail(ErrorKind::Usage,
         "--failures-per-day has no effect with --devices: plan the layout that it finds");
  if (options.text("format") == "csv")
    fail(ErrorKind::Usage, "--failures-per-day has no effect on the schedule, --format csv");
  if (options.value<std::int64_t>("hang-timeout") == 0)
    fail(ErrorKind::Usage,
         "with --hang-timeout 0 the loss of a host is never noticed: leave out one of it and "
         "--failures-per-day");
}

std::optional<partition::GoodputCurve> plan_failures(const Patch& options,
                                                     const partition::Plan& plan,
                                                     const partition::PlanRequest& request) {
  const std::optional<double> failures = options.real("failures-per-day");
  if (!failures) return std::nullopt;
  const std::int64_t devices = std::int64_t{request.schedule.devices} * request.replicas;
  const auto each = options.value<std::int64_t>("devices-per-host");
  double bytes = 0.0;  // of the device that saves the most
  for (const partition::ProcessMemory& process : plan.processes)
    for (const partition::DeviceMemory& device : process.devices)
      bytes = std::max(bytes, static_cast<double>(device.state));
  return partition::goodput_curve(
      {.hosts = static_cast<std::int32_t>((devices + each - 1) / each),
       .failures_per_day = *failures,
       .step = plan.seconds,
       .checkpoint_stall = options.real("checkpoint-stall").value_or(bytes / kWrittenPerSecond),
       .partner_interval = options.real("partner-interval").value_or(0.0),
       .partner_stall = request.link.latency + bytes / request.link.bytes_per_second,
       .notice =
           static_cast<double>(options.integer("hang-timeout").value_or(kSupervisedHangTimeout)),
       .probe = kProbeSeconds,
       .restart = options.value<double>("restart-time"),
       .away = 3600.0 * options.value<double>("repair-hours")});
}

std::string with_failures(const std::string& json,
                          const std::optional<partition::GoodputCurve>& failures) {
  if (!failures) return json;
  Json plan = Json::parse(json);
  plan.set("failures", to_json(*failures));
  return plan.dump(2) + "\n";
}

}  // namespace millrace::cli
