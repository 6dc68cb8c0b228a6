// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "io/tensor_checks.hpp"
#include "tools/weights/archive.hpp"
#include "tools/weights/pickle.hpp"
#include "tools/weights/tensor_file.hpp"

namespace millrace::io {
namespace {

constexpr std::size_t kMostPickle = 16'000'000;

/// The elements of a storage of PyTorch.
struct TorchType {
  std::string_view storage;  ///< its class
  std::string_view name;     ///< of the type in safetensors
  std::int64_t bytes = 0;    ///< of an element
};
constexpr std::array kTorchTypes = std::to_array<TorchType>({{"FloatStorage", "F32", 4},
                                                             {"DoubleStorage", "F64", 8},
                                                             {"HalfStorage", "F16", 2},
                                                             {"BFloat16Storage", "BF16", 2},
                                                             {"LongStorage", "I64", 8},
                                                             {"IntStorage", "I32", 4},
                                                             {"ShortStorage", "I16", 2},
                                                             {"CharStorage", "I8", 1},
                                                             {"ByteStorage", "U8", 1},
                                                             {"BoolStorage", "BOOL", 1}});

/// nullptr for an unknown class.
constexpr const TorchType* find_torch_type(std::string_view storage) {
  for (const TorchType& type : kTorchTypes)
    if (type.storage == storage) return &type;
  return nullptr;
}

// ---- files from before PyTorch 1.6, and of today's with _use_new_zipfile_serialization=False:
// five pickles (a magic number, a version, facts about the machine, the object, the keys of its
// storages in order), then for each storage the number of its elements and these

struct LegacyTorch {
  Pickle pickle;                                               ///< the object
  std::map<std::string, std::span<const std::byte>> storages;  ///< by key; refer to the bytes
};

/// The pickle of 0x1950a86a20f9469cfc6c.
constexpr std::string_view kMagic("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15);
constexpr std::int64_t kVersion = 1001;

/// The parts of a file, whose bytes are untrusted. Errors: Data; messages begin with `label`.
class LegacyParser {
 public:
  LegacyParser(std::span<const std::byte> bytes, std::string_view label)
      : rest_(bytes), label_(label) {}

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
      if (const auto* storage = std::get_if<PickledStorage>(&value))
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

// ---- those, and archives

class TorchFile {
 public:
  explicit TorchFile(const std::filesystem::path& path)
      : file_(path),
        left_(kMostShared + static_cast<std::int64_t>(std::filesystem::file_size(path))) {}

  /// Takes the parts of an archive.
  void open_archive() {
    archive_.emplace(file_.path());
    const std::string pickle = archive_->find("/data.pkl");
    if (pickle.empty())
      fail(ErrorKind::Data,
           "{}: a zip archive without data.pkl is no file of torch.save: save the weights with it, "
           "or as safetensors",
           file_.path().string());
    folder_ = pickle.substr(0, pickle.rfind('/'));
    pickle_ = parse_pickle(archive_->read(pickle, kMostPickle), label("data.pkl"));
  }

  /// Takes the parts of a file from before PyTorch 1.6.
  void open_legacy() {
    bytes_ = read_file(file_.path(), std::filesystem::file_size(file_.path()));
    LegacyTorch parts = LegacyParser(bytes_, file_.path().string()).parse();
    pickle_ = std::move(parts.pickle);
    storages_ = std::move(parts.storages);
  }

  TensorFile read() && {
    const PickledDictionary* dictionary = state_dictionary();
    for (const auto& [key, item] : dictionary->items) {
      const auto* name = pickle_.as<std::string>(key);
      const auto* tensor = pickle_.as<PickledTensor>(item);
      if (name != nullptr && tensor != nullptr) add(*name, *tensor);
    }
    return std::move(file_);
  }

 private:
  [[nodiscard]] std::string label(std::string_view part) const {
    return fmt::format("{}: {}", file_.path().string(), part);
  }

  [[noreturn]] void refuse_damaged(std::string_view part, std::string_view what) const {
    fail(ErrorKind::Data, "{}: {}: the file is damaged: fetch it again", label(part), what);
  }

  [[nodiscard]] bool has_tensors(const PickledDictionary& dictionary) const {
    return std::ranges::any_of(dictionary.items, [this](const auto& item) {
      return pickle_.as<PickledTensor>(item.second) != nullptr;
    });
  }

  /// The dictionary with the tensors. Errors: Data, with the entries there are.
  [[nodiscard]] const PickledDictionary* state_dictionary() {
    const auto* root = pickle_.as<PickledDictionary>(pickle_.root);
    if (root == nullptr)
      fail(ErrorKind::Data,
           "{}: it is no dictionary of tensors; save model.state_dict() instead of the model",
           file_.path().string());
    if (has_tensors(*root)) return root;
    std::vector<std::string> entries;
    std::map<std::string, const PickledDictionary*> states;
    for (const auto& [key, item] : root->items) {
      const auto* name = pickle_.as<std::string>(key);
      if (name == nullptr) continue;
      entries.push_back(*name);
      const auto* dictionary = pickle_.as<PickledDictionary>(item);
      if (dictionary != nullptr && has_tensors(*dictionary)) states.emplace(*name, dictionary);
    }
    for (const char* wanted : {"state_dict", "model_state_dict", "model", "net"})
      if (const auto found = states.find(wanted); found != states.end()) {
        note_others(wanted, states);
        return found->second;
      }
    fail(ErrorKind::Data,
         "{}: none of its entries is a state dictionary ({}): save model.state_dict() alone",
         file_.path().string(), entries.empty() ? "it has none" : join(entries, ", "));
  }

  /// Averages of weights (timm's state_dict_ema) are often the better ones.
  void note_others(const std::string& taken,
                   const std::map<std::string, const PickledDictionary*>& states) {
    std::vector<std::string> others;
    for (const auto& [name, dictionary] : states)
      if (name != taken) others.push_back(name);
    if (others.empty()) return;
    file_.add_notice(
        fmt::format("{}: the tensors of {} are taken, not those of {}: to take others, save them "
                    "alone with torch.save",
                    file_.path().string(), taken, join(others, ", ")));
  }

  std::span<const std::byte> storage(const PickledStorage& storage, std::int64_t bytes) {
    const auto found = storages_.find(storage.key);
    if (found != storages_.end()) return found->second;
    const auto elements = checked_elements(std::array{storage.elements}, bytes);
    if (!elements) refuse_damaged("storage " + storage.key, "its size overflows");
    if (!archive_) refuse_damaged("storage " + storage.key, "it is missing");
    read_.push_back(archive_->read(fmt::format("{}/data/{}", folder_, storage.key),
                                   static_cast<std::uint64_t>(*elements * bytes)));
    return storages_.emplace(storage.key, read_.back()).first->second;
  }

  void add(const std::string& name, const PickledTensor& tensor) {
    const TorchType* const type = find_torch_type(tensor.storage.type);
    if (type == nullptr)
      fail(ErrorKind::Data, "{}: elements of a {} cannot be read: save the weights as float32",
           label(name), tensor.storage.type);
    const auto elements = checked_elements(tensor.shape, type->bytes);
    if (!elements || tensor.shape.size() != tensor.strides.size() || tensor.shape.size() > kMaxRank)
      refuse_damaged(name, fmt::format("no tensor has shape {} and strides {}",
                                       shape_text(tensor.shape), shape_text(tensor.strides)));
    const std::span<const std::byte> from = storage(tensor.storage, type->bytes);
    require_inside(name, tensor, static_cast<std::int64_t>(from.size()) / type->bytes);
    if (*elements > left_ / type->bytes)
      fail(ErrorKind::Data,
           "{}: with it, the tensors are over {} MB larger than the file, which repeats them: save "
           "them with clone()",
           label(name), kMostShared / 1'000'000);
    left_ -= *elements * type->bytes;
    const auto bytes = file_.keep(gathered(tensor, from, type->bytes, *elements));
    file_.add(name, {std::string(type->name), tensor.shape, bytes});
  }

  /// Errors: Data if an element lies outside of the storage.
  void require_inside(const std::string& name, const PickledTensor& tensor,
                      std::int64_t elements) const {
    // No sum overflows: each extent and stride is checked against the storage first.
    std::int64_t last = tensor.offset;
    bool inside = tensor.offset >= 0 && tensor.offset <= elements;
    bool empty = false;
    for (std::size_t i = 0; i < tensor.shape.size() && inside; ++i) {
      empty = empty || tensor.shape[i] == 0;
      if (tensor.shape[i] < 2) continue;
      const std::int64_t steps = tensor.shape[i] - 1;
      inside = tensor.strides[i] >= 0 && tensor.strides[i] <= elements / steps;
      if (inside) last += steps * tensor.strides[i];
      inside = inside && last < elements;
    }
    if (!inside || (!empty && last >= elements))
      refuse_damaged(name, fmt::format("it reaches beyond its storage of {} elements", elements));
  }

  /// The elements in row-major order.
  static std::vector<std::byte> gathered(const PickledTensor& tensor,
                                         std::span<const std::byte> from, std::int64_t bytes,
                                         std::int64_t elements) {
    const auto size = static_cast<std::size_t>(bytes);
    std::vector<std::byte> result(static_cast<std::size_t>(elements) * size);
    std::vector<std::int64_t> at(tensor.shape.size(), 0);
    std::int64_t source = tensor.offset;
    for (std::size_t i = 0; i < static_cast<std::size_t>(elements); ++i) {
      std::memcpy(result.data() + i * size, from.data() + static_cast<std::size_t>(source) * size,
                  size);
      for (std::size_t axis = at.size(); axis-- > 0;) {
        source += tensor.strides[axis];
        if (++at[axis] < tensor.shape[axis]) break;
        source -= tensor.shape[axis] * tensor.strides[axis];
        at[axis] = 0;
      }
    }
    return result;
  }

  /// Tensors may share storage, but a small file must not fill the memory.
  static constexpr std::int64_t kMostShared = 64'000'000;

  TensorFile file_;
  std::int64_t left_;  ///< bytes of tensors that may still be added
  std::optional<Archive> archive_;
  std::string folder_;
  std::vector<std::byte> bytes_;             ///< of a file without an archive
  std::deque<std::vector<std::byte>> read_;  ///< of the archive
  Pickle pickle_;
  std::map<std::string, std::span<const std::byte>> storages_;  ///< refer to bytes_ or read_
};

}  // namespace

bool is_legacy_torch(std::string_view first) {
  constexpr std::size_t kEnough = 9;
  return first.size() >= kEnough && first.starts_with(kMagic.substr(0, kEnough));
}

TensorFile read_torch_file(const std::filesystem::path& path) {
  std::array<char, 16> first{};
  std::ifstream stream(path, std::ios::binary);
  stream.read(first.data(), first.size());
  TorchFile file(path);
  if (is_legacy_torch({first.data(), static_cast<std::size_t>(stream.gcount())}))
    file.open_legacy();
  else
    file.open_archive();
  return std::move(file).read();
}

}  // namespace millrace::io
