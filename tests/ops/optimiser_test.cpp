// SPDX-License-Identifier: Apache-2.0
#include "ops/optimiser.hpp"

#include "tests/ops/device_values.hpp"

namespace millrace::ops {
namespace {

using Spans = std::vector<ParameterSpan>;
using Tensors = std::vector<TensorSpans>;

/// The state that an update changes, on the host in double.
struct State {
  Values weights;
  Values velocity;
  Values mean_square;
};

/// Tensors in the order of their spans. A tensor is a run of spans with the same `tensor`.
Tensors tensors_of(const Spans& spans) {
  Tensors tensors;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].tensor == std::ssize(tensors))
      tensors.push_back({static_cast<std::int64_t>(i), 0});
    ++tensors.back().spans;
  }
  return tensors;
}

/// The state on the device as values of T, and its updates. Float32 masters have a copy.
template <class T = float, class Copy = bfloat16>
struct Updater {
  Updater(const Spans& list, const State& state)
      : num_spans(std::ssize(list)),
        num_tensors(std::ssize(tensors_of(list))),
        spans(list),
        tensors(tensors_of(list)),
        weights(state.weights),
        velocity(state.velocity),
        mean_square(state.mean_square),
        vectors(Values(state.weights.size())),
        copy(std::ssize(state.weights)),
        ratios(num_tensors),
        squares(4 * num_spans) {}

  void step(UpdateRule rule, const Update& update, const Values& gradients,
            bool stochastic = false) {
    constexpr bool kWide = std::is_same_v<T, float>;
    DeviceValues<float> on_device(gradients);
    const DeviceRecords<StepState> step({{.values = {.update = update}}});
    update_weights<T>(space, rule, step.data(),
                      {.weights = weights.data(),
                       .velocity = velocity.data(),
                       .mean_square = mean_square.data(),
                       .gradients = on_device.data(),
                       .copy = kWide ? copy.raw() : nullptr,
                       .copy_type = kWide ? device::dtype_of<Copy>() : DType::F32,
                       .vectors = kWide ? nullptr : vectors.data(),
                       .stochastic = stochastic,
                       .spans = spans.data(),
                       .num_spans = num_spans,
                       .tensors = tensors.data(),
                       .num_tensors = num_tensors,
                       .squares = reinterpret_cast<Accumulator*>(squares.raw()),
                       .ratios = ratios.data()});
    device::fence(space);
  }
  [[nodiscard]] State state() const {
    return {weights.values(), velocity.values(), mean_square.values()};
  }

  device::ExecutionSpace space;
  std::int64_t num_spans, num_tensors;
  DeviceRecords<ParameterSpan> spans;
  DeviceRecords<TensorSpans> tensors;
  DeviceValues<T> weights, velocity, mean_square;
  DeviceValues<float> vectors;
  DeviceValues<Copy> copy;
  DeviceValues<float> ratios, squares;
};

double wide(float x) { return static_cast<double>(x); }

/// Calls f(span, index) for every element of the spans.
template <class F>
void for_each_element(const Spans& spans, const F& f) {
  for (const ParameterSpan& span : spans)
    for (std::int64_t i = span.offset; i < span.offset + span.elements; ++i)
      f(span, static_cast<std::size_t>(i));
}

double norm(const Spans& spans, std::int32_t tensor, const Values& x) {
  double sum = 0.0;
  for_each_element(spans, [&](const ParameterSpan& span, std::size_t k) {
    if (span.tensor == tensor) sum += x[k] * x[k];
  });
  return std::sqrt(sum);
}

double ratio_reference(const Update& u, const Spans& spans, const ParameterSpan& span,
                       const Values& weights, const Values& gradients) {
  if (!span.adapts) return 1.0;
  const double w = norm(spans, span.tensor, weights);
  const double g = norm(spans, span.tensor, gradients) * wide(u.gradient_scale);
  if (w == 0.0 || g == 0.0) return 1.0;
  const double decay = span.decays ? wide(u.weight_decay) : 0.0;
  return wide(u.trust) * w / (g + decay * w + wide(u.epsilon));
}

