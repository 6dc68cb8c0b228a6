// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/bfloat16.hpp"
#include "core/float16.hpp"

/// Instantiates a function template of this namespace for all storage types.
#define MILLRACE_INSTANTIATE(function)                      \
  template decltype(function<float>) function<float>;       \
  template decltype(function<bfloat16>) function<bfloat16>; \
  template decltype(function<float16>) function<float16>;

/// The same for a template with a second type.
#define MILLRACE_INSTANTIATE_WITH(function, type)                       \
  template decltype(function<float, type>) function<float, type>;       \
  template decltype(function<bfloat16, type>) function<bfloat16, type>; \
  template decltype(function<float16, type>) function<float16, type>;
