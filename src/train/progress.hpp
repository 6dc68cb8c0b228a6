// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "models/graph.hpp"
#include "train/config.hpp"
#include "train/line_file.hpp"
#include "train/metrics_log.hpp"

namespace millrace::train {

/// The recipe's line of a log point, without line end.
[[nodiscard]] std::string format_line(const TrainRow& row);
/// The recipe's line of a validation of `ckpt-<iteration>`, top-5 and loss behind it.
[[nodiscard]] std::string format_line(const ValidationResult& result, double epoch);

/// What a training announces before it starts: the command line, what is trained on what, with
/// which total batch, where the results go, and what is learned. One string of several lines,
/// without the last line end.
[[nodiscard]] std::string format_start(const TrainConfig& config, std::string_view command_line,
                                       const models::Graph& graph);

/// Where a training stands, for the line that is rewritten in place.
struct Standing {
  std::int64_t iteration = 0;
  double loss = 0.0;
  double top1 = 0.0;  ///< fraction
  double images_per_second = 0.0;
  double seconds_left = 0.0;
};
/// "epoch 3/90  step 120/390  loss 1.832  top1 0.412  1840 img/s  ETA 0:42", cut to `width`
/// columns.
[[nodiscard]] std::string format_standing(const TrainConfig& config, const Standing& standing,
                                          std::size_t width);

/// What a run says of images that others had to stand in for; "" when there are none: "Bad
/// pictures: 2 of 50,000 for validation cannot be decoded, others of their class stood in".
[[nodiscard]] std::string format_replaced(std::int64_t replaced, std::int64_t images,
                                          std::string_view use);

/// How much a stream can show.
struct Terminal {
  bool rewrites_lines = false;
  std::size_t width = 80;
};
/// A stream that is no terminal, or whose TERM is "dumb", rewrites nothing. Colours are used
/// nowhere, which is all that NO_COLOR asks for.
[[nodiscard]] Terminal terminal_of(std::FILE* stream);

/// Says how far a validation is, every ten seconds: of a short one nothing.
class ValidationProgress {
 public:
  ValidationProgress(std::int64_t images, double start_seconds,
                     std::function<void(const std::string&)> say)
      : images_(images), last_(start_seconds), say_(std::move(say)) {}
  void seen(std::int64_t images, double now_seconds);

 private:
  std::int64_t images_;
  double last_;
  std::function<void(const std::string&)> say_;
};

/// Everything a training prints. Lines go to standard output and to log.txt; the line that is
/// rewritten in place goes to standard error where that is a terminal, and never into a file.
class Console {
 public:
  /// Without a path there is no log.txt.
  explicit Console(const std::filesystem::path& log_file = {});
  /// One that prints nothing, for ranks that another one speaks for.
  static Console silent() { return Console(nullptr, nullptr, {}, {}); }
  Console(std::FILE* out, std::FILE* status, Terminal terminal,
          const std::filesystem::path& log_file);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  void line(std::string_view text);
  /// Writes a line to log.txt alone: the terminal has heard of it already.
  void keep(std::string_view text);
  /// Rewrites the status line; nothing happens within a tenth of a second of the last time.
  void status(const TrainConfig& config, const Standing& standing, double now_seconds);

 private:
  void clear_status();

  std::FILE* out_;
  std::FILE* status_;
  Terminal terminal_;
  std::optional<LineFile> log_;
  bool status_shown_ = false;
  double last_status_ = -1.0e9;
};

}  // namespace millrace::train
