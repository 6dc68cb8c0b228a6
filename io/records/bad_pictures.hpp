// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace millrace::io {

/// Told what is wrong with a picture that is left out: "n1/a.JPEG: neither a JPEG nor a PNG". From
/// one thread at a time. Empty: nobody is told.
using ReportBad = std::function<void(const std::string&)>;

/// `problem` without the place that it begins with, be it all of "a.JPEG", or of "shard, record 41
/// at offset 65525" the path of the file: so that who names the place does not name it twice.
[[nodiscard]] std::string without_place(std::string_view problem, std::string_view place);

/// "place: problem" in one line, of which many a message has the place already.
[[nodiscard]] std::string problem_at(const std::string& place, const std::string& problem);

/// Whether more are bad than the share of all that may be.
[[nodiscard]] bool too_many_bad(std::int64_t bad, std::int64_t all, double max_fraction) noexcept;

/// Counts the bad pictures of a task over `pictures` of them, and ends it when they are too many.
/// One thread at a time.
class BadPictures {
 public:
  BadPictures(std::int64_t pictures, double max_fraction, const ReportBad& report)
      : pictures_(pictures), max_fraction_(max_fraction), report_(report) {}

  /// Reports one. Error(Data) with the count and the first when they are more than the share of all
  /// that may be bad.
  void add(const std::string& problem);
  /// Error(Data) when no picture is left.
  void refuse_if_all() const;
  [[nodiscard]] std::int64_t count() const noexcept { return count_; }

 private:
  [[noreturn]] void refuse() const;

  std::int64_t pictures_;
  double max_fraction_;
  const ReportBad& report_;
  std::int64_t count_ = 0;
  std::string first_;
};

}  // namespace millrace::io
