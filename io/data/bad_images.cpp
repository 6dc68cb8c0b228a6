// SPDX-License-Identifier: Apache-2.0
#include "io/data/bad_images.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/counted.hpp"
#include "core/error.hpp"
#include "core/text.hpp"

namespace millrace::io {

std::string without_place(std::string_view problem, std::string_view place) {
  const auto parted = std::ranges::mismatch(problem, place);
  const auto same = static_cast<std::size_t>(parted.in1 - problem.begin());
  const std::string_view more = place.substr(same);
  const bool begins_with_it = same > 0 && (more.empty() || more.starts_with(", ")) &&
                              problem.substr(same).starts_with(": ");
  if (begins_with_it) return std::string(problem.substr(same + 2));
  std::string rest(problem);
  // As the errors of opening and reading a file are worded.
  if (const std::size_t at = rest.find(fmt::format(" {}: ", place));
      rest.starts_with("cannot ") && at != std::string::npos)
    rest.erase(at, 1 + place.size());
  return rest;
}

std::string problem_at(const std::string& place, const std::string& problem) {
  return printable(fmt::format("{}: {}", place, without_place(problem, place)));
}

std::int64_t most_bad(std::int64_t all, double max_fraction) noexcept {
  if (max_fraction <= 0.0) return 0;
  const std::int64_t least = all > 1 ? 1 : 0;
  return std::max(least, static_cast<std::int64_t>(max_fraction * static_cast<double>(all)));
}

std::string describe_limit(std::int64_t all, double max_fraction) {
  return fmt::format("`max-bad-fraction` {:g} allows at most {}", max_fraction,
                     with_commas(most_bad(all, max_fraction)));
}

bool too_many_bad(std::int64_t bad, std::int64_t all, double max_fraction) noexcept {
  return bad > most_bad(all, max_fraction);
}

void BadImages::add(const std::string& problem) {
  if (count_++ == 0) first_ = problem;
  if (report_) report_(problem);
  if (too_many_bad(count_, images_, max_fraction_)) refuse();
}

void BadImages::refuse_if_all() const {
  if (count_ > 0 && count_ == images_) refuse();
}

void BadImages::refuse() const {
  fail(ErrorKind::Data, "{} of {} {} bad so far, the first: {}; {}", count_,
       counted(images_, "image"), is_or_are(count_), first_,
       describe_limit(images_, max_fraction_));
}

void leave_out_bad(const BadShare& share, const std::string& count, const std::string& head,
                   std::vector<std::string>& notices,
                   const std::function<std::string(std::size_t)>& describe) {
  constexpr std::int64_t kNamed = 5;
  if (share.bad == 0) return;
  if (share.bad == share.all || too_many_bad(share.bad, share.all, share.max_fraction))
    fail(ErrorKind::Data, "{}, the first: {}; {}", count, describe(0),
         describe_limit(share.all, share.max_fraction));
  notices.push_back(printable(head));
  const std::int64_t named = std::min(share.bad, kNamed);
  for (std::int64_t i = 0; i < named; ++i)
    notices.push_back(
        printable(fmt::format("left out: {}", describe(static_cast<std::size_t>(i)))));
  if (named < share.bad) notices.push_back(fmt::format("and {} more", share.bad - named));
}

}  // namespace millrace::io
