// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/bench_machine.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <fstream>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "cli/cluster.hpp"
#include "cli/machine_file.hpp"
#include "cli/open_run.hpp"
#include "core/error.hpp"
#include "core/instruction_level.hpp"
#include "core/text.hpp"
#include "device/environment.hpp"
#include "io/atomic_file.hpp"
#include "partition/machine.hpp"
#include "tools/bench/measure_link.hpp"
#include "train/setup.hpp"
#include "train/stage_times.hpp"

namespace millrace::cli {
namespace {

/// A network whose ops are measured: together they have dense and depthwise convolutions, ops that
/// only move bytes, and ops so small that only the start of their kernel counts.
struct Probe {
  const char* dataset;
  const char* model;
  const char* size;
  std::int64_t batch;
};
constexpr std::array kProbes = {Probe{"imagenet", "resnet", "50", 4},
                                Probe{"imagenet", "efficientnet", "B0", 4},
                                Probe{"cifar-10", "resnet", "20", 1}};

struct Type {
  DType type;
  const char* precision;
  const char* half;
};
constexpr std::array kTypes = {Type{DType::F32, "32.32", "bf16"},
                               Type{DType::BF16, "16.32", "bf16"},
                               Type{DType::F16, "16.32", "fp16"}};

/// Errors: Usage for an option that does not say which devices are measured.
void require_only_devices(const Patch& options) {
  constexpr std::array kTaken = {"machine-file", "ranks",     "threads-per-device", "hosts",
                                 "ssh-port",     "interface", "no-launch",          "hang-timeout"};
  for (const auto& [name, setting] : options.settings())
    if (setting.origin == Origin::CommandLine &&
        std::ranges::find(kTaken, std::string_view(name)) == kTaken.end())
      fail(ErrorKind::Usage,
           "{} has no effect with --machine-file, which measures networks of its own: leave it out",
           setting.where);
}

run::Run config_of(const Probe& probe, const Type& type, const Patch& given, int ranks,
                   const MachineFacts& machine) {
  Patch options;
  for (const char* name : {"threads-per-device", "hosts", "ssh-port", "interface"})
    if (const Setting* setting = given.find(name)) options.set(*find_field(name), *setting);
  impose(options, "dataset", std::string(probe.dataset));
  impose(options, "model", std::string(probe.model));
  impose(options, "model-size", std::string(probe.size));
  impose(options, "batch-size", probe.batch);
  impose(options, "precision", std::string(type.precision));
  impose(options, "half", std::string(type.half));
  impose(options, "synthetic-data", true);
  impose(options, "iterations", std::int64_t{1});
  impose(options, "validation-mode", std::string("none"));
  impose(options, "replicas", std::int64_t{ranks});
  return resolve(options, published_facts(options), machine).config;
}

/// The rates of a device for one type, with a line that says how well they explain the times.
partition::DeviceModel measure(const Type& type, const Patch& given, int ranks,
                               const MachineFacts& machine, const comm::World& world) {
  std::vector<partition::KernelSample> all;
  std::vector<std::vector<partition::KernelSample>> by_network;
  for (const Probe& probe : kProbes) {
    const run::Run config = config_of(probe, type, given, ranks, machine);
    if (world.rank() == 0)
      fmt::print(stderr, "Measuring {} {} in {}\n", probe.model, probe.size, name_of(type.type));
    world.barrier();  // all devices work at the same time, as in a training
    const std::vector<partition::OpCost> costs = training::profiled_costs(config);
    by_network.push_back(partition::kernel_samples(training::network_of(config), config.batch_size,
                                                   config.precision.activations, costs));
    all.insert(all.end(), by_network.back().begin(), by_network.back().end());
  }
  partition::DeviceModel device = partition::fit_device({}, all);
  if (world.rank() != 0) return device;
  std::vector<ExplainedNetwork> networks;
  std::vector<std::string> shares;
  for (std::size_t i = 0; i < kProbes.size(); ++i) {
    double measured = 0.0;
    for (const partition::KernelSample& sample : by_network[i]) measured += sample.seconds;
    networks.push_back({.name = fmt::format("{} {}", kProbes[i].model, kProbes[i].size),
                        .share = predicted_seconds(device, by_network[i]) / measured});
    shares.push_back(
        fmt::format("{} {:.0f} %", networks.back().name, 100.0 * networks.back().share));
  }
  fmt::print(
      "{:<9} {:7.1f} GFLOP/s, depthwise {:6.1f}; {:5.1f} GB/s; {:4.1f} us a kernel; gives of "
      "the measured time: {}\n",
      name_of(type.type), 1e-9 * device.flops_per_second, 1e-9 * device.depthwise_flops_per_second,
      1e-9 * device.bytes_per_second, 1e6 * device.seconds_per_kernel, join(shares, ", "));
  if (const std::string notice = rates_notice(type.type, networks); !notice.empty())
    print_error(notice);
  return device;
}

/// The ranks to start without --ranks: as many as the hosts have room for, or one on each.
std::int64_t usual_ranks(const Invocation& invocation, const MachineFacts& machine) {
  const std::optional<Cluster> cluster = cluster_of(invocation.options, invocation.environment);
  if (!cluster) return std::min(2, machine.cores);
  return room_of(*cluster).value_or(std::ssize(cluster->hosts));
}

}  // namespace

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name"))
      if (const std::size_t at = line.find(": "); at != std::string::npos)
        return line.substr(at + 2);
  return {};
}

