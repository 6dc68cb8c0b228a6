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

/// Scratch memory is ours to place.
[[nodiscard]] inline dnnl::primitive_attr user_scratch() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

/// Descriptor of a forward primitive: operation descriptors are gone since 3.0.
template <class Primitive, class... Args>
auto forward_descriptor(const dnnl::engine& engine, const Args&... args) {
#if DNNL_VERSION_MAJOR >= 3
  return typename Primitive::primitive_desc(engine, args..., user_scratch());
#else
  return
      typename Primitive::primitive_desc(typename Primitive::desc(args...), user_scratch(), engine);
#endif
}

template <class Primitive, class Hint, class... Args>
auto backward_descriptor(const dnnl::engine& engine, const Hint& hint, const Args&... args) {
#if DNNL_VERSION_MAJOR >= 3
  return typename Primitive::primitive_desc(engine, args..., hint, user_scratch());
#else
  return typename Primitive::primitive_desc(typename Primitive::desc(args...), user_scratch(),
                                            engine, hint);
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

[[nodiscard]] inline std::int64_t bytes_of(const memory::desc& desc) {
  return static_cast<std::int64_t>(desc.get_size());
}

}  // namespace millrace::ops::onednn
