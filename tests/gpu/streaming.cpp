// SPDX-License-Identifier: Apache-2.0
//
// Which share of the copy bandwidth of this device millrace's own streaming kernels reach.
//
//   gpu_streaming [--batch N | --small] [THREADS]
//
// A copy within device memory, in the queue of the same execution space, and a kernel take turns. A
// turn is timed by the clock of the device, over several launches. A round's share is the rate of
// the kernel over that of the copy; the medians of all rounds are printed. Bytes are those that a
// kernel must read and write at least: every activation, gradient, weight and slot once, without
// scratch, statistics and other arrays of a few values a channel or a tensor. A copy has twice
// those of its source. The last line names the smallest share. The batch is 256 if not given, which
// takes 5 GB. --small runs one round on small sizes, whose shares say nothing. THREADS is for cores
// (default 1), where a copy is made by one thread.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/image_records.hpp"
#include "core/percentile.hpp"
#include "core/random.hpp"
#include "core/text.hpp"
#include "device/arena.hpp"
#include "device/compat.hpp"
#include "device/environment.hpp"
#include "device/queues.hpp"
#include "ops/channels.hpp"
#include "ops/elementwise.hpp"
#include "ops/linear.hpp"
#include "ops/norm.hpp"
#include "ops/optimiser.hpp"
#include "ops/pool.hpp"
#include "ops/prepare_images.hpp"
#include "ops/wider_kernels.hpp"

namespace millrace::gpu {
namespace {

using device::ExecutionSpace;
using Launch = std::function<void(const ExecutionSpace&)>;

constexpr double kBar = 0.85;

/// The sizes of a network's largest activations. The first ones are those of ResNet-50 with 256
/// images: 56 x 56 x 256 behind its first blocks.
struct Sizes {
  std::int64_t batch = 256;
  std::int64_t side = 56;
  std::int64_t channels = 256;
  std::int64_t parameters = 25'557'032;
  [[nodiscard]] std::int64_t rows() const { return batch * side * side; }
  [[nodiscard]] std::int64_t elements() const { return rows() * channels; }
};

/// The memory of one kernel, with values in it, and the bytes that it must move at least.
class Memory {
 public:
  explicit Memory(const Sizes& of) : sizes(of) {}

  /// Numbers that are read from end to end, written, or both; the rest is not counted.
  template <class T>
  T* reads(std::int64_t elements) {
    return add<T>(elements, 1);
  }
  template <class T>
  T* writes(std::int64_t elements) {
    return add<T>(elements, 1);
  }
  template <class T>
  T* updates(std::int64_t elements, float lowest = -1.0f) {
    return add<T>(elements, 2, lowest);
  }
  template <class T>
  T* others(std::int64_t elements) {
    return add<T>(elements, 0);
  }
  template <class Record>
  Record* records(const std::vector<Record>& all) {
    const auto bytes = static_cast<std::int64_t>(all.size() * sizeof(Record));
    std::byte* const at = arenas_.emplace_back(bytes).at(0);
    device::copy_to_device(at, reinterpret_cast<const std::byte*>(all.data()), bytes);
    return reinterpret_cast<Record*>(at);
  }
  /// Numbers of one activation.
  [[nodiscard]] std::int64_t n() const { return sizes.elements(); }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

  Sizes sizes;

 private:
  /// Filled with values between `lowest` and 1, or with all bytes, that repeat. Counters and flags
  /// stay zeros.
  template <class T>
  T* add(std::int64_t elements, int times, float lowest = -1.0f) {
    constexpr std::int64_t kDifferent = 1 << 16;
    const std::int64_t bytes = elements * static_cast<std::int64_t>(sizeof(T));
    bytes_ += times * bytes;
    std::byte* const at = arenas_.emplace_back(bytes).at(0);
    if constexpr (!std::is_same_v<T, std::uint32_t>) {
      const RandomStream stream(0, RandomPurpose::SyntheticData);
      std::vector<T> host(static_cast<std::size_t>(std::min(elements, kDifferent)));
      for (std::size_t i = 0; i < host.size(); ++i) {
        const std::uint32_t word = stream.block(0, i / 4)[i % 4];
        if constexpr (std::is_same_v<T, std::uint8_t>)
          host[i] = static_cast<T>(word);
        else
          host[i] = store_as<T>(lowest + (1.0f - lowest) * uniform01(word));
      }
      auto filled = static_cast<std::int64_t>(host.size() * sizeof(T));
      device::copy_to_device(at, reinterpret_cast<const std::byte*>(host.data()), filled);
      for (std::int64_t more = 0; filled < bytes; filled += more) {
        more = std::min(filled, bytes - filled);
        device::copy_within(at + filled, at, more);
      }
    }
    return reinterpret_cast<T*>(at);
  }