/// Updates one element by the reference formulas; v and s are its slots.
double step_reference(UpdateRule rule, const Update& u, double g, double ratio, double& v,
                      double& s) {
  const double rate = wide(u.rate);
  const double m = wide(u.momentum);
  const double d = wide(u.mean_square_decay);
  switch (rule) {
    case UpdateRule::Sgd:
      return rate * g;
    case UpdateRule::Momentum:
      v = m * v + g;
      return rate * v;
    case UpdateRule::MomentumRateInside:
      return v = m * v + rate * g;
    case UpdateRule::Nesterov:
      v = m * v + g;
      return rate * (g + m * v);
    case UpdateRule::RmsProp:
      s = d * s + (1.0 - d) * g * g;
      return v = m * v + rate * g / std::sqrt(s + wide(u.epsilon));
    case UpdateRule::Lars:
      return v = m * v + rate * ratio * g;
    case UpdateRule::Adam:
    case UpdateRule::AdamW:
      v = m * v + (1.0 - m) * g;
      s = d * s + (1.0 - d) * g * g;
      return rate * v * wide(u.momentum_correction) /
             (std::sqrt(s * wide(u.mean_square_correction)) + wide(u.epsilon));
  }
  return 0.0;
}

void update_reference(UpdateRule rule, const Update& u, const Spans& spans, State& state,
                      const Values& gradients) {
  const Values before = state.weights;
  std::map<std::int32_t, double> ratios;
  for (const ParameterSpan& span : spans)
    if (!ratios.contains(span.tensor))
      ratios[span.tensor] = ratio_reference(u, spans, span, before, gradients);
  for_each_element(spans, [&](const ParameterSpan& span, std::size_t k) {
    const double decay = span.decays ? wide(u.weight_decay) * before[k] : 0.0;
    const bool decoupled = rule == UpdateRule::AdamW;
    const double g = gradients[k] * wide(u.gradient_scale) + (decoupled ? 0.0 : decay);
    state.weights[k] -=
        step_reference(rule, u, g, ratios[span.tensor], state.velocity[k], state.mean_square[k]) +
        (decoupled ? wide(u.rate) * decay : 0.0);
  });
}

// Four tensors: one with two full spans and a partial one; one with a single element that does not
// decay; one that neither decays nor adapts; one with more spans than a team adds in one step. Then
// a gap of 100 elements outside all spans.
const Spans kSpans = [] {
  Spans spans = {{0, kSpanElements, true, true, 0},
                 {kSpanElements, kSpanElements, true, true, 0},
                 {2 * kSpanElements, 17, true, true, 0},
                 {8209, 1, false, true, 1},
                 {8210, 787, false, false, 2}};
  for (std::int64_t i = 0; i < 300; ++i) spans.push_back({8997 + i, 1, true, true, 3});
  return spans;
}();
constexpr std::int64_t kElements = 9397;
constexpr Update kUpdate{.rate = 0.1f,
                         .momentum = 0.9f,
                         .weight_decay = 0.01f,
                         .gradient_scale = 0.25f,
                         .mean_square_decay = 0.9f,
                         .epsilon = 1e-3f,
                         .trust = 0.02f,
                         .momentum_correction = 1.25f,
                         .mean_square_correction = 1.5f};

/// Weights as values of T.
template <class T = float>
State start() {
  const auto all = static_cast<std::size_t>(kElements);
  return {random_as<T>(kElements, 1), Values(all),
          Values(all, wide(update_slots(UpdateRule::RmsProp)[1].initial))};
}

struct RuleCase {
  std::string name;
  UpdateRule rule;
};
void PrintTo(const RuleCase& c, std::ostream* out) { *out << c.name; }

class UpdateRuleTest : public OfEveryType<RuleCase> {};

// Five steps in float32. Of 16 bits, whose errors add up, one step, which rounds values below 2
// once; the error of float32 arithmetic is negligible beside that.
TEST_P(UpdateRuleTest, StepsAreTheReference) {
  run([]<class T>(const RuleCase& c) {
    constexpr bool kWide = std::is_same_v<T, float>;
    constexpr std::uint64_t kSteps = kWide ? 5 : 1;
    constexpr double kTolerance = kWide ? 16.0 * kFloatUnit : 0x1.01p0 * kUnit<T>;
    State expected = start<T>();
    Updater<T> updater(kSpans, expected);
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      const Values gradients = random_as<T>(kElements, 10 + step);
      updater.step(c.rule, kUpdate, gradients);
      update_reference(c.rule, kUpdate, kSpans, expected, gradients);
    }
    const State actual = updater.state();
    EXPECT_TRUE(close_to(actual.weights, expected.weights, kTolerance));
    EXPECT_TRUE(close_to(actual.velocity, expected.velocity, kTolerance));
    EXPECT_TRUE(close_to(actual.mean_square, expected.mean_square, kTolerance));
  });
}

