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
#include <vector>

#include "models/graph.hpp"
#include "run/run.hpp"
#include "train/line_file.hpp"
#include "train/metrics_log.hpp"

namespace millrace::training {

[[nodiscard]] std::string_view curve_name(run::LearningRateKind kind);
/// "16.32": activations, then master weights.
[[nodiscard]] std::string_view precision_name(const Precision& precision);

/// The recipe's line for a log point, without line end.
[[nodiscard]] std::string format_line(const TrainRow& row);
/// The recipe's line for a validation, followed by top-5 accuracy, loss and, if so, of how many
/// images of the set they are, and in place of how many bad ones others were counted. It names the
/// checkpoint that holds the weights, or the update, if there is none.
[[nodiscard]] std::string format_line(const ValidationResult& result, double epoch);

/// "of 64 of 10,000 images", if a validation saw only so many; otherwise "".
[[nodiscard]] std::string part_validated(std::int64_t images, std::int64_t set_images);

/// A line that says so if a validation was of another number of images than those before it;
/// otherwise "".
[[nodiscard]] std::string format_other_images(const Accuracies& before,
                                              const ValidationResult& result);

/// The line of a first update, which people wait for.
[[nodiscard]] std::string format_first_update(const run::Run& config, std::int64_t done,
                                              const IterationResult& result);

/// The lines that a training prints at start-up: command line, model and data set, total batch,
/// output directory, and with `verbose` the trainable parameters. One string without the last line
/// end.
[[nodiscard]] std::string format_start(const run::Run& config, std::string_view command_line,
                                       const models::Graph& graph);

/// What a run has come to.
struct Summary {
  bool finished = true;
  std::int64_t iteration = 0;
  std::int64_t iterations = 0;               ///< of the whole run
  double seconds = 0.0;                      ///< of the run, earlier processes included
  double images_per_second = 0.0;            ///< of this process, as the next
  std::optional<double> bubble = {};         ///< fraction; none for a single device
  bool restored = false;                     ///< whether there were earlier processes
  bool takes_turns = false;                  ///< whether a process has several devices
  Accuracies accuracies = {};                ///< top-1
  std::int64_t set_images = 0;               ///< for validation; 0: all that were validated
  std::filesystem::path run_directory = {};  ///< "": nothing was saved
  std::string checkpoint = {};               ///< name of the newest, or ""
  std::string next = {};                     ///< command that goes on, or ""
};
/// The last lines of a run: how far it is, its time and speed, its best and last accuracy, where
/// its files are, and the next command. Without the last line end.
[[nodiscard]] std::string format_summary(const Summary& summary);

/// What a stream can display.
struct Terminal {
  bool rewrites_lines = false;
  std::size_t width = 80;
  bool colors = false;
  bool shows_output = false;  ///< standard output appears on the same terminal
};

/// Current progress, for the status line that is rewritten in place.
struct Status {
  std::int64_t iteration = 0;
  double loss = 0.0;
  double top1 = 0.0;  ///< fraction
  double images_per_second = 0.0;
  double seconds_left = 0.0;
  std::vector<double> busy = {};  ///< share of its time in which each device works; none for one
  std::string saving = {};        ///< name of the checkpoint that is being written
};
/// "epoch 3/90  update 120/390  loss 1.832  top-1 41.2 %  1840 img/s  ETA 0:42  busy [###.][##..]".
/// Where this is wider than the terminal, accuracy and loss are left out.
[[nodiscard]] std::string format_status(const run::Run& config, const Status& status,
                                        const Terminal& terminal);

/// A line about bad images that were replaced by others, or "" if there are none: "Bad images: 2 of
/// 50,000 for validation could not be decoded and were replaced by others of their class".
[[nodiscard]] std::string format_replaced(std::int64_t replaced, std::int64_t images,
                                          std::string_view use);

/// The environment variable with which a launcher tells ranks about its terminal, on which it shows
/// their status line: "80", its width, or "80 output" where it shows their standard output, too.
inline constexpr const char* kTerminalVariable = "MILLRACE_TERMINAL";
[[nodiscard]] std::string terminal_text(const Terminal& terminal);
/// A stream that is neither a terminal nor shown on one by a launcher, or with TERM=dumb, does not
/// rewrite lines. One that does has colors unless NO_COLOR is set.
[[nodiscard]] Terminal terminal_of(std::FILE* stream);

/// Reports the progress of a validation: in a line every ten seconds, and to `show` each time, for
/// the status line.
class ValidationProgress {
 public:
  using Report = std::function<void(const std::string&)>;
  ValidationProgress(std::int64_t images, double start_seconds, Report say, Report show)
      : images_(images),
        start_(start_seconds),
        last_(start_seconds),
        say_(std::move(say)),
        show_(std::move(show)) {}
  void seen(std::int64_t images, double now_seconds);

 private:
  std::int64_t images_;
  double start_;
  double last_;
  Report say_;
  Report show_;
};

/// Prints the lines of a training to standard output and to log.txt. The status line, which is
/// rewritten in place, is shown if standard error is a terminal, and never goes into a file. Where
/// lines appear on that terminal, too, it takes the same way as they do: a launcher does not keep
/// the order of the two streams.
class Console {
 public:
  /// An empty path: no log.txt.
  explicit Console(const std::filesystem::path& log_file = {});
  /// Prints nothing; for ranks other than rank 0.
  static Console silent() { return Console(nullptr, nullptr, {}, {}); }
  /// Passes lines on in place of printing them, and shows no status line.
  Console(std::function<void(std::string_view)> tell, const std::filesystem::path& log_file)
      : Console(nullptr, nullptr, {}, log_file) {
    tell_ = std::move(tell);
  }
  Console(std::FILE* out, std::FILE* status, Terminal terminal,
          const std::filesystem::path& log_file);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// From now on only important lines are printed; log.txt gets all.
  void quieten() { quiet_ = true; }
  [[nodiscard]] const Terminal& terminal() const { return terminal_; }

  /// A line; control characters in it, also line ends, are escaped.
  void line(std::string_view text);
  /// A warning, or what a run has come to.
  void important(std::string_view text);
  /// Writes a line only to log.txt; the terminal has already shown it.
  void keep(std::string_view text);
  /// Rewrites the status line with the fields of `text` that the terminal is wide enough for, at
  /// most every tenth of a second, but at once after a line. Two spaces divide fields.
  void status(std::string_view text, double now_seconds);
  void clear_status();

 private:
  void print(std::string_view text);

  std::function<void(std::string_view)> tell_;
  std::FILE* out_;
  std::FILE* status_;
  bool quiet_ = false;
  Terminal terminal_;
  std::optional<LineFile> log_;
  bool status_shown_ = false;
  double last_status_ = -1.0e9;
};

}  // namespace millrace::training
