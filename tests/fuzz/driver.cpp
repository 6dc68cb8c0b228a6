// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/resource.h>

#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>

#include "tests/fuzz/fuzz.hpp"

namespace millrace::fuzz {
namespace {

constexpr long kMaxMemoryKib = 2L << 20;  ///< of the process, like libFuzzer's default

void check_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  if (usage.ru_maxrss > kMaxMemoryKib)
    throw std::runtime_error(
        fmt::format("{} MiB in use; the limit is {}", usage.ru_maxrss >> 10, kMaxMemoryKib >> 10));
}

/// `last` holds the input that ends the process.
void run_known_inputs(const std::string& last) {
  for (const Bytes& input : known_inputs()) {
    std::ofstream(last, std::ios::binary)
        .write(reinterpret_cast<const char*>(input.data()), std::ssize(input));
    run_one(input);
    check_memory();
  }
  std::filesystem::remove(last);
}

}  // namespace
}  // namespace millrace::fuzz

int main(int argc, char** argv) {
  using namespace millrace::fuzz;
  try {
    const std::span<char*> words(argv, static_cast<std::size_t>(argc));
    for (const char* const file : words.subspan(1)) run_one(millrace::test::file_bytes(file));
    if (argc == 1) run_known_inputs(std::filesystem::path(words[0]).filename().string() + ".last");
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
