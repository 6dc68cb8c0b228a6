// SPDX-License-Identifier: Apache-2.0
//
// Whether a library's own network computes what an exported one does. Names that fit are not
// enough: padding and epsilon have no tensors, and the IPU trainer's networks have others.
#pragma once

#include <string>
#include <vector>

#include "io/weights/names.hpp"
#include "models/model_options.hpp"

namespace millrace::cli {

/// Lines about a network that is exported with the names of a library: in what the library's own
/// one differs, what follows for who loads the file, and the options that train the library's. None
/// if both compute the same.
[[nodiscard]] std::vector<std::string> library_notes(const models::ModelOptions& model,
                                                     io::WeightStyle style);

}  // namespace millrace::cli
