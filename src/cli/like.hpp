// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/options.hpp"
#include "io/weights/import.hpp"

namespace millrace::cli {

/// The libraries of --like; all without it.
[[nodiscard]] std::vector<io::WeightStyle> wanted_styles(const Patch& options);

/// Options and their values, in the words of a command line.
struct ImpliedOption {
  std::string name;
  std::string value;  ///< "true" for a flag
};
/// What a file says about its network: by the shapes of its tensors, and Keras by its
/// configuration.
[[nodiscard]] std::vector<ImpliedOption> options_shown(const io::Identified& found);
/// What no shape shows: padding, epsilon, and how images are prepared, as in the library.
[[nodiscard]] std::vector<ImpliedOption> options_assumed(const io::Identified& found);

/// Sets those of the options that were not given.
void add_implied(Patch& options, std::span<const ImpliedOption> implied, std::string_view where);
/// "--padding torch --norm-epsilon 1e-05", with the values that hold.
[[nodiscard]] std::string text_of(std::span<const ImpliedOption> implied, const Patch& options);

}  // namespace millrace::cli
