// SPDX-License-Identifier: Apache-2.0
//
// Command lines of other trainers. A dialect is a table of option names and a function that turns
// what was given into options of millrace, by that trainer's own arithmetic: rates for a batch of
// 256, global batches, lengths in epochs or batches. What it does not know is read as an option of
// millrace's own, written whole, so that --shards or --synthetic-data can stand beside it. Nothing
// that was typed goes without a word: it has its effect, is refused, or is said to have none.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/options.hpp"

namespace millrace::cli {

enum class WordKind { WithValue, Flag };

/// One name of a dialect. Dashes and underscores are the same in it.
struct DialectWord {
  std::string_view name;            ///< "batch_size"
  std::string_view shorthand = {};  ///< "bs" for -bs, or empty
  WordKind kind = WordKind::WithValue;
  std::string_view option = {};   ///< of millrace, where it means just that
  std::string_view becomes = {};  ///< what `translate` makes of it, for the help
  std::string_view idle = {};     ///< why it has no effect here; said once
  std::string_view refused = {};  ///< why it cannot be had here
};

/// What a command line in a dialect asks for.
struct Translation {
  Command command = Command::Train;
  Options options;
  std::vector<std::string> notices;
};

/// What was given under the names of a dialect, and where the translation goes. Reading a name
/// marks it as one that has an effect.
class DialectReader {
 public:
  DialectReader(std::string_view dialect, Translation& translation, std::int64_t worker_count)
      : workers(worker_count), dialect_(dialect), translation_(translation) {}

  /// Takes a name as it was spelled, with its value. One that has its effect already is `done`.
  void give(std::string_view name, std::string spelled, std::string text, bool done);
  [[nodiscard]] bool given(std::string_view name) const { return given_.contains(name); }
  /// "--batch_size" or "-bs" as it was typed; empty when it was not.
  [[nodiscard]] std::string spelled(std::string_view name) const;
  [[nodiscard]] bool flag(std::string_view name, bool otherwise = false);
  [[nodiscard]] std::string text(std::string_view name, std::string_view otherwise);
  /// Errors: Usage, naming the option, when its text is no number (of at most 1e15).
  [[nodiscard]] double real(std::string_view name, double otherwise);
  /// Errors: Usage, when it is no whole number from `least` on.
  [[nodiscard]] std::int64_t integer(std::string_view name, std::int64_t otherwise,
                                     std::int64_t least = 0);

  /// Sets an option of millrace. What the user gave under another name is as strong as the command
  /// line; what is the trainer's habit, from "", gives way to it.
  void set(std::string_view option, std::string_view text, std::string_view from);
  void set(std::string_view option, double value, std::string_view from);
  void set(std::string_view option, std::int64_t value, std::string_view from);
  void note(std::string text) { translation_.notices.push_back(std::move(text)); }
  /// Says why a name that was given has no effect.
  void pass_over(std::string_view name, std::string_view why);
  /// Names that were given and never read, as they were typed; flags that are off are none.
  [[nodiscard]] std::vector<std::string> unread() const;
  [[nodiscard]] Translation& translation() { return translation_; }

  std::int64_t workers = 1;         ///< processes, each with a replica
  std::int64_t images = 1'281'167;  ///< of an epoch, where lengths are counted in batches
  std::string script;               ///< file name of the program, where it was given

 private:
  struct Given {
    std::string spelled;
    std::string text;
    bool read = false;
  };
  const Given* read_name(std::string_view name);

  std::string_view dialect_;
  Translation& translation_;
  std::map<std::string, Given, std::less<>> given_;
};

/// The network that a trainer of ImageNet has: a thousand classes and one for what is none of them,
/// and batch-norm.
struct ImageNetHabits {
  std::string_view model = "resnet";
  std::string_view size = "50";
  std::string_view initialisers;
  double norm_decay = 0.9;
};
void set_imagenet_habits(DialectReader& read, const ImageNetHabits& habits);

/// A number of weight updates, rounded down; a run is no longer than 1e15.
[[nodiscard]] std::int64_t whole_steps(double steps);

struct DialectSpec {
  std::string_view name;
  std::string_view title;  ///< the scripts, for the help
  std::span<const DialectWord> words;
  /// Called after all words are read and those with an `option` are set.
  void (*translate)(DialectReader& read);
};

[[nodiscard]] DialectSpec nvidia_dialect();
[[nodiscard]] DialectSpec habana_resnext_dialect();
[[nodiscard]] DialectSpec habana_keras_dialect();
[[nodiscard]] DialectSpec surfsara_dialect();

/// The dialects that a command line means, its --dialect taken out of `words`: none, or one, or
/// both of Habana's where nothing tells which. Errors: Usage for an unknown name.
[[nodiscard]] std::vector<DialectSpec> take_dialects(std::vector<std::string>& words);
/// What every name of the dialects that `words` mean becomes; empty when they mean none.
[[nodiscard]] std::string dialect_help(std::vector<std::string> words);

/// Options of a whole command line, --dialect and --config included. The numbers of processes come
/// from the launcher's variables. Errors: Usage, naming the word.
[[nodiscard]] Translation read_command_line(Command command, std::span<const std::string> words,
                                            std::size_t max_arguments,
                                            const Environment& environment);

}  // namespace millrace::cli