std::vector<RuleCase> all_rules() {
  std::vector<RuleCase> rules;
  for (const OptimiserRow& row : kOptimisers) {
    std::string name(row.option);
    std::erase(name, '-');
    rules.push_back({name, row.rule});
  }
  return rules;
}

INSTANTIATE_TEST_SUITE_P(Optimiser, UpdateRuleTest, UpdateRuleTest::all(all_rules()),
                         UpdateRuleTest::name_of);

// The operations of plain SGD and momentum one by one in float, so that old runs can be reproduced.
TEST(Optimiser, MomentumHasTheBitsOfItsFormula) {
  const State before = start();
  const Values gradients = random_as<float>(kElements, 10);
  for (const UpdateRule rule : {UpdateRule::Sgd, UpdateRule::Momentum}) {
    Updater updater(kSpans, before);
    updater.step(rule, kUpdate, gradients);
    updater.step(rule, kUpdate, gradients);
    const State after = updater.state();
    for_each_element(kSpans, [&](const ParameterSpan& span, std::size_t k) {
      auto w = static_cast<float>(before.weights[k]);
      float v = 0.0f;
      for (int step = 0; step < 2; ++step) {
        float g = static_cast<float>(gradients[k]) * kUpdate.gradient_scale +
                  (span.decays ? kUpdate.weight_decay : 0.0f) * w;
        if (rule == UpdateRule::Momentum) g = v = kUpdate.momentum * v + g;
        w -= kUpdate.rate * g;
      }
      ASSERT_EQ(after.weights[k], wide(w)) << k;
      ASSERT_EQ(after.velocity[k], wide(v)) << k;
    });
  }
}

TEST(Optimiser, TheFormsOfMomentumDifferWhereTheRateChanges) {
  const auto after = [](UpdateRule rule) {
    Updater updater({{0, 1}}, {Values(1, 0.0), Values(1), Values(1, 1.0)});
    for (const float rate : {1.0f, 0.5f})
      updater.step(rule, {.rate = rate, .momentum = 0.5f}, Values(1, 1.0));
    return updater.state().weights[0];
  };
  // By hand, g = 1 twice. Outside: v = 1, w = -1; v = 1.5, w = -1.75. Inside: v = 1, w = -1;
  // v = 1, w = -2. Nesterov: w = -1.5; v = 1.5, w = -1.5 - 0.5 x 1.75.
  EXPECT_EQ(after(UpdateRule::Momentum), -1.75);
  EXPECT_EQ(after(UpdateRule::MomentumRateInside), -2.0);
  EXPECT_EQ(after(UpdateRule::Nesterov), -2.375);
}

// torch.optim.Adam and AdamW of PyTorch 2.15 in float64.
TEST(Optimiser, AdamIsThatOfPyTorch) {
  const std::vector<Values> gradients = {
      {0.1, -0.2, 0.0}, {0.3, 0.4, -0.5}, {-0.05, 0.6, 0.25}, {1.0, -1.0, 0.125}};
  const auto after = [&](UpdateRule rule) {
    Updater updater({{0, 3, true, false, 0}}, {{0.5, -1.25, 2.0}, Values(3), Values(3)});
    Update update{.rate = 0.125f,
                  .momentum = 0.75f,
                  .weight_decay = 0.25f,
                  .mean_square_decay = 0.875f,
                  .epsilon = 0.0625f};
    for (std::size_t step = 0; step < gradients.size(); ++step) {
      const auto t = static_cast<double>(step + 1);
      update.momentum_correction = static_cast<float>(1.0 / (1.0 - std::pow(0.75, t)));
      update.mean_square_correction = static_cast<float>(1.0 / (1.0 - std::pow(0.875, t)));
      updater.step(rule, update, gradients[step]);
    }
    return updater.state().weights;
  };
  EXPECT_TRUE(close_to(after(UpdateRule::Adam),
                       {0.12977381258311182, -1.0437740494269145, 1.6368691854901647}, 1e-6));
  EXPECT_TRUE(close_to(after(UpdateRule::AdamW),
                       {0.1503840485649701, -1.1128805919017244, 1.852527823629695}, 1e-6));
}

