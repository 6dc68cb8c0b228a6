// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string_view>

namespace millrace::io {

/// Figures of the classes of a generated set, in label order.
inline constexpr std::array<std::string_view, 10> kGeneratedClasses = {
    "disc", "ring", "square", "frame", "triangle", "cross", "plus", "rows", "columns", "checkers"};

/// Colors of the figures of a set with 100 classes: class 10 f + t is figure f in tint t.
inline constexpr std::array<std::string_view, 10> kGeneratedTints = {
    "red", "green", "blue", "yellow", "magenta", "cyan", "white", "black", "orange", "brown"};

struct GenerateOptions {
  std::int64_t train_records = 10'000;  ///< 1 .. 500,000, in files of 10,000 if five are enough
  std::int64_t test_records = 2'000;    ///< 1 .. 100,000
  std::uint64_t seed = 0;
};

/// Generates a small data set in the layout of CIFAR-10. Each image shows one of ten figures at a
/// random place, size, angle and color, with noise. The figure may be brighter or darker than its
/// background, so the mean image of a class says little and a network must learn outlines. Classes
/// are balanced. The bytes are a pure function of the options, the same on every machine.
///
/// Creates `directory` if needed. Files are written atomically, data_batch_1.bin last. Errors:
/// Config for counts out of range, Usage if the set already exists, Io.
void generate_cifar10_like(const std::filesystem::path& directory, const GenerateOptions& options);

/// The same in the layout of CIFAR-100: train.bin and test.bin, and kGeneratedClasses by
/// kGeneratedTints as fine classes, five fine classes per coarse class. Here the color matters,
/// too.
void generate_cifar100_like(const std::filesystem::path& directory, const GenerateOptions& options);

}  // namespace millrace::io
