// SPDX-License-Identifier: Apache-2.0
//
// A training that starts from the weights at `init-path` trains the network that wrote them, on
// images prepared as that network knows them, unless options ask for something else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "comm/world.hpp"
#include "run/run.hpp"
#include "train/resolve.hpp"

namespace millrace::training {

/// What the checkpoint at `init-path` says of its network.
struct InitialNetwork {
  Patch recorded;                             ///< of the run that wrote it
  std::int64_t outputs = 0;                   ///< of its last layer
  std::string last_layer;                     ///< "fc1"
  std::vector<std::string> class_names = {};  ///< that it learned; none: unknown
};

/// Nothing without `init-path`, and for a file of another program. Collective. Errors: as
/// agreed_newest(), and as network_of().
[[nodiscard]] std::optional<InitialNetwork> initial_network(const Patch& options,
                                                            const comm::World& world);

/// The options of a training with those of the network where `given` has none. A last
/// layer that `init-fresh` names has as many outputs as the data have classes; a `config` file that
/// only repeats the number of the checkpoint does not change that. Errors: Config, if the network
/// has no form for the data.
[[nodiscard]] Patch with_initial_network(const Patch& given, const InitialNetwork& initial);

/// The options, and the data set, that ask for another network than the checkpoint's:
/// "`group-norm`, `model-size` 50" as they were given.
[[nodiscard]] std::string asking_for_another(const Patch& given, const InitialNetwork& initial,
                                             std::string_view dataset);

/// A line about a last layer that goes on with classes other than those that it learned, or with
/// these in another order; "" if it begins anew, or if their names are not known.
[[nodiscard]] std::string other_classes(const Patch& given, const InitialNetwork& initial,
                                        const std::vector<std::string>& class_names);

/// A line that proposes rates for a training that begins with the weights of a run, whose options
/// were `recorded`, or of an ONNX file; "" if options set them, or if it begins with random ones.
[[nodiscard]] std::string rates_to_propose(const Patch& given, const Patch& recorded,
                                           const run::Run& config);

}  // namespace millrace::training
