// SPDX-License-Identifier: Apache-2.0
//
// What is asked of a run: values of fields, and who gave each, in this order of precedence:
//
//   command line  >  environment  >  file (`config`)  >  default of a `dialect`  >  default
//
// A patch does not hold defaults. Many of them depend on the model and the data set; complete.hpp
// fills them in.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "run/fields.hpp"

namespace millrace::models {
struct Graph;
}

namespace millrace::run {

enum class Origin { Dialect, File, Environment, CommandLine };
struct Setting {
  Value value;
  Origin origin = Origin::CommandLine;
  std::string where;               ///< a word, a variable, or "a.toml:12: [train] batch-size"
  std::vector<Value> others = {};  ///< behind the first, for a command that takes a list
  bool translated = false;         ///< from another number: from a rate for 256 images, say
};

/// Parses `text`. Errors: Usage (Config for files), naming `where`, the text and the allowed
/// values.
[[nodiscard]] Value parse_value(const Field& spec, std::string_view text, Origin origin,
                                std::string_view where);
/// Checks the range or the choices of a value that already has its type. Returns a choice in the
/// spelling of the table.
[[nodiscard]] Value check_value(const Field& spec, Value value, Origin origin,
                                std::string_view where);

/// The options that were given. Reading an option that is not in the table, or with a type other
/// than the table's, is an Internal error.
class Patch {
 public:
  void set(const Field& spec, Setting setting);
  void erase(std::string_view name);
  [[nodiscard]] const Setting* find(std::string_view name) const;
  /// Like find(), for options from the command line only.
  [[nodiscard]] const Setting* typed(std::string_view name) const;
  [[nodiscard]] bool flag(std::string_view name) const { return get<bool>(name).value_or(false); }
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view name) const {
    return get<std::int64_t>(name);
  }
  [[nodiscard]] std::optional<double> real(std::string_view name) const {
    return get<double>(name);
  }
  [[nodiscard]] std::optional<std::string> text(std::string_view name) const {
    return get<std::string>(name);
  }
  /// The value given, or the default in the option's row.
  [[nodiscard]] Value value(std::string_view name) const;
  template <class T>
  [[nodiscard]] T value(std::string_view name) const {
    return std::get<T>(value(name));
  }
  [[nodiscard]] const std::map<std::string, Setting, std::less<>>& settings() const noexcept {
    return settings_;
  }

  /// The network in the file that `model` names, once it was read; nullptr: a family builds it.
  std::shared_ptr<const models::Graph> network;

 private:
  template <class T>
  [[nodiscard]] std::optional<T> get(std::string_view name) const {
    const Setting* const setting = find(name);
    return setting == nullptr ? std::nullopt : std::optional(std::get<T>(setting->value));
  }
  std::map<std::string, Setting, std::less<>> settings_;
};

/// A field that two patches do not set alike; a setting is nullptr where the field is not set.
struct Difference {
  const Field* field = nullptr;
  const Setting* before = nullptr;
  const Setting* now = nullptr;
};
/// By name. The settings are those of the patches, which must outlive the result.
[[nodiscard]] std::vector<Difference> difference(const Patch& before, const Patch& now);

/// Sets what the program itself requires, whatever was given.
void impose(Patch& options, std::string_view name, Value value);

/// `stronger` plus the options that only `weaker` gives. If two options exclude each other (epochs
/// and iterations, ...), the stronger one stays.
[[nodiscard]] Patch merge(Patch stronger, const Patch& weaker);
/// Errors: Usage when two options that exclude each other have the same origin (Config for files).
void check_conflicts(const Patch& options);

/// Options of a TOML file, for any command. Errors: Io when it cannot be read, Config with
/// `file:line:` for everything else.
[[nodiscard]] Patch read_config_file(const std::filesystem::path& path);
/// Maximum size of a configuration file.
inline constexpr std::uint64_t kMaxConfigBytes = 64 << 10;
[[nodiscard]] Patch parse_config(const std::string& text, const std::string& file_name);
/// The inverse: sections and keys in the order of the table.
[[nodiscard]] std::string to_toml(const std::map<std::string, Value, std::less<>>& values);

}  // namespace millrace::run
