// SPDX-License-Identifier: Apache-2.0
#include "cli/option_reader.hpp"

namespace millrace::cli {

bool Reader::flag(std::string_view name) { return note(name, options_.flag(name)); }

std::int64_t Reader::integer(std::string_view name, std::int64_t otherwise) {
  return note(name, options_.integer(name).value_or(otherwise));
}

std::int64_t Reader::follower(std::string_view name, std::int64_t otherwise) {
  return given(name) ? integer(name, otherwise) : otherwise;
}

double Reader::follower_real(std::string_view name, double otherwise) {
  return given(name) ? real(name, otherwise) : otherwise;
}

double Reader::real(std::string_view name, double otherwise) {
  return note(name, options_.real(name).value_or(otherwise));
}

std::vector<double> Reader::reals(std::string_view name, std::vector<double> otherwise) {
  return note(name, options_.reals(name).value_or(std::move(otherwise)));
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
