// SPDX-License-Identifier: Apache-2.0
#include "pipeline/parameters.hpp"

#include "device/compat.hpp"
#include "models/registry.hpp"
#include "tests/support/device_floats.hpp"
#include "tests/support/test.hpp"

namespace millrace::pipeline {
namespace {

using models::Graph;
using models::ParameterId;

Graph resnet8() {
  models::ModelOptions options;
  options.size = "8";
  options.image = {8, 8, 3};
  return models::build_model(options);
}

/// The parameters of a whole network, bound and initialized.
struct Held {
  Held(const Graph& graph, const ParameterOptions& options)
      : parameters(graph, {0, static_cast<std::int32_t>(graph.ops.size())}, options),
        arena(parameters.bytes()) {
    parameters.bind(arena.at(0));
    parameters.initialise(1);
  }
  Parameters parameters;
  device::Arena arena;
};

TEST(Parameters, SlotsBeginAsTheirTableSays) {
  const Graph graph = resnet8();
  for (const UpdateRule rule : {UpdateRule::Sgd, UpdateRule::Nesterov, UpdateRule::RmsProp,
                                UpdateRule::Lars, UpdateRule::Adam}) {
    Held held(graph, {.rule = rule, .decay_excludes = {}, .lars_skips = {}});
    const auto slots = held.parameters.slots();
    ASSERT_EQ(slots.size(), rule == UpdateRule::Sgd                                   ? 0u
                            : rule == UpdateRule::RmsProp || rule == UpdateRule::Adam ? 2u
                                                                                      : 1u);
    for (const ParameterId id : held.parameters.ids()) {
      const models::Parameter& parameter = graph.parameter(id);
      if (!parameter.trainable()) continue;
      for (std::size_t i = 0; i < slots.size(); ++i) {
        std::vector<float> values(static_cast<std::size_t>(parameter.elements()));
        read_values(held.parameters.stored_slot(i, id), values);
        const bool ones = slots[i].name == "mean_square" && rule == UpdateRule::RmsProp;
        const float initial = ones ? 1.0f : 0.0f;
        EXPECT_EQ(std::count(values.begin(), values.end(), initial), std::ssize(values))
            << name_of(rule) << ": " << parameter.name << "/" << slots[i].name;
      }
    }
  }
}

// With gradients of one, skipped parameters change by exactly the learning rate: they do not decay,
// and their ratio is 1, not trust x |w| / |g|.
TEST(Parameters, LarsNeitherDecaysNorAdaptsWhatIsSkipped) {
  const Graph graph = resnet8();
  Held held(graph, {.rule = UpdateRule::Lars, .lars_skips = {"beta", "gamma", "bias"}});
  Parameters& parameters = held.parameters;
  std::vector<std::vector<float>> before;
  for (const ParameterId id : parameters.ids())
    before.push_back(test::read_floats(parameters.value(id), graph.parameter(id).elements()));
  const std::span<float> sums = parameters.accumulated();
  write_values({reinterpret_cast<std::byte*>(sums.data()), DType::F32},
               std::vector<float>(sums.size(), 1.0f));
  const device::ExecutionSpace space;
  parameters.begin_step(space, {.update = {.rate = 0.125f, .weight_decay = 0.5f, .trust = 0.001f}});
  parameters.update(space, 1);
  device::fence(space);
  for (std::size_t i = 0; i < before.size(); ++i) {
    const models::Parameter& parameter = graph.parameter(parameters.ids()[i]);
    if (!parameter.trainable()) continue;
    const bool kernel = parameter.role == models::ParameterRole::Kernel;
    const std::vector<float> after =
        test::read_floats(parameters.value(parameters.ids()[i]), parameter.elements());
    for (std::size_t k = 0; k < after.size(); ++k) {
      if (kernel)
        EXPECT_NEAR(after[k], before[i][k], 0.0125f) << parameter.name;
      else
        EXPECT_EQ(after[k], before[i][k] - 0.125f) << parameter.name;
    }
    EXPECT_NE(after, before[i]) << parameter.name;
  }
}

constexpr Precision k1632 = {DType::BF16, DType::F32};
constexpr Precision k1616 = {DType::BF16, DType::BF16};

/// Elements of all tensors for which `counts` is true, each padded to whole blocks of `block`.
template <class F>
std::int64_t padded_elements(const Graph& graph, std::int64_t block, F&& counts) {
  std::int64_t sum = 0;
  for (const models::Parameter& parameter : graph.parameters)
    if (counts(parameter)) sum += (parameter.elements() + block - 1) / block * block;
  return sum;
}

std::int64_t bytes_of(const Graph& graph, UpdateRule rule, Precision precision) {
  const OpRange all{0, static_cast<std::int32_t>(graph.ops.size())};
  return Parameters(graph, all, {.rule = rule, .precision = precision}).bytes();
}

TEST(Parameters, SixteenBitsTakeExactlyTheirBytes) {
  const Graph graph = resnet8();
  const auto trainable = [](const models::Parameter& p) { return p.trainable(); };
  // Tensors are padded to 64 bytes in bfloat16, which is 32 elements, in all arrays.
  const std::int64_t wide = padded_elements(graph, 32, trainable);
  const std::int64_t vectors = padded_elements(graph, 32, [](const models::Parameter& p) {
    return p.trainable() && p.role != models::ParameterRole::Kernel;
  });
  const std::int64_t state =
      padded_elements(graph, 32, [](const models::Parameter& p) { return !p.trainable(); });
  std::int64_t spans = 0;
  std::int64_t running_spans = 0;  // all statistics of this network have one
  for (const models::Parameter& p : graph.parameters) {
    if (p.trainable()) spans += (p.elements() + ops::kSpanElements - 1) / ops::kSpanElements;
    if (!p.trainable()) ++running_spans;
  }
  const std::int64_t tables =
      device::aligned(spans * static_cast<std::int64_t>(sizeof(ops::ParameterSpan))) +
      device::aligned(running_spans * static_cast<std::int64_t>(sizeof(ops::RunningSpan))) +
      device::aligned(sizeof(ops::StepState)) + 64;
  for (const std::int64_t slots : {0, 1, 2}) {
    const UpdateRule rule = slots == 0   ? UpdateRule::Sgd
                            : slots == 1 ? UpdateRule::Momentum
                                         : UpdateRule::RmsProp;
    // Masters, slots, float32 gradients, a 16-bit copy of all; running statistics with their sums.
    EXPECT_EQ(bytes_of(graph, rule, k1632), (4 + 4 * slots + 4 + 2) * wide + 8 * state + tables);
    // Masters and slots are halved; gradients and statistics are unchanged; vectors have a copy.
    EXPECT_EQ(bytes_of(graph, rule, k1616),
              (2 + 2 * slots + 4) * wide + 4 * vectors + 8 * state + tables);
  }
}

/// Every value of the parameters as a checkpoint stores it.
std::vector<float> all_values(const Graph& graph, const Parameters& parameters) {
  std::vector<float> all;
  for (const ParameterId id : parameters.ids()) {
    std::vector<float> values(static_cast<std::size_t>(graph.parameter(id).elements()));
    read_values(parameters.stored(id), values);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

// Kernels read the masters converted to their type: initially, after a write, and after an update.
TEST(Parameters, KernelsReadTheValuesOfTheMasters) {
  const Graph graph = resnet8();
  const device::ExecutionSpace space;
  for (const Precision precision : {k1632, k1616}) {
    Held held(graph, {.rule = UpdateRule::Momentum, .precision = precision});
    Parameters& p = held.parameters;
    const auto expect_current = [&](const char* when) {
      for (const ParameterId id : p.ids()) {
        const models::Parameter& parameter = graph.parameter(id);
        if (!parameter.trainable()) continue;
        const auto n = static_cast<std::size_t>(parameter.elements());
        std::vector<float> masters(n);
        std::vector<float> read(n);
        read_values(p.stored(id), masters);
        const bool kernel = parameter.role == models::ParameterRole::Kernel;
        if (kernel) {
          read_values({const_cast<std::byte*>(p.kernel(id)), DType::BF16}, read);
          for (float& master : masters) master = rounded_as<bfloat16>(master);
        } else {
          read_values({reinterpret_cast<std::byte*>(p.value(id)), DType::F32}, read);
        }
        EXPECT_TRUE(read == masters) << when << ": " << parameter.name;
      }
    };
    expect_current("initialised");
    for (const ParameterId id : p.ids()) {
      std::vector<float> values(static_cast<std::size_t>(graph.parameter(id).elements()), 0.3f);
      write_values(p.stored(id), values);
    }
    p.refresh_copies(space);
    device::fence(space);
    expect_current("written");
    const std::span<float> sums = p.accumulated();
    const std::vector<float> ones(sums.size(), 1.0f);
    write_values({reinterpret_cast<std::byte*>(sums.data()), DType::F32}, ones);
    const std::vector<float> before = all_values(graph, p);
    p.begin_step(space, {.update = {.rate = 0.1f, .momentum = 0.9f}});
    p.update(space, 1);
    device::fence(space);
    EXPECT_FALSE(all_values(graph, p) == before);
    expect_current("updated");
  }
}

/// Values of a parameter after an update in which every element is rounded up or down with equal
/// probability: weights of 1.5 decrease by half of the gap to the next bfloat16.
std::vector<float> after_a_toss(const Graph& graph, const ParameterOptions& options,
                                std::string_view name) {
  Held held(graph, options);
  Parameters& parameters = held.parameters;
  std::vector<float> values;
  ParameterId wanted;
  for (const ParameterId id : parameters.ids()) {
    const models::Parameter& parameter = graph.parameter(id);
    if (parameter.name != name) continue;
    wanted = id;
    values.assign(static_cast<std::size_t>(parameter.elements()), 1.5f);
    write_values(parameters.stored(id), values);
  }
  const std::span<float> sums = parameters.accumulated();
  write_values({reinterpret_cast<std::byte*>(sums.data()), DType::F32},
               std::vector<float>(sums.size(), 1.0f));
  const device::ExecutionSpace space;
  parameters.begin_step(space, {.update = {.rate = 0x1p-8f, .step = 3}});
  parameters.update(space, 1);
  device::fence(space);
  read_values(parameters.stored(wanted), values);
  return values;
}

// The two kernels have the same shape and values; only their names differ. The law shows that
// stages and shares change nothing.
TEST(Parameters, RoundingIsKeyedByNameAndSeed) {
  const Graph graph = resnet8();
  const ParameterOptions options{.precision = k1616, .seed = 7};
  const std::vector<float> first = after_a_toss(graph, options, "b1/0/conv1/kernel");
  const auto n = static_cast<double>(first.size());
  ASSERT_EQ(first.size(), 9u * 16u * 16u);
  const auto expect_half_equal = [&](const std::vector<float>& other) {
    ASSERT_EQ(other.size(), first.size());
    double equal = 0.0;
    for (std::size_t i = 0; i < first.size(); ++i) equal += first[i] == other[i] ? 1.0 : 0.0;
    EXPECT_NEAR(equal, n / 2.0, 2.5 * std::sqrt(n));  // five standard deviations
  };
  expect_half_equal(std::vector<float>(first.size(), 1.5f));
  expect_half_equal(after_a_toss(graph, options, "b1/0/conv2/kernel"));
  ParameterOptions reseeded = options;
  reseeded.seed = 8;
  expect_half_equal(after_a_toss(graph, reseeded, "b1/0/conv1/kernel"));
}

TEST(Parameters, SharesAreWholeTensorsOfEqualWeight) {
  const Graph graph = resnet8();
  const OpRange all{0, static_cast<std::int32_t>(graph.ops.size())};
  for (const std::int32_t shares : {2, 3, 4}) {
    std::int64_t owned = 0;
    std::int64_t most = 0;
    std::int64_t largest = 0;
    std::vector<int> owners(graph.parameters.size(), 0);
    for (std::int32_t share = 0; share < shares; ++share) {
      const ParameterOptions options{.rule = UpdateRule::RmsProp, .shares = shares, .share = share};
      const Parameters parameters(graph, all, options);
      std::int64_t own = 0;
      for (const ParameterId id : parameters.ids()) {
        const models::Parameter& parameter = graph.parameter(id);
        if (!parameter.trainable() || !parameters.owns(id)) continue;
        own += parameter.elements();
        largest = std::max(largest, parameter.elements());
        ++owners[id.at()];
      }
      owned += own;
      most = std::max(most, own);
      const auto borders = parameters.share_borders();
      const auto at = static_cast<std::size_t>(share);
      const std::int64_t rest =
          borders[static_cast<std::size_t>(shares)] - borders[at + 1] + borders[at];
      // Two float32 slots less for the parameters of other shares.
      EXPECT_EQ(Parameters(graph, all, {.rule = UpdateRule::RmsProp}).bytes() - parameters.bytes(),
                2 * 4 * rest);
    }
    EXPECT_EQ(owned, graph.trainable_elements());
    EXPECT_LE(most, owned / shares + largest);
    for (std::size_t i = 0; i < owners.size(); ++i)
      EXPECT_EQ(owners[i], graph.parameters[i].trainable() ? 1 : 0) << graph.parameters[i].name;
  }
}

}  // namespace
}  // namespace millrace::pipeline
