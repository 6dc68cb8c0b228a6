// SPDX-License-Identifier: Apache-2.0
//
// Command lines of other trainers. A dialect is a table of option names and a function that
// translates them into options of millrace with that trainer's own arithmetic: learning rates for a
// batch of 256, global batches, lengths in epochs or batches. Names that a dialect does not know
// are read as millrace's own options, which must then be written in full: --shards and
// --synthetic-data work with every dialect. Every option that was typed either has its effect, is
// refused, or is reported to have no effect.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/command_line.hpp"

namespace millrace::cli {

enum class WordKind { WithValue, Flag };

/// What happens to a name of a dialect.
enum class WordUse {
  Same,        ///< the option of millrace with this name has exactly this meaning
  Translated,  ///< `translate` turns it into what the text says
  Idle,        ///< it has no effect, for this reason, which is reported once
  Refused      ///< it is not supported, for this reason
};

/// One name of a dialect. Dashes and underscores are interchangeable.
struct DialectWord {
  std::string_view name;       ///< "batch_size"
  std::string_view shorthand;  ///< "bs" for -bs, or empty
  WordKind kind;
  WordUse use;
  std::string_view text;
  [[nodiscard]] bool is(WordUse other) const { return use == other; }
};

/// Images of ImageNet for training, which every length is for until the data set is known.
inline constexpr std::int64_t kImageNetImages = 1'281'167;

/// The values given under the names of a dialect, and the translation that they go into. Reading a
/// name marks it as having an effect.
class DialectReader {
 public:
  /// `where` names what has the defaults: "--dialect nvidia".
  DialectReader(std::string where, CommandLine& translation, std::int64_t worker_count)
      : workers(worker_count), where_(std::move(where)), translation_(translation) {}

  /// Records a name as it was spelled, with its value. `done`: it already has its effect. A name
  /// that a script passes is spelled "": what it sets is a default.
  void give(std::string_view name, std::string spelled, std::string text, bool done);
  [[nodiscard]] bool given(std::string_view name) const { return given_.contains(name); }
  /// "--batch_size" or "-bs", as it was typed; empty when it was not.
  [[nodiscard]] std::string spelled(std::string_view name) const;
  [[nodiscard]] bool flag(std::string_view name, bool otherwise = false);
  [[nodiscard]] std::string text(std::string_view name, std::string_view otherwise);
  /// Errors: Usage, naming the option, when its text is not a number or exceeds 1e15.
  [[nodiscard]] double real(std::string_view name, double otherwise);
  /// Errors: Usage, when it is not a whole number or is less than `least`.
  [[nodiscard]] std::int64_t integer(std::string_view name, std::int64_t otherwise,
                                     std::int64_t least = 0);

  /// Sets an option of millrace. A value that the user gave under the name `from` counts as given
  /// on the command line. With an empty `from` it is a default of the trainer, which the user's
  /// values override.
  void set(std::string_view option, std::string_view text, std::string_view from);
  void set(std::string_view option, double value, std::string_view from);
  void set(std::string_view option, std::int64_t value, std::string_view from);
  /// Sets an option that the word `name`, if it was given, stands for among others. Another value
  /// that is given for the option takes its place, which note_overruled() reports.
  void imply(std::string_view option, std::string_view text, std::string_view name);
  /// The same for the number given under `name`, or else `otherwise`; without that, nothing.
  void set_real(std::string_view option, std::string_view name, double otherwise);
  void set_integer(std::string_view option, std::string_view name,
                   std::optional<std::int64_t> otherwise, std::int64_t least = 0);
  /// Messages name `option` as the trainer's `name`, which sets it by a rule of its own.
  void spell(std::string_view option, std::string_view name);
  /// Defaults of the trainer, as a command line of millrace: "--momentum 0.9 --warmup linear".
  void set_defaults(std::string_view line);
  /// Reports the values among `native`, millrace's own options, that take the place of implied
  /// ones.
  void note_overruled(const Patch& native);
  /// The line stands for this command because of the words `by`; where these are empty, only if the
  /// user typed `train`. Errors: Usage when the command that was typed contradicts them.
  void mean(Command command, const std::string& by);
  void note(std::string text) { translation_.notices.push_back(std::move(text)); }
  /// Reports why a name has no effect, if it was given.
  void pass_over(std::string_view name, std::string_view why);
  /// Names that were given and never read, as they were typed, without flags that are off.
  [[nodiscard]] std::vector<std::string> unread() const;
  [[nodiscard]] CommandLine& translation() { return translation_; }

