// SPDX-License-Identifier: Apache-2.0
#include "models/graph_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"
#include "models/graph.hpp"

namespace millrace::models {
namespace {

// ---- the attributes of each kind, visited by the writer and by the reader

template <class Kind, class T>
constexpr bool kIs = std::is_same_v<std::remove_const_t<Kind>, T>;

template <class Kind, class Visit>
void visit_attributes(Kind& kind, const Visit& visit) {
  if constexpr (kIs<Kind, Conv>) {
    visit("channels", kind.out_channels);
    visit("kernel", kind.kernel);
    visit("stride", kind.stride);
    visit("pad", kind.pad);
    visit("groups", kind.groups);
    visit("dilation", kind.dilation);
    visit("bias", kind.bias);
    visit("init", kind.init);
  } else if constexpr (kIs<Kind, Dense>) {
    visit("units", kind.units);
    visit("bias", kind.bias);
    visit("init", kind.init);
  } else if constexpr (kIs<Kind, BatchNorm>) {
    visit("epsilon", kind.epsilon);
    visit("decay", kind.decay);
    visit("zero_gamma", kind.zero_gamma);
    visit("span", kind.span);
    visit("fixed", kind.fixed);
  } else if constexpr (kIs<Kind, GroupNorm>) {
    visit("groups", kind.groups);
    visit("epsilon", kind.epsilon);
    visit("order", kind.order);
    visit("zero_gamma", kind.zero_gamma);
    visit("fixed", kind.fixed);
  } else if constexpr (kIs<Kind, Activate>) {
    visit("function", kind.kind);
    visit("numbers", kind.numbers);
  } else if constexpr (kIs<Kind, Pool>) {
    visit("of", kind.kind);
    visit("kernel", kind.kernel);
    visit("stride", kind.stride);
    visit("pad", kind.pad);
    visit("count_padding", kind.count_padding);
  } else if constexpr (kIs<Kind, ShortcutPad>) {
    visit("stride", kind.stride);
    visit("before", kind.channels_before);
    visit("after", kind.channels_after);
  } else if constexpr (kIs<Kind, Dropout>) {
    visit("rate", kind.rate);
  } else if constexpr (kIs<Kind, DropConnect>) {
    visit("survival", kind.survival);
  } else if constexpr (kIs<Kind, SoftmaxLoss>) {
    visit("logits", kind.logits);
  } else {
    static_assert(kIs<Kind, Add> || kIs<Kind, Concat> || kIs<Kind, ScaleChannels> ||
                      kIs<Kind, GlobalAveragePool>,
                  "a kind of op lacks its attributes here");
  }
}

/// Whether a value stands for itself if its key is absent: files were written before there was one.
template <class T>
bool is_left_out(const T& value) {
  if constexpr (kIs<T, FixedAffine> || kIs<T, ActivationNumbers>) return value == T{};
  return false;
}

// ---- enumerators by their names

constexpr std::array<std::string_view, 2> kPools = {"max", "average"};
constexpr std::array<std::string_view, 2> kOrders = {"contiguous", "strided"};
constexpr std::array<std::string_view, 2> kFans = {"in", "out"};
constexpr std::array<std::string_view, 6> kInitialisers = {
    "zero", "one", "variance_scaling", "glorot_uniform", "normal", "truncated_normal"};
constexpr std::array<std::string_view, 8> kFunctions = {
    name_of(Activation::None),        name_of(Activation::Relu),     name_of(Activation::Swish),
    name_of(Activation::Sigmoid),     name_of(Activation::Clip),     name_of(Activation::LeakyRelu),
    name_of(Activation::HardSigmoid), name_of(Activation::HardSwish)};

constexpr std::span<const std::string_view> names_of(PoolKind /*of*/) { return kPools; }
constexpr std::span<const std::string_view> names_of(GroupOrder /*of*/) { return kOrders; }
constexpr std::span<const std::string_view> names_of(Activation /*of*/) { return kFunctions; }
constexpr std::span<const std::string_view> names_of(Initialiser::Fan /*of*/) { return kFans; }
constexpr std::span<const std::string_view> names_of(Initialiser::Kind /*of*/) {
  return kInitialisers;
}

// ---- writing

Json json_of(std::int64_t value) { return value; }
Json json_of(double value) { return value; }
Json json_of(bool value) { return value; }
Json json_of(Extent e) { return Json::list({e.h, e.w}); }
Json json_of(const Padding& p) { return Json::list({p.top, p.bottom, p.left, p.right}); }
template <class T>
Json json_of(T value) requires std::is_enum_v<T> {
  return names_of(value)[static_cast<std::size_t>(value)];
}
Json json_of(ActivationNumbers n) {
  return Json::list({static_cast<double>(n.a), static_cast<double>(n.b)});
}
Json json_of(FixedAffine fixed) { return Json::list({fixed.gamma, fixed.beta}); }
Json json_of(const Initialiser& init) {
  return Json::list({json_of(init.kind), init.scale, json_of(init.fan)});
}

Json json_of(const Graph& graph, const Op& op) {
  Json json;
  const std::string& layer = graph.layers[op.layer.at()].name;
  json.set("name", op.name == layer ? "" : op.name.substr(layer.size() + 1));
  Json inputs = Json::list();
  for (const ValueId input : op.inputs) inputs.push_back(input.value);
  std::visit(
      [&](const auto& kind) {
        json.set("op", kind.kName);
        json.set("inputs", std::move(inputs));
        visit_attributes(kind, [&](const char* key, const auto& value) {
          if (!is_left_out(value)) json.set(key, json_of(value));
        });
      },
      op.kind);
  return json;
}

// ---- reading

void read(const Json& json, std::int64_t& value) {
  value = json.as_int64();
  if (value < 0 || value > kMostChannels)
    throw JsonError(fmt::format("{} is not between 0 and {}", value, kMostChannels));
}
void read(const Json& json, double& value) { value = json.as_double(); }
void read(const Json& json, float& value) { value = static_cast<float>(json.as_double()); }
void read(const Json& json, bool& value) {
  const std::string text = json.dump();
  if (text != "true" && text != "false") throw JsonError(text + " is neither true nor false");
  value = text == "true";
}
template <class T>
void read(const Json& json, T& value) requires std::is_enum_v<T> {
  const auto names = names_of(value);
  const auto found = std::ranges::find(names, std::string_view(json.text()));
  if (found == names.end()) throw JsonError(fmt::format("'{}' is unknown", json.text()));
  value = static_cast<T>(found - names.begin());
}
/// Reads a list into as many variables.
template <class... T>
void read_all(const Json& json, T&... values) {
  const std::span<const Json> items = json.items();
  if (items.size() != sizeof...(T)) throw JsonError("a list has another length");
  std::size_t next = 0;
  (read(items[next++], values), ...);
}
void read(const Json& json, Extent& e) { read_all(json, e.h, e.w); }
void read(const Json& json, Padding& p) { read_all(json, p.top, p.bottom, p.left, p.right); }
void read(const Json& json, ActivationNumbers& n) { read_all(json, n.a, n.b); }
void read(const Json& json, FixedAffine& fixed) { read_all(json, fixed.gamma, fixed.beta); }
void read(const Json& json, Initialiser& init) {
  read_all(json, init.kind, init.scale, init.fan);
  if (!(init.scale >= 0.0)) throw JsonError("the scale of an initializer is negative");
}

/// The kind of this name, with its default attributes.
template <std::size_t i = 0>
OpKind kind_named(std::string_view name) {
  if constexpr (i == std::variant_size_v<OpKind>) {
    throw JsonError(fmt::format("op '{}' is unknown", name));
  } else {
    using Kind = std::variant_alternative_t<i, OpKind>;
    return Kind::kName == name ? OpKind(Kind{}) : kind_named<i + 1>(name);
  }
}

class Reader {
 public:
  explicit Reader(const Json& json)
      : builder_(name_in(json), image_of(json), [&json] {
          std::int64_t classes = 0;
          read(json.at("classes"), classes);
          return classes;
        }()) {
    for (const Json& layer : json.at("layers").items()) {
      builder_.begin_layer(name_in(layer));
      for (const Json& op : layer.at("ops").items()) add(op);
    }
  }
  Graph graph() && {
    if (ops_ != -1) throw JsonError("the network has no loss");
    return std::move(builder_).build();
  }

