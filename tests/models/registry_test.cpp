// SPDX-License-Identifier: Apache-2.0
#include "models/registry.hpp"

#include <gtest/gtest.h>

#include "models/resnet.hpp"
#include "tests/models/expect_error.hpp"

namespace millrace::models {
namespace {

TEST(Registry, BuildsByName) { EXPECT_EQ(build_model({}), build_resnet({})); }

TEST(Registry, ListsTheModelsThereAre) {
  ModelOptions options;
  options.model = "resent";
  expect_error(ErrorKind::Config,
               "there is no model resent, did you mean resnet?; models: resnet, resnext, "
               "squeezenet, efficientnet",
               [&] { static_cast<void>(build_model(options)); });
  options.model = "vgg";
  expect_error(ErrorKind::Config,
               "there is no model vgg; models: resnet, resnext, squeezenet, efficientnet",
               [&] { static_cast<void>(build_model(options)); });
}

}  // namespace
}  // namespace millrace::models
