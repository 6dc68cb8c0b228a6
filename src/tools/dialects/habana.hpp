// SPDX-License-Identifier: Apache-2.0
//
// The names that Habana's two trainers share, and their translation.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tools/dialects/dialect.hpp"

namespace millrace::cli {

/// The shared names, followed by the `own` names of one trainer.
[[nodiscard]] std::vector<DialectWord> with_habana_words(std::span<const DialectWord> own);

/// --dtype fp32 or bf16, and fp16 if the trainer `has_fp16`; --data_loader_image_type. Errors:
/// Usage for other types.
void set_habana_types(DialectReader& read, bool has_fp16);
/// --hooks, and --profile_steps, which one of the trainers accepts without a hook. Errors: Usage
/// for an unknown hook.
void set_habana_hooks(DialectReader& read, bool profiles_without_hook);
/// Threads of kernels and of loaders; 0 and "auto" keep the default.
void set_habana_threads(DialectReader& read);
/// With --eval_only: sets everything that validation needs and returns true.
[[nodiscard]] bool only_evaluates(DialectReader& read, bool has_fp16);
/// Directories, log interval, trained parameters. `data` is where the guide prepares the data set.
void set_habana_run(DialectReader& read, std::string_view data);
/// Epochs of warm-up. Errors: Usage for a warm-up with --disable_warmup.
[[nodiscard]] double habana_warmup(DialectReader& read, double otherwise);

}  // namespace millrace::cli
