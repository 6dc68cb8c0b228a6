// SPDX-License-Identifier: Apache-2.0
#include "io/records/left_out.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/text.hpp"

namespace millrace::io {
namespace {

constexpr std::size_t kNamed = 5;

}  // namespace

void add_left_out(std::vector<std::string>& notices, const std::string& head, std::size_t count,
                  const std::function<std::string(std::size_t)>& describe) {
  notices.push_back(printable(head));
  const std::size_t named = std::min(count, kNamed);
  for (std::size_t i = 0; i < named; ++i)
    notices.push_back(printable(fmt::format("left out: {}", describe(i))));
  if (named < count) notices.push_back(fmt::format("and {} more", count - named));
}

}  // namespace millrace::io
