// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string_view>

namespace millrace::io {

/// What the classes of a generated set show, in the order of their labels.
inline constexpr std::array<std::string_view, 10> kGeneratedClasses = {
    "disc", "ring", "square", "frame", "triangle", "cross", "plus", "rows", "columns", "checkers"};

/// Colours of the figures of a set with a hundred classes: class 10 f + t is figure f in tint t.
inline constexpr std::array<std::string_view, 10> kGeneratedTints = {
    "red", "green", "blue", "yellow", "magenta", "cyan", "white", "black", "orange", "brown"};

struct GenerateOptions {
  std::int64_t train_records = 10'000;  ///< 1 .. 500,000, in files of 10,000 where five suffice
  std::int64_t test_records = 2'000;    ///< 1 .. 100,000
  std::uint64_t seed = 0;
};

/// Draws a small data set in the layout of CIFAR-10: one figure of ten on every image, at varied
/// place, size, angle and colours, under noise. Either the figure or its ground may be the
/// brighter, so the mean image of a class says little about it, and a network has to look at
/// outlines. Classes are balanced. The bytes are a pure function of the options, the same on every
/// machine.
///
/// Creates `directory` where needed. Files are replaced atomically, data_batch_1.bin comes last,
/// and a set that is there already is refused. Errors: Config for counts out of range, Usage for an
/// existing set, Io.
void generate_cifar10_like(const std::filesystem::path& directory, const GenerateOptions& options);

/// The same in the layout of CIFAR-100: train.bin and test.bin, and kGeneratedClasses by
/// kGeneratedTints as fine classes, five of them in a coarse one. Here the colour tells too.
void generate_cifar100_like(const std::filesystem::path& directory, const GenerateOptions& options);

}  // namespace millrace::io
