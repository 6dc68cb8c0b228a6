// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/options.hpp"

namespace millrace::cli {

/// Reads options and notes which were asked for: those are the resolved configuration, and what was
/// given but never asked for has no effect.
class Reader {
 public:
  explicit Reader(const Options& options) : options_(options) {}

  bool flag(std::string_view name);
  std::int64_t integer(std::string_view name, std::int64_t otherwise);
  /// An option whose default follows another option, and shall follow it still when that one
  /// changes: recorded only when given.
  std::int64_t follower(std::string_view name, std::int64_t otherwise);
  double follower_real(std::string_view name, double otherwise);
  double real(std::string_view name, double otherwise);
  std::vector<double> reals(std::string_view name, std::vector<double> otherwise);
  std::string text(std::string_view name, std::string_view otherwise);
  /// Marks an option as one that has an effect, without recording it.
  void use(std::string_view name);
  [[nodiscard]] bool used(std::string_view name) const;
  /// Replaces what is recorded for an option, or records it in the first place.
  template <class T>
  T note(std::string_view name, T value) {
    record(name, Value(value));
    return value;
  }

  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] bool given(std::string_view name) const { return options_.find(name) != nullptr; }
  [[nodiscard]] const std::map<std::string, Value, std::less<>>& effective() const {
    return effective_;
  }

 private:
  void record(std::string_view name, Value value);

  const Options& options_;
  std::set<std::string, std::less<>> used_;
  std::map<std::string, Value, std::less<>> effective_;
};

}  // namespace millrace::cli
