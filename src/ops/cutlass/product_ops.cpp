// SPDX-License-Identifier: Apache-2.0
#include "ops/cutlass/product_ops.hpp"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>

#include "ops/cutlass/products.hpp"
#include "ops/cutlass/tile_norms.hpp"
#include "ops/variants.hpp"

namespace millrace::ops::tiles {
namespace {

using device::ExecutionSpace;

std::int32_t buffer(const OfferedCall& call, Role role) {
  return call.buffers[static_cast<std::size_t>(role)];
}

/// The tiles of y.
TileShape tiles_of_y(const ConvShape& s) {
  return {s.window.batch * s.window.out.pixels(), s.window.out.c};
}
TileShape tiles_of_dx(const ConvShape& s) {
  return {s.window.batch * s.window.in.pixels(), s.window.in.c};
}

template <class T>
class ProductOp final : public LinearOp {
 public:
  explicit ProductOp(const ConvShape& shape) : shape_(shape) {}
  [[nodiscard]] LinearBytes bytes() const override { return {.reads_kernel = true}; }
  void bind(const LinearMemory& memory) override { kernel_ = as<T>(memory.kernel); }
  void forward(const ExecutionSpace& space, std::byte* y, const std::byte* x) override {
    multiply<T>(space, tiles_of_y(shape_), {as<T>(x), kernel_, shape_.window.in.c}, Result::Y,
                as<T>(y));
  }
  void backward_input(const ExecutionSpace& space, std::byte* dx, const std::byte* dy) override {
    multiply<T>(space, tiles_of_dx(shape_), {as<T>(dy), kernel_, shape_.window.out.c}, Result::Dx,
                as<T>(dx));
  }

 private:
  ConvShape shape_;
  const T* kernel_ = nullptr;
};

/// What both runs have: a product, and a norm whose tiles it leaves in the scratch.
template <class T>
class ProductRun : public ClaimedRun {
 public:
  explicit ProductRun(std::span<const OfferedCall> calls)
      : norm_(std::get<NormShape>(calls[1].shape)) {}
  [[nodiscard]] Bytes bytes() const final {
    return {.scratch = norm_.tile_shape().floats() * static_cast<std::int64_t>(sizeof(float))};
  }
  void bind(std::span<const CallParameters> calls, std::byte*, std::byte* scratch) final {
    kernel_ = as<T>(calls[0].kernel);
    parameters_ = calls[1];
    left_ = as<float>(scratch);
  }

 protected:
  template <class Value>
  [[nodiscard]] static Value* at(const CallBuffers& call, Role role) {
    return as<Value>(call[static_cast<std::size_t>(role)]);
  }

  NormShape norm_;
  const T* kernel_ = nullptr;
  CallParameters parameters_;  ///< of the norm
  float* left_ = nullptr;
};

template <class T>
class MomentsRun final : public ProductRun<T> {
 public:
  explicit MomentsRun(std::span<const OfferedCall> calls)
      : ProductRun<T>(calls),
        inner_(std::get<ConvShape>(calls[0].shape).window.in.c),
        epsilon_(calls[1].epsilon) {}

  void run(const ExecutionSpace& space, std::span<const CallBuffers> calls, bool first) override {
    multiply_moments<T>(space, this->norm_.tile_shape(),
                        {this->template at<T>(calls[0], Role::X), this->kernel_, inner_},
                        this->template at<T>(calls[0], Role::Y), this->left_);
    RunningSums running = this->parameters_.running;
    running.first = first;
    join_statistics(space, this->norm_, this->template at<float>(calls[1], Role::Statistics),
                    running, this->left_, epsilon_);
  }

 private:
  std::int64_t inner_;
  float epsilon_;
};

template <class T>
class GradientsRun final : public ProductRun<T> {
 public:
  explicit GradientsRun(std::span<const OfferedCall> calls)
      : ProductRun<T>(calls),
        inner_(std::get<ConvShape>(calls[0].shape).window.out.c),
        other_(buffer(calls[1], Role::Dy) == buffer(calls[0], Role::Dx) ? Role::Dy2 : Role::Dy) {
    in_.fn = calls[1].fn;
    in_.skip_used = calls[1].with_skip;
  }

