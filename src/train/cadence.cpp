// SPDX-License-Identifier: Apache-2.0
#include "train/cadence.hpp"
#include "core/counted.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

namespace millrace::training {
namespace {

bool on_multiple(std::int64_t done, std::int64_t every) { return every > 0 && done % every == 0; }

/// Multiples of `every` >= 1 from `first` >= 0 to `last`.
std::int64_t multiples(std::int64_t every, std::int64_t first, std::int64_t last) {
  if (first > last) return 0;
  return last / every - first / every + (first % every == 0 ? 1 : 0);
}

}  // namespace

bool is_validation_point(const run::Run& config, std::int64_t done) {
  if (config.validation == run::ValidationMode::None || done <= 0) return false;
  return done == config.iterations || on_multiple(done, config.validate_every);
}

Due due_after(const run::Run& config, std::int64_t done) {
  const bool last = done == config.iterations;
  const bool validation_point = is_validation_point(config, done);
  const bool saved_for_validation = config.saves_on_the_way() && validation_point &&
                                    config.validation == run::ValidationMode::End;
  const bool begins = done == 0 && config.saves_on_the_way();
  return {.log = last || (done > 0 && on_multiple(done, config.log_every)),
          .checkpoint =
              last || begins || on_multiple(done, config.checkpoint_every) || saved_for_validation,
          .validate = validation_point && config.validation == run::ValidationMode::All,
          .snapshot = done > 0 && on_multiple(done, config.partner_every)};
}

bool is_validated_saved(const run::Run& config, std::int64_t done) {
  // Those by the clock cannot be told from those of an interruption.
  return done > 0 && config.validation == run::ValidationMode::End &&
         (config.checkpoint_minutes > 0.0 || due_after(config, done).checkpoint);
}

std::int64_t epoch_of(const run::Run& config, std::int64_t iteration) {
  return iteration * config.total_batch() / std::max<std::int64_t>(1, config.data.train_size);
}

std::string reason_to_stop(const run::Run& config,
                           const std::map<std::int64_t, double>& accuracies) {
  if (accuracies.empty()) return {};
  const double last = accuracies.rbegin()->second;
  const double wanted = 100.0 * config.stop_threshold;
  if (config.stop_threshold > 0.0 && last >= wanted)
    return fmt::format("the validation accuracy {:.2f} % reaches `stop-threshold` {:g}", last,
                       config.stop_threshold);
  const auto best = std::ranges::max_element(
      accuracies, {}, &std::pair<const std::int64_t, double>::second);  // the first of equal ones
  const std::int64_t since = std::distance(best, accuracies.end()) - 1;
  if (config.early_stop == 0 || since < config.early_stop) return {};
  return fmt::format("the last {} no better than {:.2f} % after {} (`early-stop` {})",
                     since == 1 ? "validation was" : fmt::format("{} validations were", since),
                     best->second, counted(best->first, "update"), config.early_stop);
}

std::int64_t checkpoints_from(const run::Run& config, std::int64_t first) {
  if (first > config.iterations) return 0;
  const std::int64_t before_last = config.iterations - 1;
  const std::int64_t saved = config.checkpoint_every;
  const std::int64_t validated = config.validate_every;
  std::int64_t count = 1;  // the last one is always saved
  if (saved <= 0) return count;
  count += multiples(saved, first, before_last);
  if (config.validation != run::ValidationMode::End || validated <= 0) return count;
  // Validation points that are not saved anyway; iteration 0 is not one.
  const std::int64_t from = std::max<std::int64_t>(first, 1);
  count += multiples(validated, from, before_last);
  const std::int64_t step = saved / std::gcd(saved, validated);
  if (step <= before_last / validated) count -= multiples(step * validated, from, before_last);
  return count;
}

}  // namespace millrace::training
