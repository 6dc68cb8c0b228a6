// SPDX-License-Identifier: Apache-2.0
#include "train/busy_shares.hpp"

#include <algorithm>
#include <cmath>

namespace millrace::training {

BusyShares::BusyShares(const pipeline::Executor& executor) : executor_(&executor) {
  const pipeline::PipelinePlan& plan = executor.plan();
  if (plan.places() < 2) return;
  devices_ = static_cast<std::size_t>(plan.places());
  const std::int32_t shown = plan.is_joint() ? plan.places() : plan.ranks.devices;
  if (shown > 1) shares_.resize(static_cast<std::size_t>(shown));
}

void BusyShares::own(std::span<std::int64_t> thousandths) const {
  const pipeline::Recording& recording = executor_->recording();
  const std::span<const pipeline::Piece> pieces = recording.pieces();
  if (thousandths.empty() || pieces.empty()) return;
  const auto whole = static_cast<double>(pieces.back().end - pieces.front().begin);
  std::vector<double> work(thousandths.size(), -1.0);  // negative: of another process
  const auto of = [&](const pipeline::LocalEntry& entry) -> double& {
    const std::int32_t place = executor_->plan().place_of(entry.replica, entry.action.stage);
    return work[static_cast<std::size_t>(place)];
  };
  for (const pipeline::LocalEntry& entry : recording.entries()) of(entry) = 0.0;
  for (const pipeline::Piece& piece : pieces)
    if (pipeline::is_work(piece.doing))
      of(recording.entries()[piece.entry]) += static_cast<double>(piece.end - piece.begin);
  for (std::size_t d = 0; d < work.size(); ++d)
    if (work[d] >= 0.0 && whole > 0.0) thousandths[d] = std::llround(1000.0 * work[d] / whole);
}

void BusyShares::add(std::span<const std::int64_t> thousandths) {
  constexpr double kNewest = 0.3;
  if (std::ranges::all_of(thousandths, [](std::int64_t share) { return share == 0; })) return;
  const std::size_t replicas = shares_.empty() ? 0 : devices_ / shares_.size();
  for (std::size_t d = 0; d < shares_.size(); ++d) {
    double share = 0.0;
    for (std::size_t r = 0; r < replicas; ++r)
      share += 1e-3 * static_cast<double>(thousandths[r * shares_.size() + d]);
    share /= static_cast<double>(replicas);
    shares_[d] = any_ ? kNewest * share + (1.0 - kNewest) * shares_[d] : share;
  }
  any_ = !shares_.empty();
}

}  // namespace millrace::training
