// SPDX-License-Identifier: Apache-2.0
#include "tools/report/run_record.hpp"

#include <fcntl.h>
#include <sys/file.h>

#include "io/atomic_file.hpp"
#include "tests/support/expect_error.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tools/report/traced_step.hpp"

namespace millrace::report {
namespace {

constexpr const char* kHeader =
    R"({"schema":"millrace-metrics-1","total_batch":64,"iterations":20})"
    "\n";
constexpr const char* kRow =
    R"({"iteration":10,"epoch":1.0,"train/loss":2.5,"train/top1":0.25,"lr":0.1,"images_per_s":99.5,)"
    R"("loss_scale":64.0,"skipped_updates":2})"
    "\n";

void write(const fs::path& file, const std::string& text) { std::ofstream(file) << text; }

TEST(RunRecordTest, ReadsWhatASupervisorWrote) {
  const test::TemporaryDirectory run;
  write(run / "metrics.jsonl", kHeader);
  write(run / "supervisor.jsonl",
        R"({"time":5.5,"event":"start","ranks":3,"hosts":["a","b"],"checkpoint":"","what":"w"})"
        "\n"
        R"({"event":"no time"})"
        "\n"
        R"({"time":7,"event":"lost","ranks":0,"hosts":[],"checkpoint":"ckpt-2","what":"lost b"})"
        "\n");
  const RunRecord record = read_run(run.path());
  ASSERT_EQ(record.supervised.size(), 2u);
  EXPECT_EQ(record.supervised[0].hosts, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(record.supervised[0].ranks, 3);
  EXPECT_EQ(record.supervised[1].checkpoint, "ckpt-2");
  EXPECT_EQ(record.supervised[1].what, "lost b");
}

TEST(RunRecordTest, ReadsRowsValidationsAndEvents) {
  const test::TemporaryDirectory run;
  write(
      run / "metrics.jsonl",
      std::string(kHeader) + kRow +
          R"({"iteration":5,"epoch":0.5,"val/loss":2.0,"val/top1":0.75,"val/top5":1,"images":32})"
          "\n"
          R"({"iteration":10,"epoch":1.0,"val/loss":2.0,"val/top1":0.5,"val/top5":0.9})"
          "\n"
          R"({"iteration":10,"epoch":1.0,"val/loss":1.0,"val/top1":0.6,"val/top5":1,"name":"mean"})"
          "\n"
          R"({"iteration":10,"event":"stopped","total_time":7.5,"images_per_s":88.0})"
          "\n");
  write(run / "training.csv", "step,iteration,total_time\n1,10,6.5\n");
  write(run / "log.txt",
        "Command line: one\nDevice: old\nCommand line: two\nDevice: new\nSaved checkpoint to a\n"
        "Bubble: 12.5 % measured, 1.0 % simulated\n");
  const RunRecord record = read_run(run.path());
  ASSERT_EQ(record.training.size(), 1u);
  EXPECT_EQ(record.training[0].top1, 25.0);
  EXPECT_EQ(record.training[0].skipped, 2);
  ASSERT_EQ(record.validations.size(), 3u);
  EXPECT_EQ(record.validations[0].images, 32);
  ASSERT_NE(record.best(), nullptr);
  EXPECT_EQ(record.best()->top1, 50.0) << "averages are not the run's own weights";
  EXPECT_EQ(record.state, RunState::Stopped);
  EXPECT_EQ(record.seconds, 7.5);
  EXPECT_EQ(record.images_per_second(), 88.0);
  EXPECT_EQ(record.bubble, 12.5);
  EXPECT_EQ(record.machine, (std::vector<std::string>{"Command line: two", "Device: new"}));
  EXPECT_EQ(record.checkpoints_written, 1);
  EXPECT_EQ(record.iterations, 20);
  EXPECT_EQ(record.notes, std::vector<std::string>{});
}

TEST(RunRecordTest, TheBubbleIsThatOfTheLastProcessThatTrained) {
  const test::TemporaryDirectory run;
  write(run / "metrics.jsonl", kHeader);
  const std::string first =
      "Command line: one\nstep:      1, iteration\nBubble: 12.5 % measured, 1.0 % simulated\n";
  write(run / "log.txt", first);
  EXPECT_EQ(read_run(run.path()).bubble, 12.5);
  write(run / "log.txt", first + "Command line: two\nstep:      2, iteration\n");
  EXPECT_EQ(read_run(run.path()).bubble, std::nullopt);
  write(run / "log.txt", first + "Command line: two\nDevice: new\n");
  EXPECT_EQ(read_run(run.path()).bubble, 12.5) << "the second had nothing to do";
}

TEST(RunRecordTest, ARestoreWithoutUpdatesReplacesNoRate) {
  const test::TemporaryDirectory run;
  const std::string whole =
      std::string(kHeader) + kRow +
      R"({"iteration":10,"event":"stopped","total_time":7.5,"images_per_s":88.0})"
      "\n";
  const std::string idle = R"({"iteration":10,"event":"restored","iterations":20})"
                           "\n"
                           R"({"iteration":10,"event":"stopped","total_time":8.5})"
                           "\n";
  write(run / "metrics.jsonl", whole + idle);
  EXPECT_EQ(read_run(run.path()).images_per_second(), 88.0);
  EXPECT_EQ(read_run(run.path()).seconds, 8.5);
  std::string later = kRow;
  later.replace(later.find("10"), 2, "20");
  write(run / "metrics.jsonl", whole + idle + later);
  EXPECT_EQ(read_run(run.path()).images_per_second(), 99.5) << "of the row of who trains now";
}

TEST(RunRecordTest, TheUpdatesOfAnExtendedRunAreThoseOfItsLastProcess) {
  const test::TemporaryDirectory run;
  std::string later = kRow;
  later.replace(later.find("10"), 2, "28");
  const auto iterations_with = [&](const std::string& restored) {
    write(run / "metrics.jsonl", kHeader + restored + later);
    return read_run(run.path()).iterations;
  };
  EXPECT_EQ(iterations_with("{\"iteration\":20,\"event\":\"restored\",\"iterations\":30}\n"), 30);
  EXPECT_EQ(iterations_with("{\"iteration\":20,\"event\":\"restored\"}\n"), 0)
      << "an earlier version did not say how many";
}

TEST(RunRecordTest, LeavesDamageOutAndSaysSo) {
  const test::TemporaryDirectory run;
  write(run / "metrics.jsonl", std::string(kHeader) + "{\"iteration\": 5, \"tra\n\x01\n" + kRow +
                                   "{\"iteration\":20,\"epo");
  const RunRecord record = read_run(run.path());
  EXPECT_EQ(record.training.size(), 1u);
  EXPECT_EQ(record.state, RunState::Unfinished);
  ASSERT_EQ(record.notes.size(), 4u);
  EXPECT_EQ(record.notes[0],
            "metrics.jsonl: what follows line 4 is incomplete or too long: left out");
  EXPECT_EQ(record.notes[1], "metrics.jsonl: line 2 is damaged, and 1 more: left out");
  test::expect_in(record.notes[2], {"log.txt is missing"});
  test::expect_in(record.notes[3], {"training.csv is missing"});
  EXPECT_EQ(record.images_per_second(), 99.5) << "of the last row";
}

TEST(RunRecordTest, ARunOfAnEarlyVersionHasNoEvents) {
  const test::TemporaryDirectory run;
  std::string last = kRow;
  last.replace(last.find("10"), 2, "20");
  write(run / "metrics.jsonl", std::string(kHeader) + kRow + last);
  EXPECT_EQ(read_run(run.path()).state, RunState::Finished);
  write(run / "metrics.jsonl", std::string(kHeader) + R"({"iteration":3,"val/top1":null})"
                                                      "\n"
                                                      R"({"iteration":3,"train/loss":null})"
                                                      "\n");
  const RunRecord record = read_run(run.path());
  EXPECT_EQ(record.state, RunState::Unfinished);
  ASSERT_EQ(record.training.size(), 1u);
  EXPECT_TRUE(std::isnan(record.training[0].loss));
  EXPECT_FALSE(record.images_per_second());
  EXPECT_EQ(record.best(), nullptr);
}

TEST(RunRecordTest, ARunThatIsHeldGoesOn) {
  const test::TemporaryDirectory run;
  write(run / "metrics.jsonl", std::string(kHeader) + kRow + "{\"iterat");
  write(run / "log.txt", "");
  write(run / "training.csv", "step\n");
  write(run / ".lock", "1\n");
  EXPECT_EQ(read_run(run.path()).state, RunState::Unfinished);
  const io::UniqueFd lock = io::open_file(run / ".lock", O_RDWR);
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  const RunRecord record = read_run(run.path());
  EXPECT_EQ(record.state, RunState::Running);
  EXPECT_TRUE(record.notes.empty()) << "its last line is just being written";
}

TEST(RunRecordTest, RefusesWhatIsNoRun) {
  const test::TemporaryDirectory folder;
  expect_error(ErrorKind::Usage, {"is not a run", "config.toml", "give the directory of a run"},
               [&] { (void)read_run(folder.path()); });
  expect_error(ErrorKind::Usage, {"no such directory"}, [&] { (void)read_run(folder / "none"); });
}

// Two ranks, each with steps 1 and 2, and a second replica; times in microseconds.
constexpr const char* kTrace = R"json({"displayTimeUnit":"ms","traceEvents":[
{"ph":"M","name":"process_name","pid":0,"args":{"name":"replica 0 device 0 (rank 0)"}},
{"ph":"X","cat":"forward","pid":0,"ts":0,"dur":50,"args":{"step":1,"action":"0F0"}},
{"ph":"X","cat":"forward","pid":0,"ts":1000,"dur":200,"args":{"step":2,"action":"0F0"}},
{"ph":"s","bp":"e","name":"message","cat":"message","id":"x","pid":0,"tid":0,"ts":1200},
{"ph":"X","cat":"wait","pid":0,"ts":1200,"dur":500,"args":{"step":2,"action":"0B0"}},
{"ph":"X","cat":"backward","pid":0,"ts":1700,"dur":300,"args":{"step":2,"action":"0B0"}},
{"ph":"M","name":"thread_name","pid":0,"tid":1,"args":{"name":"kernels"}},
{"ph":"X","name":"b0/conv LinearForward","cat":"kernel","pid":0,"tid":1,"ts":1010,"dur":180,"args":{"step":2,"action":"0F0"}},
{"ph":"M","name":"process_name","pid":1,"args":{"name":"replica 0 device 1 (rank 1)"}},
{"ph":"X","cat":"forward","pid":1,"ts":60,"dur":10,"args":{"step":1,"action":"1F0"}},
{"ph":"X","cat":"receive","pid":1,"ts":1190,"dur":10,"args":{"step":2,"action":"1R0"}},
{"ph":"X","cat":"forward","pid":1,"ts":1200,"dur":100,"args":{"step":2,"action":"1F0"}},
{"ph":"X","cat":"send","pid":1,"ts":1300,"dur":40,"args":{"step":2,"action":"1s0"}},
{"ph":"M","name":"process_name","pid":2,"args":{"name":"replica 1 device 0 (rank 2)"}},
{"ph":"X","cat":"forward","pid":2,"ts":1000,"dur":9000,"args":{"step":2,"action":"0F1"}}
]}
)json";

