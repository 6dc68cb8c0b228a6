// SPDX-License-Identifier: Apache-2.0
#include "tools/weights/pickle.hpp"

#include <bit>
#include <cstring>
#include <map>
#include <optional>

#include "core/error.hpp"
#include "io/tensor_checks.hpp"

namespace millrace::io {
namespace {

class Machine {
 public:
  Machine(std::span<const std::byte> bytes, std::string_view label)
      : bytes_(bytes), label_(label) {}

  Pickle run() && {
    while (true) {
      const auto code = static_cast<unsigned char>(take(1)[0]);
      if (code == '.') break;
      execute(code);
    }
    pickle_.root = pop();
    pickle_.size = at_;
    return std::move(pickle_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    fail(ErrorKind::Data,
         "{}: no pickle that can be read, at byte {}: {}: fetch the file again, or save "
         "model.state_dict() with torch.save",
         label_, at_, what);
  }

  std::span<const std::byte> take(std::size_t count) {
    if (count > bytes_.size() - at_) refuse("it ends too early");
    at_ += count;
    return bytes_.subspan(at_ - count, count);
  }
  template <class T>
  T little() {
    T value{};
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string letters(std::size_t length) {
    const std::span<const std::byte> part = take(length);
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }
  std::string line() {
    std::string result;
    while (true) {
      const auto c = static_cast<char>(take(1)[0]);
      if (c == '\n') return result;
      result += c;
    }
  }

  template <class T>
  const T* get(PickleId id) const {
    return pickle_.as<T>(id);
  }
  PickleId make(auto value) {
    constexpr std::size_t kMostValues = 300'000;
    if (pickle_.values.size() == kMostValues) refuse("it has too many values");
    pickle_.values.emplace_back(std::move(value));
    return pickle_.values.size() - 1;
  }
  /// The numbers of a tuple, if it has nothing else, and not more than a tensor has axes: a short
  /// file could name one long tuple often.
  [[nodiscard]] std::optional<std::vector<std::int64_t>> numbers_of(PickleId id) const {
    const auto* tuple = get<PickledSequence>(id);
    if (tuple == nullptr || tuple->items.size() > kMaxRank) return std::nullopt;
    std::vector<std::int64_t> numbers;
    for (const PickleId item : tuple->items) {
      const auto* number = get<std::int64_t>(item);
      if (number == nullptr) return std::nullopt;
      numbers.push_back(*number);
    }
    return numbers;
  }

  /// A text of other texts, which a short file could name often.
  std::string copied(std::string text) {
    constexpr std::size_t kMostCopied = 16'000'000;
    copied_ += text.size();
    if (copied_ > kMostCopied) refuse("it repeats too much text");
    return text;
  }

  void push(PickleId value) { stack_.push_back(value); }
  void push_new(auto value) { push(make(std::move(value))); }
  PickleId pop() {
    if (stack_.empty() || stack_.size() == (marks_.empty() ? 0 : marks_.back()))
      refuse("a value is missing");
    const PickleId value = stack_.back();
    stack_.pop_back();
    return value;
  }
  /// All values behind the last mark.
  std::vector<PickleId> pop_to_mark() {
    if (marks_.empty()) refuse("a mark is missing");
    const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    marks_.pop_back();
    std::vector<PickleId> values(first, stack_.end());
    stack_.erase(first, stack_.end());
    return values;
  }
  [[nodiscard]] PickleId top() const {
    if (stack_.empty()) refuse("a value is missing");
    return stack_.back();
  }
  /// The values on top of the stack, the lowest first.
  std::vector<PickleId> pop(std::size_t count) {
    std::vector<PickleId> values(count);
    for (std::size_t i = count; i-- > 0;) values[i] = pop();
    return values;
  }
  void keep(std::size_t slot) { memo_[slot] = top(); }
  void recall(std::size_t slot) {
    const auto found = memo_.find(slot);
    if (found == memo_.end()) refuse("a value is used that was never kept");
    push(found->second);
  }
  void append(const std::vector<PickleId>& values) {
    if (auto* list = std::get_if<PickledSequence>(&pickle_.values[top()]))
      list->items.insert(list->items.end(), values.begin(), values.end());
  }
  void set_items(const std::vector<PickleId>& values) {
    if (values.size() % 2 != 0) refuse("a key has no value");
    auto* dictionary = std::get_if<PickledDictionary>(&pickle_.values[top()]);
    if (dictionary == nullptr) return;
    for (std::size_t i = 0; i < values.size(); i += 2)
      dictionary->items.emplace_back(values[i], values[i + 1]);
  }

  using Operation = void (*)(Machine&);
  static const std::map<unsigned char, Operation>& operations();

  void execute(unsigned char code) {
    const auto found = operations().find(code);
    if (found == operations().end()) {
      --at_;
      refuse(fmt::format("unknown operation {:#04x}", code));
    }
    found->second(*this);
  }

  std::int64_t long_number() {
    const std::size_t length = little<std::uint8_t>();
    const std::span<const std::byte> bytes = take(length);
    if (length > 8) return 0;  // of no use here
    std::uint64_t number = 0;
    for (std::size_t i = 0; i < length; ++i)
      number |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
    const bool negative = length > 0 && (bytes[length - 1] & std::byte{0x80}) != std::byte{0};
    if (negative && length < 8) number |= ~std::uint64_t{0} << (8 * length);
    return std::bit_cast<std::int64_t>(number);
  }
  double big_double() {
    std::uint64_t bits = 0;
    for (const std::byte byte : take(8)) bits = bits << 8 | static_cast<unsigned char>(byte);
    return std::bit_cast<double>(bits);
  }

  std::string global() {
    std::string module = line();
    return module + '.' + line();
  }
  std::string global_on_stack() {
    const std::vector<PickleId> names = pop(2);
    const auto* module = get<std::string>(names[0]);
    const auto* name = get<std::string>(names[1]);
    if (module == nullptr || name == nullptr) refuse("a name is no text");
    return copied(*module + '.' + *name);
  }

  /// ('storage', class, key, device, elements), before PyTorch 1.6 with a view of another storage.
  PickleId storage(PickleId id) {
    const auto* tuple = get<PickledSequence>(id);
    if (tuple == nullptr || tuple->items.size() < 5) return make(PickledOther{});
    const auto* kind = get<std::string>(tuple->items[0]);
    const auto* type = get<PickledName>(tuple->items[1]);
    const auto* key = get<std::string>(tuple->items[2]);
    const auto* elements = get<std::int64_t>(tuple->items[4]);
    if (kind == nullptr || *kind != "storage" || type == nullptr || key == nullptr ||
        elements == nullptr)
      return make(PickledOther{});
    if (tuple->items.size() > 5 && get<PickledOther>(tuple->items[5]) == nullptr)
      fail(ErrorKind::Data, "{}: a storage is part of another one: save the tensors with clone()",
           label_);
    return make(PickledStorage{copied(type->name.substr(type->name.rfind('.') + 1)), copied(*key),
                               *elements});
  }

  /// Of a function and a tuple of its arguments.
  PickleId call(const std::vector<PickleId>& both) {
    const auto* function = get<PickledName>(both[0]);
    const auto* values = get<PickledSequence>(both[1]);
    if (function == nullptr || values == nullptr) return make(PickledOther{});
    if (function->name == "collections.OrderedDict") return make(PickledDictionary{});
    const std::vector<PickleId>& a = values->items;
    if (function->name == "torch._utils._rebuild_parameter" && !a.empty()) return a[0];
    if (function->name != "torch._utils._rebuild_tensor_v2" || a.size() < 4)
      return make(PickledOther{});
    const auto* storage = get<PickledStorage>(a[0]);
    const auto* offset = get<std::int64_t>(a[1]);
    auto shape = numbers_of(a[2]);
    auto strides = numbers_of(a[3]);
    if (storage == nullptr || offset == nullptr || !shape || !strides) return make(PickledOther{});
    (void)copied(storage->type + storage->key);
    return make(PickledTensor{*storage, *offset, std::move(*shape), std::move(*strides)});
  }

  std::span<const std::byte> bytes_;
  std::string_view label_;
  std::size_t at_ = 0;
  std::size_t copied_ = 0;
  Pickle pickle_;
  std::vector<PickleId> stack_;
  std::vector<std::size_t> marks_;
  std::map<std::size_t, PickleId> memo_;
};

// By the codes of pickletools. Attributes of an object ('b') are of no use here.
const std::map<unsigned char, Machine::Operation>& Machine::operations() {
  using M = Machine;
  static const std::map<unsigned char, Operation> all = {
      {0x80, [](M& m) { (void)m.take(1); }},  // protocol
      {0x95, [](M& m) { (void)m.take(8); }},  // frame
      // the stack, and what is kept
      {'(', [](M& m) { m.marks_.push_back(m.stack_.size()); }},
      {'0', [](M& m) { (void)m.pop(); }},
      {'1', [](M& m) { (void)m.pop_to_mark(); }},
      {'b', [](M& m) { (void)m.pop(); }},
      {'q', [](M& m) { m.keep(m.little<std::uint8_t>()); }},
      {'r', [](M& m) { m.keep(m.little<std::uint32_t>()); }},
      {0x94, [](M& m) { m.keep(m.memo_.size()); }},
      {'h', [](M& m) { m.recall(m.little<std::uint8_t>()); }},
      {'j', [](M& m) { m.recall(m.little<std::uint32_t>()); }},
      // tuples, lists and dictionaries
      {')', [](M& m) { m.push_new(PickledSequence{}); }},
      {']', [](M& m) { m.push_new(PickledSequence{}); }},
      {'}', [](M& m) { m.push_new(PickledDictionary{}); }},
      {'t', [](M& m) { m.push_new(PickledSequence{m.pop_to_mark()}); }},
      {0x85, [](M& m) { m.push_new(PickledSequence{m.pop(1)}); }},
      {0x86, [](M& m) { m.push_new(PickledSequence{m.pop(2)}); }},
      {0x87, [](M& m) { m.push_new(PickledSequence{m.pop(3)}); }},
      {'a', [](M& m) { m.append(m.pop(1)); }},
      {'e', [](M& m) { m.append(m.pop_to_mark()); }},
      {'s', [](M& m) { m.set_items(m.pop(2)); }},
      {'u', [](M& m) { m.set_items(m.pop_to_mark()); }},
      // numbers: true and false are some, too
      {0x88, [](M& m) { m.push_new(std::int64_t{1}); }},
      {0x89, [](M& m) { m.push_new(std::int64_t{0}); }},
      {'K', [](M& m) { m.push_new(std::int64_t{m.little<std::uint8_t>()}); }},
      {'M', [](M& m) { m.push_new(std::int64_t{m.little<std::uint16_t>()}); }},
      {'J', [](M& m) { m.push_new(std::int64_t{m.little<std::int32_t>()}); }},
      {0x8a, [](M& m) { m.push_new(m.long_number()); }},
      {'G', [](M& m) { m.push_new(m.big_double()); }},
      // texts and bytes, and names of functions and classes
      {0x8c, [](M& m) { m.push_new(m.letters(m.little<std::uint8_t>())); }},
      {'U', [](M& m) { m.push_new(m.letters(m.little<std::uint8_t>())); }},
      {'C', [](M& m) { m.push_new(m.letters(m.little<std::uint8_t>())); }},
      {'X', [](M& m) { m.push_new(m.letters(m.little<std::uint32_t>())); }},
      {'T', [](M& m) { m.push_new(m.letters(m.little<std::uint32_t>())); }},
      {'B', [](M& m) { m.push_new(m.letters(m.little<std::uint32_t>())); }},
      {'c', [](M& m) { m.push_new(PickledName{m.global()}); }},
      {0x93, [](M& m) { m.push_new(PickledName{m.global_on_stack()}); }},
      // other objects
      {'N', [](M& m) { m.push_new(PickledOther{}); }},
      {'Q', [](M& m) { m.push(m.storage(m.pop())); }},
      {'R', [](M& m) { m.push(m.call(m.pop(2))); }},
      {0x81, [](M& m) { m.push(m.call(m.pop(2))); }},
  };
  return all;
}

}  // namespace

Pickle parse_pickle(std::span<const std::byte> bytes, std::string_view label) {
  return Machine(bytes, label).run();
}

}  // namespace millrace::io
