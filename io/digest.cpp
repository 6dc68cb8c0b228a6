// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "core/sha256.hpp"
#include "core/text.hpp"
#include "io/checkpoint.hpp"
#include "io/manifest.hpp"

namespace millrace::io {
namespace {

// Hashes description, line break and bytes. Names have no line breaks, and the description
// determines the number of bytes, so different sets of tensors never give equal input.
void feed(Sha256& sha, const TensorInfo& info, std::span<const std::byte> data) {
  const std::string line = fmt::format("{} {} {} {}\n", info.name, name_of(info.role),
                                       name_of(info.type), join(info.shape, "x"));
  sha.update(std::as_bytes(std::span(line)));
  sha.update(data);
}

bool in_order(const TensorInfo& a, const TensorInfo& b) {
  return std::tie(a.name, a.role) < std::tie(b.name, b.role);
}

}  // namespace

std::string digest(std::span<const NamedTensor> tensors) {
  std::vector<const NamedTensor*> ordered;
  for (const NamedTensor& tensor : tensors) ordered.push_back(&tensor);
  std::sort(ordered.begin(), ordered.end(),
            [](const NamedTensor* a, const NamedTensor* b) { return in_order(a->info, b->info); });
  Sha256 sha;
  for (const NamedTensor* const tensor : ordered) feed(sha, tensor->info, tensor->data);
  return sha.hex_digest();
}

std::string digest(const CheckpointReader& checkpoint) {
  Sha256 sha;
  std::vector<std::byte> data;
  for (const TensorInfo& info : checkpoint.tensors()) {  // in name order, names unique
    data.resize(static_cast<std::size_t>(info.bytes()));
    checkpoint.read(info.name, data);
    feed(sha, info, data);
  }
  return sha.hex_digest();
}

}  // namespace millrace::io
