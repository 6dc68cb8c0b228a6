// SPDX-License-Identifier: Apache-2.0
//
// Layouts that options leave open and that must stay within the memory of a device. resolve() can
// only assume what a process needs besides its stages; here it is measured, and the choices are
// made again.
#pragma once

#include "cli/prepare.hpp"
#include "cli/resolve.hpp"
#include "comm/world.hpp"
#include "train/memory.hpp"

namespace millrace::cli {

/// A run with the layout chosen for what `measure` finds. `first` is that of resolve(), which stays
/// if nothing is open. An automatic schedule is the fastest of all that fit, each with the cuts and
/// the segments that it would have by itself. If nothing fits: what needs the least of what was
/// tried. Pure but for `measure`.
[[nodiscard]] Resolution fit_layout(const MachineFacts& machine, Resolution first,
                                    const train::MeasureUse& measure);

/// The same for a run that is about to start, or that this process only checks for all of its
/// ranks. Collective; needs a device::Environment.
void fit_layout(PreparedRun& run, const comm::World& world);

}  // namespace millrace::cli
