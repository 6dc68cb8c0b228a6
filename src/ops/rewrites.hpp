// SPDX-License-Identifier: Apache-2.0
//
// Linear ops that another op computes: a table of when that is so and what becomes of them, which
// the backend applies (ops/backend.cpp).
//
//   rewrite               becomes                                          when
//   stored images         a convolution of images as they are in memory    always
//   gathered pixels       a strided 1x1 convolution with stride 1          measured as faster
//   product               1x1 images: a dense op                           measured as faster
//   own gradient          a depthwise weight gradient by our own loops     measured as faster
//   winograd              3x3 with stride 1 by a quarter of the products   measured as faster, or
//                                                                          no vendor has the pass
//   turned                backward input as a forward pass                 measured as faster
//   merged groups         neighboring narrow groups joined to wide ones    measured as faster
//   widened               16 bits as float32 between conversions           no vendor has the pass
//
// What was measured depends on shape, precision and instruction set, never on a clock in training.
// So the same shapes always run the same kernels, within the same limit of scratch.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <variant>

#include "ops/vendor.hpp"

namespace millrace::ops {

/// What a backend is asked to prepare.
struct LinearRequest {
  std::variant<ConvShape, DenseShape> shape;
  DType type = DType::F32;
  Passes passes;
  std::int64_t cap = std::numeric_limits<std::int64_t>::max();  ///< bytes of scratch
};
/// Prepares the op that computes another one.
using PrepareLinear = std::function<std::unique_ptr<LinearOp>(const LinearRequest&)>;

struct Rewrite {
  enum class When {
    Always,
    Measured,   ///< where the vendor's kernels were compared with the rewritten ones
    Unclaimed,  ///< where no vendor claims the passes
  };
  const char* name;
  When when;
  Passes takes;     ///< others are prepared without this rewrite
  bool also_dense;  ///< of dense ops, too, as_convolution()
  bool (*applies)(const ConvShape& shape, DType type, MeasuredLevel level);
  std::unique_ptr<LinearOp> (*make)(const LinearRequest& asked, const PrepareLinear& prepare);
  std::int64_t (*scratch)(const ConvShape& shape) = nullptr;  ///< at most the cap, if it is known
};

/// The first row that takes some of the passes, or null. Without a level (a vendor that was not
/// measured) there is no measured one.
[[nodiscard]] const Rewrite* find_rewrite(const LinearRequest& asked, Rewrite::When when,
                                          std::optional<MeasuredLevel> level);

/// Combines two ops into one: `first` runs the passes in `firsts`, `second` runs the others. Both
/// are prepared for the same shape, each for its own passes only.
[[nodiscard]] std::unique_ptr<LinearOp> make_by_pass(Passes firsts, std::unique_ptr<LinearOp> first,
                                                     std::unique_ptr<LinearOp> second);

// ---- what rows make, for tests with other numbers

/// Numbers of elements that an op reads and writes.
struct WidenedShape {
  std::int64_t blocks = 1;
  std::int64_t in = 0;   ///< of x, in a block
  std::int64_t out = 0;  ///< of y, in a block
  std::int64_t kernel = 0;
};
/// Number of samples in a block: the largest divisor of `batch` such that the float32 copies of x
/// and y, together `sample_elements` elements per sample, fit into the caches of `threads` cores;
/// at least 1.
[[nodiscard]] std::int64_t samples_in_block(std::int64_t batch, std::int64_t sample_elements,
                                            int threads);
/// Makes an op for the 16-bit type `type` from `wide`, which is prepared for float32 and one block
/// of samples. Errors: Internal, for other types.
[[nodiscard]] std::unique_ptr<LinearOp> make_widened(const WidenedShape& shape, DType type,
                                                     std::unique_ptr<LinearOp> wide);

}  // namespace millrace::ops
