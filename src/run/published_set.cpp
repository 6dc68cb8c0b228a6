// SPDX-License-Identifier: Apache-2.0
#include "run/published_set.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "core/error.hpp"
#include "core/text.hpp"

namespace millrace::run {
namespace {

constexpr std::array kSets = {
    PublishedSet{.name = "imagenet",
                 .title = "ImageNet",
                 .path_words = "imagenet",
                 .train_size = 1'281'167,
                 .validation_size = 50'000,
                 .classes = 0,
                 .image_side = 224,
                 .photos = true,
                 .task = models::Task::ImageNet},
    PublishedSet{.name = "cifar-100",
                 .title = "CIFAR-100",
                 .path_words = "cifar100,cifar-100",
                 .train_size = 50'000,
                 .validation_size = 10'000,
                 .classes = 100,
                 .image_side = 32},
    PublishedSet{.name = "cifar-10",
                 .title = "CIFAR-10",
                 .path_words = "cifar",
                 .train_size = 50'000,
                 .validation_size = 10'000,
                 .classes = 10,
                 .image_side = 32},
};

/// nullptr if there is none.
const PublishedSet* find_set(std::string_view name) {
  const auto* const found = std::ranges::find(kSets, name, &PublishedSet::name);
  return found == kSets.end() ? nullptr : found;
}

}  // namespace

std::vector<std::string> set_names() {
  std::vector<std::string> names;
  names.reserve(kSets.size());
  for (const PublishedSet& set : kSets) names.emplace_back(set.name);
  std::ranges::sort(names);
  return names;
}

bool holds_photos(std::string_view name) {
  const PublishedSet* const set = find_set(name);
  return set != nullptr && set->photos;
}

models::Task task_of(std::string_view name) {
  const PublishedSet* const set = find_set(name);
  return set == nullptr ? models::Task::Cifar : set->task;
}

const PublishedSet& published_set(std::string_view name) {
  const PublishedSet* const found = find_set(name);
  MILLRACE_ASSERT(found != nullptr);
  return *found;
}

const PublishedSet& set_of_network(models::Task task, std::int64_t classes) {
  const PublishedSet* best = nullptr;
  for (const PublishedSet& set : kSets)
    if (set.task == task && (best == nullptr || best->classes != classes)) best = &set;
  MILLRACE_ASSERT(best != nullptr);
  return *best;
}

const PublishedSet* set_named_in(std::string_view path) {
  const std::string text = to_lower(path);
  for (const PublishedSet& set : kSets)
    for (const std::string& word : split_list(set.path_words))
      if (text.find(word) != std::string::npos) return &set;
  return nullptr;
}

}  // namespace millrace::run