  /// Adding the parameters' gradients to those of the step is left to NormBackwardWeight.
  void run(const ExecutionSpace& space, std::span<const CallBuffers> calls, bool) override {
    const CallBuffers& norm = calls[1];
    NormBackwardReduce<T> in = in_;
    in.dy2 = this->template at<T>(norm, other_);
    in.mask = this->template at<std::uint8_t>(norm, Role::Mask);
    in.x = this->template at<T>(norm, Role::X);
    in.statistics = this->template at<float>(norm, Role::Statistics);
    in.gamma = this->parameters_.gamma;
    in.beta = this->parameters_.beta;
    in.dgamma = this->template at<float>(norm, Role::Sums);
    in.dbeta = in.dgamma + this->norm_.channels;
    in.coefficients = this->template at<float>(norm, Role::Coefficients);
    in.dz = this->template at<T>(norm, Role::Dz);
    T* const out = in.dz != nullptr ? in.dz : this->template at<T>(calls[0], Role::Dx);
    multiply_gradients<T>(space, this->norm_.tile_shape(),
                          {this->template at<T>(calls[0], Role::Dy), this->kernel_, inner_}, in,
                          out, this->left_);
    join_gradients(space, this->norm_, in, this->left_);
  }

 private:
  std::int64_t inner_;
  Role other_;  ///< where the other gradient is
  NormBackwardReduce<T> in_;
};

bool is_moments_run(const OfferedCall& conv, const OfferedCall& norm) {
  return conv.kind == KernelKind::LinearForward && norm.kind == KernelKind::NormStatistics &&
         std::get<NormShape>(norm.shape).moments_in_tiles &&
         product_passes(std::get<ConvShape>(conv.shape)).forward &&
         buffer(conv, Role::Y) == buffer(norm, Role::X);
}

/// Where the norm's own gradient has a buffer, it must be one that was in use before the run: while
/// a product writes, it still reads its operands, whose memory a new buffer may have.
bool is_gradients_run(const OfferedCall& conv, const OfferedCall& norm) {
  if (conv.kind != KernelKind::LinearBackwardInput || norm.kind != KernelKind::NormBackwardReduce ||
      !std::get<NormShape>(norm.shape).gradients_in_tiles || buffer(norm, Role::Scale) >= 0 ||
      !product_passes(std::get<ConvShape>(conv.shape)).backward_input)
    return false;
  const std::int32_t dx = buffer(conv, Role::Dx);
  const std::int32_t dy = buffer(norm, Role::Dy);
  const std::int32_t dy2 = buffer(norm, Role::Dy2);
  const std::int32_t dz = buffer(norm, Role::Dz);
  const bool masked = buffer(norm, Role::Mask) >= 0;
  return (dx == dy || dx == dy2) && dy != dy2 && (dz < 0 || dz == dy || dz == dy2) &&
         norm.with_skip == masked && has_gradients(norm.fn, masked, dy2 >= 0);
}

template <class T>
RunClaim claim(std::span<const OfferedCall> calls) {
  if (is_moments_run(calls[0], calls[1])) return {2, std::make_unique<MomentsRun<T>>(calls)};
  if (is_gradients_run(calls[0], calls[1])) return {2, std::make_unique<GradientsRun<T>>(calls)};
  return {};
}

}  // namespace

bool wants_products() {
  const char* const value = std::getenv("MILLRACE_PRODUCTS");
  const std::string_view asked = value != nullptr ? value : "0";
  if (asked != "0" && asked != "1")
    fail(ErrorKind::Config, "MILLRACE_PRODUCTS is '{}': set it to 1 for own products or to 0",
         asked);
  return asked == "1";
}

Passes product_passes(const ConvShape& s) {
  const WindowShape& w = s.window;
  const bool pointwise = w.kernel_h == 1 && w.kernel_w == 1 && w.stride_h == 1 && w.stride_w == 1;
  const bool padded = w.pad_top > 0 || w.pad_left > 0 || s.pad_bottom > 0 || s.pad_right > 0;
  constexpr std::int64_t kAligned = 8;  // values in 16 bytes
  static const std::int64_t most = variant("PRODUCT_CHANNELS", 1 << 20);
  if (!has_products() || !pointwise || padded || s.groups > 1 || s.bias || s.stored ||
      std::max(w.in.c, w.out.c) > most || w.in.c % kAligned != 0 || w.out.c % kAligned != 0)
    return {false, false, false};
  return {.backward_input = tiles_of_dx(s).fits(),
          .backward_weight = false,
          .forward = tiles_of_y(s).fits()};
}

std::unique_ptr<LinearOp> make_product(const ConvShape& shape, DType type) {
  if (type == DType::BF16) return std::make_unique<ProductOp<bfloat16>>(shape);
  return std::make_unique<ProductOp<float16>>(shape);
}

RunClaim claim_product(std::span<const OfferedCall> calls, DType type) {
  if (!has_products() || calls.size() < 2 || !is_linear(calls[0].kind) || !is_norm(calls[1].kind) ||
      !std::holds_alternative<ConvShape>(calls[0].shape))
    return {};
  if (type == DType::BF16) return claim<bfloat16>(calls);
  if (type == DType::F16) return claim<float16>(calls);
  return {};
}

}  // namespace millrace::ops::tiles
