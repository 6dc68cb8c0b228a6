// SPDX-License-Identifier: Apache-2.0
//
// Integers that nodes compute from the shapes of values: paddings, borders of slices, new shapes.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "core/text.hpp"
#include "models/graph.hpp"
#include "tools/onnx/importer.hpp"

namespace millrace::io {
namespace {

/// Shapes have few numbers.
constexpr std::size_t kMostIntegers = 64;

/// Whether sums of such numbers stay in 64 bits.
bool is_small(std::int64_t value) {
  return value >= -models::kMostChannels && value <= models::kMostChannels;
}

std::int64_t count_of(const Integers& extents) {
  std::int64_t count = 1;
  for (const std::int64_t extent : extents) {
    if (extent < 0 || extent > static_cast<std::int64_t>(kMostIntegers))
      throw Unsupported{"of many integers"};
    count *= extent;
    if (count > static_cast<std::int64_t>(kMostIntegers)) throw Unsupported{"of many integers"};
  }
  return count;
}

double exact_count(const Integers& extents) {
  return std::accumulate(extents.begin(), extents.end(), 1.0, std::multiplies<>());
}

/// Gives the extent that is left open its value.
void fill_open(Integers& extents, double count) {
  const auto open = std::ranges::find(extents, std::int64_t{-1});
  if (open == extents.end()) return;
  *open = 1;
  *open = static_cast<std::int64_t>(count / std::max(1.0, exact_count(extents)));
}

std::int64_t quotient(std::int64_t a, std::int64_t b, bool real) {
  if (b == 0) throw Unsupported{"by 0"};
  if (real && a % b != 0) throw Unsupported{"of integers with a remainder"};
  return a / b;
}

}  // namespace

bool OnnxImporter::computes_constant(const OnnxNode& node) const {
  return std::ranges::all_of(node.proto().input(),
                             [&](const std::string& name) { return is_constant(name); });
}

/// Of lists of one length, or of a list and one number. PyTorch's exporter computes with the shape
/// of a value also where it knows the result.
void OnnxImporter::arithmetic(const OnnxNode& node) {
  const Integers a = integers(node, 0);
  const Integers b = integers(node, 1);
  const std::size_t count = std::max(a.size(), b.size());
  const auto fits = [&](const Integers& part) { return part.size() == count || part.size() == 1; };
  if (!fits(a) || !fits(b) || count > kMostIntegers || !std::ranges::all_of(a, is_small) ||
      !std::ranges::all_of(b, is_small))
    throw Unsupported{"of anything but a few integers"};
  const Constant& first = constant(node, 0);
  const Constant& second = constant(node, 1);
  const bool real = first.real || second.real;
  const bool is_sum = node.type() == "Add" || node.type() == "Sum";
  Integers result;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t x = a[a.size() == 1 ? 0 : i];
    const std::int64_t y = b[b.size() == 1 ? 0 : i];
    result.push_back(is_sum                 ? x + y
                     : node.type() == "Sub" ? x - y
                     : node.type() == "Mul" ? x * y
                                            : quotient(x, y, real));
  }
  const bool by_first = first.extents.size() >= second.extents.size() && a.size() == count;
  put(node, Constant{.integers = std::move(result),
                     .fixed = true,
                     .real = real,
                     .extents = by_first ? first.extents : second.extents});
}

void OnnxImporter::negative(const OnnxNode& node) {
  if (!computes_constant(node)) throw Unsupported{"of values"};
  const Constant& from = constant(node, 0);
  Integers values = integers(node, 0);
  if (!std::ranges::all_of(values, is_small)) throw Unsupported{"of anything but a few integers"};
  std::ranges::transform(values, values.begin(), std::negate<>());
  put(node, Constant{.integers = std::move(values),
                     .fixed = true,
                     .real = from.real,
                     .extents = from.extents});
}

void OnnxImporter::constant_of_shape(const OnnxNode& node) {
  const Integers extents = integers(node, 0);
  const onnx::TensorProto* const value = node.tensor("value");
  if (value == nullptr) return put(node, Constant{.fill = 0.0, .fixed = true, .extents = extents});
  if (!has_integers(*value)) {
    const std::vector<float> one = floats_of(*value, place_);
    if (one.size() != 1) node.damaged(fmt::format("has {} values, not one", one.size()));
    return put(node, Constant{.fill = decimal_of(one.front()), .fixed = true, .extents = extents});
  }
  const Integers one = integers_of(*value, place_);
  if (one.size() != 1) node.damaged(fmt::format("has {} values, not one", one.size()));
  put(node, Constant{.integers = Integers(static_cast<std::size_t>(count_of(extents)), one.front()),
                     .fixed = true,
                     .extents = extents});
}

