// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "comm/world.hpp"

namespace millrace::train {

/// Runs what may fail on some ranks only, so that all ranks fail or none: the error of the lowest
/// rank that has one is thrown everywhere. Collective.
class Together {
 public:
  explicit Together(const comm::World& world) : world_(&world) {}

  /// On every rank.
  void run(const std::function<void()>& f) const;
  /// On rank 0 alone; the others only learn how it went.
  void lead(const std::function<void()>& f) const;

 private:
  const comm::World* world_;
};

}  // namespace millrace::train
