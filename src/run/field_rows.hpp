// SPDX-License-Identifier: Apache-2.0
//
// How the rows of the option table are written. A row names the option, its value, its range, the
// trainers that have it and its help, followed by what not every option has. sets<>() binds it to a
// member of the configuration, for example
//
//   row("adam-beta2", real(from_zero_below(1.0)), "millrace", "decay of the average",
//       by_default(0.999), when(is_adam), sets<&OptimiserConfig::mean_square_decay>());
//
// The default is that of the member that the row sets, or by_default() where the member holds
// something else until the run is complete. The text of the help follows from it. default_text()
// is for defaults that depend on other options.
#pragma once

#include <fmt/core.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/text.hpp"
#include "run/patch.hpp"
#include "run/run.hpp"

namespace millrace::run {

using FieldTable = std::vector<Field>;

// The parts of the table: rows of one or a few neighbouring sections.
void add_model_fields(FieldTable& table);
void add_data_fields(FieldTable& table);
void add_train_fields(FieldTable& table);
void add_rate_fields(FieldTable& table);      ///< optimizer and learning rate
void add_output_fields(FieldTable& table);    ///< validation, checkpoints, logs
void add_pipeline_fields(FieldTable& table);  ///< pipeline, replicas and device
void add_command_fields(FieldTable& table);   ///< of one invocation

/// The class and the type of a pointer to a member.
template <class Pointer>
struct MemberOf;
template <class Part, class T>
struct MemberOf<T Part::*> {
  using Owner = Part;
  using Type = T;
};

/// The first of `members` that is a `Part`.
template <class Part, auto member, auto... others>
constexpr auto way_to() {
  if constexpr (std::is_same_v<typename MemberOf<decltype(member)>::Type, Part>)
    return member;
  else
    return way_to<Part, others...>();
}
/// The member of a Run, or of a part of one, that holds such a part.
template <class Part>
constexpr auto kWay =
    way_to<Part, &Run::optimiser, &Run::update, &Run::learning_rate, &Run::rate, &Run::length,
           &Run::validating, &Run::saving, &Run::logging, &Run::layout, &Run::data,
           &DataConfig::images, &DataConfig::mixing, &DataConfig::augmentation, &Run::averaging,
           &Run::loss_scaling, &Run::precision, &Run::pipeline, &pipeline::PipelinePlan::ranks,
           &Run::model, &models::ModelOptions::residual, &models::ModelOptions::resnext,
           &models::ModelOptions::squeezenet, &models::ModelOptions::efficientnet>();

/// The part of a configuration that a member belongs to.
template <class Part, class Config>
auto& part_of(Config& config) {
  if constexpr (std::is_same_v<Part, Run>)
    return config;
  else
    return part_of<typename MemberOf<std::remove_const_t<decltype(kWay<Part>)>>::Owner>(config).*
           kWay<Part>;
}

/// "directory" of &DataConfig::directory, as the compiler spells it, and "End" of
/// ValidationMode::End.
template <auto member>
constexpr std::string_view member_name() {
  constexpr std::string_view kText = __PRETTY_FUNCTION__;
  constexpr std::string_view kNamed = kText.substr(0, kText.find_first_of(";]"));
  return kNamed.substr(kNamed.rfind(':') + 1);
}
/// "Run::data." of DataConfig.
template <class Part>
std::string path_of() {
  if constexpr (std::is_same_v<Part, Run>)
    return "Run::";
  else
    return fmt::format(
        "{}{}.", path_of<typename MemberOf<std::remove_const_t<decltype(kWay<Part>)>>::Owner>(),
        member_name<kWay<Part>>());
}

/// The position of a choice in the list of its option, and the choice at a position.
[[nodiscard]] std::size_t index_of_choice(const Field& spec, const std::string& choice);
[[nodiscard]] std::string choice_at(const Field& spec, std::size_t index);

template <class T>
struct OptionalOf : std::false_type {};
template <class T>
struct OptionalOf<std::optional<T>> : std::true_type {};

/// A member as the value of its option; nothing of one that is empty. Enumerators stand in the
/// order of the choices; an enumeration that a flag sets has its two states in the order off, on.
template <class T>
std::optional<Value> value_of(const Field& spec, const T& member) {
  if constexpr (OptionalOf<T>::value) {
    return member ? value_of(spec, *member) : std::nullopt;
  } else if constexpr (std::is_enum_v<T>) {
    const auto index = static_cast<std::size_t>(member);
    if (spec.type == ValueType::Flag) return index != 0;
    return choice_at(spec, index);
  } else if constexpr (std::is_same_v<T, char>) {
    return std::string(1, member);
  } else if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, std::vector<double>>) {
    return member;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<std::int64_t>(member);
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    return join(member, " ");
  } else if constexpr (std::is_same_v<T, std::filesystem::path>) {
    return member.string();
  } else {
    return member;
  }
}

