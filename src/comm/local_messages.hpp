// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "comm/device_memory.hpp"

namespace millrace::comm {

/// Messages of a rank to itself. For each tag, started sends and started receives wait in two
/// rings, one of which is always empty.
class LocalMessages {
 public:
  explicit LocalMessages(CopyBytes copy) : copy_(copy) {}

  /// Returns the number of a receive (`to`) or a send (`from`; the other is null).
  int add(std::byte* to, const std::byte* from, std::int64_t bytes, int tag);
  void start(int number);
  [[nodiscard]] bool done(int number) const { return ends_[static_cast<std::size_t>(number)].done; }

 private:
  class Ring {
   public:
    void add_place() { places_.push_back(0); }
    [[nodiscard]] bool empty() const { return size_ == 0; }
    void push(int number);
    int pop();

   private:
    std::vector<int> places_;
    std::size_t first_ = 0;
    std::size_t size_ = 0;
  };
  struct Line {
    Ring sends;
    Ring receives;
  };
  struct End {
    Line* line;
    std::byte* to;
    const std::byte* from;
    std::int64_t bytes;
    bool done;
  };

  void deliver(Line& line);

  CopyBytes copy_;
  std::map<int, Line> lines_;  ///< by tag
  std::deque<End> ends_;
};

}  // namespace millrace::comm
