// SPDX-License-Identifier: Apache-2.0
//
// Measures the kernels of a network: which passes of which shapes it has, and the table of the
// fastest kernels for them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ops/kernel_tuner.hpp"
#include "train/config.hpp"
#include "train/setup.hpp"

namespace millrace::train {

/// A pass of a linear op that a network runs.
struct LinearWork {
  ops::ConvShape shape;
  LinearPass pass = LinearPass::Forward;
  std::int64_t cap = 0;  ///< bytes of scratch that its kernels may use
};

/// The passes of all linear ops of a network at its batch size, on one device and each once, in the
/// order of the network. Dense ops are convolutions of one pixel.
[[nodiscard]] std::vector<LinearWork> linear_work_of(const TrainConfig& config, Use use);

/// Called after each pass, with its number from 1, how many there are, and what was measured;
/// nullptr: the vendor leaves it to others, see KernelTuner::tune.
using TunedPass = std::function<void(std::size_t number, std::size_t all, const LinearWork& work,
                                     const TableRow* row)>;

/// The table of all passes that the vendor has kernels for.
[[nodiscard]] KernelTable tune_kernels(const TrainConfig& config, Use use, ops::KernelTuner& tuner,
                                       const TunedPass& tuned);

}  // namespace millrace::train