template <class E, std::size_t... i>
constexpr std::array<std::string_view, sizeof...(i)> enumerator_names(std::index_sequence<i...>) {
  return {member_name<static_cast<E>(i)>()...};
}
/// The name of an enumerator, or its number.
template <class E>
std::string enumerator_name(E value) {
  constexpr auto kNames = enumerator_names<E>(std::make_index_sequence<8>());
  const auto at = static_cast<std::size_t>(value);
  // What is no enumerator is spelled as a conversion: "(ValidationMode)5".
  const bool is_named = at < kNames.size() && kNames[at].find(')') == std::string_view::npos;
  return is_named ? std::string(kNames[at]) : std::to_string(at);
}

/// A member for people, whatever its field; "set" of what has no words.
template <class T>
std::string text_of_member(const T& member) {
  if constexpr (OptionalOf<T>::value) {
    return member ? text_of_member(*member) : "none";
  } else if constexpr (std::is_enum_v<T>) {
    return enumerator_name(member);
  } else if constexpr (std::is_same_v<T, std::filesystem::path>) {
    return member.string();
  } else if constexpr (requires { join(member, " "); }) {
    return join(member, " ");
  } else if constexpr (fmt::is_formattable<T>::value) {
    return fmt::format("{}", member);
  } else {
    return "set";
  }
}

/// Sets a member to the value of its option.
template <class T>
void set_member(const Field& spec, const Value& value, T& member) {
  if constexpr (OptionalOf<T>::value) {
    set_member(spec, value, member.emplace());
  } else if constexpr (std::is_enum_v<T>) {
    member = static_cast<T>(spec.type == ValueType::Flag
                                ? static_cast<std::size_t>(std::get<bool>(value))
                                : index_of_choice(spec, std::get<std::string>(value)));
  } else if constexpr (std::is_same_v<T, char>) {
    member = std::get<std::string>(value).front();
  } else if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, std::vector<double>>) {
    member = std::get<T>(value);
  } else if constexpr (std::is_integral_v<T>) {
    member = static_cast<T>(std::get<std::int64_t>(value));
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    member = split_list(std::get<std::string>(value), ' ');
  } else if constexpr (std::is_floating_point_v<T>) {
    member = std::get<double>(value);
  } else {
    member = std::get<std::string>(value);
  }
}

/// What a row says about its option besides name, trainers and help: its kind, which every row has,
/// and what only some have.
using Trait = std::function<void(Field&)>;

/// Adds rows to the table that agree in most of their section, their commands and what they decide.
/// Traits of a row come after those that its group shares.
class Rows {
 public:
  Rows(FieldTable& table, Section section, CommandSet commands, Decides decides,
       std::vector<Trait> shared = {})
      : table_(table),
        section_(section),
        commands_(commands),
        decides_(decides),
        shared_(std::move(shared)) {}

  /// `source`: the trainers that have the option.
  template <class... Traits>
  void operator()(std::string_view name, const Trait& kind, std::string_view source,
                  std::string_view help, const Traits&... traits) const {
    Field& spec = table_.emplace_back();
    spec.name = name;
    spec.section = section_;
    spec.help = help;
    spec.source = source;
    spec.decides = decides_;
    spec.commands = commands_;
    kind(spec);
    for (const Trait& trait : shared_) trait(spec);
    (traits(spec), ...);
  }

 private:
  FieldTable& table_;
  Section section_;
  CommandSet commands_;
  Decides decides_;
  std::vector<Trait> shared_;
};

