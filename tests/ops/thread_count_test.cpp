// SPDX-License-Identifier: Apache-2.0
//
// Our own kernels give the same bits for any number of threads, because the cut into work items
// depends only on the shape. Kokkos cannot change its number of threads within a process, so the
// test runs itself again with other numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/sha256.hpp"
#include "device/compat.hpp"
#include "ops/channels.hpp"
#include "ops/dropout.hpp"
#include "ops/elementwise.hpp"
#include "ops/linear_ops.hpp"
#include "ops/optimiser.hpp"
#include "ops/pool.hpp"
#include "ops/softmax_loss.hpp"
#include "tests/ops/norm_cases.hpp"

namespace millrace::ops {
namespace {

class Digest {
 public:
  template <class T>
  void add(const DeviceValues<T>& values) {
    sha_.update(values.bits());
  }
  [[nodiscard]] std::string text() { return sha_.hex_digest(); }

 private:
  Sha256 sha_;
};

template <class T>
void add_norm(Digest& digest, const NormShape& s) {
  NormHarness<T> h(s);
  DeviceValues<float> mean(s.channels), variance(s.channels);
  if (s.instances() == 1) {
    norm_statistics(h.space, s, h.statistics.data(), {mean.data(), variance.data(), true},
                    h.scratch.data(), h.x_device.data(), kEpsilon);
    digest.add(mean);
    digest.add(variance);
  }
  DeviceValues<T> y(s.elements());
  h.apply(y, &h.skip_device, Activation::Relu);
  NormOutputs<T> out(s);
  NormBackwardReduce<T> args = h.reduce_arguments();
  out.place(args);
  args.dy = h.dy_device.data();
  args.dy2 = h.dy2_device.data();
  args.y = y.data();
  args.dz = out.dz.data();
  args.skip_used = true;
  args.fn = Activation::Relu;
  norm_backward_reduce(h.space, s, args);
  h.backward_apply(out.dx, out.dz, out.coefficients, Activation::None);
  digest.add(h.statistics);
  digest.add(y);
  digest.add(out.dz);
  digest.add(out.dx);
  digest.add(out.dgamma);
  digest.add(out.dbeta);
}

template <class T>
void add_pools(Digest& digest) {
  const device::ExecutionSpace space;
  const WindowShape s{3, {13, 12, 20}, {7, 6, 20}, 3, 3, 2, 2, 1, 0};
  DeviceValues<T> x(random_as<T>(s.in_elements(), 1)), dy(random_as<T>(s.out_elements(), 2));
  DeviceValues<T> y(s.out_elements()), dx(s.in_elements()), mean(s.batch * s.in.c);
  DeviceValues<std::uint8_t> winner(s.out_elements());
  max_pool_forward(space, s, y.data(), winner.data(), x.data());
  max_pool_backward(space, s, dx.data(), dy.data(), winner.data());
  digest.add(y);
  digest.add(dx);
  average_pool_forward(space, s, y.data(), x.data(), false);
  average_pool_backward(space, s, dx.data(), dy.data(), false);
  digest.add(y);
  digest.add(dx);
  global_average_forward(space, s.batch, s.in, mean.data(), x.data());
  digest.add(mean);
}

template <class T>
void add_loss(Digest& digest) {
  const device::ExecutionSpace space;
  const SoftmaxLossShape s{37, 10, 0.1f};
  Values labels;
  for (int n = 0; n < 37; ++n) labels.push_back(n % 10);
  DeviceValues<T> logits(random_as<T>(370, 1, -4.0, 4.0)), dlogits(370);
  DeviceValues<std::int32_t> labels_device(labels), rank(37);
  DeviceValues<float> loss(37);
  softmax_loss_forward(space, s, loss.data(), rank.data(), logits.data(), labels_device.data());
  softmax_loss_backward(space, s, dlogits.data(), logits.data(), labels_device.data(), 0.1f);
  digest.add(loss);
  digest.add(dlogits);
}

template <class T>
void add_elementwise(Digest& digest) {
  const device::ExecutionSpace space;
  constexpr std::int64_t kN = 30001;
  DeviceValues<T> a(random_as<T>(kN, 1)), b(random_as<T>(kN, 2)), y(kN);
  add_forward(space, y.data(), a.data(), b.data(), kN, Activation::Swish);
  digest.add(y);
  activation_backward(space, y.data(), a.data(), b.data(), kN, Activation::Sigmoid);
  digest.add(y);
}

template <class T>
void add_channels(Digest& digest) {
  const device::ExecutionSpace space;
  const ScaleShape s{3, 100, 70};
  DeviceValues<T> x(random_as<T>(s.elements(), 1)), dy(random_as<T>(s.elements(), 2));
  DeviceValues<T> scale(random_as<T>(210, 3)), y(s.elements()), dscale(210);
  scale_forward(space, s, y.data(), x.data(), scale.data(), dy.data(), Activation::Relu);
  digest.add(y);
  scale_backward(space, s, y.data(), dscale.data(), dy.data(), x.data(), scale.data());
  digest.add(y);
  digest.add(dscale);
  const Draws draws{RandomStream(1, RandomPurpose::Dropout, 2), 3, 4};
  dropout(space, {3, 7000}, y.data(), x.data(), 0.5f, draws);
  digest.add(y);
  drop_connect(space, {3, 7000}, y.data(), x.data(), dy.data(), 0.5f, draws);
  digest.add(y);
}

template <class T>
void add_depthwise(Digest& digest) {
  const device::ExecutionSpace space;
  ConvShape s;
  s.window = {3, {13, 12, 44}, {7, 6, 44}, 5, 5, 2, 2, 2, 1};
  s.pad_bottom = 2;
  s.pad_right = 2;
  s.groups = 44;
  DeviceValues<T> x(random_as<T>(s.window.in_elements(), 1));
  DeviceValues<T> dy(random_as<T>(s.window.out_elements(), 2)), y(s.window.out_elements());
  DeviceValues<T> kernel(random_as<T>(s.kernel_elements(), 3));
  DeviceValues<float> dkernel(s.kernel_elements());
  const DType type = device::dtype_of<T>();
  const std::unique_ptr<LinearOp> op = make_depthwise_gradient(s, type, make_plain(s, type));
  DeviceValues<float> packed(op->bytes().packed_forward / 4), scratch(op->bytes().scratch / 4);
  op->bind({.kernel = kernel.raw(),
            .dkernel = dkernel.data(),
            .packed_forward = packed.raw(),
            .scratch = scratch.raw()});
  op->pack(space, true);
  op->forward(space, y.raw(), x.raw());
  op->backward_weight(space, dy.raw(), x.raw(), true);
  op->backward_input(space, x.raw(), dy.raw());
  digest.add(y);
  digest.add(dkernel);
  digest.add(x);
}

template <class T>
void add_kernels(Digest& digest) {
  for (const NormCase& c : norm_cases()) add_norm<T>(digest, c.shape);
  add_pools<T>(digest);
  add_loss<T>(digest);
  add_elementwise<T>(digest);
  add_channels<T>(digest);
  add_depthwise<T>(digest);
}

/// LARS covers all parts of an update: norms of tensors, and the pass over all spans.
void add_update(Digest& digest) {
  const device::ExecutionSpace space;
  std::vector<ParameterSpan> spans;
  std::vector<TensorSpans> tensors;
  std::int64_t elements = 0;
  for (const std::int64_t n : {100'003, 7, 4096, 12'345}) {
    const auto tensor = static_cast<std::int32_t>(tensors.size());
    tensors.push_back({std::ssize(spans), (n + kSpanElements - 1) / kSpanElements});
    for (std::int64_t at = 0; at < n; at += kSpanElements)
      spans.push_back({elements + at, std::min(kSpanElements, n - at), true, true, tensor});
    elements += n;
  }
  const auto on_device = [](const auto& host) {
    const auto bytes = static_cast<std::int64_t>(host.size() * sizeof(host[0]));
    auto arena = std::make_unique<device::Arena>(bytes);
    device::copy_to_device(arena->at(0), reinterpret_cast<const std::byte*>(host.data()), bytes);
    return arena;
  };
  const auto spans_device = on_device(spans);
  const auto tensors_device = on_device(tensors);
  DeviceValues<float> weights(random_as<float>(elements, 1)),
      gradients(random_as<float>(elements, 2));
  DeviceValues<float> velocity(Values(static_cast<std::size_t>(elements)));
  DeviceValues<float> ratios(std::ssize(tensors)), squares(4 * std::ssize(spans));
  update_weights<float>(space, UpdateRule::Lars,
                        {.rate = 0.1f, .momentum = 0.9f, .weight_decay = 0.01f, .trust = 0.02f},
                        {.weights = weights.data(),
                         .velocity = velocity.data(),
                         .gradients = gradients.data(),
                         .spans = reinterpret_cast<const ParameterSpan*>(spans_device->at(0)),
                         .num_spans = std::ssize(spans),
                         .tensors = reinterpret_cast<const TensorSpans*>(tensors_device->at(0)),
                         .num_tensors = std::ssize(tensors),
                         .squares = reinterpret_cast<double*>(squares.raw()),
                         .ratios = ratios.data()});
  device::fence(space);
  digest.add(ratios);
  digest.add(weights);
}

/// "<threads> <digest of all results of the kernels>".
std::string threads_and_digest() {
  Digest digest;
  add_kernels<float>(digest);
  add_kernels<bfloat16>(digest);
  add_kernels<float16>(digest);
  add_update(digest);
  return std::to_string(device::ExecutionSpace().concurrency()) + " " + digest.text();
}

constexpr const char* kPrintVariable = "MILLRACE_TEST_PRINT_DIGEST";
constexpr const char* kMark = "threads and digest: ";

/// Output of this test in a separate process with `threads` threads; empty if that failed.
std::string in_a_process_with(int threads) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command = std::string(kPrintVariable) +
                              "=1 MILLRACE_TEST_THREADS=" + std::to_string(threads) + " '" + self +
                              "' --gtest_filter=ThreadCount.DoesNotChangeBits";
  const auto close = [](std::FILE* pipe) { (void)::pclose(pipe); };
  const std::unique_ptr<std::FILE, decltype(close)> pipe(::popen(command.c_str(), "r"), close);
  if (!pipe) return "";
  std::string output;
  std::array<char, 256> line;
  while (std::fgets(line.data(), static_cast<int>(line.size()), pipe.get()) != nullptr) {
    output += line.data();
  }
  const std::size_t at = output.find(kMark);
  if (at == std::string::npos) return "";
  const std::size_t begin = at + std::string(kMark).size();
  return output.substr(begin, output.find('\n', begin) - begin);
}

TEST(ThreadCount, DoesNotChangeBits) {
  const std::string here = threads_and_digest();
  if (std::getenv(kPrintVariable) != nullptr) {
    std::printf("%s%s\n", kMark, here.c_str());
    return;
  }
  const auto digest = [](const std::string& text) { return text.substr(text.find(' ') + 1); };
  for (const int threads : {1, 2, 3}) {
    const std::string there = in_a_process_with(threads);
    ASSERT_NE(there, "") << "no digest from a process with " << threads << " threads";
    if (here[0] == '1' && there[0] == '1' && threads > 1) {
      GTEST_SKIP() << "this build of Kokkos has no threads";
    }
    EXPECT_EQ(there.substr(0, there.find(' ')), std::to_string(threads));
    EXPECT_EQ(digest(there), digest(here)) << threads << " threads";
  }
}

}  // namespace
}  // namespace millrace::ops
