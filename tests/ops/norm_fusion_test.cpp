// SPDX-License-Identifier: Apache-2.0
//
// Fused norm kernels equal their parts bit for bit: a cut between norm, sum and activation must not
// change a result.
#include "ops/channels.hpp"
#include "ops/elementwise.hpp"
#include "ops/pool.hpp"

#include "device/compat.hpp"
#include "tests/ops/norm_cases.hpp"

namespace millrace::ops {
namespace {

class NormFusion : public OfEveryType<NormCase> {};

TEST_P(NormFusion, Forward) {
  run([]<class T>(const NormCase& c) {
    const NormShape& s = c.shape;
    NormHarness<T> h(s);
    DeviceValues<T> fused(s.elements()), z(s.elements()), parts(s.elements());
    h.apply(z, nullptr, Activation::None);
    for (const Activation fn : reference::kActivations) {
      h.apply(fused, nullptr, fn);
      activation_forward(h.space, parts.data(), z.data(), s.elements(), fn);
      EXPECT_TRUE(same_bits(fused, parts)) << "function " << static_cast<int>(fn);
      h.apply(fused, &h.skip_device, fn);
      add_forward(h.space, parts.data(), z.data(), h.skip_device.data(), s.elements(), fn);
      EXPECT_TRUE(same_bits(fused, parts)) << "with skip, function " << static_cast<int>(fn);
    }
  });
}

/// A bit for each value: whether it is positive.
std::vector<std::byte> bits_of(const Values& values) {
  std::vector<std::byte> bytes(values.size() / 8);
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i] > 0.0) bytes[i / 8] |= std::byte{1} << i % 8;
  return bytes;
}

// Also of what is neither positive nor negative.
TEST_P(NormFusion, Mask) {
  run([]<class T>(const NormCase& c) {
    const NormShape& s = c.shape;
    if (s.channels % 8 != 0) return;
    NormHarness<T> h(s);
    for (std::size_t i = 0; i < h.skip.size(); i += 3) h.skip[i] = i % 2 == 0 ? NAN : -INFINITY;
    h.skip_device.assign(h.skip);
    DeviceValues<T> y(s.elements()), masked(s.elements());
    DeviceValues<std::uint8_t> mask(s.elements() / 8);
    h.apply(y, &h.skip_device, Activation::Relu);
    h.apply(masked, &h.skip_device, Activation::Relu, mask.data());
    EXPECT_TRUE(same_bits(masked, y));
    EXPECT_EQ(mask.bits(), bits_of(y.values()));
  });
}

// As if it were applied alone.
TEST_P(NormFusion, NormOfTheSkip) {
  run([]<class T>(const NormCase& c) {
    const NormShape& s = c.shape;
    NormHarness<T> h(s), other(s);
    other.x_device.assign(h.skip);
    norm_statistics(other.space, s, other.statistics.data(), {}, other.scratch.get(),
                    other.x_device.data(), kEpsilon);
    other.gamma_device.assign(h.beta);
    other.beta_device.assign(h.gamma);
    DeviceValues<T> skip(s.elements()), parts(s.elements()), fused(s.elements());
    other.apply(skip, nullptr, Activation::None);
    const NormParameters of_skip{other.statistics.data(), other.gamma_device.data(),
                                 other.beta_device.data()};
    for (const Activation fn : {Activation::None, Activation::Relu}) {
      h.apply(parts, &skip, fn);
      h.apply(fused, &other.x_device, fn, nullptr, of_skip);
      EXPECT_TRUE(same_bits(fused, parts)) << "function " << static_cast<int>(fn);
    }
    if (s.channels % 8 != 0) return;
    DeviceValues<std::uint8_t> mask(s.elements() / 8);
    h.apply(fused, &other.x_device, Activation::Relu, mask.data(), of_skip);
    EXPECT_TRUE(same_bits(fused, parts));
    EXPECT_EQ(mask.bits(), bits_of(parts.values()));
  });
}

/// The backward pass with one kernel per op: sum of the two gradients, activation, norm. `z` is the
/// input of the activation. Writes the gradient of the norm's output to out.dz.
template <class T>
void backward_in_parts(NormHarness<T>& h, DeviceValues<T>& z, Activation fn, bool two,
                       NormOutputs<T>& out) {
  const std::int64_t n = h.shape.elements();
  DeviceValues<T> dy(h.dy);
  if (two) add_gradients(h.space, dy.data(), dy.data(), h.dy2_device.data(), n);
  activation_backward(h.space, out.dz.data(), dy.data(), z.data(), n, fn);
  h.backward(out.dz, out);
}

