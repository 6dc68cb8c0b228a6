// SPDX-License-Identifier: Apache-2.0
//
// Speed of single kernels on the shapes of ResNet-20 (CIFAR-10, batch 128) and ResNet-50 (ImageNet,
// batch 16), in both storage types.
//
//   ops_bench [--benchmark_filter=REGEX ..] [THREADS]         (default 1 thread)
//
// Benchmarks are named network/storage/kernel/op. Ops with the same shape are measured once, under
// the name of the first; the counter `ops` is their number, so time x ops is their share of a step.
// Bytes count each activation and parameter that is read or written once, without scratch. Rates
// are by CPU time with one thread, because other processes disturb it least, and by wall time with
// more threads.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/random.hpp"
#include "core/text.hpp"
#include "device/arena.hpp"
#include "device/compat.hpp"
#include "device/environment.hpp"
#include "models/registry.hpp"
#include "ops/backend.hpp"
#include "ops/norm.hpp"
#include "ops/optimiser.hpp"
#include "pipeline/op_shapes.hpp"

namespace millrace {
namespace {

using benchmark::Counter;
using benchmark::State;
using device::ExecutionSpace;
using models::OpId;

// ---- measuring ----------------------------------------------------------------------------------

/// Device memory with values between `lowest` and 1.
template <class T>
class Values {
 public:
  explicit Values(std::int64_t elements, float lowest = -1.0f)
      : arena_(std::max<std::int64_t>(elements, 1) * static_cast<std::int64_t>(sizeof(T))) {
    const RandomStream stream(0, RandomPurpose::SyntheticData);
    std::vector<T> host(static_cast<std::size_t>(elements));
    for (std::size_t i = 0; i < host.size(); ++i) {
      const RandomBlock words = stream.block(0, i / 4);
      host[i] = store_as<T>(lowest + (1.0f - lowest) * uniform01(words[i % 4]));
    }
    device::copy_to_device(arena_.at(0), reinterpret_cast<const std::byte*>(host.data()),
                           elements * static_cast<std::int64_t>(sizeof(T)));
  }
  [[nodiscard]] T* data() { return reinterpret_cast<T*>(arena_.at(0)); }
  [[nodiscard]] std::byte* raw() { return arena_.at(0); }

 private:
  device::Arena arena_;
};

/// Work of a kernel in one run, and the number of ops in the network with this shape.
struct Work {
  const char* unit;
  double amount;
  std::int64_t ops;
};

template <class T>
Work traffic(std::int64_t elements, std::int64_t ops) {
  return {"bytes/s", static_cast<double>(elements) * static_cast<double>(sizeof(T)), ops};
}

template <class Kernel>
void measure(State& state, const Work& work, const Kernel& kernel) {
  const ExecutionSpace space;
  while (state.KeepRunning()) {
    kernel(space);
    device::fence(space);
  }
  state.counters[work.unit] = Counter(work.amount, Counter::kIsIterationInvariantRate);
  state.counters["ops"] = static_cast<double>(work.ops);
}

class Suite {
 public:
  explicit Suite(int threads) : threads_(threads) {}

  template <class Function, class... Arguments>
  void add(const std::string& name, Function function, Arguments... arguments) const {
    auto* registered = benchmark::RegisterBenchmark(name.c_str(), function, arguments...);
    registered->Unit(benchmark::kMicrosecond);
    if (threads_ > 1) registered->UseRealTime();
  }

