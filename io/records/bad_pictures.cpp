// SPDX-License-Identifier: Apache-2.0
#include "io/records/bad_pictures.hpp"

#include <fmt/format.h>

#include "core/error.hpp"

namespace millrace::io {

std::string problem_at(const std::string& place, const std::string& problem) {
  return problem.starts_with(place) ? problem : fmt::format("{}: {}", place, problem);
}

bool too_many_bad(std::int64_t bad, std::int64_t all, double max_fraction) noexcept {
  return static_cast<double>(bad) > max_fraction * static_cast<double>(all);
}

void BadPictures::add(const std::string& problem) {
  if (count_++ == 0) first_ = problem;
  if (report_) report_(problem);
  if (too_many_bad(count_, pictures_, max_fraction_)) refuse();
}

void BadPictures::refuse_if_all() const {
  if (count_ > 0 && count_ == pictures_) refuse();
}

void BadPictures::refuse() const {
  fail(ErrorKind::Data,
       "{} of {} pictures are bad so far, the first: {}; at most {:g} % may be "
       "(--max-bad-fraction)",
       count_, pictures_, first_, 100.0 * max_fraction_);
}

}  // namespace millrace::io
