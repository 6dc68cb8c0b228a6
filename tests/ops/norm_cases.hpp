// SPDX-License-Identifier: Apache-2.0
//
// The shapes of the norm tests, and one norm with all its buffers.
#pragma once

#include "ops/norm.hpp"
#include "tests/ops/device_values.hpp"
#include "tests/support/reference_ops.hpp"

namespace millrace::ops {

struct NormCase {
  std::string name;
  NormShape shape;
};
inline void PrintTo(const NormCase& c, std::ostream* out) { *out << c.name; }

/// A shape whose sums are added up in tiles (ops/cutlass), if T has 16 bits.
inline NormShape in_tiles(NormShape shape) {
  shape.moments_in_tiles = true;
  shape.gradients_in_tiles = true;
  return shape;
}

/// Includes row tiles, partial strips, several chunks and single rows; on accelerators also chunks
/// that are joined in two steps, and sets over several columns of strips.
inline std::vector<NormCase> norm_cases() {
  return {
      {"Batch1Row", batch_norm_shape(1, 16)},
      {"Batch2RowsC1", batch_norm_shape(2, 1)},
      {"BatchC1Odd", batch_norm_shape(999, 1)},
      {"BatchC1Even", batch_norm_shape(4096, 1)},
      {"BatchC3", batch_norm_shape(350, 3)},
      {"BatchC16", batch_norm_shape(2 * 32 * 32, 16)},
      {"BatchC16Odd", batch_norm_shape(7 * 7 * 3, 16)},
      {"BatchC24", batch_norm_shape(200, 24)},
      {"BatchC64", batch_norm_shape(4 * 14 * 14, 64)},
      {"BatchC64Odd", batch_norm_shape(49, 64)},
      {"BatchC100", batch_norm_shape(75, 100)},
      {"BatchC128Chunks", batch_norm_shape(700, 128)},
      {"BatchC256", batch_norm_shape(2 * 49, 256)},
      {"BatchBlocksOfChunks", batch_norm_shape(4161, 16)},
      {"BatchC100Chunks", batch_norm_shape(600, 100)},
      {"BatchC300", batch_norm_shape(33, 300)},
      {"TilesOf64", in_tiles(batch_norm_shape(4 * 14 * 14, 64))},
      {"TilesOf128", in_tiles(batch_norm_shape(272, 256))},
      {"TilesOfLanes", in_tiles(batch_norm_shape(8336, 64))},
      {"Group1Of16", group_norm_shape(2, 64, 16, 1, false)},
      {"Group4Of16", group_norm_shape(3, 49, 16, 4, false)},
      {"Group8Of24Strided", group_norm_shape(2, 35, 24, 8, true)},
      {"Group32Of64", group_norm_shape(2, 196, 64, 32, false)},
      {"Group32Of64Strided", group_norm_shape(2, 196, 64, 32, true)},
      {"Group2Of100Strided", group_norm_shape(1, 25, 100, 2, true)},
      {"Group32Of256", group_norm_shape(3, 16, 256, 32, false)},
      {"Group3Of3", group_norm_shape(4, 30, 3, 3, false)},
      {"Group5Of300", group_norm_shape(2, 9, 300, 5, true)},
      {"Group1Of1", group_norm_shape(3, 11, 1, 1, false)},
      {"GroupBlocksOfChunks", group_norm_shape(2, 2101, 8, 2, true)},
      {"GroupChunks", group_norm_shape(2, 520, 128, 16, false)},
      {"GroupLongChunks", group_norm_shape(270, 67, 8, 2, false)},
  };
}

inline constexpr float kEpsilon = 1e-3f;
inline constexpr double kDoubleEpsilon = static_cast<double>(kEpsilon);

/// The mean of every (instance, channel), then 1 / sqrt(variance + epsilon).
[[nodiscard]] inline Values expected_statistics(const NormShape& s, const Values& x,
                                                double epsilon = kDoubleEpsilon) {
  const reference::NormSets sets(s);
  const reference::Moments m = reference::norm_moments(s, x);
  Values means, inverses;
  for (std::int64_t i = 0; i < s.instances(); ++i) {
    for (std::int64_t c = 0; c < s.channels; ++c) {
      const std::size_t set = sets.set(static_cast<std::size_t>(i * s.rows * s.channels + c));
      means.push_back(m.mean[set]);
      inverses.push_back(1.0 / std::sqrt(m.variance[set] + epsilon));
    }
  }
  means.insert(means.end(), inverses.begin(), inverses.end());
  return means;
}

/// What batch norm adds to running sums: means and unbiased variances.
[[nodiscard]] inline reference::Moments running_moments(const NormShape& s, const Values& x) {
  reference::Moments m = reference::norm_moments(s, x);
  const auto rows = static_cast<double>(s.rows);
  for (double& variance : m.variance) variance *= rows / std::max(rows - 1.0, 1.0);
  return m;
}

/// Scratch of a norm's kernels. Checks at the end that they left the counters as they must.
class NormScratchMemory {
 public:
  explicit NormScratchMemory(const NormShape& s)
      : sums_(s.scratch_floats()), counters_(Values(static_cast<std::size_t>(s.counters()), 0.0)) {}
  NormScratchMemory(const NormScratchMemory&) = delete;
  NormScratchMemory& operator=(const NormScratchMemory&) = delete;
  ~NormScratchMemory() {
    const std::vector<std::byte> counters = counters_.bits();
    EXPECT_EQ(counters, std::vector<std::byte>(counters.size())) << "counters are not zero again";
  }
  [[nodiscard]] NormScratch get() { return {sums_.data(), counters_.data()}; }

