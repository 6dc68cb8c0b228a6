// SPDX-License-Identifier: Apache-2.0
//
// Differences between oneDNN 2.6 and 3.x, and helpers for all primitives.
#pragma once

#include <oneapi/dnnl/dnnl.hpp>
#include <string_view>
#include <unordered_map>

#include "core/dtype.hpp"
#include "device/arena.hpp"
#include "device/vendor_scope.hpp"

namespace millrace::ops::onednn {

using dnnl::memory;

[[nodiscard]] inline memory::data_type data_type(DType type) {
  switch (type) {
    case DType::BF16:
      return memory::data_type::bf16;
    case DType::F16:
      return memory::data_type::f16;
    default:
      return memory::data_type::f32;
  }
}

/// Whether the processor has an instruction set and the library may use it.
[[nodiscard]] inline bool has(dnnl::cpu_isa set) {
  const auto bits = static_cast<unsigned>(set);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & bits) == bits;
}

/// Whether the processor multiplies values of the type directly. Otherwise the library is slow at
/// best: its bfloat16 kernels for plain AVX-512 take twice the time of float32.
[[nodiscard]] inline bool multiplies(DType type) {
  if (type == DType::BF16) return has(dnnl::cpu_isa::avx512_core_bf16);
#if DNNL_VERSION_MAJOR >= 3
  if (type == DType::F16) return has(dnnl::cpu_isa::avx512_core_fp16);
#endif
  return type == DType::F32;
}

template <class Descriptor>
[[nodiscard]] std::int64_t bytes_of(const Descriptor& desc) {
  return static_cast<std::int64_t>(desc.get_size());
}

/// Lets the caller provide scratch memory.
[[nodiscard]] inline dnnl::primitive_attr user_scratch() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

/// Selects among the implementations that `describe` lists, fastest first: the first one with at
/// most `cap` bytes of scratch, or else the one with the least. Empty if there is none. `describe`
/// must make a new descriptor at each call, because copies share their position in the list.
template <class Describe>
auto implementation_within(std::int64_t cap, const Describe& describe) {
  auto candidate = describe();
  if (!candidate) return candidate;
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

/// Like the function above, but also empty if the library has only a reference implementation for a
/// 16-bit type.
template <class Describe>
auto implementation_within(std::int64_t cap, DType type, const Describe& describe) {
  const auto fastest = describe();
  const bool slow =
      fastest && type != DType::F32 && std::string_view(fastest.impl_info_str()).starts_with("ref");
  return slow ? decltype(describe())() : implementation_within(cap, describe);
}

/// Descriptor of oneDNN 3 or later, empty if the library has no such primitive. What contradicts
/// itself is an error, as for the operation descriptors before; descriptors that are allowed to be
/// empty would hide it.
template <class Descriptor, class... Args>
Descriptor described(const Args&... args) {
  try {
    return Descriptor(args..., user_scratch());
  } catch (const dnnl::error& error) {
    if (error.status != dnnl_unimplemented) throw;
    return Descriptor();
  }
}

/// Descriptor of a forward primitive, with at most `cap` bytes of scratch if possible. Empty if the
/// library has no such primitive. oneDNN before 3.0 needs an operation descriptor, which must stay
/// alive while implementations are listed.
template <class Primitive, class... Args>
auto forward_descriptor(const dnnl::engine& engine, std::int64_t cap, DType type,
                        const Args&... args) {
  using Descriptor = typename Primitive::primitive_desc;
#if DNNL_VERSION_MAJOR >= 3
  return implementation_within(cap, type, [&] { return described<Descriptor>(engine, args...); });
#else
  constexpr bool kMayBeEmpty = true;
  const typename Primitive::desc operation(args...);
  return implementation_within(
      cap, type, [&] { return Descriptor(operation, user_scratch(), engine, kMayBeEmpty); });
#endif
}

template <class Primitive, class Hint, class... Args>
auto backward_descriptor(const dnnl::engine& engine, std::int64_t cap, DType type, const Hint& hint,
                         const Args&... args) {
  using Descriptor = typename Primitive::primitive_desc;
#if DNNL_VERSION_MAJOR >= 3
  return implementation_within(cap, type,
                               [&] { return described<Descriptor>(engine, args..., hint); });
#else
  constexpr bool kMayBeEmpty = true;
  const typename Primitive::desc operation(args...);
  return implementation_within(
      cap, type, [&] { return Descriptor(operation, user_scratch(), engine, hint, kMayBeEmpty); });
#endif
}

/// A primitive with its arguments. Only the handles of activations change between calls.
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

}  // namespace millrace::ops::onednn
