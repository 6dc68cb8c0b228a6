// SPDX-License-Identifier: Apache-2.0
#include "pipeline/schedule/generators/rules.hpp"

namespace millrace::pipeline {

// All forwards, then all backwards (arXiv 1811.06965).
std::vector<ActionList> gpipe(const ScheduleRequest& request) {
  std::vector<ActionList> lists(static_cast<std::size_t>(request.stages()));
  for (std::int32_t s = 0; s < request.stages(); ++s) {
    Writer w{lists[static_cast<std::size_t>(s)]};
    for (std::int32_t m = 0; m < request.micro_batches; ++m) w.forward(s, m);
    for (std::int32_t m = 0; m < request.micro_batches; ++m) w.backward(s, m);
  }
  return lists;
}

}  // namespace millrace::pipeline
