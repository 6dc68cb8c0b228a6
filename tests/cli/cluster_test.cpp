// SPDX-License-Identifier: Apache-2.0
#include "cli/cluster.hpp"

#include "cli/host_probe.hpp"
#include "cli/launch.hpp"
#include "comm/world.hpp"
#include "support.hpp"
#include "tests/support/expect_error.hpp"
#include "tests/support/variable.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests

constexpr const char* kTwoWorkers =
    R"({"cluster":{"worker":["worker0:3636","worker1:3636"]},"task":{"type":"worker","index":1}})";

TEST(ClusterTest, TfConfigNamesWorkersAndTask) {
  const Cluster cluster = parse_tf_config(kTwoWorkers);
  EXPECT_EQ(cluster.hosts, (std::vector<std::string>{"worker0", "worker1"}));
  EXPECT_EQ(cluster.task, 1);
}

TEST(ClusterTest, UnderALauncherItsRankIsTheIndex) {
  const auto task_of = [](const char* config, std::map<std::string, std::string> variables) {
    return parse_tf_config(config, environment_of(std::move(variables))).task;
  };
  const char* const without =
      R"({"cluster":{"worker":["worker0:3636","worker1:3636"]},"task":{"type":"worker"}})";
  for (const char* config : {without, kTwoWorkers})
    for (const int rank : {0, 1})
      EXPECT_EQ(task_of(config, {{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
                                 {"OMPI_COMM_WORLD_SIZE", "2"}}),
                rank);
  // Four ranks on each worker.
  EXPECT_EQ(task_of(without, {{"PMI_RANK", "3"}, {"PMI_SIZE", "8"}}), 0);
  EXPECT_EQ(task_of(without, {{"PMI_RANK", "4"}, {"PMI_SIZE", "8"}}), 1);
  // Fewer ranks than workers: rank 0 starts nothing, and all work on their share.
  EXPECT_EQ(task_of(without, {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}), 0);
}

TEST(ClusterTest, MistakesInTfConfigAreNamed) {
  const std::vector<std::pair<std::string, std::string>> table = {
      {"worker0", "is not a JSON object"},
      {R"({"task":{"index":0}})", "cluster.worker is missing"},
      {R"({"cluster":{"worker":["a:1"]}})", "task is missing"},
      {R"({"cluster":{"worker":["a:1"]},"task":{"type":"worker"}})",
       "task.index (mpirun and srun, which number their ranks, replace it) is missing"},
      {R"({"cluster":{"worker":["a:1"]},"task":{"index":3}})",
       "task 3 is out of range: there are 1 workers"},
      {R"({"cluster":{"worker":[7]},"task":{"index":0}})", "a text in cluster.worker"}};
  for (const auto& [text, expected] : table) {
    const Failure failure = failure_of([&text = text] { (void)parse_tf_config(text); });
    EXPECT_EQ(failure.kind, ErrorKind::Usage) << text;
    EXPECT_TRUE(contains(failure.text, expected)) << failure.text;
  }
}

TEST(ClusterTest, TheChiefIsTheFirstWorker) {
  const std::string cluster = R"({"cluster":{"chief":["c:1"],"worker":["a:1","b:1"]},"task":)";
  const Cluster chief = parse_tf_config(cluster + R"({"type":"chief","index":0}})");
  EXPECT_EQ(chief.hosts, (std::vector<std::string>{"c", "a", "b"}));
  EXPECT_EQ(chief.task, 0);
  EXPECT_EQ(parse_tf_config(cluster + R"({"type":"worker","index":1}})").task, 2);
  const std::vector<std::pair<std::string, std::string>> table = {
      {R"({"type":"ps","index":0}})", "task.type is ps, but millrace has no parameter servers"},
      {R"({"type":"evaluator","index":0}})",
       "task.type is evaluator, but the run validates itself"},
      {R"({"type":"cook","index":0}})", "task.type 'cook' is unknown: use worker or chief"},
      {R"({"type":7,"index":0}})", "a text in task.type is missing"},
      {R"({"type":"chief","index":1}})", "task 1 is out of range: there are 1 chiefs"},
      {R"({"type":"worker","index":2}})", "task 2 is out of range: there are 2 workers"}};
  for (const auto& [task, expected] : table) {
    const Failure failure =
        failure_of([&, &task = task] { (void)parse_tf_config(cluster + task); });
    EXPECT_EQ(failure.kind, ErrorKind::Usage) << task;
    EXPECT_TRUE(contains(failure.text, expected)) << failure.text;
  }
}

Patch train_line(std::string_view line) {
  return load_options(Command::Train, words(line), 0, environment_of({}));
}

TEST(ClusterTest, EveryWorkerHasTheReplicasOfTheLine) {
  const auto environment = environment_of({{"TF_CONFIG", kTwoWorkers}});
  const Patch options = train_line("--replicas 4 --distributed");
  const std::optional<Cluster> cluster = cluster_of(options, environment);
  ASSERT_TRUE(cluster);
  EXPECT_EQ(for_all_workers(options, cluster).integer("replicas"), 8);
  const Patch here = train_line("--replicas 4");
  EXPECT_FALSE(cluster_of(here, environment));
  EXPECT_EQ(for_all_workers(here, std::nullopt).integer("replicas"), 4);
}

TEST(ClusterTest, HostsAreFilledOneAfterTheOther) {
  using Hosts = std::vector<std::string>;
  const auto hosts = [](Hosts names, int ranks) {
    Cluster cluster;
    cluster.hosts = std::move(names);
    return hosts_by_rank(cluster, ranks);
  };
  EXPECT_EQ(hosts({"a:1", "b:3"}, 4), (Hosts{"a", "b", "b", "b"}));
  EXPECT_EQ(hosts({"a:2", "b:8"}, 3), (Hosts{"a", "a", "b"}));
  EXPECT_EQ(hosts({"a", "b"}, 3), (Hosts{"a", "a", "b"}));
}

// What Open MPI is told beside the ranks, unless the user has told it otherwise.
TEST(LaunchTest, SettingsOfTheUserStay) {
  if (!comm::is_open_mpi()) GTEST_SKIP() << "settings of Open MPI";
  const std::optional<Cluster> none;
  Cluster cluster;
  cluster.hosts = {"a:1", "b:1"};
  cluster.hang_timeout = 600;
  Cluster hasty = cluster;
  hasty.hang_timeout = 3;
  const struct {
    std::optional<Cluster> cluster;
    const char* name;
    const char* value;  ///< null: not set
  } table[] = {{none, "btl", "self,vader"},
               {cluster, "btl", nullptr},
               {cluster, "oob_tcp_keepalive_time", "600"},
               {hasty, "oob_tcp_keepalive_time", "300"},
               {none, "oob_tcp_keepalive_time", nullptr}};
  for (const auto& [where, name, value] : table) {
    const std::string setting = fmt::format(" --mca {} ", name);
    const std::string line = join(launch_command(2, {}, where), " ");
    if (value == nullptr)
      EXPECT_FALSE(contains(line, setting)) << line;
    else
      EXPECT_TRUE(contains(line, setting + value + ' ')) << line;
    const std::string variable = fmt::format("OMPI_MCA_{}", name);
    setenv(variable.c_str(), "own", 1);
    EXPECT_FALSE(contains(join(launch_command(2, {}, where), " "), setting)) << name;
    unsetenv(variable.c_str());
  }
}

TEST(LaunchTest, CommandNamesHostsPortAndInterface) {
  const Patch options = train_line("--hosts a:8,b --ssh-port 3022 --interface eth1");
  const std::optional<Cluster> cluster = cluster_of(options, environment_of({}));
  ASSERT_TRUE(cluster);
  const std::vector<std::string> line = {"train", "--shards", "2"};
  const std::vector<std::string> command = launch_command(12, line, cluster);
  const auto follows = [&](const std::string& first, const std::string& second) {
    const auto found = std::adjacent_find(
        command.begin(), command.end(),
        [&](const std::string& a, const std::string& b) { return a == first && b == second; });
    return found != command.end();
  };
  EXPECT_TRUE(follows("-n", "12"));
  EXPECT_TRUE(follows("train", "--shards"));
  if (!comm::is_open_mpi()) {
    EXPECT_TRUE(follows("-hosts", "a:8,b:6"));
    return;
  }
  EXPECT_TRUE(follows("-H", "a:8,b:6"));
  EXPECT_TRUE(follows("plm_rsh_args", "-p 3022"));
  EXPECT_TRUE(follows("btl_tcp_if_include", "eth1"));
}

TEST(ClusterTest, AFileNamesHosts) {
  const test::TemporaryDirectory directory;
  const fs::path file = directory / "hosts";
  const auto hosts_of = [&](const std::string& text) {
    std::ofstream(file) << text;
    return cluster_of(train_line("--hosts " + file.string()), environment_of({})).value();
  };
  const Cluster cluster = hosts_of("# all\nnode1\tslots=4  # four\n\n  node2:2\t\r\nnode3\n");
  EXPECT_EQ(cluster.hosts, (std::vector<std::string>{"node1:4", "node2:2", "node3"}));
  EXPECT_EQ(cluster.file, file);
  expect_error(ErrorKind::Usage, {"no file either"},
               [] { (void)cluster_of(train_line("--hosts /nowhere/hosts"), environment_of({})); });
  for (const auto& [text, problem] : {std::pair{"a\nb:0\n", "hosts: 'b:0' is not a host with"},
                                      {"-oProxy=x\n", "hosts: '-oProxy=x' is not a host name"},
                                      {"a slots = 2\n", "hosts: 'slots' in the line of a: write"},
                                      {"a slots=1000000000000\n", "is not a host with its number"},
                                      {"# nobody\n", "hosts: no line names a host"}})
    expect_error(ErrorKind::Usage, {problem}, [&, text = text] { (void)hosts_of(text); });
}

TEST(HostProbeTest, ThisMachineAnswersAndAnAgentIsAsked) {
  const test::TemporaryDirectory directory;
  const fs::path agent = directory / "agent";
  std::ofstream(agent)
      << "#!/bin/sh\n[ \"$1 $2 $3 $5\" = \"-4 -p 3022 true\" ] || exit 9\n"
         "[ $4 = there ] && exit 0\n[ $4 = gone ] && echo Denied. >&2 && exit 255\nexec sleep 60\n";
  fs::permissions(agent, fs::perms::owner_all);
  const test::Variable named("OMPI_MCA_plm_rsh_agent", agent.string() + " : rsh");
  const test::Variable more("OMPI_MCA_plm_rsh_args", "-4");
  Cluster cluster;
  cluster.ssh_port = 3022;
  const std::vector<std::string> hosts = {"there", "gone", "silent", "localhost", "127.0.0.1"};
  HostProbe probe(cluster, hosts);
  probe.wait(std::chrono::seconds(10), {"silent"});
  EXPECT_FALSE(probe.is_over());
  EXPECT_EQ(probe.answered(), (std::set<std::string>{"there", "localhost", "127.0.0.1"}));
  EXPECT_EQ(probe.refused(), (std::map<std::string, std::string>{{"gone", "Denied."}}));
  for (const auto& [interface, reaches] : {std::pair{"none9", false},
                                           {"10.255.9.0/24", false},
                                           {"none9,lo", true},
                                           {"127.0.0.0/8", true}}) {
    cluster.interface = interface;
    EXPECT_EQ(HostProbe(cluster, hosts).is_over(), !reaches) << interface;
  }
}

TEST(LaunchTest, OtherMachinesGetTheSettingsOfNcclAndNotThoseOfOneMachine) {
  if (!comm::is_open_mpi()) GTEST_SKIP() << "another MPI forwards all variables";
  setenv("NCCL_SOCKET_IFNAME", "eth1", 1);
  setenv("NCCL_DEBUG", "WARN", 1);
  setenv("NCCL_HOSTID", "a", 1);
  setenv("NOT_NCCL_DEBUG", "1", 1);
  setenv("CUDA_VISIBLE_DEVICES", "1", 1);
  const std::optional<Cluster> cluster = cluster_of(train_line("--hosts a,b"), environment_of({}));
  const std::string far = join(launch_command(2, {}, cluster), " ");
  const std::string near = join(launch_command(2, {}, std::nullopt), " ");
  const std::string lines = join(environment_lines(), "|");
  for (const char* name : {"NCCL_SOCKET_IFNAME", "NCCL_DEBUG", "NCCL_HOSTID", "NOT_NCCL_DEBUG",
                           "CUDA_VISIBLE_DEVICES"})
    unsetenv(name);
  EXPECT_TRUE(contains(far, " -x NCCL_DEBUG -x NCCL_SOCKET_IFNAME ")) << far;
  for (const char* name : {"NCCL_HOSTID", "NOT_NCCL_DEBUG", "CUDA_VISIBLE_DEVICES"})
    EXPECT_FALSE(contains(far, name)) << far;
  EXPECT_FALSE(contains(near, "NCCL")) << near;
  EXPECT_TRUE(contains(lines, "Environment: NCCL_DEBUG=WARN")) << lines;
}

TEST(LaunchTest, TheEnvironmentNamesAnotherLauncher) {
  const std::string built_in = launch_command(2, {}, std::nullopt).front();
  setenv("MILLRACE_MPIEXEC", "/packed/bin/mpiexec", 1);
  EXPECT_EQ(launch_command(2, {}, std::nullopt).front(), "/packed/bin/mpiexec");
  setenv("MILLRACE_MPIEXEC", "", 1);
  EXPECT_EQ(launch_command(2, {}, std::nullopt).front(), built_in);
  unsetenv("MILLRACE_MPIEXEC");
}

TEST(ClusterTest, MachinesAreNamedOnce) {
  const char* const config = R"({"cluster":{"worker":["a:1"]},"task":{"type":"worker","index":0}})";
  EXPECT_EQ(failure_of([&] {
              (void)cluster_of(train_line("--distributed --hosts b"),
                               environment_of({{"TF_CONFIG", config}}));
            }).text,
            "--hosts and TF_CONFIG both name the machines of the run: leave one of them out");
}

TEST(RoomTest, HostsWithoutARankAreKnown) {
  Cluster cluster;
  cluster.hosts = {"a:1", "b:1", "c:1"};
  EXPECT_EQ(hosts_without_rank(cluster, 2), std::vector<std::string>{"c"});
  EXPECT_TRUE(hosts_without_rank(cluster, 3).empty());
  cluster.hosts = {"a", "b", "c"};
  EXPECT_EQ(hosts_without_rank(cluster, 2), std::vector<std::string>{"c"});
}

TEST(RoomTest, IsThatOfAllHosts) {
  Cluster cluster;
  cluster.hosts = {"a:1", "b:7"};
  EXPECT_EQ(room_of(cluster), 8);
  cluster.hosts.emplace_back("c");
  EXPECT_EQ(room_of(cluster), std::nullopt) << "c has no limit";
}

}  // namespace
}  // namespace millrace::cli
