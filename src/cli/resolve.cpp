// SPDX-License-Identifier: Apache-2.0
#include "cli/resolve.hpp"

#include <utility>

#include "cli/resolve_parts.hpp"

namespace millrace::cli {

Resolution resolve(const Patch& given, const DatasetFacts& data, const MachineFacts& machine) {
  run::Completed completed = run::complete(given, data, machine);
  Resolution result{.config = std::move(completed.run), .notices = std::move(completed.notices)};
  result.layout = resolve_layout(machine, result.config, result.notices);
  result.place = run::complete_layout(given, machine, result.config, result.notices);
  return result;
}

}  // namespace millrace::cli
