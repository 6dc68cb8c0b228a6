// SPDX-License-Identifier: Apache-2.0
#include "cli/machine_file.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <optional>
#include <string_view>
#include <vector>

#include "cli/options.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "run/toml_file.hpp"

namespace millrace::cli {
namespace {

using partition::DeviceModel;
using partition::Machine;

constexpr std::string_view kExpected =
    "a machine file has a section such as [float32] with flops-per-second and bytes-per-second, "
    "and [link]; millrace bench --machine-file FILE writes one";
// Beyond every machine: an error in the exponent.
constexpr double kMostRate = 1e24;
constexpr double kMostSeconds = 3600.0;
constexpr std::int64_t kMostCores = 1'000'000;
constexpr std::int64_t kMostMemory = 1'000'000'000'000'000'000;
constexpr std::array kTypes = {DType::F32, DType::BF16, DType::F16};

/// The keys of one section, which are all known or refused.
class MachineSection {
 public:
  MachineSection(const toml::value& table, std::string file, std::string name)
      : table_(table), file_(std::move(file)), name_(std::move(name)) {}

  /// Errors: Config for a number outside [low, high], and for none if `otherwise` is none.
  double number(const char* key, std::optional<double> otherwise, double low, double high) {
    const toml::value* value = find(key);
    if (value == nullptr && otherwise) return *otherwise;
    if (value == nullptr)
      fail(ErrorKind::Config, "{}:{}: [{}] lacks {}; {}", file_, run::line_of(table_.location()),
           name_, key, kExpected);
    double found = -1.0;
    if (value->is_floating()) found = value->as_floating();
    if (value->is_integer()) found = static_cast<double>(value->as_integer());
    const bool number = value->is_floating() || value->is_integer();
    if (!number || !(found >= low) || !(found <= high))
      fail(ErrorKind::Config, "{}: expected a number from {:g} to {:g}{}", place(*value, key), low,
           high, number ? fmt::format(", not {:g}", found) : "");
    return found;
  }
  /// 0 if the key is missing. Errors: Config for anything but a whole number from 0 to `high`.
  std::int64_t count(const char* key, std::int64_t high) {
    const toml::value* value = find(key);
    if (value == nullptr) return 0;
    const double real = value->is_floating() ? value->as_floating() : 0.0;
    const auto most = static_cast<double>(high);
    if (value->is_integer() && value->as_integer() >= 0 && value->as_integer() <= high)
      return value->as_integer();
    if (value->is_floating() && real >= 0.0 && real <= most && real == std::floor(real))
      return static_cast<std::int64_t>(real);  // 64e9
    std::string found;
    if (value->is_integer()) found = fmt::format(", not {}", value->as_integer());
    if (value->is_floating()) found = fmt::format(", not {:g}", real);
    fail(ErrorKind::Config, "{}: expected a whole number from 0 to {}{}", place(*value, key), high,
         found);
  }
  std::string text(const char* key) {
    const toml::value* value = find(key);
    if (value == nullptr) return {};
    if (!value->is_string())
      fail(ErrorKind::Config, "{}: expected a quoted string", place(*value, key));
    return toml::get<std::string>(*value);
  }
  bool flag(const char* key) {
    const toml::value* value = find(key);
    if (value == nullptr) return false;
    if (!value->is_boolean())
      fail(ErrorKind::Config, "{}: expected true or false", place(*value, key));
    return value->as_boolean();
  }
  void refuse_others() const {
    for (const auto& [key, value] : table_.as_table())
      if (const std::string nearest = nearest_match(key, known_);
          std::find(known_.begin(), known_.end(), key) == known_.end())
        fail(ErrorKind::Config, "{}: unknown key; {}", place(value, key),
             nearest.empty() ? fmt::format("keys: {}", join(known_, ", "))
                             : fmt::format("did you mean {}?", nearest));
  }

 private:
  const toml::value* find(const char* key) {
    known_.emplace_back(key);
    const auto& table = table_.as_table();
    const auto found = table.find(key);
    return found == table.end() ? nullptr : &found->second;
  }
  [[nodiscard]] std::string place(const toml::value& value, std::string_view key) const {
    return fmt::format("{}:{}: [{}] {}", file_, run::line_of(value.location()), name_, key);
  }

