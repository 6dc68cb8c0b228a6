// SPDX-License-Identifier: Apache-2.0
#include "train/runtime.hpp"

#include <set>
#include <vector>

#include "core/error.hpp"
#include "core/machine_limits.hpp"
#include "train/agreement.hpp"
#include "train/runtime_call.hpp"

namespace millrace::training {
namespace {

comm::World make_world(const RuntimeOptions& options) {
  if (options.communicator == nullptr && options.processes == Processes::Alone)
    return comm::World(comm::World::Alone());
  return comm::World(comm::World::Guest{options.communicator});
}

}  // namespace

struct Runtime::Parts {
  explicit Parts(const RuntimeOptions& options)
      : threads(options.threads), world(make_world(options)) {}
  int threads;
  comm::World world;
};

Runtime::Runtime(int threads) : Runtime(RuntimeOptions{.threads = threads}) {}

Runtime::Runtime(const RuntimeOptions& options) : parts_(std::make_unique<Parts>(options)) {
  const comm::World& world = parts_->world;
  FailTogether(world).run([&] {
    if (options.threads < 1)
      fail(ErrorKind::Config, "a Runtime of {} threads: give at least 1", options.threads);
    device::join_environment(options.threads, options.gpu);
  });
  const std::vector<int> usable = world.gather_here(device::core_numbers());
  const std::set<int> cores(usable.begin(), usable.end());
  if (world.local_size() > whole_cores(static_cast<int>(cores.size()), read_limits().cores))
    world.share_cores();
}
Runtime::~Runtime() = default;
int Runtime::threads() const { return parts_->threads; }
int Runtime::rank() const { return parts_->world.rank(); }
int Runtime::ranks() const { return parts_->world.size(); }

const comm::World& world_of(const Runtime& runtime) { return runtime.parts_->world; }

}  // namespace millrace::training