// By hand.
TEST(Optimiser, LarsScalesByTheRatioOfNorms) {
  const ParameterSpan adapts{0, 2, true, true, 0};
  const auto step = [&](const Values& weights, const Values& gradients, float weight_decay,
                        const ParameterSpan& span) {
    const Update update{.rate = 1.0f, .weight_decay = weight_decay, .trust = 0.5f};
    Updater updater({span}, {weights, Values(2), Values(2, 1.0)});
    updater.step(UpdateRule::Lars, update, gradients);
    return weights[0] - updater.state().weights[0];
  };
  // 0.5 x 5 / 10 = 1/4 of 6; with decay 2: 0.5 x 5 / (10 + 10) = 1/8 of 6 + 2 x 3.
  EXPECT_EQ(step({3.0, 4.0}, {6.0, 8.0}, 0.0f, adapts), 1.5);
  EXPECT_EQ(step({3.0, 4.0}, {6.0, 8.0}, 2.0f, adapts), 1.5);
  // Skipped: plain momentum without decay.
  EXPECT_EQ(step({1.0, 4.0}, {6.0, 8.0}, 2.0f, {0, 2, false, false, 0}), 6.0);
  // The ratio is one where a norm is zero.
  EXPECT_EQ(step({0.0, 0.0}, {6.0, 8.0}, 0.0f, adapts), 6.0);
  EXPECT_EQ(step({4.0, 2.0}, {0.0, 0.0}, 0.5f, adapts), 2.0);
  EXPECT_EQ(step({0.0, 0.0}, {0.0, 0.0}, 0.5f, adapts), 0.0);
}

// ---- 16 bits ------------------------------------------------------------------------------------

RandomStream stream_of(const char* name) { return {7, RandomPurpose::Rounding, hash_name(name)}; }

template <class T>
class NarrowOptimiser : public testing::Test {};
using NarrowTypes = testing::Types<bfloat16, float16>;
TYPED_TEST_SUITE(NarrowOptimiser, NarrowTypes);

TEST(NarrowMomentum, ByHand) {
  const Update update{
      .rate = 0.5f, .momentum = 0.5f, .weight_decay = 0.25f, .gradient_scale = 0.5f};
  Updater<bfloat16> narrow({{.offset = 0, .elements = 1, .decays = true}},
                           {Values(1, 1.0), Values(1, 0.5078125), Values(1)});
  narrow.step(UpdateRule::Momentum, update, Values(1, 2.0), false);
  // g = 1 + 0.25; v = 0.25390625 + 1.25 = 1.50390625, halfway between 1.5 and 1.5078125. The even
  // one is stored, but w = 1 - v / 2 = 0.248046875 (exact) uses the unrounded v.
  EXPECT_EQ(narrow.velocity.values()[0], 1.5);
  EXPECT_EQ(narrow.weights.values()[0], 0.248046875);
}

TYPED_TEST(NarrowOptimiser, RoundsTheGradientOnce) {
  constexpr double kHalf = kUnit<TypeParam>;  // of the gap between 1 and the next number
  Updater<TypeParam> narrow({{.offset = 0, .elements = 2}}, {Values(2, 0.0), Values(2), Values(2)});
  // A tie rounds to 1, the even one; slightly more rounds up.
  narrow.step(UpdateRule::Sgd, {.rate = 1.0f}, {1.0 + kHalf, 1.0 + kHalf + 0x1p-23}, false);
  EXPECT_EQ(narrow.weights.values(), (Values{-1.0, -1.0 - 2.0 * kHalf}));
}

