// SPDX-License-Identifier: Apache-2.0
#include "comm/open_mpi.hpp"

#include "tests/support/test.hpp"

namespace millrace::comm {
namespace {

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

}  // namespace
}  // namespace millrace::comm
