// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "io/checkpoint.hpp"
#include "pipeline/parameters.hpp"

namespace millrace::train {

/// Copies of the tensors that a process saves, as float32 on the host. Memory is allocated once.
class Snapshot {
 public:
  Snapshot() = default;
  explicit Snapshot(std::vector<io::TensorInfo> infos);
  [[nodiscard]] const std::vector<io::NamedTensor>& tensors() const { return tensors_; }
  /// Replaces the copies by `values`, tensor by tensor.
  void take(std::span<const pipeline::StoredValues> values);

 private:
  std::vector<float> data_;
  std::vector<io::NamedTensor> tensors_;
};

/// Name of a tensor that holds a NaN or an infinity, or "".
[[nodiscard]] std::string first_not_finite(const Snapshot& snapshot);

}  // namespace millrace::train
