// SPDX-License-Identifier: Apache-2.0
//
// What a training of small_run.hpp ends with, for tests of the law: it must have the same bits in
// every layout.
#pragma once

#include "tests/support/test.hpp"
#include "tests/train/small_run.hpp"

namespace millrace::training::small {

struct Outcome {
  std::vector<double> losses;
  std::vector<std::pair<std::int64_t, std::int64_t>> correct;  ///< top-1 and top-5
  std::string digest;
  pipeline::MicroBatchMetrics validation;
  std::vector<float> weights;
  std::int64_t arena_bytes = 0;
  std::int64_t sums_within_backward = 0;
};

/// Expects that every entry of every device's list was executed in order, and that no stage held
/// more micro-batches than the schedule allows. Replicas that share statistics must do so at the
/// same time.
inline void expect_schedule_was_kept(const pipeline::Executor& executor, bool spans,
                                     const std::string& name) {
  const pipeline::PipelinePlan& plan = executor.plan();
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> next;
  std::map<std::int32_t, std::int64_t> ends;  // by replica
  const pipeline::Recording& recording = executor.recording();
  for (std::size_t i = 0; i < recording.entries().size(); ++i) {
    const auto& [replica, entry, action, unit_of_entry] = recording.entries()[i];
    std::int64_t& last = ends[spans ? replica : 0];
    const pipeline::ActionRecord& record = recording.records()[i];
    if (plan.is_joint()) {
      EXPECT_EQ(entry.index, static_cast<std::int32_t>(i)) << name;
      EXPECT_EQ(record.done, action) << name;
    } else {
      EXPECT_EQ(entry.index, (next[{replica, entry.device}]++)) << name;
      EXPECT_EQ(record.done, plan.schedule.at(entry)) << name;
    }
    EXPECT_LE(last, record.begin) << name;
    EXPECT_LE(record.begin, record.end) << name;
    last = record.end;
  }
  for (const auto& [device, count] : next)
    EXPECT_EQ(count, std::ssize(plan.schedule.lists[static_cast<std::size_t>(device.second)]))
        << name;
  std::int64_t before = 0;
  for (const pipeline::Piece& piece : recording.pieces()) {
    EXPECT_LE(before, piece.begin) << name;
    EXPECT_LE(piece.begin, piece.end) << name;
    before = piece.end;
  }
  EXPECT_LE(recording.pieces().size(), recording.most_pieces()) << name;
  const std::vector<std::int32_t> peaks = stash_peaks(plan.is_joint() ? plan.joint : plan.schedule);
  std::size_t unit = 0;
  for (std::int32_t r = 0; r < (plan.is_joint() ? 1 : plan.ranks.replicas); ++r)
    for (const std::int32_t peak : peaks)
      EXPECT_EQ(executor.measured_stash()[unit++], peak) << name;
}

/// Pieces of the last step in which backward passes went on with sums over replicas.
inline std::int64_t sums_within_backward(const pipeline::Recording& recording) {
  return std::ranges::count_if(recording.pieces(), [&](const pipeline::Piece& piece) {
    const pipeline::ActionKind kind = recording.entries()[piece.entry].action.kind;
    return piece.doing == pipeline::Doing::Add && is_compute(kind) &&
           kind != pipeline::ActionKind::Forward;
  });
}

/// Trains on noise for some steps, and validates. `other` stages take the place of the layout's.
inline Outcome train(const Layout& layout, std::int64_t steps = kSteps,
                     const std::shared_ptr<const io::Dataset>& data = nullptr,
                     bool restart_each_step = false,
                     const std::optional<pipeline::PipelinePlan>& other = std::nullopt) {
  run::Run config = planned(layout, run::ValidationMode::All);
  if (other) config.pipeline = *other;
  if (data) config.data.train_size = data->size();
  const comm::World world;
  Training training(config, world, data);
  Outcome outcome;
  outcome.arena_bytes = training.session().arena_bytes();
  for (std::int64_t i = 0; i < steps; ++i) {
    // A restored run has the weights of its checkpoint and feeds that start anywhere.
    if (restart_each_step && i > 0) training.begin_feeds();
    const pipeline::MicroBatchMetrics metrics = training.step().metrics;
    EXPECT_EQ(metrics.samples, config.total_batch());
    outcome.losses.push_back(metrics.loss);
    outcome.correct.push_back({metrics.top1, metrics.top5});
  }
  if (steps > 0)
    expect_schedule_was_kept(training.session().executor(), layout.span > 1, name_of(layout));
  outcome.sums_within_backward = sums_within_backward(training.session().executor().recording());
  training.session().compare_replicas();
  outcome.validation =
      training.validate(std::make_shared<NoiseDataset>(config.model.image, -1, kValidationImages));
  const Snapshot snapshot = training.session().tensors().snapshot();
  outcome.digest = io::digest(snapshot.tensors());
  outcome.weights = all_values(snapshot);
  return outcome;
}

inline void expect_same(const Outcome& actual, const Outcome& expected, const std::string& name) {
  EXPECT_EQ(actual.losses, expected.losses) << name;
  EXPECT_EQ(actual.correct, expected.correct) << name;
  EXPECT_EQ(actual.digest, expected.digest) << name;
  EXPECT_EQ(actual.validation.loss, expected.validation.loss) << name;
  EXPECT_EQ(actual.validation.top1, expected.validation.top1) << name;
  EXPECT_EQ(actual.validation.samples, kValidationImages) << name;
}

}  // namespace millrace::training::small