TEST(TracedStepTest, IsTheLastOneOfReplicaZero) {
  const test::TemporaryDirectory folder;
  write(folder / "trace.json", kTrace);
  const TracedStep step = read_trace(folder / "trace.json");
  EXPECT_EQ(step.number, 2);
  ASSERT_EQ(step.devices.size(), 2u);
  EXPECT_EQ(step.devices[1].name, "replica 0 device 1 (rank 1)");
  EXPECT_DOUBLE_EQ(step.devices[0].forward, 0.2);
  EXPECT_DOUBLE_EQ(step.devices[0].backward, 0.3);
  EXPECT_DOUBLE_EQ(step.devices[0].wait, 0.5);
  EXPECT_NEAR(step.devices[0].other(), 0.0, 1e-9);
  // Nothing of a device's time is missing.
  EXPECT_DOUBLE_EQ(step.devices[1].forward, 0.1);
  EXPECT_DOUBLE_EQ(step.devices[1].messages, 0.05);
  EXPECT_NEAR(step.devices[1].other(), 0.85, 1e-9);
  EXPECT_NEAR(step.line.makespan, 1e-3, 1e-12);
  EXPECT_NEAR(step.line.bubble(), 1.0 - 0.6 / 2.0, 1e-9);
  ASSERT_EQ(step.line.devices[0].size(), 2u);
  EXPECT_EQ(to_string(step.line.devices[0][1].action), "0B0");
  EXPECT_NEAR(step.line.devices[0][1].begin, 7e-4, 1e-12);
}

