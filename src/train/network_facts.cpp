// SPDX-License-Identifier: Apache-2.0
#include "train/network_facts.hpp"

#include <array>
#include <memory>

#include "core/error.hpp"
#include "core/json.hpp"
#include "models/graph_json.hpp"
#include "run/run.hpp"

namespace millrace::training {
namespace {

using Colours = std::array<double, 3>;

Json list_of(const Colours& values) { return Json::list({values[0], values[1], values[2]}); }

Json to_json(const run::Preparation& preparation) {
  Json json = Json::object();
  if (!preparation.preset.empty()) {
    json.set("preset", preparation.preset);
    json.set("shorter_side", preparation.shorter_side);
  }
  if (preparation.by_image) {
    json.set("by_image", 1);
    return json;
  }
  json.set("mean", list_of(preparation.mean));
  json.set("deviation", list_of(preparation.deviation));
  return json;
}

Colours parse_colours(const Json& list) {
  const std::span<const Json> items = list.items();
  if (items.size() != 3) throw JsonError("a mean or deviation has three numbers");
  Colours values{};
  for (std::size_t c = 0; c < values.size(); ++c) values[c] = items[c].as_double();
  return values;
}

run::Preparation parse_preparation(const Json& json) {
  run::Preparation preparation{.by_image = json.contains("by_image")};
  if (const Json* const preset = json.find("preset")) {
    preparation.preset = preset->text();
    preparation.shorter_side = static_cast<std::int32_t>(json.at("shorter_side").as_int64());
  }
  if (preparation.by_image) return preparation;
  preparation.mean = parse_colours(json.at("mean"));
  preparation.deviation = parse_colours(json.at("deviation"));
  for (const double deviation : preparation.deviation)
    if (!(deviation > 0.0)) throw JsonError("a deviation is not positive");
  return preparation;
}

}  // namespace

NetworkFacts facts_of(const run::Run& config) {
  return {.classes = config.model.classes,
          .image = config.model.image,
          .class_names = config.data.class_names,
          .preparation = config.data.preparation,
          .given = config.model.given};
}

std::string to_json(const NetworkFacts& facts) {
  Json json = Json::object({{"classes", facts.classes},
                            {"image", Json::list({facts.image.h, facts.image.w, facts.image.c})}});
  if (!facts.class_names.empty()) json.set("class_names", facts.class_names);
  if (facts.preparation) json.set("preparation", to_json(*facts.preparation));
  if (facts.given.graph) json.set("graph", models::to_json(*facts.given.graph));
  return json.dump();
}

std::optional<NetworkFacts> parse_facts(std::string_view text, std::string_view label) {
  if (text.empty()) return std::nullopt;
  try {
    const Json json = Json::parse(text);
    const std::span<const Json> image = json.at("image").items();
    if (image.size() != 3) throw JsonError("an image has three extents");
    NetworkFacts facts{.classes = json.at("classes").as_int64(),
                       .image = {image[0].as_int64(), image[1].as_int64(), image[2].as_int64()}};
    if (const Json* const graph = json.find("graph"))
      facts.given.graph = std::make_shared<const models::Graph>(models::graph_from_json(*graph));
    constexpr std::int64_t kMost = 1'000'000;
    for (const std::int64_t number : {facts.classes, facts.image.h, facts.image.w, facts.image.c})
      if (number < 1 || number > kMost) throw JsonError("a number is out of range");
    if (const Json* const names = json.find("class_names"))
      for (const Json& name : names->items()) facts.class_names.push_back(name.text());
    if (const Json* const preparation = json.find("preparation"))
      facts.preparation = parse_preparation(*preparation);
    return facts;
  } catch (const JsonError& error) {
    fail(ErrorKind::Checkpoint, "{}: the facts about the network cannot be read: {}", label,
         error.what());
  }
}

}  // namespace millrace::training
