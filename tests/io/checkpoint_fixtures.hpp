// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint.hpp"

namespace millrace::io {

/// The tensors of a small network, not in name order. `seed` determines the bytes.
class SampleModel {
 public:
  explicit SampleModel(unsigned seed) : random_(seed) {
    add("b1/0/conv1/kernel", TensorRole::Parameter, DType::F32, {16, 3, 3, 3});
    add("b1/0/conv1/kernel/momentum", TensorRole::Slot, DType::F32, {16, 3, 3, 3});
    add("b0/norm/moving_mean", TensorRole::State, DType::F32, {16});
    add("b0/norm/gamma", TensorRole::Parameter, DType::BF16, {16});
    add("b0/norm/gamma/momentum", TensorRole::Slot, DType::BF16, {16});
    add("fc1/bias", TensorRole::Parameter, DType::F16, {10});
    add("loss_scale", TensorRole::State, DType::I32, {});
    add("flags", TensorRole::State, DType::U8, {3, 1});
  }
  [[nodiscard]] std::span<const NamedTensor> tensors() const { return tensors_; }
  [[nodiscard]] std::vector<NamedTensor>& mutable_tensors() { return tensors_; }
  [[nodiscard]] std::vector<std::byte>& bytes(std::size_t tensor) { return storage_[tensor]; }

 private:
  void add(const std::string& name, TensorRole role, DType type, std::vector<std::int64_t> shape) {
    TensorInfo info{name, role, type, std::move(shape)};
    auto& data = storage_.emplace_back(static_cast<std::size_t>(info.bytes()));
    for (std::byte& b : data)
      b = static_cast<std::byte>((random_ = random_ * 1664525u + 1013904223u) >> 24);
    tensors_.push_back({std::move(info), data});
  }

  std::uint32_t random_;
  std::deque<std::vector<std::byte>> storage_;
  std::vector<NamedTensor> tensors_;
};

inline CheckpointHeader sample_header(std::int64_t iteration) {
  return {.iteration = iteration,
          .epoch = 1.0 / 3.0,
          .next_position = 128 * iteration,
          .model = "resnet-8",
          .config_toml = "seed = 1\nname = \"\xc3\xa9\"\n",
          .environment = "threads 2, AVX-512",
          .log_state = "{\"loss\": 1.5}",
          .scaling_state = "{\"scale\": 2.0}",
          .stand_ins = 5};
}

/// The bytes of one tensor.
inline std::vector<std::byte> read_tensor(const CheckpointReader& reader, const TensorInfo& info) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(info.bytes()));
  reader.read(info.name, bytes);
  return bytes;
}

}  // namespace millrace::io
