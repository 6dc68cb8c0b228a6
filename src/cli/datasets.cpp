// SPDX-License-Identifier: Apache-2.0
#include "cli/datasets.hpp"

#include <filesystem>
#include <optional>

#include "core/error.hpp"
#include "io/cifar.hpp"
#include "io/synthetic.hpp"

namespace millrace::cli {
namespace {

Datasets synthetic_datasets(const DataRequest& request) {
  Datasets sets;
  sets.facts = published_facts(request);
  io::SyntheticOptions options{.image_shape = request.image,
                               .classes = sets.facts.classes,
                               .size = sets.facts.train_size,
                               .seed = request.seed};
  sets.train = io::make_synthetic(options);
  options.size = sets.facts.validation_size;
  sets.validation = io::make_synthetic(options);
  return sets;
}

Datasets cifar_datasets(const DataRequest& request) {
  const bool ten = request.dataset == "cifar-10";
  io::CifarOptions options;
  options.kind = ten ? io::CifarKind::Cifar10 : io::CifarKind::Cifar100;
  if (request.normalisation != train::Normalisation::Standardise)
    options.normalisation = io::CifarNormalisation::Dataset;
  if (request.normalisation == train::Normalisation::ImageNet)
    options.statistics = io::kImageNetStatistics;

  Datasets sets;
  const std::filesystem::path directory =
      io::find_cifar(std::filesystem::absolute(request.directory), options.kind);
  options.split = io::CifarSplit::Train;
  sets.train = io::open_cifar(directory, options);
  if (request.validation) {
    options.split = io::CifarSplit::Test;
    sets.validation = io::open_cifar(directory, options);
  }
  sets.facts = {.train_size = sets.train->size(),
                .validation_size = sets.validation ? sets.validation->size() : 0,
                .classes = sets.train->classes(),
                .image = sets.train->image_shape(),
                .directory = directory.lexically_normal()};
  return sets;
}

bool holds_cifar(const std::filesystem::path& directory, io::CifarKind kind) {
  try {
    (void)io::find_cifar(directory, kind);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::string find_dataset(const std::filesystem::path& directory) {
  const bool ten = holds_cifar(directory, io::CifarKind::Cifar10);
  const bool hundred = holds_cifar(directory, io::CifarKind::Cifar100);
  if (ten && hundred)
    fail(ErrorKind::Usage,
         "{}: holds CIFAR-10 and CIFAR-100: say which with --dataset cifar-10 or cifar-100",
         directory.string());
  return ten ? "cifar-10" : hundred ? "cifar-100" : "";
}

Datasets open_datasets(const DataRequest& request) {
  if (request.synthetic) return synthetic_datasets(request);
  MILLRACE_ASSERT(request.dataset.starts_with("cifar"));  // data_request refuses what has no reader
  return cifar_datasets(request);
}

}  // namespace millrace::cli
