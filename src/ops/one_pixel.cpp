// SPDX-License-Identifier: Apache-2.0
#include "ops/one_pixel.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "device/arena.hpp"
#include "ops/elementwise.hpp"
#include "ops/one_pixel_kernels.hpp"
#include "ops/variants.hpp"

namespace millrace::ops::one_pixel {
namespace {

using device::ExecutionSpace;

template <class T>
class PixelOp final : public LinearOp {
 public:
  explicit PixelOp(const ConvShape& s)
      : samples(s.window.batch),
        in(static_cast<std::int32_t>(s.window.in.c)),
        out(static_cast<std::int32_t>(s.window.out.c)),
        bias_(s.bias) {
    while (in % width_ != 0) width_ /= 2;
  }

  [[nodiscard]] LinearBytes bytes() const override { return {.reads_kernel = true}; }
  void bind(const LinearMemory& memory) override { memory_ = memory; }
  void forward(const ExecutionSpace& space, std::byte* y, const std::byte* x) override {
    Step<T> only = step<true>();
    only.product = as<T>(y);
    run<true>(space, as<T>(x), only);
  }
  void backward_input(const ExecutionSpace& space, std::byte* dx, const std::byte* dy) override {
    Step<T> only = step<false>();
    only.product = as<T>(dx);
    run<false>(space, as<T>(dy), only);
  }
  void backward_weight(const ExecutionSpace& space, const std::byte* dy, const std::byte* x,
                       bool first) override {
    Gradients<T> gradients{samples, first};
    add_to(gradients, as<T>(dy), as<T>(x));
    gradients.launch(space);
  }

  // For runs.
  template <bool kForward>
  [[nodiscard]] Step<T> step() const {
    const std::int32_t strips = in / width_;
    const std::int32_t groups = kForward ? out : strips;
    const std::int32_t terms = kForward ? strips : out;
    constexpr std::int32_t kMostLanes = 64;
    std::int32_t lanes = 2;  // the most for which no thread has two sums
    while (lanes <= std::min({kMostLanes, terms, kRowThreads / groups})) lanes *= 2;
    return {in,
            out,
            width_,
            lanes / 2,
            as<T>(memory_.kernel),
            kForward && bias_ ? memory_.bias : nullptr};
  }
  void add_to(Gradients<T>& gradients, const T* dy, const T* x) const {
    gradients.add(
        {.in = in, .out = out, .width = width_, .total = memory_.dkernel, .dy = dy, .x = x});
    if (bias_) gradients.add({.out = out, .total = memory_.dbias, .dy = dy});
  }
  template <bool kForward>
  void run(const ExecutionSpace& space, const T* from, const Step<T>& step,
           const Step<T>* second = nullptr) const {
    const Rows<T, kForward> rows{from, step, second != nullptr ? *second : Step<T>{},
                                 second != nullptr};
    if constexpr (kForward) device::parallel_teams("one pixel", space, samples, rows);
    if constexpr (!kForward) device::parallel_teams("one pixel dx", space, samples, rows);
  }

  const std::int64_t samples;
  const std::int32_t in;
  const std::int32_t out;

