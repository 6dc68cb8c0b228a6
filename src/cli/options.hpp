// SPDX-License-Identifier: Apache-2.0
//
// src/cli: from the words of a command line to a resolved configuration.
//
// A single table of OptionSpec describes every option (option_rows.hpp: how its rows are written).
// It drives the parsing of the command line, of configuration files and of environment variables,
// the checks of types and ranges, the help texts and configs/README.md. Options holds the values
// that were given and their origin, in this order of precedence:
//
//   command line  >  environment  >  file (--config)  >  default of a --dialect  >  default
//
// Options does not hold defaults. Many of them depend on the model and the data set; resolve.hpp
// fills them in. A key in a file is the option's name without the dashes, in the section of its
// group: `--batch-size 32` is `batch-size = 32` in `[train]`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace millrace::models {
struct Graph;
}
namespace millrace::train {
struct TrainConfig;
}

namespace millrace::cli {

using Value = std::variant<bool, std::int64_t, double, std::string, std::vector<double>>;
[[nodiscard]] std::string to_string(const Value& value);

/// A NameList is stored as one string, with a space between names.
enum class ValueType { Flag, Integer, Real, RealList, Choice, Text, NameList, Path };

/// Group of an option: a heading in the help and a section in files. The groups of the network
/// families share the section [model]. Options in Command have no key.
enum class Section {
  Model,
  Residual,
  ResNeXt,
  SqueezeNet,
  EfficientNet,
  Data,
  Train,
  Optimiser,
  Rate,
  Validation,
  Checkpoint,
  Log,
  Pipeline,
  Device,
  Command
};

enum class Command : unsigned {
  Train = 1,
  Restore = 2,
  Validate = 4,
  Bench = 8,
  Inspect = 16,
  Import = 32,
  Generate = 64,
  Plan = 128,
  Doctor = 256,
  Average = 512,
  DataIndex = 1024,
  DataCheck = 2048,
  DataStats = 4096,
  DataConvert = 8192,
  Report = 16384,
  Export = 32768,
  Predict = 65536,
};
using CommandSet = unsigned;

/// Families of networks that have their own options.
/// Given: a network in a file.
enum class Family : unsigned {
  ResNet = 1,
  ResNeXt = 2,
  SqueezeNet = 4,
  EfficientNet = 8,
  Given = 16
};
using FamilySet = unsigned;

struct Setting;

/// Whether a restored run may change an option: only if it does not change the results.
enum class OnRestore { MayChange, Fixed };

struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_excluded = false;
  bool high_excluded = false;
};

struct OptionSpec {
  std::string_view name;        ///< without dashes
  std::string_view alias = {};  ///< a second spelling, or empty
  Section section = Section::Command;
  ValueType type = ValueType::Flag;
  std::string_view value_name = {};              ///< "N", "DIR"; for a Choice its values: "a|b|c"
  std::string_view or_file = {};                 ///< of a Choice: or a path with this ending
  std::optional<std::string> default_text = {};  ///< of the help; from the default if not given
  std::string_view unit = {};
  Range range = {};
  std::string_view help;
  std::string_view source = {};       ///< trainers that have the option; "all", "millrace"
  std::string_view bare = {};         ///< value if given without one; empty: a value is required
  std::string_view environment = {};  ///< variable that sets the option, or empty
  std::string_view needs = {};        ///< what the option needs to have an effect, for messages
  std::string_view idle = {};         ///< why it never has an effect; reported once, not refused
  bool harmless = false;              ///< where it has no effect, this is reported, not refused
  bool for_other_data = false;        ///< likewise, and not even reported unless it was typed
  FamilySet families = 0;             ///< families that have the option; 0: all
  OnRestore on_restore = OnRestore::MayChange;
  CommandSet commands = 0;
  CommandSet lists = 0;  ///< commands that take several values, separated by commas
  /// The default, if the member that the option sets does not hold it.
  std::optional<Value> by_default = {};
  /// The value of the member of the configuration that the option stands for; nothing where there
  /// is none to record.
  std::function<std::optional<Value>(const OptionSpec&, const train::TrainConfig&)> get = {};
  /// Sets the member. Errors: Usage for a text that is not what it should be.
  std::function<void(const OptionSpec&, const Setting&, train::TrainConfig&)> set = {};
  bool takes_default = false;  ///< whether the member is set to `by_default`, too
  /// Whether the option has an effect; nullptr: always. It is set after those without, and only if
  /// it has.
  bool (*applies)(const train::TrainConfig& config) = nullptr;
  bool set_first = false;          ///< set before it is known whether it has an effect
  bool recorded_if_given = false;  ///< in config.toml, and not if it has its default
  /// Commands whose --help lists the option. Options that `train` does not have are always listed;
  /// others stand in --help-all only, unless their row says main_option().
  CommandSet listed_by = 0;

