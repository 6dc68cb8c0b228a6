// SPDX-License-Identifier: Apache-2.0
#include "io/staged_name.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <fstream>
#include <random>
#include <span>
#include <string>

#include "core/crc32c.hpp"
#include "core/text.hpp"

namespace millrace::io {
namespace {

constexpr std::string_view kTemporary = ".tmp.";

std::string to_string(const Mark& mark) {
  return fmt::format("{}-{:08x}-{:08x}", mark.process, mark.machine, mark.random);
}

std::optional<std::uint32_t> parse_hex(std::string_view text) {
  std::uint32_t value = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value, 16);
  if (parsed.ec != std::errc{} || parsed.ptr != end) return {};
  return value;
}

std::optional<Mark> parse_mark(std::string_view text) {
  constexpr std::size_t kHexBytes = 9;  // "-0123abcd"
  if (text.size() <= 2 * kHexBytes) return {};
  const std::size_t digits = text.size() - 2 * kHexBytes;
  const auto process = parse_number<std::int64_t>(text.substr(0, digits));
  const auto machine = parse_hex(text.substr(digits + 1, kHexBytes - 1));
  const auto random = parse_hex(text.substr(digits + kHexBytes + 1));
  if (!process || !machine || !random) return {};
  const Mark mark{*process, *machine, *random};
  if (to_string(mark) != text) return {};
  return mark;
}

}  // namespace

std::optional<std::uint32_t> this_boot() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  if (!std::getline(file, id) || id.empty()) return {};
  return crc32c(std::as_bytes(std::span(id)));
}

std::filesystem::path temporary_for(const std::filesystem::path& path) {
  std::filesystem::path temporary = path;
  temporary += kTemporary;
  temporary += to_string({.process = ::getpid(),
                          .machine = this_boot().value_or(0),
                          .random = std::random_device{}()});
  return temporary;
}

std::optional<StagedName> parse_staged(std::string_view name) {
  const std::size_t infix = name.rfind(kTemporary);
  if (infix == std::string_view::npos) return {};
  const auto mark = parse_mark(name.substr(infix + kTemporary.size()));
  if (!mark) return {};
  return StagedName{name.substr(0, infix), *mark};
}

}  // namespace millrace::io
