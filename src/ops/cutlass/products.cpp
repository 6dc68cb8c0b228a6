// SPDX-License-Identifier: Apache-2.0
#include "ops/cutlass/products.hpp"

#include <cutlass/cutlass.h>
#include <cutlass/epilogue/thread/linear_combination.h>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/epilogue/collective/detail.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include <type_traits>

#include "core/error.hpp"
#include "device/vendor_scope.hpp"

namespace millrace::ops::tiles {

/// The threads that have computed a tile, as a team.
class WarpGroup {
 public:
  CUTLASS_DEVICE explicit WarpGroup(int rank) : rank_(rank) {}
  [[nodiscard]] CUTLASS_DEVICE int rank() const { return rank_; }
  [[nodiscard]] CUTLASS_DEVICE static constexpr int size() { return kThreads; }
  /// The two groups of a block compute tiles in turns, so they share one barrier.
  CUTLASS_DEVICE void wait() const {
    cutlass::arch::NamedBarrier::sync(kThreads,
                                      cutlass::arch::ReservedNamedBarriers::EpilogueBarrier);
  }

 private:
  int rank_;
};

namespace {

// What a product does with the rows of a tile, which are in shared memory.

/// Writes them.
template <class T>
struct Copy {
  T* out;
  template <int W>
  CUTLASS_DEVICE void run(const WarpGroup& team, const Tile& tile, const Rows<T>& rows,
                          float*) const {
    const int lane = team.rank() % kStrips * W;
    for (int row = team.rank() / kStrips; row < tile.rows(); row += kParts) {
      const LanesIn<W, T> in(rows.at(row, lane));
      LanesOut<W, T> to(out + tile.offset(row, lane));
      for (int j = 0; j < W; ++j) to.set(j, in[j]);
    }
  }
};

template <class T>
struct Moments {
  T* out;
  float* left;
  template <int W>
  CUTLASS_DEVICE void run(const WarpGroup& team, const Tile& tile, const Rows<T>& rows,
                          float* shared) const {
    sum_tile<W>(team, tile, TileMoments<T, true>{tile, rows, out}, left, shared);
  }
};

template <class T, Activation kFn, bool kSkip, bool kTwo>
struct Gradients {
  NormBackwardReduce<T> in;
  T* out;
  float* left;
  template <int W>
  CUTLASS_DEVICE void run(const WarpGroup& team, const Tile& tile, const Rows<T>& rows,
                          float* shared) const {
    const TileGradients<T, kFn, kSkip, kTwo, kSkip, true> body{tile, rows, in, out};
    sum_tile<W>(team, tile, body, left, shared);
  }
};

/// What becomes of a tile of float32 sums in registers: they are rounded into shared memory, and
/// summed and written from there, 8 or 4 neighboring values at a time.
template <class T, class Element, int W, class Use>
class Epilogue {
 public:
  using EpilogueSchedule = cutlass::epilogue::NoSmemWarpSpecialized;
  using DispatchPolicy = EpilogueSchedule;
  using ThreadEpilogueOp = cutlass::epilogue::thread::LinearCombination<Element, 1>;  // not used
  using ElementAccumulator = float;
  using ElementC = Element;
  using ElementD = Element;
  using StrideC = cutlass::detail::TagToStrideC_t<cutlass::layout::RowMajor>;
  using StrideD = StrideC;

  static constexpr int kColumns = kStrips * W;
  /// Values from a row to the next. 16 bytes more than they need: neighboring rows begin in other
  /// banks.
  static constexpr int kStep = kColumns + 8;
  struct SharedStorage {
    alignas(16) T rows[kRows * kStep];
    alignas(16) float sums[shared_floats(kColumns)];
  };
  struct Arguments {
    TileShape shape;
    Use use;
  };
  using Params = Arguments;

  template <class Problem>
  static Params to_underlying_arguments(const Problem&, const Arguments& arguments, void*) {
    return arguments;
  }
  template <class Problem>
  static std::size_t get_workspace_size(const Problem&, const Arguments&) {
    return 0;
  }
  template <class Problem>
  static cutlass::Status initialize_workspace(const Problem&, const Arguments&, void*, cudaStream_t,
                                              cutlass::CudaHostAdapter* = nullptr) {
    return cutlass::Status::kSuccess;
  }
  template <class Problem>
  static bool can_implement(const Problem&, const Arguments&) {
    return true;
  }

  CUTLASS_HOST_DEVICE explicit Epilogue(const Params& params) : params_(params) {}

  template <class Problem, class Block, class At, class Values, class Mma, class Left>
  CUTLASS_DEVICE void operator()(Problem, Block block, At at, const Values& values, Mma mma, Left,
                                 int thread, char* memory) {
    SharedStorage& shared = *reinterpret_cast<SharedStorage*>(memory);
    const auto places =
        mma.get_slice(thread).partition_C(cute::make_identity_tensor(cute::take<0, 2>(block)));
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < cute::size(values); i += 2) {  // two neighbors of a row
      LanesOut<2, T> pair(shared.rows + cute::get<0>(places(i)) * kStep + cute::get<1>(places(i)));
      pair.set(0, store_as<T>(values(i)));
      pair.set(1, store_as<T>(values(i + 1)));
    }
    const WarpGroup team(thread);
    team.wait();
    const Tile tile{params_.shape, cute::get<0>(at), cute::get<1>(at) * kColumns};
    params_.use.template run<W>(team, tile, {shared.rows, kStep}, shared.sums);
  }

