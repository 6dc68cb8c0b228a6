// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "comm/world.hpp"
#include "io/data/dataset.hpp"

namespace millrace::training {

/// Counts the bad samples of an epoch that were replaced by others, and ends the run if there are
/// too many. Counts only batches that devices have processed, over all ranks, so that a run ends at
/// the same iteration in every layout and with any number of threads.
class StandInLimit {
 public:
  /// `use` says what the images are for, e.g. "training". The references must outlive this.
  StandInLimit(const comm::World& world, const io::Dataset& dataset, double max_bad_fraction,
               std::string use);

  /// Continues an epoch that another process began.
  void resume(std::int64_t epoch, std::int64_t stand_ins);
  /// `stand_ins` is the number that all ranks' loaders have handed out up to a batch of `epoch`.
  /// Collective. Errors: Data, on all ranks, naming one bad image.
  void check(std::int64_t stand_ins, std::int64_t epoch);
  [[nodiscard]] std::int64_t in_epoch() const noexcept { return carried_ + seen_ - before_; }

 private:
  [[noreturn]] void refuse() const;

  const comm::World& world_;
  const io::Dataset& dataset_;
  double max_bad_fraction_;
  std::string use_;
  std::int64_t epoch_ = 0;
  std::int64_t carried_ = 0;  ///< of this epoch, counted by an earlier process
  std::int64_t before_ = 0;   ///< of this process, before this epoch
  std::int64_t seen_ = 0;     ///< of this process, in total
};

}  // namespace millrace::training
