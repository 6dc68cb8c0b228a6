// SPDX-License-Identifier: Apache-2.0
#include "train/snapshot.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.hpp"
#include "device/host_buffer.hpp"

namespace millrace::train {

Snapshot::Snapshot(std::vector<io::TensorInfo> infos) {
  std::int64_t elements = 0;
  for (const io::TensorInfo& info : infos) elements += info.elements();
  data_.resize(static_cast<std::size_t>(elements));
  const std::byte* at = reinterpret_cast<const std::byte*>(data_.data());
  for (io::TensorInfo& info : infos) {
    const auto bytes = static_cast<std::size_t>(info.bytes());
    tensors_.push_back({std::move(info), {at, bytes}});
    at += bytes;
  }
}

void Snapshot::take(std::span<const pipeline::StoredValues> values) {
  MILLRACE_ASSERT(values.size() == tensors_.size());
  std::vector<device::HostCopy> copies;
  float* to = data_.data();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const io::TensorInfo& info = tensors_[i].info;
    if (values[i].type == DType::F32)
      copies.push_back({reinterpret_cast<std::byte*>(to), values[i].data, info.bytes()});
    else
      pipeline::read_values(values[i], {to, static_cast<std::size_t>(info.elements())});
    to += info.elements();
  }
  device::copy_to_host(copies);
}

std::string first_not_finite(const Snapshot& snapshot) {
  for (const io::NamedTensor& tensor : snapshot.tensors()) {
    const auto* values = reinterpret_cast<const float*>(tensor.data.data());
    const bool finite = std::all_of(values, values + tensor.info.elements(),
                                    [](float x) { return std::isfinite(x); });
    if (!finite) return tensor.info.name;
  }
  return {};
}

}  // namespace millrace::train
