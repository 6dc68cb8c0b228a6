// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/commands.hpp"

namespace millrace::cli {

/// Whether `bench` is asked for several runs, by lists of batch sizes, ranks or precisions.
[[nodiscard]] bool wants_several_runs(const Patch& options);

/// Measures them one after the other, each in processes of its own, and prints their tables.
/// Returns the exit code of the first run that failed, or 0. Errors: Usage for what concerns a
/// single run; those of the first run, without which there is no table.
int bench_several(const Invocation& invocation);

}  // namespace millrace::cli
