// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoint_layout.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <system_error>

#include "core/text.hpp"
#include "io/atomic_file.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "ckpt-";
constexpr std::string_view kTemporaryInfix = ".tmp.";

// Accepts only the shortest form: ckpt-007 must not be another name of ckpt-7.
std::optional<std::int64_t> as_number(std::string_view text) {
  const std::optional<std::int64_t> number = parse_number<std::int64_t>(text);
  if (!number || *number < 0 || std::to_string(*number) != text) return std::nullopt;
  return number;
}

}  // namespace

std::string checkpoint_name(std::int64_t iteration) { return fmt::format("ckpt-{}", iteration); }

std::string temporary_name(std::string_view name, std::int64_t process) {
  return fmt::format(".{}{}{}", name, kTemporaryInfix, process);
}

std::string part_name(int number) { return fmt::format("part-{:03}.h5", number); }

std::string dataset_path(const TensorInfo& info) {
  switch (info.role) {
    case TensorRole::Parameter:
      return "/parameters/" + info.name;
    case TensorRole::State:
      return "/state/" + info.name;
    case TensorRole::Slot:
      return "/slots/" + info.name;
  }
  return info.name;
}

std::optional<std::int64_t> iteration_in(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  if (name.ends_with(kReplacedSuffix)) name.remove_suffix(kReplacedSuffix.size());
  return as_number(name);
}

std::optional<std::int64_t> process_in(std::string_view name) {
  if (!name.starts_with('.')) return std::nullopt;
  name.remove_prefix(1);
  const std::size_t infix = name.find(kTemporaryInfix);
  if (infix == std::string_view::npos || !iteration_in(name.substr(0, infix))) return std::nullopt;
  return as_number(name.substr(infix + kTemporaryInfix.size()));
}

void remove_checkpoint(const fs::path& checkpoint) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(checkpoint, error))) return;
  const fs::path doomed =
      checkpoint.parent_path() / temporary_name(checkpoint.filename().string(), ::getpid());
  fs::remove_all(doomed, error);
  fs::rename(checkpoint, doomed, error);
  if (error) fail_io("remove", checkpoint, error.value());
  fs::remove_all(doomed, error);
  if (error) fail_io("remove", doomed, error.value());
}

}  // namespace millrace::io
