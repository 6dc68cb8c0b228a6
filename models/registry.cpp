// SPDX-License-Identifier: Apache-2.0
#include "models/registry.hpp"

#include <fmt/ranges.h>

#include <array>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"
#include "models/resnet.hpp"

namespace millrace::models {
namespace {

struct Family {
  std::string_view name;
  Graph (*build)(const ModelOptions&);
};

constexpr std::array<Family, 1> kFamilies = {{{"resnet", build_resnet}}};

}  // namespace

Graph build_model(const ModelOptions& options) {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) {
    if (family.name == options.model) return family.build(options);
    names.emplace_back(family.name);
  }
  const std::string nearest = nearest_match(options.model, names);
  fail(ErrorKind::Config, "there is no model {}{}; models: {}", options.model,
       nearest.empty() ? "" : fmt::format(", did you mean {}?", nearest), fmt::join(names, ", "));
}

}  // namespace millrace::models
