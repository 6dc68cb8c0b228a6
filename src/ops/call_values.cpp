// SPDX-License-Identifier: Apache-2.0
#include "ops/call_values.hpp"

#include "device/parallel.hpp"

namespace millrace::ops {
namespace {

struct Set {
  CallValues* on_device;
  CallValues values;
  KOKKOS_FUNCTION void operator()(std::int64_t) const { *on_device = values; }
};

}  // namespace

void set_values(const device::ExecutionSpace& space, CallValues* on_device,
                const CallValues& values) {
  device::parallel("set values", space, 1, Set{on_device, values});
}

}  // namespace millrace::ops
