// SPDX-License-Identifier: Apache-2.0
#include "cli/progress_line.hpp"

#include <fmt/format.h>

#include <cstdio>

#include "train/progress.hpp"

namespace millrace::cli {

io::ProgressCallback progress_line(std::string what) {
  if (!train::terminal_of(stderr).rewrites_lines) return {};
  return [what = std::move(what)](const io::Progress& progress) {
    const double share = progress.total == 0 ? 1.0
                                             : static_cast<double>(progress.done) /
                                                   static_cast<double>(progress.total);
    fmt::print(stderr, "\r{}: {:.0f} %\033[K{}", what, 100.0 * share,
               progress.done >= progress.total ? "\r\033[K" : "");
    std::fflush(stderr);
  };
}

}  // namespace millrace::cli
