// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "io/events/event_file.hpp"

namespace millrace::io {

/// A number, text or flag by which TensorBoard's HParams tab compares runs.
using HParam = std::variant<double, bool, std::string>;
using HParams = std::vector<std::pair<std::string, HParam>>;

/// Writes what makes a run a row of the HParams tab. Its columns are these values, and the scalars
/// of event files in the same folder and in those below it.
void begin_session(EventFile& file, const HParams& hparams);
/// The run is complete, after this step.
void end_session(EventFile& file, std::int64_t step);

}  // namespace millrace::io
