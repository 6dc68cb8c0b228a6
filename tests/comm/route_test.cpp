// SPDX-License-Identifier: Apache-2.0
#include "comm/route.hpp"

#include "tests/support/test.hpp"

namespace millrace::comm {
namespace {

/// Two ranks on each of two machines, on GPUs of their own.
std::vector<RankFacts> four() {
  return {{"2.28.9", "0000:17:00.0 of a"},
          {"2.28.9", "0000:65:00.0 of a"},
          {"2.28.9", "0000:17:00.0 of b"},
          {"2.28.9", "0000:65:00.0 of b"}};
}

TEST(RouteTest, RanksWithGpusOfTheirOwnUseNccl) {
  EXPECT_EQ(choose_route(four(), Way::Staged), (Route{Way::Nccl, ""}));
}

TEST(RouteTest, WhatNcclRefusesGoesByMpi) {
  std::vector<RankFacts> ranks = four();
  ranks[3].device = ranks[2].device;
  EXPECT_EQ(choose_route(ranks, Way::Staged),
            (Route{Way::Staged, "ranks 2 and 3 share 0000:17:00.0 of b, which NCCL refuses"}));
  EXPECT_EQ(choose_route(ranks, Way::Mpi).way, Way::Mpi);
}

TEST(RouteTest, OneRankThatCannotOrWillNotDecidesForAll) {
  const auto reason = [](auto&& change) {
    std::vector<RankFacts> ranks = four();
    change(ranks[2]);
    const Route route = choose_route(ranks, Way::Staged);
    EXPECT_EQ(route.way, Way::Staged);
    return route.reason;
  };
  EXPECT_EQ(reason([](RankFacts& r) { r.nccl = ""; }), "rank 2 has no NCCL");
  EXPECT_EQ(reason([](RankFacts& r) { r.nccl = "2.19.3"; }),
            "rank 0 has NCCL 2.28.9 and rank 2 has 2.19.3");
  EXPECT_EQ(reason([](RankFacts& r) { r.device = ""; }),
            "it is not known which device rank 2 uses");
  EXPECT_EQ(reason([](RankFacts& r) { r.wants_mpi = true; }), "MILLRACE_MESSAGES=mpi for rank 2");
}

TEST(RouteTest, ARankOfItsOwnCopies) {
  const World world(World::Alone{});
  EXPECT_EQ(describe_routes(world, {}, true), std::vector<std::string>{"within a rank: a copy"});
}

}  // namespace
}  // namespace millrace::comm