std::string rates_notice(DType type, std::span<const ExplainedNetwork> networks) {
  constexpr double kMost = 0.25;
  std::vector<std::string> missed;
  for (const ExplainedNetwork& network : networks)
    if (std::abs(network.share - 1.0) > kMost)
      missed.push_back(fmt::format("{} {:.2f} times", network.name, network.share));
  if (missed.empty()) return {};
  return fmt::format(
      "{}: the rates give {} the measured time, so plans of networks with kernels of such sizes "
      "are as far off: measure again while nothing else runs, or use plan --cost-model profile",
      name_of(type), join(missed, ", "));
}

int bench_machine(const Invocation& invocation, const comm::World& world, StartupWatch& watch) {
  const Patch& options = invocation.options;
  require_asked_alike(world, request_of(invocation));
  require_only_devices(options);
  const MachineFacts facts = this_machine(world);
  const int ranks =
      facts.ranks > 0
          ? facts.ranks
          : static_cast<int>(options.integer("ranks").value_or(usual_ranks(invocation, facts)));
  const run::Run config = config_of(kProbes.front(), kTypes.front(), options, ranks, facts);
  watch.end();
  if (must_launch(config, world)) {
    (void)io::StagedFile(*options.text("machine-file"));  // fails before anything is measured
    return launch_ranks(config, invocation);
  }
  pin_rank(world, config);
  std::optional<io::StagedFile> written;
  if (world.rank() == 0) written.emplace(*options.text("machine-file"));
  const device::Environment environment(config.threads);
  partition::Machine machine{.name = processor_name(),
                             .cores = config.threads,
                             .instructions = std::string(describe_instruction_level()),
                             .memory = facts.memory,
                             .devices = {},
                             .link = {}};
  if (world.rank() == 0) {
    warn_of_load();
    fmt::print("{}, {} device(s) of {} core(s), {}\n", machine.name, ranks, config.threads,
               machine.instructions);
  }
  for (const Type& type : kTypes)
    machine.devices[type.type] = measure(type, options, ranks, facts, world);
  if (world.size() > 1) {
    if (world.rank() == 0)
      fmt::print(stderr, "Measuring the link between rank 0 and rank {}: some {:.0f} s at most\n",
                 world.size() - 1, comm::kLinkSeconds);
    const comm::LinkSpeed speed = comm::measure_link(world);
    machine.link = {.latency = speed.latency,
                    .bytes_per_second = speed.bytes_per_second,
                    .exchanged_per_second = speed.exchanged_per_second,
                    .receiver_copies = world.local_size() == world.size()};
  }
  if (world.rank() != 0) return 0;
  if (machine.link)
    fmt::print("link      {:.1f} us, {:.3f} GB/s, {:.3f} GB/s each way if both ends send\n",
               1e6 * machine.link->latency, 1e-9 * machine.link->bytes_per_second,
               1e-9 * machine.link->exchanged_per_second);
  const std::string file = printable(*options.text("machine-file"));
  const std::string text = to_toml(machine);
  written->write(std::as_bytes(std::span(text)), 0);
  written->commit();
  fmt::print("Written to {}: millrace plan --device {} --link {} uses it\n", file, file, file);
  return 0;
}

}  // namespace millrace::cli
