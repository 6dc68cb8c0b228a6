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

/// Reads options and records those that were read. They form the resolved configuration. An option
/// that was given but never read has no effect.
class Reader {
 public:
  explicit Reader(const Options& options) : options_(options) {}

  bool flag(std::string_view name);
  std::int64_t integer(std::string_view name, std::int64_t otherwise);
  /// An option whose default depends on another option. Recorded only when given, so that the
  /// default still follows the other option when a run is restored.
  std::int64_t follower(std::string_view name, std::int64_t otherwise);
  double follower_real(std::string_view name, double otherwise);
  double real(std::string_view name, double otherwise);
  std::vector<double> reals(std::string_view name, std::vector<double> otherwise);
  std::string text(std::string_view name, std::string_view otherwise);
  /// Marks an option as used without recording it.
  void use(std::string_view name);
  [[nodiscard]] bool used(std::string_view name) const;
  /// Records a value for an option, replacing an earlier one.
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
