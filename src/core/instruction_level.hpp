// SPDX-License-Identifier: Apache-2.0
//
// One binary for every x86-64: hot loops are compiled once for each of three instruction levels,
// and the highest that the processor has runs.
//
//   level     x86-64-   vectors   processors
//   sse4.2    v2        16 bytes  all that count today
//   avx2      v3        32        AMD since 2015, Intel since 2013
//   avx512    v4        64        servers of Intel since 2017, AMD since 2022
//
// at_level(f) calls f with everything that it inlines compiled for that level: f has to be a lambda
// or functor whose loops stand in functions that can be inlined. Arithmetic does not differ between
// levels, a product and a sum are never contracted to one operation: results are the same to the
// bit.
//
// MILLRACE_MAX_ISA=sse4.2|avx2|avx512|native caps the level, and that of the libraries, so that
// each level can be tested on a machine that has a higher one. A build with MILLRACE_NATIVE has one
// level, that of the processor it was built on.
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

/// The highest level of which processor and system have everything; nothing on other than x86-64.
[[nodiscard]] std::optional<InstructionLevel> machine_level() noexcept;

/// What MILLRACE_MAX_ISA says, read once; nothing where it is not set, or `native`. Errors: Usage,
/// for other words, and for a level below that of a build with MILLRACE_NATIVE.
[[nodiscard]] std::optional<InstructionLevel> level_cap();

/// The level that at_level() runs at: machine_level(), or level_cap() where that is lower.
[[nodiscard]] InstructionLevel instruction_level();

/// That level, or "native" where everything is compiled for one machine.
[[nodiscard]] std::string_view describe_instruction_level();

// Levels need attributes of GCC and clang for x86-64, on code for host cores.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(MILLRACE_NATIVE) && \
    !defined(__CUDACC__) && !defined(__HIPCC__)
#define MILLRACE_LEVELS 1

namespace levels {

// Instruction sets by name rather than "arch=": GCC inlines into a function only what was compiled
// for the same architecture and a part of its instruction sets.
#define MILLRACE_AVX2 "avx2,bmi,bmi2"
#if defined(__clang__)
#define MILLRACE_WIDE ""  // takes the widest by itself
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

/// Calls function(), compiled for the level.
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
