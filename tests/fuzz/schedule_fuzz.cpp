// SPDX-License-Identifier: Apache-2.0
//
// Schedules in files, as `train --pipeline-schedule-file` reads them.
#include <string>
#include <string_view>

#include "pipeline/schedule/schedule.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace millrace::fuzz {

void run_one(std::span<const std::byte> input) {
  const std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  fails_only_as(ErrorKind::Config, [&] {
    const pipeline::Schedule schedule = pipeline::parse_schedule(text, "input");
    require(pipeline::parse_schedule(pipeline::to_csv(schedule), "input").lists == schedule.lists,
            "a schedule reads back as written");
  });
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> inputs;
  for (const std::string_view text :
       {"0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", "0F0,,0F1, 0I0,0W0\n,1F0,1I0,1W0,1F1,1I1,1W1\n",
        "0F0,2F0,2B0,0B0\n1F0,1B0\n", "0UPDATE\n,,\n1UPDATE"})
    inputs.push_back(bytes_of(text));
  return inputs;
}

}  // namespace millrace::fuzz
