// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace millrace::io {

/// Adds to what a source tells its user: `head`, the first few of `count` things that it leaves
/// out, "left out: ...", and how many more there are.
void add_left_out(std::vector<std::string>& notices, const std::string& head, std::size_t count,
                  const std::function<std::string(std::size_t)>& describe);

}  // namespace millrace::io
