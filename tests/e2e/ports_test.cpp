// SPDX-License-Identifier: Apache-2.0
#include <signal.h>

#include "job.hpp"
#include "run_tables.hpp"

namespace millrace::test {
namespace {

/// Inodes of the TCP sockets of this machine that wait for connections from others.
std::set<std::string> sockets_open_to_others() {
  std::set<std::string> inodes;
  for (const char* const table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream rows(table);
    for (std::string row; std::getline(rows, row);) {
      std::istringstream words(row);
      std::string number, local, remote, state, skipped, inode;
      words >> number >> local >> remote >> state;
      for (int column = 4; column < 9; ++column) words >> skipped;
      words >> inode;
      constexpr const char* kListens = "0A";
      constexpr const char* kLoopback = "0100007F";  // 127.0.0.1, last byte first
      if (state == kListens && !local.starts_with(kLoopback)) inodes.insert(inode);
    }
  }
  return inodes;
}

bool listens(pid_t process) {
  const std::set<std::string> open = sockets_open_to_others();
  const auto files = fs::path("/proc") / std::to_string(process) / "fd";
  for (const auto& file : fs::directory_iterator(files)) {
    std::error_code gone;
    const std::string target = fs::read_symlink(file, gone).string();
    constexpr std::string_view kSocket = "socket:[";
    if (target.starts_with(kSocket) &&
        open.contains(target.substr(kSocket.size(), target.size() - kSocket.size() - 1)))
      return true;
  }
  return false;
}

TEST(PortsTest, RanksOfOneMachineOpenNone) {
  const TemporaryDirectory directory;
  Job job(usual_training(
      directory / "run",
      "--batch-size 8 --iterations 100000 --no-validation --disable-checkpoints --replicas 2"));
  ASSERT_TRUE(job.wait_for("Memory: ")) << job.output();
  for (const int rank : {0, 1}) {
    const pid_t process = process_of_rank(directory / "run", rank);
    ASSERT_GT(process, 0) << rank;
    EXPECT_FALSE(listens(process)) << "rank " << rank;
  }
  job.send(SIGTERM);
  EXPECT_EQ(job.wait().code, 75) << job.output();
}

}  // namespace
}  // namespace millrace::test
