// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::io {

/// An archive as tar writes one (ustar).
class Tar {
 public:
  void add(const std::string& name, std::span<const std::byte> content, char type = '0',
           const std::string& target = "") {
    std::vector<std::byte> header(512);
    const auto put = [&](std::size_t at, std::string_view text) {
      std::ranges::copy(std::as_bytes(std::span(text)),
                        header.begin() + static_cast<std::ptrdiff_t>(at));
    };
    put(0, name.substr(0, 100));
    put(100, "0000644");
    put(124, fmt::format("{:011o}", content.size()));
    put(148, "        ");
    put(156, std::string_view(&type, 1));
    put(157, target);
    put(257, "ustar");
    unsigned sum = 0;
    for (const std::byte b : header) sum += std::to_integer<unsigned>(b);
    put(148, fmt::format("{:06o}", sum));
    header[154] = std::byte{0};
    bytes_.insert(bytes_.end(), header.begin(), header.end());
    bytes_.insert(bytes_.end(), content.begin(), content.end());
    bytes_.resize((bytes_.size() + 511) / 512 * 512);
  }
  [[nodiscard]] std::vector<std::byte> bytes() const {
    std::vector<std::byte> all = bytes_;
    all.resize(all.size() + 1024);
    return all;
  }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace millrace::io
