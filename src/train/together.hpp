// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "comm/world.hpp"

namespace millrace::train {

/// Runs functions that may fail on some ranks, so that all ranks fail or none: the error of the
/// lowest failing rank is thrown on every rank. Collective.
class Together {
 public:
  explicit Together(const comm::World& world) : world_(&world) {}

  /// Runs `f` on every rank.
  void run(const std::function<void()>& f) const;
  /// Runs `f` on rank 0; the other ranks only learn whether it failed.
  void lead(const std::function<void()>& f) const;

 private:
  const comm::World* world_;
};

}  // namespace millrace::train
