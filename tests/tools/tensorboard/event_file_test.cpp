// SPDX-License-Identifier: Apache-2.0
#include "tools/tensorboard/event_file.hpp"

#include "tests/support/event_reader.hpp"
#include "tests/support/temporary_directory.hpp"

namespace millrace::io {
namespace {

using test::Point;

void add(EventFile& file, std::int64_t step, const std::string& tag, double value) {
  const std::array<Scalar, 1> scalars = {Scalar{tag, value}};
  file.add(step, scalars);
}

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

struct EventFileTest : testing::Test {
  const test::TemporaryDirectory root;
  const fs::path folder = root / "run";
};

TEST_F(EventFileTest, HoldsWhatWasAdded) {
  EventFile file(folder);
  const std::array<Scalar, 2> two = {Scalar{"train_loss", 2.5}, {"learning_rate", 1e-7}};
  file.add(1, two);
  add(file, std::int64_t{1} << 40, "train_loss", std::numeric_limits<double>::quiet_NaN());
  // Readable at once, without closing or syncing: the process may be killed now.
  const test::Events events = test::read_events(folder);
  ASSERT_EQ(events.scalars.at("train_loss").size(), 2u);
  EXPECT_EQ(events.scalars.at("train_loss")[0], (Point{1, 2.5f}));
  EXPECT_EQ(events.scalars.at("train_loss")[1].step, std::int64_t{1} << 40);
  EXPECT_TRUE(std::isnan(events.scalars.at("train_loss")[1].value));
  EXPECT_EQ(events.scalars.at("learning_rate"), (std::vector<Point>{{1, 1e-7f}}));
  EXPECT_TRUE(events.restarts.empty());
}

TEST_F(EventFileTest, ARestoredRunHasNoStepTwice) {
  {
    EventFile file(folder);
    for (std::int64_t step = 1; step <= 5; ++step) add(file, step, "loss", 10.0);
  }
  const fs::path first = test::event_files_in(folder).at(0);
  const std::uintmax_t whole = fs::file_size(first);
  fs::resize_file(first, whole - 3);  // the writer was killed
  cut_event_files(folder, 3);
  EventFile file(folder, 3);
  EXPECT_GT(file.path().filename(), first.filename());
  for (std::int64_t step = 4; step <= 6; ++step) add(file, step, "loss", 20.0);
  const test::Events events = test::read_events(folder);
  EXPECT_EQ(events.scalars.at("loss"),
            (std::vector<Point>{{1, 10}, {2, 10}, {3, 10}, {4, 20}, {5, 20}, {6, 20}}));
  EXPECT_EQ(events.restarts, (std::vector<std::int64_t>{4}));
  cut_event_files(folder, 6);  // cuts off nothing
  EXPECT_EQ(test::read_events(folder).scalars.at("loss").size(), 6u);
}

TEST_F(EventFileTest, DamageIsCutOffWithWhatFollows) {
  {
    EventFile file(folder);
    for (std::int64_t step = 1; step <= 3; ++step) add(file, step, "loss", 10.0);
  }
  const fs::path path = test::event_files_in(folder).at(0);
  const std::string text = test::read_text(path);
  const std::size_t last = text.rfind("loss");
  std::string damaged = text;
  damaged[last] = 'b';
  write_text(path, damaged);
  write_text(folder / "notes.txt", "stays");
  cut_event_files(folder, 100);
  EXPECT_EQ(test::read_events(folder).scalars.at("loss").size(), 2u);
  write_text(path, "no events");
  cut_event_files(folder, 100);
  EXPECT_EQ(fs::file_size(path), 0u);
  EXPECT_EQ(test::read_text(folder / "notes.txt"), "stays");
}

TEST_F(EventFileTest, HParamsAreThoseOfTheSession) {
  EventFile file(folder);
  begin_session(file, {{"learning_rate", 0.5}, {"augment", true}, {"model", "resnet \xff"}});
  end_session(file, 12);
  const test::Events events = test::read_events(folder);
  const std::string& start = events.plugins.at("_hparams_/session_start_info");
  std::map<std::string, std::string> values;
  for (const test::WireField& entry : test::fields_of(test::field(start, 3).bytes))
    if (entry.number == 1)
      values[std::string(test::field(entry.bytes, 1).bytes)] =
          std::string(test::field(entry.bytes, 2).bytes);
  ASSERT_EQ(values.size(), 3u);
  EXPECT_EQ(std::bit_cast<double>(test::field(values.at("learning_rate"), 2).value), 0.5);
  EXPECT_EQ(test::field(values.at("augment"), 4).value, 1u);
  // Readers refuse text that is not UTF-8.
  EXPECT_EQ(test::field(values.at("model"), 3).bytes, "resnet \\xff");
  const std::string& end = events.plugins.at("_hparams_/session_end_info");
  EXPECT_EQ(test::field(test::field(end, 4).bytes, 1).value, 1u);  // success
}

}  // namespace
}  // namespace millrace::io
