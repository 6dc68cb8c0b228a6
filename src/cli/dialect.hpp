// SPDX-License-Identifier: Apache-2.0
//
// Command lines of other trainers. A dialect is a table of option names and a function that turns
// what was given into options of millrace, by that trainer's own arithmetic: rates for a batch of
// 256, global batches, lengths in epochs or batches. What it does not know is read as an option of
// millrace's own, so that --shards or --synthetic-data can stand beside it.
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
  std::string_view idle = {};     ///< why it has no effect here; said once
  std::string_view refused = {};  ///< why it cannot be had here
};

/// What a command line in a dialect asks for.
struct Translation {
  Command command = Command::Train;
  Options options;
  std::vector<std::string> notices;
};

/// What was given under the names of a dialect, and where the translation goes.
class DialectReader {
 public:
  DialectReader(std::string_view dialect, Translation& translation, std::int64_t worker_count)
      : workers(worker_count), dialect_(dialect), translation_(translation) {}

  void give(std::string_view name, std::string text) {
    given_.insert_or_assign(std::string(name), std::move(text));
  }
  [[nodiscard]] bool given(std::string_view name) const { return given_.contains(name); }
  [[nodiscard]] bool flag(std::string_view name, bool otherwise = false) const;
  [[nodiscard]] std::string text(std::string_view name, std::string_view otherwise) const;
  /// Errors: Usage, naming the option, when its text is no number.
  [[nodiscard]] double real(std::string_view name, double otherwise) const;
  [[nodiscard]] std::int64_t integer(std::string_view name, std::int64_t otherwise) const;

  /// Sets an option of millrace. What the user gave under another name is as strong as the command
  /// line; what is the trainer's habit gives way to it.
  void set(std::string_view option, std::string_view text, std::string_view from);
  void set(std::string_view option, double value, std::string_view from);
  void set(std::string_view option, std::int64_t value, std::string_view from);
  void note(std::string text) { translation_.notices.push_back(std::move(text)); }
  [[nodiscard]] Translation& translation() { return translation_; }

  std::int64_t workers = 1;         ///< processes, each with a replica
  std::int64_t images = 1'281'167;  ///< of an epoch, where lengths are counted in batches
  std::string script;               ///< file name of the program, where it was given

 private:
  std::string_view dialect_;
  Translation& translation_;
  std::map<std::string, std::string, std::less<>> given_;
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
/// Both of Habana's: --data_loader_image_type fp32, bf16, fp16 or uint8. Errors: Usage.
void set_image_type(DialectReader& read);

struct DialectSpec {
  std::string_view name;
  std::span<const DialectWord> words;
  /// Called after all words are read and those with an `option` are set.
  void (*translate)(DialectReader& read);
};

[[nodiscard]] DialectSpec nvidia_dialect();
[[nodiscard]] DialectSpec habana_resnext_dialect();
[[nodiscard]] DialectSpec habana_keras_dialect();
[[nodiscard]] DialectSpec surfsara_dialect();

/// Options of a whole command line, --dialect and --config included. The numbers of processes come
/// from the launcher's variables. Errors: Usage, naming the word.
[[nodiscard]] Translation read_command_line(Command command, std::span<const std::string> words,
                                            std::size_t max_arguments,
                                            const Environment& environment);

}  // namespace millrace::cli
