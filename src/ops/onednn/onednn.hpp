// SPDX-License-Identifier: Apache-2.0
//
// What differs between oneDNN 2.6 and 3.x, and the small pieces that every primitive needs.
#pragma once

#include <algorithm>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <utility>

#include "core/dtype.hpp"
#include "device/arena.hpp"
#include "device/vendor_scope.hpp"

namespace millrace::ops::onednn {

using dnnl::memory;

[[nodiscard]] inline memory::data_type data_type(DType type) {
  return type == DType::BF16 ? memory::data_type::bf16 : memory::data_type::f32;
}

template <class Descriptor>
[[nodiscard]] std::int64_t bytes_of(const Descriptor& desc) {
  return static_cast<std::int64_t>(desc.get_size());
}

/// Scratch memory is ours to place.
[[nodiscard]] inline dnnl::primitive_attr user_scratch() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

/// Of the implementations that `describe` lists, fastest first, the first whose scratch has at most
/// `cap` bytes, or else the one that needs least. `describe` makes a fresh descriptor at each call:
/// copies of one share their place in the list.
template <class Describe>
auto implementation_within(std::int64_t cap, const Describe& describe) {
  auto candidate = describe();
  std::int64_t least = bytes_of(candidate.scratchpad_desc());
  int best = 0;
  for (int at = 1; least > cap && candidate.next_impl(); ++at) {
    const std::int64_t bytes = bytes_of(candidate.scratchpad_desc());
    if (bytes >= least) continue;
    least = bytes;
    best = at;
  }
  auto chosen = describe();
  for (int at = 0; at < best; ++at) chosen.next_impl();
  return chosen;
}

/// Descriptor of a forward primitive whose scratch has at most `cap` bytes where there is one:
/// operation descriptors are gone since 3.0, and read before whenever another implementation is
/// looked for.
template <class Primitive, class... Args>
auto forward_descriptor(const dnnl::engine& engine, std::int64_t cap, const Args&... args) {
  using Descriptor = typename Primitive::primitive_desc;
#if DNNL_VERSION_MAJOR >= 3
  return implementation_within(cap, [&] { return Descriptor(engine, args..., user_scratch()); });
#else
  const typename Primitive::desc operation(args...);
  return implementation_within(cap, [&] { return Descriptor(operation, user_scratch(), engine); });
#endif
}

template <class Primitive, class Hint, class... Args>
auto backward_descriptor(const dnnl::engine& engine, std::int64_t cap, const Hint& hint,
                         const Args&... args) {
  using Descriptor = typename Primitive::primitive_desc;
#if DNNL_VERSION_MAJOR >= 3
  return implementation_within(cap,
                               [&] { return Descriptor(engine, args..., hint, user_scratch()); });
#else
  const typename Primitive::desc operation(args...);
  return implementation_within(cap,
                               [&] { return Descriptor(operation, user_scratch(), engine, hint); });
#endif
}

/// A primitive with its arguments; only the handles of activations change between calls.
struct Call {
  dnnl::primitive primitive;
  std::unordered_map<int, memory> arguments;

  void set(int argument, const void* data) {
    arguments.at(argument).set_data_handle(const_cast<void*>(data));
  }
  void run(dnnl::stream& stream) const {
    const device::VendorScope vendor;
    primitive.execute(stream, arguments);
  }
};

/// A memory object without memory yet.
[[nodiscard]] inline memory unbound(const memory::desc& desc, const dnnl::engine& engine) {
  return memory(desc, engine, DNNL_MEMORY_NONE);
}

}  // namespace millrace::ops::onednn
