// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/text.hpp"
#include "models/graph.hpp"
#include "tools/onnx/importer.hpp"

namespace millrace::io {
namespace {

using models::Extent;
using models::Padding;
using models::ValueId;

/// He et al. 2015, "Delving deep into rectifiers".
constexpr models::Initialiser kFresh = {models::Initialiser::Kind::VarianceScaling, 2.0,
                                        models::Initialiser::Fan::In};

Extent extent_of(const OnnxNode& node, const char* what, const Integers& values) {
  if (values.size() != 2)
    throw Unsupported{fmt::format("with {} of {} axes; images have 2", what, values.size())};
  for (const std::int64_t value : values)
    if (value < 1 || value > models::kMostChannels)
      node.damaged(fmt::format("has {} in its {}", value, what));
  return {values[0], values[1]};
}

/// Pixels to add behind for the last window that begins within the image or the padding before it.
std::int64_t rest_behind(std::int64_t pixels, std::int64_t before, std::int64_t after,
                         std::int64_t window, std::int64_t stride) {
  const std::int64_t room = before + pixels + after - window;
  if (room < 0) return 0;
  std::int64_t last = (room + stride - 1) / stride;
  if (last * stride >= pixels + before) --last;
  return std::max<std::int64_t>(0, last * stride - room);
}

}  // namespace

const std::map<std::string_view, OnnxImporter::Handler OnnxImporter::*>& OnnxImporter::table() {
  using I = OnnxImporter;
  static const std::map<std::string_view, Handler I::*> rows = {
      {"Add", &I::add_values},
      {"AveragePool", &I::pool},
      {"BatchNormalization", &I::batch_norm},
      {"Cast", &I::cast},
      {"CastLike", &I::pass},
      {"Clip", &I::clip},
      {"Concat", &I::concat},
      {"Constant", &I::constant_node},
      {"ConstantOfShape", &I::constant_of_shape},
      {"Conv", &I::conv},
      {"Div", &I::subtract_or_divide},
      {"Dropout", &I::dropout},
      {"Expand", &I::expand},
      {"Flatten", &I::flatten},
      {"Gather", &I::gather},
      {"Gemm", &I::gemm},
      {"GlobalAveragePool", &I::reduce_image},
      {"GlobalMaxPool", &I::reduce_image},
      {"GroupNormalization", &I::group_norm},
      {"HardSigmoid", &I::activation},
      {"HardSwish", &I::activation},
      {"Identity", &I::pass},
      {"InstanceNormalization", &I::instance_norm},
      {"LeakyRelu", &I::activation},
      {"LogSoftmax", &I::softmax},
      {"MatMul", &I::mat_mul},
      {"MaxPool", &I::pool},
      {"Mul", &I::multiply},
      {"Neg", &I::negative},
      {"Pad", &I::pad},
      {"Range", &I::range},
      {"ReduceMax", &I::reduce_image},
      {"ReduceMean", &I::reduce_image},
      {"Relu", &I::activation},
      {"Reshape", &I::reshape},
      {"Shape", &I::shape_of},
      {"Sigmoid", &I::activation},
      {"Slice", &I::slice},
      {"Softmax", &I::softmax},
      {"Squeeze", &I::squeeze},
      {"Split", &I::split},
      {"Sub", &I::subtract_or_divide},
      {"Sum", &I::add_values},
      {"Swish", &I::swish},
      {"Transpose", &I::transpose},
      {"Unsqueeze", &I::unsqueeze},
  };
  return rows;
}

// ---- convolutions and dense ops

OnnxImporter::Window OnnxImporter::window(const OnnxNode& node, const Shape& x,
                                          Extent kernel) const {
  Window w{.kernel = kernel,
           .stride = extent_of(node, "strides", node.integers("strides", {1, 1})),
           .dilation = extent_of(node, "dilations", node.integers("dilations", {1, 1})),
           .pad = {}};
  const std::string automatic = node.text("auto_pad", "NOTSET");
  if (automatic == "SAME_UPPER" || automatic == "SAME_LOWER") {
    w.pad = models::padding_same(x, w.kernel, w.stride, w.dilation);
    if (automatic == "SAME_UPPER") return w;
    std::swap(w.pad.top, w.pad.bottom);
    std::swap(w.pad.left, w.pad.right);
  } else if (automatic == "NOTSET" || automatic.empty()) {
    const Integers pads = node.integers("pads", {0, 0, 0, 0});
    if (pads.size() != 4) node.damaged(fmt::format("has {} pads, not 4", pads.size()));
    for (const std::int64_t pad : pads)
      if (pad < 0 || pad > models::kMostChannels)
        throw Unsupported{fmt::format("with a padding of {}", pad)};
    w.pad = {.top = pads[0], .bottom = pads[2], .left = pads[1], .right = pads[3]};
  } else if (automatic != "VALID") {
    node.damaged(fmt::format("has auto_pad '{}'", automatic));
  }
  return w;
}

/// What is added by the op, and by nodes behind it.
std::optional<WeightSource> OnnxImporter::bias_of(const OnnxNode& node, int input,
                                                  std::int64_t channels) const {
  auto none = behind(node).adds ? std::optional(WeightSource{}) : std::nullopt;
  if (node.input(input).empty()) return none;
  const Constant& found = constant(node, input);
  if (found.fill && *found.fill == 0.0) return none;  // PyTorch's exporter adds such ones
  const bool row = found.extents.size() == 2;
  return weight(node, input, row ? std::vector{std::int64_t{1}, channels} : std::vector{channels});
}

void OnnxImporter::conv(const OnnxNode& node) {
  const Constant& kernel = constant(node, 1);
  const Integers& s = kernel.extents;
  if (s.size() != 4)
    throw Unsupported{fmt::format("with a kernel of {} axes; those of images have 4", s.size())};
  std::vector<WeightSource> sources = {weight(node, 1, s)};
  if (!kernels_.insert(sources.front().tensor).second)
    throw Unsupported{"shares its kernel with another node"};
  const ValueId x = image(node);
  const Shape& in = shape(x);
  const std::int64_t groups = node.integer("group", 1);
  if (groups < 1 || groups > in.c || s[1] != in.c / groups)
    node.damaged(
        fmt::format("has a kernel {} and {} groups for {} channels", join(s, "x"), groups, in.c));
  const Extent size = extent_of(node, "kernel", {s[2], s[3]});
  if (node.has("kernel_shape") && kernel_shape(node) != size)
    node.damaged("has a kernel_shape that is not that of its kernel");
  Window w = window(node, in, size);
  const Padding more = value(node).pad;
  if (more != Padding{} && node.text("auto_pad", "NOTSET") != "NOTSET")
    throw Unsupported{"with automatic padding behind a Pad"};
  w.pad = {w.pad.top + more.top, w.pad.bottom + more.bottom, w.pad.left + more.left,
           w.pad.right + more.right};
  const std::optional<WeightSource> bias = bias_of(node, 2, s[0]);
  if (bias) sources.push_back(*bias);
  put(node, {add(node,
                 models::Conv{.out_channels = s[0],
                              .kernel = w.kernel,
                              .stride = w.stride,
                              .pad = w.pad,
                              .groups = groups,
                              .dilation = w.dilation,
                              .bias = bias.has_value(),
                              .init = kFresh},
                 {x}, std::move(sources))});
}

void OnnxImporter::gemm(const OnnxNode& node) {
  if (node.real("alpha", 1.0) != 1.0 || node.real("beta", 1.0) != 1.0)
    throw Unsupported{"with factors alpha and beta other than 1"};
  if (node.integer("transA", 0) != 0) throw Unsupported{"with a transposed first operand"};
  if (constant(node, 1).extents.size() != 2) node.damaged("has a matrix that is none");
  dense(node, node.integer("transB", 0) == 0);
}

void OnnxImporter::mat_mul(const OnnxNode& node) {
  if (constant(node, 1).extents.size() != 2) throw Unsupported{"of more than a matrix"};
  dense(node, true);
}

/// `transposed`: the file multiplies by [in][units].
void OnnxImporter::dense(const OnnxNode& node, bool transposed) {
  const std::int64_t units = constant(node, 1).extents[transposed ? 1 : 0];
  const std::optional<WeightSource> bias = bias_of(node, 2, units);
  const Value& x = value(node);
  if (!x.flat) throw Unsupported{"of an image that is not flattened"};
  const std::int64_t in = shape(x).elements();
  WeightSource kernel = weight(node, 1, transposed ? Integers{in, units} : Integers{units, in});
  kernel.transposed = kernel.transposed != transposed;
  if (!kernels_.insert(kernel.tensor).second)
    throw Unsupported{"shares its matrix with another node"};
  std::vector<WeightSource> sources = {kernel};
  if (bias) sources.push_back(*bias);
  const ValueId made = add(node, models::Dense{.units = units, .bias = bias.has_value()}, {x.id},
                           std::move(sources));
  put(node, {made, true});
}

// ---- sums, products, concatenations

void OnnxImporter::add_values(const OnnxNode& node) {
  if (node.proto().input_size() == 2) {
    for (const int input : {0, 1})
      if (norm_of(node.input(input), GroupedNorm::Reached::Scaled) != nullptr)
        return shift_groups(node, input);
    if (computes_constant(node)) return arithmetic(node);
    if (folds_pair(node)) return;
  }
  std::vector<int> values;
  std::vector<int> constants;
  for (int i = 0; i < node.proto().input_size(); ++i)
    (is_constant(node.input(i)) ? constants : values).push_back(i);
  if (values.empty()) throw Unsupported{"of constants"};
  for (const int by : constants)
    fold(node, folding_input(node.proto()).value_or(values.front()), by);
  if (values.size() == 1 && !constants.empty())
    foldable_[node.output()] = foldable_.at(node.input(values.front()));
  Value total = value(node, values.front());
  for (std::size_t i = 1; i < values.size(); ++i) {
    const Value x = value(node, values[i]);
    if (x.flat != total.flat) throw Unsupported{"of an image and a flat value"};
    total.id = add(node, models::Add{}, {total.id, x.id});
  }
  put(node, total);
}

void OnnxImporter::multiply(const OnnxNode& node) {
  for (const int input : {0, 1})
    if (norm_of(node.input(input), GroupedNorm::Reached::Image) != nullptr)
      return scale_groups(node, input);
  if (computes_constant(node)) return arithmetic(node);
  if (folds_pair(node)) return;
  Value x = value(node, 0);
  Value scale = value(node, 1);
  if (x.flat != scale.flat) throw Unsupported{"of an image and a flat value"};
  if (shape(scale).pixels() != 1) std::swap(x, scale);
  if (shape(scale).pixels() != 1)
    throw Unsupported{
        fmt::format("of {} and {}; one must have a single value per channel, or be the sigmoid of "
                    "the other",
                    shape(x), shape(scale))};
  const Extent image = {shape(x).h, shape(x).w};
  if (x.spread || (scale.spread && scale.spread != image && scale.spread != Extent{1, 1}))
    throw Unsupported{"of a value that an Expand makes larger than the other"};
  put(node, {add(node, models::ScaleChannels{}, {x.id, scale.id}), x.flat});
}

void OnnxImporter::concat(const OnnxNode& node) {
  const auto& inputs = node.proto().input();
  if (std::ranges::all_of(inputs, [&](const auto& name) { return is_constant(name); }))
    return concat_integers(node);
  if (inputs.size() == 1) return pass(node);
  const std::int64_t axis = node.integer("axis", 1);
  if (axis > 1) throw Unsupported{"along another axis than channels"};
  std::vector<ValueId> ids;
  const bool flat = value(node).flat;
  for (int i = 0; i < inputs.size(); ++i) {
    const Value& x = value(node, i);
    if (x.flat != flat) throw Unsupported{"of images and flat values"};
    ids.push_back(x.id);
  }
  const std::int64_t rank = flat ? 2 : 4;
  if ((axis < 0 ? axis + rank : axis) != 1) throw Unsupported{"along another axis than channels"};
  put(node, {add(node, models::Concat{}, std::move(ids)), flat});
}

// ---- pools

Extent OnnxImporter::kernel_shape(const OnnxNode& node) const {
  return extent_of(node, "kernel_shape", node.integers("kernel_shape", {}));
}

void OnnxImporter::pool(const OnnxNode& node) {
  if (node.integers("dilations", {1, 1}) != Integers{1, 1}) throw Unsupported{"with dilations"};
  const ValueId x = image(node);
  const Shape& in = shape(x);
  Window w = window(node, in, kernel_shape(node));
  const bool padded = w.pad != Padding{};
  bool counts = node.integer("count_include_pad", 0) != 0 && padded;
  if (node.integer("ceil_mode", 0) != 0) {
    const std::int64_t below = rest_behind(in.h, w.pad.top, w.pad.bottom, w.kernel.h, w.stride.h);
    const std::int64_t right = rest_behind(in.w, w.pad.left, w.pad.right, w.kernel.w, w.stride.w);
    if (counts && below + right > 0)
      throw Unsupported{"that counts padding and rounds its size up"};
    w.pad.bottom += below;
    w.pad.right += right;
  }
  put(node, {add(node,
                 models::Pool{.kind = node.type() == "MaxPool" ? models::PoolKind::Max
                                                               : models::PoolKind::Average,
                              .kernel = w.kernel,
                              .stride = w.stride,
                              .pad = w.pad,
                              .count_padding = counts},
                 {x})});
}

void OnnxImporter::reduce_image(const OnnxNode& node) {
  const std::string type = node.type();
  const bool reduces = type.starts_with("Reduce");
  if (reduces && from_the_front(axes(node, 1).value_or(Integers{}), 4) != Integers{2, 3})
    throw Unsupported{"over other axes than height and width"};
  const ValueId x = image(node);
  const Extent whole = {shape(x).h, shape(x).w};
  const bool mean = type == "GlobalAveragePool" || type == "ReduceMean";
  const ValueId made = mean ? add(node, models::GlobalAveragePool{}, {x})
                            : add(node, models::Pool{.kernel = whole, .stride = whole}, {x});
  put(node, {made, reduces && node.integer("keepdims", 1) == 0});
}

// ---- what only training has, and padding

void OnnxImporter::dropout(const OnnxNode& node) {
  const Value x = value(node);
  const double rate = node.has("ratio") ? node.real("ratio", 0.5) : number(node, 1).value_or(0.5);
  if (rate == 0.0) return put(node, x);
  put(node, {add(node, models::Dropout{.rate = rate}, {x.id}), x.flat});
}

void OnnxImporter::pad(const OnnxNode& node) {
  if (node.text("mode", "constant") != "constant" ||
      (node.has("value") ? node.real("value", 0.0) : number(node, 2).value_or(0.0)) != 0.0)
    throw Unsupported{"with something else than zeros"};
  if (!node.input(3).empty()) throw Unsupported{"of chosen axes"};
  const ValueId x = image(node);
  const Integers pads = node.has("pads") ? node.integers("pads", {}) : integers(node, 1);
  if (pads.size() != 8) node.damaged(fmt::format("has {} pads for 4 axes", pads.size()));
  for (const std::int64_t count : pads)
    if (count < 0 || count > models::kMostChannels)
      throw Unsupported{fmt::format("by {} pixels", count)};
  const Padding around = {.top = pads[2], .bottom = pads[6], .left = pads[3], .right = pads[7]};
  const bool channels = pads[1] + pads[5] > 0;
  if (pads[0] + pads[4] > 0 || (channels && around != Padding{}))
    throw Unsupported{"of images, or of pixels and channels at once"};
  if (!channels) return put(node, {x, false, around});
  put(node,
      {add(node, models::ShortcutPad{.channels_before = pads[1], .channels_after = pads[5]}, {x})});
}

}  // namespace millrace::io
