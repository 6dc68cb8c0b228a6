// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>

#include "tests/fuzz/fuzz.hpp"
#include "tests/support/file_bytes.hpp"

namespace millrace::fuzz {
namespace {

constexpr std::size_t kMaxInput = std::size_t{1} << 20;
constexpr long kMaxMemoryKib = 2L << 20;  ///< of the process, like libFuzzer's default
constexpr int kMaxMutations = 8;
/// Values that often break parsers, as bytes of numbers of any width.
constexpr std::uint8_t kInteresting[] = {0,    1,    2,    3,    4,    16,  0x7f,
                                         0x80, 0xc0, 0xd8, 0xd9, 0xfe, 0xff};

/// A file that always contains the current input: a mapped page survives the process.
class LastInput {
 public:
  explicit LastInput(const std::string& path) {
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || ftruncate(file, kMaxInput) != 0)
      throw std::runtime_error("cannot write " + path);
    memory_ = mmap(nullptr, kMaxInput, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory_ == MAP_FAILED) throw std::runtime_error("cannot map " + path);
  }
  ~LastInput() { munmap(memory_, kMaxInput); }
  LastInput(const LastInput&) = delete;
  LastInput& operator=(const LastInput&) = delete;
  void keep(const Bytes& input) {
    const std::size_t size = std::min(input.size(), kMaxInput);
    if (size > 0) std::memcpy(memory_, input.data(), size);
  }

 private:
  void* memory_ = nullptr;
};

/// Mutates inputs at random, reproducibly for a given seed.
class Mutator {
 public:
  Mutator(std::uint64_t seed, std::vector<Bytes> inputs)
      : engine_(seed), inputs_(std::move(inputs)) {}

  Bytes next() {
    Bytes input = inputs_[below(inputs_.size())];
    const std::size_t count = 1 + below(kMaxMutations);
    for (std::size_t i = 0; i < count; ++i) mutate(input);
    if (input.size() > kMaxInput) input.resize(kMaxInput);
    return input;
  }

 private:
  std::size_t below(std::size_t n) { return n == 0 ? 0 : engine_() % n; }

  void mutate(Bytes& input) {
    if (input.empty()) return;
    const std::size_t place = below(input.size());
    const auto at = input.begin() + static_cast<std::ptrdiff_t>(place);
    const std::size_t length = 1 + below(std::min<std::size_t>(input.size() - place, 64));
    const auto end = at + static_cast<std::ptrdiff_t>(length);
    switch (below(7)) {
      case 0:
        *at ^= static_cast<std::byte>(1u << below(8));
        break;
      case 1:
        *at = static_cast<std::byte>(engine_());
        break;
      case 2:
        std::fill(at, at + static_cast<std::ptrdiff_t>(std::min<std::size_t>(length, 4)),
                  static_cast<std::byte>(kInteresting[below(std::size(kInteresting))]));
        break;
      case 3:
        input.erase(at, end);
        break;
      case 4: {
        const Bytes copy(at, end);
        input.insert(input.begin() + static_cast<std::ptrdiff_t>(below(input.size())), copy.begin(),
                     copy.end());
        break;
      }
      case 5:
        input.resize(place);
        break;
      default:
        splice(input, place);
        break;
    }
  }

  /// Replaces the bytes from `place` on by those of another input from the same offset.
  void splice(Bytes& input, std::size_t place) {
    const Bytes& other = inputs_[below(inputs_.size())];
    if (other.size() <= place) return;
    input.resize(place);
    input.insert(input.end(), other.begin() + static_cast<std::ptrdiff_t>(place), other.end());
  }

  std::mt19937_64 engine_;
  std::vector<Bytes> inputs_;
};

void check_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  if (usage.ru_maxrss > kMaxMemoryKib)
    throw std::runtime_error(
        fmt::format("{} MiB in use; the limit is {}", usage.ru_maxrss >> 10, kMaxMemoryKib >> 10));
}

struct Arguments {
  std::uint64_t seconds = 0;
  std::uint64_t seed = 1;
  std::vector<std::string> files;
};

Arguments parse(std::span<char*> words) {
  Arguments arguments;
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string_view word = words[i];
    if (word != "--seconds" && word != "--seed") {
      arguments.files.emplace_back(word);
      continue;
    }
    const std::string_view text = ++i < words.size() ? words[i] : "";
    std::uint64_t& value = word == "--seed" ? arguments.seed : arguments.seconds;
    if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc())
      throw std::runtime_error(fmt::format("{} wants a number", word));
  }
  return arguments;
}

void fuzz_for(const Arguments& arguments, const std::string& name) {
  using Clock = std::chrono::steady_clock;
  LastInput last(name + ".last");
  const std::vector<Bytes> inputs = known_inputs();
  for (const Bytes& input : inputs) {
    last.keep(input);
    run_one(input);
    check_memory();
  }
  Mutator mutator(arguments.seed, inputs);
  const auto end = Clock::now() + std::chrono::seconds(arguments.seconds);
  std::uint64_t runs = 0;
  for (; Clock::now() < end; ++runs) {
    const Bytes input = mutator.next();
    last.keep(input);
    run_one(input);
    check_memory();
  }
  fmt::print("{}: {} inputs from {} in {} s\n", name, runs, inputs.size(), arguments.seconds);
}

}  // namespace
}  // namespace millrace::fuzz

int main(int argc, char** argv) {
  using namespace millrace::fuzz;
  try {
    const std::span<char*> words(argv, static_cast<std::size_t>(argc));
    const Arguments arguments = parse(words);
    for (const std::string& file : arguments.files) run_one(millrace::test::file_bytes(file));
    if (arguments.files.empty())
      fuzz_for(arguments, std::filesystem::path(words[0]).filename().string());
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
