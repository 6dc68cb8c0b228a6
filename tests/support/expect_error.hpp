// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "tests/support/test.hpp"

namespace millrace {

/// The message of the Error of this kind that `action` ends with; empty if it ends without one.
template <class Action>
std::string message_of(ErrorKind kind, const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "";
}

/// Expects `action` to end with an Error of this kind and exactly this message.
template <class Action>
void expect_error(ErrorKind kind, const std::string& message, const Action& action) {
  EXPECT_EQ(message_of(kind, action), message);
}

/// Expects `action` to end with an Error of this kind whose message contains all parts.
template <class Action>
void expect_error(ErrorKind kind, std::initializer_list<std::string> parts, const Action& action) {
  const std::string message = message_of(kind, action);
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
}

}  // namespace millrace
