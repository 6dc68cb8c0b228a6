// SPDX-License-Identifier: Apache-2.0
//
// One binary for all x86-64 processors: hot loops are compiled for three instruction levels, and
// the highest one that the processor supports is used.
//
//   level     x86-64-   vectors   processors
//   sse4.2    v2        16 bytes  all current ones
//   avx2      v3        32        AMD since 2015, Intel since 2013
//   avx512    v4        64        Intel servers since 2017, AMD since 2022
//
// at_level(f) calls f compiled for that level, including everything that it inlines. f must be a
// lambda or functor whose loops can be inlined. Results are bit-identical at all levels: a product
// and a sum are never contracted into one operation. Where one rounding is wanted, std::fma says
// so; it is an instruction from AVX2 on.
//
// MILLRACE_MAX_ISA=sse4.2|avx2|avx512|native caps the level of this code and of the libraries, so
// that each level can be tested on a machine with a higher one. A build with MILLRACE_NATIVE has a
// single level, that of the processor it was built on.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace millrace {

enum class InstructionLevel : std::uint8_t { Sse42, Avx2, Avx512 };

inline constexpr std::array kInstructionLevels = {InstructionLevel::Sse42, InstructionLevel::Avx2,
                                                  InstructionLevel::Avx512};

/// "sse4.2", "avx2", "avx512".
[[nodiscard]] std::string_view name_of(InstructionLevel level) noexcept;

/// The highest level that processor and operating system support; nullopt unless on x86-64.
[[nodiscard]] std::optional<InstructionLevel> machine_level() noexcept;

/// Value of MILLRACE_MAX_ISA, read once; nullopt if it is unset or `native`. Errors: Usage, for an
/// unknown value and for a level below that of a build with MILLRACE_NATIVE.
[[nodiscard]] std::optional<InstructionLevel> level_cap();

/// The level that at_level() uses: the lower one of machine_level() and level_cap().
[[nodiscard]] InstructionLevel instruction_level();

/// Name of instruction_level(), or "native" in a build with a single level.
[[nodiscard]] std::string_view describe_instruction_level();

// Levels need function attributes of GCC and clang for x86-64 and apply to host code only.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(MILLRACE_NATIVE) && \
    !defined(__CUDACC__) && !defined(__HIPCC__)
#define MILLRACE_LEVELS 1

namespace levels {

// Instruction sets by name rather than "arch=": GCC inlines a function only if it was compiled for
// the same architecture and a subset of the caller's instruction sets.
#define MILLRACE_AVX2 "avx2,bmi,bmi2,fma"
#if defined(__clang__)
#define MILLRACE_WIDE ""  // clang uses the widest vectors by default
#else
#define MILLRACE_WIDE ",prefer-vector-width=512"
#endif
#define MILLRACE_AVX512 MILLRACE_AVX2 ",avx512f,avx512bw,avx512cd,avx512dq,avx512vl" MILLRACE_WIDE

template <class Function>
[[gnu::flatten]] void sse42(const Function& function) {
  function();
}
template <class Function>
[[gnu::flatten, gnu::target(MILLRACE_AVX2)]] void avx2(const Function& function) {
  function();
}
template <class Function>
[[gnu::flatten, gnu::target(MILLRACE_AVX512)]] void avx512(const Function& function) {
  function();
}

#undef MILLRACE_AVX2
#undef MILLRACE_WIDE
#undef MILLRACE_AVX512

}  // namespace levels
#endif

/// Calls function(), compiled for instruction_level().
template <class Function>
void at_level(const Function& function) {
#if defined(MILLRACE_LEVELS)
  switch (instruction_level()) {
    case InstructionLevel::Avx512:
      return levels::avx512(function);
    case InstructionLevel::Avx2:
      return levels::avx2(function);
    case InstructionLevel::Sse42:
      return levels::sse42(function);
  }
#else
  function();
#endif
}

}  // namespace millrace
