// SPDX-License-Identifier: Apache-2.0
//
// docs/guides.md against the guides that it answers, the tests that it names and the options that
// exist.
#include "lines.hpp"
#include "tests/support/file_bytes.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests

const fs::path kRoot = MILLRACE_SOURCE_DIR;

/// One line of a table: what a guide says, how it is called here, and the test.
struct Answer {
  std::string guide;
  std::string here;
  std::string test;
  [[nodiscard]] bool is_meaningless() const { return here.starts_with(" no meaning here"); }
};

/// The table of a guide, and the words that all of its lines begin with.
struct Chapter {
  std::string guide;   ///< the file name of the guide begins with this number
  std::string prefix;  ///< "millrace train --dialect nvidia"
  std::vector<Answer> answers;
};

/// The texts between backticks.
std::vector<std::string> ticked(const std::string& text) {
  static const std::regex tick("`([^`]*)`");
  return {std::sregex_token_iterator(text.begin(), text.end(), tick, 1), {}};
}

/// The cells of a line of a table, in which \| stands for a bar.
std::vector<std::string> cells(const std::string& line) {
  std::vector<std::string> result;
  std::string cell;
  for (std::size_t i = 1; i < line.size(); ++i) {
    if (line[i] == '|' && line[i - 1] != '\\') {
      result.push_back(cell);
      cell.clear();
    } else if (line[i] != '\\' || i + 1 == line.size() || line[i + 1] != '|') {
      cell += line[i];
    }
  }
  return result;
}

/// "## .. (guide 001)" opens a chapter, "Lines begin with `..`" gives its prefix.
std::vector<Chapter> chapters() {
  std::vector<Chapter> result;
  std::ifstream page(kRoot / "docs/guides.md");
  EXPECT_TRUE(page.is_open());
  const std::regex heading(R"(## .*\(guide (\d\d\d)\))");
  for (std::string line; std::getline(page, line);) {
    std::smatch match;
    if (std::regex_match(line, match, heading)) result.push_back({match[1], "", {}});
    if (result.empty()) continue;
    if (line.starts_with("Lines begin with `")) result.back().prefix = ticked(line).at(0);
    if (!line.starts_with('|') || line.starts_with("|---") || line.starts_with("| guide")) continue;
    const std::vector<std::string> row = cells(line);
    EXPECT_EQ(row.size(), 3u) << line;
    if (row.size() == 3) result.back().answers.push_back({row[0], row[1], row[2]});
  }
  return result;
}

/// The option words in a text: "--batch-size", "-bs".
std::set<std::string> option_words_in(const std::string& text) {
  static const std::regex word(R"((^|[^\w-])(--?[A-Za-z](?:[\w-]*[A-Za-z0-9])?))");
  return {std::sregex_token_iterator(text.begin(), text.end(), word, 2), {}};
}

TEST(GuidesTest, EveryOptionOfAGuideHasALine) {
  const fs::path seeds = kRoot / "../shared/seeds";
  if (!fs::exists(seeds)) GTEST_SKIP() << "the guides are not in " << seeds;
  std::map<std::string, Chapter> answered;
  for (const Chapter& chapter : chapters()) answered[chapter.guide] = chapter;
  int guides = 0;
  for (const fs::directory_entry& file : fs::directory_iterator(seeds)) {
    const std::string number = file.path().filename().string().substr(0, 3);
    std::set<std::string> known;
    for (const Answer& answer : answered[number].answers)
      known.merge(option_words_in(answer.guide));
    for (const std::string& word : option_words_in(test::read_text(file.path())))
      EXPECT_TRUE(!word.starts_with("--") || known.contains(word))
          << "guide " << number << " has " << word;
    ++guides;
  }
  EXPECT_EQ(guides, 5);
}

/// "Suite.Case" of each test in a file.
void find_tests(const fs::path& file, std::set<std::string>& tests) {
  std::ifstream in(file);
  const std::regex definition(R"((TEST|TEST_F|TEST_P|TYPED_TEST)\((\w+), (\w+)\).*)");
  std::smatch match;
  for (std::string line; std::getline(in, line);)
    if (line.find("TEST") < 6 && std::regex_match(line, match, definition))
      tests.insert(match[2].str() + "." + match[3].str());
}

TEST(GuidesTest, EveryNamedTestExists) {
  std::set<std::string> tests;
  for (const fs::directory_entry& file : fs::recursive_directory_iterator(kRoot / "tests"))
    if (file.path().extension() == ".cpp") find_tests(file.path(), tests);
  for (const Chapter& chapter : chapters())
    for (const Answer& answer : chapter.answers) {
      const std::vector<std::string> named = ticked(answer.test);
      EXPECT_TRUE(answer.is_meaningless() || !named.empty()) << answer.guide << " names no test";
      for (const std::string& name : named)
        EXPECT_TRUE(tests.contains(name)) << answer.guide << " names " << name;
    }
}

void expect_resolves(const std::string& text) {
  SCOPED_TRACE(text);
  if (text.ends_with(" --help") || text.ends_with(" --helpfull")) return;
  try {
    const Read read = read_typed(text);
    if (resolves(read)) (void)resolved(read);
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
}

TEST(GuidesTest, EveryLineResolves) {
  int lines = 0;
  for (const Chapter& chapter : chapters())
    for (const Answer& answer : chapter.answers) {
      int calls = 0;
      for (const std::string& piece : ticked(answer.here)) {
        const bool goes_on = piece.starts_with(".. ");
        if (!goes_on && piece.find("millrace ") == std::string::npos) continue;
        expect_resolves(goes_on ? chapter.prefix + piece.substr(2) : piece);
        ++calls;
      }
      EXPECT_TRUE(calls > 0 || answer.is_meaningless()) << answer.guide << " is not called";
      lines += calls;
    }
  EXPECT_GT(lines, 100);
}

}  // namespace
}  // namespace millrace::cli