// Steps of an eighth of the gap between neighbors. With rounding to nearest nothing changes. With
// stochastic rounding an eighth of the elements changes, within five standard deviations, and the
// mean follows the sum.
TYPED_TEST(NarrowOptimiser, SmallStepsCountOnAverage) {
  constexpr double kGap = 2.0 * kUnit<TypeParam>;
  constexpr std::int64_t kMany = 16 * kSpanElements;
  constexpr int kSteps = 8;
  Spans spans;
  for (std::int64_t at = 0; at < kMany; at += kSpanElements)
    spans.push_back(
        {.offset = at, .elements = kSpanElements, .first = at, .rounding = stream_of("many")});
  const State state{Values(static_cast<std::size_t>(kMany), 1.5),
                    Values(static_cast<std::size_t>(kMany)),
                    Values(static_cast<std::size_t>(kMany))};
  const Values gradients(static_cast<std::size_t>(kMany), 1.0);
  Update update{.rate = static_cast<float>(kGap / 8.0)};
  Updater<TypeParam> nearest(spans, state);
  Updater<TypeParam> stochastic(spans, state);
  for (int step = 0; step < kSteps; ++step) {
    update.step = static_cast<std::uint64_t>(step);
    nearest.step(UpdateRule::Sgd, update, gradients, false);
    stochastic.step(UpdateRule::Sgd, update, gradients, true);
  }
  EXPECT_EQ(nearest.weights.values(), state.weights);
  double mean = 0.0;
  for (const double w : stochastic.weights.values()) mean += w / static_cast<double>(kMany);
  // Each step moves each element by the gap with probability 1/8.
  const double deviation = kGap * std::sqrt(kSteps * 0.125 * 0.875 / static_cast<double>(kMany));
  EXPECT_NEAR(mean, 1.5 - kSteps * kGap / 8.0, 5.0 * deviation);
}

/// Which values are above `middle`, as random draws decide.
std::vector<bool> ups(const Values& values, double middle) {
  std::vector<bool> above;
  for (const double x : values) above.push_back(x > middle);
  return above;
}

/// Expects that half of the draws of a and b agree, within five standard deviations of a fair coin:
/// they are not correlated.
void expect_independent(const std::vector<bool>& a, const std::vector<bool>& b) {
  double equal = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) equal += a[i] == b[i] ? 1.0 : 0.0;
  const auto draws = static_cast<double>(a.size());
  EXPECT_NEAR(equal, 0.5 * draws, 5.0 * 0.5 * std::sqrt(draws));
}

// Random numbers depend on tensor, step and element.
TYPED_TEST(NarrowOptimiser, DrawsDifferByTensorStepAndElement) {
  const auto moved = [](const char* name, std::uint64_t step) {
    Updater<TypeParam> narrow({{.offset = 0, .elements = 1024, .rounding = stream_of(name)}},
                              {Values(1024, 1.5), Values(1024), Values(1024)});
    const auto half_a_gap = static_cast<float>(kUnit<TypeParam>);
    narrow.step(UpdateRule::Sgd, {.rate = half_a_gap, .step = step}, Values(1024, 1.0), true);
    return ups(narrow.weights.values(), 1.5 - kUnit<TypeParam>);
  };
  const std::vector<bool> first = moved("a", 1);
  EXPECT_EQ(first, moved("a", 1));
  expect_independent(first, moved("b", 1));
  expect_independent(first, moved("a", 2));
  for (const std::ptrdiff_t period : {1, 2, 32, 512})
    expect_independent({first.begin(), first.end() - period},
                       {first.begin() + period, first.end()});
}

// They also depend on the kind of stored value. With e = 2^-9 (float16: 2^-12) and without
// gradients, a velocity (or mean square) of 1 becomes 1 - e, halfway between its neighbors. A
// weight of 3/2 becomes 1/2 + e, also halfway. Each rounds up in half of the elements, and any two
// of the three round the same way in half of them.
TYPED_TEST(NarrowOptimiser, DrawsDifferByWhatIsStored) {
  constexpr std::size_t kMany = 4096;
  constexpr double kSlot = 1.0 - kUnit<TypeParam> / 2.0;
  constexpr double kWeight = 0.5 + kUnit<TypeParam> / 2.0;
  const auto slot = static_cast<float>(kSlot);
  const Update update{.rate = 1.0f, .momentum = slot, .mean_square_decay = slot};
  for (const UpdateRule rule : {UpdateRule::Momentum, UpdateRule::MomentumRateInside,
                                UpdateRule::RmsProp, UpdateRule::Lars}) {
    SCOPED_TRACE(name_of(rule));
    Updater<TypeParam> narrow({{.offset = 0, .elements = kMany, .rounding = stream_of("a")}},
                              {Values(kMany, 1.5), Values(kMany, 1.0), Values(kMany, 1.0)});
    narrow.step(rule, update, Values(kMany, 0.0), true);
    std::vector<std::vector<bool>> draws = {std::vector<bool>(kMany, true),
                                            ups(narrow.weights.values(), kWeight),
                                            ups(narrow.velocity.values(), kSlot)};
    if (update_slots(rule).size() == 2) draws.push_back(ups(narrow.mean_square.values(), kSlot));
    for (std::size_t a = 0; a < draws.size(); ++a)
      for (std::size_t b = a + 1; b < draws.size(); ++b) expect_independent(draws[a], draws[b]);
  }
}

