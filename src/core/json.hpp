// SPDX-License-Identifier: Apache-2.0
//
// JSON as a value. The library that reads and writes it is included by json.cpp alone: its
// templates take several seconds to compile.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

namespace millrace {

/// A text that is not JSON, a value of another type than was asked for, or a text to be written
/// that is not UTF-8.
class JsonError : public std::runtime_error {
 public:
  explicit JsonError(const std::string& message, std::size_t byte = 0)
      : std::runtime_error(message), byte_(byte) {}
  /// Bytes of the text that were read when the mistake was found.
  [[nodiscard]] std::size_t byte() const noexcept { return byte_; }

 private:
  std::size_t byte_;
};

/// An object holds a key twice, which Json::parse refuses when asked to.
class JsonDuplicate : public JsonError {
 public:
  using JsonError::JsonError;
};

/// A JSON value; null unless made from something. Objects keep the order of their members.
class Json {
 public:
  struct Member;
  using List = std::vector<Json>;
  using Object = std::vector<Member>;

  Json();
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(const Json& other);
  Json& operator=(Json&& other) noexcept;
  ~Json();

  // Implicit, so that members of an object can be listed with their values.
  Json(bool value);             // NOLINT(google-explicit-constructor)
  Json(double value);           // NOLINT(google-explicit-constructor)
  Json(const char* text);       // NOLINT(google-explicit-constructor)
  Json(std::string_view text);  // NOLINT(google-explicit-constructor)
  Json(std::string text);       // NOLINT(google-explicit-constructor)
  explicit Json(Object members);
  template <std::integral T>
  Json(T value)  // NOLINT(google-explicit-constructor)
      : Json(Number{std::is_signed_v<T>, static_cast<std::uint64_t>(value)}) {}
  template <class T>
  Json(const std::vector<T>& values) : Json(list()) {  // NOLINT(google-explicit-constructor)
    for (const T& value : values) push_back(value);
  }

  [[nodiscard]] static Json list(std::initializer_list<Json> items = {});
  [[nodiscard]] static Json object(std::initializer_list<Member> members = {});

  /// What an object that has a key twice is: the last value counts, or JsonDuplicate, whose message
  /// is the key in quotes.
  enum class Duplicates { LastCounts, Refused };
  /// Files that hold more are not ours; a value takes some 100 times the memory of its text.
  static constexpr std::size_t kMaxDepth = 100;
  static constexpr std::size_t kMaxValues = 400'000;
  static constexpr std::size_t kMaxItems = 131'072;  ///< of one list or object
  /// Errors: JsonError, also for what is beyond these limits.
  [[nodiscard]] static Json parse(std::string_view text,
                                  Duplicates duplicates = Duplicates::LastCounts);

  /// The same without errors: nothing for a text that is not JSON.
  [[nodiscard]] static std::optional<Json> try_parse(std::string_view text);

  /// What becomes of texts that are not UTF-8: JsonError, or U+FFFD in place of each wrong byte.
  enum class NotUtf8 { Refused, Replaced };
  /// On one line when `indent` is negative; numbers that are not finite become null.
  [[nodiscard]] std::string dump(int indent = -1, NotUtf8 not_utf8 = NotUtf8::Refused) const;

  /// Adds an item to a list.
  void push_back(Json item);
  /// Adds a member to an object, or to null, which becomes one; or replaces it.
  void set(std::string_view key, Json value);

  [[nodiscard]] bool is_object() const noexcept;
  [[nodiscard]] bool is_list() const noexcept;
  [[nodiscard]] bool is_text() const noexcept;
  [[nodiscard]] bool is_number() const noexcept;
  /// A number without fraction or exponent.
  [[nodiscard]] bool is_integer() const noexcept;
  /// The same without a sign.
  [[nodiscard]] bool is_unsigned() const noexcept;

  // Errors: JsonError for a value of another type.
  [[nodiscard]] const std::string& text() const;
  /// Of any number that this type can hold: the number itself.
  [[nodiscard]] double as_double() const;
  [[nodiscard]] std::int64_t as_int64() const;
  [[nodiscard]] std::uint64_t as_uint64() const;
  [[nodiscard]] std::span<const Json> items() const;
  [[nodiscard]] std::span<const Member> members() const;

  /// The member of an object; nullptr when there is none, or the value is not an object.
  [[nodiscard]] const Json* find(std::string_view key) const noexcept;
  [[nodiscard]] bool contains(std::string_view key) const noexcept { return find(key) != nullptr; }
  /// Errors: JsonError when there is none.
  [[nodiscard]] const Json& at(std::string_view key) const;

 private:
  struct Number {
    bool is_signed;
    std::uint64_t bits;
  };
  explicit Json(Number number);
  template <class T>
  [[nodiscard]] const T& get(const char* wanted) const;
  template <class T>
  [[nodiscard]] T number() const;

  friend class JsonReader;
  friend class JsonWriter;
  std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, List, Object>
      value_;
};

struct Json::Member {
  std::string key;
  Json value;
};

}  // namespace millrace
