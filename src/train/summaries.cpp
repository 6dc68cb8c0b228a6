// SPDX-License-Identifier: Apache-2.0
#include "train/summaries.hpp"

namespace millrace::training {

SummaryRows::SummaryRows(const run::Run& config)
    : total_batch_(static_cast<double>(config.total_batch())), every_(config.summary_every) {}

std::optional<TrainRow> SummaryRows::add(std::int64_t done, const IterationResult& result) {
  if (every_ == 0) return {};
  seconds_ += result.seconds;
  ++updates_;
  if (done % every_ != 0) return {};
  TrainRow row;
  row.iteration = done;
  row.loss = result.loss;
  row.accuracy = 100.0 * static_cast<double>(result.correct) / total_batch_;
  row.top5 = 100.0 * static_cast<double>(result.correct_top5) / total_batch_;
  row.learning_rate = result.learning_rate;
  row.loss_scale = result.loss_scale;
  row.seconds_per_iteration = seconds_ / static_cast<double>(updates_);
  if (seconds_ > 0.0) row.images_per_second = total_batch_ / row.seconds_per_iteration;
  seconds_ = 0.0;
  updates_ = 0;
  return row;
}

}  // namespace millrace::training
