// SPDX-License-Identifier: Apache-2.0
//
// What Habana's two trainers have in common: most names, and what those become.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cli/dialect.hpp"

namespace millrace::cli {

/// The names of one trainer behind those that both have.
[[nodiscard]] std::vector<DialectWord> with_habana_words(std::span<const DialectWord> own);

/// --dtype fp32 or bf16, and fp16 where the trainer `has_fp16`; --data_loader_image_type. Errors:
/// Usage for other types.
void set_habana_types(DialectReader& read, bool has_fp16);
/// --hooks, and --profile_steps, which one trainer takes without the hook. Errors: Usage for a hook
/// that there is not.
void set_habana_hooks(DialectReader& read, bool profiles_without_hook);
/// Threads of kernels and of loaders, where automatic is 0 or "auto".
void set_habana_threads(DialectReader& read);
/// With --eval_only everything that validation has use for; false without it.
[[nodiscard]] bool only_evaluates(DialectReader& read, bool has_fp16);
/// Directory, frequency of logs, what is trained.
void set_habana_run(DialectReader& read);
/// Epochs of warm-up. Errors: Usage when there are some with --disable_warmup.
[[nodiscard]] double habana_warmup(DialectReader& read, double otherwise);

}  // namespace millrace::cli