 private:
  bool bias_;
  std::int32_t width_ = kMostWidth;
  LinearMemory memory_;
};

/// Values of each sample that a run reads or writes.
struct Operand {
  std::uintptr_t at;
  std::size_t bytes;  ///< of a sample
  bool by_all;        ///< read when all samples are done
};

/// Whether no sample changes what others read or write. Buffers that are in use one after the other
/// share memory, but a run uses all of them at the same time.
bool are_apart(std::span<const Operand> all, std::int64_t samples) {
  const auto n = static_cast<std::size_t>(samples);
  for (const Operand& a : all)
    for (const Operand& b : all) {
      const bool same = a.at == b.at && a.bytes == b.bytes && a.by_all == b.by_all;
      if (!same && a.at < b.at + n * b.bytes && b.at < a.at + n * a.bytes) return false;
    }
  return true;
}

/// Half of the calls are of the first product, and half of the second.
template <class T>
class PixelRun final : public ClaimedRun {
 public:
  explicit PixelRun(std::span<const OfferedCall> calls)
      : calls_(calls.begin(), calls.end()),
        half_(calls.size() / 2),
        forward_(calls[0].kind == KernelKind::LinearForward),
        linear_(forward_ ? 0 : half_ - 1) {
    for (const std::size_t i : {linear_, half_ + linear_})
      ops_.emplace_back(std::get<ConvShape>(calls[i].shape));
    used_.reserve(2 * calls.size());
  }
  /// Scratch: the gradients before both products, which nothing else reads if their weights'
  /// gradients are part of the run.
  [[nodiscard]] Bytes bytes() const override {
    return {.scratch = has_weights() ? bytes_of(ops_[0]) + bytes_of(ops_[1]) : 0};
  }
  void bind(std::span<const CallParameters> calls, std::byte*, std::byte* scratch) override {
    for (std::size_t k = 0; k < 2; ++k) {
      const CallParameters& p = calls[k * half_ + linear_];
      ops_[k].bind({.kernel = p.kernel, .bias = p.bias, .dkernel = p.dkernel, .dbias = p.dbias});
    }
    scratch_ = {scratch, scratch + bytes_of(ops_[0])};
  }
  void run(const ExecutionSpace& space, std::span<const CallBuffers> calls, bool first) override {
    Gradients<T> gradients{ops_[0].samples, first};
    std::array<Step<T>, 2> steps;
    used_.clear();
    for (std::size_t k = 0; k < 2; ++k)
      add_half(k, calls.subspan(k * half_, half_), gradients, steps[k]);
    if (half_ == 1) return gradients.launch(space);
    const bool apart = are_apart(used_, ops_[0].samples);
    if (!apart && !has_weights()) return run_each(space, calls);
    if (!apart) steps[1].kernel = nullptr;
    forward_ ? ops_[0].template run<true>(space, at<T>(calls[0], Role::X), steps[0], &steps[1])
             : ops_[0].template run<false>(space, at<T>(calls[0], Role::Dy), steps[0], &steps[1]);
    if (has_weights()) gradients.launch(space);
    if (!apart) ops_[1].backward_input(space, at<std::byte>(calls.back(), Role::Dx), scratch_[1]);
  }

 private:
  template <class Value>
  static Value* at(const CallBuffers& call, Role role) {
    return reinterpret_cast<Value*>(call[static_cast<std::size_t>(role)]);
  }
  template <class Value>
  static Value* input_of_gradient(const CallBuffers& call) {
    return at<Value>(call, at<Value>(call, Role::Y) != nullptr ? Role::Y : Role::X);
  }
  static std::int64_t bytes_of(const PixelOp<T>& op) {
    return device::aligned(op.samples * op.out * std::int64_t{sizeof(T)});
  }
  [[nodiscard]] bool has_weights() const { return half_ == 3; }

  /// What the calls of product k do, and what they use until the run's last launch.
  void add_half(std::size_t k, std::span<const CallBuffers> calls, Gradients<T>& gradients,
                Step<T>& step) {
    const PixelOp<T>& op = ops_[k];
    const auto use = [&](const T* at, std::int64_t values, bool by_all = false) {
      used_.push_back({reinterpret_cast<std::uintptr_t>(at), values * sizeof(T), by_all});
      return at;
    };
    if (half_ == 1)
      return op.add_to(gradients, at<T>(calls[0], Role::Dy), at<T>(calls[0], Role::X));
    step = forward_ ? op.template step<true>() : op.template step<false>();
    step.fn = calls_[k * half_ + (forward_ ? 1 : 0)].fn;
    if (forward_) {
      use(at<T>(calls[0], Role::X), op.in);
      use(step.product = at<T>(calls[0], Role::Y), op.out);
      use(step.activated = at<T>(calls[1], Role::Y), op.out);
      return;
    }
    step.activated = has_weights() ? as<T>(scratch_[k]) : at<T>(calls[0], Role::Dx);
    use(step.activated, op.out);
    step.z = use(input_of_gradient<T>(calls[0]), op.out);
    if (k == 0) use(at<T>(calls[0], Role::Dy), op.out);
    if (k == 1) use(step.product = at<T>(calls.back(), Role::Dx), op.in);
    if (has_weights())
      op.add_to(gradients, step.activated, use(at<T>(calls[1], Role::X), op.in, true));
  }

