// SPDX-License-Identifier: Apache-2.0
#include "train/divergence.hpp"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "core/error.hpp"
#include "io/checkpoint.hpp"
#include "run/learning_rate.hpp"

namespace millrace::training {
namespace {

/// A non-finite loss whose update was skipped left the weights alone, and the next loss may be
/// finite. If the update was not skipped, the weights are lost.
void require_loss(const run::Run& config, const comm::World& world, const ScalingState& scaling,
                  double loss, std::int64_t done, Reporter& reporter) {
  if (std::isfinite(loss)) return;
  const std::string what = fmt::format("the loss became {}", loss);
  if (scaling.skipped_in_row == 1)
    reporter.important(fmt::format("Update {}: {}; the update was skipped", done, what));
  if (scaling.skipped_in_row > 0) return;
  world.fail_together();  // all ranks know the loss
  fail_diverged(config, what, done);
}

}  // namespace

void fail_diverged(const run::Run& config, const std::string& what, std::int64_t done) {
  const std::filesystem::path& run = config.run_directory;
  const bool saved = !run.empty() && !io::list_checkpoints(run).empty();
  fail(ErrorKind::Numeric, "{} at update {} (learning rate {:.4g}): lower {}{}; {}", what, done,
       run::learning_rate_at(config.learning_rate, done - 1, config.iterations),
       run::field_of_rate(config),
       config.learning_rate.warmup_iterations > 0
           ? fmt::format(" or lengthen {}", run::field_of_warmup(config))
           : "",
       saved ? fmt::format("earlier checkpoints are in {}", (run / "checkpoints").string())
             : std::string("nothing was saved"));
}

void require_convergence(const run::Run& config, const comm::World& world,
                         const ScalingState& scaling, double loss, std::int64_t done,
                         const std::function<std::string()>& first_bad, Reporter& reporter) {
  require_loss(config, world, scaling, loss, done, reporter);
  if (scaling.skipped_in_row < kMaxSkippedInRow) return;
  const std::string parameter = first_bad();
  world.fail_together();  // all ranks count alike
  fail_diverged(
      config,
      fmt::format("loss, gradients or batch statistics were not finite for {} iterations in a row "
                  "(loss scale {:g}{})",
                  scaling.skipped_in_row, scaling.scale,
                  parameter.empty() ? "" : fmt::format("; the first of them: {}", parameter)),
      done);
}

}  // namespace millrace::training
