// SPDX-License-Identifier: Apache-2.0
#include "core/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "core/text.hpp"

namespace millrace {

namespace {

using Library = nlohmann::json;

// The library quotes the last token, which may be the whole text.
std::string shortened(std::string_view message) {
  constexpr std::size_t kShown = 200;
  if (message.size() <= kShown) return std::string(message);
  return fmt::format("{}...", printable(message.substr(0, kShown)));
}

}  // namespace

/// Builds a value from the events of the library's parser, one call per token.
class JsonReader final : public nlohmann::json_sax<Library> {
 public:
  explicit JsonReader(Json::Duplicates duplicates) : duplicates_(duplicates) {}

  [[nodiscard]] Json result() && { return std::move(root_); }

  bool null() override { return add({}); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(std::int64_t value) override { return add(value); }
  bool number_unsigned(std::uint64_t value) override { return add(value); }
  bool number_float(double value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(Json(std::move(value))); }
  bool binary(Library::binary_t&) override { return false; }  // does not occur in text
  bool start_array(std::size_t) override { return open(Json::list()); }
  bool end_array() override { return close(); }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool end_object() override { return close(); }
  bool key(std::string& name) override {
    Level& level = levels_.back();
    auto& members = std::get<Json::Object>(level.value.value_);
    const auto [found, fresh] = level.places.try_emplace(name, members.size());
    if (fresh) {
      require_room(members.size());
      members.push_back({std::move(name), {}});
    } else if (duplicates_ == Json::Duplicates::Refused) {
      throw JsonDuplicate(shortened(Json(name).dump()));
    }
    level.place = found->second;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const Library::exception& error) override {
    throw JsonError(shortened(error.what()), position);
  }

 private:
  /// A list or an object that is not closed yet.
  struct Level {
    Json value;
    std::unordered_map<std::string, std::size_t> places;  ///< of the keys of an object
    std::size_t place = 0;                                ///< where the next value goes
  };

  bool add(Json value) {
    if (++values_ > Json::kMaxValues)
      throw JsonError(fmt::format("there are more than {} values in total", Json::kMaxValues));
    if (levels_.empty()) {
      root_ = std::move(value);
      return true;
    }
    Level& level = levels_.back();
    if (auto* const items = std::get_if<Json::List>(&level.value.value_)) {
      require_room(items->size());
      items->push_back(std::move(value));
    } else {
      std::get<Json::Object>(level.value.value_)[level.place].value = std::move(value);
    }
    return true;
  }
  bool open(Json value) {
    if (levels_.size() == Json::kMaxDepth)
      throw JsonError(fmt::format("values are nested more than {} deep", Json::kMaxDepth));
    levels_.push_back({std::move(value), {}, 0});
    return true;
  }
  bool close() {
    Json value = std::move(levels_.back().value);
    levels_.pop_back();
    return add(std::move(value));
  }

  static void require_room(std::size_t size) {
    if (size == Json::kMaxItems)
      throw JsonError(fmt::format("a list or object has more than {} items", Json::kMaxItems));
  }

  Json::Duplicates duplicates_;
  std::size_t values_ = 0;
  Json root_;
  std::vector<Level> levels_;
};

/// Produces the same output as the library, which formats strings and numbers.
class JsonWriter {
 public:
  JsonWriter(int indent, Json::NotUtf8 not_utf8)
      : indent_(indent),
        handler_(not_utf8 == Json::NotUtf8::Replaced ? Library::error_handler_t::replace
                                                     : Library::error_handler_t::strict) {}

  void operator()(std::monostate) { text_ += "null"; }
  void operator()(const Json::List& items) {
    write_all(
        '[', items, [this](const Json& item) { write(item); }, ']');
  }
  void operator()(const Json::Object& members) {
    write_all(
        '{', members,
        [this](const Json::Member& member) {
          (*this)(member.key);
          text_ += indent_ < 0 ? ":" : ": ";
          write(member.value);
        },
        '}');
  }
  template <class T>
  void operator()(const T& value) {
    text_ += Library(value).dump(-1, ' ', /*ensure_ascii=*/false, handler_);
  }

  void write(const Json& json) { std::visit(*this, json.value_); }
  [[nodiscard]] std::string text() && { return std::move(text_); }

 private:
  template <class T, class Write>
  void write_all(char open, const std::vector<T>& values, Write write_one, char close) {
    text_ += open;
    ++depth_;
    for (const T& value : values) {
      if (&value != values.data()) text_ += ',';
      end_line();
      write_one(value);
    }
    --depth_;
    if (!values.empty()) end_line();
    text_ += close;
  }
  void end_line() {
    if (indent_ < 0) return;
    text_ += '\n';
    text_.append(static_cast<std::size_t>(indent_) * depth_, ' ');
  }