/// Where a fused kernel writes its gradients.
enum class Place { Apart, OverFirst, OverSecond };

/// Compares one variant of the fused backward pass with its parts. `z` is the input of the
/// activation, or its output (of ReLU, whose gradient can be computed from that). `mask` may be
/// null.
template <class T>
void expect_fused(NormHarness<T>& h, DeviceValues<T>& z, Activation fn, bool skip, bool two,
                  const std::uint8_t* mask = nullptr) {
  NormOutputs<T> parts(h.shape);
  backward_in_parts(h, z, fn, two, parts);
  for (const Place place : {Place::Apart, Place::OverFirst, Place::OverSecond}) {
    if (place == Place::OverSecond && !two) continue;
    SCOPED_TRACE(testing::Message()
                 << "function " << static_cast<int>(fn) << ", skip " << skip << ", two gradients "
                 << two << ", mask " << (mask != nullptr) << ", place " << static_cast<int>(place));
    NormOutputs<T> fused(h.shape);
    DeviceValues<T> dy(h.dy), dy2(h.dy2);
    NormBackwardReduce<T> args = h.reduce_arguments(dy, fused);
    args.dy2 = two ? dy2.data() : nullptr;
    args.y = skip && mask == nullptr ? z.data() : nullptr;
    args.mask = mask;
    args.skip_used = skip;
    args.fn = fn;
    const bool writes_dz = skip || two;
    DeviceValues<T>& dz = place == Place::Apart ? fused.dz : place == Place::OverFirst ? dy : dy2;
    args.dz = writes_dz ? dz.data() : nullptr;
    norm_backward_reduce(h.space, h.shape, args);
    if (writes_dz) {
      EXPECT_TRUE(same_bits(dz, parts.dz));
    }
    DeviceValues<T>& from = writes_dz ? dz : dy;
    DeviceValues<T>& dx = place == Place::Apart ? fused.dx : from;
    h.backward_apply(dx, from, fused.coefficients, writes_dz ? Activation::None : fn);
    EXPECT_TRUE(same_bits(dx, parts.dx));
    EXPECT_TRUE(same_bits(fused.dgamma, parts.dgamma));
    EXPECT_TRUE(same_bits(fused.dbeta, parts.dbeta));
    EXPECT_TRUE(same_bits(fused.coefficients, parts.coefficients));
  }
}

TEST_P(NormFusion, Backward) {
  run([]<class T>(const NormCase& c) {
    const NormShape& s = c.shape;
    NormHarness<T> h(s);
    DeviceValues<T> z(s.elements());
    h.apply(z, nullptr, Activation::None);
    for (const bool two : {false, true})
      for (const Activation fn : reference::kActivations) expect_fused(h, z, fn, false, two);
    for (const Activation fn : {Activation::None, Activation::Relu}) {
      h.apply(z, &h.skip_device, fn);
      for (const bool two : {false, true}) expect_fused(h, z, fn, true, two);
    }
    if (s.channels % 8 != 0) return;
    DeviceValues<std::uint8_t> mask(s.elements() / 8);
    h.apply(z, &h.skip_device, Activation::Relu, mask.data());
    for (const bool two : {false, true})
      expect_fused(h, z, Activation::Relu, true, two, mask.data());
  });
}

INSTANTIATE_TEST_SUITE_P(Table, NormFusion, NormFusion::all(norm_cases()), NormFusion::name_of);

// ---- inlined norms ------------------------------------------------------------------------------

// Squeeze and excitation behind a norm, with the norm's output stored and without it. Samples that
// fill tile rows, that begin within one, and several in a chunk. Channels are in eights, as those
// of norms that are inlined.
struct ExcitationCase {
  std::string name;
  NormShape shape;
  ScaleShape scale;
};
void PrintTo(const ExcitationCase& c, std::ostream* out) { *out << c.name; }

std::vector<ExcitationCase> excitation_cases() {
  std::vector<ExcitationCase> cases;
  for (const ScaleShape& s :
       {ScaleShape{2, 64, 16}, {6, 49, 8}, {5, 4, 24}, {3, 1, 32}, {4, 49, 272}, {3, 700, 96}}) {
    const std::string name = std::to_string(s.samples) + "x" + std::to_string(s.pixels) + "x" +
                             std::to_string(s.channels);
    cases.push_back({"Batch" + name, batch_norm_shape(s.samples * s.pixels, s.channels), s});
    cases.push_back(
        {"Group" + name, group_norm_shape(s.samples, s.pixels, s.channels, 4, false), s});
  }
  return cases;
}

class Excited : public OfEveryType<ExcitationCase> {};

