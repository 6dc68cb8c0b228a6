// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace millrace::pipeline {

/// Which process has which device. Devices are numbered replica by replica and divided into equal
/// consecutive groups, so that neighboring stages are on neighboring ranks, which launchers place
/// on one machine.
struct RankMap {
  std::int32_t devices = 1;  ///< of a replica
  std::int32_t replicas = 1;
  std::int32_t ranks = 1;  ///< divides devices x replicas

  [[nodiscard]] std::int32_t devices_per_rank() const { return devices * replicas / ranks; }
  [[nodiscard]] std::int32_t rank_of(std::int32_t replica, std::int32_t device) const {
    return (replica * devices + device) / devices_per_rank();
  }
  friend bool operator==(const RankMap&, const RankMap&) = default;
};

}  // namespace millrace::pipeline
