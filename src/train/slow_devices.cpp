// SPDX-License-Identifier: Apache-2.0
#include "train/slow_devices.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <system_error>

#include "core/error.hpp"
#include "io/atomic_file.hpp"

namespace millrace::training {
namespace {

double median_without(std::span<const double> values, std::size_t left_out) {
  std::vector<double> others;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (i != left_out) others.push_back(values[i]);
  std::ranges::sort(others);
  const std::size_t half = others.size() / 2;
  return others.size() % 2 == 1 ? others[half] : 0.5 * (others[half - 1] + others[half]);
}

}  // namespace

SlowDevices::SlowDevices(const pipeline::RankMap& map)
    : devices_(map.devices),
      replicas_(map.replicas),
      sums_(static_cast<std::size_t>(map.all_devices())),
      slow_(sums_.size()) {}

std::vector<SlowDevice> SlowDevices::add(std::span<const std::int64_t> shares) {
  std::vector<SlowDevice> changed;
  if (replicas_ < 2) return changed;
  for (std::size_t i = 0; i < sums_.size(); ++i) sums_[i] += static_cast<double>(shares[i]);
  if (++updates_ < kWindow) return changed;
  std::vector<double> same(static_cast<std::size_t>(replicas_));  // devices with the same stages
  for (std::int32_t d = 0; d < devices_; ++d) {
    const auto index = [&](std::size_t r) {
      return r * static_cast<std::size_t>(devices_) + static_cast<std::size_t>(d);
    };
    for (std::size_t r = 0; r < same.size(); ++r) same[r] = sums_[index(r)];
    for (std::size_t r = 0; r < same.size(); ++r) {
      const double median = median_without(same, r);
      const double factor = median > 0.0 ? same[r] / median : 1.0;
      const bool slow = factor >= (slow_[index(r)] ? kAgain : kFactor);
      if (slow != slow_[index(r)])
        changed.push_back({static_cast<std::int32_t>(r), d, factor, slow});
      slow_[index(r)] = slow;
    }
  }
  std::ranges::fill(sums_, 0.0);
  updates_ = 0;
  return changed;
}

namespace {

constexpr const char* kSpeedsFile = ".speeds";

}  // namespace

std::string keep_speeds(const std::filesystem::path& run_directory,
                        std::span<const double> speeds) try {
  io::write_file_atomically(run_directory / kSpeedsFile,
                            fmt::format("{}\n", fmt::join(speeds, " ")));
  return {};
} catch (const Error& error) {
  return error.what();
}

std::vector<double> kept_speeds(const std::filesystem::path& run_directory) {
  std::vector<double> speeds;
  std::ifstream in(run_directory / kSpeedsFile);
  for (double speed = 0.0; in >> speed;) speeds.push_back(speed);
  return speeds;
}

void drop_speeds(const std::filesystem::path& run_directory) {
  std::error_code ignored;
  std::filesystem::remove(run_directory / kSpeedsFile, ignored);
}

}  // namespace millrace::training
