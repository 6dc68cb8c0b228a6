// SPDX-License-Identifier: Apache-2.0
//
// Integers as bytes, least significant first, on any machine.
//
// A structure that lists its fields as `kFields`, a tuple of pointers to members, is written and
// read in that order.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace millrace::io {

template <std::unsigned_integral T>
[[nodiscard]] constexpr T load_little(const std::byte* at) noexcept {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value = static_cast<T>(value | (static_cast<T>(at[i]) << (8 * i)));
  return value;
}

template <std::unsigned_integral T>
constexpr void store_little(T value, std::byte* at) noexcept {
  for (std::size_t i = 0; i < sizeof(T); ++i) at[i] = static_cast<std::byte>(value >> (8 * i));
}

template <class T>
concept HasFields = requires {
  T::kFields;
};

/// Appends integers, strings and structures of them.
class ByteWriter {
 public:
  template <class... Fields>
  void operator()(const Fields&... fields) {
    (put(fields), ...);
  }
  template <std::integral T>
  void put(T value) {
    bytes_.resize(bytes_.size() + sizeof(T));
    store_little(static_cast<std::make_unsigned_t<T>>(value),
                 bytes_.data() + bytes_.size() - sizeof(T));
  }
  /// Four bytes of length, then the text.
  void put(std::string_view text) {
    put(static_cast<std::uint32_t>(text.size()));
    put_bytes(std::as_bytes(std::span(text)));
  }
  template <HasFields T>
  void put(const T& value) {
    std::apply([&](auto... fields) { (put(value.*fields), ...); }, T::kFields);
  }
  void put_bytes(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  [[nodiscard]] std::vector<std::byte>& bytes() noexcept { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// Reads them from bytes. If the bytes end too early, all further values are 0 or empty, and ok()
/// is false.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) noexcept : rest_(bytes) {}

  template <class... Fields>
  void operator()(Fields&... fields) {
    (get(fields), ...);
  }
  template <std::integral T>
  void get(T& value) noexcept {
    const std::span<const std::byte> taken = get_bytes(sizeof(T));
    using Unsigned = std::make_unsigned_t<T>;
    value = taken.empty() ? T{0} : static_cast<T>(load_little<Unsigned>(taken.data()));
  }
  void get(std::string& text) {
    std::uint32_t size = 0;
    get(size);
    const auto taken = get_bytes(size);
    // Any object may be accessed as char.
    text.assign(reinterpret_cast<const char*>(taken.data()), taken.size());
  }
  template <HasFields T>
  void get(T& value) {
    std::apply([&](auto... fields) { (get(value.*fields), ...); }, T::kFields);
  }
  [[nodiscard]] std::span<const std::byte> get_bytes(std::uint64_t count) noexcept {
    if (count > rest_.size()) {
      ok_ = false;
      rest_ = {};
      return {};
    }
    const auto taken = rest_.first(static_cast<std::size_t>(count));
    rest_ = rest_.subspan(static_cast<std::size_t>(count));
    return taken;
  }
  [[nodiscard]] bool ok() const noexcept { return ok_; }
  [[nodiscard]] std::size_t left() const noexcept { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

/// The bytes of lists: how many elements each has, and then the elements.
template <class... Elements>
[[nodiscard]] std::vector<std::byte> write_lists(const std::vector<Elements>&... lists) {
  ByteWriter out;
  out(lists.size()...);
  const auto put_all = [&out](const auto& list) {
    for (const auto& element : list) out.put(element);
  };
  (put_all(lists), ...);
  return std::move(out.bytes());
}

/// Whether `bytes` are such lists, and nothing else. No number of elements allocates more memory
/// than the remaining bytes justify.
template <class... Elements>
[[nodiscard]] bool read_lists(std::span<const std::byte> bytes, std::vector<Elements>&... lists) {
  ByteReader in(bytes);
  std::array<std::uint64_t, sizeof...(Elements)> sizes{};
  for (std::uint64_t& size : sizes) in(size);
  const std::uint64_t* size = sizes.data();
  const auto get_all = [&]<class Element>(std::vector<Element>& list) {
    ByteWriter smallest;
    smallest.put(Element());
    if (*size > in.left() / smallest.bytes().size()) return false;
    list.resize(*size++);
    for (Element& element : list) in.get(element);
    return true;
  };
  return (get_all(lists) && ...) && in.ok() && in.left() == 0;
}

}  // namespace millrace::io