TEST(TracedStepTest, RefusesOtherFiles) {
  const test::TemporaryDirectory folder;
  write(folder / "trace.json",
        "[\n{\"ph\":\"M\",\"pid\":0,\"args\":{\"name\":\"replica 0 device 0 (rank 0)\"}},\n"
        "{\"ph\":\"X\",\"name\":\"update 1\",\"cat\":\"step\",\"pid\":0,\"tid\":0,\"ts\":1,"
        "\"dur\":5,\"args\":{\"step\":1,\"work_us\":4}}\n]\n");
  expect_error(ErrorKind::Data, {"shows updates as a whole", "--gc-profile IPU_PROFILE"},
               [&] { (void)read_trace(folder / "trace.json"); });
  write(folder / "trace.json", "");
  expect_error(ErrorKind::Data, {"trace.json: has no step"},
               [&] { (void)read_trace(folder / "trace.json"); });
  write(folder / "trace.json", "[\n{\"ph\":\"X\",\"pid\":0,\"ts\":1}\n]\n");
  expect_error(ErrorKind::Data, {"has no step"}, [&] { (void)read_trace(folder / "trace.json"); });
  write(folder / "trace.json", "[\n{\"ph\":\"M\",\"pid\":0}\n]\n");
  expect_error(ErrorKind::Data, {"trace.json:2: is not an event of a millrace trace"},
               [&] { (void)read_trace(folder / "trace.json"); });
}

}  // namespace
}  // namespace millrace::report
