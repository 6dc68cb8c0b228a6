// SPDX-License-Identifier: Apache-2.0
#include "cli/launcher_output.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace millrace::cli {
namespace {

bool is_edge(std::string_view line) {
  constexpr std::size_t kShortest = 60;
  return line.size() > kShortest && line.find_first_not_of("-\n") == std::string_view::npos;
}

/// The number that follows `words` in `text`.
std::optional<int> number_after(std::string_view text, std::string_view words) {
  const std::size_t found = text.find(words);
  if (found == std::string_view::npos) return std::nullopt;
  text.remove_prefix(found + words.size());
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end == text.data()) return std::nullopt;
  return value;
}

/// "mpiexec: Forwarding signal 10 to job": the launcher does what this program asks of it.
bool tells_of_forwarding(std::string_view line) {
  const std::size_t said = line.find(": Forwarding signal ");
  return said != std::string_view::npos && line.find(' ') == said + 1 &&
         line.ends_with(" to job\n");
}

/// "Remote daemon: [[1,0],1] on node b" has the name of a host.
std::string lost_host(std::string_view box) {
  constexpr std::string_view kName = " on node ";
  const std::size_t line = box.find("Remote daemon");
  const std::size_t name = line == std::string_view::npos ? line : box.find(kName, line);
  if (name == std::string_view::npos) return "another machine";
  box.remove_prefix(name + kName.size());
  return std::string(box.substr(0, box.find('\n')));
}

}  // namespace

std::string LauncherOutput::close_box() {
  constexpr std::array<std::string_view, 4> kTellTheEnd = {
      "process returned\na non-zero exit code", "processes returned\na non-zero exit code",
      "exited with non-zero status", "MPI_ABORT was invoked on rank"};
  std::string box = std::exchange(box_, {});
  if (!report_.abort_code && box.find("MPI_ABORT was invoked") != std::string::npos)
    report_.abort_code = number_after(box, "with errorcode ");
  const std::optional<int> rank = number_after(box, "noticed that process rank ");
  const std::optional<int> signal = number_after(box, " exited on signal ");
  if (rank && signal) {
    if (!report_.ended_rank) report_.ended_rank = EndedRank{*rank, *signal};
    report_.ending = true;
    return {};
  }
  if (box.find("lost communication with a remote daemon") != std::string::npos) {
    report_.lost_host = lost_host(box);
    report_.ending = true;
    return {};
  }
  const bool end = std::any_of(kTellTheEnd.begin(), kTellTheEnd.end(), [&](std::string_view text) {
    return box.find(text) != std::string::npos;
  });
  if (!end) {
    report_.complained = report_.complained || !box.empty();
    return box;
  }
  report_.ending = true;
  return {};
}

void LauncherOutput::note_stuck(std::string_view line) {
  if (line.find("no progress for ") == std::string_view::npos) return;
  const std::optional<int> rank = number_after(line, ": rank ");
  if (!rank) return;
  // Ranks wait two seconds for each other before the first one ends.
  constexpr std::chrono::milliseconds kTogether{1950};
  if (report_.stuck_ranks.empty()) first_stuck_ = now_;
  if (now_ - first_stuck_ < kTogether) report_.stuck_ranks.insert(*rank);
}

std::string LauncherOutput::take_line(std::string line) {
  const bool edge = is_edge(line);
  if (box_.empty() && !edge) {
    note_stuck(line);
    return tells_of_forwarding(line) ? std::string{} : line;
  }
  const bool closes = edge && !box_.empty();
  box_ += line;
  return closes ? close_box() : std::string{};
}

/// Takes complete status lines out of the incomplete line: each begins with a carriage return and
/// ends by erasing what is right of it.
void LauncherOutput::take_status() {
  constexpr std::string_view kEnd = "\033[K";
  for (;;) {
    const std::size_t begin = line_.find('\r');
    const std::size_t end = line_.find(kEnd, begin);
    if (begin == std::string::npos || end == std::string::npos) return;
    status_ = line_.substr(begin + 1, end - begin - 1);
    line_.erase(begin, end + kEnd.size() - begin);
  }
}

std::string LauncherOutput::take(std::string_view piece, Clock::time_point now) {
  now_ = now;
  std::string shown;
  while (!piece.empty()) {
    const std::size_t end = piece.find('\n');
    const bool whole = end != std::string_view::npos;
    line_ += piece.substr(0, whole ? end + 1 : end);
    piece.remove_prefix(whole ? end + 1 : piece.size());
    take_status();
    if (whole) shown += take_line(std::exchange(line_, {}));
  }
  return shown;
}

std::string LauncherOutput::finish() {
  std::string shown = line_.empty() ? std::string{} : take_line(std::exchange(line_, {}));
  return shown + close_box();
}

}  // namespace millrace::cli
