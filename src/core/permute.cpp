// SPDX-License-Identifier: Apache-2.0
#include "core/permute.hpp"

#include <functional>
#include <numeric>

#include "core/error.hpp"

namespace millrace {
namespace {

/// Calls `pair(before, after)` with the indices of each element.
void for_each_element(std::span<const std::int64_t> shape, std::span<const std::size_t> axes,
                      const auto& pair) {
  MILLRACE_ASSERT(axes.size() == shape.size());
  std::vector<std::size_t> strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;)
    strides[i - 1] = strides[i] * static_cast<std::size_t>(shape[i]);
  std::vector<std::int64_t> at(axes.size(), 0);
  const auto elements = static_cast<std::size_t>(
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
  for (std::size_t after = 0; after < elements; ++after) {
    std::size_t before = 0;
    for (std::size_t i = 0; i < axes.size(); ++i)
      before += static_cast<std::size_t>(at[i]) * strides[axes[i]];
    pair(before, after);
    for (std::size_t i = axes.size(); i-- > 0;) {
      if (++at[i] < shape[axes[i]]) break;
      at[i] = 0;
    }
  }
}

}  // namespace

std::vector<float> permuted(std::span<const float> values, std::span<const std::int64_t> shape,
                            std::span<const std::size_t> axes) {
  std::vector<float> result(values.size());
  for_each_element(shape, axes,
                   [&](std::size_t before, std::size_t after) { result[after] = values[before]; });
  return result;
}

std::vector<float> unpermuted(std::span<const float> values, std::span<const std::int64_t> shape,
                              std::span<const std::size_t> axes) {
  std::vector<float> result(values.size());
  for_each_element(shape, axes,
                   [&](std::size_t before, std::size_t after) { result[before] = values[after]; });
  return result;
}

}  // namespace millrace
