// SPDX-License-Identifier: Apache-2.0
#include "tools/predict/predictions.hpp"

#include <fmt/format.h>

#include <utility>

#include "core/json.hpp"
#include "core/text.hpp"

namespace millrace::cli {

std::string PredictionText::name_of(std::int64_t label) const {
  return label < std::ssize(names_) ? names_[static_cast<std::size_t>(label)] : "";
}

std::string PredictionText::head() const {
  return json_ ? "" : fmt::format("{:<{}}  probability  class\n", "image", width_);
}

std::string PredictionText::rows(const PredictedImage& image) const {
  std::string text;
  std::string name = printable(image.name);
  if (name.size() > width_) text = std::exchange(name, "") + '\n';
  for (const training::Prediction& p : image.predictions) {
    text += fmt::format("{:<{}}  {:>9.2f} %  {:>5}  {}", name, width_, 100.0 * p.probability,
                        p.label, printable(name_of(p.label)));
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
    name.clear();
  }
  return text;
}

std::string PredictionText::json_line(const PredictedImage& image) const {
  Json line = Json::object({{"image", image.name}});
  if (image.label) line.set("label", *image.label);
  Json top = Json::list();
  for (const training::Prediction& p : image.predictions) {
    Json one = Json::object({{"class", p.label}});
    if (const std::string name = name_of(p.label); !name.empty()) one.set("name", name);
    one.set("probability", p.probability);
    one.set("logit", p.logit);
    top.push_back(std::move(one));
  }
  line.set("top", std::move(top));
  return line.dump(-1, Json::NotUtf8::Replaced) + "\n";
}

}  // namespace millrace::cli
