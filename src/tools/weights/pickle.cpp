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
    pickle_.values.push_back({std::move(value)});
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
  void tuple(std::size_t count) {
    PickledSequence sequence;
    sequence.items.resize(count);
    for (std::size_t i = count; i-- > 0;) sequence.items[i] = pop();
    push(make(std::move(sequence)));
  }
  void recall(std::size_t slot) {
    const auto found = memo_.find(slot);
    if (found == memo_.end()) refuse("a value is used that was never kept");
    push(found->second);
  }
  void append(const std::vector<PickleId>& values) {
    if (auto* list = std::get_if<PickledSequence>(&pickle_.values[top()].value))
      list->items.insert(list->items.end(), values.begin(), values.end());
  }
  void set_items(const std::vector<PickleId>& values) {
    if (values.size() % 2 != 0) refuse("a key has no value");
    auto* dictionary = std::get_if<PickledDictionary>(&pickle_.values[top()].value);
    if (dictionary == nullptr) return;
    for (std::size_t i = 0; i < values.size(); i += 2)
      dictionary->items.emplace_back(values[i], values[i + 1]);
  }

  void execute(unsigned char code) {
    if (!structure(code) && !number(code) && !text(code) && !object(code) && !memory(code)) {
      --at_;
      refuse(fmt::format("unknown operation {:#04x}", code));
    }
  }

  bool structure(unsigned char code) {
    switch (code) {
      case 0x80:
        (void)take(1);
        return true;  // protocol
      case 0x95:
        (void)take(8);
        return true;  // frame
      case '(':
        marks_.push_back(stack_.size());
        return true;
      case ')':
      case ']':
        push(make(PickledSequence{}));
        return true;
      case '}':
        push(make(PickledDictionary{}));
        return true;
      case 't': {
        std::vector<PickleId> values = pop_to_mark();
        push(make(PickledSequence{std::move(values)}));
        return true;
      }
      case 0x85:
        tuple(1);
        return true;
      case 0x86:
        tuple(2);
        return true;
      case 0x87:
        tuple(3);
        return true;
      case '0':
        (void)pop();
        return true;
      case '1':
        (void)pop_to_mark();
        return true;
      case 'a': {
        const PickleId one = pop();
        append({one});
        return true;
      }
      case 'e':
        append(pop_to_mark());
        return true;
      case 's': {
        const PickleId item = pop();
        const PickleId key = pop();
        set_items({key, item});
        return true;
      }
      case 'u':
        set_items(pop_to_mark());
        return true;
      default:
        return false;
    }
  }

  bool number(unsigned char code) {
    switch (code) {
      case 0x88:
      case 0x89:
        push(make(std::int64_t{code == 0x88 ? 1 : 0}));  // true and false
        return true;
      case 'K':
        push(make(std::int64_t{little<std::uint8_t>()}));
        return true;
      case 'M':
        push(make(std::int64_t{little<std::uint16_t>()}));
        return true;
      case 'J':
        push(make(std::int64_t{little<std::int32_t>()}));
        return true;
      case 0x8a:
        push(make(long_number(little<std::uint8_t>())));
        return true;
      case 'G':
        push(make(big_double()));
        return true;
      default:
        return false;
    }
  }

  bool text(unsigned char code) {
    switch (code) {
      case 0x8c:
      case 'U':
      case 'C':
        push(make(letters(little<std::uint8_t>())));
        return true;
      case 'X':
      case 'T':
      case 'B':
        push(make(letters(little<std::uint32_t>())));
        return true;
      case 'c': {
        std::string module = line();
        push(make(PickledName{module + '.' + line()}));
        return true;
      }
      case 0x93: {
        const PickleId name = pop();
        const PickleId module = pop();
        const auto* a = get<std::string>(module);
        const auto* b = get<std::string>(name);
        if (a == nullptr || b == nullptr) refuse("a name is no text");
        push(make(PickledName{copied(*a + '.' + *b)}));
        return true;
      }
      default:
        return false;
    }
  }

  bool object(unsigned char code) {
    switch (code) {
      case 'N':
        push(make(PickledOther{}));
        return true;
      case 'Q':
        push(storage(pop()));
        return true;
      case 'R':
      case 0x81: {
        const PickleId arguments = pop();
        const PickleId callee = pop();
        push(call(callee, arguments));
        return true;
      }
      case 'b':
        (void)pop();
        return true;  // attributes of an object
      default:
        return false;
    }
  }

  bool memory(unsigned char code) {
    switch (code) {
      case 'q':
        memo_[little<std::uint8_t>()] = top();
        return true;
      case 'r':
        memo_[little<std::uint32_t>()] = top();
        return true;
      case 0x94: {
        const std::size_t slot = memo_.size();
        memo_[slot] = top();
        return true;
      }
      case 'h':
        recall(little<std::uint8_t>());
        return true;
      case 'j':
        recall(little<std::uint32_t>());
        return true;
      default:
        return false;
    }
  }

  std::int64_t long_number(std::size_t length) {
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

  PickleId call(PickleId callee, PickleId arguments) {
    const auto* function = get<PickledName>(callee);
    const auto* values = get<PickledSequence>(arguments);
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

}  // namespace

Pickle parse_pickle(std::span<const std::byte> bytes, std::string_view label) {
  return Machine(bytes, label).run();
}

}  // namespace millrace::io