  [[nodiscard]] bool taken_by(Command command) const noexcept {
    return (commands & static_cast<CommandSet>(command)) != 0;
  }
  /// Whether the command accepts the option and ignores it. `validate` and `restore` accept the
  /// options of `train`: the scripts of the IPU trainer share theirs, and a run continues by the
  /// line that began it.
  [[nodiscard]] bool passed_over_by(Command command) const noexcept {
    return (command == Command::Validate || command == Command::Restore) && !taken_by(command) &&
           taken_by(Command::Train) && (section != Section::Command || source == "IPU");
  }
  [[nodiscard]] bool understood_by(Command command) const noexcept {
    return taken_by(command) || passed_over_by(command);
  }
};

/// All options, by section.
[[nodiscard]] std::span<const OptionSpec> option_table();
/// The option with this name or alias, or nullptr.
[[nodiscard]] const OptionSpec* find_option(std::string_view name);
/// "model", "train", "optimizer", "lr", ...; empty for Command.
[[nodiscard]] std::string_view section_key(Section section);
/// "Model", "Learning rate", ...
[[nodiscard]] std::string_view section_heading(Section section);
/// The family that --model names.
[[nodiscard]] FamilySet family_named(std::string_view model);
/// The families with the names that --model takes: "resnet or resnext".
[[nodiscard]] std::string describe_families(FamilySet families);
/// "a whole number from 1 to 16", "one of SGD, momentum", ...
[[nodiscard]] std::string describe_values(const OptionSpec& spec);

enum class Origin { Dialect, File, Environment, CommandLine };
struct Setting {
  Value value;
  Origin origin = Origin::CommandLine;
  std::string where;               ///< "--batch-size", "DATA_DIR", "a.toml:12: [train] batch-size"
  std::vector<Value> others = {};  ///< behind the first, for a command that takes a list
};

/// How another trainer's command line spells options of millrace, for messages.
struct Dialect {
  struct Spelling {
    std::string word;         ///< "--lr_init"
    bool same_value = false;  ///< whether its value is that of the option of millrace
  };
  std::string name = {};  ///< "nvidia"; empty: the line is millrace's own
  std::map<std::string, Spelling, std::less<>> spellings = {};  ///< by option: "abs-learning-rate"
};

/// Parses `text`. Errors: Usage (Config for files), naming `where`, the text and the allowed
/// values.
[[nodiscard]] Value parse_value(const OptionSpec& spec, std::string_view text, Origin origin,
                                std::string_view where);
/// Checks the range or the choices of a value that already has its type. Returns a choice in the
/// spelling of the table.
[[nodiscard]] Value check_value(const OptionSpec& spec, Value value, Origin origin,
                                std::string_view where);

/// The options that were given. Reading an option that is not in the table, or with a type other
/// than the table's, is an Internal error.
class Options {
 public:
  void set(const OptionSpec& spec, Setting setting);
  void erase(std::string_view name);
  [[nodiscard]] const Setting* find(std::string_view name) const;
  /// Like find(), for options from the command line only.
  [[nodiscard]] const Setting* typed(std::string_view name) const;
  /// An option as it was typed, or would be: --lr_init for --abs-learning-rate.
  [[nodiscard]] std::string spelling(std::string_view name) const;
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

  /// Words that are not options, in order.
  std::vector<std::string> arguments;
  Dialect dialect;
  /// The network in the file that --model names, once it was read; nullptr: a family builds it.
  std::shared_ptr<const models::Graph> network;

 private:
  template <class T>
  [[nodiscard]] std::optional<T> get(std::string_view name) const {
    const Setting* const setting = find(name);
    return setting == nullptr ? std::nullopt : std::optional(std::get<T>(setting->value));
  }
  std::map<std::string, Setting, std::less<>> settings_;
};

/// `stronger` plus the options that only `weaker` gives. If two options exclude each other (epochs
/// and iterations, ...), the stronger one stays.
[[nodiscard]] Options merge(Options stronger, const Options& weaker);
/// Errors: Usage when two options that exclude each other have the same origin (Config for files).
void check_conflicts(const Options& options);

/// Options of a command line without the command itself. Unique prefixes of names, `--name=value`
/// and `--flag=false` are accepted. If an option is given twice, the last value counts. The result
/// includes options that the command passes over.
/// Errors: Usage.
[[nodiscard]] Options parse_arguments(Command command, std::span<const std::string> words,
                                      std::size_t max_arguments);

/// Returns the value of an environment variable, or nothing.
using Environment = std::function<std::optional<std::string>(const std::string&)>;
[[nodiscard]] Environment process_environment();
[[nodiscard]] Options read_environment(Command command, const Environment& environment);

/// Options of a TOML file, for any command. Errors: Io when it cannot be read, Config with
/// `file:line:` for everything else.
[[nodiscard]] Options read_config_file(const std::filesystem::path& path);
/// Maximum size of a configuration file.
inline constexpr std::uint64_t kMaxConfigBytes = 64 << 10;
[[nodiscard]] Options parse_config(const std::string& text, const std::string& file_name);
/// The inverse: sections and keys in the order of the table.
[[nodiscard]] std::string to_toml(const std::map<std::string, Value, std::less<>>& values);

/// Command line, environment and the file named by --config, merged and checked for options that
/// exclude each other.
[[nodiscard]] Options load_options(Command command, std::span<const std::string> words,
                                   std::size_t max_arguments, const Environment& environment);

}  // namespace millrace::cli
