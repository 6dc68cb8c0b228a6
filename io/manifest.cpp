// SPDX-License-Identifier: Apache-2.0
#include "io/manifest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <span>

#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "core/json.hpp"
#include "io/tensor_checks.hpp"

namespace millrace::io {
namespace {

constexpr std::string_view kFormatName = "millrace checkpoint";
constexpr std::string_view kObjectEnd = "\n}\n";
constexpr std::string_view kSealBegin = ",\n \"crc32c\": \"";
constexpr std::string_view kSealEnd = "\"\n}\n";
constexpr std::size_t kHexDigits = 8;

constexpr std::array kRoles = {TensorRole::Parameter, TensorRole::State, TensorRole::Slot};
constexpr std::array kTypes = {DType::F32, DType::BF16, DType::F16, DType::U8, DType::I32};

std::string hex(std::uint32_t crc) { return fmt::format("{:08x}", crc); }

Json to_json(const TensorEntry& entry) {
  return Json::object({{"name", entry.info.name},
                       {"role", name_of(entry.info.role)},
                       {"dtype", name_of(entry.info.type)},
                       {"shape", entry.info.shape},
                       {"crc32c", hex(entry.crc32c)}});
}

Json to_json(const PartEntry& part) {
  Json tensors = Json::list();
  for (const TensorEntry& entry : part.tensors) tensors.push_back(to_json(entry));
  return Json::object({{"file", part.file},
                       {"bytes", part.checksum.bytes},
                       {"crc32c", hex(part.checksum.crc32c)},
                       {"tensors", std::move(tensors)}});
}

// Reads members of one JSON object; errors name the manifest and the place in it.
class Fields {
 public:
  Fields(const Json& object, std::string_view label, std::string where)
      : object_(object), label_(label), where_(std::move(where)) {
    if (!object_.is_object()) bad("", "is not an object");
  }

  [[noreturn]] void bad(std::string_view key, std::string_view what) const {
    fail(ErrorKind::Checkpoint, "{}: {}{} {}", label_, where_, key, what);
  }
  [[nodiscard]] const Json& member(const char* key) const {
    const Json* const found = object_.find(key);
    if (found == nullptr) bad(key, "is missing");
    return *found;
  }
  [[nodiscard]] std::string text(const char* key) const {
    const Json& value = member(key);
    if (!value.is_text()) bad(key, "is not a string");
    return value.text();
  }
  [[nodiscard]] std::int64_t count(const char* key) const {
    const auto value = as_count(member(key));
    if (!value) bad(key, "is not a non-negative integer");
    return *value;
  }
  void read(const char* key, std::string& value) const { value = text(key); }
  void read(const char* key, std::int64_t& value) const { value = count(key); }
  void read(const char* key, double& value) const {
    if (!member(key).is_number()) bad(key, "is not a number");
    value = member(key).as_double();
  }
  [[nodiscard]] std::span<const Json> list(const char* key) const {
    const Json& value = member(key);
    if (!value.is_list()) bad(key, "is not a list");
    return value.items();
  }
  [[nodiscard]] std::uint32_t crc(const char* key) const {
    const std::string digits = text(key);
    const bool plain = digits.size() == kHexDigits &&
                       digits.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (!plain) bad(key, "is not a checksum");
    return static_cast<std::uint32_t>(std::stoul(digits, nullptr, 16));
  }
  [[nodiscard]] std::vector<std::int64_t> extents(const char* key) const {
    std::vector<std::int64_t> shape;
    for (const Json& item : list(key)) {
      const auto extent = as_count(item);
      if (!extent || *extent == 0) bad(key, "has an extent that is not positive");
      shape.push_back(*extent);
    }
    if (shape.size() > kMaxRank) bad(key, fmt::format("has more than {} extents", kMaxRank));
    return shape;
  }
  /// The value whose name_of equals the string.
  template <class Enum, std::size_t N>
  [[nodiscard]] Enum one_of(const char* key, const std::array<Enum, N>& values) const {
    const std::string name = text(key);
    for (const Enum value : values) {
      if (name_of(value) == name) return value;
    }
    bad(key, fmt::format("\"{}\" is unknown", name));
  }