 private:
  DeviceValues<float> sums_;
  DeviceValues<std::uint32_t> counters_;
};

/// What norm_statistics makes of x, whose values T represents.
template <class T>
[[nodiscard]] Values statistics_of(const NormShape& s, const Values& x, float epsilon = kEpsilon,
                                   const RunningSums& running = {}) {
  const device::ExecutionSpace space;
  DeviceValues<T> x_device(x);
  DeviceValues<float> statistics(s.statistics_floats());
  NormScratchMemory scratch(s);
  norm_statistics<T>(space, s, statistics.data(), running, scratch.get(), x_device.data(), epsilon);
  return statistics.values();
}

/// Results of a norm's backward pass.
template <class T>
struct NormOutputs {
  explicit NormOutputs(const NormShape& s)
      : dz(s.elements()),
        dx(s.elements()),
        dgamma(s.channels),
        dbeta(s.channels),
        coefficients(s.coefficient_floats()) {}

  DeviceValues<T> dz, dx;
  DeviceValues<float> dgamma, dbeta, coefficients;
};

/// Inputs of a norm in training, as values and on the device, and its statistics. `skip` and the
/// second gradient are optional.
template <class T>
class NormHarness {
 public:
  explicit NormHarness(const NormShape& s)
      : shape(s),
        x(random_as<T>(s.elements(), 1, -1.0, 3.0)),
        skip(random_as<T>(s.elements(), 2)),
        gamma(random_as<float>(s.channels, 3, 0.5, 1.5)),
        beta(random_as<float>(s.channels, 4)),
        dy(random_as<T>(s.elements(), 5)),
        dy2(random_as<T>(s.elements(), 6)),
        x_device(x),
        skip_device(skip),
        dy_device(dy),
        dy2_device(dy2),
        gamma_device(gamma),
        beta_device(beta),
        statistics(s.statistics_floats()),
        scratch(s) {
    norm_statistics(space, shape, statistics.data(), {}, scratch.get(), x_device.data(), kEpsilon);
  }

  void apply(DeviceValues<T>& y, DeviceValues<T>* skip_or_null, Activation fn,
             std::uint8_t* mask = nullptr, const NormParameters& of_skip = {}) {
    norm_apply<T>(space, shape, y.data(), x_device.data(),
                  skip_or_null != nullptr ? skip_or_null->data() : nullptr, statistics.data(),
                  gamma_device.data(), beta_device.data(), fn, mask, of_skip);
  }
  /// Arguments of the reduction of dy alone.
  [[nodiscard]] NormBackwardReduce<T> reduce_arguments(DeviceValues<T>& dy_or_dz,
                                                       NormOutputs<T>& out) {
    NormBackwardReduce<T> args;
    args.dy = dy_or_dz.data();
    args.x = x_device.data();
    args.statistics = statistics.data();
    args.gamma = gamma_device.data();
    args.beta = beta_device.data();
    args.dgamma = out.dgamma.data();
    args.dbeta = out.dbeta.data();
    args.coefficients = out.coefficients.data();
    args.scratch = scratch.get();
    return args;
  }
  void backward(DeviceValues<T>& dy_or_dz, NormOutputs<T>& out) {
    norm_backward_reduce(space, shape, reduce_arguments(dy_or_dz, out));
    backward_apply(out.dx, dy_or_dz, out.coefficients, Activation::None);
  }
  void backward_apply(DeviceValues<T>& dx, DeviceValues<T>& dz, DeviceValues<float>& coefficients,
                      Activation fn) {
    norm_backward_apply<T>(space, shape, dx.data(), dz.data(), x_device.data(), coefficients.data(),
                           statistics.data(), gamma_device.data(), beta_device.data(), fn);
  }

  device::ExecutionSpace space;
  NormShape shape;
  Values x, skip, gamma, beta, dy, dy2;
  DeviceValues<T> x_device, skip_device, dy_device, dy2_device;
  DeviceValues<float> gamma_device, beta_device, statistics;
  NormScratchMemory scratch;
};

}  // namespace millrace::ops
