// SPDX-License-Identifier: Apache-2.0
//
// What a command line asks for, as train/open_run.hpp takes it, and what is told about it.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/this_machine.hpp"
#include "comm/world.hpp"
#include "train/open_run.hpp"

namespace millrace::cli {

using run::DatasetFacts;
using run::device_memory;
using run::holds_photos;
using run::MachineFacts;
using run::task_of;
using training::data_request;
using training::Datasets;
using training::find_dataset;
using training::layout_facts;
using training::must_launch;
using training::network_of;
using training::OpenedRun;
using training::published_facts;
using training::recorded_facts;
using training::Resolution;
using training::resolve;
using training::saving;
using training::this_machine;

/// Removes the options for length, warm-up, horizon and validation of a training. For commands that
/// run only a few steps: recipes may contain these options, but they have no meaning there.
void drop_length(Patch& options);

/// Prints notices, one per line, without control characters. Fields are spelled as options.
void print_lines(std::FILE* out, const std::vector<std::string>& lines);

/// Prints notices to standard error, with what the environment sets if --verbose asks for it.
void print_notices(const Invocation& invocation, const std::vector<std::string>& lines);

/// What is to be told before the run starts.
[[nodiscard]] std::vector<std::string> notices_of(const OpenedRun& run,
                                                  const Invocation& invocation);

/// Shows progress in a line on standard error that is rewritten in place. Shows nothing if standard
/// error cannot rewrite lines, or if `quiet`.
[[nodiscard]] io::ProgressCallback progress_line(std::string what, bool quiet);
/// Reports to standard error.
[[nodiscard]] training::DataReports reports_on(const Patch& options);

/// What an invocation asks for.
[[nodiscard]] training::RunRequest request_of(const Invocation& invocation);
/// The same for a new training: for all workers of a cluster, and smaller with --smoke. Collective.
[[nodiscard]] training::RunRequest request_of_new(const Invocation& invocation,
                                                  const comm::World& world);

}  // namespace millrace::cli
