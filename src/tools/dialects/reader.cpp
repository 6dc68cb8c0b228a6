// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "tools/dialects/dialect.hpp"

namespace millrace::cli {

void DialectReader::give(std::string_view name, std::string spelled, std::string text, bool done) {
  given_.insert_or_assign(
      std::string(name),
      Given{.spelled = std::move(spelled), .text = std::move(text), .read = done});
}

const DialectReader::Given* DialectReader::read_name(std::string_view name) {
  const auto found = given_.find(name);
  if (found == given_.end()) return nullptr;
  found->second.read = true;
  return &found->second;
}

std::string DialectReader::spelled(std::string_view name) const {
  const auto found = given_.find(name);
  return found == given_.end() ? "" : found->second.spelled;
}

bool DialectReader::flag(std::string_view name, bool otherwise) {
  const Given* given = read_name(name);
  return given == nullptr ? otherwise : given->text == "true";
}

std::string DialectReader::text(std::string_view name, std::string_view otherwise) {
  const Given* given = read_name(name);
  return given == nullptr ? std::string(otherwise) : given->text;
}

double DialectReader::real(std::string_view name, double otherwise) {
  constexpr double kMost = 1e15;
  const Given* given = read_name(name);
  if (given == nullptr) return otherwise;
  const std::optional<double> value = parse_number<double>(given->text);
  if (!value || !(std::abs(*value) <= kMost))
    fail(ErrorKind::Usage, "{}: '{}' is not a number", given->spelled, given->text);
  return *value;
}

std::int64_t DialectReader::integer(std::string_view name, std::int64_t otherwise,
                                    std::int64_t least) {
  if (!given(name)) return otherwise;
  const double value = real(name, 0.0);
  if (value < static_cast<double>(least) || value != std::floor(value))
    fail(ErrorKind::Usage, "{}: '{}' is not a whole number from {}", spelled(name), text(name, ""),
         least);
  return static_cast<std::int64_t>(value);
}

void DialectReader::pass_over(std::string_view name, std::string_view why) {
  if (const Given* given = read_name(name);
      given != nullptr && !given->spelled.empty() && given->text != "false")
    note(fmt::format("{} has no effect here: {}", given->spelled, why));
}

std::vector<std::string> DialectReader::unread() const {
  std::vector<std::string> names;
  for (const auto& [name, given] : given_)
    if (!given.read && given.text != "false") names.push_back(given.spelled);
  return names;
}

void DialectReader::set(std::string_view option, std::string_view text, std::string_view from) {
  const Field& spec = *find_field(option);
  const bool is_default = from.empty();
  const std::string where = is_default ? fmt::format("{} (its --{})", where_, option)
                            : from.substr(2) == option ? std::string(from)
                                                       : fmt::format("{} (--{})", from, option);
  const Origin origin = is_default ? Origin::Dialect : Origin::CommandLine;
  if (is_default && translation_.options.find(option) != nullptr) return;
  translation_.options.set(
      spec, {.value = parse_value(spec, text, origin, where), .origin = origin, .where = where});
}

void DialectReader::set(std::string_view option, double value, std::string_view from) {
  set(option, fmt::format("{}", value), from);
}

void DialectReader::set(std::string_view option, std::int64_t value, std::string_view from) {
  set(option, fmt::format("{}", value), from);
}

void DialectReader::imply(std::string_view option, std::string_view text, std::string_view name) {
  if (spelled(name).empty()) return set(option, text, "");
  if (translation_.options.find(option) != nullptr) return;
  const Field& spec = *find_field(option);
  const std::string where = fmt::format("{} (--{})", spelled(name), option);
  translation_.options.set(spec, {.value = parse_value(spec, text, Origin::Dialect, where),
                                  .origin = Origin::Dialect,
                                  .where = where});
  implied_.emplace_back(option);
}

void DialectReader::note_overruled(const Patch& native) {
  for (const std::string& name : implied_) {
    const Setting& implied = *translation_.options.find(name);
    const Setting* const other = native.find(name);
    if (other != nullptr && other->value != implied.value)
      note(fmt::format("{} {} takes the place of {}, which {} implies", other->where,
                       to_string(other->value), to_string(implied.value), implied.where));
  }
}

void DialectReader::mean(Command command, const std::string& by) {
  const Command agreed = agreed_command(translation_.command, command, by);
  translation_.command = agreed == Command::Train && restores ? Command::Restore : agreed;
}

void DialectReader::set_real(std::string_view option, std::string_view name, double otherwise) {
  set(option, real(name, otherwise), spelled(name));
  spell(option, name);
}

void DialectReader::set_integer(std::string_view option, std::string_view name,
                                std::optional<std::int64_t> otherwise, std::int64_t least) {
  spell(option, name);
  if (otherwise || given(name))
    set(option, integer(name, otherwise.value_or(0), least), spelled(name));
}

void DialectReader::spell(std::string_view option, std::string_view name) {
  const std::string typed = spelled(name);
  translation_.spellings.insert_or_assign(
      std::string(option), Spelling{.word = typed.empty() ? fmt::format("--{}", name) : typed});
}

void DialectReader::set_defaults(std::string_view line) {
  for (std::size_t begin = line.find("--"); begin != std::string_view::npos;) {
    const std::size_t next = line.find(" --", begin);
    const std::string_view option = line.substr(begin + 2, next - begin - 2);
    const std::size_t space = option.find(' ');
    set(option.substr(0, space), option.substr(space + 1), "");
    begin = next == std::string_view::npos ? next : next + 1;
  }
}

std::int64_t whole_steps(double steps) {
  constexpr double kMost = 1e15;
  return static_cast<std::int64_t>(std::min(steps, kMost));
}

}  // namespace millrace::cli
