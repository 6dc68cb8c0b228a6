// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/update_rule.hpp"
#include "io/checkpoint.hpp"
#include "io/weights/import.hpp"
#include "models/graph.hpp"

namespace millrace::cli {

/// Tensors for a checkpoint that no training wrote: parameters and running statistics as given, and
/// initial optimizer state.
class ImportedTensors {
 public:
  ImportedTensors(const models::Graph& graph, std::vector<io::ImportedParameter> imported,
                  UpdateRule optimiser) {
    for (io::ImportedParameter& parameter : imported)
      values_.emplace(parameter.name, std::move(parameter.values));
    for (const models::Parameter& parameter : graph.parameters) {
      const bool trainable = parameter.trainable();
      add(parameter.name, trainable ? io::TensorRole::Parameter : io::TensorRole::State,
          parameter.shape);
      if (!trainable) continue;
      const auto elements = static_cast<std::size_t>(parameter.elements());
      for (const UpdateSlot& slot : update_slots(optimiser)) {
        const std::string name = fmt::format("{}/{}", parameter.name, slot.name);
        values_.emplace(name, std::vector<float>(elements, slot.initial));
        add(name, io::TensorRole::Slot, parameter.shape);
      }
    }
  }
  [[nodiscard]] const std::vector<io::NamedTensor>& tensors() const { return tensors_; }

 private:
  void add(const std::string& name, io::TensorRole role, const std::vector<std::int64_t>& shape) {
    const std::vector<float>& values = values_.at(name);
    tensors_.push_back({.info = {.name = name, .role = role, .type = DType::F32, .shape = shape},
                        .data = std::as_bytes(std::span(values))});
  }
  std::map<std::string, std::vector<float>> values_;
  std::vector<io::NamedTensor> tensors_;
};

}  // namespace millrace::cli
