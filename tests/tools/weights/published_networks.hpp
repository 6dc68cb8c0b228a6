// SPDX-License-Identifier: Apache-2.0
//
// Networks as libraries publish them, and files of their weights.
#pragma once

#include "models/registry.hpp"
#include "tests/io/fixtures.hpp"
#include "tests/support/expect_error.hpp"
#include "tools/weights/import.hpp"

namespace millrace::io {

using models::build_model;
using models::Graph;
using models::ModelOptions;
using models::Parameter;

inline ModelOptions published(const char* model, const char* size) {
  ModelOptions options = models::default_options(model, models::Task::ImageNet);
  options.size = size;
  options.norm = models::NormKind::Batch;
  return options;
}

/// The parameters of a network that the library has.
inline std::vector<ForeignParameter> names_in(WeightStyle style, const Graph& graph) {
  ForeignParameters names = foreign_parameters(graph, style);
  EXPECT_EQ(names.misfit, "");
  return names.all;
}

}  // namespace millrace::io
