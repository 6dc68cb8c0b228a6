// SPDX-License-Identifier: Apache-2.0
//
// Division by a number that a kernel gets from its launch. Accelerators have no instruction for it:
// a 32-bit division takes about 20 instructions, a 64-bit one about 100. Where the divisor is known
// before, one multiplication and one shift do (Granlund and Montgomery 1994, "Division by invariant
// integers using multiplication").
#pragma once

#include <bit>
#include <cstdint>

#include "core/error.hpp"
#include "device/parallel.hpp"

namespace millrace::ops {

class FastDivide {
 public:
  template <class Number>
  struct Result {
    Number quotient;
    Number remainder;
  };

  explicit FastDivide(std::int64_t by) : by_(by) {
    MILLRACE_ASSERT(by > 0);
    if ((by >> 31) != 0) return;  // the quotient of a small number is 0
    const auto divisor = static_cast<std::uint64_t>(by);
    shift_ = static_cast<std::uint32_t>(std::bit_width(divisor - 1));
    multiplier_ =
        static_cast<std::uint32_t>(((std::uint64_t{1} << (31 + shift_)) + divisor - 1) / divisor);
  }

  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t by() const { return by_; }

  /// Of a number that is not negative. The multiplier is 2^(31 + shift) / by, rounded up by less
  /// than one, so that the product is above the exact quotient by less than 1 / by.
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int32_t quotient(std::int32_t number) const {
    const std::uint64_t product =
        std::uint64_t{static_cast<std::uint32_t>(number) << 1} * multiplier_;
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(product >> 32) >> shift_);
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION Result<std::int32_t> operator()(std::int32_t number) const {
    const std::int32_t of_number = quotient(number);
    return {of_number, number - of_number * static_cast<std::int32_t>(by_)};
  }
  /// The same for larger numbers. Slow.
  [[nodiscard]] KOKKOS_INLINE_FUNCTION Result<std::int64_t> operator()(std::int64_t number) const {
    return {number / by_, number % by_};
  }

 private:
  std::int64_t by_;
  std::uint32_t multiplier_ = 0;
  std::uint32_t shift_ = 0;
};

/// Calls f with `number`, which is not negative, in the type whose division is fast if that holds
/// it: one question for all divisions that follow.
template <class F>
KOKKOS_INLINE_FUNCTION auto with_fast_type(std::int64_t number, const F& f) {
  return (number >> 31) == 0 ? f(static_cast<std::int32_t>(number)) : f(number);
}

}  // namespace millrace::ops
