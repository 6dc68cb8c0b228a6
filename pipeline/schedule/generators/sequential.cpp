// SPDX-License-Identifier: Apache-2.0
#include "pipeline/schedule/generators/rules.hpp"

namespace millrace::pipeline {

// One micro-batch after the other: for shards that only share memory.
//
//   device 0  F0          B0 F1          B1
//   device 1     F0    B0       F1    B1
//   device 2        F0 B0          F1 B1
std::vector<ActionList> sequential(const ScheduleRequest& request) {
  std::vector<ActionList> lists(static_cast<std::size_t>(request.stages()));
  for (std::int32_t s = 0; s < request.stages(); ++s) {
    Writer w{lists[static_cast<std::size_t>(s)]};
    for (std::int32_t m = 0; m < request.micro_batches; ++m) {
      w.forward(s, m);
      w.backward(s, m);
    }
  }
  return lists;
}

}  // namespace millrace::pipeline
