// SPDX-License-Identifier: Apache-2.0
//
// millrace as a library: one header for all of it. docs/library.md teaches it with whole programs.
//
//   Run, recipe        what to train: plain data, as a configuration file says it
//   train, restore,    do what the commands do, in this process, and print nothing
//   validate
//   Training           the same step by step: losses, parameters and gradients of your own
//   Classifier         logits of images, from a checkpoint or a run
//   GraphBuilder       a network of your own
//   Dataset            images of your own; MemoryDataset holds them
//   Runtime            threads and processes
//   Error              the only exception
//
// Nothing here prints, catches signals or ends the process.
#pragma once

#include "core/error.hpp"
#include "io/data/dataset.hpp"
#include "io/data/memory_dataset.hpp"
#include "models/graph.hpp"
#include "run/run.hpp"
#include "train/classifier.hpp"
#include "train/runtime.hpp"
#include "train/train_run.hpp"
#include "train/training.hpp"

namespace millrace {

using io::Dataset;
using io::MemoryDataset;
using models::Graph;
using models::GraphBuilder;
using run::Run;
using training::Callbacks;
using training::Classifier;
using training::ClassifierOptions;
using training::Image;
using training::Images;
using training::Outcome;
using training::ParameterInfo;
using training::parse_recipe;
using training::Prediction;
using training::Processes;
using training::recipe;
using training::restore;
using training::Runtime;
using training::RuntimeOptions;
using training::Score;
using training::top;
using training::train;
using training::Trained;
using training::Training;
using training::Update;
using training::validate;
using training::Validated;

}  // namespace millrace
