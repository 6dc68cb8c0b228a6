// SPDX-License-Identifier: Apache-2.0
#include "device/environment.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "device/compat.hpp"
#include "device/tensor.hpp"
#include "device/vendor_scope.hpp"

namespace millrace::device {
namespace {

TEST(Environment, DescribesWhatEqualBitsNeed) {
  const std::string text = describe_environment();
  for (const char* part : {ExecutionSpace::name(), " threads; ", "; Kokkos "}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
#ifdef MILLRACE_ONEDNN
  EXPECT_NE(text.find("; oneDNN "), std::string::npos) << text;
#endif
  EXPECT_EQ(text, describe_environment());
}

TEST(Environment, CountsCores) { EXPECT_GE(available_cores(), 1); }

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

TEST(Dispatch, NamesTheUnsupportedType) {
  EXPECT_EQ(dispatch(DType::F32, []<class T>() { return sizeof(T); }), 4u);
  EXPECT_EQ(dispatch(DType::BF16, []<class T>() { return sizeof(T); }), 2u);
  EXPECT_EQ(dispatch(DType::F16, []<class T>() { return dtype_of<T>(); }), DType::F16);
  try {
    dispatch(DType::U8, []<class T>() {});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "no kernels for storage type uint8");
  }
}

TEST(VendorScope, NestsAndEnds) {
  EXPECT_FALSE(VendorScope::inside());
  {
    const VendorScope outer;
    {
      const VendorScope inner;
      EXPECT_TRUE(VendorScope::inside());
    }
    EXPECT_TRUE(VendorScope::inside());
  }
  EXPECT_FALSE(VendorScope::inside());
}

TEST(VendorScope, IsOfOneThread) {
  const VendorScope mine;
  std::atomic<bool> others = true;
  std::thread([&] { others = VendorScope::inside(); }).join();
  EXPECT_FALSE(others);
}

}  // namespace
}  // namespace millrace::device
