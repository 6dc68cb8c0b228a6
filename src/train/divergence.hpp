// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "comm/world.hpp"
#include "run/run.hpp"
#include "train/loss_scaler.hpp"
#include "train/reporter.hpp"

namespace millrace::training {

/// Ends a run whose weights, loss or gradients are beyond repair after `done` updates. Errors:
/// Numeric, with the remedy and the directory of earlier checkpoints.
[[noreturn]] void fail_diverged(const run::Run& config, const std::string& what, std::int64_t done);

/// Ends a run whose update number `done` had a `loss` that was not finite, unless that update was
/// skipped; and a run in which too many updates in a row were skipped, with the parameter that
/// `first_bad` names. All ranks call this with the same values. Errors: as fail_diverged.
void require_convergence(const run::Run& config, const comm::World& world,
                         const ScalingState& scaling, double loss, std::int64_t done,
                         const std::function<std::string()>& first_bad, Reporter& reporter);

}  // namespace millrace::training
