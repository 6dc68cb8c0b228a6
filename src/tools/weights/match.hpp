// SPDX-License-Identifier: Apache-2.0
//
// A file of weights beside a network: which of its tensors the network has, and which not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "models/graph.hpp"
#include "tools/weights/names.hpp"
#include "tools/weights/tensor_file.hpp"

namespace millrace::io {

/// The tensors of a file by plain names, which do not depend on where a network came from: without
/// `module.`, `_orig_mod.` and `model.` before them, in any order and number; with `fc` for
/// `linear` and `downsample` for `shortcut`; and with `predictions` for the only dense layer of a
/// network of Keras. Counters of batches and the preprocessing of Keras are left out.
class NamedTensors {
 public:
  /// Errors: Data if two tensors have one plain name.
  explicit NamedTensors(const TensorFile& file);

  struct Named {
    std::string name;  ///< in the file
    const SafeTensor* tensor = nullptr;
  };
  /// nullptr if there is none.
  [[nodiscard]] const Named* find(const std::string& name) const;
  [[nodiscard]] const std::map<std::string, Named>& all() const { return all_; }
  [[nodiscard]] const TensorFile& file() const { return file_; }
  /// The names of the dense layers of a network of Keras, in the file.
  [[nodiscard]] const std::set<std::string>& dense_layers() const { return dense_; }
  /// The outputs of the network, by the rows of its last layer.
  [[nodiscard]] std::optional<std::int64_t> classes() const;

 private:
  const TensorFile& file_;
  std::map<std::string, Named> all_;
  std::set<std::string> dense_;
};

struct Match {
  std::vector<ForeignParameter> names = {};             ///< of the parameters in this file
  std::size_t found = 0;                                ///< parameters with their tensors
  std::string misfit = {};                              ///< the first that does not fit, or empty
  std::vector<std::string> missing = {};                ///< names of tensors that the file lacks
  std::vector<std::string> reshaped = {};               ///< "fc.bias has shape [9], but ..."
  std::vector<const NamedTensors::Named*> unused = {};  ///< tensors that no parameter uses
  /// By parameter of a running mean: the bias that the library adds before it.
  std::map<std::string, const NamedTensors::Named*> biases = {};

  [[nodiscard]] bool fits() const { return misfit.empty() && unused.empty(); }
  /// Tensors in which the file and the network differ.
  [[nodiscard]] std::size_t distance() const {
    return missing.size() + reshaped.size() + unused.size();
  }
};
[[nodiscard]] Match match(const NamedTensors& tensors, const models::Graph& graph,
                          WeightStyle style);

/// "the file lacks fc.bias, and has extra.weight [4] besides".
[[nodiscard]] std::string difference_text(const Match& match);

}  // namespace millrace::io
