// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "io/checkpoint.hpp"

namespace millrace::io {

/// Readable text: header, one line per tensor (name, role, type, shape, bytes) and totals by role.
[[nodiscard]] std::string describe(const CheckpointReader& checkpoint);

/// The same as JSON: {"path", "iteration", "epoch", "next_position", "model", "environment",
/// "tensors":
/// [{"name", "role", "dtype", "shape", "bytes"}], "totals": {role: {"tensors", "elements",
/// "bytes"}}}.
[[nodiscard]] std::string describe_json(const CheckpointReader& checkpoint);

}  // namespace millrace::io
