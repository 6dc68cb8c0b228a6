// SPDX-License-Identifier: Apache-2.0
#include "train/kernel_rules.hpp"

#include <fmt/format.h>

#include "device/environment.hpp"
#include "ops/backend.hpp"
#include "train/agreement.hpp"

namespace millrace::training {

std::string environment_of(const run::Run& config) {
  const std::string here = ops::describe_device_here();
  std::string text = device::describe_environment() + (here.empty() ? "" : "; " + here);
  if (config.allow_nondeterministic) text += "; sums may vary from run to run";
  // With less scratch, libraries have other kernels, whose sums have another order.
  if (!config.scratch_caps.empty())
    text += fmt::format("; scratch of at most {} bytes", fmt::join(config.scratch_caps, ", "));
  return text;
}

std::vector<std::string> describe_kernel_rules(const run::Run& config) {
  if (!config.allow_nondeterministic) return {};
  return {
      "Sums of convolutions may have another order from run to run (`allow-nondeterministic`): "
      "results repeat to rounding, not bit for bit"};
}

void require_same_kernels(const run::Run& config, const comm::World& world) {
  if (config.allow_nondeterministic) return;
  const std::string here = ops::describe_device_here();
  require_alike(world, {{"device with its libraries", here.empty() ? "cores" : here,
                         "run all ranks on GPUs of one kind with the same libraries, or give "
                         "`allow-nondeterministic`, as their sums have another order"}});
}

}  // namespace millrace::training
