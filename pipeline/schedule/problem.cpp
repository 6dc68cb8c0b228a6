// SPDX-License-Identifier: Apache-2.0
#include "pipeline/schedule/problem.hpp"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "core/error.hpp"

namespace millrace::pipeline {
namespace {

void check_numbers(const AutoRequest& r) {
  const std::size_t stages = r.costs.stages.size();
  const auto sized = [](std::size_t size, std::size_t wanted, std::string_view what) {
    if (size != 0 && size != wanted)
      fail(ErrorKind::Config, "schedule Auto: {} {}, expected {}", size, what, wanted);
  };
  if (stages == 0)
    fail(ErrorKind::Config, "schedule Auto: no stages; costs of at least 1 stage are required");
  if (r.micro_batches < 1)
    fail(ErrorKind::Config, "schedule Auto: {} micro-batches; at least 1 is required",
         r.micro_batches);
  sized(r.device_of.size(), stages, "entries in the device mapping");
  sized(r.stash_limit.size(), stages, "limits of micro-batches");
  sized(r.costs.message_bytes.size(), r.links.empty() ? stages - 1 : r.links.size(),
        "message sizes");
  for (const std::int32_t device : r.device_of)
    if (device < 0) fail(ErrorKind::Config, "schedule Auto: invalid device {} of a stage", device);
  for (const Link& l : r.links)
    if (l.from < 0 || l.from >= l.to || l.to >= static_cast<std::int32_t>(stages))
      fail(ErrorKind::Config, "schedule Auto: invalid link from stage {} to {} of {} stages",
           l.from, l.to, stages);
}

void check_limits(const ScheduleProblem& p) {
  if (!p.byte_limit.empty() && std::ssize(p.byte_limit) != p.devices())
    fail(ErrorKind::Config, "schedule Auto: {} byte limits, expected {}", p.byte_limit.size(),
         p.devices());
  for (std::int32_t s = 0; s < p.stages; ++s)
    if (p.caps[static_cast<std::size_t>(s)] < 1)
      fail(ErrorKind::Config,
           "schedule Auto: stage {} may hold {} micro-batches; at least 1 is required", s,
           p.caps[static_cast<std::size_t>(s)]);
  for (std::size_t d = 0; d < p.byte_limit.size(); ++d)
    if (p.byte_limit[d] < p.bytes_of_micro_batch(d))
      fail(ErrorKind::Config,
           "schedule Auto: device {} may hold {:.0f} bytes, but one micro-batch needs {:.0f}", d,
           p.byte_limit[d], p.bytes_of_micro_batch(d));
}

}  // namespace

ScheduleProblem::ScheduleProblem(const AutoRequest& r)
    : costs(r.costs.stages),
      stages(static_cast<std::int32_t>(costs.size())),
      micro_batches(r.micro_batches),
      split(r.split_backward),
      device_of(r.device_of),
      links(r.links.empty() ? chain(stages) : r.links),
      link(r.costs.link),
      message_bytes(r.costs.message_bytes),
      caps(r.stash_limit),
      byte_limit(r.byte_limit) {
  check_numbers(r);
  if (device_of.empty()) {
    device_of.resize(costs.size());
    std::iota(device_of.begin(), device_of.end(), 0);
  }
  const std::int32_t last = *std::max_element(device_of.begin(), device_of.end());
  stages_on.resize(static_cast<std::size_t>(last) + 1);
  for (std::int32_t s = 0; s < stages; ++s)
    stages_on[static_cast<std::size_t>(device(s))].push_back(s);
  message_bytes.resize(links.size());
  if (caps.empty()) caps.assign(costs.size(), micro_batches);
  for (std::int32_t& cap : caps) cap = std::min(cap, micro_batches);
  check_limits(*this);
}

Paths::Paths(const ScheduleProblem& p) : forward_(p.costs.size()), backward_(p.costs.size()) {
  for (std::int32_t s = 0; s < p.stages; ++s) {
    double after = p.split ? p.cost(s).backward_weight : 0.0;
    for (const Link& l : p.links)
      if (l.gradients && l.to == s)
        after = std::max(after, p.latency(l) + backward_[static_cast<std::size_t>(l.from)]);
    backward_[static_cast<std::size_t>(s)] = p.seconds(p.backward(), s) + after;
  }
  for (std::int32_t s = p.stages - 1; s >= 0; --s) {
    double after = backward_[static_cast<std::size_t>(s)];
    for (const Link& l : p.links)
      if (l.activations && l.from == s)
        after = std::max(after, p.latency(l) + forward_[static_cast<std::size_t>(l.to)]);
    forward_[static_cast<std::size_t>(s)] = p.cost(s).forward + after;
  }
}

}  // namespace millrace::pipeline
