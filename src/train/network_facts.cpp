// SPDX-License-Identifier: Apache-2.0
#include "train/network_facts.hpp"

#include "core/error.hpp"
#include "core/json.hpp"
#include "train/config.hpp"

namespace millrace::train {

NetworkFacts facts_of(const TrainConfig& config) {
  return {.classes = config.model.classes, .image = config.model.image};
}

std::string to_json(const NetworkFacts& facts) {
  return Json::object({{"classes", facts.classes},
                       {"image", Json::list({facts.image.h, facts.image.w, facts.image.c})}})
      .dump();
}

std::optional<NetworkFacts> parse_facts(std::string_view text, std::string_view label) {
  if (text.empty()) return std::nullopt;
  try {
    const Json json = Json::parse(text);
    const std::span<const Json> image = json.at("image").items();
    if (image.size() != 3) throw JsonError("an image has three extents");
    const NetworkFacts facts{
        .classes = json.at("classes").as_int64(),
        .image = {image[0].as_int64(), image[1].as_int64(), image[2].as_int64()}};
    constexpr std::int64_t kMost = 1'000'000;
    for (const std::int64_t number : {facts.classes, facts.image.h, facts.image.w, facts.image.c})
      if (number < 1 || number > kMost) throw JsonError("a number is out of range");
    return facts;
  } catch (const JsonError& error) {
    fail(ErrorKind::Checkpoint, "{}: the facts about the network cannot be read: {}", label,
         error.what());
  }
}

}  // namespace millrace::train
