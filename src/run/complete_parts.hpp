// SPDX-License-Identifier: Apache-2.0
//
// The parts of complete() and complete_layout() that have files of their own. Each sets the
// members that its fields determine, from the patch and from members set by earlier parts.
#pragma once

#include "run/complete.hpp"

namespace millrace::run {

/// Errors: Usage for an option of another family of networks.
void check_families(const Patch& options, Notices& notices);
void complete_model(const Patch& given, const DatasetFacts& data, Run& config, Notices& notices);
void complete_optimiser(const Patch& given, Run& config);
void complete_rate(const Patch& given, Run& config, Notices& notices);
/// Errors: Usage for machines that a run would leave out because it has one rank that nobody asked
/// for.
void check_hosts(const Patch& given, const MachineFacts& machine, const Run& config,
                 Notices& notices);
/// The weight updates to trace and the file to write. Errors: Usage.
void complete_trace(const Patch& options, Run& config, Notices& notices);
void complete_validation(const Patch& given, Run& config, Notices& notices);
void complete_checkpoints(const Patch& given, Run& config, Notices& notices);
void complete_logs(const Patch& given, Run& config, Notices& notices);
/// Errors: Usage for a suffix that cannot be part of the name of a directory.
void check_name(const Patch& given, const Run& config);

}  // namespace millrace::run
