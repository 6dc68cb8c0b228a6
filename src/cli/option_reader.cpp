// SPDX-License-Identifier: Apache-2.0
#include "cli/option_reader.hpp"

namespace millrace::cli {

void Reader::apply(std::string_view name, train::TrainConfig& config) {
  apply(*find_option(name), config);
}

void Reader::apply(Section section, train::TrainConfig& config) {
  for (const OptionSpec& spec : option_table())
    if (spec.section == section && spec.set != nullptr) apply(spec, config);
}

void Reader::apply(const OptionSpec& spec, train::TrainConfig& config) {
  const bool other_family =
      spec.families != 0 && (spec.families & family_named(config.model.model)) == 0;
  if (other_family || (spec.applies != nullptr && !spec.applies(config))) return;
  const Setting* given = options_.find(spec.name);
  if (given == nullptr && spec.recorded_if_given) {
    if (spec.by_default) spec.set(spec, *spec.by_default, config);
    return;
  }
  const Value value = given != nullptr  ? given->value
                      : spec.by_default ? *spec.by_default
                                        : spec.get(spec, config);
  record(spec.name, value);
  spec.set(spec, value, config);
}

bool Reader::flag(std::string_view name) { return note(name, options_.flag(name)); }

std::int64_t Reader::integer(std::string_view name, std::int64_t otherwise) {
  return note(name, options_.integer(name).value_or(otherwise));
}

std::int64_t Reader::follower(std::string_view name, std::int64_t otherwise) {
  return given(name) ? integer(name, otherwise) : otherwise;
}

double Reader::real(std::string_view name, double otherwise) {
  return note(name, options_.real(name).value_or(otherwise));
}

std::string Reader::text(std::string_view name, std::string_view otherwise) {
  return note(name, options_.text(name).value_or(std::string(otherwise)));
}

void Reader::use(std::string_view name) { used_.insert(std::string(name)); }

bool Reader::used(std::string_view name) const {
  return used_.contains(name) || effective_.contains(name);
}

void Reader::record(std::string_view name, Value value) {
  effective_.insert_or_assign(std::string(name), std::move(value));
}

}  // namespace millrace::cli
