// SPDX-License-Identifier: Apache-2.0
//
// Our own kernels give the same bits for any number of threads, because the cut into work items
// depends only on the shape. Kokkos cannot change its number of threads within a process, so this
// program runs its tests of kernels again with other numbers and compares all that they read from
// the device.
#include "tests/ops/device_values.hpp"
#include "tests/support/process.hpp"

namespace millrace::ops {
namespace {

constexpr const char* kMark = "threads and digest: ";

/// Prints "<threads> <digest of all results>" at the end.
class PrintDigest final : public testing::Environment {
 public:
  void TearDown() override {
    if (Sha256* const digest = digest_of_results())
      std::printf("%s%d %s\n", kMark, device::ExecutionSpace().concurrency(),
                  digest->hex_digest().c_str());
  }
};
[[maybe_unused]] const auto* const kRegistered =
    testing::AddGlobalTestEnvironment(new PrintDigest);  // GoogleTest deletes it

/// Kernels of ours, at least one test of each.
constexpr const char* kKernels =
    "Table/Norm.*Chunks*:Table/Norm.*C300*:Table/Pool.*:SoftmaxLoss/*:Elementwise/*:Channels/*"
    ":Drop/*:Optimiser/UpdateRuleTest.*:FlagNonFinite.*:SquareGradients.*:AddParts.*:PrepareImages/"
    "*"
    ":Table/Linear.Order*Depthwise*Own*:Table/Linear.Order*K3C*Own*:Winograd.*";

/// What those tests print in a process with `threads` threads.
std::string in_a_process_with(int threads) {
  const std::string self = fs::read_symlink("/proc/self/exe").string();
  const test::ProcessResult result = test::run_process(
      "/usr/bin/env", {"MILLRACE_TEST_DIGEST=1", "MILLRACE_TEST_THREADS=" + std::to_string(threads),
                       self, std::string("--gtest_filter=") + kKernels});
  EXPECT_EQ(result.code, 0) << result.output;
  const std::size_t at = result.output.find(kMark);
  if (at == std::string::npos) return "";
  const std::size_t begin = at + std::string(kMark).size();
  return result.output.substr(begin, result.output.find('\n', begin) - begin);
}

TEST(ThreadCount, DoesNotChangeBits) {
  if (device::ExecutionSpace().concurrency() == 1) GTEST_SKIP() << "there is one thread only";
  const std::string one = in_a_process_with(1);
  ASSERT_TRUE(one.starts_with("1 ")) << one;
  for (const int threads : {2, 3})
    EXPECT_EQ(in_a_process_with(threads), std::to_string(threads) + one.substr(1));
}

}  // namespace
}  // namespace millrace::ops
