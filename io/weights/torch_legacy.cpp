// SPDX-License-Identifier: Apache-2.0
#include "io/weights/torch_legacy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/error.hpp"
#include "io/weights/torch_types.hpp"

namespace millrace::io {
namespace {

/// The pickle of 0x1950a86a20f9469cfc6c.
constexpr std::string_view kMagic("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15);
constexpr std::int64_t kVersion = 1001;
constexpr std::size_t kMostPickle = 16'000'000;

class Parser {
 public:
  Parser(std::span<const std::byte> bytes, std::string_view label) : rest_(bytes), label_(label) {}

  LegacyTorch parse() && {
    (void)take(std::min(kMagic.size(), rest_.size()));
    const Pickle version = pickle("version");
    const auto* number = version.as<std::int64_t>(version.root);
    if (number == nullptr || *number != kVersion)
      refuse(fmt::format("its version is not {}", kVersion));
    require_little_endian(pickle("facts"));
    LegacyTorch parts{.pickle = pickle("object"), .storages = {}};
    const Pickle keys = pickle("list of storages");
    const auto* list = keys.as<PickledSequence>(keys.root);
    if (list == nullptr) refuse("its storages are no list");
    const std::map<std::string, PickledStorage> storages = storages_of(parts.pickle);
    for (const PickleId id : list->items) {
      const auto* key = keys.as<std::string>(id);
      const auto found = key == nullptr ? storages.end() : storages.find(*key);
      if (found == storages.end()) refuse("a storage belongs to no tensor");
      parts.storages[*key] = elements_of(found->second);
    }
    if (!rest_.empty())
      fail(ErrorKind::Data, "{}: {} bytes follow its last storage: fetch it again", label_,
           rest_.size());
    return parts;
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    fail(ErrorKind::Data, "{}: {}: load it and save it again with PyTorch 1.6 or later", label_,
         what);
  }

  std::span<const std::byte> take(std::size_t count) {
    if (count > rest_.size())
      fail(ErrorKind::Data, "{}: it ends too early: fetch it again", label_);
    const std::span<const std::byte> taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
  }

  Pickle pickle(std::string_view part) {
    Pickle result = parse_pickle(rest_.first(std::min(rest_.size(), kMostPickle)),
                                 fmt::format("{}: its {}", label_, part));
    (void)take(result.size);
    return result;
  }

  void require_little_endian(const Pickle& facts) const {
    const auto* dictionary = facts.as<PickledDictionary>(facts.root);
    if (dictionary == nullptr) refuse("its facts are no dictionary");
    for (const auto& [key, value] : dictionary->items) {
      const auto* name = facts.as<std::string>(key);
      const auto* little = facts.as<std::int64_t>(value);
      if (name != nullptr && *name == "little_endian" && (little == nullptr || *little != 1))
        refuse("its numbers are big-endian");
    }
  }

  static std::map<std::string, PickledStorage> storages_of(const Pickle& object) {
    std::map<std::string, PickledStorage> storages;
    for (const PickleValue& value : object.values)
      if (const auto* storage = std::get_if<PickledStorage>(&value.value))
        storages.emplace(storage->key, *storage);
    return storages;
  }

  std::span<const std::byte> elements_of(const PickledStorage& storage) {
    std::int64_t count = 0;
    std::memcpy(&count, take(sizeof count).data(), sizeof count);
    const TorchType* const type = find_torch_type(storage.type);
    if (type == nullptr) refuse(fmt::format("elements of a {} cannot be read", storage.type));
    if (count != storage.elements || count < 0)
      refuse(fmt::format("storage {} should have {} elements, but has {}", storage.key,
                         storage.elements, count));
    const auto most = static_cast<std::int64_t>(rest_.size()) / type->bytes;
    return take(static_cast<std::size_t>(std::min(count, most + 1) * type->bytes));
  }

  std::span<const std::byte> rest_;
  std::string_view label_;
};

}  // namespace

bool is_legacy_torch(std::string_view first) {
  constexpr std::size_t kEnough = 9;
  return first.size() >= kEnough && first.starts_with(kMagic.substr(0, kEnough));
}

LegacyTorch parse_legacy_torch(std::span<const std::byte> bytes, std::string_view label) {
  return Parser(bytes, label).parse();
}

}  // namespace millrace::io
