// SPDX-License-Identifier: Apache-2.0
#include "cli/run_hosts.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <span>
#include <vector>

#include "core/text.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/variable.hpp"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

/// Hosts "10.255.9.1", .. (nobody looks up numbers), which answer as long as there is a file of
/// their name. Here they are called by their last digits.
class RunHostsTest : public ::testing::Test {
 protected:
  RunHostsTest() {
    std::ofstream(agent_) << "#!/bin/sh\n[ -e " << directory_.path().string()
                          << "/$1 ] || { echo No way to $1. >&2; exit 255; }\n"
                          << "[ \"$2\" = true ] || echo $1 >> " << (directory_ / "told").string()
                          << "\n";
    fs::permissions(agent_, fs::perms::owner_all);
    for (const int host : {1, 2, 3}) answer(host);
    list("1:2 2:1 3:1");
  }

  static std::string name(int host) { return "10.255.9." + std::to_string(host); }
  void answer(int host) { std::ofstream(directory_ / name(host)) << ""; }
  void fall_silent(int host) { fs::remove(directory_ / name(host)); }
  void list(const std::string& hosts) {
    std::ofstream file(directory_ / "hosts");
    for (const std::string& host : split_list(hosts, ' ')) file << "10.255.9." << host << '\n';
  }
  [[nodiscard]] RunHosts hosts(int ranks) {
    Cluster cluster;
    cluster.file = directory_ / "hosts";
    RunHosts hosts(cluster, ranks);
    hosts.find();
    return hosts;
  }
  [[nodiscard]] static std::string names(std::span<const Host> hosts) {
    std::string names;
    for (const Host& host : hosts) names += host.name.back();
    return names;
  }
  [[nodiscard]] fs::path told() const { return directory_ / "told"; }

 private:
  test::TemporaryDirectory directory_;
  fs::path agent_ = directory_ / "agent";
  test::Variable named_{"OMPI_MCA_plm_rsh_agent", agent_.string()};
};

TEST_F(RunHostsTest, ThoseThatAnswerHaveRoom) {
  RunHosts run = hosts(3);
  EXPECT_EQ(names(run.answering()), "123");
  EXPECT_EQ(run.ranks_on(run.all()), 3) << "no more than the run has";
  fall_silent(1);
  const std::vector<Host> answering = run.answering();
  EXPECT_EQ(names(answering), "23");
  EXPECT_EQ(run.ranks_on(answering), 2);
  EXPECT_EQ(run.refused().at(name(1)), "No way to 10.255.9.1.");
  EXPECT_EQ(names(run.besides(answering)), "1");
  EXPECT_EQ(run.cluster_of(answering)->hosts,
            (std::vector<std::string>{name(2) + ":1", name(3) + ":1"}));
}

TEST_F(RunHostsTest, WhatIsKnownOutlivesANewList) {
  RunHosts run = hosts(4);
  run.at(name(2)).leave_out(std::chrono::seconds(60));
  run.at(name(3)).speed = 0.5;
  EXPECT_EQ(names(run.answering()), "13") << "not asked";
  list("3:2 2:1 4:1");
  run.find();
  EXPECT_EQ(names(run.all()), "324");
  EXPECT_EQ(run.at(name(3)).speed, 0.5);
  EXPECT_EQ(run.at(name(3)).room, 2);
  EXPECT_EQ(names(run.answering()), "3");
  list("3:x");
  ::testing::internal::CaptureStderr();
  run.find();
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("the hosts stay as they were: "),
            std::string::npos);
  EXPECT_EQ(names(run.all()), "324");
}

TEST_F(RunHostsTest, AnswersCountUntilTheyAreForgotten) {
  RunHosts run = hosts(4);
  fall_silent(3);
  run.ask_early();
  EXPECT_EQ(run.unreached({name(2), name(3)}), std::set<std::string>{name(3)});
  fall_silent(2);
  EXPECT_EQ(names(run.answering()), "12") << "2 answered when the ranks gave up";
  EXPECT_EQ(names(run.answering()), "1");
  answer(2);
  run.ask_early();
  run.forget_answers();
  fall_silent(2);
  EXPECT_EQ(names(run.answering()), "1");
  EXPECT_TRUE(run.unreached({}).empty());
}

TEST_F(RunHostsTest, ACommandRunsOnThoseThatAreReached) {
  RunHosts run = hosts(4);
  fall_silent(2);
  run.command(run.all(), "rm x");
  std::ifstream in(told());
  const std::multiset<std::string> hosts(std::istream_iterator<std::string>(in), {});
  EXPECT_EQ(hosts, (std::multiset<std::string>{name(1), name(3)}));
}

}  // namespace
}  // namespace millrace::cli