TEST_P(Excited, EqualsStoredBits) {
  if constexpr (device::kOnCores) GTEST_SKIP() << "programs for cores inline no norms";
  run([]<class T>(const ExcitationCase& c) {
    const NormShape& s = c.shape;
    const std::int64_t factors = c.scale.samples * c.scale.channels;
    const Shape image{1, c.scale.pixels, c.scale.channels};
    NormHarness<T> h(s);
    DeviceValues<T> factor(random_as<T>(factors, 7)), dmean(random_as<T>(factors, 8));
    const Excitation<T> excitation{factor.data(), dmean.data(), c.scale.pixels};
    for (const Activation fn : reference::kActivations) {
      SCOPED_TRACE(testing::Message() << "function " << static_cast<int>(fn));
      const InlinedNorm norm{h.statistics.data(),  h.gamma_device.data(),
                             h.beta_device.data(), s.instances(),
                             s.channels,           fn};
      DeviceValues<T> y(s.elements()), z(s.elements()), own_z(s.elements());
      DeviceValues<T> means(factors), own_means(factors), dscale(factors), own_dscale(factors);
      h.apply(y, nullptr, fn);
      T* const x = h.x_device.data();
      global_average_forward<T>(h.space, c.scale.samples, image, means.data(), y.data());
      global_average_forward<T>(h.space, c.scale.samples, image, own_means.data(), x, norm);
      EXPECT_TRUE(same_bits(own_means, means));
      scale_forward<T>(h.space, c.scale, z.data(), y.data(), factor.data(), nullptr,
                       Activation::None);
      norm_apply<T>(h.space, s, own_z.data(), x, nullptr, norm.statistics, norm.gamma, norm.beta,
                    fn, nullptr, {}, {factor.data(), nullptr, c.scale.pixels});
      EXPECT_TRUE(same_bits(own_z, z));

      NormOutputs<T> parts(s), own(s);
      DeviceValues<T> dy(h.dy), dy1(s.elements()), dy2(s.elements());
      scale_backward<T>(h.space, c.scale, dy1.data(), dscale.data(), dy.data(), y.data(),
                        factor.data());
      scale_backward<T>(h.space, c.scale, nullptr, own_dscale.data(), dy.data(), x, nullptr, norm);
      EXPECT_TRUE(same_bits(own_dscale, dscale));
      global_average_backward<T>(h.space, c.scale.samples, image, dy2.data(), dmean.data());
      NormBackwardReduce<T> args = h.reduce_arguments(dy1, parts);
      args.dy2 = dy2.data();
      args.dz = parts.dz.data();
      args.fn = fn;
      norm_backward_reduce(h.space, s, args);
      h.backward_apply(parts.dx, parts.dz, parts.coefficients, Activation::None);
      NormBackwardReduce<T> excited = h.reduce_arguments(dy, own);
      excited.fn = fn;
      excited.excitation = excitation;
      norm_backward_reduce(h.space, s, excited);
      EXPECT_TRUE(same_bits(own.coefficients, parts.coefficients));
      EXPECT_TRUE(same_bits(own.dgamma, parts.dgamma));
      EXPECT_TRUE(same_bits(own.dbeta, parts.dbeta));
      norm_backward_apply<T>(h.space, s, dy.data(), dy.data(), x, own.coefficients.data(),
                             norm.statistics, norm.gamma, norm.beta, fn, excitation);
      EXPECT_TRUE(same_bits(dy, parts.dx));
    }
  });
}

