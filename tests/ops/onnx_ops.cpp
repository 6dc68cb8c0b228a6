// SPDX-License-Identifier: Apache-2.0
//
// ONNX operators with our kernels, in float32. Differences between our ops and ONNX's are handled
// here on the host: the order of dimensions, automatic padding, transposed or scaled operands,
// reductions of per-sample losses.
#include "ops/elementwise.hpp"
#include "ops/norm.hpp"
#include "ops/optimiser.hpp"
#include "ops/softmax_loss.hpp"
#include "tests/ops/device_values.hpp"
#include "tests/ops/norm_scratch.hpp"
#include "tests/ops/onnx_case.hpp"
#include "tests/ops/shapes.hpp"

namespace millrace::ops {
namespace {

using Integers = std::vector<std::int64_t>;

std::int64_t product(const Integers& dims) {
  return std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
}

struct Call {
  const OnnxNode& node;
  Backend& backend;
  OnnxTensors& tensors;
  device::ExecutionSpace space;

  [[nodiscard]] bool has_input(std::size_t i) const {
    return i < node.inputs.size() && !node.inputs[i].empty();
  }
  [[nodiscard]] const OnnxTensor& input(std::size_t i) const {
    return tensors.at(node.inputs.at(i));
  }
  void set_output(std::size_t i, OnnxTensor tensor) {
    if (i < node.outputs.size()) tensors[node.outputs[i]] = std::move(tensor);
  }
};

// ---- images -------------------------------------------------------------------------------------

/// A [n][c][h][w] or [n][c][w] tensor as NHWC images; one-dimensional ones are one pixel high.
struct Images {
  std::int64_t batch;
  Shape shape;
  Values values;
};

Images to_images(const OnnxTensor& t) {
  if (t.dims.size() != 3 && t.dims.size() != 4) throw std::runtime_error("images of 3 dimensions");
  Images images{t.dims[0], {t.dims.size() == 4 ? t.dims[2] : 1, t.dims.back(), t.dims[1]}, {}};
  const auto channels = static_cast<std::size_t>(images.shape.c);
  const auto pixels = static_cast<std::size_t>(images.shape.pixels());
  images.values.resize(t.values.size());
  for (std::size_t i = 0; i < t.values.size(); ++i) {
    const std::size_t n = i / pixels / channels;
    const std::size_t c = i / pixels % channels;
    images.values[(n * pixels + i % pixels) * channels + c] = t.values[i];
  }
  return images;
}

OnnxTensor from_images(const Images& images, std::size_t rank) {
  const Shape& s = images.shape;
  OnnxTensor t{rank == 4 ? Integers{images.batch, s.c, s.h, s.w} : Integers{images.batch, s.c, s.w},
               Values(images.values.size())};
  const auto channels = static_cast<std::size_t>(s.c);
  const auto pixels = static_cast<std::size_t>(s.pixels());
  for (std::size_t i = 0; i < t.values.size(); ++i) {
    const std::size_t n = i / pixels / channels;
    const std::size_t c = i / pixels % channels;
    t.values[i] = images.values[(n * pixels + i % pixels) * channels + c];
  }
  return t;
}

/// One axis of a window.
struct Axis {
  std::int64_t window, stride, dilation, before, after, out;
};

Axis axis_of(const OnnxNode& node, std::size_t axis, std::size_t axes, std::int64_t window,
             std::int64_t size) {
  const auto ones = Integers(axes, 1);
  Axis a{window,
         node.attribute<Integers>("strides", ones)[axis],
         node.attribute<Integers>("dilations", ones)[axis],
         0,
         0,
         0};
  const std::int64_t reach = (a.window - 1) * a.dilation + 1;
  const auto automatic = node.attribute<std::string>("auto_pad", "NOTSET");
  if (automatic == "SAME_UPPER" || automatic == "SAME_LOWER") {
    a.out = (size + a.stride - 1) / a.stride;
    const std::int64_t total = std::max<std::int64_t>(0, (a.out - 1) * a.stride + reach - size);
    a.before = automatic == "SAME_UPPER" ? total / 2 : (total + 1) / 2;
    a.after = total - a.before;
    return a;
  }
  const auto pads = node.attribute<Integers>("pads", Integers(2 * axes, 0));
  a.before = pads[axis];
  a.after = pads[axis + axes];
  const std::int64_t room = size + a.before + a.after - reach;
  const bool ceil = node.attribute<int>("ceil_mode", 0) != 0;
  a.out = (room + (ceil ? a.stride - 1 : 0)) / a.stride + 1;
  if (ceil && (a.out - 1) * a.stride >= size + a.before) --a.out;  // it would start in the padding
  return a;
}

/// Both axes of a window over `images`; kernel_shape is an attribute or the kernel's own.
struct Window {
  Axis h, w;
};
Window window_of(const OnnxNode& node, const Images& images, const Integers& kernel) {
  const std::size_t axes = kernel.size();
  const Axis none{1, 1, 1, 0, 0, 1};
  return {axes == 2 ? axis_of(node, 0, 2, kernel[0], images.shape.h) : none,
          axis_of(node, axes - 1, axes, kernel[axes - 1], images.shape.w)};
}

WindowShape window_shape(const Images& images, const Window& w, std::int64_t channels) {
  return {images.batch, images.shape, {w.h.out, w.w.out, channels},
          w.h.window,   w.w.window,   w.h.stride,
          w.w.stride,   w.h.before,   w.w.before};
}

// ---- convolution and dense ----------------------------------------------------------------------

Values run_linear(Call& call, LinearOp& op, const Values& x, const Values& kernel,
                  const Values& bias, std::int64_t outputs) {
  DeviceValues<float> x_device(x), kernel_device(kernel), y(outputs);
  DeviceValues<float> bias_device(bias.empty() ? Values(1) : bias);
  const LinearBytes bytes = op.bytes();
  DeviceValues<std::uint8_t> packed(bytes.packed_forward), scratch(bytes.scratch);
  op.bind({kernel_device.raw(), bias_device.data(), nullptr, nullptr, packed.raw(), nullptr,
           scratch.raw()});
  op.pack(call.space, false);
  op.forward(call.space, y.raw(), x_device.raw());
  device::fence(call.space);
  return y.values();
}

void conv(Call& call) {
  const Images x = to_images(call.input(0));
  // A kernel [o][i][h][w] is o images of i channels: OHWI is their NHWC.
  const Images kernel = to_images(call.input(1));
  const std::size_t rank = call.input(0).dims.size();
  const Integers extents(call.input(1).dims.begin() + 2, call.input(1).dims.end());
  const Window w = window_of(call.node, x, extents);
  ConvShape s;
  s.window = window_shape(x, w, kernel.batch);
  s.pad_bottom = w.h.after;
  s.pad_right = w.w.after;
  s.dilation_h = w.h.dilation;
  s.dilation_w = w.w.dilation;
  s.groups = call.node.attribute<std::int64_t>("group", 1);
  s.bias = call.has_input(2);
  const auto op = call.backend.convolution(s, DType::F32, {false, false});
  const Values bias = s.bias ? call.input(2).values : Values();
  const Values y = run_linear(call, *op, x.values, kernel.values, bias, s.window.out_elements());
  call.set_output(0, from_images({x.batch, s.window.out, y}, rank));
}

Values transposed(const OnnxTensor& t) {
  const auto rows = static_cast<std::size_t>(t.dims[0]);
  const auto columns = static_cast<std::size_t>(t.dims[1]);
  Values result(t.values.size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    result[i] = t.values[i % rows * columns + i / rows];
  }
  return result;
}

/// Repeats a tensor along its missing and its unit dimensions, as numpy does.
Values broadcast(const OnnxTensor& t, const Integers& dims) {
  Values result(static_cast<std::size_t>(product(dims)));
  for (std::size_t i = 0; i < result.size(); ++i) {
    std::int64_t rest = static_cast<std::int64_t>(i);
    std::int64_t offset = 0;
    std::int64_t step = 1;
    for (std::size_t back = 1; back <= dims.size(); ++back) {
      const std::int64_t size = dims[dims.size() - back];
      if (back <= t.dims.size()) {
        const std::int64_t own = t.dims[t.dims.size() - back];
        offset += (own == 1 ? 0 : rest % size) * step;
        step *= own;
      }
      rest /= size;
    }
    result[i] = t.values[static_cast<std::size_t>(offset)];
  }
  return result;
}

Values added(Call& call, const Values& a, const Values& b) {
  DeviceValues<float> a_device(a), b_device(b), y(static_cast<std::int64_t>(a.size()));
  add_forward(call.space, y.data(), a_device.data(), b_device.data(),
              static_cast<std::int64_t>(a.size()), Activation::None);
  device::fence(call.space);
  return y.values();
}

/// y = alpha a b + beta c as a dense op: its kernel is b transposed and scaled, its bias a vector
/// c; a whole matrix c is added after it.
void gemm(Call& call) {
  const OnnxTensor& a = call.input(0);
  const OnnxTensor& b = call.input(1);
  const bool turn_a = call.node.attribute<int>("transA", 0) != 0;
  const bool turn_b = call.node.attribute<int>("transB", 0) != 0;
  DenseShape s{a.dims[turn_a ? 1 : 0], a.dims[turn_a ? 0 : 1], b.dims[turn_b ? 0 : 1], false};
  Values kernel = turn_b ? b.values : transposed(b);
  for (double& value : kernel) value *= call.node.attribute<double>("alpha", 1.0);
  Values bias, matrix;
  if (call.has_input(2)) {
    OnnxTensor c = call.input(2);
    for (double& value : c.values) value *= call.node.attribute<double>("beta", 1.0);
    s.bias = c.dims.size() < 2 || c.dims[0] == 1;
    (s.bias ? bias : matrix) =
        broadcast(c, s.bias ? Integers{1, s.units} : Integers{s.batch, s.units});
  }
  const auto op = call.backend.dense(s, DType::F32, {false, false});
  Values y =
      run_linear(call, *op, turn_a ? transposed(a) : a.values, kernel, bias, s.batch * s.units);
  if (!matrix.empty()) y = added(call, y, matrix);
  call.set_output(0, {{s.batch, s.units}, y});
}

// ---- pools --------------------------------------------------------------------------------------

/// Positions in the window as ONNX numbers them: indices into the whole NCHW tensor, or
/// column-major within a plane (storage_order 1).
Values winner_indices(const WindowShape& s, const Values& winner, bool by_columns) {
  Values indices(winner.size());
  for (std::size_t i = 0; i < winner.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    const std::int64_t c = at % s.out.c;
    const std::int64_t ow = at / s.out.c % s.out.w;
    const std::int64_t oh = at / s.out.c / s.out.w % s.out.h;
    const std::int64_t n = at / s.out.elements();
    const auto place = static_cast<std::int64_t>(winner[i]);
    const std::int64_t h = oh * s.stride_h - s.pad_top + place / s.kernel_w;
    const std::int64_t w = ow * s.stride_w - s.pad_left + place % s.kernel_w;
    const std::int64_t plane = (n * s.in.c + c) * s.in.pixels();
    indices[i] = static_cast<double>(plane + (by_columns ? w * s.in.h + h : h * s.in.w + w));
  }
  return indices;
}

void max_pool_over(Call& call, const Images& x, const WindowShape& s, std::size_t rank) {
  DeviceValues<float> x_device(x.values), y(s.out_elements());
  DeviceValues<std::uint8_t> winner(s.out_elements());
  const bool indices = call.node.outputs.size() > 1;
  max_pool_forward(call.space, s, y.data(), indices ? winner.data() : nullptr, x_device.data());
  device::fence(call.space);
  call.set_output(0, from_images({x.batch, s.out, y.values()}, rank));
  if (!indices) return;
  const bool by_columns = call.node.attribute<int>("storage_order", 0) != 0;
  call.set_output(
      1, from_images({x.batch, s.out, winner_indices(s, winner.values(), by_columns)}, rank));
}

void max_pool(Call& call) {
  const Images x = to_images(call.input(0));
  const Window w = window_of(call.node, x, call.node.attribute<Integers>("kernel_shape", {}));
  max_pool_over(call, x, window_shape(x, w, x.shape.c), call.input(0).dims.size());
}

void global_max_pool(Call& call) {
  const Images x = to_images(call.input(0));
  const WindowShape whole{x.batch, x.shape, {1, 1, x.shape.c}, x.shape.h, x.shape.w, 1, 1, 0, 0};
  max_pool_over(call, x, whole, call.input(0).dims.size());
}

void average_pool(Call& call) {
  const Images x = to_images(call.input(0));
  const Window w = window_of(call.node, x, call.node.attribute<Integers>("kernel_shape", {}));
  const WindowShape s = window_shape(x, w, x.shape.c);
  DeviceValues<float> x_device(x.values), y(s.out_elements());
  average_pool_forward(call.space, s, y.data(), x_device.data(),
                       call.node.attribute<int>("count_include_pad", 0) != 0);
  device::fence(call.space);
  call.set_output(0, from_images({x.batch, s.out, y.values()}, call.input(0).dims.size()));
}

void global_average_pool(Call& call) {
  const Images x = to_images(call.input(0));
  DeviceValues<float> x_device(x.values), y(x.batch * x.shape.c);
  global_average_forward(call.space, x.batch, x.shape, y.data(), x_device.data());
  device::fence(call.space);
  call.set_output(0, {{x.batch, x.shape.c, 1, 1}, y.values()});
}

// ---- norms --------------------------------------------------------------------------------------

void apply_norm(Call& call, const NormShape& s, const Images& x, DeviceValues<float>& x_device,
                DeviceValues<float>& statistics) {
  DeviceValues<float> gamma(call.input(1).values), beta(call.input(2).values), y(s.elements());
  norm_apply<float>(call.space, s, y.data(), x_device.data(), nullptr, statistics.data(),
                    gamma.data(), beta.data(), Activation::None);
  device::fence(call.space);
  call.set_output(0, from_images({x.batch, x.shape, y.values()}, call.input(0).dims.size()));
}

/// ONNX uses the biased variance, millrace the unbiased one.
void set_running(Call& call, std::size_t input, DeviceValues<float>& sums, double correction) {
  Values corrected = sums.values();
  for (double& value : corrected) value *= correction;
  sums.assign(corrected);
  const OnnxTensor& old = call.input(input);
  DeviceValues<float> moving(old.values);
  const DeviceRecords<RunningSpan> span({{.offset = 0,
                                          .elements = static_cast<std::int32_t>(product(old.dims)),
                                          .decay = call.node.attribute<float>("momentum", 0.9f)}});
  update_running(call.space, span.data(), 1, moving.data(), sums.data(), 1);
  device::fence(call.space);
  call.set_output(input - 2, {old.dims, moving.values()});
}

void batch_norm(Call& call) {
  const Images x = to_images(call.input(0));
  const std::int64_t rows = x.batch * x.shape.pixels();
  const NormShape s = batch_norm_shape(rows, x.shape.c);
  const float epsilon = call.node.attribute<float>("epsilon", 1e-5f);
  DeviceValues<float> x_device(x.values), statistics(s.statistics_floats());
  if (call.node.attribute<int>("training_mode", 0) == 0) {
    DeviceValues<float> mean(call.input(3).values), variance(call.input(4).values);
    norm_statistics_from_running(call.space, s.channels, statistics.data(), mean.data(),
                                 variance.data(), epsilon);
    apply_norm(call, s, x, x_device, statistics);
    return;
  }
  NormScratchMemory scratch(s);
  DeviceValues<float> mean(s.channels), variance(s.channels);
  norm_statistics(call.space, s, statistics.data(), {mean.data(), variance.data(), true},
                  scratch.get(), x_device.data(), epsilon);
  apply_norm(call, s, x, x_device, statistics);
  const double count = static_cast<double>(rows);
  set_running(call, 3, mean, 1.0);
  set_running(call, 4, variance, (count - 1.0) / count);
}

/// Instance norm is group norm with a group for every channel.
void instance_norm(Call& call) {
  const Images x = to_images(call.input(0));
  const NormShape s = group_norm_shape(x.batch, x.shape.pixels(), x.shape.c, x.shape.c, false);
  DeviceValues<float> x_device(x.values), statistics(s.statistics_floats());
  NormScratchMemory scratch(s);
  norm_statistics(call.space, s, statistics.data(), {}, scratch.get(), x_device.data(),
                  call.node.attribute<float>("epsilon", 1e-5f));
  apply_norm(call, s, x, x_device, statistics);
}

// ---- elementwise --------------------------------------------------------------------------------

void activation(Call& call, Activation fn, ActivationNumbers numbers) {
  const OnnxTensor& x = call.input(0);
  DeviceValues<float> values(x.values);
  activation_forward(call.space, values.data(), values.data(), product(x.dims), fn, numbers);
  device::fence(call.space);
  call.set_output(0, {x.dims, values.values()});
}
void relu(Call& call) { activation(call, Activation::Relu, {}); }
void clip(Call& call) {
  activation(call, Activation::Clip,
             {call.node.attribute<float>("min", 0.0f), call.node.attribute<float>("max", 0.0f)});
}
void leaky_relu(Call& call) {
  activation(call, Activation::LeakyRelu, {call.node.attribute<float>("alpha", 0.01f)});
}

void constant(Call& call) {
  const nlohmann::json& value = call.node.attributes.at("value").at(1);
  if (value.is_number()) {
    call.set_output(0, {{}, {value.get<double>()}});
  } else {
    const auto values = value.get<Values>();
    call.set_output(0, {{static_cast<std::int64_t>(values.size())}, values});
  }
}

// ---- loss ---------------------------------------------------------------------------------------

/// Class scores with the class dimension moved to the end: [rows][classes].
struct Scores {
  std::int64_t rows, classes, inner;
  Values values;