 private:
  int threads_;
};

// ---- norms --------------------------------------------------------------------------------------

template <class T>
struct NormData {
  explicit NormData(const ops::NormShape& s)
      : x(s.elements()),
        skip(s.elements()),
        y(s.elements()),
        dy(s.elements()),
        statistics(s.statistics_floats()),
        coefficients(s.coefficient_floats()),
        scratch(s.scratch_floats()),
        counters(s.counters()),
        gamma(s.channels),
        beta(s.channels),
        gradients(2 * s.channels) {
    ops::clear_counters({}, memory().counters, s.counters());
    ops::norm_statistics<T>({}, s, statistics.data(), {}, memory(), x.data(), 1e-5f);
  }
  [[nodiscard]] ops::NormScratch memory() {
    return {scratch.data(), reinterpret_cast<std::uint32_t*>(counters.data())};
  }
  Values<T> x, skip, y, dy;
  Values<float> statistics, coefficients, scratch, counters, gamma, beta, gradients;
};

enum class Skip { No, Yes };

template <class T>
void norm_statistics(State& state, const ops::NormShape& s, std::int64_t count) {
  NormData<T> d(s);
  measure(state, traffic<T>(s.elements(), count), [&](const ExecutionSpace& space) {
    ops::norm_statistics<T>(space, s, d.statistics.data(), {}, d.memory(), d.x.data(), 1e-5f);
  });
}

template <class T>
void norm_apply(State& state, const ops::NormShape& s, std::int64_t count, Skip skip) {
  NormData<T> d(s);
  const bool two = skip == Skip::Yes;
  measure(state, traffic<T>((two ? 3 : 2) * s.elements(), count), [&](const ExecutionSpace& space) {
    ops::norm_apply<T>(space, s, d.y.data(), d.x.data(), two ? d.skip.data() : nullptr,
                       d.statistics.data(), d.gamma.data(), d.beta.data(), Activation::Relu);
  });
}

/// With a skip, y is read and dz is written in addition.
template <class T>
void norm_backward_reduce(State& state, const ops::NormShape& s, std::int64_t count, Skip skip) {
  NormData<T> d(s);
  ops::NormBackwardReduce<T> args;
  args.dy = d.dy.data();
  args.x = d.x.data();
  args.statistics = d.statistics.data();
  args.gamma = d.gamma.data();
  args.beta = d.beta.data();
  args.dgamma = d.gradients.data();
  args.dbeta = d.gradients.data() + s.channels;
  args.coefficients = d.coefficients.data();
  args.scratch = d.memory();
  args.fn = Activation::Relu;
  args.skip_used = skip == Skip::Yes;
  args.y = args.skip_used ? d.y.data() : nullptr;
  args.dz = args.skip_used ? d.skip.data() : nullptr;
  measure(state, traffic<T>((args.skip_used ? 4 : 2) * s.elements(), count),
          [&](const ExecutionSpace& space) { ops::norm_backward_reduce<T>(space, s, args); });
}

template <class T>
void norm_backward_apply(State& state, const ops::NormShape& s, std::int64_t count) {
  NormData<T> d(s);
  measure(state, traffic<T>(3 * s.elements(), count), [&](const ExecutionSpace& space) {
    ops::norm_backward_apply<T>(space, s, d.y.data(), d.dy.data(), d.x.data(),
                                d.coefficients.data(), d.statistics.data(), d.gamma.data(),
                                d.beta.data(), Activation::Relu);
  });
}

// ---- convolutions -------------------------------------------------------------------------------

enum class Pass { Forward, BackwardInput, BackwardWeight };

/// A convolution with its memory.
template <class T>
class BoundConvolution {
 public:
  BoundConvolution(const ops::ConvShape& s, ops::Passes passes, std::unique_ptr<ops::LinearOp> op)
      : op_(std::move(op)),
        x_(s.window.in_elements()),
        y_(s.window.out_elements()),
        kernel_(s.kernel_elements()),
        gradient_(s.kernel_elements()),
        packed_forward_(floats(op_->bytes().packed_forward)),
        packed_backward_(floats(op_->bytes().packed_backward)),
        scratch_(floats(op_->bytes().scratch)) {
    ops::LinearMemory memory;
    memory.kernel = kernel_.raw();
    memory.dkernel = gradient_.data();
    memory.packed_forward = packed_forward_.raw();
    memory.packed_backward = packed_backward_.raw();
    memory.scratch = scratch_.raw();
    op_->bind(memory);
    op_->pack({}, passes.backward_input);
  }