 private:
  static std::optional<std::int64_t> as_count(const Json& value) {
    if (!value.is_unsigned()) return std::nullopt;
    const std::uint64_t number = value.as_uint64();
    if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      return std::nullopt;
    return static_cast<std::int64_t>(number);
  }

  const Json& object_;
  std::string_view label_;
  std::string where_;
};

TensorEntry read_tensor(const Json& object, std::string_view label) {
  const Fields at_first(object, label, "tensor ");
  TensorEntry entry;
  entry.info.name = at_first.text("name");
  if (const auto problem = name_problem(entry.info.name); !problem.empty())
    at_first.bad("name", problem);
  const Fields fields(object, label, fmt::format("tensor {}: ", entry.info.name));
  entry.info.role = fields.one_of("role", kRoles);
  entry.info.type = fields.one_of("dtype", kTypes);
  entry.info.shape = fields.extents("shape");
  entry.crc32c = fields.crc("crc32c");
  if (!checked_elements(entry.info.shape, size_of(entry.info.type)))
    fields.bad("shape", "is too large");
  return entry;
}

// Part files must be in the directory of the manifest.
bool is_part_name(std::string_view name) {
  constexpr std::string_view kBegin = "part-";
  constexpr std::string_view kEnd = ".h5";
  if (name.size() <= kBegin.size() + kEnd.size() || !name.starts_with(kBegin) ||
      !name.ends_with(kEnd))
    return false;
  const auto digits = name.substr(kBegin.size(), name.size() - kBegin.size() - kEnd.size());
  return digits.find_first_not_of("0123456789") == std::string_view::npos;
}

PartEntry read_part(const Json& object, std::string_view label) {
  const Fields fields(object, label, "part ");
  PartEntry part;
  part.file = fields.text("file");
  if (!is_part_name(part.file)) fields.bad("file", "is not of the form part-<number>.h5");
  part.checksum.bytes = static_cast<std::uint64_t>(fields.count("bytes"));
  part.checksum.crc32c = fields.crc("crc32c");
  std::uint64_t room = part.checksum.bytes;
  for (const Json& item : fields.list("tensors")) {
    TensorEntry entry = read_tensor(item, label);
    const auto bytes = static_cast<std::uint64_t>(entry.info.bytes());
    // Data is not compressed, so a manifest cannot make a reader allocate more than the file size.
    if (bytes > room) fields.bad(part.file, "is smaller than the tensors listed in it");
    room -= bytes;
    part.tensors.push_back(std::move(entry));
  }
  return part;
}

// The JSON under the seal, with its closing brace.
std::string_view unsealed_part(std::string_view text, std::string_view label) {
  const std::size_t seal = kSealBegin.size() + kHexDigits + kSealEnd.size();
  const bool has_seal = text.size() > seal && text.ends_with(kSealEnd) &&
                        text.substr(text.size() - seal).starts_with(kSealBegin);
  if (!has_seal)
    fail(ErrorKind::Checkpoint, "{}: does not end with its checksum: truncated or damaged", label);
  const std::string_view body = text.substr(0, text.size() - seal);
  const std::string actual = hex(crc32c(std::as_bytes(std::span(body))));
  const std::string_view stored = text.substr(body.size() + kSealBegin.size(), kHexDigits);
  if (stored != actual)
    fail(ErrorKind::Checkpoint, "{}: damaged: checksum {} expected, {} found", label, stored,
         actual);
  return body;
}

Json parse_json(std::string_view body, std::string_view label) {
  try {
    return Json::parse(std::string(body) + std::string(kObjectEnd));
  } catch (const JsonError& error) {
    fail(ErrorKind::Checkpoint, "{}: not valid JSON: {}", label, error.what());
  }
}

void require_known_version(const Fields& fields) {
  if (fields.text("format") != kFormatName) fields.bad("format", "is not a checkpoint format");
  const std::int64_t version = fields.count("format_version");
  if (version < 1 || version > kCheckpointFormatVersion)
    fields.bad("format_version",
               fmt::format("{} was written by a newer millrace; this one reads up to {}", version,
                           kCheckpointFormatVersion));
}

/// Visits the fields of a header in the order of the file.
template <class Header, class Visit>
void visit_fields(Header& header, const Visit& visit) {
  visit("iteration", header.iteration);
  visit("epoch", header.epoch);
  visit("next_position", header.next_position);
  visit("model", header.model);
  visit("config_toml", header.config_toml);
  visit("environment", header.environment);
  visit("data", header.data);
  visit("log_state", header.log_state);
  visit("scaling_state", header.scaling_state);
  visit("stand_ins", header.stand_ins);
  visit("skipped_in_row", header.skipped_in_row);
  visit("network", header.network);
}

/// Fields that the first versions did not write.
constexpr std::array<std::string_view, 5> kOptional = {"data", "scaling_state", "stand_ins",
                                                       "skipped_in_row", "network"};

void require_unique(const Manifest& manifest, const Fields& fields) {
  std::set<std::string_view> names;
  std::set<std::string_view> files;
  for (const PartEntry& part : manifest.parts) {
    if (!files.insert(part.file).second) fields.bad(part.file, "is listed twice");
    for (const TensorEntry& entry : part.tensors) {
      if (!names.insert(entry.info.name).second) fields.bad(entry.info.name, "is listed twice");
    }
  }
}

}  // namespace

std::string_view name_of(TensorRole role) noexcept {
  switch (role) {
    case TensorRole::Parameter:
      return "parameter";
    case TensorRole::State:
      return "state";
    case TensorRole::Slot:
      return "slot";
  }
  return "?";
}

std::string_view name_problem(std::string_view name) noexcept {
  if (name.empty() || name.size() > kMaxNameLength) return "is empty or too long";
  for (const char c : name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return "contains a control character";
  }
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view component = name.substr(begin, end - begin);
    if (component.empty() || component == "." || component == "..")
      return "has an empty, . or .. component";
    begin = end + 1;
  }
  return "";
}

