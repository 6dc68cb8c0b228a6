// SPDX-License-Identifier: Apache-2.0
//
// Plans as `millrace plan --json` writes them and `train --plan` reads them.
#include <string>

#include "partition/plan.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace millrace::fuzz {

void run_one(std::span<const std::byte> input) {
  const std::string text(reinterpret_cast<const char*>(input.data()), input.size());
  fails_only_as(ErrorKind::Config, [&] {
    const partition::Plan plan = partition::parse_plan(text, "input");
    const std::string written = partition::to_json(plan);
    require(partition::to_json(partition::parse_plan(written, "input")) == written,
            "a plan reads back as written");
  });
}

std::vector<Bytes> seeds() {
  partition::Plan plan;
  plan.model = "resnet-8";
  plan.batch = 4;
  plan.micro_batches = 8;
  plan.schedule = "1F1B";
  plan.splits = {"b2/0"};
  plan.seconds = 0.5;
  plan.cost_model = "analytic";
  plan.device_of = {0, 1};
  plan.costs.resize(2);
  plan.memory = {1000, 2000};
  return {bytes_of(partition::to_json(plan))};
}

}  // namespace millrace::fuzz
