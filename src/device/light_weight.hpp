// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

#include <cstddef>

namespace millrace::device {

/// The policy of a launch whose arguments travel with it. For functors of 512 bytes and more Kokkos
/// would copy them through one buffer of constant memory on GPUs of NVIDIA and AMD: the host would
/// wait for the kernel before, and a kept launch (launch_graph.hpp) would read the arguments of
/// another.
template <class Functor, class Policy>
[[nodiscard]] auto light_weight(const Policy& policy) {
  constexpr std::size_t kMostBytes = 3500;  // CUDA and HIP pass 4096, the policy included
  static_assert(sizeof(Functor) <= kMostBytes, "the arguments of a kernel are too large");
  return Kokkos::Experimental::require(policy,
                                       Kokkos::Experimental::WorkItemProperty::HintLightWeight);
}

}  // namespace millrace::device
