// SPDX-License-Identifier: Apache-2.0
#include "comm/transport.hpp"

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

}  // namespace
}  // namespace millrace::comm
