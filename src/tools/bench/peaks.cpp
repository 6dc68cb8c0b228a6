// SPDX-License-Identifier: Apache-2.0
//
// What the cores of a rank do at most: products of registers, and a pass over memory. Each is the
// best of many short runs on all threads.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "core/clock.hpp"
#include "core/machine_limits.hpp"
#include "device/arena.hpp"
#include "device/compat.hpp"
#include "device/environment.hpp"
#include "tools/bench/benchmark.hpp"

#if defined(__x86_64__) && MILLRACE_ON_HOST
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace millrace::training {

#if MILLRACE_ON_HOST
namespace {

using report::Peak;

/// Sums of products that do not wait for each other: more than a unit works on at once, and with
/// their operands no more than there are registers.
using Sums = std::make_index_sequence<12>;

/// Runs rounds of products in registers. The result depends on all of them.
using Products = float (*)(std::int64_t rounds);

constexpr std::int64_t kRuns = 64;

/// Without instructions that multiply and add.
template <std::size_t... I>
float multiplied_and_added(std::int64_t rounds, std::index_sequence<I...> /*sums*/) {
  using Four [[gnu::vector_size(16)]] = float;
  Four sums[] = {(Four{} + static_cast<float>(I))...};
  const Four half = Four{} + 0.5f;
  for (; rounds > 0; --rounds) ((sums[I] = sums[I] * half + half), ...);
  return (sums[I][0] + ...);
}

#if defined(__x86_64__)
template <std::size_t... I>
[[gnu::target("avx2,fma")]] float fused_avx2(std::int64_t rounds, std::index_sequence<I...>) {
  __m256 sums[] = {_mm256_set1_ps(static_cast<float>(I))...};
  const __m256 half = _mm256_set1_ps(0.5f);
  for (; rounds > 0; --rounds) ((sums[I] = _mm256_fmadd_ps(sums[I], half, half)), ...);
  return (_mm256_cvtss_f32(sums[I]) + ...);
}

template <std::size_t... I>
[[gnu::target("avx512f")]] float fused_avx512(std::int64_t rounds, std::index_sequence<I...>) {
  __m512 sums[] = {_mm512_set1_ps(static_cast<float>(I))...};
  const __m512 half = _mm512_set1_ps(0.5f);
  for (; rounds > 0; --rounds) ((sums[I] = _mm512_fmadd_ps(sums[I], half, half)), ...);
  return (_mm512_cvtss_f32(sums[I]) + ...);
}

/// Sums of two products each.
template <std::size_t... I>
[[gnu::target("avx512f,avx512bf16")]] float pairs_avx512(std::int64_t rounds,
                                                         std::index_sequence<I...>) {
  __m512 sums[] = {_mm512_set1_ps(static_cast<float>(I))...};
  const __m512bh half = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5f), _mm512_set1_ps(0.5f));
  for (; rounds > 0; --rounds) ((sums[I] = _mm512_dpbf16_ps(sums[I], half, half)), ...);
  return (_mm512_cvtss_f32(sums[I]) + ...);
}

constexpr double kTileFlops = 4.0 * 2.0 * 16 * 16 * 32;

/// Four tiles of 16 x 16 sums, from two tiles of 16 x 32 and two of 32 x 16 operands, all of zeros.
[[gnu::target("amx-tile,amx-bf16")]] float tiles(std::int64_t rounds) {
  alignas(64) std::array<std::uint8_t, 64> shapes = {1};
  std::fill_n(shapes.begin() + 48, 8, std::uint8_t{16});                       // rows
  for (std::size_t tile = 0; tile < 8; ++tile) shapes.at(16 + 2 * tile) = 64;  // bytes of a row
  alignas(64) std::array<float, 256> sums = {};
  asm volatile("" : : "r"(shapes.data()) : "memory");  // GCC 12 drops what nobody seems to read
  _tile_loadconfig(shapes.data());
  for (; rounds > 0; --rounds) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums.data(), 64);
  _tile_release();
  return sums[0];
}

/// Whether there are tiles, and the system saves them for this process once it is asked to.
bool may_use_tiles() {
  constexpr long kAskForState = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  return device::has_tiles() && ::syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
}
#endif

/// `work` over the shortest time in which each thread calls function(run, its number). Runs take
/// about a millisecond, so that other programs do not interrupt each of them.
template <class Function>
double best_rate(double work, const Function& function) {
  const device::ExecutionSpace space;
  double seconds = std::numeric_limits<double>::infinity();
  for (std::int64_t run = 0; run < kRuns; ++run) {
    const Timer timer;
    device::parallel("peak", space, device::kernel_threads(),
                     [=](std::int64_t thread) { function(run, thread); });
    device::fence(space);
    seconds = std::min(seconds, timer.seconds());
  }
  return work / seconds;
}