  void run(const ExecutionSpace& space, Pass pass) {
    if (pass == Pass::Forward) op_->forward(space, y_.raw(), x_.raw());
    if (pass == Pass::BackwardInput) op_->backward_input(space, x_.raw(), y_.raw());
    if (pass == Pass::BackwardWeight) op_->backward_weight(space, y_.raw(), x_.raw(), true);
  }

 private:
  static std::int64_t floats(std::int64_t bytes) { return (bytes + 3) / 4; }

  std::unique_ptr<ops::LinearOp> op_;
  Values<T> x_, y_, kernel_;
  Values<float> gradient_, packed_forward_, packed_backward_, scratch_;
};

ops::Passes passes_of(Pass pass) {
  return {pass == Pass::BackwardInput, pass == Pass::BackwardWeight};
}

/// Kernels of a convolution: those of the default backend, or ours for devices without a library.
enum class Kernels { Default, Tiled, Plain };

std::unique_ptr<ops::LinearOp> prepare(const ops::ConvShape& s, DType type, ops::Passes passes,
                                       Kernels kernels) {
  if (kernels == Kernels::Tiled) return ops::make_tiled(s, type);
  if (kernels == Kernels::Plain) return ops::make_plain(s, type);
  return ops::make_default_backend()->convolution(s, type, passes);
}

template <class T>
void convolution(State& state, const ops::ConvShape& s, std::int64_t count, Pass pass,
                 Kernels kernels) {
  const ops::Passes passes = passes_of(pass);
  BoundConvolution<T> bound(s, passes, prepare(s, device::dtype_of<T>(), passes, kernels));
  const std::int64_t macs = s.window.batch * s.window.out.pixels() * s.kernel_elements();
  measure(state, {"FLOP/s", 2.0 * static_cast<double>(macs), count},
          [&](const ExecutionSpace& space) { bound.run(space, pass); });
}

// ---- update -------------------------------------------------------------------------------------

template <class M>
void update(State& state, std::int64_t parameters, UpdateRule rule, bool stochastic) {
  std::vector<ops::ParameterSpan> host;
  for (std::int64_t at = 0; at < parameters; at += ops::kSpanElements) {
    host.push_back({.offset = at,
                    .elements = std::min(ops::kSpanElements, parameters - at),
                    .decays = true,
                    .first = at});
  }
  const auto bytes = static_cast<std::int64_t>(host.size() * sizeof(ops::ParameterSpan));
  device::Arena spans(bytes);
  device::copy_to_device(spans.at(0), reinterpret_cast<const std::byte*>(host.data()), bytes);
  const bool squares = rule == UpdateRule::RmsProp;
  Values<M> weights(parameters), velocity(parameters);
  Values<M> mean_square(squares ? parameters : 0, 0.0f);
  Values<float> gradients(parameters);
  const ops::Update numbers{.rate = 1e-3f,
                            .momentum = 0.9f,
                            .weight_decay = 1e-4f,
                            .gradient_scale = 0.5f,
                            .epsilon = 1e-3f};
  measure(
      state, {"elements/s", static_cast<double>(parameters), 1}, [&](const ExecutionSpace& space) {
        ops::update_weights<M>(space, rule, numbers,
                               {.weights = weights.data(),
                                .velocity = velocity.data(),
                                .mean_square = mean_square.data(),
                                .gradients = gradients.data(),
                                .stochastic = stochastic,
                                .spans = reinterpret_cast<const ops::ParameterSpan*>(spans.at(0)),
                                .num_spans = std::ssize(host)});
      });
}

/// The check for non-finite gradients before an update.
void look_for_non_finite(State& state, std::int64_t parameters) {
  Values<float> gradients(parameters), flag(1);
  measure(state, {"elements/s", static_cast<double>(parameters), 1},
          [&](const ExecutionSpace& space) {
            ops::flag_non_finite(space, parameters, gradients.data(),
                                 reinterpret_cast<std::uint32_t*>(flag.data()));
          });
}

void add_updates(const Suite& suite, const std::string& prefix, std::int64_t parameters) {
  suite.add(prefix + "float32/finite", look_for_non_finite, parameters);
  for (const auto& [name, rule] :
       {std::pair{"momentum", UpdateRule::Momentum}, std::pair{"rmsprop", UpdateRule::RmsProp}}) {
    suite.add(fmt::format("{}float32/update/{}", prefix, name), update<float>, parameters, rule,
              false);
    suite.add(fmt::format("{}bfloat16/update/{}", prefix, name), update<bfloat16>, parameters, rule,
              false);
    suite.add(fmt::format("{}bfloat16/update/{} stochastic", prefix, name), update<bfloat16>,
              parameters, rule, true);
  }
}

// ---- the two networks ---------------------------------------------------------------------------

struct Network {
  std::string name;
  models::Graph graph;
  std::int64_t batch;
};

Network resnet20() { return {"ResNet-20", models::build_model({}), 128}; }

Network resnet50() {
  models::ModelOptions options;
  options.size = "50";
  options.task = models::Task::ImageNet;
  options.classes = 1000;
  options.image = {224, 224, 3};
  options.shortcut = 'B';
  return {"ResNet-50", models::build_model(options), 16};
}

/// The first op of every shape among those that `select` returns, and the number of ops with that
/// shape.
struct Distinct {
  OpId op;
  std::int64_t count;
};
template <class Select, class KeyOf>
std::vector<Distinct> distinct_ops(const Network& network, Select&& select, KeyOf&& key_of) {
  std::map<std::string, Distinct> seen;
  std::vector<std::string> order;
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(network.graph.ops.size()); ++i) {
    const OpId op{i};
    if (!select(network.graph.op(op))) continue;
    const std::string key = key_of(op);
    if (!seen.contains(key)) order.push_back(key);
    ++seen.try_emplace(key, Distinct{op, 0}).first->second.count;
  }
  std::vector<Distinct> result;
  for (const std::string& key : order) result.push_back(seen.at(key));
  return result;
}

std::string window_key(const ops::WindowShape& w) {
  return fmt::format("{} {} {} {} {}", w.in, w.out, w.kernel_h, w.kernel_w, w.stride_h);
}

template <class T>
void add_norms(const Suite& suite, const Network& n, const std::string& prefix) {
  const auto shape_of = [&](OpId op) { return pipeline::norm_shape(n.graph, op, n.batch); };
  const auto norms = distinct_ops(
      n, [](const models::Op& op) { return std::holds_alternative<models::BatchNorm>(op.kind); },
      [&](OpId op) { return fmt::format("{} {}", shape_of(op).rows, shape_of(op).channels); });
  for (const auto& [op, count] : norms) {
    const ops::NormShape s = shape_of(op);
    const std::string name = n.graph.op(op).name;
    suite.add(prefix + "norm_statistics/" + name, norm_statistics<T>, s, count);
    suite.add(prefix + "norm_apply/" + name, norm_apply<T>, s, count, Skip::No);
    suite.add(prefix + "norm_add_apply/" + name, norm_apply<T>, s, count, Skip::Yes);
    suite.add(prefix + "norm_reduce/" + name, norm_backward_reduce<T>, s, count, Skip::No);
    suite.add(prefix + "norm_add_reduce/" + name, norm_backward_reduce<T>, s, count, Skip::Yes);
    suite.add(prefix + "norm_dx/" + name, norm_backward_apply<T>, s, count);
  }
}

/// `suffix` distinguishes the names of these kernels.
template <class T>
void add_convolutions(const Suite& suite, const Network& n, const std::string& prefix,
                      Kernels kernels, const std::string& suffix) {
  const auto shape_of = [&](OpId op) { return pipeline::conv_shape(n.graph, op, n.batch); };
  const auto convolutions = distinct_ops(
      n, [](const models::Op& op) { return std::holds_alternative<models::Conv>(op.kind); },
      [&](OpId op) { return window_key(shape_of(op).window); });
  for (const auto& [op, count] : convolutions) {
    const ops::ConvShape s = shape_of(op);
    const std::string name = n.graph.op(op).name;
    const auto add = [&, times = count](const std::string& kind, Pass pass) {
      suite.add(prefix + kind + suffix + "/" + name, convolution<T>, s, times, pass, kernels);
    };
    add("conv_y", Pass::Forward);
    if (n.graph.op(op).inputs.front() != models::Graph::input())
      add("conv_dx", Pass::BackwardInput);
    add("conv_dw", Pass::BackwardWeight);
  }
}

void add_network(const Suite& suite, const Network& n) {
  for (const DType type : {DType::F32, DType::BF16}) {
    const std::string prefix = fmt::format("{}/{}/", n.name, name_of(type));
    device::dispatch(type, [&]<class T>() {
      add_convolutions<T>(suite, n, prefix, Kernels::Default, "");
      if (n.name == "ResNet-20") {
        add_convolutions<T>(suite, n, prefix, Kernels::Tiled, " tiled");
        add_convolutions<T>(suite, n, prefix, Kernels::Plain, " plain");
      }
      add_norms<T>(suite, n, prefix);
    });
  }
  std::int64_t parameters = 0;
  for (const models::Parameter& p : n.graph.parameters) {
    if (p.trainable()) parameters += p.elements();
  }
  add_updates(suite, n.name + "/", parameters);
}

// ---- grouped convolutions -----------------------------------------------------------------------

struct GroupedCase {
  const char* name;
  std::int64_t size;
  std::int64_t channels;
  std::int64_t kernel;
  std::int64_t stride;
  std::int64_t groups;
};

/// EfficientNet-B0 at 224 and at CIFAR's 32, ResNeXt-50 32x4d.
constexpr GroupedCase kGroupedCases[] = {
    {"depthwise3 32@112", 112, 32, 3, 1, 32},   {"depthwise3s2 96@112", 112, 96, 3, 2, 96},
    {"depthwise3 144@56", 56, 144, 3, 1, 144},  {"depthwise5s2 144@56", 56, 144, 5, 2, 144},
    {"depthwise5 240@28", 28, 240, 5, 1, 240},  {"depthwise3s2 240@28", 28, 240, 3, 2, 240},
    {"depthwise3 480@14", 14, 480, 3, 1, 480},  {"depthwise5 480@14", 14, 480, 5, 1, 480},
    {"depthwise5 672@14", 14, 672, 5, 1, 672},  {"depthwise5s2 672@14", 14, 672, 5, 2, 672},
    {"depthwise5 1152@7", 7, 1152, 5, 1, 1152}, {"depthwise3 1152@7", 7, 1152, 3, 1, 1152},
    {"depthwise3 32@32", 32, 32, 3, 1, 32},     {"depthwise5 240@8", 8, 240, 5, 1, 240},
    {"depthwise5 672@4", 4, 672, 5, 1, 672},    {"grouped3 32x4@56", 56, 128, 3, 1, 32},
    {"grouped3s2 32x8@56", 56, 256, 3, 2, 32},  {"grouped3 32x8@28", 28, 256, 3, 1, 32},
    {"grouped3s2 32x16@28", 28, 512, 3, 2, 32}, {"grouped3 32x16@14", 14, 512, 3, 1, 32},
    {"grouped3 32x32@7", 7, 1024, 3, 1, 32},
};

/// SAME padding of square images, equal on both sides.
ops::ConvShape grouped_shape(const GroupedCase& c) {
  constexpr std::int64_t kBatch = 4;
  ops::ConvShape s;
  const std::int64_t out = (c.size + c.stride - 1) / c.stride;
  const std::int64_t pad = c.kernel / 2;
  s.window = {kBatch,
              {c.size, c.size, c.channels},
              {out, out, c.channels},
              c.kernel,
              c.kernel,
              c.stride,
              c.stride,
              pad,
              pad};
  s.pad_bottom = (out - 1) * c.stride + c.kernel - c.size - pad;
  s.pad_right = s.pad_bottom;
  s.groups = c.groups;
  return s;
}

/// Source of the kernels: the default backend's choice, our own kernels (the weight gradient of
/// depthwise convolutions, or narrow groups merged to 16 channels), or the vendor's.
enum class Whose { Chosen, Own, Vendor };

std::unique_ptr<ops::LinearOp> prepare(const ops::ConvShape& s, DType type, ops::Passes passes,
                                       Whose whose) {
  if (whose == Whose::Chosen) return ops::make_default_backend()->convolution(s, type, passes);
  const auto vendor = std::make_unique<ops::Backend>(ops::make_vendor(), ops::ScratchCaps{},
                                                     ops::Choice::VendorOnly);
  if (whose == Whose::Vendor) return vendor->convolution(s, type, passes);
  if (ops::is_depthwise(s)) {
    return ops::make_by_pass(ops::kOnlyWeight, ops::make_depthwise_gradient(s, type),
                             vendor->convolution(s, type, passes - ops::kOnlyWeight));
  }
  const std::int64_t merged = std::max<std::int64_t>(16 * s.groups / s.window.in.c, 1);
  return ops::make_merged_groups(s, merged, type,
                                 vendor->convolution(ops::merged_shape(s, merged), type, passes));
}

/// Image bytes per second, so that rates can be compared independently of the number of products.
template <class T>
void image_traffic(State& state, const ops::ConvShape& s, Pass pass, Whose whose) {
  const ops::Passes passes = passes_of(pass);
  BoundConvolution<T> bound(s, passes, prepare(s, device::dtype_of<T>(), passes, whose));
  measure(state, traffic<T>(s.window.in_elements() + s.window.out_elements(), 1),
          [&](const ExecutionSpace& space) { bound.run(space, pass); });
}

/// Depthwise and grouped convolutions with each available kernel.
void add_grouped(const Suite& suite) {
  for (const DType type : {DType::F32, DType::BF16}) {
    for (const GroupedCase& c : kGroupedCases) {
      const ops::ConvShape s = grouped_shape(c);
      for (const auto& [whose, by] :
           {std::pair{Whose::Chosen, "chosen"}, std::pair{Whose::Own, "own"},
            std::pair{Whose::Vendor, "vendor"}}) {
        for (const auto& [pass, name] :
             {std::pair{Pass::Forward, "y"}, std::pair{Pass::BackwardInput, "dx"},
              std::pair{Pass::BackwardWeight, "dw"}}) {
          const std::string full =
              fmt::format("grouped/{}/{}/{} {}", name_of(type), c.name, name, by);
          if (type == DType::F32) suite.add(full, image_traffic<float>, s, pass, whose);
          if (type == DType::BF16) suite.add(full, image_traffic<bfloat16>, s, pass, whose);
        }
      }
    }
  }
}

/// The number of threads: the argument that Google Benchmark did not consume. 0 if it is invalid.
int threads_of(int argc, char** argv) {
  if (argc == 1) return 1;
  return argc == 2 ? std::max(0, parse_number<int>(argv[1]).value_or(0)) : 0;
}

int run(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const int threads = threads_of(argc, argv);
  if (threads == 0) {
    fmt::print(stderr, "usage: ops_bench [--benchmark_filter=REGEX ..] [THREADS]\n");
    return 2;
  }
  const device::Environment environment(threads);
  benchmark::AddCustomContext("environment", device::describe_environment());
  const Suite suite(threads);
  add_network(suite, resnet20());
  add_network(suite, resnet50());
  add_grouped(suite);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  try {
    return millrace::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
