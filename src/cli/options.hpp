// SPDX-License-Identifier: Apache-2.0
//
// src/cli: from the words of a command line to the patch of a run, and from there to the command
// that does the work. The table of fields (src/run/fields.hpp) drives the parsing of the command
// line and of environment variables, the help texts and configs/README.md: the option of a field is
// its name behind two dashes.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "run/patch.hpp"

namespace millrace::cli {

using run::check_conflicts;
using run::Command;
using run::CommandSet;
using run::Decides;
using run::describe_families;
using run::describe_values;
using run::family_named;
using run::FamilySet;
using run::Field;
using run::field_table;
using run::find_field;
using run::heading_of;
using run::impose;
using run::kMaxConfigBytes;
using run::merge;
using run::Origin;
using run::parse_config;
using run::parse_value;
using run::Patch;
using run::read_config_file;
using run::Section;
using run::section_key;
using run::Setting;
using run::to_string;
using run::to_toml;
using run::Value;
using run::ValueType;

/// Options of a command line without the command itself. Unique prefixes of names, `--name=value`
/// and `--flag=false` are accepted. If an option is given twice, the last value counts. The result
/// includes options that the command passes over. Words that are not options go to `arguments`.
/// Errors: Usage.
[[nodiscard]] Patch parse_arguments(Command command, std::span<const std::string> words,
                                    std::size_t max_arguments,
                                    std::vector<std::string>* arguments = nullptr);

/// Returns the value of an environment variable, or nothing.
using Environment = std::function<std::optional<std::string>(const std::string&)>;
[[nodiscard]] Environment process_environment();
[[nodiscard]] Patch read_environment(Command command, const Environment& environment);

/// Command line, environment and the file named by --config, merged and checked for options that
/// exclude each other.
[[nodiscard]] Patch load_options(Command command, std::span<const std::string> words,
                                 std::size_t max_arguments, const Environment& environment,
                                 std::vector<std::string>* arguments = nullptr);

}  // namespace millrace::cli
