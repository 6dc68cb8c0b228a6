// SPDX-License-Identifier: Apache-2.0
#include "streaming_kernels.hpp"

#include "device/compat.hpp"
#include "ops/elementwise.hpp"
#include "ops/norm.hpp"
#include "ops/optimiser.hpp"
#include "streaming_list.hpp"

namespace millrace::gpu {
namespace {

using device::ExecutionSpace;

// ---- one element after the other ----------------------------------------------------------------

template <class T>
void add_activations(List& list) {
  for (const auto& [name, fn] :
       {std::pair{"relu", Activation::Relu}, std::pair{"swish", Activation::Swish}}) {
    list.add(std::string(name) + " forward", [fn = fn](StreamingKernel& k, const StreamSizes& s) {
      const T* const x = add<T>(k.reads, s.elements());
      T* const y = add<T>(k.writes, s.elements());
      return [=, n = s.elements()](const ExecutionSpace& space) {
        ops::activation_forward<T>(space, y, x, n, fn);
      };
    });
    list.add(std::string(name) + " backward", [fn = fn](StreamingKernel& k, const StreamSizes& s) {
      const T* const dy = add<T>(k.reads, s.elements());
      const T* const x = add<T>(k.reads, s.elements());
      T* const dx = add<T>(k.writes, s.elements());
      return [=, n = s.elements()](const ExecutionSpace& space) {
        ops::activation_backward<T>(space, dx, dy, x, n, fn);
      };
    });
  }
}

template <class T>
void add_sums(List& list) {
  list.add("add and relu", [](StreamingKernel& k, const StreamSizes& s) {
    const T* const a = add<T>(k.reads, s.elements());
    const T* const b = add<T>(k.reads, s.elements());
    T* const y = add<T>(k.writes, s.elements());
    return [=, n = s.elements()](const ExecutionSpace& space) {
      ops::add_forward<T>(space, y, a, b, n, Activation::Relu);
    };
  });
  list.add("sum of gradients", [](StreamingKernel& k, const StreamSizes& s) {
    const T* const a = add<T>(k.reads, s.elements());
    const T* const b = add<T>(k.reads, s.elements());
    T* const sum = add<T>(k.writes, s.elements());
    return [=, n = s.elements()](const ExecutionSpace& space) {
      ops::add_gradients<T>(space, sum, a, b, n);
    };
  });
  list.add("accumulate", [](StreamingKernel& k, const StreamSizes& s) {
    const T* const part = add<T>(k.reads, s.elements());
    float* const total = add<float>(k.updates, s.elements());
    return [=, n = s.elements()](const ExecutionSpace& space) {
      ops::accumulate<T>(space, total, part, n, false);
    };
  });
}

template <class T>
void add_conversions(List& list) {
  list.add("from float32", [](StreamingKernel& k, const StreamSizes& s) {
    const float* const x = add<float>(k.reads, s.elements());
    T* const y = add<T>(k.writes, s.elements());
    return [=, n = s.elements()](const ExecutionSpace& space) { ops::convert<T>(space, y, x, n); };
  });
  list.add("to float32", [](StreamingKernel& k, const StreamSizes& s) {
    const T* const x = add<T>(k.reads, s.elements());
    float* const y = add<float>(k.writes, s.elements());
    return [=, n = s.elements()](const ExecutionSpace& space) { ops::widen<T>(space, y, x, n); };
  });
}

// ---- norms --------------------------------------------------------------------------------------

/// What kernels of a norm need beside activations.
struct NormExtras {
  NormExtras(StreamingKernel& k, const ops::NormShape& shape)
      : statistics(add<float>(k.others, shape.statistics_floats())),
        coefficients(add<float>(k.others, shape.coefficient_floats())),
        gamma(add<float>(k.others, shape.channels)),
        beta(add<float>(k.others, shape.channels)),
        gradients(add<float>(k.others, 2 * shape.channels)),
        scratch{add<float>(k.others, shape.scratch_floats()),
                add<std::uint32_t>(k.others, shape.counters())} {
    ops::clear_counters({}, scratch.counters, shape.counters());
  }
  float* statistics;
  float* coefficients;
  float* gamma;
  float* beta;
  float* gradients;
  ops::NormScratch scratch;
};

ops::NormShape norm_of(const StreamSizes& s) { return ops::batch_norm_shape(s.rows(), s.channels); }

template <class T>
void add_norm_forward(List& list) {
  list.add("norm statistics", [](StreamingKernel& k, const StreamSizes& s) {
    const T* const x = add<T>(k.reads, s.elements());
    const NormExtras extras(k, norm_of(s));
    return [=, shape = norm_of(s)](const ExecutionSpace& space) {
      ops::norm_statistics<T>(space, shape, extras.statistics, {}, extras.scratch, x, 1e-5f);
    };
  });
  list.add("norm and relu", [](StreamingKernel& k, const StreamSizes& s) {
    const T* const x = add<T>(k.reads, s.elements());
    T* const y = add<T>(k.writes, s.elements());
    const NormExtras extras(k, norm_of(s));
    return [=, shape = norm_of(s)](const ExecutionSpace& space) {
      ops::norm_apply<T>(space, shape, y, x, nullptr, extras.statistics, extras.gamma, extras.beta,
                         Activation::Relu);
    };
  });
  list.add("norm, add and relu", [](StreamingKernel& k, const StreamSizes& s) {
    const T* const x = add<T>(k.reads, s.elements());
    const T* const skip = add<T>(k.reads, s.elements());
    T* const y = add<T>(k.writes, s.elements());
    const NormExtras extras(k, norm_of(s));
    return [=, shape = norm_of(s)](const ExecutionSpace& space) {
      ops::norm_apply<T>(space, shape, y, x, skip, extras.statistics, extras.gamma, extras.beta,
                         Activation::Relu);
    };
  });
}

/// With a skip, the output is read and the gradient of the sum is written in addition.
enum class Skip { No, Yes };

template <class T>
ops::NormBackwardReduce<T> reduce_arguments(StreamingKernel& k, const StreamSizes& s, Skip skip) {
  ops::NormBackwardReduce<T> args;
  args.dy = add<T>(k.reads, s.elements());
  args.x = add<T>(k.reads, s.elements());
  args.skip_used = skip == Skip::Yes;
  if (args.skip_used) {
    args.y = add<T>(k.reads, s.elements());
    args.dz = add<T>(k.writes, s.elements());
  }
  const NormExtras extras(k, norm_of(s));
  args.statistics = extras.statistics;
  args.gamma = extras.gamma;
  args.beta = extras.beta;
  args.dgamma = extras.gradients;
  args.dbeta = extras.gradients + s.channels;
  args.coefficients = extras.coefficients;
  args.scratch = extras.scratch;
  args.fn = Activation::Relu;
  return args;
}

template <class T>
void add_norm_backward(List& list) {
  for (const auto& [name, skip] : {std::pair{"norm backward, sums", Skip::No},
                                   std::pair{"norm, add backward, sums", Skip::Yes}}) {
    list.add(name, [skip = skip](StreamingKernel& k, const StreamSizes& s) {
      return [args = reduce_arguments<T>(k, s, skip), shape = norm_of(s)](
                 const ExecutionSpace& space) { ops::norm_backward_reduce<T>(space, shape, args); };
    });
  }
  list.add("norm backward", [](StreamingKernel& k, const StreamSizes& s) {
    const T* const dy = add<T>(k.reads, s.elements());
    const T* const x = add<T>(k.reads, s.elements());
    T* const dx = add<T>(k.writes, s.elements());
    const NormExtras extras(k, norm_of(s));
    return [=, shape = norm_of(s)](const ExecutionSpace& space) {
      ops::norm_backward_apply<T>(space, shape, dx, dy, x, extras.coefficients, extras.statistics,
                                  extras.gamma, extras.beta, Activation::Relu);
    };
  });
}

// ---- weights ------------------------------------------------------------------------------------

const ops::ParameterSpan* add_spans(StreamingKernel& k, std::int64_t parameters,
                                    std::int64_t* number) {
  std::vector<ops::ParameterSpan> spans;
  for (std::int64_t at = 0; at < parameters; at += ops::kSpanElements)
    spans.push_back({.offset = at,
                     .elements = std::min(ops::kSpanElements, parameters - at),
                     .decays = true,
                     .first = at});
  *number = std::ssize(spans);
  return add_records(k.others, spans);
}

/// Weights of type M, for float32 with the copy in 16 bits that kernels read.
template <class M>
ops::UpdateArrays<M> update_arrays(StreamingKernel& k, std::int64_t parameters, UpdateRule rule) {
  ops::UpdateArrays<M> arrays;
  arrays.gradients = add<float>(k.reads, parameters);
  arrays.weights = add<M>(k.updates, parameters);
  arrays.velocity = add<M>(k.updates, parameters);
  if (rule == UpdateRule::Adam) arrays.mean_square = add<M>(k.updates, parameters, 0.0f);
  if constexpr (std::is_same_v<M, float>)
    arrays.copy = reinterpret_cast<std::byte*>(add<bfloat16>(k.writes, parameters));
  else
    arrays.stochastic = true;
  arrays.spans = add_spans(k, parameters, &arrays.num_spans);
  return arrays;
}

template <class M>
void add_update(List& list, const std::string& name, UpdateRule rule) {
  list.add(name, [rule](StreamingKernel& k, const StreamSizes& s) {
    const ops::Update numbers{.rate = 1e-3f,
                              .momentum = 0.9f,
                              .weight_decay = 1e-4f,
                              .gradient_scale = 0.5f,
                              .epsilon = 1e-3f};
    return [=, arrays = update_arrays<M>(k, s.parameters, rule)](const ExecutionSpace& space) {
      ops::update_weights<M>(space, rule, numbers, arrays);
    };
  });
}

/// What is done with float32 weights and gradients.
void add_weights(List& list) {
  add_update<float>(list, "momentum", UpdateRule::Momentum);
  add_update<float>(list, "Adam", UpdateRule::Adam);
  list.add("copy of weights", [](StreamingKernel& k, const StreamSizes& s) {
    ops::UpdateArrays<float> arrays;
    arrays.weights = add<float>(k.reads, s.parameters);
    arrays.copy = reinterpret_cast<std::byte*>(add<bfloat16>(k.writes, s.parameters));
    arrays.spans = add_spans(k, s.parameters, &arrays.num_spans);
    return [=](const ExecutionSpace& space) { ops::refresh_copies<float>(space, arrays); };
  });
  list.add("finite gradients", [](StreamingKernel& k, const StreamSizes& s) {
    const float* const gradients = add<float>(k.reads, s.parameters);
    auto* const flag = add<std::uint32_t>(k.others, 1);
    return [=, n = s.parameters](const ExecutionSpace& space) {
      ops::flag_non_finite<float>(space, n, gradients, flag);
    };
  });
  list.add("sum of two replicas", [](StreamingKernel& k, const StreamSizes& s) {
    const float* const other = add<float>(k.reads, s.parameters);
    float* const sum = add<float>(k.updates, s.parameters);
    return [=, n = s.parameters](const ExecutionSpace& space) {
      ops::add_parts(space, n, sum, other, n, 0, 2);
    };
  });
}

template <class T>
void add_all(List& list) {
  add_activations<T>(list);
  add_sums<T>(list);
  add_norm_forward<T>(list);
  add_norm_backward<T>(list);
  add_windows(list, device::dtype_of<T>());
}

std::int64_t sum_of(const std::vector<Buffer>& buffers) {
  std::int64_t sum = 0;
  for (const Buffer& buffer : buffers) sum += buffer.bytes();
  return sum;
}

}  // namespace

std::int64_t StreamingKernel::bytes() const {
  return sum_of(reads) + sum_of(writes) + 2 * sum_of(updates);
}

std::vector<StreamingRecipe> streaming_recipes() {
  List narrow("bfloat16");
  add_all<bfloat16>(narrow);
  add_conversions<bfloat16>(narrow);
  add_update<bfloat16>(narrow, "momentum, stochastic", UpdateRule::Momentum);
  List wide("float32");
  add_all<float>(wide);
  add_weights(wide);
  std::vector<StreamingRecipe> all = std::move(narrow.recipes);
  all.insert(all.end(), wide.recipes.begin(), wide.recipes.end());
  return all;
}

}  // namespace millrace::gpu
