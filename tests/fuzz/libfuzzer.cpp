// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>

#include "tests/fuzz/fuzz.hpp"

namespace {

void fill(const std::filesystem::path& folder) {
  int number = 0;
  for (const millrace::fuzz::Bytes& input : millrace::fuzz::known_inputs()) {
    std::ofstream file(folder / ("known-" + std::to_string(++number)), std::ios::binary);
    file.write(reinterpret_cast<const char*>(input.data()),
               static_cast<std::streamsize>(input.size()));
  }
}

}  // namespace

// libFuzzer finds these by their names.
// NOLINTBEGIN(readability-identifier-naming)
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i) {
    const std::filesystem::path folder = (*argv)[i];
    if (std::filesystem::is_directory(folder) && std::filesystem::is_empty(folder)) fill(folder);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  millrace::fuzz::run_one(std::as_bytes(std::span(data, size)));
  return 0;
}
// NOLINTEND(readability-identifier-naming)