/// `flops`: of a round.
Peak products_peak(const char* name, DType type, double flops, Products products) {
  constexpr double kFlops = 1e8;  // of a thread in a run
  const auto rounds = static_cast<std::int64_t>(kFlops / flops);
  std::vector<float> results(static_cast<std::size_t>(device::kernel_threads()));
  const auto run = [to = results.data(), products, rounds](std::int64_t, std::int64_t thread) {
    to[thread] = products(rounds);
  };
  return {name, type,
          best_rate(flops * static_cast<double>(rounds * device::kernel_threads()), run)};
}

std::vector<Peak> products_peaks() {
  constexpr auto kLaneFlops = 2.0 * static_cast<double>(Sums::size());
#if defined(__x86_64__)
  const InstructionLevel level = instruction_level();
  const Products avx2 = [](std::int64_t rounds) { return fused_avx2(rounds, Sums()); };
  const Products avx512 = [](std::int64_t rounds) { return fused_avx512(rounds, Sums()); };
  const Products pairs = [](std::int64_t rounds) { return pairs_avx512(rounds, Sums()); };
  if (level == InstructionLevel::Avx512) {
    std::vector<Peak> peaks = {products_peak("avx512", DType::F32, 16 * kLaneFlops, avx512)};
    if (level_cap()) return peaks;  // this also caps the libraries, below products of 16 bits
    if (__builtin_cpu_supports("avx512bf16"))
      peaks.push_back(products_peak("avx512_bf16", DType::BF16, 32 * kLaneFlops, pairs));
    if (may_use_tiles()) peaks.push_back(products_peak("amx_bf16", DType::BF16, kTileFlops, tiles));
    return peaks;
  }
  if (level == InstructionLevel::Avx2 && __builtin_cpu_supports("fma"))
    return {products_peak("avx2", DType::F32, 8 * kLaneFlops, avx2)};
#endif
  const Products plain = [](std::int64_t rounds) { return multiplied_and_added(rounds, Sums()); };
  return {products_peak("128 bits", DType::F32, 4 * kLaneFlops, plain)};
}

/// Bytes of this rank that no cache holds beside those of the other ranks of the machine.
std::int64_t working_set(const comm::World& world) {
  constexpr std::int64_t kAll = std::int64_t{1} << 30;
  constexpr std::int64_t kLeast = std::int64_t{1} << 26;
  const std::int64_t free = read_limits().free_memory.bytes;
  const std::int64_t most = free > 0 ? std::min(kAll, free / 4) : kAll;
  return std::max(most / world.local_size(), kLeast);
}

/// Each run takes the next part of the set, so that nothing is in a cache when its turn comes.
std::vector<Peak> memory_peaks(const comm::World& world) {
  const std::int64_t threads = device::kernel_threads();
  const std::int64_t share = 2 * device::aligned(working_set(world) / (2 * kRuns * threads));
  const device::Arena arena(kRuns * threads * share);
  std::vector<std::uint64_t> results(static_cast<std::size_t>(threads));
  const auto part = [=, set = arena.at(0)](std::int64_t run, std::int64_t thread) {
    return set + (run * threads + thread) * share;
  };
  const auto read = [=, to = results.data()](std::int64_t run, std::int64_t thread) {
    const auto* const words = reinterpret_cast<const std::uint64_t*>(part(run, thread));
    std::uint64_t sum = 0;
    for (std::int64_t i = 0; i < share / 8; ++i) sum += words[i];
    to[thread] = sum;
  };
  const auto copy = [=](std::int64_t run, std::int64_t thread) {
    std::byte* const from = part(run, thread);
    std::memcpy(from + share / 2, from, static_cast<std::size_t>(share / 2));
  };
  const auto work = static_cast<double>(threads * share);
  return {{"reading", {}, best_rate(work, read)}, {"copying", {}, best_rate(work, copy)}};
}

}  // namespace

std::vector<report::Peak> measure_peaks(const comm::World& world) {
  world.barrier();  // all ranks at once, as in a training
  std::vector<Peak> peaks = products_peaks();
  for (Peak& peak : memory_peaks(world)) peaks.push_back(std::move(peak));
  return peaks;
}
#else
std::vector<report::Peak> measure_peaks(const comm::World&) { return {}; }
#endif

}  // namespace millrace::training