 private:
  Params params_;
};

template <class T>
using ElementOf =
    std::conditional_t<std::is_same_v<T, bfloat16>, cutlass::bfloat16_t, cutlass::half_t>;

/// The kernel whose tiles have strips of W channels. One group of warps multiplies while the other
/// sums and writes; a thread more asks for operands.
template <class T, int W, Result kResult, class Use>
struct ProductOf {
  using Element = ElementOf<T>;
  using KernelLayout = std::conditional_t<kResult == Result::Y, cutlass::layout::ColumnMajor,
                                          cutlass::layout::RowMajor>;
  using Block = cute::Shape<cute::Int<kRows>, cute::Int<kStrips * W>, cute::_64>;
  using Cluster = cute::Shape<cute::_1, cute::_1, cute::_1>;
  using Epilogue = cutlass::epilogue::collective::detail::Sm90TmaWarpSpecializedAdapter<
      tiles::Epilogue<T, Element, W, Use>>;
  static constexpr int kAlignment = 8;
  using Stages = cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
      sizeof(typename Epilogue::TensorStorage))>;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, cutlass::layout::RowMajor,
      kAlignment, Element, KernelLayout, kAlignment, float, Block, Cluster, Stages,
      cutlass::gemm::KernelTmaWarpSpecializedPingpong>::CollectiveOp;
  using Kernel =
      cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue>;
  using Device = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
};

template <class T, int W, Result kResult, class Use>
void launch(const device::ExecutionSpace& space, const TileShape& shape,
            const Operands<T>& operands, const Use& use) {
  using Product = ProductOf<T, W, kResult, Use>;
  using Element = typename Product::Element;
  const auto rows = static_cast<int>(shape.rows);
  const auto columns = static_cast<int>(shape.channels);
  const auto inner = static_cast<int>(operands.inner);
  typename Product::Kernel::Arguments arguments;
  arguments.mode = cutlass::gemm::GemmUniversalMode::kGemm;
  arguments.problem_shape = {rows, columns, inner, 1};
  arguments.mainloop.ptr_A = reinterpret_cast<const Element*>(operands.rows);
  arguments.mainloop.dA = {operands.inner, cute::_1{}, 0};
  arguments.mainloop.ptr_B = reinterpret_cast<const Element*>(operands.kernel);
  if constexpr (kResult == Result::Y)
    arguments.mainloop.dB = {operands.inner, cute::_1{}, 0};
  else
    arguments.mainloop.dB = {cute::_1{}, shape.channels, 0};
  arguments.epilogue = {shape, use};
  const device::VendorScope vendor;
  typename Product::Device product;
  cutlass::Status status = product.initialize(arguments, nullptr, space.cuda_stream());
  if (status == cutlass::Status::kSuccess) status = product.run(space.cuda_stream());
  if (status != cutlass::Status::kSuccess)
    fail(ErrorKind::Internal, "a product of {} x {} x {} by CUTLASS: {}", rows, columns, inner,
         cutlass::cutlassGetStatusString(status));
}

/// In tiles as wide as the shape has them.
template <Result kResult, class T, class Use>
void multiply_for(const device::ExecutionSpace& space, const TileShape& shape,
                  const Operands<T>& operands, const Use& use) {
  constexpr int kMost = kMostColumns / kStrips;
  if (shape.columns() == kMostColumns)
    launch<T, kMost, kResult>(space, shape, operands, use);
  else
    launch<T, kMost / 2, kResult>(space, shape, operands, use);
}

}  // namespace

bool has_products() {
  static const bool has = [] {
    if (!wants_products()) return false;
    int device = 0;
    int generation = 0;
    const bool known = cudaGetDevice(&device) == cudaSuccess &&
                       cudaDeviceGetAttribute(&generation, cudaDevAttrComputeCapabilityMajor,
                                              device) == cudaSuccess;
    constexpr int kHopper = 9;
    if (!known || generation != kHopper)
      fail(
          ErrorKind::Config,
          "MILLRACE_PRODUCTS is 1, but own products need a GPU of compute capability 9.x, and this "
          "one has {}.x: set MILLRACE_PRODUCTS=0",
          generation);
    return true;
  }();
  return has;
}

template <class T>
void multiply(const device::ExecutionSpace& space, const TileShape& shape,
              const Operands<T>& operands, Result result, T* out) {
  if (result == Result::Y)
    multiply_for<Result::Y>(space, shape, operands, Copy<T>{out});
  else
    multiply_for<Result::Dx>(space, shape, operands, Copy<T>{out});
}

template <class T>
void multiply_moments(const device::ExecutionSpace& space, const TileShape& shape,
                      const Operands<T>& operands, T* y, float* left) {
  multiply_for<Result::Y>(space, shape, operands, Moments<T>{y, left});
}

template <class T>
void multiply_gradients(const device::ExecutionSpace& space, const TileShape& shape,
                        const Operands<T>& operands, const NormBackwardReduce<T>& in, T* out,
                        float* left) {
  using enum Activation;
  if (in.skip_used)
    multiply_for<Result::Dx>(space, shape, operands, Gradients<T, Relu, true, true>{in, out, left});
  else
    multiply_for<Result::Dx>(space, shape, operands,
                             Gradients<T, Relu, false, false>{in, out, left});
}

MILLRACE_PRODUCTS(bfloat16)
MILLRACE_PRODUCTS(float16)

}  // namespace millrace::ops::tiles
