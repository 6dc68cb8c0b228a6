// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "core/error.hpp"

namespace millrace::models {

/// Expects `action` to end with an Error of this kind and exactly this message.
template <class Action>
void expect_error(ErrorKind kind, const std::string& message, const Action& action) {
  try {
    action();
    ADD_FAILURE() << "no error, expected: " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    EXPECT_EQ(error.what(), message);
  }
}

}  // namespace millrace::models
