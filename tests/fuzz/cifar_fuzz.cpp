// SPDX-License-Identifier: Apache-2.0
//
// CIFAR files. The first byte of an input selects the set and the normalization. Files that pass
// the check are read as a set, whose pixels must be finite.
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>

#include "core/error.hpp"
#include "io/data/cifar.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/io/samples.hpp"
#include "tests/support/temporary_directory.hpp"

namespace millrace::fuzz {
namespace {

using namespace io;

constexpr std::size_t kMostBytes = std::size_t{8} * 3074;

struct Case {
  CifarKind kind;
  CifarNormalisation normalisation;
};

Case case_of(std::byte first) {
  const auto bits = std::to_integer<unsigned>(first);
  return {(bits & 1u) != 0 ? CifarKind::Cifar100 : CifarKind::Cifar10,
          (bits & 2u) != 0 ? CifarNormalisation::Dataset : CifarNormalisation::Standardise};
}

/// One folder for the lifetime of the process, with one training file.
std::filesystem::path folder_with(std::span<const std::byte> file, CifarKind kind) {
  static const test::TemporaryDirectory folder;
  std::filesystem::path place = folder / (kind == CifarKind::Cifar10 ? "10" : "100");
  std::filesystem::create_directories(place);
  std::ofstream out(place / (kind == CifarKind::Cifar10 ? "data_batch_1.bin" : "train.bin"),
                    std::ios::binary);
  out.write(reinterpret_cast<const char*>(file.data()), std::ssize(file));
  return place;
}

void read_all(const Dataset& set) {
  for (std::int64_t i = 0; i < set.size(); ++i) {
    require(set.label(i) >= 0 && set.label(i) < set.classes(), "labels are classes");
    for (const bool augment : {false, true}) {
      for (const float pixel : image_of(set, i, {.seed = 1, .epoch = 2, .augment = augment}))
        require(std::isfinite(pixel), "pixels are numbers");
    }
  }
}

}  // namespace

void run_one(std::span<const std::byte> input) {
  if (input.empty() || input.size() > kMostBytes) return;
  const auto [kind, normalisation] = case_of(input[0]);
  fails_only_as(ErrorKind::Data, [&] {
    read_all(*open_cifar(folder_with(input.subspan(1), kind),
                         {.kind = kind, .normalisation = normalisation}));
  });
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> inputs;
  for (const unsigned first : {0u, 1u, 2u, 3u}) {
    const std::size_t labels = (first & 1u) != 0 ? 2 : 1;
    Bytes input = {static_cast<std::byte>(first)};
    for (std::size_t record = 0; record < 2; ++record) {
      input.insert(input.end(), labels, static_cast<std::byte>(3 + record));
      // An image of noise, and one of a single color, with zero deviation.
      for (std::size_t i = 0; i < 3072; ++i)
        input.push_back(static_cast<std::byte>(record == 0 ? i * 37 + i / 256 : 128));
    }
    inputs.push_back(std::move(input));
  }
  return inputs;
}

}  // namespace millrace::fuzz
