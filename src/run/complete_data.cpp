// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "core/text.hpp"
#include "run/complete_parts.hpp"
#include "run/published_set.hpp"

namespace millrace::run {
namespace {

std::string dataset_in(std::string_view directory) {
  const PublishedSet* const named = set_named_in(directory);
  return named == nullptr ? "" : std::string(named->name);
}

/// "a, b or c".
std::string choice_of(std::vector<std::string> names) {
  const std::string last = names.back();
  names.pop_back();
  return join(names, ", ") + " or " + last;
}

}  // namespace

ImageSource image_source(const Patch& options) {
  if (options.flag("generated-data")) return ImageSource::Host;
  return options.flag("synthetic-data") ? ImageSource::Device : ImageSource::Files;
}

std::string dataset_name(const Patch& options) {
  if (const auto name = options.text("dataset")) return *name;
  const std::optional<std::string> directory = options.text("data-dir");
  if (image_source(options) != ImageSource::Files && !directory)
    fail(ErrorKind::Usage, "{} needs `dataset`: give the data set that it stands for",
         options.flag("synthetic-data") ? "`synthetic-data`" : "`generated-data`");
  if (!directory)
    fail(ErrorKind::Usage,
         "no data set: give `data-dir` DIR or set DATA_DIR, or use `dataset` with "
         "`synthetic-data`");
  std::string name = dataset_in(*directory);
  if (name.empty())
    fail(ErrorKind::Usage, "{} '{}' does not name a known data set: give `dataset` {}",
         options.find("data-dir")->where, *directory, choice_of(set_names()));
  return name;
}

bool wants_validation(const Patch& options) {
  if (const auto mode = options.text("validation-mode")) return *mode != "none";
  return !options.flag("no-validation");
}

void complete_data(const DatasetFacts& facts, const MachineFacts& machine, Run& config) {
  DataConfig& data = config.data;
  data.train_size = facts.train_size;
  data.validation_size = facts.validation_size;
  data.class_names = facts.class_names;
  data.preparation = facts.preparation;
  data.image_type = data.asked_type;
  // The tensors are the same, and there is less to copy.
  const bool copies = machine.copies_images && !data.image_type && !data.normalises_on_host;
  if (data.sends_bytes || copies) data.image_type = data.image_type.value_or(DType::U8);
  if (data.source != ImageSource::Files)
    data.directory.clear();  // recipes name it anyway, and its path may name the data set
  else if (!facts.directory.empty())
    data.directory = facts.directory;
}

bool dataset_is_told(const Patch& options) {
  const std::optional<std::string> directory = options.text("data-dir");
  return options.text("dataset") || !directory || !dataset_in(*directory).empty();
}

}  // namespace millrace::run