namespace field_words {

using Text = std::string_view;

/// A trait that is one member of the row.
template <class T>
Trait trait(T Field::*member, std::type_identity_t<T> value) {
  return [member, value = std::move(value)](Field& spec) { spec.*member = value; };
}

inline Trait kind(ValueType type, Text value_name, Range range = {}) {
  return [=](Field& spec) {
    spec.type = type;
    spec.value_name = value_name;
    spec.range = range;
    if (type == ValueType::Flag) spec.by_default = false;
  };
}
inline Trait flag() { return kind(ValueType::Flag, ""); }
inline Trait integer(Range range) { return kind(ValueType::Integer, "N", range); }
inline Trait real(Range range, Text value = "X") { return kind(ValueType::Real, value, range); }
inline Trait reals(Text value, Range range) { return kind(ValueType::RealList, value, range); }
inline Trait choice(Text choices) { return kind(ValueType::Choice, choices); }
/// A choice that also takes the path of a file with this ending.
inline Trait choice_or_file(Text choices, Text ending) {
  return [=](Field& spec) {
    choice(choices)(spec);
    spec.or_file = ending;
  };
}
inline Trait text(Text value) { return kind(ValueType::Text, value); }
inline Trait names(Text value) { return kind(ValueType::NameList, value); }
inline Trait path(Text value) { return kind(ValueType::Path, value); }

/// The default, if it is not that of the member that the row sets.
template <class T>
Trait by_default(T value) {
  if constexpr (std::is_integral_v<T>)
    return trait(&Field::by_default, Value(std::int64_t{value}));
  else if constexpr (std::is_convertible_v<T, std::string>)
    return trait(&Field::by_default, Value(std::string(value)));
  else
    return trait(&Field::by_default, Value(std::move(value)));
}
/// The member is set to the default, too, as sets<>() and written<>() do by themselves.
inline Trait takes_default() { return trait(&Field::takes_default, true); }
/// A default that depends on other options, in words.
inline Trait default_text(Text words) { return trait(&Field::default_text, std::string(words)); }
inline Trait alias(Text name) { return trait(&Field::alias, name); }
inline Trait unit(Text words) { return trait(&Field::unit, words); }
inline Trait bare(Text value) { return trait(&Field::bare, value); }
inline Trait environment(Text variable) { return trait(&Field::environment, variable); }
inline Trait needs(Text what) { return trait(&Field::needs, what); }
/// Its trainer accepts it where it has no effect.
inline Trait harmless() { return trait(&Field::harmless, true); }
/// Recipes contain it for other data, too.
inline Trait for_other_data() { return trait(&Field::for_other_data, true); }
inline Trait idle(Text why) { return trait(&Field::idle, why); }
inline Trait heading(Text words) { return trait(&Field::heading, words); }
/// One of the few options of a training that the short help lists, of these commands.
inline Trait main_option(CommandSet commands = ~CommandSet{0}) {
  return trait(&Field::listed_by, commands);
}
inline Trait layout() { return trait(&Field::decides, Decides::Layout); }
inline Trait output() { return trait(&Field::decides, Decides::Output); }
inline Trait commands(CommandSet set) { return trait(&Field::commands, set); }
/// These commands take several values, separated by commas, and run once with each.
inline Trait lists(CommandSet set) { return trait(&Field::lists, set); }
/// The row sets its member only where this holds.
inline Trait when(bool (*applies)(const Run&)) { return trait(&Field::applies, applies); }
/// The member is set whether the option has an effect or not: what others say, and the layout,
/// decides later.
inline Trait set_first() { return trait(&Field::set_first, true); }
/// Recorded in config.toml only if given, because the default follows other options or machines.
inline Trait if_given() { return trait(&Field::recorded_if_given, true); }

/// A member of a part of the configuration.
template <auto member>
auto& member_of(auto& config) {
  return part_of<typename MemberOf<decltype(member)>::Owner>(config).*member;
}
template <auto member>
void add_member(Field& row, bool follows) {
  row.members.push_back(
      {.name = fmt::format("{}{}", path_of<typename MemberOf<decltype(member)>::Owner>(),
                           member_name<member>()),
       .follows = follows,
       .equal = [](const Run& a,
                   const Run& b) { return member_of<member>(a) == member_of<member>(b); },
       .text = [](const Run& run) { return text_of_member(member_of<member>(run)); }});
}
/// Members that the row says in words of its own.
template <auto... members>
Trait says() {
  return [](Field& row) { (add_member<members>(row, false), ...); };
}
/// Members that follow from the field.
template <auto... members>
Trait yields() {
  return [](Field& row) { (add_member<members>(row, true), ...); };
}
template <auto member>
Trait sets() {
  return [](Field& row) {
    add_member<member>(row, false);
    using Member = std::remove_cvref_t<decltype(member_of<member>(std::declval<Run&>()))>;
    row.takes_default = !OptionalOf<Member>::value;
    row.get = [](const Field& spec, const Run& config) {
      return value_of(spec, member_of<member>(config));
    };
    row.set = [](const Field& spec, const Setting& given, Run& config) {
      set_member(spec, given.value, member_of<member>(config));
    };
  };
}
/// A flag that chooses between two values of a member.
template <auto without, auto with_flag, auto member>
Trait chooses() {
  return [](Field& row) {
    add_member<member>(row, false);
    row.takes_default = true;
    row.get = [](const Field&, const Run& config) {
      return std::optional<Value>(member_of<member>(config) == with_flag);
    };
    row.set = [](const Field&, const Setting& given, Run& config) {
      member_of<member>(config) = std::get<bool>(given.value) ? with_flag : without;
    };
  };
}
/// A flag for one of several values of its member.
template <auto member, auto value>
Trait picks() {
  return [](Field& row) {
    add_member<member>(row, false);
    row.get = [](const Field&, const Run& config) {
      return std::optional<Value>(member_of<member>(config) == value);
    };
    row.set = [](const Field&, const Setting& given, Run& config) {
      if (std::get<bool>(given.value)) member_of<member>(config) = value;
    };
  };
}
/// What of the configuration is recorded as the option: the result of `get`, or nothing.
template <class Get>
Trait records(Get get) {
  return [get](Field& row) {
    row.get = [get](const Field&, const Run& config) { return std::optional<Value>(get(config)); };
  };
}
/// How an option changes the configuration that is more than one member.
template <class Set>
Trait changes(Set set) {
  return [set](Field& row) {
    row.set = [set](const Field&, const Setting& given, Run& config) { set(given, config); };
  };
}
/// A member that is written in words of its own: `parse` reads them, `print` writes them.
template <auto member, class Parse, class Print>
Trait written(Parse parse, Print print) {
  return [parse, print](Field& row) {
    add_member<member>(row, false);
    row.takes_default = true;
    row.get = [print](const Field&, const Run& config) {
      return std::optional<Value>(print(member_of<member>(config)));
    };
    row.set = [parse](const Field&, const Setting& given, Run& config) {
      member_of<member>(config) = parse(given);
    };
  };
}

/// "a|b|c": the choices that a table of the program offers, by the member that names them.
template <class Element>
[[nodiscard]] std::string choices_of(std::span<const Element> elements,
                                     std::string_view Element::*name) {
  std::vector<std::string_view> names;
  for (const Element& element : elements) names.push_back(element.*name);
  return join(names, "|");
}

constexpr CommandSet set_of(Command command) { return static_cast<CommandSet>(command); }

inline constexpr CommandSet kTrain = set_of(Command::Train);
inline constexpr CommandSet kBench = set_of(Command::Bench);
inline constexpr CommandSet kPlan = set_of(Command::Plan);
/// Commands that resolve a whole training. `restore` also takes the options that it must not
/// change, so that it can refuse them by name.
inline constexpr CommandSet kTrainings =
    kTrain | set_of(Command::Restore) | set_of(Command::Import);
/// A benchmark has no length, validation schedule, logs or checkpoints.
inline constexpr CommandSet kRuns = kTrainings | kBench | kPlan;
inline constexpr CommandSet kRunsAndValidate = kRuns | set_of(Command::Validate);
inline constexpr CommandSet kContinues = kTrain | set_of(Command::Restore);
inline constexpr CommandSet kPredict = set_of(Command::Predict);
/// Commands that run a network forward.
inline constexpr CommandSet kForward = set_of(Command::Validate) | kPredict;
inline constexpr CommandSet kReads = set_of(Command::Restore) | set_of(Command::Validate);

/// The data tools that read images.
inline constexpr CommandSet kDataTools = set_of(Command::DataIndex) | set_of(Command::DataCheck) |
                                         set_of(Command::DataStats) | set_of(Command::DataConvert);

inline constexpr Decides kMathematics = Decides::Mathematics;
inline constexpr Decides kLayout = Decides::Layout;
inline constexpr Decides kOutput = Decides::Output;
inline constexpr double kMaxCount = 2147483647.0;
inline constexpr double kMaxSeed = 9007199254740991.0;  // exact as a double

constexpr Range at_least(double low) { return {.low = low, .high = kMaxCount}; }
constexpr Range between(double low, double high) { return {.low = low, .high = high}; }
constexpr Range above_zero() { return {.low = 0.0, .low_excluded = true}; }
constexpr Range above_zero_to(double high) {
  return {.low = 0.0, .high = high, .low_excluded = true};
}
constexpr Range from_zero_below(double high) {
  return {.low = 0.0, .high = high, .high_excluded = true};
}
constexpr Range between_zero_and_one() {
  return {.low = 0.0, .high = 1.0, .low_excluded = true, .high_excluded = true};
}

inline bool flag_of(const Setting& given) { return std::get<bool>(given.value); }
inline const std::string& text_of(const Setting& given) {
  return std::get<std::string>(given.value);
}

inline bool has_replicas(const Run& c) { return c.pipeline.ranks.replicas > 1; }

}  // namespace field_words
}  // namespace millrace::run
