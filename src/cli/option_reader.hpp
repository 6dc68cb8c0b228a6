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
#include "train/config.hpp"

namespace millrace::cli {

/// Reads options and records those that were read. They form the resolved configuration. An option
/// that was given but never read has no effect.
class Reader {
 public:
  explicit Reader(const Options& options) : options_(options) {}

  /// Sets the member of the configuration that the option of this name stands for, if the option
  /// has an effect, to the value given or to the default: that of its row or what the member holds.
  void apply(std::string_view name, train::TrainConfig& config);
  /// The same for all options of a section, in the order of the table.
  void apply(Section section, train::TrainConfig& config);

  /// Without `otherwise` the default is that of the option's row.
  bool flag(std::string_view name) { return note(name, options_.flag(name)); }
  std::int64_t integer(std::string_view name, std::int64_t otherwise) {
    return note(name, options_.integer(name).value_or(otherwise));
  }
  std::int64_t integer(std::string_view name) { return read<std::int64_t>(name); }
  /// An option whose default depends on another option. Recorded only when given, so that the
  /// default still follows the other option when a run is restored.
  std::int64_t follower(std::string_view name, std::int64_t otherwise) {
    return given(name) ? integer(name, otherwise) : otherwise;
  }
  double real(std::string_view name, double otherwise) {
    return note(name, options_.real(name).value_or(otherwise));
  }
  double real(std::string_view name) { return read<double>(name); }
  std::vector<double> reals(std::string_view name) { return read<std::vector<double>>(name); }
  std::string text(std::string_view name, std::string_view otherwise) {
    return note(name, options_.text(name).value_or(std::string(otherwise)));
  }
  std::string text(std::string_view name) { return read<std::string>(name); }
  /// Marks an option as used without recording it.
  void use(std::string_view name) { used_.insert(std::string(name)); }
  [[nodiscard]] bool used(std::string_view name) const {
    return used_.contains(name) || effective_.contains(name);
  }
  /// Records a value for an option, replacing an earlier one.
  template <class T>
  T note(std::string_view name, T value) {
    effective_.insert_or_assign(std::string(name), Value(value));
    return value;
  }

  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] bool given(std::string_view name) const { return options_.find(name) != nullptr; }
  [[nodiscard]] std::string spelling(std::string_view name) const {
    return options_.spelling(name);
  }
  /// Where an option was given that is known to be.
  [[nodiscard]] const std::string& where(std::string_view name) const {
    return options_.find(name)->where;
  }
  [[nodiscard]] const std::map<std::string, Value, std::less<>>& effective() const {
    return effective_;
  }

 private:
  template <class T>
  T read(std::string_view name) {
    return note(name, std::get<T>(options_.value(name)));
  }
  void apply(const OptionSpec& spec, train::TrainConfig& config);

  const Options& options_;
  std::set<std::string, std::less<>> used_;
  std::map<std::string, Value, std::less<>> effective_;
};

}  // namespace millrace::cli
