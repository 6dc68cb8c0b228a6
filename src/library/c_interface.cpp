// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "library/millrace.h"
#include "library/millrace.hpp"
#include "millrace_version.hpp"
#include "run/fields.hpp"

struct millrace_training {
  millrace_training(const std::string& toml, int threads)
      : runtime(threads), training(runtime, millrace::parse_recipe(toml)) {}
  millrace::Runtime runtime;
  millrace::Training training;
  std::string saved;  ///< the path of the last checkpoint
};

struct millrace_classifier {
  millrace_classifier(const std::filesystem::path& from, int threads)
      : runtime(threads), classifier(runtime, from) {}
  millrace::Runtime runtime;
  millrace::Classifier classifier;
};

namespace {

using millrace::Error;
using millrace::ErrorKind;

/// Of this thread.
std::string& last_error() {
  thread_local std::string text;
  return text;
}

/// An error of the library in the keys of a configuration file, which is what a program has here.
std::string with_keys(std::string text) {
  constexpr std::string_view kRun = "Run::";
  for (std::size_t at = text.find(kRun); at != std::string::npos; at = text.find(kRun, at + 1)) {
    const std::size_t end =
        text.find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789.", at + kRun.size());
    const std::string member = text.substr(at, std::min(end, text.size()) - at);
    for (const millrace::run::Field& field : millrace::run::field_table())
      if (!field.members.empty() && field.members.front().name == member) {
        text.replace(at, member.size(), field.name);
        break;
      }
  }
  return text;
}

/// What `work` returns, or what `failed` makes of the exit code of its error.
template <class Work, class Failed>
auto guarded(const Work& work, const Failed& failed) noexcept -> decltype(work()) {
  try {
    return work();
  } catch (...) {
    const Error error = millrace::current_error();
    last_error() = with_keys(error.what());
    return failed(millrace::exit_code(error.kind()));
  }
}

/// 0, or the exit code of the error.
template <class Work>
int code_of(const Work& work) noexcept {
  return guarded(
      [&] {
        work();
        return 0;
      },
      [](int code) { return code; });
}

/// What `work` returns, or null.
template <class Work>
auto pointer_of(const Work& work) noexcept {
  return guarded(work, [](int) { return decltype(work())(nullptr); });
}

template <class T>
T& given(T* pointer, const char* what) {
  if (pointer == nullptr) millrace::fail(ErrorKind::Usage, "{} is NULL", what);
  return *pointer;
}

std::string text(const char* words, const char* what) { return &given(words, what); }

/// Writes what `work` scores to `to`.
template <class Work>
int score_of(millrace_score* to, const Work& work) noexcept {
  return code_of([&] {
    millrace_score& place = given(to, "the score");
    const millrace::Score score = work();
    place = {.loss = score.loss,
             .accuracy = score.accuracy,
             .images = score.images,
             .skipped = score.skipped ? 1 : 0};
  });
}

millrace::Training& training_of(millrace_training* handle) {
  return given(handle, "the training").training;
}
millrace::Classifier& classifier_of(millrace_classifier* handle) {
  return given(handle, "the classifier").classifier;
}

std::size_t size(std::int64_t count) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  if (count < 0 || count > kMost)
    millrace::fail(ErrorKind::Usage, "a count of {}: give 0 to {}", count, kMost);
  return static_cast<std::size_t>(count);
}

}  // namespace

const char* millrace_version() { return millrace::kVersion.data(); }
const char* millrace_last_error() { return last_error().c_str(); }

millrace_training* millrace_create(const char* toml, int threads) {
  return pointer_of(
      [&] { return new millrace_training(text(toml, "the configuration"), threads); });
}
void millrace_destroy(millrace_training* training) { delete training; }

int millrace_step(millrace_training* training, millrace_score* score) {
  return score_of(score, [&] { return training_of(training).step(); });
}
int millrace_evaluate(millrace_training* training, millrace_score* score) {
  return score_of(score, [&] { return training_of(training).evaluate(); });
}

const char* millrace_save(millrace_training* training, const char* directory) {
  return pointer_of([&] {
    std::string& saved = given(training, "the training").saved;
    saved = training->training.save(text(directory, "the directory")).string();
    return saved.c_str();
  });
}
int millrace_load(millrace_training* training, const char* checkpoint) {
  return code_of([&] { training_of(training).load(text(checkpoint, "the checkpoint")); });
}

std::int64_t millrace_get(millrace_training* training, const char* name, float* values,
                          std::int64_t count) {
  return guarded(
      [&] {
        const std::vector<float> found = training_of(training).values(text(name, "the name"));
        if (count == std::ssize(found))
          std::ranges::copy(found, &given(values, "the array of values"));
        return static_cast<std::int64_t>(std::ssize(found));
      },
      [](int) { return std::int64_t{-1}; });
}
int millrace_set(millrace_training* training, const char* name, const float* values,
                 std::int64_t count) {
  return code_of([&] {
    training_of(training).set_values(text(name, "the name"),
                                     std::span(&given(values, "the array of values"), size(count)));
  });
}

millrace_classifier* millrace_open(const char* checkpoint_or_run, int threads) {
  return pointer_of(
      [&] { return new millrace_classifier(text(checkpoint_or_run, "the path"), threads); });
}
void millrace_close(millrace_classifier* classifier) { delete classifier; }

int millrace_shape(millrace_classifier* classifier, std::int64_t shape[4]) {
  return code_of([&] {
    const millrace::Shape image = classifier_of(classifier).image_shape();
    const std::int64_t numbers[] = {image.h, image.w, image.c, classifier->classifier.classes()};
    std::ranges::copy(numbers, &given(shape, "the shape"));
  });
}
int millrace_predict(millrace_classifier* classifier, const float* images, std::int64_t count,
                     float* logits) {
  return code_of([&] {
    const millrace::Classifier& network = classifier_of(classifier);
    const std::size_t floats = size(count) * size(network.image_shape().elements());
    std::ranges::copy(network.logits(std::span(&given(images, "the array of images"), floats)),
                      &given(logits, "the array of logits"));
  });
}
int millrace_predict_file(millrace_classifier* classifier, const char* path, float* logits) {
  return code_of([&] {
    const std::filesystem::path file = text(path, "the path");
    std::ranges::copy(classifier_of(classifier).logits(std::span(&file, 1)),
                      &given(logits, "the array of logits"));
  });
}
