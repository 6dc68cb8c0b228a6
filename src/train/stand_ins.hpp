// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "comm/world.hpp"
#include "io/dataset.hpp"

namespace millrace::train {

/// Counts the samples of an epoch of which others took the place, because they are bad, and ends
/// the run when they are too many. What is counted are the batches that the devices have worked on,
/// over all ranks, so that neither the layout nor the threads decide where a run ends.
class StandInLimit {
 public:
  /// `use` says what the images are for, "training". They must outlive this.
  StandInLimit(const comm::World& world, const io::Dataset& dataset, double max_bad_fraction,
               std::string use);

  /// Goes on within an epoch that another process began.
  void resume(std::int64_t epoch, std::int64_t stand_ins);
  /// `stand_ins` are all that this process' loaders and those of the other ranks have handed out,
  /// up to a batch of `epoch`. Collective. Errors: Data, on all ranks, naming one on rank 0.
  void check(std::int64_t stand_ins, std::int64_t epoch);
  [[nodiscard]] std::int64_t in_epoch() const noexcept { return carried_ + seen_ - before_; }

 private:
  [[noreturn]] void refuse() const;

  const comm::World& world_;
  const io::Dataset& dataset_;
  double max_bad_fraction_;
  std::string use_;
  std::int64_t epoch_ = 0;
  std::int64_t carried_ = 0;  ///< of the epoch, by another process
  std::int64_t before_ = 0;   ///< of this process, before the epoch
  std::int64_t seen_ = 0;     ///< of this process in all
};

}  // namespace millrace::train
