// SPDX-License-Identifier: Apache-2.0
#include "device/environment.hpp"

#include <cfenv>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "device/compat.hpp"
#include "device/tensor.hpp"
#include "device/vendor_scope.hpp"
#include "tests/support/expect_error.hpp"

namespace millrace::device {
namespace {

TEST(Environment, DescribesWhatEqualBitsNeed) {
  const std::string text = describe_environment();
  const bool one = ExecutionSpace().concurrency() == 1;
  test::expect_in(text, {ExecutionSpace::name(), one ? ", 1 thread; " : " threads; ", "; Kokkos "});
#ifdef MILLRACE_ONEDNN
  test::expect_in(text, {"; oneDNN "});
#endif
  EXPECT_EQ(text, describe_environment());
}

struct Touch {
  int* counts;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { Kokkos::atomic_add(&counts[i], 1); }
};

TEST(Parallel, RunsEveryItemOnce) {
  const ExecutionSpace space;
  Kokkos::View<int*, MemorySpace> counts("counts", 1001);
  parallel("touch", space, 1000, Touch{counts.data()});
  parallel("touch nothing", space, 0, Touch{counts.data()});
  fence(space);
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), counts);
  for (std::size_t i = 0; i < 1000; ++i) ASSERT_EQ(host(i), 1) << i;
  EXPECT_EQ(host(1000), 0);
}

struct Halve {
  const float* from;
  float* to;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { to[i] = 0.5f * from[i]; }
};

TEST(Subnormals, AreZeroInKernels) {
  const ExecutionSpace space;
  constexpr std::size_t kNumber = 1000;
  Kokkos::View<float*, Kokkos::HostSpace> numbers("numbers", kNumber);
  numbers(0) = std::numeric_limits<float>::min();
  for (std::size_t i = 1; i < kNumber; ++i) numbers(i) = std::numeric_limits<float>::denorm_min();
  const auto from = Kokkos::create_mirror_view_and_copy(MemorySpace(), numbers);
  const Kokkos::View<float*, MemorySpace> to("halves", kNumber);
  parallel("halve", space, static_cast<std::int64_t>(kNumber), Halve{from.data(), to.data()});
  fence(space);
  const auto halves = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), to);
  for (std::size_t i = 0; computes_on_cores() && i < kNumber; ++i) ASSERT_EQ(halves(i), 0.0f) << i;
  EXPECT_NE(std::bit_cast<std::uint32_t>(numbers(1)), 0u) << "copies keep their bits";
}

/// Half of the smallest normal number, computed when it runs.
float half_of_smallest() {
  volatile float number = std::numeric_limits<float>::min();
  number = 0.5f * number;
  return number;
}

bool is_zero(float number) { return std::bit_cast<std::uint32_t>(number) == 0; }

TEST(Subnormals, AreZeroInThreadsThatAreStartedAndNoLongerThanAsked) {
  bool inherited = false;
  std::thread([&] { inherited = is_zero(half_of_smallest()); }).join();
  EXPECT_TRUE(inherited);
  std::fenv_t before;
  ASSERT_EQ(std::fegetenv(&before), 0);
  ASSERT_EQ(std::fesetenv(FE_DFL_ENV), 0);
  EXPECT_FALSE(is_zero(half_of_smallest()));
  {
    const SubnormalsAsZero flushed;
    EXPECT_TRUE(is_zero(half_of_smallest()));
  }
  EXPECT_FALSE(is_zero(half_of_smallest()));
  ASSERT_EQ(std::fesetenv(&before), 0);
}

TEST(Dispatch, NamesTheUnsupportedType) {
  EXPECT_EQ(dispatch(DType::F32, []<class T>() { return sizeof(T); }), 4u);
  EXPECT_EQ(dispatch(DType::BF16, []<class T>() { return sizeof(T); }), 2u);
  EXPECT_EQ(dispatch(DType::F16, []<class T>() { return dtype_of<T>(); }), DType::F16);
  EXPECT_EQ(message_of(ErrorKind::Internal, [] { dispatch(DType::U8, []<class T>() {}); }),
            "no kernels for storage type uint8");
}

TEST(VendorScope, NestsEndsAndIsOfOneThread) {
  EXPECT_FALSE(VendorScope::inside());
  {
    const VendorScope outer;
    {
      const VendorScope inner;
      EXPECT_TRUE(VendorScope::inside());
    }
    EXPECT_TRUE(VendorScope::inside());
    std::atomic<bool> others = true;
    std::thread([&] { others = VendorScope::inside(); }).join();
    EXPECT_FALSE(others);
  }
  EXPECT_FALSE(VendorScope::inside());
}

// The kernel's list of what the processor has.
TEST(Environment, SlowProductsAreIntelsWithoutTiles) {
  std::ifstream file("/proc/cpuinfo");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!computes_on_cores() || text.find("\nflags") == std::string::npos)
    GTEST_SKIP() << "kernels do not run on a processor whose flags /proc/cpuinfo lists";
  const auto has = [&](const char* word) { return text.find(word) != std::string::npos; };
  EXPECT_EQ(has_slow_bfloat16(), has("GenuineIntel") && has(" avx512_bf16") && !has(" amx_bf16"));
}

}  // namespace
}  // namespace millrace::device
