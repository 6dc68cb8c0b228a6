// SPDX-License-Identifier: Apache-2.0
#include "models/registry.hpp"

#include "models/networks.hpp"
#include "tests/support/expect_error.hpp"

namespace millrace::models {
namespace {

TEST(Registry, BuildsByName) {
  EXPECT_EQ(build_model({}), build_resnet({}));
  ModelOptions options = default_options("resnext", Task::Cifar);
  EXPECT_EQ(build_model(options), build_resnext(options));
  options = default_options("squeezenet", Task::Cifar);
  EXPECT_EQ(build_model(options), build_squeezenet(options));
  options = default_options("efficientnet", Task::Cifar);
  EXPECT_EQ(build_model(options), build_efficientnet(options));
}

TEST(Registry, DefaultsAreThoseOfTheRecipes) {
  const auto is = [](std::string_view model, Task task, std::string_view size, NormKind norm,
                     std::int64_t groups) {
    const ModelOptions options = default_options(model, task);
    EXPECT_EQ(options.model, model);
    EXPECT_EQ(options.size, size) << model;
    EXPECT_EQ(options.task, task) << model;
    EXPECT_EQ(options.norm, norm) << model;
    EXPECT_EQ(options.groups, groups) << model;
    const bool cifar = task == Task::Cifar;
    EXPECT_EQ(options.classes, cifar ? 10 : 1000);
    EXPECT_EQ(options.image, (cifar ? Shape{32, 32, 3} : Shape{224, 224, 3}));
    EXPECT_EQ(options.shortcut, cifar ? 'A' : 'B');
    EXPECT_NO_THROW(static_cast<void>(build_model(options))) << model;
  };
  is("resnet", Task::ImageNet, "18", NormKind::Group, 32);
  is("resnet", Task::Cifar, "20", NormKind::Batch, 16);
  is("resnext", Task::ImageNet, "14", NormKind::Group, 32);
  is("resnext", Task::Cifar, "11", NormKind::Batch, 16);
  is("squeezenet", Task::ImageNet, "1.0", NormKind::Group, 32);
  is("squeezenet", Task::Cifar, "1.0", NormKind::Group, 32);
  is("efficientnet", Task::ImageNet, "B0", NormKind::Group, 4);
  is("efficientnet", Task::Cifar, "cifar", NormKind::Group, 4);
}

TEST(Registry, UnknownModelsListTheKnownOnes) {
  ModelOptions options;
  options.model = "resent";
  expect_error(ErrorKind::Config,
               "unknown model resent (did you mean resnet?); models: resnet, resnext, "
               "squeezenet, efficientnet",
               [&] { static_cast<void>(build_model(options)); });
  options.model = "vgg";
  expect_error(ErrorKind::Config,
               "unknown model vgg; models: resnet, resnext, squeezenet, efficientnet",
               [&] { static_cast<void>(build_model(options)); });
}

}  // namespace
}  // namespace millrace::models
