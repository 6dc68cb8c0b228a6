// SPDX-License-Identifier: Apache-2.0
//
// What the lines in the tables of this folder mean. meanings.txt says what stands in a table.
#include <fmt/format.h>

#include "cli/commands.hpp"
#include "lines.hpp"
#include "run/field_rows.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests

std::string summary_of(const run::Run& c) {
  return fmt::format(
      "{}-{}, {} parameters, {} x {} images, {}, {}, decay {}, smoothing {}, {}/{}, loss x {}",
      c.model.model, c.model.size, parameters_of(c), c.iterations, c.total_batch(),
      name_of(c.optimiser.kind),
      choice_at(*find_field("lr-schedule"), static_cast<std::size_t>(c.learning_rate.kind)),
      c.optimiser.weight_decay, c.label_smoothing, name_of(c.precision.activations),
      name_of(c.precision.master), c.loss_scaling.initial);
}

/// How images are read from files.
std::map<std::string, std::string> reading_of(const Patch& options) {
  const io::ImagePreset& preset = data_request(options).files.images.preset;
  const io::ColourStatistics statistics = preset.statistics();
  const auto normalisation = static_cast<std::size_t>(preset.normalisation);
  return {{"images-as", fmt::format("{} {}", preset.name,
                                    choice_at(*find_field("image-normalisation"), normalisation))},
          {"images-cropped", fmt::format("{} {}", preset.crop.min_area, preset.crop.max_area)},
          {"images-less", join(statistics.mean, " ")},
          {"images-over", join(statistics.deviation, " ")}};
}

/// A line, and the training that it stands for, if it stands for one.
struct Meaning {
  Read read;
  Resolution resolution;
  [[nodiscard]] const run::Run& run() const { return resolution.config; }
};

/// An option as the line sets it or, if it does not, as the training records it, or what follows
/// from it; - if there is none.
std::string meant(const Meaning& meaning, const Patch& recorded, const std::string& name) {
  const Read& read = meaning.read;
  if (name == "command") return std::string(spec_of(read.command).name);
  if (name == "arguments") return join(read.arguments, " ");
  if (name == "trains") return summary_of(meaning.run());
  if (name.starts_with("images-")) return reading_of(read.options).at(name);
  const Setting* found = find_field(name) != nullptr ? read.options.find(name) : nullptr;
  if (found != nullptr) return to_string(found->value);
  if (read.command != Command::Train) return "-";
  const run::Run& config = meaning.run();
  const std::map<std::string, std::int64_t> numbers = {
      {"updates", config.iterations},
      {"updates-of-warm-up", config.learning_rate.warmup_iterations},
      {"updates-to-validation", config.validate_every},
      {"updates-to-checkpoint", config.checkpoint_every},
      {"updates-to-report", config.log_every},
      {"total-batch", config.total_batch()},
      {"validated", config.data.validation_size}};
  if (numbers.contains(name)) return std::to_string(numbers.at(name));
  const Setting* const made = recorded.find(name);
  return made == nullptr ? "-" : to_string(made->value);
}

/// "name value; name value"
void expect_options(const Meaning& meaning, const std::string& text) {
  EXPECT_TRUE(contains(text, "command ") || meaning.read.command == Command::Train);
  const Patch recorded = meaning.read.command == Command::Train
                             ? parse_config(to_toml(meaning.run()), "config.toml")
                             : Patch();
  for (const std::string& piece : split_list(text, ';')) {
    const std::string option = piece.substr(piece.find_first_not_of(' '));
    const std::size_t space = option.find(' ');
    const std::string name = option.substr(0, space);
    EXPECT_EQ(meant(meaning, recorded, name), option.substr(space + 1)) << name;
  }
}

void expect_notices(const Meaning& meaning, std::vector<std::string> expected) {
  std::vector<std::string> said =
      respelled(meaning.resolution.notices, meaning.read.options, meaning.read.spellings);
  said.insert(said.begin(), meaning.read.notices.begin(), meaning.read.notices.end());
  if (expected.empty() || expected.back() != "..") {
    EXPECT_EQ(said, expected);
    return;
  }
  expected.pop_back();
  for (const std::string& notice : expected)
    EXPECT_EQ(std::ranges::count(said, notice), 1) << notice;
}

Meaning meaning_of(const std::string& line, std::optional<std::int64_t> images) {
  Meaning meaning{.read = read_line(line), .resolution = {}};
  Read& read = meaning.read;
  if (images) read.options = read.for_images(*images);
  if (resolves(read)) meaning.resolution = resolved(read, images);
  return meaning;
}

void expect_refusal(const std::string& line, const std::string& mark) {
  const Failure failure = failure_of([&] { (void)meaning_of(line, std::nullopt); });
  EXPECT_EQ((failure.kind == ErrorKind::Config ? "!! " : "! ") + failure.text, mark);
  EXPECT_TRUE(failure.kind == ErrorKind::Config || failure.kind == ErrorKind::Usage);
}

void expect_meaning(const std::string& line, const std::vector<std::string>& marks) {
  std::map<char, std::vector<std::string>> texts;
  for (const std::string& mark : marks) {
    EXPECT_TRUE(contains("=@~*", mark.substr(0, 1))) << mark;
    texts[mark[0]].push_back(mark.substr(2));
  }
  std::optional<std::int64_t> images;
  if (texts.contains('*')) images = std::stoll(texts['*'][0]);
  const Meaning meaning = meaning_of(line, images);
  expect_options(meaning, join(texts['='], "; "));
  for (const std::string& rates : texts['@']) expect_rates(meaning.run(), rates);
  expect_notices(meaning, texts['~']);
}

void expect_row(const std::string& line, const std::vector<std::string>& marks) {
  SCOPED_TRACE(line);
  if (marks.front().starts_with('!')) return expect_refusal(line, marks.front());
  try {
    expect_meaning(line, marks);
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
}

/// `more` are marks of all rows.
void expect_rows(const char* table, const std::vector<std::string>& more = {}) {
  for (test::Row row : test::rows_of(table)) {
    row.marks.insert(row.marks.end(), more.begin(), more.end());
    for (const std::string& line : row.lines) expect_row(line, row.marks);
  }
}

TEST(MeaningsTest, AreThoseOfTheTrainers) { expect_rows("meanings.txt"); }

TEST(RefusalsTest, SayWhatIsWrong) { expect_rows("refusals.txt"); }

TEST(SeedLinesTest, ResolveToThePublishedNumbers) { expect_rows("seed_lines.txt", {"~ .."}); }

TEST(SeedLinesTest, AreTheSameRunsWhenTheyAreReadBack) {
  for (const test::Row& row : test::rows_of("seed_lines.txt"))
    for (const std::string& line : row.lines) {
      SCOPED_TRACE(line);
      expect_recorded(config_of(line));
    }
}

}  // namespace
}  // namespace millrace::cli