/// Bits of the state of a tensor after two updates, with `before` elements of another one before
/// it.
template <class T>
std::vector<std::byte> bits_behind(std::int64_t before, UpdateRule rule) {
  const std::int64_t n = 2 * kSpanElements + 17;
  Spans spans;
  if (before > 0) spans.push_back({.offset = 0, .elements = before, .adapts = true});
  for (std::int64_t at = 0; at < n; at += kSpanElements)
    spans.push_back({.offset = before + at,
                     .elements = std::min(kSpanElements, n - at),
                     .decays = true,
                     .adapts = true,
                     .tensor = before > 0 ? 1 : 0,
                     .first = at,
                     .rounding = stream_of("tensor")});
  const auto placed = [&](const Values& values) {
    Values all(static_cast<std::size_t>(before), 0.5);
    all.insert(all.end(), values.begin(), values.end());
    return all;
  };
  const Values ones(static_cast<std::size_t>(before + n), 1.0);
  Updater<T> updater(spans, {placed(random_as<T>(n, 1)), ones, ones});
  Update update = kUpdate;
  for (update.step = 5; update.step < 7; ++update.step)
    updater.step(rule, update, placed(random_as<float>(n, 2)), !std::is_same_v<T, float>);
  std::vector<std::byte> bits;
  for (const auto* values : {&updater.weights, &updater.velocity, &updater.mean_square}) {
    const std::vector<std::byte> all = values->bits();
    bits.insert(bits.end(), all.begin() + before * static_cast<std::int64_t>(sizeof(T)), all.end());
  }
  return bits;
}

TEST_P(UpdateRuleTest, GivesATensorTheSameBitsInEveryLayout) {
  run([]<class T>(const RuleCase& c) {
    const std::vector<std::byte> alone = bits_behind<T>(0, c.rule);
    EXPECT_TRUE(bits_behind<T>(1, c.rule) == alone);
    EXPECT_TRUE(bits_behind<T>(1023, c.rule) == alone);
  });
}

TYPED_TEST(NarrowOptimiser, WritesTheVectorsThatKernelsReadAsFloats) {
  const Spans spans = {{.offset = 0, .elements = 8},
                       {.offset = 8, .elements = 5, .vector = 3, .rounding = stream_of("v")}};
  Updater<TypeParam> narrow(spans, {random_as<TypeParam>(13, 1), Values(13), Values(13)});
  narrow.step(UpdateRule::Sgd, {.rate = 0.1f}, random_as<float>(13, 2), true);
  const Values weights = narrow.weights.values();
  const Values vectors = narrow.vectors.values();
  for (std::size_t i = 0; i < 13; ++i)
    EXPECT_EQ(vectors[i], i >= 3 && i < 8 ? weights[i + 5] : 0.0) << i;
}

TYPED_TEST(NarrowOptimiser, IsTheCopyThatUpdatesOfFloatsStore) {
  for (const RuleCase& c : all_rules()) {
    Updater<float, TypeParam> updater(kSpans, start());
    updater.step(c.rule, kUpdate, random_as<float>(kElements, 10));
    const Values weights = updater.state().weights;
    const Values copies = updater.copy.values();
    for_each_element(kSpans, [&](const ParameterSpan&, std::size_t k) {
      ASSERT_EQ(copies[k], wide(rounded_as<TypeParam>(static_cast<float>(weights[k])))) << c.name;
    });
  }
}

}  // namespace
}  // namespace millrace::ops
