// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <filesystem>

#include "cli/commands.hpp"
#include "io/generate.hpp"

namespace millrace::cli {

int command_data_generate(const Invocation& invocation) {
  const Options& options = invocation.options;
  const std::filesystem::path directory = options.arguments.at(0);
  io::GenerateOptions generate;
  generate.train_records = options.integer("train-images").value_or(generate.train_records);
  generate.test_records = options.integer("test-images").value_or(generate.test_records);
  generate.seed = static_cast<std::uint64_t>(options.integer("seed").value_or(0));
  io::generate_cifar10_like(directory, generate);
  fmt::print("{} training and {} test images in {}\n", generate.train_records,
             generate.test_records, directory.string());
  return 0;
}

}  // namespace millrace::cli
