// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "models/registry.hpp"

namespace millrace::partition {

inline models::Graph cifar_resnet(std::string size) {
  models::ModelOptions options;
  options.size = std::move(size);
  return models::build_model(options);
}

inline models::Graph imagenet_resnet(std::string size) {
  models::ModelOptions options;
  options.size = std::move(size);
  options.task = models::Task::ImageNet;
  options.classes = 1000;
  options.image = {224, 224, 3};
  options.shortcut = 'B';
  return models::build_model(options);
}

}  // namespace millrace::partition
