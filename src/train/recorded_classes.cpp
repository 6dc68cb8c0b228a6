// SPDX-License-Identifier: Apache-2.0
#include "train/recorded_classes.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"

namespace millrace::training {

std::vector<std::string> class_keys(const std::vector<std::string>& names) {
  std::vector<std::string> keys = names;
  for (std::string& key : keys)
    if (key.ends_with(')')) key.resize(std::min(key.find(" ("), key.size()));
  const std::set<std::string_view> distinct(keys.begin(), keys.end());
  return distinct.size() == keys.size() ? keys : names;
}

namespace {

/// Adds to the names of classes what only the checkpoint knows of them: data without words.txt have
/// no names for people.
void keep_names(std::vector<std::string>& names, const std::vector<std::string>& known) {
  if (names.empty()) names = known;
  const std::vector<std::string> here = class_keys(names);
  const std::vector<std::string> there = class_keys(known);
  for (std::size_t i = 0; i < std::min(here.size(), there.size()); ++i)
    if (names[i] == here[i] && here[i] == there[i]) names[i] = known[i];
}

std::string_view remedy(ImagesFor use) {
  return use == ImagesFor::Validation
             ? "give the data set of the run with `data-dir`; class folders number their classes "
               "by name, so that none may be missing"
             : "give the data set of the run with `data-dir`; a training of other classes is a new "
               "run, which begins with these weights with train `init-path` RUN_DIR `init-fresh` "
               "and the name of the last layer";
}

}  // namespace

void match_classes(OpenedRun& run, const NetworkFacts& known,
                   const std::filesystem::path& checkpoint, ImagesFor use) {
  const std::string place = run.data.facts.directory.string();
  const auto require = [&](std::size_t here, std::size_t there) {
    if (here != there)
      fail(ErrorKind::Data, "{}: has images of {} classes, but {} has {}: {}", place, here,
           checkpoint.string(), there, remedy(use));
  };
  require(static_cast<std::size_t>(run.config.model.classes),
          static_cast<std::size_t>(known.classes));
  std::vector<std::string>& names = run.config.data.class_names;
  keep_names(names, known.class_names);
  const std::vector<std::string> keys = class_keys(names);
  const std::vector<std::string> known_keys = class_keys(known.class_names);
  const auto [here, there] = std::ranges::mismatch(keys, known_keys);
  if (here != keys.end() && there != known_keys.end())
    fail(ErrorKind::Data, "{}: class {} is {} there, but {} in {}: {}", place, here - keys.begin(),
         *here, *there, checkpoint.string(), remedy(use));
  // A network may have more outputs than there are classes.
  if (use == ImagesFor::Training && !known_keys.empty()) require(keys.size(), known_keys.size());
}

}  // namespace millrace::training