 private:
  /// Names are shown in lines of text.
  static const std::string& name_in(const Json& json) {
    const std::string& name = json.at("name").text();
    if (printable(name) != name)
      throw JsonError(fmt::format("the name '{}' has control characters", printable(name)));
    return name;
  }
  static Shape image_of(const Json& json) {
    Shape image;
    read_all(json.at("image"), image.h, image.w, image.c);
    return image;
  }

  void add(const Json& json) {
    OpKind kind = kind_named(json.at("op").text());
    std::visit(
        [&](auto& op) {
          visit_attributes(op, [&](const char* key, auto& value) {
            if (json.contains(key) || !is_left_out(value)) read(json.at(key), value);
          });
        },
        kind);
    std::vector<ValueId> inputs;
    for (const Json& input : json.at("inputs").items()) {
      const std::int64_t number = input.as_int64();
      if (number < 0 || number > ops_) throw JsonError("an op reads what no op before it makes");
      inputs.push_back(ValueId{static_cast<std::int32_t>(number)});
    }
    builder_.op(name_in(json), kind, std::move(inputs));
    // Nothing follows the loss: it makes no value that could be read.
    ops_ = std::holds_alternative<SoftmaxLoss>(kind) ? -1 : ops_ + 1;
  }

  GraphBuilder builder_;
  std::int64_t ops_ = 0;
};

}  // namespace

Json to_json(const Graph& graph) {
  Json layers = Json::list();
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    const std::size_t end =
        i + 1 < graph.layers.size() ? graph.layers[i + 1].first_op.at() : graph.ops.size();
    Json ops = Json::list();
    for (std::size_t op = graph.layers[i].first_op.at(); op < end; ++op)
      ops.push_back(json_of(graph, graph.ops[op]));
    layers.push_back(Json::object({{"name", graph.layers[i].name}, {"ops", std::move(ops)}}));
  }
  const Shape& image = graph.input_shape;
  return Json::object({{"name", graph.name},
                       {"image", Json::list({image.h, image.w, image.c})},
                       {"classes", graph.classes},
                       {"layers", std::move(layers)}});
}

Graph graph_from_json(const Json& json) {
  try {
    return Reader(json).graph();
  } catch (const Error& error) {  // what the builder refuses
    throw JsonError(error.what());
  }
}

}  // namespace millrace::models
