// SPDX-License-Identifier: Apache-2.0
//
// Neighboring values in memory, as one kernel's work item reads and writes them. On cores the
// compiler turns a loop over them into vector instructions. On accelerators it would access each
// value alone, so they are loaded and stored together, 16 bytes at a time.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/portable.hpp"
#include "device/parallel.hpp"

// A short loop whose index must be known to the compiler, so that arrays stay in registers.
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#define MILLRACE_UNROLL _Pragma("GCC unroll 16")
#else
#define MILLRACE_UNROLL _Pragma("unroll")
#endif

namespace millrace::ops {

namespace lanes {

/// The largest access of an accelerator.
inline constexpr int kAccessBytes = 16;

template <class T, int W>
struct alignas(W * sizeof(T) < kAccessBytes ? W * sizeof(T) : kAccessBytes) Pack {
  T values[W];
};

/// NVIDIA's compiler takes the store of a struct apart and joins the parts again only where it sees
/// that they are neighbors, which unrolled loops hide. Of 16-bit values, whose parts are many, it
/// is told in assembly that it is one store.
template <class T, int W>
KOKKOS_INLINE_FUNCTION void store(T* to, const Pack<T, W>& pack) {
#if MILLRACE_PTX
  if constexpr (sizeof(T) == 2 && sizeof(pack) == kAccessBytes) {
    std::uint32_t words[4];
    std::memcpy(words, pack.values, sizeof(words));
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(__cvta_generic_to_global(to)), "r"(words[0]), "r"(words[1]), "r"(words[2]),
                   "r"(words[3])
                 : "memory");
    return;
  }
#endif
  *reinterpret_cast<Pack<T, W>*>(to) = pack;
}

/// Whether W values are accessed together.
template <int W>
inline constexpr bool kTogether = !device::kOnCores && W > 1;

}  // namespace lanes

/// Whether arrays that begin at these addresses may be accessed 16 bytes at a time.
template <class... Pointers>
[[nodiscard]] bool are_aligned(const Pointers*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % lanes::kAccessBytes == 0) && ...);
}

/// Reads W values from `from`. On accelerators they are aligned like a Pack.
template <int W, class T, bool kTogether = lanes::kTogether<W>>
class LanesIn {
 public:
  LanesIn() = default;
  KOKKOS_INLINE_FUNCTION explicit LanesIn(const T* from) : from_(from) {}
  KOKKOS_INLINE_FUNCTION T operator[](int j) const { return from_[j]; }

 private:
  const T* from_;
};

template <int W, class T>
class LanesIn<W, T, true> {
 public:
  LanesIn() = default;
  KOKKOS_INLINE_FUNCTION explicit LanesIn(const T* from)
      : pack_(*reinterpret_cast<const lanes::Pack<T, W>*>(from)) {}
  KOKKOS_INLINE_FUNCTION T operator[](int j) const { return pack_.values[j]; }

 private:
  lanes::Pack<T, W> pack_;
};

/// Writes W values to `to`, at the latest at its end: 16-bit values to the device's memory only.
template <int W, class T, bool kTogether = lanes::kTogether<W>>
class LanesOut {
 public:
  KOKKOS_INLINE_FUNCTION explicit LanesOut(T* to) : to_(to) {}
  KOKKOS_INLINE_FUNCTION void set(int j, T value) { to_[j] = value; }

 private:
  T* to_;
};

template <int W, class T>
class LanesOut<W, T, true> {
 public:
  KOKKOS_INLINE_FUNCTION explicit LanesOut(T* to) : to_(to) {}
  KOKKOS_INLINE_FUNCTION ~LanesOut() { lanes::store(to_, pack_); }
  LanesOut(const LanesOut&) = delete;
  LanesOut& operator=(const LanesOut&) = delete;
  KOKKOS_INLINE_FUNCTION void set(int j, T value) { pack_.values[j] = value; }

 private:
  T* to_;
  lanes::Pack<T, W> pack_;
};

}  // namespace millrace::ops
