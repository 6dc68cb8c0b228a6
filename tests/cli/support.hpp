// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/command_line.hpp"
#include "cli/commands.hpp"
#include "cli/open_run.hpp"
#include "cli/option_text.hpp"
#include "cli/options.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "io/checkpoint.hpp"
#include "models/registry.hpp"
#include "run/learning_rate.hpp"
#include "tests/support/process.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/test.hpp"

namespace millrace::cli::testing {

using namespace training;  // NOLINT(google-build-using-namespace): what is tested
using test::expect_in;
using test::TemporaryDirectory;

// Words that need no data.
inline constexpr std::string_view kCifar = "--dataset cifar-10 --synthetic-data ";
inline constexpr std::string_view kImageNet = "--dataset imagenet --synthetic-data ";

/// Writes a checkpoint with a single number in it.
inline std::filesystem::path write_small_checkpoint(const std::filesystem::path& run,
                                                    const io::CheckpointHeader& header) {
  const std::vector<float> values = {1.0F};
  io::NamedTensor tensor;
  tensor.info.name = "fc1/bias";
  tensor.info.shape = {1};
  tensor.data = std::as_bytes(std::span(values));
  return io::write_checkpoint(run / "checkpoints", header, {&tensor, 1});
}

inline std::vector<std::string> words(std::string_view line) { return split_list(line, ' '); }

inline Environment environment_of(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

inline Patch train_options(std::string_view line,
                           std::map<std::string, std::string> variables = {}) {
  return load_options(Command::Train, words(line), 0, environment_of(std::move(variables)));
}

/// Resolves a training line with the sizes of the published data set and a machine of two cores.
inline Resolution resolve_line(std::string_view line, const MachineFacts& machine = {.cores = 2}) {
  const Patch options = train_options(line);
  Resolution resolution = resolve(options, published_facts(options), machine);
  resolution.notices = respelled(std::move(resolution.notices), options);
  return resolution;
}

/// What a command line ends with.
struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

inline Outcome run_words(const std::vector<std::string>& line) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Outcome outcome;
  outcome.code = run(line, environment_of({}));
  outcome.out = ::testing::internal::GetCapturedStdout();
  outcome.err = ::testing::internal::GetCapturedStderr();
  return outcome;
}

/// Whether this program is built with what has a command.
inline bool has_command(std::string_view name) {
  return std::ranges::find(command_table(), name, &CommandSpec::name) != command_table().end();
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// What bash offers for the last word of a command line.
inline std::vector<std::string> completions(const std::vector<std::string>& line) {
  const test::TemporaryDirectory directory;
  const fs::path script = directory / "millrace";
  std::ofstream(script) << bash_completion();
  std::string command =
      fmt::format("source {} && cd {} && COMP_WORDS=(", script.string(), directory.path().string());
  for (const std::string& word : line) command += fmt::format(" '{}'", word);
  command += fmt::format(") COMP_CWORD={} && _millrace && printf '%s\\n' \"${{COMPREPLY[@]}}\"",
                         line.size() - 1);
  const test::ProcessResult result = test::run_process("/bin/bash", {"-c", command});
  EXPECT_EQ(result.code, 0) << result.output;
  return lines_of(result.output);
}

/// What a call fails with, as a person reads it who typed nothing else.
struct Failure {
  ErrorKind kind = ErrorKind::Internal;
  std::string text;
};
template <class Call>
Failure failure_of(Call&& call) {
  try {
    std::forward<Call>(call)();
  } catch (const Error& error) {
    return {error.kind(), respelled(std::string(error.what()), Patch())};
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

/// Expects that a call is refused in exactly these words.
template <class Call>
void expect_refusal(ErrorKind kind, const std::string& text, Call&& call) {
  const Failure failure = failure_of(std::forward<Call>(call));
  EXPECT_EQ(failure.kind, kind) << failure.text;
  EXPECT_EQ(failure.text, text);
}
/// Expects that a call is refused in words that contain all of these.
template <class Call>
void expect_refused(ErrorKind kind, const std::vector<std::string>& parts, Call&& call) {
  const Failure failure = failure_of(std::forward<Call>(call));
  EXPECT_EQ(failure.kind, kind) << failure.text;
  expect_in(failure.text, parts);
}

/// Expects that a command ends with this code and says all parts, on either stream.
inline void expect_said(const Outcome& outcome, int code, const std::vector<std::string>& parts) {
  EXPECT_EQ(outcome.code, code) << outcome.err;
  expect_in(outcome.out + outcome.err, parts);
}

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

inline std::int64_t parameters_of(const run::Run& config) {
  return models::build_model(config.model).trainable_elements();
}

inline double rate_at(const run::Run& config, std::int64_t iteration) {
  return run::learning_rate_at(config.learning_rate, iteration, config.iterations);
}

/// Compares learning rates with those in a text such as "0: 0.5, 15619: 0.0005", by iteration.
inline void expect_rates(const run::Run& config, std::string_view rates) {
  for (const std::string& rate : split_list(rates)) {
    const std::vector<std::string> words = split_list(rate, ' ');
    const auto iteration = parse_number<std::int64_t>(words.at(0).substr(0, words[0].size() - 1));
    const auto expected = parse_number<double>(words.at(1));
    ASSERT_TRUE(iteration && expected) << rate;
    EXPECT_NEAR(rate_at(config, *iteration), *expected, 1e-9 + 1e-7 * *expected) << rate;
  }
}

/// Expects that config.toml holds all that a run is: it is read back, on a larger machine.
inline void expect_recorded(const run::Run& config) {
  const Patch options = parse_config(to_toml(config), "config.toml");
  Resolution again = resolve(options, published_facts(options), {.cores = 1 << 20});
  EXPECT_EQ(to_toml(again.config), to_toml(config));
  // Whose words these were, and what was open at first, is no part of what a run is.
  again.config.layout = config.layout;
  again.config.asked_layout = config.asked_layout;
  EXPECT_EQ(again.config, config) << to_toml(config);
  EXPECT_TRUE(again.notices.empty()) << again.notices.front();
}

}  // namespace millrace::cli::testing