std::string seal_manifest(std::string_view unsealed) {
  MILLRACE_ASSERT(unsealed.size() > kObjectEnd.size() &&
                  unsealed.substr(unsealed.size() - kObjectEnd.size()) == kObjectEnd);
  const std::string_view body = unsealed.substr(0, unsealed.size() - kObjectEnd.size());
  return fmt::format("{}{}{}{}", body, kSealBegin, hex(crc32c(std::as_bytes(std::span(body)))),
                     kSealEnd);
}

std::string to_text(const Manifest& manifest) {
  const CheckpointHeader& header = manifest.header;
  MILLRACE_ASSERT(std::isfinite(header.epoch) && header.iteration >= 0 &&
                  header.next_position >= 0);
  Json all = Json::object({{"format", kFormatName}, {"format_version", kCheckpointFormatVersion}});
  visit_fields(header, [&all](const char* key, const auto& value) { all.set(key, value); });
  Json parts = Json::list();
  for (const PartEntry& part : manifest.parts) parts.push_back(to_json(part));
  all.set("parts", std::move(parts));
  try {
    return seal_manifest(all.dump(1) + "\n");
  } catch (const JsonError& error) {
    fail(ErrorKind::Config, "checkpoint {}: a string to be saved is not UTF-8: {}",
         header.iteration, error.what());
  }
}

Manifest parse_manifest(std::string_view text, std::string_view label) {
  const Json all = parse_json(unsealed_part(text, label), label);
  const Fields fields(all, label, "");
  require_known_version(fields);
  Manifest manifest;
  visit_fields(manifest.header, [&](const char* key, auto& value) {
    if (all.contains(key) || std::ranges::find(kOptional, key) == kOptional.end())
      fields.read(key, value);
  });
  for (const Json& part : fields.list("parts")) manifest.parts.push_back(read_part(part, label));
  require_unique(manifest, fields);
  return manifest;
}

}  // namespace millrace::io
