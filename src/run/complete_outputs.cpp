// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "run/complete_parts.hpp"

namespace millrace::run {
namespace {

/// Refuses options that need a checkpoint in a run without a directory.
void check_nothing_saved(const Patch& given, const Run& config) {
  const Setting* stop = given.find("stop-after");
  if (stop != nullptr)
    fail(ErrorKind::Usage,
         "{} saves a checkpoint, but `no-logs` saves nothing: leave one of them out", stop->where);
  if (config.validation == ValidationMode::End)
    fail(ErrorKind::Usage,
         "`validation-mode` end validates saved checkpoints, but `no-logs` saves nothing: validate "
         "with mode all, or leave `no-logs` out");
}

void check_keeping_best(const Patch& given, const Run& config) {
  if (config.keep_best && config.validation != ValidationMode::All)
    fail(ErrorKind::Usage,
         "{} needs validation during training: leave out the option that disables it "
         "(`validation-mode` end keeps all checkpoints)",
         given.find("keep-best")->where);
}

/// Sets the time between checkpoints that was asked for.
void set_interval(const CheckpointInterval& every, Run& config) {
  using Unit = CheckpointInterval::Unit;
  if (every.unit == Unit::Minutes) {
    config.checkpoint_minutes = every.number;
    return;
  }
  const double updates = every.unit == Unit::Updates
                             ? every.number
                             : every.number * static_cast<double>(config.iterations_per_epoch);
  config.checkpoint_every = std::max<std::int64_t>(std::llround(updates), 1);
}

/// The validation batch, at most the number of validation images. A larger one would only waste
/// memory. It is the same for any number of replicas, so that its results are.
std::int64_t capped_batch(const Patch& options, std::int64_t wanted, const Run& config,
                          Notices& notices) {
  const std::int64_t images = config.data.validation_size;
  if (wanted <= images || images == 0) return wanted;
  if (const Setting* given = options.find("valid-batch-size"))
    notices.push_back(fmt::format("{} {} is reduced to {}, the number of validation images",
                                  given->where, wanted, images));
  return images;
}

}  // namespace

void complete_validation(const Patch& given, Run& config, Notices& notices) {
  const ValidationRequest& asked = config.validating;
  config.validation_batch_size = config.batch_size;
  if (config.validation == ValidationMode::None) return;
  config.validation_batch_size =
      capped_batch(given, asked.batch_size.value_or(config.batch_size), config, notices);
  if (const std::int64_t most = asked.most_batches.value_or(0); most > 0)
    config.data.validation_size = std::min(
        config.data.validation_size,
        checked_product(most, config.validation_batch_size, "validation micro-batches x images"));
  config.validate_every = asked.every_iterations
                              ? *asked.every_iterations
                              : checked_product(asked.every_epochs, config.iterations_per_epoch,
                                                "epochs between validations");
}

void complete_checkpoints(const Patch& given, Run& config, Notices& notices) {
  if (!config.logging.keeps) return check_nothing_saved(given, config);
  const CheckpointRequest& asked = config.saving;
  const bool averages = config.averaging.of_checkpoints();
  const bool all = config.validation == ValidationMode::End || averages;
  const int usual = config.layout.elastic ? 2 : 1;  // in case the newest is damaged
  config.max_checkpoints_to_keep = static_cast<int>(asked.keep.value_or(all ? 0 : usual));
  check_keeping_best(given, config);
  if (asked.every) return set_interval(*asked.every, config);
  const std::int64_t per_epoch = asked.only_last ? 0 : asked.per_epoch;
  if (per_epoch > 0)
    config.checkpoint_every = std::max<std::int64_t>(config.iterations_per_epoch / per_epoch, 1);
  else if (all)
    notices.emplace_back(
        "`validation-mode` end validates saved checkpoints, but only the final one will be saved");
}

void complete_logs(const Patch& given, Run& config, Notices& notices) {
  LogRequest& asked = config.logging;
  config.summary_every = asked.summary_every.value_or(0);
  config.tensorboard = asked.tensorboard || asked.summary_every;
  const bool told = asked.per_epoch || asked.every;
  if (asked.per_report && !told) {
    config.log_every = *asked.per_report;
    return;
  }
  if (asked.per_report)
    notices.push_back(fmt::format("{} has no effect here: {} sets the interval",
                                  given.find("batches-per-step")->where,
                                  asked.every ? "`log-freq`" : "`logs-per-epoch`"));
  if (!told && config.length.iterations) asked.every = LogRequest::kUpdatesPerLine;
  if (!told && !config.length.iterations) asked.per_epoch = LogRequest::kLinesPerEpoch;
  config.log_every = asked.per_epoch
                         ? std::max<std::int64_t>(config.iterations_per_epoch / *asked.per_epoch, 1)
                         : *asked.every;
}

void check_name(const Patch& given, const Run& config) {
  const LogRequest& asked = config.logging;
  if (!asked.keeps || !asked.place.empty() || asked.suffix.find('/') == std::string::npos) return;
  fail(ErrorKind::Usage,
       "{} '{}' must not contain a '/', because it is part of a directory's name; `log-dir` sets "
       "the parent directory",
       given.find("name-suffix")->where, asked.suffix);
}

}  // namespace millrace::run