/// Rows of a list or matrix, in their order or in reverse.
void OnnxImporter::slice_integers(const OnnxNode& node) {
  const Integers from = integers(node, 0);
  const Integers starts = node.has("starts") ? node.integers("starts", {}) : integers(node, 1);
  const Integers ends = node.has("ends") ? node.integers("ends", {}) : integers(node, 2);
  const Integers over = axes(node, 3).value_or(Integers{0});
  const Integers steps = node.input(4).empty() ? Integers{1} : integers(node, 4);
  Integers extents = constant(node, 0).extents;
  if (extents.empty()) extents = {std::ssize(from)};
  const bool reversed = steps == Integers{-1};
  if (starts.size() != 1 || ends.size() != 1 || over != Integers{0} ||
      (!reversed && steps != Integers{1}) || count_of(extents) != std::ssize(from))
    throw Unsupported{"of a shape with steps"};
  const std::int64_t size = extents[0];
  const auto at = [&](std::int64_t index, std::int64_t lowest) {
    return std::clamp(index < 0 ? index + size : index, lowest, size + lowest);
  };
  const std::int64_t width = size == 0 ? 0 : std::ssize(from) / size;
  const std::int64_t step = reversed ? -1 : 1;
  const std::int64_t end = at(ends[0], reversed ? -1 : 0);
  Integers part;
  std::int64_t rows = 0;
  for (std::int64_t row = at(starts[0], reversed ? -1 : 0); step * (end - row) > 0; row += step) {
    part.insert(part.end(), from.begin() + row * width, from.begin() + (row + 1) * width);
    ++rows;
  }
  extents[0] = rows;
  put(node, Constant{.integers = std::move(part), .extents = std::move(extents)});
}

void OnnxImporter::transpose_integers(const OnnxNode& node) {
  const Integers from = integers(node, 0);
  const Integers& extents = constant(node, 0).extents;
  if (extents.size() != 2 || node.integers("perm", {1, 0}) != Integers{1, 0} ||
      count_of(extents) != std::ssize(from))
    throw Unsupported{"of a tensor that is no matrix"};
  Integers turned;
  for (std::int64_t column = 0; column < extents[1]; ++column)
    for (std::int64_t row = 0; row < extents[0]; ++row)
      turned.push_back(from[static_cast<std::size_t>(row * extents[1] + column)]);
  put(node, Constant{.integers = std::move(turned), .extents = {extents[1], extents[0]}});
}

/// The elements of a tensor in other extents, such as [C] as [1, C, 1, 1].
void OnnxImporter::reshape_tensor(const OnnxNode& node) {
  Constant same = constant(node, 0);
  Integers extents = integers(node, 1);
  const double count = exact_count(same.extents);
  fill_open(extents, count);
  if (same.transposed || exact_count(extents) != count)
    throw Unsupported{"of a tensor of the file"};
  same.extents = std::move(extents);
  put(node, std::move(same));
}

/// They stay in their order.
void OnnxImporter::reshape_integers(const OnnxNode& node) {
  const Constant same = constant(node, 0);
  if (same.tensor != nullptr && !has_integers(*same.tensor)) return reshape_tensor(node);
  if (same.tensor != nullptr && same.extents.size() > 1)
    throw Unsupported{"of a tensor of the file"};
  const Integers values = same.fill ? Integers{} : integers(node, 0);
  if (values.empty()) throw Unsupported{"of a constant"};
  Integers extents = node.input(1).empty() ? node.integers("shape", {}) : integers(node, 1);
  fill_open(extents, static_cast<double>(values.size()));
  if (count_of(extents) != std::ssize(values)) extents = {std::ssize(values)};
  put(node, Constant{.integers = values, .real = same.real, .extents = std::move(extents)});
}

void OnnxImporter::concat_integers(const OnnxNode& node) {
  const auto is_real = [&](const std::string& name) {
    const Constant& part = constants_.at(name);
    return part.tensor != nullptr && !part.integers && !has_integers(*part.tensor);
  };
  // Scales of a Resize, for example: who reads them is refused.
  if (std::ranges::any_of(node.proto().input(), is_real)) return put(node, Constant{.fixed = true});
  Integers all;
  for (int i = 0; i < node.proto().input_size(); ++i) {
    const Integers part = integers(node, i);
    all.insert(all.end(), part.begin(), part.end());
  }
  if (all.size() > kMostIntegers) node.damaged(fmt::format("makes a shape of {}", all.size()));
  put(node, Constant{.integers = all, .extents = {std::ssize(all)}});
}

void OnnxImporter::range(const OnnxNode& node) {
  Integers ends;
  for (const int input : {0, 1, 2}) {
    const Integers one = integers(node, input);
    if (one.size() != 1 || !is_small(one[0])) throw Unsupported{"of anything but three integers"};
    ends.push_back(one[0]);
  }
  Integers all;
  for (std::int64_t at = ends[0]; ends[2] > 0 && at < ends[1]; at += ends[2]) {
    if (all.size() == kMostIntegers) throw Unsupported{"of many integers"};
    all.push_back(at);
  }
  const Integers extents = {std::ssize(all)};
  put(node, Constant{.integers = std::move(all), .fixed = true, .extents = extents});
}

}  // namespace millrace::io
