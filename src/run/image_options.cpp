// SPDX-License-Identifier: Apache-2.0
#include "run/image_options.hpp"

#include <cmath>

#include "core/error.hpp"

namespace millrace::run {

void check_mixing(const MixingConfig& config, std::int64_t batch_size) {
  if (!(config.mixup_alpha >= 0.0) || !std::isfinite(config.mixup_alpha))
    fail(ErrorKind::Config,
         "`mixup-alpha` {}: must be positive, as the parameter of Beta(alpha, alpha); 0 turns "
         "mixup off",
         config.mixup_alpha);
  if (!(config.cutmix_lambda >= 0.0 && config.cutmix_lambda <= 1.0))
    fail(ErrorKind::Config,
         "`cutmix-lambda` {}: must be 0 to 1, the share of an image that stays; 1 turns cutmix off",
         config.cutmix_lambda);
  if (config.on() && batch_size < 2)
    fail(ErrorKind::Config,
         "{} mixes images of the same micro-batch, but `batch-size` is {}: choose at least 2",
         config.mixup_alpha > 0.0 ? "`mixup-alpha`" : "`cutmix-lambda`", batch_size);
}

}  // namespace millrace::run
