// SPDX-License-Identifier: Apache-2.0
#include "train/together.hpp"

#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"

namespace millrace::train {
namespace {

/// An error as text for communication: its kind, a space, the message. Empty: no error.
std::string text_of(const std::function<void()>& f) {
  try {
    f();
    return {};
  } catch (const Error& error) {
    return std::to_string(static_cast<int>(error.kind())) + " " + error.what();
  } catch (const std::exception& error) {
    return std::to_string(static_cast<int>(ErrorKind::Internal)) + " " + error.what();
  }
}

[[noreturn]] void throw_text(const std::string& text) {
  std::size_t digits = 0;
  const auto kind = static_cast<ErrorKind>(std::stoi(text, &digits));
  throw Error(kind, text.substr(digits + 1));
}

}  // namespace

void Together::run(const std::function<void()>& f) const {
  if (world_->size() == 1) return f();
  std::string first;
  const std::vector<std::string> texts = world_->gather(text_of(f));
  for (std::size_t r = 0; r < texts.size() && first.empty(); ++r) {
    first = texts[r];
    if (first.empty() || r == 0) continue;
    const std::size_t message = first.find(' ') + 1;  // name the failing rank: the others are fine
    first = first.substr(0, message) + "rank " + std::to_string(r) + ": " + first.substr(message);
  }
  first = world_->broadcast(first);
  if (first.empty()) return;
  world_->fail_together();
  throw_text(first);
}

void Together::lead(const std::function<void()>& f) const {
  run([&] {
    if (world_->rank() == 0) f();
  });
}

}  // namespace millrace::train
