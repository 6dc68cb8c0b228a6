// SPDX-License-Identifier: Apache-2.0
//
// Choices that only a clock can make: how long a chunk is, which of two kernels computes an op. A
// build with MILLRACE_VARIANTS=ON takes them from the environment, so that tests/gpu/run.sh
// variants measures all of them without a compiler. In every other build they are constants. Their
// names, and what is expected of each, are in tests/gpu/variants.toml.
#pragma once

#ifdef MILLRACE_VARIANTS
#include <cstdio>
#include <cstdlib>
#include <string>
#endif

namespace millrace::ops {

#ifdef MILLRACE_VARIANTS
/// The number in the variable MILLRACE_VARIANT_<name>; `otherwise` if it is not set. Keep it, as
/// `static const int rows = variant("ROWS", 128);`: what is taken from the environment is printed,
/// which tells the measurement that this build has the choice and that the run came across it.
[[nodiscard]] inline int variant(const char* name, int otherwise) {
  const std::string variable = std::string("MILLRACE_VARIANT_") + name;
  const char* const text = std::getenv(variable.c_str());
  if (text == nullptr) return otherwise;
  const int value = std::atoi(text);
  std::fprintf(stderr, "%s is %d\n", variable.c_str(), value);
  return value;
}
#else
[[nodiscard]] constexpr int variant(const char*, int otherwise) { return otherwise; }
#endif

}  // namespace millrace::ops
