// SPDX-License-Identifier: Apache-2.0
#include "train/cadence.hpp"

namespace millrace::train {
namespace {

bool on_multiple(std::int64_t done, std::int64_t every) { return every > 0 && done % every == 0; }

}  // namespace

bool is_validation_point(const TrainConfig& config, std::int64_t done) {
  if (config.validation == ValidationMode::None || done <= 0) return false;
  return done == config.iterations || on_multiple(done, config.validate_every);
}

Due due_after(const TrainConfig& config, std::int64_t done) {
  const bool last = done == config.iterations;
  const bool periodic_checkpoints = config.checkpoint_every > 0;
  const bool validation_point = is_validation_point(config, done);
  const bool saved_for_validation =
      periodic_checkpoints && validation_point && config.validation == ValidationMode::End;
  return {.log = last || (done > 0 && on_multiple(done, config.log_every)),
          .checkpoint = last || on_multiple(done, config.checkpoint_every) || saved_for_validation,
          .validate = validation_point && config.validation == ValidationMode::All};
}

}  // namespace millrace::train
