// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/bfloat16.hpp"
#include "core/float16.hpp"

/// Instantiates a function template of this namespace for all storage types.
#define MILLRACE_INSTANTIATE(function)                      \
  template decltype(function<float>) function<float>;       \
  template decltype(function<bfloat16>) function<bfloat16>; \
  template decltype(function<float16>) function<float16>;
