// SPDX-License-Identifier: Apache-2.0
//
// A damaged checkpoint of a run on two ranks is not loaded, and verification names the bad tensors.
#include "faults.hpp"
#include "support/file_bytes.hpp"

namespace millrace::test {
namespace {

/// Position of a tensor's bytes in a file.
struct Extent {
  std::string tensor;
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// Finds tensors by searching for their bytes, which are stored unchanged. Tensors of zeros have no
/// known position.
std::vector<Extent> extents_in(const std::vector<std::byte>& file,
                               const io::CheckpointReader& all) {
  std::vector<Extent> extents;
  for (const io::TensorInfo& info : all.tensors()) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(info.bytes()));
    all.read(info.name, bytes);
    if (std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; })) continue;
    // Not std::ranges::search, which clang 14 cannot compile with GCC 12's library.
    const auto at = std::search(file.begin(), file.end(), bytes.begin(), bytes.end());
    if (at == file.end()) continue;
    const auto begin = static_cast<std::size_t>(at - file.begin());
    extents.push_back({info.name, begin, begin + bytes.size()});
  }
  return extents;
}

// What io::verify finds of flips, cuts and parts of others is tested where it is
// (io.CheckpointTest).
TEST(DamageTest, TensorsOfTheSecondRankAreNamedAndNothingIsLoaded) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  expect_end(
      millrace(short_training(2, 1) + on_ranks(2) + Words{"--optimiser momentum --run-dir", run}),
      0);
  const fs::path checkpoint = run / "checkpoints/ckpt-2";
  const fs::path part = checkpoint / "part-001.h5";
  std::vector<std::byte> bytes = file_bytes(part);
  const std::vector<Extent> extents = extents_in(bytes, io::CheckpointReader(checkpoint));
  EXPECT_GT(extents.size(), 5u);
  for (const Extent& extent : extents)
    bytes[extent.begin + (extent.end - extent.begin) / 2] ^= std::byte{4};
  write_file(part, bytes);
  const ProcessResult result = millrace({"inspect", checkpoint.string(), "--verify"});
  EXPECT_EQ(result.code, 6) << result.output;
  for (const Extent& extent : extents) expect_in(result.output, {extent.tensor});
  EXPECT_EQ(millrace({"validate --restore-path", checkpoint.string()}).code, 6);
}

}  // namespace
}  // namespace millrace::test
