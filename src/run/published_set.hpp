// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/model_options.hpp"

namespace millrace::run {

/// What is known of a data set that a training can name before any of its files is opened.
struct PublishedSet {
  std::string_view name;   ///< value of `dataset`
  std::string_view title;  ///< in messages
  /// Words of which one, in the path of a folder, names the set; a comma-separated list. The first
  /// set that matches counts.
  std::string_view path_words;
  std::int64_t train_size = 0;
  std::int64_t validation_size = 0;
  std::int64_t classes = 0;     ///< 0: as many as the network has
  std::int64_t image_side = 0;  ///< usual side of an image for the network
  /// Whether the images are photos of any size, in files of their own or in records, which are
  /// resized for the network; otherwise all have `image_side`, and are read into memory.
  bool photos = false;
  models::Task task = models::Task::Cifar;  ///< the networks that are built for it
};

// The table is in published_set.cpp; io/data/dataset_kinds.cpp has how each of them is opened.

/// The names, in alphabetical order.
[[nodiscard]] std::vector<std::string> set_names();
/// Whether the set of this name is one of photos; false if there is none.
[[nodiscard]] bool holds_photos(std::string_view name);
/// The networks that are built for the set of this name; those for small images if there is none.
[[nodiscard]] models::Task task_of(std::string_view name);
/// The set of this name. Error(Internal) if there is none.
[[nodiscard]] const PublishedSet& published_set(std::string_view name);
/// The set whose images and classes a network for `task` has, as far as these tell.
[[nodiscard]] const PublishedSet& set_of_network(models::Task task, std::int64_t classes);
/// The set that the path of a directory names; nullptr if none.
[[nodiscard]] const PublishedSet* set_named_in(std::string_view path);

}  // namespace millrace::run