  int indent_;
  Library::error_handler_t handler_;
  std::size_t depth_ = 0;
  std::string text_;
};

Json::Json() = default;
Json::Json(const Json& other) = default;
Json::Json(Json&& other) noexcept = default;
Json& Json::operator=(const Json& other) = default;
Json& Json::operator=(Json&& other) noexcept = default;
Json::~Json() = default;

Json::Json(bool value) : value_(value) {}
Json::Json(double value) : value_(value) {}
Json::Json(const char* text) : value_(std::string(text)) {}
Json::Json(std::string_view text) : value_(std::string(text)) {}
Json::Json(std::string text) : value_(std::move(text)) {}

Json::Json(Object members) : value_(std::move(members)) {}

Json::Json(Number number) {
  if (number.is_signed)
    value_ = static_cast<std::int64_t>(number.bits);
  else
    value_ = number.bits;
}

Json Json::list(std::initializer_list<Json> items) {
  Json json;
  json.value_ = List(items);
  return json;
}

Json Json::object(std::initializer_list<Member> members) {
  Json json;
  json.value_ = Object(members);
  return json;
}

Json Json::parse(std::string_view text, Duplicates duplicates) {
  JsonReader reader(duplicates);
  Library::sax_parse(text, &reader);
  return std::move(reader).result();
}

std::optional<Json> Json::try_parse(std::string_view text) {
  try {
    return parse(text);
  } catch (const JsonError&) {
    return std::nullopt;
  }
}

std::string Json::dump(int indent, NotUtf8 not_utf8) const {
  JsonWriter writer(indent, not_utf8);
  try {
    writer.write(*this);
  } catch (const Library::exception& error) {
    throw JsonError(error.what());
  }
  return std::move(writer).text();
}

void Json::push_back(Json item) { std::get<List>(value_).push_back(std::move(item)); }

void Json::set(std::string_view key, Json value) {
  if (std::holds_alternative<std::monostate>(value_)) value_ = Object();
  auto& members = std::get<Object>(value_);
  const auto found = std::ranges::find(members, key, &Member::key);
  if (found != members.end())
    found->value = std::move(value);
  else
    members.push_back({std::string(key), std::move(value)});
}

bool Json::is_object() const noexcept { return std::holds_alternative<Object>(value_); }
bool Json::is_list() const noexcept { return std::holds_alternative<List>(value_); }
bool Json::is_text() const noexcept { return std::holds_alternative<std::string>(value_); }
bool Json::is_unsigned() const noexcept { return std::holds_alternative<std::uint64_t>(value_); }
bool Json::is_integer() const noexcept {
  return is_unsigned() || std::holds_alternative<std::int64_t>(value_);
}
bool Json::is_number() const noexcept {
  return is_integer() || std::holds_alternative<double>(value_);
}

template <class T>
const T& Json::get(const char* wanted) const {
  if (const T* const value = std::get_if<T>(&value_)) return *value;
  throw JsonError(fmt::format("a value is not {}", wanted));
}

template <class T>
T Json::number() const {
  if (const auto* const value = std::get_if<std::int64_t>(&value_)) return static_cast<T>(*value);
  if (const auto* const value = std::get_if<std::uint64_t>(&value_)) return static_cast<T>(*value);
  const double value = get<double>("a number");
  if constexpr (std::is_integral_v<T>) {
    // Both bounds are powers of two or 0, so they are exact as double.
    constexpr T kHalf = std::numeric_limits<T>::max() / 2 + 1;
    const bool fits = value >= static_cast<double>(std::numeric_limits<T>::min()) &&
                      value < 2.0 * static_cast<double>(kHalf);
    if (!fits) throw JsonError(fmt::format("{} is out of range for a 64-bit integer", value));
  }
  return static_cast<T>(value);
}

const std::string& Json::text() const { return get<std::string>("a string"); }
double Json::as_double() const { return number<double>(); }
std::int64_t Json::as_int64() const { return number<std::int64_t>(); }
std::uint64_t Json::as_uint64() const { return number<std::uint64_t>(); }
std::span<const Json> Json::items() const { return get<List>("a list"); }
std::span<const Json::Member> Json::members() const { return get<Object>("an object"); }

const Json* Json::find(std::string_view key) const noexcept {
  const auto* const members = std::get_if<Object>(&value_);
  if (members == nullptr) return nullptr;
  const auto found = std::ranges::find(*members, key, &Member::key);
  return found == members->end() ? nullptr : &found->value;
}

const Json& Json::at(std::string_view key) const {
  if (const Json* const found = find(key)) return *found;
  throw JsonError(fmt::format("an object has no member {}", key));
}

}  // namespace millrace
