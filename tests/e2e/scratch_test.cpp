// SPDX-License-Identifier: Apache-2.0
//
// --available-memory-proportion: limits of scratch choose the library's kernels, whose sums have
// another order each. The layout must not.
#include <regex>

#include "millrace.hpp"

namespace millrace::test {
namespace {

// Kernels without scratch take most of the time, so batches are small.
const Words kFew =
    "--batch-size 2 --gradients-to-accumulate 2 --iterations 1 --no-validation "
    "--available-memory-proportion";
/// A few bytes: only kernels without scratch keep to it.
const std::string kNothing = "1e-9";
const Words kTwoStages = "--shards 2 --pipeline-splits b2/0";

std::string digest_with(const Words& limit, const Words& layout) {
  const TemporaryDirectory directory;
  const ProcessResult result = train(directory / "run", kFew + limit + layout);
  EXPECT_EQ(result.code, 0) << result.output;
  return result.code == 0 ? digest_of(directory / "run") : "";
}

/// The digest, and the bytes of the device. Trained once.
const std::pair<std::string, std::string>& of_one_stage(const std::string& limit) {
  static std::map<std::string, std::pair<std::string, std::string>> known;
  auto& [digest, bytes] = known[limit];
  if (!digest.empty()) return known[limit];
  const TemporaryDirectory directory;
  const ProcessResult result = train(directory / "run", kFew + Words{limit});
  EXPECT_EQ(result.code, 0) << result.output;
  std::smatch match;
  EXPECT_TRUE(std::regex_search(result.output, match, std::regex("Memory: [^(]*\\((\\d+) and")))
      << result.output;
  digest = digest_of(directory / "run");
  bytes = match[1];
  return known[limit];
}

TEST(ScratchLimitTest, OneNumberGivesTheSameBitsInEveryLayout) {
  EXPECT_NE(of_one_stage(kNothing), of_one_stage("1")) << "the limit has no effect";
  for (const std::string& limit : {std::string("1"), std::string("1e-6"), kNothing})
    for (const Words& layout :
         {kTwoStages, Words("--shards 4 --pipeline-splits b1/0/conv2 b2/0 b3/0")})
      EXPECT_EQ(digest_with(Words{limit}, layout), of_one_stage(limit).first)
          << limit << ", " << layout.back();
}

// Each stage has kernels of its own then: the cuts decide which op has which limit, and so do
// the bits. What else a layout is made of still does not matter.
TEST(ScratchLimitTest, NumbersForEachStageHoldForTheirCuts) {
  const Words first = Words{kNothing, kNothing, "1 1"};
  const std::string digest = digest_with(first, kTwoStages);
  EXPECT_EQ(digest_with(first, kTwoStages + "--ranks 1 --pipeline-schedule GPipe --xla-recompute"),
            digest);
  // Which ops have kernels with scratch depends on the processor: these cuts give nearly all of
  // them to one stage, or to the other.
  EXPECT_NE(digest_with(first, "--shards 2 --pipeline-splits b1/0"),
            digest_with(first, "--shards 2 --pipeline-splits b3/0/conv2"));
  const Words alike = Words{kNothing, kNothing, kNothing, kNothing};
  EXPECT_EQ(digest_with(alike, kTwoStages), of_one_stage(kNothing).first);
}

}  // namespace
}  // namespace millrace::test
