// SPDX-License-Identifier: Apache-2.0
#include "train/datasets.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/data/synthetic.hpp"

namespace millrace::training {
namespace {

Datasets synthetic_datasets(const DataRequest& request) {
  Datasets sets;
  sets.facts = published_facts(request);
  io::SyntheticOptions options{.image_shape = request.image,
                               .classes = sets.facts.classes,
                               .size = sets.facts.train_size,
                               .seed = request.seed,
                               .images = request.source == run::ImageSource::Host
                                             ? io::SyntheticImages::Varied
                                             : io::SyntheticImages::One};
  if (request.files.train)
    sets.train = io::make_synthetic(options);
  else
    sets.facts.train_size = 0;
  options.size = sets.facts.validation_size;
  sets.validation = io::make_synthetic(options);
  return sets;
}

/// The request with what small images are normalized by and with reports.
io::DatasetRequest dataset_request(const DataRequest& request, const DataReports& reports) {
  io::DatasetRequest asked = request.files;
  if (request.normalisation != run::Normalisation::Standardise)
    asked.normalisation = io::CifarNormalisation::Dataset;
  if (request.normalisation == run::Normalisation::ImageNet)
    asked.statistics = io::kImageNetStatistics;
  if (reports.bad_image)
    asked.images.report = [tell = reports.bad_image](const std::string& what) {
      tell(fmt::format("Bad image, replaced by another of its class: {}", what));
    };
  asked.open.index.cache_folder = cache_folder();
  asked.open.index.tell = reports.tell;
  if (reports.progress)
    asked.indexing = [progress = reports.progress](io::Split split) {
      return progress(fmt::format("indexing {} images", split_name(split)));
    };
  return asked;
}

}  // namespace

std::filesystem::path cache_folder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0')
    return std::filesystem::path(cache) / "millrace";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    return std::filesystem::path(home) / ".cache" / "millrace";
  return {};
}

std::string find_dataset(const std::filesystem::path& directory) {
  std::error_code ignored;
  if (std::filesystem::status(directory, ignored).type() == std::filesystem::file_type::not_found)
    fail(ErrorKind::Data, "'{}' does not exist: `data-dir` takes the folder of a data set",
         directory.string());
  const io::DatasetKind* const found = io::dataset_in(directory);
  return found == nullptr ? "" : std::string(found->published.name);
}

std::string find_dataset(const Patch& options) {
  if (dataset_is_told(options)) return "";
  const std::string directory = *options.text("data-dir");
  // Random images of a set need no folder, but one that is there tells the set.
  std::error_code unknown;
  const bool needed = image_source(options) == run::ImageSource::Files;
  return needed || std::filesystem::exists(directory, unknown) ? find_dataset(directory) : "";
}

Datasets with_facts(Datasets sets, std::filesystem::path directory) {
  if (!sets.train && !sets.validation) return sets;
  const io::Dataset& any = sets.train ? *sets.train : *sets.validation;
  sets.facts = {.train_size = sets.train ? sets.train->size() : 0,
                .validation_size = sets.validation ? sets.validation->size() : 0,
                .classes = any.classes(),
                .image = any.image_shape(),
                .directory = std::move(directory),
                .class_names = any.class_names(),
                .preparation = any.preparation()};
  for (std::string& name : sets.facts.class_names) name = printable(name);  // checkpoints are UTF-8
  return sets;
}

Datasets open_datasets(const DataRequest& request, const DataReports& reports) {
  if (request.source != run::ImageSource::Files) return synthetic_datasets(request);
  io::OpenedDatasets opened =
      io::dataset_kind(request.dataset).open(dataset_request(request, reports));
  return with_facts({.train = std::move(opened.train),
                     .validation = std::move(opened.validation),
                     .facts = {},
                     .notices = std::move(opened.notices)},
                    std::move(opened.directory));
}

}  // namespace millrace::training