  Scores(const OnnxTensor& t, std::int64_t axis) {
    const auto at =
        static_cast<std::size_t>(axis < 0 ? axis + static_cast<std::int64_t>(t.dims.size()) : axis);
    classes = t.dims[at];
    inner = product(Integers(t.dims.begin() + static_cast<std::ptrdiff_t>(at) + 1, t.dims.end()));
    rows = product(t.dims) / classes;
    values.resize(t.values.size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = t.values[place(i)];
  }
  /// Index in the tensor of element i of [rows][classes].
  [[nodiscard]] std::size_t place(std::size_t i) const {
    const auto at = static_cast<std::int64_t>(i);
    const std::int64_t row = at / classes;
    return static_cast<std::size_t>((row / inner * classes + at % classes) * inner + row % inner);
  }
  [[nodiscard]] OnnxTensor back(const Integers& dims, const Values& scores) const {
    OnnxTensor t{dims, Values(scores.size())};
    for (std::size_t i = 0; i < scores.size(); ++i) t.values[place(i)] = scores[i];
    return t;
  }
};

Values losses(Call& call, const Scores& s, const Values& labels) {
  DeviceValues<float> logits(s.values), loss(s.rows);
  DeviceValues<std::int32_t> labels_device(labels), rank(s.rows);
  softmax_loss_forward(call.space, {s.rows, s.classes, 0.0f}, loss.data(), rank.data(),
                       logits.data(), labels_device.data());
  device::fence(call.space);
  return loss.values();
}

/// The loss of a sample with label k is minus its log-probability of k.
Values log_probabilities(Call& call, const Scores& s) {
  Values result(s.values.size());
  const auto classes = static_cast<std::size_t>(s.classes);
  for (std::size_t k = 0; k < classes; ++k) {
    const Values labels(static_cast<std::size_t>(s.rows), static_cast<double>(k));
    const Values loss = losses(call, s, labels);
    for (std::size_t row = 0; row < loss.size(); ++row) result[row * classes + k] = -loss[row];
  }
  return result;
}

void log_softmax(Call& call) {
  const OnnxTensor& x = call.input(0);
  const Scores s(x, call.node.attribute<std::int64_t>("axis", -1));
  call.set_output(0, s.back(x.dims, log_probabilities(call, s)));
}

/// The gradient of the loss is softmax minus the target, here class 0.
void softmax(Call& call) {
  const OnnxTensor& x = call.input(0);
  const Scores s(x, call.node.attribute<std::int64_t>("axis", -1));
  DeviceValues<float> logits(s.values), gradient(s.rows * s.classes);
  DeviceValues<std::int32_t> labels(Values(static_cast<std::size_t>(s.rows), 0.0));
  const DeviceRecords<float> scaling({static_cast<float>(s.rows)});  // of a mean over the rows
  softmax_loss_backward(call.space, {s.rows, s.classes, 0.0f}, gradient.data(), logits.data(),
                        labels.data(), scaling.data());
  device::fence(call.space);
  Values probabilities = gradient.values();
  for (std::size_t i = 0; i < probabilities.size(); i += static_cast<std::size_t>(s.classes)) {
    probabilities[i] += 1.0;
  }
  call.set_output(0, s.back(x.dims, probabilities));
}

void softmax_cross_entropy(Call& call) {
  if (call.has_input(2)) throw std::runtime_error("there are no class weights");
  const OnnxTensor& x = call.input(0);
  const OnnxTensor& y = call.input(1);
  const Scores s(x, 1);
  Values labels = y.values;
  if (call.node.attributes.contains("ignore_index")) {
    const auto ignored = call.node.attribute<double>("ignore_index", 0.0);
    std::replace(labels.begin(), labels.end(), ignored, -1.0);
  }
  const Values loss = losses(call, s, labels);
  const auto reduction = call.node.attribute<std::string>("reduction", "mean");
  if (reduction == "none") {
    call.set_output(0, {y.dims, loss});
  } else {
    const double sum = std::accumulate(loss.begin(), loss.end(), 0.0);
    const auto counted =
        std::count_if(labels.begin(), labels.end(), [](double l) { return l >= 0; });
    call.set_output(0, {{}, {reduction == "mean" ? sum / static_cast<double>(counted) : sum}});
  }
  call.set_output(1, s.back(x.dims, log_probabilities(call, s)));
}

// ---- optimiser ----------------------------------------------------------------------------------

/// v' = alpha v + beta (g + decay x), x' = x - rate v'; Nesterov's x' = x - rate (g + decay x +
/// alpha v'), which equals our rule if beta is 1. The other rule equals ours with gradient scale
/// beta and weight decay beta * decay. beta applies from the second step on.
void momentum(Call& call) {
  const bool nesterov = call.node.attribute<std::string>("mode", "") == "nesterov";
  const UpdateRule rule = nesterov ? UpdateRule::Nesterov : UpdateRule::Momentum;
  const bool begun = call.input(1).values[0] > 0.0;
  const float beta = begun ? call.node.attribute<float>("beta", 1.0f) : 1.0f;
  Update update;
  update.rate = static_cast<float>(call.input(0).values[0]);
  update.momentum = call.node.attribute<float>("alpha", 0.0f);
  update.weight_decay = beta * call.node.attribute<float>("norm_coefficient", 0.0f);
  update.gradient_scale = beta;
  const std::size_t tensors = (call.node.inputs.size() - 2) / 3;
  for (std::size_t i = 0; i < tensors; ++i) {
    const OnnxTensor& x = call.input(2 + i);
    const std::int64_t n = product(x.dims);
    DeviceValues<float> weights(x.values), gradients(call.input(2 + tensors + i).values);
    DeviceValues<float> velocity(call.input(2 + 2 * tensors + i).values);
    const ParameterSpan span{0, n, true};
    const DeviceRecords<ParameterSpan> spans({span});
    update_weights<float>(call.space, rule, update,
                          {.weights = weights.data(),
                           .velocity = velocity.data(),
                           .gradients = gradients.data(),
                           .spans = spans.data(),
                           .num_spans = 1});
    device::fence(call.space);
    call.set_output(i, {x.dims, weights.values()});
    call.set_output(tensors + i, {x.dims, velocity.values()});
  }
}

const std::map<std::string, void (*)(Call&)>& kernels() {
  static const std::map<std::string, void (*)(Call&)> table = {
      {"AveragePool", average_pool},
      {"BatchNormalization", batch_norm},
      {"Clip", clip},
      {"Constant", constant},
      {"Conv", conv},
      {"Gemm", gemm},
      {"GlobalAveragePool", global_average_pool},
      {"GlobalMaxPool", global_max_pool},
      {"InstanceNormalization", instance_norm},
      {"LeakyRelu", leaky_relu},
      {"LogSoftmax", log_softmax},
      {"MaxPool", max_pool},
      {"Momentum", momentum},
      {"Relu", relu},
      {"Softmax", softmax},
      {"SoftmaxCrossEntropyLoss", softmax_cross_entropy},
  };
  return table;
}

}  // namespace

void evaluate(const OnnxTest& test, Backend& backend, OnnxTensors& tensors) {
  for (const OnnxNode& node : test.nodes) {
    const auto kernel = kernels().find(node.op);
    if (kernel == kernels().end()) throw std::runtime_error("no kernel computes " + node.op);
    Call call{node, backend, tensors, {}};
    kernel->second(call);
  }
}

}  // namespace millrace::ops
