// SPDX-License-Identifier: Apache-2.0
#include "device/subnormals.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace millrace::device {
namespace {

#if defined(__x86_64__)
constexpr std::uint64_t kAsZero = 0x8040;  // flush results to zero, take arguments as zero
std::uint64_t control() { return _mm_getcsr(); }
void set_control(std::uint64_t bits) { _mm_setcsr(static_cast<unsigned>(bits)); }
#elif defined(__aarch64__)
constexpr std::uint64_t kAsZero = 1 << 24;  // FZ: both
std::uint64_t control() {
  std::uint64_t bits = 0;
  asm volatile("mrs %0, fpcr" : "=r"(bits));
  return bits;
}
void set_control(std::uint64_t bits) { asm volatile("msr fpcr, %0" : : "r"(bits)); }
#else
constexpr std::uint64_t kAsZero = 0;
std::uint64_t control() { return 0; }
void set_control(std::uint64_t) {}
#endif

}  // namespace

SubnormalsAsZero::SubnormalsAsZero() : before_(control()) { from_now_on(); }
SubnormalsAsZero::~SubnormalsAsZero() { set_control(before_); }
void SubnormalsAsZero::from_now_on() { set_control(control() | kAsZero); }

}  // namespace millrace::device
