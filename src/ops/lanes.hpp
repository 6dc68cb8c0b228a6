// SPDX-License-Identifier: Apache-2.0
//
// Neighboring values in memory, as one kernel's work item reads and writes them. On cores the
// compiler turns a loop over them into vector instructions. On accelerators it would access each
// value alone, so they are loaded and stored together, 16 bytes at a time.
#pragma once

#include <cstdint>

#include "device/parallel.hpp"

namespace millrace::ops {

namespace lanes {

/// The largest access of an accelerator.
inline constexpr int kAccessBytes = 16;

template <class T, int W>
struct alignas(W * sizeof(T) < kAccessBytes ? W * sizeof(T) : kAccessBytes) Pack {
  T values[W];
};

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
  KOKKOS_INLINE_FUNCTION explicit LanesIn(const T* from) : from_(from) {}
  KOKKOS_INLINE_FUNCTION T operator[](int j) const { return from_[j]; }

 private:
  const T* from_;
};

template <int W, class T>
class LanesIn<W, T, true> {
 public:
  KOKKOS_INLINE_FUNCTION explicit LanesIn(const T* from)
      : pack_(*reinterpret_cast<const lanes::Pack<T, W>*>(from)) {}
  KOKKOS_INLINE_FUNCTION T operator[](int j) const { return pack_.values[j]; }

 private:
  lanes::Pack<T, W> pack_;
};

/// Writes W values to `to`, at the latest at its end.
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
  KOKKOS_INLINE_FUNCTION ~LanesOut() { *reinterpret_cast<lanes::Pack<T, W>*>(to_) = pack_; }
  LanesOut(const LanesOut&) = delete;
  LanesOut& operator=(const LanesOut&) = delete;
  KOKKOS_INLINE_FUNCTION void set(int j, T value) { pack_.values[j] = value; }

 private:
  T* to_;
  lanes::Pack<T, W> pack_;
};

}  // namespace millrace::ops
