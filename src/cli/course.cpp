// SPDX-License-Identifier: Apache-2.0
#include "cli/course.hpp"

namespace millrace::cli {

void forget_course(Options& options) {
  for (const char* name : {"epochs", "max-iterations", "warmup", "warmup-epochs",
                           "warmup-iterations", "lr-horizon", "lr-horizon-epochs", "no-validation",
                           "epochs-between-evals", "iterations-between-evals", "valid-batch-size"})
    options.erase(name);
}

}  // namespace millrace::cli
