// SPDX-License-Identifier: Apache-2.0
//
// docs/guides.md against the guides that it answers, the tests that it names and the options that
// exist.
#include <regex>

#include "cli/commands.hpp"
#include "seed_lines.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests

const fs::path kRoot = MILLRACE_SOURCE_DIR;

std::string text_of(const fs::path& file) {
  std::ifstream in(file);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

/// One line of a table: what a guide says, how it is called here, and the test.
struct Row {
  std::string guide;
  std::string here;
  std::string test;
  [[nodiscard]] bool is_meaningless() const { return here.starts_with(" no meaning here"); }
};

/// The table of a guide, and the words that all of its lines begin with.
struct Section {
  std::string guide;   ///< the file name of the guide begins with this number
  std::string prefix;  ///< "millrace train --dialect nvidia"
  std::vector<Row> rows;
};

/// The texts between backticks.
std::vector<std::string> ticked(const std::string& text) {
  std::vector<std::string> result;
  bool inside = false;
  std::string piece;
  for (const char c : text) {
    if (c == '`' && inside) result.push_back(piece);
    if (c == '`') {
      inside = !inside;
      piece.clear();
    } else {
      piece += c;
    }
  }
  return result;
}

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

/// "## .. (guide 001)" opens a section, "Lines begin with `..`" gives its prefix.
std::vector<Section> sections() {
  std::vector<Section> result;
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
    if (row.size() == 3) result.back().rows.push_back({row[0], row[1], row[2]});
  }
  return result;
}

/// The option words in a text: "--batch-size", "-bs".
std::set<std::string> option_words_in(const std::string& text) {
  std::set<std::string> found;
  const std::regex word(R"((^|[^\w-])(--?[A-Za-z][\w-]*))");
  for (std::sregex_iterator i(text.begin(), text.end(), word), end; i != end; ++i) {
    std::string name = (*i)[2];
    while (name.ends_with('-') || name.ends_with('_')) name.pop_back();
    found.insert(name);
  }
  return found;
}

TEST(GuidesTest, EveryOptionOfAGuideHasALine) {
  const fs::path seeds = kRoot / "../shared/seeds";
  if (!fs::exists(seeds)) GTEST_SKIP() << "the guides are not in " << seeds;
  std::map<std::string, Section> answered;
  for (const Section& section : sections()) answered[section.guide] = section;
  int guides = 0;
  for (const fs::directory_entry& file : fs::directory_iterator(seeds)) {
    const std::string number = file.path().filename().string().substr(0, 3);
    std::set<std::string> known;
    for (const Row& row : answered[number].rows) known.merge(option_words_in(row.guide));
    for (const std::string& word : option_words_in(text_of(file.path())))
      EXPECT_TRUE(!word.starts_with("--") || known.contains(word))
          << "guide " << number << " has " << word;
    ++guides;
  }
  EXPECT_EQ(guides, 5);
}

TEST(GuidesTest, EveryNamedTestExists) {
  std::set<std::string> tests;
  const std::regex definition(R"(\b(TEST|TEST_F|TEST_P|TYPED_TEST)\(\s*(\w+),\s*(\w+)\))");
  for (const fs::directory_entry& file : fs::recursive_directory_iterator(kRoot / "tests")) {
    if (file.path().extension() != ".cpp") continue;
    const std::string text = text_of(file.path());
    for (std::sregex_iterator i(text.begin(), text.end(), definition), end; i != end; ++i)
      tests.insert((*i)[2].str() + "." + (*i)[3].str());
  }
  for (const Section& section : sections())
    for (const Row& row : section.rows) {
      const std::vector<std::string> named = ticked(row.test);
      EXPECT_TRUE(row.is_meaningless() || !named.empty()) << row.guide << " names no test";
      for (const std::string& name : named)
        EXPECT_TRUE(tests.contains(name)) << row.guide << " names " << name;
    }
}

/// The words of a shell line: quotes hold a word together.
std::vector<std::string> shell_words(const std::string& line) {
  std::vector<std::string> result;
  std::string word;
  bool quote = false;
  for (const char c : line + " ") {
    if (c == '\'') quote = !quote;
    if (c == '\'' || (c == ' ' && !quote)) {
      if (c == ' ' && !word.empty()) result.push_back(std::exchange(word, ""));
      continue;
    }
    word += c;
  }
  return result;
}

/// Variables and the launcher in front of millrace.
Environment environment_before(std::vector<std::string>& line) {
  std::map<std::string, std::string> variables;
  const auto program = std::ranges::find(line, "millrace");
  for (auto word = line.begin(); word != program; ++word) {
    const std::size_t equals = word->find('=');
    if (equals != std::string::npos) variables[word->substr(0, equals)] = word->substr(equals + 1);
    if (*word != "-np" || word + 1 == program) continue;
    variables["OMPI_COMM_WORLD_RANK"] = "0";
    variables["OMPI_COMM_WORLD_SIZE"] = *(word + 1);
  }
  line.erase(line.begin(), program == line.end() ? program : program + 1);
  return environment_of(std::move(variables));
}

/// Reads a whole line and, if it is one of a training, resolves it.
void expect_resolves(const std::string& text) {
  SCOPED_TRACE(text);
  std::vector<std::string> line = shell_words(text);
  for (std::size_t i = 1; i < line.size(); ++i)  // recipes, wherever the tests run
    if (line[i - 1] == "--config") line[i] = (kRoot / "configs" / (line[i] + ".toml")).string();
  const Environment environment = environment_before(line);
  if (std::ranges::any_of(line, [](const std::string& word) { return word.starts_with("--help"); }))
    return;
  const std::span<const CommandSpec> table = command_table();
  const auto command = std::ranges::find_if(table, [&](const CommandSpec& spec) {
    const std::vector<std::string> name = split_list(spec.name, ' ');
    return line.size() >= name.size() &&
           std::ranges::equal(name, std::span(line).first(name.size()));
  });
  ASSERT_NE(command, table.end());
  const auto behind = std::span(line).subspan(split_list(command->name, ' ').size());
  const std::size_t arguments = command->arguments.ends_with("..")
                                    ? behind.size()
                                    : split_list(command->arguments, ' ').size();
  try {
    const CommandLine read = read_command_line(command->id, behind, arguments, environment);
    const bool trains = read.command == Command::Train || read.command == Command::Bench;
    const bool untrained =
        read.command == Command::Validate && read.options.find("restore-path") == nullptr;
    if (!trains && !untrained) return;
    Patch options = for_all_workers(read.options, cluster_of(read.options, environment));
    MachineFacts machine{.cores = 2};
    if (const auto ranks = environment("OMPI_COMM_WORLD_SIZE"))
      machine.ranks = machine.local_ranks = std::stoi(*ranks);
    (void)resolve(options, published_facts(options), machine);
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
  }
}

TEST(GuidesTest, EveryLineResolves) {
  int lines = 0;
  for (const Section& section : sections())
    for (const Row& row : section.rows) {
      int calls = 0;
      for (const std::string& piece : ticked(row.here)) {
        const bool goes_on = piece.starts_with(".. ");
        if (!goes_on && piece.find("millrace ") == std::string::npos) continue;
        expect_resolves(goes_on ? section.prefix + piece.substr(2) : piece);
        ++calls;
      }
      EXPECT_TRUE(calls > 0 || row.is_meaningless()) << row.guide << " is not called";
      lines += calls;
    }
  EXPECT_GT(lines, 100);
}

}  // namespace
}  // namespace millrace::cli
