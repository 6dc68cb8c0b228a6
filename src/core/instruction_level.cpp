// SPDX-License-Identifier: Apache-2.0
#include "core/instruction_level.hpp"

#include <algorithm>
#include <cstdlib>

#include "core/error.hpp"

namespace millrace {
namespace {

constexpr const char* kVariable = "MILLRACE_MAX_ISA";

std::optional<InstructionLevel> read_cap() {
  const char* const text = std::getenv(kVariable);
  const std::string_view word = text == nullptr ? "" : text;
  if (word.empty() || word == "native") return std::nullopt;
  const auto* const level =
      std::find_if(kInstructionLevels.begin(), kInstructionLevels.end(),
                   [&](InstructionLevel candidate) { return name_of(candidate) == word; });
  if (level == kInstructionLevels.end())
    fail(ErrorKind::Usage, "{}={}: not an instruction level; use sse4.2, avx2, avx512 or native",
         kVariable, word);
#if defined(MILLRACE_NATIVE)
  if (machine_level() && *level < *machine_level())
    fail(ErrorKind::Usage,
         "{}={}: cannot cap this build, which is compiled for instruction level {} only; rebuild "
         "with MILLRACE_NATIVE=OFF",
         kVariable, word, name_of(*machine_level()));
#endif
  return *level;
}

}  // namespace

std::string_view name_of(InstructionLevel level) noexcept {
  if (level == InstructionLevel::Sse42) return "sse4.2";
  return level == InstructionLevel::Avx2 ? "avx2" : "avx512";
}

std::optional<InstructionLevel> machine_level() noexcept {
#if defined(__x86_64__) && defined(__GNUC__)
  // All instruction sets that at_level() compiles for. __builtin_cpu_supports also checks that the
  // operating system saves the wide registers.
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("bmi") ||
      !__builtin_cpu_supports("bmi2") || !__builtin_cpu_supports("fma"))
    return InstructionLevel::Sse42;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512cd") || !__builtin_cpu_supports("avx512dq") ||
      !__builtin_cpu_supports("avx512vl"))
    return InstructionLevel::Avx2;
  return InstructionLevel::Avx512;
#else
  return std::nullopt;
#endif
}

std::optional<InstructionLevel> level_cap() {
  static const std::optional<InstructionLevel> cap = read_cap();
  return cap;
}

InstructionLevel instruction_level() {
  static const InstructionLevel level = [] {
    const InstructionLevel machine = machine_level().value_or(InstructionLevel::Sse42);
    return std::min(machine, level_cap().value_or(machine));
  }();
  return level;
}

std::string_view describe_instruction_level() {
#if defined(MILLRACE_LEVELS)
  return name_of(instruction_level());
#else
  (void)level_cap();  // throws if the cap is not possible
  return "native";
#endif
}

}  // namespace millrace