  /// Launches every call alone.
  void run_each(const ExecutionSpace& space, std::span<const CallBuffers> calls) {
    for (std::size_t k = 0; k < 2; ++k) {
      const auto bytes = [&](std::size_t i, Role role) {
        return at<std::byte>(calls[2 * k + i], role);
      };
      const auto values = [&](std::size_t i, Role role) { return at<T>(calls[2 * k + i], role); };
      const std::int64_t n = ops_[k].samples * ops_[k].out;
      const Activation fn = calls_[2 * k + (forward_ ? 1 : 0)].fn;
      if (forward_) {
        ops_[k].forward(space, bytes(0, Role::Y), bytes(0, Role::X));
        activation_forward(space, values(1, Role::Y), values(1, Role::X), n, fn);
      } else {
        activation_backward(space, values(0, Role::Dx), values(0, Role::Dy),
                            input_of_gradient<T>(calls[2 * k]), n, fn);
        ops_[k].backward_input(space, bytes(1, Role::Dx), bytes(1, Role::Dy));
      }
    }
  }

  std::vector<OfferedCall> calls_;
  std::size_t half_;
  bool forward_;
  std::size_t linear_;  ///< the call of a half that has a product
  std::vector<PixelOp<T>> ops_;
  std::array<std::byte*, 2> scratch_ = {};
  std::vector<Operand> used_;  ///< by a run; has room for all, so that no step allocates
};

/// Whether the first calls are of these kinds, each with the result of the one before.
bool begin_with(std::span<const OfferedCall> calls, std::span<const KernelKind> kinds) {
  if (calls.size() < kinds.size()) return false;
  std::int32_t result = -1;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const OfferedCall& call = calls[i];
    const auto buffer = [&](Role role) { return call.buffers[static_cast<std::size_t>(role)]; };
    const auto* const conv = std::get_if<ConvShape>(&call.shape);
    const bool forward =
        call.kind == KernelKind::LinearForward || call.kind == KernelKind::ActivationForward;
    if (call.kind != kinds[i] || (result >= 0 && buffer(forward ? Role::X : Role::Dy) != result) ||
        !(is_linear(call.kind) ? conv != nullptr && is_small(*conv) : is_fused(call.fn)))
      return false;
    if (call.kind != KernelKind::LinearBackwardWeight)
      result = buffer(forward ? Role::Y : Role::Dx);
  }
  return true;
}

}  // namespace

bool is_small(const ConvShape& s) {
  static const bool used = variant("ONE_PIXEL", 1) != 0;
  const WindowShape& w = s.window;
  const std::int64_t weights = w.in.c * w.out.c;
  return used && w.in.pixels() == 1 && w.out.pixels() == 1 && w.kernel_h == 1 && w.kernel_w == 1 &&
         w.pad_top == 0 && w.pad_left == 0 && s.groups == 1 && weights <= 1 << 17 &&
         std::max(w.in.c, w.out.c) <= kMostChannels && w.batch * weights <= 1 << 25;
}

std::unique_ptr<LinearOp> make(const ConvShape& shape, DType type) {
  return device::dispatch(type, [&]<class T>() -> std::unique_ptr<LinearOp> {
    return std::make_unique<PixelOp<T>>(shape);
  });
}

RunClaim claim(std::span<const OfferedCall> calls, DType type) {
  using enum KernelKind;
  static const std::vector<std::vector<KernelKind>> runs = {
      {LinearForward, ActivationForward, LinearForward, ActivationForward},
      {ActivationBackward, LinearBackwardWeight, LinearBackwardInput, ActivationBackward,
       LinearBackwardWeight, LinearBackwardInput},
      {ActivationBackward, LinearBackwardInput, ActivationBackward, LinearBackwardInput},
      {LinearBackwardWeight, LinearBackwardWeight}};
  for (const std::vector<KernelKind>& kinds : runs)
    if (begin_with(calls, kinds))
      return device::dispatch(type, [&]<class T>() -> RunClaim {
        return {kinds.size(), std::make_unique<PixelRun<T>>(calls.first(kinds.size()))};
      });
  return {};
}

}  // namespace millrace::ops::one_pixel
