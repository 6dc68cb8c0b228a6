// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "pipeline/schedule/simulate.hpp"

namespace millrace::pipeline {

/// What devices send, each over a link of its own, one message after the other.
class Wires {
 public:
  explicit Wires(const LinkModel& link) : link_(link) {}
  /// When a message arrives that is started at `when`, after all messages of earlier calls.
  double arrival(std::int32_t from, std::int32_t to, double bytes, double when);
  /// When a device has sent everything, at the earliest `when`. From then on it sends for
  /// `seconds`; returns the end.
  double occupy(std::int32_t from, double when, double seconds);

 private:
  struct Sent {
    double queued;
    double left;
  };
  using Queue = std::vector<Sent>;

  LinkModel link_;
  std::map<std::int32_t, Queue> queues_;  ///< by sender
};

}  // namespace millrace::pipeline
