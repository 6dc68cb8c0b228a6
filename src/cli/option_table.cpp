// SPDX-License-Identifier: Apache-2.0
#include "cli/option_table.hpp"

#include <vector>

namespace millrace::cli {

std::span<const OptionSpec> option_table() {
  static const std::vector<OptionSpec> table = [] {
    std::vector<OptionSpec> all;
    for (const std::span<const OptionSpec> part :
         {model_options(), data_options(), train_options(), rate_options(), output_options(),
          pipeline_options(), device_options(), command_options()})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  }();
  return table;
}

}  // namespace millrace::cli
