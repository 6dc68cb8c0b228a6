// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/world.hpp"
#include "device/environment.hpp"
#include "train/training.hpp"

namespace millrace::training {

/// The processes of a Runtime, for the classes of the library.
[[nodiscard]] const comm::World& world_of(const Runtime& runtime);

/// Lives while a function of the library computes or sends messages.
class RuntimeCall {
 public:
  explicit RuntimeCall(const comm::World&) {}

 private:
  const device::SubnormalsAsZero subnormals_;
};

}  // namespace millrace::training
