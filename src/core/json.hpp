// SPDX-License-Identifier: Apache-2.0
//
// A JSON value. Only json.cpp includes the library that reads and writes JSON, because its
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

/// The input is not JSON, a value has a different type than requested, or a string to be written is
/// not UTF-8.
class JsonError : public std::runtime_error {
 public:
  explicit JsonError(const std::string& message, std::size_t byte = 0)
      : std::runtime_error(message), byte_(byte) {}
  /// Number of bytes read when the error was found.
  [[nodiscard]] std::size_t byte() const noexcept { return byte_; }

 private:
  std::size_t byte_;
};

/// An object holds the same key twice; see Json::Duplicates.
class JsonDuplicate : public JsonError {
 public:
  using JsonError::JsonError;
};

/// A JSON value; null by default. Objects keep the order of their members.
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

  // Implicit, so that object() takes plain values for its members.
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

  /// How to treat a key that occurs twice in an object: keep the last value, or throw JsonDuplicate
  /// with the quoted key as its message.
  enum class Duplicates { LastCounts, Refused };
  /// Limits of parse(). They bound the memory: a value takes about 100 times as much as its text.
  static constexpr std::size_t kMaxDepth = 100;
  static constexpr std::size_t kMaxValues = 400'000;
  static constexpr std::size_t kMaxItems = 131'072;  ///< of one list or object
  /// Errors: JsonError, also when a limit is exceeded.
  [[nodiscard]] static Json parse(std::string_view text,
                                  Duplicates duplicates = Duplicates::LastCounts);

  /// Like parse(), but returns nullopt instead of throwing JsonError.
  [[nodiscard]] static std::optional<Json> try_parse(std::string_view text);

  /// How to write strings that are not UTF-8: throw JsonError, or replace each invalid byte by
  /// U+FFFD.
  enum class NotUtf8 { Refused, Replaced };
  /// Writes one line if `indent` is negative. Non-finite numbers become null.
  [[nodiscard]] std::string dump(int indent = -1, NotUtf8 not_utf8 = NotUtf8::Refused) const;

  /// Adds an item to a list.
  void push_back(Json item);
  /// Adds a member to an object or replaces it; null becomes an object first.
  void set(std::string_view key, Json value);

  [[nodiscard]] bool is_object() const noexcept;
  [[nodiscard]] bool is_list() const noexcept;
  [[nodiscard]] bool is_text() const noexcept;
  [[nodiscard]] bool is_number() const noexcept;
  /// A number without fraction or exponent.
  [[nodiscard]] bool is_integer() const noexcept;
  /// An integer that is not negative.
  [[nodiscard]] bool is_unsigned() const noexcept;

  // Errors: JsonError for a value of another type.
  [[nodiscard]] const std::string& text() const;
  /// Converts any number that fits into the result type.
  [[nodiscard]] double as_double() const;
  [[nodiscard]] std::int64_t as_int64() const;
  [[nodiscard]] std::uint64_t as_uint64() const;
  [[nodiscard]] std::span<const Json> items() const;
  [[nodiscard]] std::span<const Member> members() const;

  /// The member of an object; nullptr if there is none or the value is not an object.
  [[nodiscard]] const Json* find(std::string_view key) const noexcept;
  [[nodiscard]] bool contains(std::string_view key) const noexcept { return find(key) != nullptr; }
  /// Errors: JsonError if there is no such member.
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
