// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::io {

/// Receives the problem of each image that is left out: "n1/a.JPEG: neither a JPEG nor a PNG".
/// Called from one thread at a time. May be empty.
using ReportBad = std::function<void(const std::string&)>;

/// `problem` without its location, so that a message does not name it twice: "cut" of "a.JPEG:
/// cut", "cannot open: no such file" of "cannot open a.JPEG: no such file". The location is all of
/// `place` ("a.JPEG"), or only the file of "shard, record 41 at offset 65525", which begins the
/// problem.
[[nodiscard]] std::string without_place(std::string_view problem, std::string_view place);

/// "place: problem" in one line. `problem` may already begin with the place.
[[nodiscard]] std::string problem_at(const std::string& place, const std::string& problem);

/// How many of `all` images may be bad: the share `max_fraction`, but at least one of several, so
/// that one bad file does not stop the use of a small set; none if the share is 0.
[[nodiscard]] std::int64_t most_bad(std::int64_t all, double max_fraction) noexcept;

/// "`max-bad-fraction` 0.001 allows at most 1"
[[nodiscard]] std::string describe_limit(std::int64_t all, double max_fraction);

/// Whether `bad` exceeds most_bad().
[[nodiscard]] bool too_many_bad(std::int64_t bad, std::int64_t all, double max_fraction) noexcept;

/// Counts the bad images of a task over `images` images, and throws when there are too many. Not
/// thread-safe.
class BadImages {
 public:
  BadImages(std::int64_t images, double max_fraction, const ReportBad& report)
      : images_(images), max_fraction_(max_fraction), report_(report) {}

  /// Reports a bad image. Error(Data) with the count and the first one if too many are bad.
  void add(const std::string& problem);
  /// Error(Data) if all images are bad.
  void refuse_if_all() const;
  [[nodiscard]] std::int64_t count() const noexcept { return count_; }

 private:
  [[noreturn]] void refuse() const;

  std::int64_t images_;
  double max_fraction_;
  const ReportBad& report_;
  std::int64_t count_ = 0;
  std::string first_;
};

/// How many things of a source are bad, and which share may be.
struct BadShare {
  std::int64_t bad = 0;
  std::int64_t all = 0;
  double max_fraction = 0.0;
};
/// Adds notices about the bad things that a source leaves out: `head`, "left out: ..." for the
/// first few, and the number of the rest. Errors: Data, with `count` and the first one, if there
/// are too many or all are bad.
void leave_out_bad(const BadShare& share, const std::string& count, const std::string& head,
                   std::vector<std::string>& notices,
                   const std::function<std::string(std::size_t)>& describe);

}  // namespace millrace::io
