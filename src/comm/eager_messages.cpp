// SPDX-License-Identifier: Apache-2.0
#include "comm/eager_messages.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>

namespace millrace::comm {

// The answer to an announcement waits behind the bytes that go its way, so that two ranks that send
// to each other take turns; and the message waits until both ranks look at their messages.
// A message that is not announced is received into memory of max_send_size bytes, one for each
// peer. Open MPI 4 does not check that it fits, so nobody sets one of the two alone.
void prefer_eager_messages() {
  constexpr std::array kNames = {"OMPI_MCA_btl_tcp_eager_limit", "OMPI_MCA_btl_tcp_max_send_size"};
  constexpr std::int64_t kHeader = 1024;  // MPI's own, at most
  const auto is_set = [](const char* name) { return std::getenv(name) != nullptr; };
  if (std::any_of(kNames.begin(), kNames.end(), is_set)) return;
  for (const char* const name : kNames)
    ::setenv(name, std::to_string(kEagerBytes + kHeader).c_str(), 0);
}

}  // namespace millrace::comm
