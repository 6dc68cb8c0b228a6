// SPDX-License-Identifier: Apache-2.0
#include "core/kernel_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "core/error.hpp"
#include "core/json.hpp"
#include "core/sha256.hpp"

namespace millrace {
namespace {

constexpr std::int64_t kVersion = 1;
constexpr std::string_view kFormat = "millrace kernel table";
constexpr std::string_view kFixed = "fixed";      // the same in every run
constexpr std::string_view kVarying = "varying";  // sums by atomic additions
constexpr std::array kPasses = {LinearPass::Forward, LinearPass::BackwardInput,
                                LinearPass::BackwardWeight};
constexpr std::array kTypes = {DType::F32, DType::BF16, DType::F16};

Json to_json(const MeasuredKernel& kernel) {
  Json knobs = Json::list();
  for (const EngineChoice::Knob& knob : kernel.choice.knobs)
    knobs.push_back(Json::list({knob.type, knob.value}));
  return Json::object({{"engine", kernel.choice.engine},
                       {"knobs", std::move(knobs)},
                       {"scratch-bytes", kernel.scratch},
                       {"order-of-sums", kernel.deterministic ? kFixed : kVarying},
                       {"microseconds", kernel.microseconds}});
}

Json to_json(const PassKey& key, const TableRow& row) {
  return Json::object({{"shape", key.shape},
                       {"type", name_of(key.type)},
                       {"pass", name_of(key.pass)},
                       {"best", to_json(row.best)},
                       {"proposed", to_json(row.usual)}});
}

/// Numbers of the library fit into 32 bits.
std::int64_t small_number(const Json& json) {
  const std::int64_t number = json.as_int64();
  if (number < 0 || number > 0x7fff'ffff)
    throw JsonError(fmt::format("{} is not a number of the library", number));
  return number;
}

bool is_fixed(const Json& json) {
  const bool fixed = json.text() == kFixed;
  if (fixed || json.text() == kVarying) return fixed;
  throw JsonError(
      fmt::format("order-of-sums is '{}', not {} or {}", json.text(), kFixed, kVarying));
}

MeasuredKernel kernel_of(const Json& json) {
  MeasuredKernel kernel;
  kernel.choice.engine = small_number(json.at("engine"));
  for (const Json& knob : json.at("knobs").items()) {
    if (knob.items().size() != 2) throw JsonError("a knob is a pair of type and value");
    // Values may be negative, such as "as the engine likes".
    kernel.choice.knobs.push_back({small_number(knob.items()[0]), knob.items()[1].as_int64()});
  }
  std::ranges::sort(kernel.choice.knobs);
  kernel.scratch = json.at("scratch-bytes").as_int64();
  kernel.deterministic = is_fixed(json.at("order-of-sums"));
  kernel.microseconds = json.at("microseconds").as_double();
  if (kernel.scratch < 0) throw JsonError("scratch-bytes is negative");
  if (!(kernel.microseconds > 0.0)) throw JsonError("microseconds is not above 0");
  return kernel;
}

template <class T, std::size_t N>
T named(const Json& json, const std::array<T, N>& all) {
  for (const T one : all)
    if (name_of(one) == json.text()) return one;
  throw JsonError(fmt::format("'{}' is unknown", json.text()));
}

std::pair<PassKey, TableRow> row_of(const Json& json) {
  return {{.shape = json.at("shape").text(),
           .type = named(json.at("type"), kTypes),
           .pass = named(json.at("pass"), kPasses)},
          {.best = kernel_of(json.at("best")), .usual = kernel_of(json.at("proposed"))}};
}

KernelTable table_of(const Json& json) {
  const Json* const format = json.find("format");
  if (format == nullptr || !format->is_text() || format->text() != kFormat)
    throw JsonError("this is not a kernel table");
  if (const std::int64_t version = json.at("version").as_int64(); version != kVersion)
    throw JsonError(fmt::format(
        "it has version {} of the format, and this program reads version {}", version, kVersion));
  KernelTable table{
      .device = json.at("device").text(), .library = json.at("library").text(), .rows = {}};
  for (const Json& item : json.at("rows").items()) {
    auto [key, row] = row_of(item);
    const std::string place =
        fmt::format("{} {} of {}", name_of(key.type), name_of(key.pass), key.shape);
    if (!table.rows.emplace(std::move(key), std::move(row)).second)
      throw JsonError(fmt::format("{} stands there twice", place));
  }
  return table;
}

}  // namespace

std::string_view name_of(LinearPass pass) {
  switch (pass) {
    case LinearPass::Forward:
      return "forward";
    case LinearPass::BackwardInput:
      return "backward-input";
    default:
      return "backward-weight";
  }
}

std::string why_unfit(const KernelTable& table, std::string_view device, std::string_view library) {
  if (table.device == device && table.library == library) return {};
  return fmt::format("it was measured on {} with {}, and this is {} with {}", table.device,
                     table.library, device, library);
}

std::string identity(const KernelTable& table) {
  constexpr std::size_t kDigits = 12;
  std::string text = fmt::format("{}\n{}\n", table.device, table.library);
  for (const auto& [key, row] : table.rows) {
    const EngineChoice& choice = row.best.choice;
    text +=
        fmt::format("{} {} {}: {}", key.shape, name_of(key.type), name_of(key.pass), choice.engine);
    for (const EngineChoice::Knob& knob : choice.knobs)
      text += fmt::format(" {}={}", knob.type, knob.value);
    text += '\n';
  }
  Sha256 digest;
  digest.update(std::as_bytes(std::span(text)));
  return digest.hex_digest().substr(0, kDigits);
}

/// One row a line, so that tables can be compared line by line.
std::string to_text(const KernelTable& table) {
  std::string text = fmt::format(
      "{{\"format\": {}, \"version\": {},\n \"device\": {}, \"library\": {},\n \"rows\": [",
      Json(kFormat).dump(), kVersion, Json(table.device).dump(), Json(table.library).dump());
  std::string_view separator = "\n  ";
  for (const auto& [key, row] : table.rows) {
    text += fmt::format("{}{}", separator, to_json(key, row).dump());
    separator = ",\n  ";
  }
  return text + "\n]}\n";
}

KernelTable parse_kernel_table(std::string_view text, std::string_view file) {
  try {
    return table_of(Json::parse(text, Json::Duplicates::Refused));
  } catch (const JsonError& error) {
    fail(ErrorKind::Config,
         "{}: {}: `kernel-table` takes a file that millrace bench `tune` FILE wrote", file,
         error.what());
  }
}

}  // namespace millrace
