// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>

#include "comm/world.hpp"
#include "core/error.hpp"
#include "device/environment.hpp"
#include "run/fields.hpp"
#include "train/runtime.hpp"

namespace millrace::training {

/// The processes of a Runtime, for the classes of the library.
[[nodiscard]] const comm::World& world_of(const Runtime& runtime);

/// Lives while a function of the library computes or sends messages. An error that leaves it ends
/// the call in the other processes, too, and their work together: check with FailTogether what they
/// may go on after. A destructor, which sends nothing, has a device::Turn. Errors: Config, Peer.
class RuntimeCall {
 public:
  explicit RuntimeCall(const comm::World& world) : world_(world) { world_.begin(); }
  ~RuntimeCall() {
    if (std::uncaught_exceptions() > exceptions_) world_.tell_failure();
  }
  RuntimeCall(const RuntimeCall&) = delete;
  RuntimeCall& operator=(const RuntimeCall&) = delete;

 private:
  const device::Turn turn_;
  const comm::World& world_;
  int exceptions_ = std::uncaught_exceptions();
};

/// What `work` returns; its errors name members of Run where they name fields.
template <class Work>
decltype(auto) in_members(const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    const std::string text = run::with_members(error.what());
    if (text == error.what()) throw;
    throw Error(error.kind(), text, run::with_members(error.table()));
  }
}

}  // namespace millrace::training
