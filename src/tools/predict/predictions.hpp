// SPDX-License-Identifier: Apache-2.0
//
// What a network says of an image, as text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "train/classifier.hpp"

namespace millrace::cli {

/// An image and its predictions.
struct PredictedImage {
  std::string name;                   ///< its path, or its number in the data set
  std::optional<std::int32_t> label;  ///< its class, if known
  std::vector<training::Prediction> predictions;
};

/// Writes predictions as a table or as JSON lines. A class without a name shows its number alone.
class PredictionText {
 public:
  /// `names` of the classes, from 0 on, must outlive this. The table has a column for images of
  /// `width`.
  PredictionText(std::span<const std::string> names, std::size_t width, bool json)
      : names_(names), width_(width), json_(json) {}

  /// The first line of a table.
  [[nodiscard]] std::string head() const;
  [[nodiscard]] std::string lines(const PredictedImage& image) const {
    return json_ ? json_line(image) : rows(image);
  }

 private:
  [[nodiscard]] std::string json_line(const PredictedImage& image) const;
  [[nodiscard]] std::string rows(const PredictedImage& image) const;
  [[nodiscard]] std::string name_of(std::int64_t label) const;

  std::span<const std::string> names_;
  std::size_t width_;
  bool json_;
};

}  // namespace millrace::cli