  std::int64_t bytes_ = 0;
  std::deque<device::Arena> arenas_;
};

/// Makes a kernel in a memory that exists as long: not all of them fit at once.
struct Recipe {
  std::string name;
  std::function<Launch(Memory&)> make;
};

/// Recipes whose names begin with a storage type.
struct List {
  std::string type;
  std::vector<Recipe>& recipes;
  void add(const std::string& name, std::function<Launch(Memory&)> make) const {
    recipes.push_back({type + ' ' + name, std::move(make)});
  }
};

// ---- one element after the other ----------------------------------------------------------------

template <class T>
void add_elementwise(const List& list) {
  for (const auto& [name, fn] :
       {std::pair{"relu", Activation::Relu}, std::pair{"swish", Activation::Swish}}) {
    list.add(std::string(name) + " forward", [fn = fn](Memory& m) -> Launch {
      return [n = m.n(), fn, x = m.reads<T>(m.n()), y = m.writes<T>(m.n())](const auto& space) {
        ops::activation_forward<T>(space, y, x, n, fn);
      };
    });
    list.add(std::string(name) + " backward", [fn = fn](Memory& m) -> Launch {
      return [n = m.n(), fn, dy = m.reads<T>(m.n()), x = m.reads<T>(m.n()),
              dx = m.writes<T>(m.n())](const auto& space) {
        ops::activation_backward<T>(space, dx, dy, x, n, fn);
      };
    });
  }
  list.add("add and relu", [](Memory& m) -> Launch {
    return [n = m.n(), a = m.reads<T>(m.n()), b = m.reads<T>(m.n()), y = m.writes<T>(m.n())](
               const auto& space) { ops::add_forward<T>(space, y, a, b, n, Activation::Relu); };
  });
  list.add("sum of gradients", [](Memory& m) -> Launch {
    return [n = m.n(), a = m.reads<T>(m.n()), b = m.reads<T>(m.n()), sum = m.writes<T>(m.n())](
               const auto& space) { ops::add_gradients<T>(space, sum, a, b, n); };
  });
  list.add("accumulate", [](Memory& m) -> Launch {
    return [n = m.n(), part = m.reads<T>(m.n()), total = m.updates<float>(m.n())](
               const auto& space) { ops::accumulate<T>(space, total, part, n, false); };
  });
}

template <class T>
void add_conversions(const List& list) {
  list.add("from float32", [](Memory& m) -> Launch {
    return [n = m.n(), x = m.reads<float>(m.n()), y = m.writes<T>(m.n())](const auto& space) {
      ops::convert<T>(space, y, x, n);
    };
  });
  list.add("to float32", [](Memory& m) -> Launch {
    return [n = m.n(), x = m.reads<T>(m.n()), y = m.writes<float>(m.n())](const auto& space) {
      ops::widen<T>(space, y, x, n);
    };
  });
}

// ---- norms --------------------------------------------------------------------------------------

/// What kernels of a norm need beside activations.
struct NormExtras {
  explicit NormExtras(Memory& m)
      : shape(ops::batch_norm_shape(m.sizes.rows(), m.sizes.channels)),
        statistics(m.others<float>(shape.statistics_floats())),
        coefficients(m.others<float>(shape.coefficient_floats())),
        gamma(m.others<float>(shape.channels)),
        beta(m.others<float>(shape.channels)),
        gradients(m.others<float>(2 * shape.channels)),
        scratch{m.others<float>(shape.scratch_floats()),
                m.others<std::uint32_t>(shape.counters())} {
    ops::clear_counters({}, scratch.counters, shape.counters());
  }
  ops::NormShape shape;
  float *statistics, *coefficients, *gamma, *beta, *gradients;
  ops::NormScratch scratch;
};

template <class T>
void add_norm_forward(const List& list) {
  list.add("norm statistics", [](Memory& m) -> Launch {
    return [x = m.reads<T>(m.n()), e = NormExtras(m)](const auto& space) {
      ops::norm_statistics<T>(space, e.shape, e.statistics, {}, e.scratch, x, 1e-5f);
    };
  });
  for (const bool skips : {false, true})
    list.add(skips ? "norm, add and relu" : "norm and relu", [skips](Memory& m) -> Launch {
      return [x = m.reads<T>(m.n()), skip = skips ? m.reads<T>(m.n()) : nullptr,
              mask = skips ? m.writes<std::uint8_t>(m.n() / 8) : nullptr, y = m.writes<T>(m.n()),
              e = NormExtras(m)](const auto& space) {
        ops::norm_apply<T>(space, e.shape, y, x, skip, e.statistics, e.gamma, e.beta,
                           Activation::Relu, mask);
      };
    });
  list.add("norm, norm of shortcut and relu", [](Memory& m) -> Launch {
    return
        [x = m.reads<T>(m.n()), skip = m.reads<T>(m.n()), mask = m.writes<std::uint8_t>(m.n() / 8),
         y = m.writes<T>(m.n()), e = NormExtras(m)](const auto& space) {
          ops::norm_apply<T>(space, e.shape, y, x, skip, e.statistics, e.gamma, e.beta,
                             Activation::Relu, mask, {e.statistics, e.gamma, e.beta});
        };
  });
}

/// Behind `fn`.
template <class T>
Launch backward_sums(Memory& m, ops::NormBackwardReduce<T> args, Activation fn) {
  args.dy = m.reads<T>(m.n());
  args.x = m.reads<T>(m.n());
  const NormExtras e(m);
  args.statistics = e.statistics;
  args.gamma = e.gamma;
  args.beta = e.beta;
  args.dgamma = e.gradients;
  args.dbeta = e.gradients + e.shape.channels;
  args.coefficients = e.coefficients;
  args.scratch = e.scratch;
  args.fn = fn;
  return [args, shape = e.shape](const auto& space) {
    ops::norm_backward_reduce<T>(space, shape, args);
  };
}

/// With a skip, a mask is read and the gradient of the sum is written in addition. Behind most
/// additions of ResNet-50 there are two gradients.
template <class T>
void add_norm_backward(const List& list) {
  list.add("norm backward, sums",
           [](Memory& m) -> Launch { return backward_sums<T>(m, {}, Activation::Relu); });
  for (const bool two : {false, true})
    list.add(two ? "norm, add backward, two gradients" : "norm, add backward, sums",
             [two](Memory& m) -> Launch {
               ops::NormBackwardReduce<T> args;
               args.skip_used = true;
               if (two) args.dy2 = m.reads<T>(m.n());
               args.mask = m.reads<std::uint8_t>(m.n() / 8);
               args.dz = m.writes<T>(m.n());
               return backward_sums<T>(m, args, Activation::Relu);
             });
  list.add("norm backward", [](Memory& m) -> Launch {
    return [dy = m.reads<T>(m.n()), x = m.reads<T>(m.n()), dx = m.writes<T>(m.n()),
            e = NormExtras(m)](const auto& space) {
      ops::norm_backward_apply<T>(space, e.shape, dx, dy, x, e.coefficients, e.statistics, e.gamma,
                                  e.beta, Activation::Relu);
    };
  });
}

/// What EfficientNet does around squeeze and excitation, whose operands are computed from the
/// norm's input (ops/inlined_norm.hpp).
template <class T>
void add_excitation(const List& list) {
  const auto excitation = [](Memory& m) {
    const std::int64_t factors = m.sizes.batch * m.sizes.channels;
    return ops::Excitation<T>{m.others<T>(factors), m.others<T>(factors),
                              m.sizes.side * m.sizes.side};
  };
  const auto inlined = [](const NormExtras& e) {
    return ops::InlinedNorm{e.statistics,        e.gamma,          e.beta,
                            e.shape.instances(), e.shape.channels, Activation::Swish};
  };
  list.add("norm, swish and factors", [=](Memory& m) -> Launch {
    return [x = m.reads<T>(m.n()), y = m.writes<T>(m.n()), factors = excitation(m),
            e = NormExtras(m)](const auto& space) {
      ops::norm_apply<T>(space, e.shape, y, x, nullptr, e.statistics, e.gamma, e.beta,
                         Activation::Swish, nullptr, {}, factors);
    };
  });
  list.add("means of norm and swish", [=](Memory& m) -> Launch {
    return [s = m.sizes, x = m.reads<T>(m.n()), y = m.others<T>(m.sizes.batch * m.sizes.channels),
            norm = inlined(NormExtras(m))](const auto& space) {
      ops::global_average_forward<T>(space, s.batch, {s.side, s.side, s.channels}, y, x, norm);
    };
  });
  list.add("gradient of factors", [=](Memory& m) -> Launch {
    const Sizes& s = m.sizes;
    return [shape = ops::ScaleShape{s.batch, s.side * s.side, s.channels}, x = m.reads<T>(m.n()),
            dy = m.reads<T>(m.n()), dscale = m.others<T>(s.batch * s.channels),
            norm = inlined(NormExtras(m))](const auto& space) {
      ops::scale_backward<T>(space, shape, nullptr, dscale, dy, x, nullptr, norm);
    };
  });
  list.add("factors backward, sums", [=](Memory& m) -> Launch {
    ops::NormBackwardReduce<T> args;
    args.excitation = excitation(m);
    return backward_sums<T>(m, args, Activation::Swish);
  });
  list.add("factors backward", [=](Memory& m) -> Launch {
    return [dy = m.reads<T>(m.n()), x = m.reads<T>(m.n()), dx = m.writes<T>(m.n()),
            factors = excitation(m), e = NormExtras(m)](const auto& space) {
      ops::norm_backward_apply<T>(space, e.shape, dx, dy, x, e.coefficients, e.statistics, e.gamma,
                                  e.beta, Activation::Swish, factors);
    };
  });
}

/// Windows of 3x3 and 5x5 on each channel.
template <class T>
void add_depthwise(const List& list) {
  enum Pass { Forward, Input, Weight };
  for (const std::int64_t k : {3, 5})
    for (const auto& [name, pass] : {std::pair{"forward", Forward}, std::pair{"backward", Input},
                                     std::pair{"weight gradient", Weight}})
      list.add(
          fmt::format("depthwise {}x{} {}", k, k, name), [k, pass = pass](Memory& m) -> Launch {
            const Shape image{m.sizes.side, m.sizes.side, m.sizes.channels};
            const ops::ConvShape shape{
                .window = {m.sizes.batch, image, image, k, k, 1, 1, k / 2, k / 2},
                .pad_bottom = k / 2,
                .pad_right = k / 2,
                .groups = image.c};
            constexpr DType kType = device::dtype_of<T>();
            const std::shared_ptr<ops::LinearOp> op =
                pass == Weight ? ops::make_depthwise_gradient(shape, kType)
                               : ops::make_depthwise_pixels(shape, kType);
            op->bind({.kernel = reinterpret_cast<std::byte*>(m.others<T>(shape.kernel_elements())),
                      .dkernel = m.others<float>(shape.kernel_elements()),
                      .scratch = reinterpret_cast<std::byte*>(
                          m.others<float>(op->bytes().scratch / 4 + 1))});
            auto* const x = reinterpret_cast<std::byte*>(m.reads<T>(m.n()));
            auto* const y = reinterpret_cast<std::byte*>(m.reads<T>(m.n()));
            return [=](const auto& space) {
              if (pass == Forward) op->forward(space, y, x);
              if (pass == Input) op->backward_input(space, x, y);
              if (pass == Weight) op->backward_weight(space, y, x, true);
            };
          });
}

// ---- windows and images -------------------------------------------------------------------------

/// The pool behind ResNet-50's first convolution, 3x3 by 2: four times the pixels, a quarter of the
/// channels.
ops::WindowShape stem_pool(const Sizes& s) {
  return {s.batch,
          {2 * s.side, 2 * s.side, s.channels / 4},
          {s.side, s.side, s.channels / 4},
          3,
          3,
          2,
          2,
          1,
          1};
}

template <class T>
void add_max_pool(const List& list) {
  for (const bool norm : {false, true}) {
    if (norm && device::kOnCores) continue;
    list.add(norm ? "max pool of norm and relu" : "max pool forward", [norm](Memory& m) -> Launch {
      const ops::WindowShape w = stem_pool(m.sizes);
      const std::int64_t c = w.in.c;
      const ops::InlinedNorm inlined{norm ? m.others<float>(2 * c) : nullptr,
                                     m.others<float>(c),
                                     m.others<float>(c),
                                     1,
                                     c,
                                     Activation::Relu};
      return [w, inlined, x = m.reads<T>(w.in_elements()), y = m.writes<T>(w.out_elements()),
              winner = m.writes<std::uint8_t>(w.out_elements())](const auto& space) {
        ops::max_pool_forward<T, std::uint8_t>(space, w, y, winner, x, inlined);
      };
    });
  }
  list.add("max pool backward", [](Memory& m) -> Launch {
    const ops::WindowShape w = stem_pool(m.sizes);
    auto* const winner = m.reads<std::uint8_t>(w.out_elements());
    {
      Memory forward(m.sizes);
      const ExecutionSpace space;
      ops::max_pool_forward<T, std::uint8_t>(space, w, forward.writes<T>(w.out_elements()), winner,
                                             forward.reads<T>(w.in_elements()));
      device::fence(space);
    }
    return [w, winner, dy = m.reads<T>(w.out_elements()),
            dx = m.writes<T>(w.in_elements())](const auto& space) {
      ops::max_pool_backward<T, std::uint8_t>(space, w, dx, dy, winner);
    };
  });
}

/// 2x2 by 2, and over whole images.
template <class T>
void add_average_pools(const List& list) {
  const auto halved = [](const Sizes& s) {
    return ops::WindowShape{.batch = s.batch,
                            .in = {s.side, s.side, s.channels},
                            .out = {s.side / 2, s.side / 2, s.channels},
                            .kernel_h = 2,
                            .kernel_w = 2,
                            .stride_h = 2,
                            .stride_w = 2};
  };
  list.add("average pool forward", [=](Memory& m) -> Launch {
    const ops::WindowShape w = halved(m.sizes);
    return [w, x = m.reads<T>(w.in_elements()), y = m.writes<T>(w.out_elements())](
               const auto& space) { ops::average_pool_forward<T>(space, w, y, x, false); };
  });
  list.add("average pool backward", [=](Memory& m) -> Launch {
    const ops::WindowShape w = halved(m.sizes);
    return [w, dy = m.reads<T>(w.out_elements()), dx = m.writes<T>(w.in_elements())](
               const auto& space) { ops::average_pool_backward<T>(space, w, dx, dy, false); };
  });
  list.add("global average forward", [](Memory& m) -> Launch {
    return [s = m.sizes, x = m.reads<T>(m.n()),
            y = m.writes<T>(m.sizes.batch * m.sizes.channels)](const auto& space) {
      ops::global_average_forward<T>(space, s.batch, {s.side, s.side, s.channels}, y, x);
    };
  });
  list.add("global average backward", [](Memory& m) -> Launch {
    return [s = m.sizes, dy = m.reads<T>(m.sizes.batch * m.sizes.channels),
            dx = m.writes<T>(m.n())](const auto& space) {
      ops::global_average_backward<T>(space, s.batch, {s.side, s.side, s.channels}, dx, dy);
    };
  });
}

/// Bytes of images of four times the side, 224 x 224 for ResNet-50, as they are or in blocks.
template <class T>
void add_images(const List& list) {
  for (const bool blocks : {false, true})
    list.add(blocks ? "images in blocks" : "images", [blocks](Memory& m) -> Launch {
      const Sizes& s = m.sizes;
      ops::PrepareImagesShape shape{.batch = s.batch, .image = {4 * s.side, 4 * s.side, 3}};
      if (blocks) shape.stored = Shape{2 * s.side, 2 * s.side, ops::kMatrixChannels};
      const std::int64_t pixels = s.batch * shape.image.pixels();
      PixelScaling scaling;
      for (float& scale : scaling.scale) scale = 0.017f;
      scaling.real.bottom = static_cast<std::int32_t>(shape.image.h);
      scaling.real.right = static_cast<std::int32_t>(shape.image.w);
      return [shape, bytes = m.reads<std::uint8_t>(3 * pixels),
              y = m.writes<T>(s.batch * shape.shape_in_memory().elements()),
              scalings = m.records(std::vector<PixelScaling>(static_cast<std::size_t>(s.batch),
                                                             scaling))](const auto& space) {
        ops::prepare_bytes<T>(space, shape, y, bytes, scalings, nullptr);
      };
    });
}

// ---- weights ------------------------------------------------------------------------------------

const ops::ParameterSpan* add_spans(Memory& m, std::int64_t* number) {
  std::vector<ops::ParameterSpan> spans;
  for (std::int64_t at = 0; at < m.sizes.parameters; at += ops::kSpanElements)
    spans.push_back({.offset = at,
                     .elements = std::min(ops::kSpanElements, m.sizes.parameters - at),
                     .decays = true,
                     .first = at});
  *number = std::ssize(spans);
  return m.records(spans);
}

/// Weights of type M, for float32 with the copy in 16 bits that kernels read.
template <class M>
void add_update(const List& list, const std::string& name, UpdateRule rule) {
  list.add(name, [rule](Memory& m) -> Launch {
    const std::int64_t n = m.sizes.parameters;
    ops::UpdateArrays<M> arrays;
    arrays.gradients = m.reads<float>(n);
    arrays.weights = m.updates<M>(n);
    arrays.velocity = m.updates<M>(n);
    if (rule == UpdateRule::Adam) arrays.mean_square = m.updates<M>(n, 0.0f);
    if constexpr (std::is_same_v<M, float>)
      arrays.copy = reinterpret_cast<std::byte*>(m.writes<bfloat16>(n));
    else
      arrays.stochastic = true;
    arrays.spans = add_spans(m, &arrays.num_spans);
    const ops::StepState* const step =
        m.records(std::vector<ops::StepState>{{.values = {.update = {.rate = 1e-3f,
                                                                     .momentum = 0.9f,
                                                                     .weight_decay = 1e-4f,
                                                                     .gradient_scale = 0.5f,
                                                                     .epsilon = 1e-3f}}}});
    return [=](const auto& space) { ops::update_weights<M>(space, rule, step, arrays); };
  });
}

/// What is done with float32 weights and gradients.
void add_weights(const List& list) {
  add_update<float>(list, "momentum", UpdateRule::Momentum);
  add_update<float>(list, "Adam", UpdateRule::Adam);
  list.add("copy of weights", [](Memory& m) -> Launch {
    ops::UpdateArrays<float> arrays;
    arrays.weights = m.reads<float>(m.sizes.parameters);
    arrays.copy = reinterpret_cast<std::byte*>(m.writes<bfloat16>(m.sizes.parameters));
    arrays.spans = add_spans(m, &arrays.num_spans);
    return [=](const auto& space) { ops::refresh_copies<float>(space, arrays); };
  });
  list.add("finite gradients", [](Memory& m) -> Launch {
    return [n = m.sizes.parameters, gradients = m.reads<float>(m.sizes.parameters),
            flag = m.others<std::uint32_t>(1)](const auto& space) {
      ops::flag_non_finite<float>(space, n, gradients, flag);
    };
  });
  list.add("sum of two replicas", [](Memory& m) -> Launch {
    return [n = m.sizes.parameters, other = m.reads<float>(m.sizes.parameters),
            sum = m.updates<float>(m.sizes.parameters)](const auto& space) {
      ops::add_parts(space, n, sum, other, n, 0, 2);
    };
  });
}

template <class T>
void add_all(const List& list) {
  add_elementwise<T>(list);
  add_norm_forward<T>(list);
  add_norm_backward<T>(list);
  add_max_pool<T>(list);
  add_average_pools<T>(list);
  add_images<T>(list);
}

std::vector<Recipe> all_recipes() {
  std::vector<Recipe> recipes;
  const List narrow{"bfloat16", recipes};
  add_all<bfloat16>(narrow);
  if constexpr (!device::kOnCores) {  // programs for cores have none of these
    add_excitation<bfloat16>(narrow);
    add_depthwise<bfloat16>(narrow);
  }
  add_conversions<bfloat16>(narrow);
  add_update<bfloat16>(narrow, "momentum, stochastic", UpdateRule::Momentum);
  const List wide{"float32", recipes};
  add_all<float>(wide);
  add_weights(wide);
  return recipes;
}

// ---- measuring ----------------------------------------------------------------------------------

struct Settings {
  Sizes sizes;
  int rounds = 7;
  int threads = 1;
};

std::optional<Settings> settings_of(std::span<const char* const> words) {
  Settings settings;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i];
    if (word == "--batch" && i + 1 < words.size()) {
      const auto batch = parse_number<int>(words[++i]);
      if (!batch || *batch < 1) return std::nullopt;
      settings.sizes.batch = *batch;
    } else if (word == "--small") {
      settings.sizes = {.batch = 2, .side = 8, .channels = 32, .parameters = 10'000};
      settings.rounds = 1;
    } else if (const auto threads = parse_number<int>(word); threads && *threads > 0) {
      settings.threads = *threads;
    } else {
      return std::nullopt;
    }
  }
  return settings;
}

/// Bytes per second of a turn of launches, each of which moves `bytes`.
double rate_of(const ExecutionSpace& space, std::int64_t bytes, const Launch& launch) {
  constexpr int kLaunches = 5;
  device::Event begin;
  device::Event end;
  device::settle(space);
  begin.mark(space);
  for (int i = 0; i < kLaunches; ++i) launch(space);
  device::settle(space);
  end.mark(space);
  end.wait();
  const std::int64_t nanoseconds = std::max<std::int64_t>(begin.nanoseconds_until(end), 1);
  return 1e9 * kLaunches * static_cast<double>(bytes) / static_cast<double>(nanoseconds);
}

void measure_all(const Settings& settings) {
  // A copy of as much memory as the largest activation in float32.
  Memory copied(settings.sizes);
  const auto* const from = reinterpret_cast<const std::byte*>(copied.reads<float>(copied.n()));
  auto* const to = reinterpret_cast<std::byte*>(copied.writes<float>(copied.n()));
  const Launch copy = [=, bytes = copied.bytes() / 2](const ExecutionSpace& space) {
    device::queue_copy(space, device::Direction::Within, to, from, bytes);
  };
  std::vector<double> copies;
  std::string slowest;
  double smallest = std::numeric_limits<double>::infinity();
  int reached = 0;
  const std::vector<Recipe> recipes = all_recipes();
  fmt::print("{:<40} {:>11} {:>8} {:>8}\n", "kernel", "MB a launch", "GB/s", "share");
  for (const Recipe& recipe : recipes) {
    const ExecutionSpace space;
    Memory memory(settings.sizes);
    const Launch kernel = recipe.make(memory);
    std::vector<double> rates;
    std::vector<double> shares;
    for (int round = -1; round < settings.rounds; ++round) {  // the first one warms up
      const double of_copy = rate_of(space, copied.bytes(), copy);
      const double of_kernel = rate_of(space, memory.bytes(), kernel);
      if (round < 0) continue;
      copies.push_back(of_copy);
      rates.push_back(of_kernel);
      shares.push_back(of_kernel / of_copy);
    }
    const double share = percentile_of(shares, 0.5);
    fmt::print("{:<40} {:>11.3f} {:>8.1f} {:>6.1f} %\n", recipe.name,
               1e-6 * static_cast<double>(memory.bytes()), 1e-9 * percentile_of(rates, 0.5),
               100.0 * share);
    (void)std::fflush(stdout);  // for whoever ends this program before its last line
    if (share >= kBar) ++reached;
    if (share >= smallest) continue;
    smallest = share;
    slowest = recipe.name;
  }
  fmt::print(
      "smallest share {:.1f} %: {}; {} of {} kernels reach {:.0f} % of a copy's {:.0f} GB/s\n",
      100.0 * smallest, slowest, reached, recipes.size(), 100.0 * kBar,
      1e-9 * percentile_of(copies, 0.5));
}

int run(std::span<const char* const> words) {
  const std::optional<Settings> settings = settings_of(words);
  if (!settings) {
    fmt::print(stderr, "usage: gpu_streaming [--batch N | --small] [THREADS]\n");
    return 2;
  }
  const device::Environment environment(settings->threads);
  fmt::print("{}\n", device::describe_environment());
  measure_all(*settings);
  return 0;
}

}  // namespace
}  // namespace millrace::gpu

int main(int argc, char** argv) {
  try {
    return millrace::gpu::run({argv + 1, static_cast<std::size_t>(argc - 1)});
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpu_streaming: {}\n", error.what());
    return 1;
  }
}
