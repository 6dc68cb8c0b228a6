// SPDX-License-Identifier: Apache-2.0
#include "comm/transport.hpp"

#include <sys/resource.h>

#include "comm/open_mpi.hpp"
#include "comm/route.hpp"
#include "comm/world.hpp"
#include "tests/support/test.hpp"

namespace millrace::comm {
namespace {

void copy(std::byte* to, const std::byte* from, std::int64_t bytes) {
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

TEST(TransportTest, ARankThatIsPlayedAloneTalksToItself) {
  const World world;
  const auto transport = make_transport_alone(world, 3, {.copy_within = copy});
  const std::array<std::byte, 2> sent = {std::byte{1}, std::byte{2}};
  std::array<std::byte, 2> received = {};
  const int send = transport->prepare_send(sent.data(), 2, 3, 7);
  const int receive = transport->prepare_receive(received.data(), 2, 3, 7);
  transport->start(receive);
  EXPECT_FALSE(transport->done(receive));
  transport->start(send);
  transport->wait(receive);
  EXPECT_EQ(received, sent);
}

TEST(TransportTest, ARankThatIsPlayedAloneHearsNothingAndNeverWaits) {
  const World world;
  const auto transport = make_transport_alone(world, 3, {.copy_within = copy});
  std::array<std::byte, 2> memory = {std::byte{5}, std::byte{6}};
  const std::array<std::byte, 2> before = memory;
  const int send = transport->prepare_send(memory.data(), 2, 0, 7);
  const int receive = transport->prepare_receive(memory.data(), 2, 2, 7);
  for (int round = 0; round < 3; ++round) {
    transport->start(receive);
    transport->start(send);
    EXPECT_TRUE(transport->done(receive));
    transport->wait(receive);
    transport->wait(send);
  }
  EXPECT_EQ(memory, before);
}

// ---- route --------------------------------------------------------------------------------------

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

// ---- eager messages -----------------------------------------------------------------------------

constexpr const char* kLimit = "OMPI_MCA_btl_tcp_eager_limit";
constexpr const char* kRoom = "OMPI_MCA_btl_tcp_max_send_size";

std::string value_of(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

TEST(EagerMessagesTest, AMessageOfOneMebibyteFitsWithItsHeader) {
  prefer_eager_messages();
  EXPECT_EQ(value_of(kLimit), "1049600");
  EXPECT_EQ(value_of(kRoom), value_of(kLimit)) << "a received message fits into its memory";
  unsetenv(kLimit);
  unsetenv(kRoom);
}

TEST(EagerMessagesTest, ValuesOfTheUserStay) {
  for (const char* const name : {kLimit, kRoom}) {
    setenv(name, "4096", 1);
    prefer_eager_messages();
    EXPECT_EQ(value_of(name), "4096");
    EXPECT_EQ(value_of(name == kLimit ? kRoom : kLimit), "") << "one alone may not fit";
    unsetenv(name);
  }
}

// ---- patience -----------------------------------------------------------------------------------

/// How often this thread has given up its core of its own accord.
long sleeps_so_far() {
  rusage usage = {};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

constexpr int kPauses = 100;

long sleeps_in(Patience patience) {
  const long before = sleeps_so_far();
  for (int i = 0; i < kPauses; ++i) patience.pause();
  return sleeps_so_far() - before;
}

TEST(PatienceTest, SleepsOnlyWhereCoresAreSharedAndNotForMessagesAboutToArrive) {
  EXPECT_EQ(sleeps_in(Patience(false)), 0);
  EXPECT_GE(sleeps_in(Patience(true)), kPauses / 2);
  Patience shortly(true);
  const long before = sleeps_so_far();
  for (int i = 0; i < 10; ++i) shortly.pause();
  EXPECT_EQ(sleeps_so_far() - before, 0);
}

}  // namespace
}  // namespace millrace::comm
