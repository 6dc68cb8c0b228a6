// SPDX-License-Identifier: Apache-2.0
//
// In place of nccl_messages.cpp where there is no NCCL.
#include "comm/rank_messages.hpp"
#include "core/error.hpp"

namespace millrace::comm {

std::unique_ptr<RankMessages> make_nccl_messages(const World&, const DeviceMemory&) {
  fail(ErrorKind::Internal, "this build has no NCCL");
}
std::string nccl_version() { return ""; }
void prepare_for_nccl() {}

}  // namespace millrace::comm
