// SPDX-License-Identifier: Apache-2.0
#include "cli/launcher_output.hpp"

#include <charconv>
#include <optional>
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

}  // namespace

/// Reads the line of training::Watchdog.
void LauncherOutput::note_stuck(std::string_view line) {
  if (line.find("no progress for ") == std::string_view::npos) return;
  const std::optional<int> rank = number_after(line, ": rank ");
  if (!rank) return;
  constexpr std::chrono::milliseconds kOnItsWay{50};
  if (stuck_ranks_.empty()) first_stuck_ = now_;
  if (now_ - first_stuck_ >= grace_ - kOnItsWay) return;
  const std::optional<int> awaited = number_after(line, "(rank ");
  stuck_ranks_[*rank] =
      awaited ? *awaited : number_after(line, " and waits for rank ").value_or(-1);
}

std::string LauncherOutput::take_line(std::string line) {
  note_stuck(line);
  if (line.starts_with(kRanksBegin)) {
    began_ = true;
    return {};
  }
  if (line.starts_with(kRanksTrain)) {
    trained_ = true;
    return {};
  }
  if (line.starts_with(kRanksEnd)) {
    code_ = number_after(line, kRanksEnd);
    return {};
  }
  // Whoever pressed Ctrl-C knows. Open MPI's --quiet would also hide which rank a signal ended.
  if (line.starts_with("mpiexec: Forwarding signal ")) return {};
  const bool edge = is_edge(line);
  if (!in_box_ && !edge) return line;
  if (boxes_.empty()) since_ = now_;
  boxes_ += line;
  ended_rank_ = number_after(line, "noticed that process rank ").value_or(ended_rank_);
  began_ = began_ || line.starts_with("Primary job ");  // that one of them has ended
  if (edge) in_box_ = !in_box_;
  return {};
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

std::string LauncherOutput::late(Clock::time_point now) {
  constexpr std::chrono::seconds kSoon{5};
  if (boxes_.empty() || now - since_ < kSoon) return {};
  in_box_ = false;
  return std::exchange(boxes_, {});
}

std::string LauncherOutput::finish(bool with_boxes) {
  const std::string rest = line_.empty() ? std::string{} : take_line(std::exchange(line_, {}));
  return with_boxes || in_box_ ? boxes_ + rest : rest;
}

}  // namespace millrace::cli
