// SPDX-License-Identifier: Apache-2.0
#include "run/field_rows.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"

namespace millrace::run {
namespace {

/// A default as the help shows it: 1e-8 for what prints as 1e-08.
std::string default_text_of(const Value& value) {
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? "on" : "off";
  std::string text = to_string(value);
  if (const std::size_t zero = text.find("e-0");
      zero != std::string::npos && std::holds_alternative<double>(value))
    text.erase(zero + 2, 1);
  return text;
}

FieldTable make_table() {
  FieldTable table;
  add_model_fields(table);
  add_data_fields(table);
  add_train_fields(table);
  add_rate_fields(table);
  add_output_fields(table);
  add_pipeline_fields(table);
  add_command_fields(table);
  Run config;
  for (Field& spec : table) {
    spec.listed_by = spec.taken_by(Command::Train) ? spec.listed_by & spec.commands : spec.commands;
    const bool told = spec.default_text.has_value() || !spec.idle.empty();
    const bool by_member = spec.get && !spec.recorded_if_given;
    const std::optional<Value> value =
        spec.by_default || !by_member ? spec.by_default : spec.get(spec, config);
    if (!told && value) spec.default_text = default_text_of(*value);
  }
  return table;
}

}  // namespace

std::span<const Field> field_table() {
  static const FieldTable table = make_table();
  return table;
}

std::size_t index_of_choice(const Field& spec, const std::string& choice) {
  const std::vector<std::string> all = choices(spec);
  const auto found = std::find(all.begin(), all.end(), choice);
  MILLRACE_ASSERT(found != all.end());
  return static_cast<std::size_t>(found - all.begin());
}

std::string choice_at(const Field& spec, std::size_t index) { return choices(spec).at(index); }

}  // namespace millrace::run