  std::int64_t workers = 1;               ///< number of replicas
  std::int64_t images = kImageNetImages;  ///< per epoch, for lengths in batches
  std::string script;                     ///< file name of the program, if given
  bool restores = false;                  ///< --restore-path was typed

 private:
  struct Given {
    std::string spelled;
    std::string text;
    bool read = false;
  };
  const Given* read_name(std::string_view name);

  std::string where_;
  CommandLine& translation_;
  std::map<std::string, Given, std::less<>> given_;
  std::vector<std::string> implied_;
};

/// Defaults of all trainers for ImageNet: a class for background, and batch normalization.
inline constexpr std::string_view kImageNetDefaults =
    "--dataset imagenet --classes 1001 --batch-norm true";

/// A number of weight updates, rounded down and limited to 1e15.
[[nodiscard]] std::int64_t whole_steps(double steps);

struct DialectSpec {
  std::string_view name;
  std::string_view title;  ///< names the scripts, for the help
  std::span<const DialectWord> words;
  /// Called after all words are read and the names with an `option` are set.
  void (*translate)(DialectReader& read);
};

[[nodiscard]] DialectSpec nvidia_dialect();
[[nodiscard]] DialectSpec habana_resnext_dialect();
[[nodiscard]] DialectSpec habana_keras_dialect();
[[nodiscard]] DialectSpec surfsara_dialect();

/// Takes the program out of a line that was typed as for the trainer of a dialect: "main.py ..",
/// "python3 main.py ..", "python3 -m main .." or "bash name.sh ..". Returns its file name,
/// "main.py", or nothing. Errors: Usage for a program that the guide of the dialect does not have,
/// for those that prepare data and for a launcher, naming what to type instead.
[[nodiscard]] std::string take_program(std::string_view dialect, std::vector<std::string>& words);
/// The words that a script of NVIDIA's guide, such as RN50_FP16_8GPU.sh, passes to main.py, and
/// --replicas for its GPUs; empty if `script` is none of them. Its arguments MODEL DATA RESULTS
/// leave `words`, of which --data_dir becomes one. Errors: Usage for other arguments.
[[nodiscard]] std::vector<std::string> take_nvidia_script(const std::string& script,
                                                          std::vector<std::string>& words);
/// What to say of the variables of a dialect's guide that are set and have no effect here. `words`
/// are those of the line.
[[nodiscard]] std::vector<std::string> notes_on_variables(std::string_view dialect,
                                                          std::span<const std::string> words,
                                                          const Environment& environment);
/// Errors: Usage for gc-info, which lists devices, naming the command that does.
void refuse_device_list(const std::string& word);
/// Replaces "gc-profile -d DIR --" before a program by --trace DIR/trace.json behind it.
void take_profiler(std::vector<std::string>& words);

/// The dialects of a command line: none, one, or both of Habana's when no word tells them apart.
struct DialectLine {
  std::string name;  ///< as --dialect takes it; empty: none
  std::vector<DialectSpec> dialects;
  std::string script;  ///< file name of the program, if given
};
/// Removes --dialect and, with it, the program from `words`. Errors: Usage for an unknown name.
[[nodiscard]] DialectLine take_dialects(std::vector<std::string>& words);
/// The command of a line in which `typed` was typed and the words `by`, if there are any, stand for
/// `meant`: a benchmark or a plan may be one of a training, and a run continues by the line that
/// began it. Errors: Usage when they contradict each other, naming both.
[[nodiscard]] Command agreed_command(Command typed, Command meant, const std::string& by);

/// Help on every name of the dialects that `words` select; empty when they select none.
[[nodiscard]] std::string dialect_help(std::span<const std::string> words);

}  // namespace millrace::cli