  const toml::value& table_;
  std::string file_;
  std::string name_;
  std::vector<std::string> known_;
};

void read_section(Machine& machine, const std::string& name, MachineSection section) {
  constexpr double kLeastRate = 1.0;
  if (name == "machine") {
    machine.name = section.text("name");
    machine.cores = static_cast<int>(section.count("cores", kMostCores));
    machine.instructions = section.text("instructions");
    machine.memory = section.count("memory", kMostMemory);
  } else if (name == "link") {
    machine.link = {
        .latency = section.number("latency", std::nullopt, 0.0, kMostSeconds),
        .bytes_per_second = section.number("bytes-per-second", std::nullopt, kLeastRate, kMostRate),
        .exchanged_per_second = section.number("exchanged-bytes-per-second", 0.0, 0.0, kMostRate),
        .receiver_copies = section.flag("receiver-copies")};
  } else {
    for (const DType type : kTypes)
      if (name == name_of(type))
        machine.devices[type] = {
            .name = {},
            .flops_per_second =
                section.number("flops-per-second", std::nullopt, kLeastRate, kMostRate),
            .bytes_per_second =
                section.number("bytes-per-second", std::nullopt, kLeastRate, kMostRate),
            .seconds_per_kernel = section.number("seconds-per-kernel", 0.0, 0.0, kMostSeconds),
            .depthwise_flops_per_second =
                section.number("depthwise-flops-per-second", 0.0, 0.0, kMostRate)};
  }
  section.refuse_others();
}

std::vector<std::string> section_names() {
  std::vector<std::string> names = {"machine", "link"};
  for (const DType type : kTypes) names.emplace_back(name_of(type));
  return names;
}

}  // namespace

std::string to_toml(const Machine& machine) {
  std::string text = fmt::format(
      "# What plans need to know of a machine: millrace plan --device FILE --link FILE. Rates are "
      "those\n# of a device with this many cores while all devices of the machine work; per second "
      "and in bytes.\n[machine]\nname = \"{}\"\ncores = {}\ninstructions = \"{}\"\nmemory = {}\n",
      machine.name, machine.cores, machine.instructions, machine.memory);
  for (const auto& [type, device] : machine.devices)
    text += fmt::format(
        "\n[{}]\nflops-per-second = {:.4e}\ndepthwise-flops-per-second = {:.4e}\n"
        "bytes-per-second = {:.4e}\nseconds-per-kernel = {:.4e}\n",
        name_of(type), device.flops_per_second, device.depthwise_flops_per_second,
        device.bytes_per_second, device.seconds_per_kernel);
  if (machine.link)
    text += fmt::format(
        "\n[link]\nlatency = {:.4e}\nbytes-per-second = {:.4e}\n"
        "# Each way, while both ends send.\nexchanged-bytes-per-second = {:.4e}\n"
        "# The processor of the receiver moves the bytes, as within a machine.\n"
        "receiver-copies = {}\n",
        machine.link->latency, machine.link->bytes_per_second, machine.link->exchanged_per_second,
        machine.link->receiver_copies);
  return text;
}

Machine parse_machine(const std::string& text, const std::string& file_name) {
  const toml::value root = run::parse_toml(text, file_name, kExpected);
  Machine machine;
  for (const auto& [name, table] : root.as_table()) {
    const std::vector<std::string> known = section_names();
    if (!table.is_table() || std::find(known.begin(), known.end(), name) == known.end())
      fail(ErrorKind::Config, "{}:{}: unknown section [{}]; sections: {}", file_name,
           run::line_of(table.location()), name, join(known, ", "));
    read_section(machine, name, MachineSection(table, file_name, name));
  }
  for (auto& [type, device] : machine.devices) device.name = machine.name;
  return machine;
}

Machine read_machine(const std::filesystem::path& file) {
  return parse_machine(io::read_text(file, kMaxConfigBytes), file.string());
}

}  // namespace millrace::cli
