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
  note(spec.name, value);
  spec.set(spec, value, config);
}

}  // namespace millrace::cli
