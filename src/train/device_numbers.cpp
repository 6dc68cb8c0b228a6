// SPDX-License-Identifier: Apache-2.0
#include "train/device_numbers.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "device/environment.hpp"

namespace millrace::train {

std::vector<int> device_numbers_of(const TrainConfig& config, int rank) {
  std::vector<int> numbers;
  if (config.device_numbers.empty()) return numbers;
  const pipeline::RankMap& map = config.pipeline.ranks;
  for (std::int32_t r = 0; r < map.replicas; ++r)
    for (std::int32_t d = 0; d < map.devices; ++d)
      if (map.rank_of(r, d) == rank)
        numbers.push_back(
            config.device_numbers.at(static_cast<std::size_t>(std::int64_t{r} * map.devices + d)));
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

int gpu_of(const TrainConfig& config, int rank) {
  const std::vector<int> numbers = device_numbers_of(config, rank);
  if (numbers.empty() || device::computes_on_cores()) return -1;
  if (numbers.size() > 1)
    fail(ErrorKind::Config,
         "--select-ipus: rank {} was given GPUs {} and {}, but a process can use only one: start "
         "one rank per GPU with --ranks",
         rank, numbers[0], numbers[1]);
  return numbers.front();
}

}  // namespace millrace::train
