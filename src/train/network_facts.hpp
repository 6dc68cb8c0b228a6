// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/shape.hpp"
#include "models/model_options.hpp"
#include "run/image_options.hpp"

namespace millrace::run {
struct Run;
}

namespace millrace::training {

/// What a checkpoint says of its network besides the options of its run, which leave to the data
/// set what it reads and how many classes there are.
struct NetworkFacts {
  std::int64_t classes = 0;
  Shape image;
  std::vector<std::string> class_names = {};         ///< none: unknown
  std::optional<run::Preparation> preparation = {};  ///< of the images of a validation
  models::GivenNetwork given = {};                   ///< the network itself, if no family builds it
  friend bool operator==(const NetworkFacts&, const NetworkFacts&) = default;
};

[[nodiscard]] NetworkFacts facts_of(const run::Run& config);
/// As JSON: {"classes": 10, "image": [32, 32, 3], "class_names": ["cat", ..], "preparation":
/// {"preset": "tf", "shorter_side": 256, "mean": [123.68, 116.78, 103.94], "deviation": [1, 1,
/// 1]}}, or with a preparation {"by_image": 1}. io/checkpoint.hpp says how h5py sees it.
/// "graph" has the network itself if no family builds it. What is unknown is left out.
[[nodiscard]] std::string to_json(const NetworkFacts& facts);
/// Errors: Checkpoint, if the text is not of this form; messages begin with `label`. Nothing for
/// "", which older checkpoints have.
[[nodiscard]] std::optional<NetworkFacts> parse_facts(std::string_view text,
                                                      std::string_view label);

}  // namespace millrace::training