// The maximum over windows behind a norm with ReLU; at most 25 places, which reach into the
// padding.
TEST_P(Excited, MaximumEqualsStoredBits) {
  if constexpr (device::kOnCores) GTEST_SKIP() << "programs for cores inline no norms";
  run([]<class T>(const ExcitationCase& c) {
    NormHarness<T> h(c.shape);
    const InlinedNorm norm{h.statistics.data(), h.gamma_device.data(), h.beta_device.data(),
                           c.shape.instances(), c.shape.channels,      Activation::Relu};
    DeviceValues<T> y(c.shape.elements());
    h.apply(y, nullptr, Activation::Relu);
    for (const std::int64_t kernel : {2, 3, 5}) {
      SCOPED_TRACE(testing::Message() << "windows of " << kernel);
      const std::int64_t pad = kernel / 2;
      const std::int64_t columns = (c.scale.pixels + 2 * pad - kernel) / 2 + 1;
      const WindowShape s{c.scale.samples,
                          {1, c.scale.pixels, c.scale.channels},
                          {1, columns, c.scale.channels},
                          kernel,
                          kernel,
                          2,
                          2,
                          pad,
                          pad};
      const auto expect_equal = [&]<class W>(W) {
        DeviceValues<T> stored(s.out_elements()), own(s.out_elements());
        DeviceValues<W> won(s.out_elements()), own_won(s.out_elements());
        max_pool_forward(h.space, s, stored.data(), won.data(), y.data());
        max_pool_forward(h.space, s, own.data(), own_won.data(), h.x_device.data(), norm);
        EXPECT_TRUE(same_bits(own, stored));
        EXPECT_TRUE(same_bits(own_won, won));
      };
      expect_equal(std::uint8_t{});
      expect_equal(std::int32_t{});
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Table, Excited, Excited::all(excitation_cases()), Excited::name_of);

// ---- norm parts ---------------------------------------------------------------------------------

// Batch norm over a batch in parts, as on several replicas: the joined statistics are those of the
// whole batch. tests/pipeline/span_test checks the gradients by finite differences, the law
// (SpanLawTest) whole trainings.

struct Joined {
  Values statistics, mean, variance;  ///< mean and variance are added to sums of 2 and 3
};

/// Of parts of this shape, one after another in x.
template <class T>
Joined joined_statistics(const NormShape& part, const Values& x) {
  const device::ExecutionSpace space;
  const auto channels = static_cast<std::size_t>(part.channels);
  const std::int64_t parts = std::ssize(x) / part.elements();
  DeviceValues<float> statistics(part.statistics_floats());
  NormScratchMemory scratch(part);
  DeviceValues<float> mean(Values(channels, 2.0)), variance(Values(channels, 3.0));
  DeviceValues<Accumulator> exchange(parts * part.part_values());
  for (std::int64_t p = 0; p < parts; ++p) {
    const auto first = x.begin() + p * part.elements();
    DeviceValues<T> own(Values(first, first + part.elements()));
    norm_moments<T>(space, part, exchange.data() + p * part.part_values(), scratch.get(),
                    own.data());
    device::fence(space);
  }
  norm_join_moments(space, part, parts, statistics.data(), {mean.data(), variance.data(), false},
                    exchange.data(), kEpsilon);
  return {statistics.values(), mean.values(), variance.values()};
}

struct PartsCase {
  std::string name;
  std::int64_t rows;
  std::int64_t channels;
  std::int64_t parts;
};
void PrintTo(const PartsCase& c, std::ostream* out) { *out << c.name; }

class NormParts : public OfEveryType<PartsCase> {};

TEST_P(NormParts, StatisticsAreThoseOfTheWholeBatch) {
  run([]<class T>(const PartsCase& c) {
    const NormShape whole = batch_norm_shape(c.rows * c.parts, c.channels);
    const Values x = random_as<T>(whole.elements(), 1, -1.0, 3.0);
    const NormShape part = batch_norm_shape(c.rows, c.channels);
    const Joined out = joined_statistics<T>(part.tile_shape().fits() ? in_tiles(part) : part, x);
    reference::Moments sums = running_moments(whole, x);
    for (double& value : sums.mean) value += 2.0;
    for (double& value : sums.variance) value += 3.0;
    EXPECT_TRUE(stored<float>(out.statistics, expected_statistics(whole, x), 15.0, 16.0));
    EXPECT_TRUE(stored<float>(out.mean, sums.mean, 15.0, 16.0));
    EXPECT_TRUE(stored<float>(out.variance, sums.variance, 15.0, 16.0));
  });
}

TEST(NormPartsTest, AreStableWhereTheMeanIsLarge) {
  const NormShape whole = batch_norm_shape(2000, 8);
  const Values x = random_as<float>(whole.elements(), 1, 1e4 - 2.0, 1e4 + 2.0);
  const Values expected = expected_statistics(whole, x);
  const Joined out = joined_statistics<float>(batch_norm_shape(500, 8), x);
  EXPECT_TRUE(close(out.statistics, expected,
                    [&](std::size_t i) { return i < 8 ? 0.001 : 1e-5 * expected[i]; }));
}

INSTANTIATE_TEST_SUITE_P(Table, NormParts,
                         NormParts::all({{"Rows", 1, 16, 2},
                                         {"OneRow", 1, 3, 1},
                                         {"C1", 8, 1, 4},
                                         {"C64", 49, 64, 2},
                                         {"C3", 350, 3, 3},
                                         {"Tiles", 144, 128, 3},
                                         {"Chunks", 700, 128, 2},
                                         {"C300", 33, 300, 5}}),
                         NormParts::name_of);

}  // namespace
}  // namespace millrace::ops
