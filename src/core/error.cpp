// SPDX-License-Identifier: Apache-2.0
#include "core/error.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <string_view>
#include <system_error>

#include "core/terminal.hpp"
#include "core/text.hpp"

namespace millrace {

int exit_code(ErrorKind kind) noexcept {
  constexpr std::array kCodes = {70, 2, 2, 3, 4, 5, 6, 7, 75, 124, 130};
  static_assert(kCodes.size() == static_cast<std::size_t>(ErrorKind::Interrupted) + 1);
  return kCodes[static_cast<std::size_t>(kind)];
}

namespace {

/// Replaces the middle of a very long message, so that a message that quotes its input stays
/// readable.
std::string without_middle(std::string text) {
  constexpr std::size_t kMost = 4000;
  constexpr std::size_t kHead = 2000;
  constexpr std::size_t kTail = 1000;
  if (text.size() <= kMost) return text;
  const auto within_character = [&](std::size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xc0U) == 0x80U;
  };
  std::size_t begin = kHead;
  while (begin > 0 && within_character(begin)) --begin;
  std::size_t end = text.size() - kTail;
  while (end < text.size() && within_character(end)) ++end;
  return text.replace(begin, end - begin, " [...] ");
}

}  // namespace

Error current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return {
        ErrorKind::Config,
        "out of memory: a smaller `batch-size`, `recompute` segments or more `shards` reduce the "
        "memory needed"};
  } catch (const std::filesystem::filesystem_error& error) {
    return {ErrorKind::Io, fmt::format("cannot access {}: {}; check the path and its permissions",
                                       error.path1().string(), error.code().message())};
  } catch (const std::system_error& error) {  // errors in files have their own messages
    return {ErrorKind::Io, fmt::format("cannot {}: {}",
                                       std::ferror(stdout) != 0 ? "write to standard output"
                                                                : "start a thread or a process",
                                       error.code().message())};
  } catch (const std::exception& error) {
    return {ErrorKind::Internal, error.what()};
  }
}

void print_error(std::string_view line) noexcept {
  try {
    std::string text = printable(line) + "\n";
    constexpr std::string_view kMark = "error:";
    const std::size_t mark = text.find(kMark);
    if (mark != std::string::npos && ::isatty(STDERR_FILENO) != 0 && colors_allowed()) {
      text.insert(mark + kMark.size(), "\033[0m");
      text.insert(mark, "\033[1;31m");
    }
    static_cast<void>(std::fwrite(text.data(), 1, text.size(), stderr));
    static_cast<void>(std::fflush(stderr));
  } catch (const std::bad_alloc&) {
    static_cast<void>(std::fputs("millrace: out of memory\n", stderr));
  }
}

void fail_with(ErrorKind kind, fmt::string_view format, fmt::format_args args) {
  throw Error(kind, without_middle(fmt::vformat(format, args)));
}

}  // namespace millrace
