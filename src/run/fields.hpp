// SPDX-License-Identifier: Apache-2.0
//
// src/run: what a run is.
//
// A Run (run.hpp) is plain data: model, data, mathematics, layout, outputs, machine. Whoever asks
// for one gives a Patch (patch.hpp): fields with their values and with where each was said. Command
// lines, configuration files, recipes, the guides of other trainers and checkpoints all become
// patches. complete() (complete.hpp) makes the Run that a patch asks for, once the sizes of the
// data and of the machine are known. A default that is a number stands at its member in run.hpp or
// in the field's row; one that a family of networks has, in its recipe (models/); one that follows
// from other fields, in complete*.cpp; that of an open layout, in partition/choose.cpp.
//
//   words, TOML, recipe, checkpoint -> Patch -> complete(patch, data, machine) -> Run
//
// One table describes every field: its name and section in files, type, range, unit, default, help,
// the member of Run that it sets, and whether it decides mathematics, layout or output. From it
// come config.toml, the help, the reference page, difference() and what a restore may change
// (continued.cpp). Options of commands that are no fields of a run stand in it, too. A key in a
// file is the field's name in the section of its group: `batch-size = 32` in `[train]`. What lies
// below this folder names a field `like-this`; who prints such a message spells it for its user:
// the command as an option, the library as the member of Run (with_members()).
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace millrace::run {

struct Run;
using Value = std::variant<bool, std::int64_t, double, std::string, std::vector<double>>;
[[nodiscard]] std::string to_string(const Value& value);

/// A NameList is stored as one string, with a space between names.
enum class ValueType { Flag, Integer, Real, RealList, Choice, Text, NameList, Path };

/// Group of an option: a heading in the help and a section in files. Options of a family of
/// networks have a heading of their own in the section [model]. Options in Command have no key.
enum class Section {
  Model,
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

/// A bit for each family of networks, in the order of models::families(), and one for networks in
/// files.
using FamilySet = unsigned;

struct Setting;  // patch.hpp

/// What a field decides. Mathematics: the numbers that a training computes; a run that continues
/// keeps them. Layout: where and in which order they are computed, with the same bits, or to
/// rounding where the help says so. Output: what is read and written where, and how often. These
/// two may change when a run continues.
enum class Decides { Mathematics, Layout, Output };

struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_excluded = false;
  bool high_excluded = false;
};

/// A member of Run that a field says, or that follows from it.
struct Member {
  std::string name = {};  ///< "Run::rate.absolute"
  bool follows = false;   ///< from the field, so that a program that sets it asks for nothing
  bool (*equal)(const Run&, const Run&) = nullptr;  ///< whether two runs have the same value
  std::string (*text)(const Run&) = nullptr;        ///< the value, as far as it can be printed
};

struct Field {
  std::string_view name;        ///< without dashes
  std::string_view alias = {};  ///< a second spelling, or empty
  Section section = Section::Command;
  std::string_view heading = {};  ///< in the help, if it is not that of the section
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
  Decides decides = Decides::Output;
  CommandSet commands = 0;
  CommandSet lists = 0;  ///< commands that take several values, separated by commas
  /// The default, if the member that the option sets does not hold it.
  std::optional<Value> by_default = {};
  /// The value of the member of the configuration that the option stands for; nothing where there
  /// is none to record.
  std::function<std::optional<Value>(const Field&, const Run&)> get = {};
  /// Sets the member. Errors: Usage for a text that is not what it should be.
  std::function<void(const Field&, const Setting&, Run&)> set = {};
  bool takes_default = false;  ///< whether the member is set to `by_default`, too
  /// Whether the option has an effect; nullptr: always. It is set after those without, and only if
  /// it has.
  bool (*applies)(const Run& config) = nullptr;
  bool set_first = false;          ///< set before it is known whether it has an effect
  bool recorded_if_given = false;  ///< in config.toml, and not if it has its default
  /// The first of them stands for the field in messages to programs.
  std::vector<Member> members = {};
  /// Commands whose short help lists the option. Options that `train` does not have are always in
  /// it; others stand in the long help only, unless their row says main_option().
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

/// A text in which fields are named `like-this`, with the members of Run that they say instead.
[[nodiscard]] std::string with_members(std::string text);

/// All fields, by section.
[[nodiscard]] std::span<const Field> field_table();
/// The option with this name or alias, or nullptr.
[[nodiscard]] const Field* find_field(std::string_view name);
/// "model", "train", "optimizer", "lr", ...; empty for Command.
[[nodiscard]] std::string_view section_key(Section section);
/// "Model", "Learning rate", ...
[[nodiscard]] std::string_view heading_of(const Field& spec);
/// The family that `model` names; 0: none. kGivenModel names networks in files.
[[nodiscard]] FamilySet family_named(std::string_view model);
/// The families with the names that `model` takes: "resnet or resnext".
[[nodiscard]] std::string describe_families(FamilySet families);
/// The values that a Choice takes; empty for another field without a value name.
[[nodiscard]] std::vector<std::string> choices(const Field& spec);
/// "a whole number from 1 to 16", "one of SGD, momentum", ...
[[nodiscard]] std::string describe_values(const Field& spec);

}  // namespace millrace::run
