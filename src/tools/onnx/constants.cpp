// SPDX-License-Identifier: Apache-2.0
//
// Shapes and other values that no image changes, and what only arranges values in another way.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "core/text.hpp"
#include "models/graph.hpp"
#include "tools/onnx/importer.hpp"

namespace millrace::io {
namespace {

using models::ValueId;

constexpr std::string_view kPartOfChannels =
    "of a part of the channels, as torch.split and torch.chunk make: give each part a convolution "
    "of its own, or one with groups";

bool is_real(std::int64_t type) {
  return type == onnx::TensorProto::FLOAT || type == onnx::TensorProto::DOUBLE ||
         type == onnx::TensorProto::FLOAT16;
}

std::int64_t product(const Integers& values) {
  double product = 1.0;
  for (const std::int64_t value : values) product *= static_cast<double>(value);
  if (std::abs(product) > static_cast<double>(models::kMostElements)) return -1;
  return static_cast<std::int64_t>(product);
}

/// An index that may count from the end, within 0 to `size`.
std::int64_t clamped(std::int64_t index, std::int64_t size) {
  return std::clamp<std::int64_t>(index < 0 ? index + size : index, 0, size);
}

}  // namespace

void OnnxImporter::constant_node(const OnnxNode& node) {
  if (const onnx::TensorProto* const tensor = node.tensor("value"))
    return put(node,
               Constant{.tensor = tensor, .fixed = true, .extents = extents_of(*tensor, place_)});
  if (node.has("value_ints")) {
    Integers values = node.integers("value_ints", {});
    const Integers extents = {std::ssize(values)};
    return put(node, Constant{.integers = std::move(values), .extents = extents});
  }
  if (node.has("value_int"))
    return put(node, Constant{.integers = Integers{node.integer("value_int", 0)}});
  if (node.has("value_float")) return put(node, Constant{.fill = node.real("value_float", 0.0)});
  if (node.has("value_floats")) {
    const std::vector<double> values = node.reals("value_floats");
    Constant list = {.fixed = true, .extents = {std::ssize(values)}};
    // The reader of other lists says that it needs a tensor.
    if (std::ranges::adjacent_find(values, std::not_equal_to<>()) == values.end() &&
        !values.empty())
      list.fill = values.front();
    return put(node, std::move(list));
  }
  put(node, Constant{.fixed = true});  // a text, for example: only who reads it can refuse it
}

std::optional<double> OnnxImporter::literal(const std::string& name) const {
  const onnx::TensorProto* tensor = nullptr;
  if (const auto known = constants_.find(name); known != constants_.end()) {
    tensor = known->second.tensor;
  } else if (const auto maker = makers_.find(name);
             maker != makers_.end() && maker->second->op_type() == "Constant") {
    const OnnxNode made(*maker->second, place_);
    if (made.has("value_float")) return made.real("value_float", 0.0);
    tensor = made.tensor("value");
  }
  const bool is_number =
      tensor != nullptr && tensor->data_type() == onnx::TensorProto::FLOAT &&
      std::ranges::all_of(tensor->dims(), [](auto extent) { return extent == 1; });
  if (!is_number || !has_elements(*tensor)) return std::nullopt;
  return decimal_of(floats_of(*tensor, place_).front());
}

void OnnxImporter::shape_of(const OnnxNode& node) {
  const std::string& name = node.input(0);
  const auto known = constants_.find(name);
  Integers extents_found = known != constants_.end() ? known->second.extents : extents(value(node));
  const std::int64_t rank = std::ssize(extents_found);
  const std::int64_t first = clamped(node.integer("start", 0), rank);
  const std::int64_t end = std::max(first, clamped(node.integer("end", rank), rank));
  const Integers part(extents_found.begin() + first, extents_found.begin() + end);
  put(node, Constant{.integers = part, .extents = {std::ssize(part)}});
}

void OnnxImporter::gather(const OnnxNode& node) {
  if (!is_constant(node.input(0))) throw Unsupported{"of a part of an image"};
  const Integers from = integers(node, 0);
  const Constant& indices = constant(node, 1);
  Integers result;
  for (std::int64_t index : integers(node, 1)) {
    index += index < 0 ? std::ssize(from) : 0;
    if (index < 0 || index >= std::ssize(from))
      node.damaged(fmt::format("reads number {} of {}", index, from.size()));
    result.push_back(from[static_cast<std::size_t>(index)]);
  }
  put(node, Constant{.integers = std::move(result), .extents = indices.extents});
}

/// Every n-th pixel, as in shortcuts that subsample.
void OnnxImporter::slice(const OnnxNode& node) {
  if (is_constant(node.input(0))) return slice_integers(node);
  const ValueId x = image(node);
  const Integers starts = node.has("starts") ? node.integers("starts", {}) : integers(node, 1);
  const Integers ends = node.has("ends") ? node.integers("ends", {}) : integers(node, 2);
  Integers over(starts.size());
  std::iota(over.begin(), over.end(), 0);
  if (const auto given = axes(node, 3)) over = *given;
  const Integers steps = node.input(4).empty() ? Integers(starts.size(), 1) : integers(node, 4);
  if (ends.size() != starts.size() || over.size() != starts.size() || steps.size() != starts.size())
    node.damaged("has axes without begin, end or step");
  models::Extent stride;
  for (std::size_t i = 0; i < over.size(); ++i) {
    const std::int64_t axis = over[i] + (over[i] < 0 ? 4 : 0);
    if (axis < 0 || axis > 3) node.damaged(fmt::format("has the axis {}", over[i]));
    const std::int64_t size = axis == 0   ? std::numeric_limits<std::int32_t>::max()
                              : axis == 1 ? shape(x).c
                              : axis == 2 ? shape(x).h
                                          : shape(x).w;
    const bool whole = starts[i] == 0 && ends[i] >= size;
    if (axis == 1 && !whole && steps[i] == 1) throw Unsupported{std::string(kPartOfChannels)};
    if (!whole || steps[i] < 1 || steps[i] > models::kMostChannels || (axis < 2 && steps[i] != 1))
      throw Unsupported{"of a part; only every n-th pixel of all can be taken"};
    if (axis == 2) stride.h = steps[i];
    if (axis == 3) stride.w = steps[i];
  }
  if (stride == models::Extent{}) return pass(node);
  put(node, {add(node, models::ShortcutPad{.stride = stride}, {x})});
}

void OnnxImporter::expand(const OnnxNode& node) {
  if (!is_constant(node.input(0))) return expand_value(node);
  const Constant& from = constant(node, 0);
  if (from.integers && from.integers->size() == 1) return pass(node);  // a shape of one extent
  put(node, Constant{.fill = number(node, 0), .extents = integers(node, 1)});
}

/// The scale of an image's channels, repeated for every pixel before the product.
void OnnxImporter::expand_value(const OnnxNode& node) {
  const ValueId x = image(node);
  const Shape& s = shape(x);
  const Integers to = integers(node, 1);
  const bool fits = to.size() == 4 && (to[0] == kBatch || to[0] == 1 || to[0] == input_.batch) &&
                    (to[1] == s.c || to[1] == 1) && to[2] > 0 && to[3] > 0;
  if (!fits || s.pixels() != 1) throw Unsupported{"of anything but one pixel to an image"};
  Value spread = {.id = x};
  spread.spread = models::Extent{to[2], to[3]};
  put(node, spread);
}

void OnnxImporter::transpose(const OnnxNode& node) {
  if (!is_constant(node.input(0))) throw Unsupported{"of a value"};
  Constant turned = constant(node, 0);
  const Integers order = node.integers("perm", {1, 0});
  if (turned.integers) return transpose_integers(node);
  if (turned.tensor == nullptr || turned.extents.size() != 2 || order != Integers{1, 0})
    throw Unsupported{"of a tensor that is no matrix"};
  std::swap(turned.extents[0], turned.extents[1]);
  turned.transposed = !turned.transposed;
  put(node, std::move(turned));
}

void OnnxImporter::split(const OnnxNode&) { throw Unsupported{std::string(kPartOfChannels)}; }

void OnnxImporter::cast(const OnnxNode& node) {
  if (is_constant(node.input(0))) {
    Constant same = constant(node, 0);
    same.real = is_real(node.integer("to", 0));
    return put(node, std::move(same));
  }
  if (node.integer("to", 0) != onnx::TensorProto::FLOAT)
    throw Unsupported{"to another type than float32"};
  pass(node);
}

// ---- values in another arrangement

void OnnxImporter::flatten(const OnnxNode& node) {
  const std::int64_t axis = node.integer("axis", 1);
  if (axis > 1) throw Unsupported{"that keeps more than the batch"};
  const Value x = value(node);
  const std::int64_t rank = x.flat ? 2 : 4;
  if ((axis < 0 ? axis + rank : axis) != 1) throw Unsupported{"that keeps more than the batch"};
  put(node, {x.id, true});
}

/// The extents that a Reshape asks for, with kBatch for the batch; nothing if they do not fit.
std::optional<Integers> OnnxImporter::resolved(Integers wanted, const Integers& from,
                                               bool zero_copies) const {
  const Integers own(from.begin() + 1, from.end());
  const std::int64_t elements = product(own);
  if (wanted.empty() || wanted.size() > 4) return std::nullopt;
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (wanted[i] == 0 && zero_copies && i < from.size()) wanted[i] = from[i];
  if (input_.batch > 0 && wanted[0] == input_.batch) wanted[0] = kBatch;
  const auto open = std::ranges::find(wanted, std::int64_t{-1});
  const Integers rest(wanted.begin() + 1, wanted.end());
  if (open == wanted.begin()) {
    if (std::ranges::any_of(rest, [](std::int64_t extent) { return extent < 1; }))
      return std::nullopt;
    wanted[0] = kBatch;
  } else if (open != wanted.end()) {
    Integers others = rest;
    others.erase(others.begin() + (open - wanted.begin() - 1));
    const std::int64_t count = product(others);
    if (count < 1 || elements % count != 0) return std::nullopt;
    *open = elements / count;
  }
  const Integers filled(wanted.begin() + 1, wanted.end());
  const bool positive = std::ranges::all_of(filled, [](std::int64_t extent) { return extent > 0; });
  if (wanted[0] != kBatch || !positive || product(filled) != elements) return std::nullopt;
  return wanted;
}

void OnnxImporter::reshape(const OnnxNode& node) {
  if (is_constant(node.input(0))) return reshape_integers(node);
  if (const auto* const norm = norm_of(node.input(0), GroupedNorm::Reached::Normal)) {
    const Value x = values_.at(node.input(0));
    const Integers own = {kBatch, norm->groups, shape(x).elements() / norm->groups};
    const Integers back = extents({.id = x.id});
    if (resolved(integers(node, 1), own, node.integer("allowzero", 0) == 0) != back)
      throw Unsupported{"of channels in groups to another image"};
    GroupedNorm next = *norm;
    next.reached = GroupedNorm::Reached::Image;
    return put(node, x, next);
  }
  const Value x = value(node);
  const Integers wanted = node.has("shape") ? node.integers("shape", {}) : integers(node, 1);
  const std::optional<Integers> to =
      resolved(wanted, extents(x), node.integer("allowzero", 0) == 0);
  const Shape& s = shape(x);
  if (to && to->size() == 2) return put(node, {x.id, true});
  if (to && to->size() == 3 && !x.flat && (*to)[1] > 0 && s.c % (*to)[1] == 0) {
    const onnx::NodeProto* const reader = sole_reader(node.proto());
    if (reader != nullptr && reader->op_type() == "InstanceNormalization")
      return put(node, x, GroupedNorm{.groups = (*to)[1]});
  }
  if (to && to->size() == 4 && Integers(to->begin() + 1, to->end()) == Integers{s.c, s.h, s.w})
    return put(node, {x.id, false});
  throw Unsupported{fmt::format("of {} values per image; only flattening and its reverse are known",
                                s.elements())};
}

void OnnxImporter::squeeze(const OnnxNode& node) {
  if (is_constant(node.input(0))) {
    if (constant(node, 0).extents.size() > 1) throw Unsupported{"of a tensor of the file"};
    Constant scalar = constant(node, 0);
    scalar.extents.clear();
    return put(node, std::move(scalar));
  }
  const ValueId x = image(node);
  const Integers over = axes(node, 1).value_or(Integers{2, 3});
  if (from_the_front(over, 4) != Integers{2, 3} || shape(x).pixels() != 1)
    throw Unsupported{"of other axes than height and width of 1"};
  put(node, {x, true});
}

void OnnxImporter::unsqueeze_constant(const OnnxNode& node) {
  const Integers over = axes(node, 1).value_or(Integers{});
  Constant list = constant(node, 0);
  if (list.extents.empty() && !list.fill && over == Integers{0}) {
    list.integers = integers(node, 0);
    list.tensor = nullptr;
  }
  const std::int64_t rank = std::ssize(list.extents) + std::ssize(over);
  for (const std::int64_t axis : from_the_front(over, rank)) {
    if (axis < 0 || axis > std::ssize(list.extents) || list.transposed)
      throw Unsupported{"of a tensor of the file"};
    list.extents.insert(list.extents.begin() + axis, 1);
  }
  put(node, std::move(list));
}

/// Axes for height and width behind the channels, at once or one after the other.
void OnnxImporter::unsqueeze(const OnnxNode& node) {
  if (is_constant(node.input(0))) return unsqueeze_constant(node);
  const Value x = value(node);
  Integers over = axes(node, 1).value_or(Integers{});
  over = from_the_front(over, (x.third_axis ? 3 : 2) + std::ssize(over));
  const bool one = over == Integers{2} || (x.third_axis && over == Integers{3});
  const bool two = !x.third_axis && over == Integers{2, 3};
  if (!x.flat || shape(x).pixels() != 1 || (!one && !two))
    throw Unsupported{"by other axes than height and width"};
  Value made = {.id = x.id};
  made.flat = made.third_axis = one && !x.third_axis;
  put(node, made);
}

}  // namespace millrace::io
