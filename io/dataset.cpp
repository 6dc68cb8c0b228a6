// SPDX-License-Identifier: Apache-2.0
#include "io/dataset.hpp"

#include <fmt/format.h>

#include <vector>

#include "core/crc32c.hpp"

#include "core/error.hpp"

namespace millrace::io {

std::uint32_t Dataset::fingerprint() const {
  std::vector<std::int32_t> labels;
  for (std::int64_t i = 0; i < size(); ++i) labels.push_back(label(i));
  return crc32c(std::as_bytes(std::span(labels)));
}

std::string describe(const Dataset& dataset) {
  return fmt::format("{}, {} images, crc32c {:08x}", dataset.name(), dataset.size(),
                     dataset.fingerprint());
}

SampleOrder::SampleOrder(std::uint64_t seed, std::int64_t size, Order order)
    : seed_(seed), size_(size), order_(order) {
  if (size < 1) fail(ErrorKind::Data, "a data set of {} samples has no order: it is empty", size);
}

SampleOrder SampleOrder::shuffled(std::uint64_t seed, std::int64_t size) {
  return {seed, size, Order::Shuffled};
}

SampleOrder SampleOrder::sequential(std::int64_t size) { return {0, size, Order::Sequential}; }

SampleOrder::Place SampleOrder::at(std::int64_t position) const {
  MILLRACE_ASSERT(position >= 0);
  const auto epoch = static_cast<std::uint64_t>(position / size_);
  const std::int64_t within = position % size_;
  if (order_ == Order::Sequential) return {epoch, within};
  const Permutation permutation(seed_, epoch, static_cast<std::uint64_t>(size_));
  return {epoch, static_cast<std::int64_t>(permutation(static_cast<std::uint64_t>(within)))};
}

}  // namespace millrace::io
