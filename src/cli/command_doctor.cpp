// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "cli/commands.hpp"
#include "cli/launch.hpp"
#include "cli/open_run.hpp"
#include "comm/route.hpp"
#include "comm/world.hpp"
#include "core/counted.hpp"
#include "core/machine_limits.hpp"
#include "core/text.hpp"
#include "device/environment.hpp"
#include "millrace_version.hpp"
#include "ops/backend.hpp"
#include "pipeline/stage_messages.hpp"

namespace millrace::cli {
namespace {

int doctor(const Invocation& invocation, const comm::World& world) {
  const MachineFacts machine = this_machine(world);
  const int threads =
      static_cast<int>(invocation.options.integer("threads-per-device")
                           .value_or(std::max(1, machine.cores / std::max(1, world.local_size()))));
  pin_rank(world, threads);
  const device::Environment environment(threads);
  const bool on_cores = device::computes_on_cores() && !device::kFakeDevice;
  const std::vector<std::string> routes =
      comm::describe_routes(world, pipeline::device_memory(), on_cores);
  const std::optional<std::int64_t> of_gpu = device::free_memory();
  const std::vector<std::string> map = world.gather(
      fmt::format("{}, local rank {} of {}, {} on cores {}{}", host_name(), world.local_rank(),
                  world.local_size(), counted(threads, "thread"), join(device::core_numbers(), " "),
                  of_gpu ? fmt::format(", a GPU with {} free", human_bytes(*of_gpu)) : ""));
  if (world.rank() != 0) return 0;
  fmt::print("millrace   {} ({})\n", kVersion, kCommit);
  fmt::print("device     {}\n", device::describe_environment());
  const std::string gpu = of_gpu ? ops::describe_device_here() : "";
  if (!gpu.empty()) fmt::print("GPU        {}\n", gpu);
  fmt::print("kernels    {}\n", device::describe_kernels());
  fmt::print("products   {}\n           {}\n", ops::describe_products(DType::BF16),
             ops::describe_products(DType::F16));
  fmt::print("MPI        {}\n", comm::library_version());
  fmt::print("launcher   {}\n", printable(launch_command(1, {}, {}).front()));
  fmt::print("messages   {}\n", join(routes, "\n           "));
  const MachineLimits limits = read_limits();
  fmt::print("cores      {}\n", describe_cores(machine.cores, machine_cores(), limits.cores));
  fmt::print("memory     {}\n", describe_memory(limits));
  for (std::size_t r = 0; r < map.size(); ++r) fmt::print("rank {:<5} {}\n", r, map[r]);
  return 0;
}

}  // namespace

int command_doctor(const Invocation& invocation) {
  const comm::World world;
  return run_on_all_ranks(world, invocation, [&] { return doctor(invocation, world); });
}

}  // namespace millrace::cli
