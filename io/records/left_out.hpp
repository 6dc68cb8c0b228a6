// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace millrace::io {

/// Adds notices about `count` things that a source leaves out: `head`, "left out: ..." for the
/// first few, and the number of the rest.
void add_left_out(std::vector<std::string>& notices, const std::string& head, std::size_t count,
                  const std::function<std::string(std::size_t)>& describe);

}  // namespace millrace::io
