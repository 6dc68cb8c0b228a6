// SPDX-License-Identifier: Apache-2.0
#include "io/torch_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>
#include <variant>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/tensor_checks.hpp"

namespace millrace::io {
namespace {

using models::Graph;
using models::Op;
using models::Parameter;
using models::ParameterRole;

constexpr std::string_view kParallelPrefix = "module.";  // of torch.nn.DataParallel

struct Renaming {
  std::string_view ours;
  std::string_view torch;
};

// Ops outside the blocks, and ops of a block relative to it.
constexpr std::array<Renaming, 3> kOutside = {
    {{"b0/conv", "conv1"}, {"b0/norm", "bn1"}, {"fc1", "fc"}}};
constexpr std::array<Renaming, 8> kInBlock = {{{"conv1", "conv1"},
                                               {"norm1", "bn1"},
                                               {"conv2", "conv2"},
                                               {"norm2", "bn2"},
                                               {"conv3", "conv3"},
                                               {"norm3", "bn3"},
                                               {"shortcut_conv", "downsample.0"},
                                               {"shortcut_norm", "downsample.1"}}};
// Names of the same modules in other repositories.
constexpr std::array<Renaming, 2> kSynonyms = {{{"fc.", "linear."}, {"downsample.", "shortcut."}}};

template <std::size_t N>
std::string_view torch_of(const std::array<Renaming, N>& table, std::string_view ours) {
  for (const Renaming& row : table) {
    if (row.ours == ours) return row.torch;
  }
  return "";
}

// "3" and "1" of "b3/1/conv2".
struct BlockPlace {
  std::string_view stage;
  std::string_view block;
  std::string_view op;
};

bool is_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Empty views if the op is not in a block.
BlockPlace place_of(std::string_view op) {
  const std::size_t first = op.find('/');
  const std::size_t second = first == std::string_view::npos ? first : op.find('/', first + 1);
  if (second == std::string_view::npos || !op.starts_with('b')) return {};
  const BlockPlace place = {op.substr(1, first - 1), op.substr(first + 1, second - first - 1),
                            op.substr(second + 1)};
  return is_digits(place.stage) && is_digits(place.block) ? place : BlockPlace{};
}

// "layer3.1.conv2" of "b3/1/conv2"; "" if there is none.
std::string module_of(std::string_view op) {
  if (const auto outside = torch_of(kOutside, op); !outside.empty()) return std::string(outside);
  const BlockPlace place = place_of(op);
  const auto inner = torch_of(kInBlock, place.op);
  if (inner.empty()) return "";
  return fmt::format("layer{}.{}.{}", place.stage, place.block, inner);
}

std::string_view field_of(ParameterRole role) {
  switch (role) {
    case ParameterRole::Kernel:
    case ParameterRole::Gamma:
      return "weight";
    case ParameterRole::Bias:
    case ParameterRole::Beta:
      return "bias";
    case ParameterRole::MovingMean:
      return "running_mean";
    case ParameterRole::MovingVariance:
      return "running_var";
  }
  return "?";
}

// torchvision's name first, then its synonyms.
std::vector<std::string> candidates_for(const std::string& torch) {
  std::vector<std::string> names = {torch};
  for (const Renaming& synonym : kSynonyms) {
    const std::size_t at = torch.find(synonym.ours);
    if (at == std::string::npos) continue;
    names.push_back(std::string(torch).replace(at, synonym.ours.size(), synonym.torch));
  }
  return names;
}

// Shape in PyTorch's order: O I H W for a convolution.
std::vector<std::int64_t> torch_shape(const Parameter& parameter) {
  const auto& s = parameter.shape;
  if (s.size() != 4) return s;
  return {s[0], s[3], s[1], s[2]};
}

std::vector<float> ohwi_from_oihw(const std::vector<float>& oihw,
                                  const std::vector<std::int64_t>& shape) {
  const auto out = static_cast<std::size_t>(shape[0]);
  const auto pixels = static_cast<std::size_t>(shape[1] * shape[2]);
  const auto in = static_cast<std::size_t>(shape[3]);
  std::vector<float> ohwi(oihw.size());
  for (std::size_t o = 0; o < out; ++o) {
    for (std::size_t p = 0; p < pixels; ++p) {
      for (std::size_t i = 0; i < in; ++i)
        ohwi[(o * pixels + p) * in + i] = oihw[(o * in + i) * pixels + p];
    }
  }
  return ohwi;
}

using BlockCounts = std::map<std::int64_t, std::set<std::int64_t>>;  // stage -> blocks in it

std::string text_of(const BlockCounts& counts) {
  std::string text;
  for (const auto& [stage, blocks] : counts)
    text += fmt::format("{}{}", text.empty() ? "" : ",", blocks.size());
  return text;
}

std::int64_t to_number(std::string_view digits) {
  return parse_number<std::int64_t>(digits).value_or(0);
}

BlockCounts blocks_of(const Graph& graph) {
  BlockCounts counts;
  for (const Op& op : graph.ops) {
    const BlockPlace place = place_of(op.name);
    if (!place.op.empty()) counts[to_number(place.stage)].insert(to_number(place.block));
  }
  return counts;
}

// One import: the tensors of the file by their plain names, and the names already used.
class Import {
 public:
  Import(const SafeTensorsFile& file, const Graph& graph) : file_(file), graph_(graph) {
    for (const auto& [name, tensor] : file.tensors()) {
      std::string_view plain = name;
      if (plain.starts_with(kParallelPrefix)) plain.remove_prefix(kParallelPrefix.size());
      if (plain.ends_with("num_batches_tracked")) continue;
      tensors_[std::string(plain)] = &tensor;
    }
  }

  std::vector<ImportedParameter> run() {
    std::vector<ImportedParameter> result;
    for (const Parameter& parameter : graph_.parameters) {
      result.push_back({parameter.name, values_of(parameter)});
    }
    require_all_used();
    return result;
  }

 private:
  std::vector<float> values_of(const Parameter& parameter) {
    const auto [name, tensor] = find(parameter);
    const std::vector<std::int64_t> expected = torch_shape(parameter);
    if (tensor.shape != expected)
      fail(ErrorKind::Data, "{}: {} has shape {}, but {} of {} needs {}{}", file_.path().string(),
           name, shape_text(tensor.shape), parameter.name, graph_.name, shape_text(expected),
           hint());
    used_.insert(name);
    const std::vector<float> values = floats_of(name, tensor);
    if (const std::string bad = bad_value(values, expected, value_rule(parameter.name));
        !bad.empty())
      fail(ErrorKind::Data, "{}: {}{}: the network cannot use this value: fetch the weights again",
           file_.path().string(), name, bad);
    const bool convolution = expected.size() == 4;
    return convolution ? ohwi_from_oihw(values, parameter.shape) : values;
  }

  [[nodiscard]] std::vector<float> floats_of(const std::string& name,
                                             const SafeTensor& tensor) const {
    try {
      return tensor.to_floats();
    } catch (const Error& error) {
      fail(error.kind(), "{}: {}: {}", file_.path().string(), name, error.what());
    }
  }

  struct Found {
    std::string name;
    const SafeTensor& tensor;
  };

  [[nodiscard]] Found find(const Parameter& parameter) const {
    const std::vector<std::string> candidates = candidates_for(torch_name(graph_, parameter));
    for (const std::string& name : candidates) {
      const auto found = tensors_.find(name);
      if (found != tensors_.end()) return {name, *found->second};
    }
    fail(ErrorKind::Data, "{}: no tensor {} (shape {}) for {} of {}{}{}", file_.path().string(),
         candidates.front(), shape_text(torch_shape(parameter)), parameter.name, graph_.name,
         nearest_to(candidates.front()), hint());
  }

  void require_all_used() const {
    for (const auto& [name, tensor] : tensors_) {
      if (used_.contains(name)) continue;
      fail(ErrorKind::Data, "{}: {} {} is not part of {} ({} of {} tensors are){}",
           file_.path().string(), name, shape_text(tensor->shape), graph_.name, used_.size(),
           tensors_.size(), hint());
    }
  }

  // A similar name among the tensors that no parameter uses.
  [[nodiscard]] std::string nearest_to(const std::string& missing) const {
    std::set<std::string> wanted;
    for (const Parameter& parameter : graph_.parameters) {
      for (std::string& name : candidates_for(torch_name(graph_, parameter)))
        wanted.insert(std::move(name));
    }
    std::vector<std::string> left;
    for (const auto& entry : tensors_) {
      if (!wanted.contains(entry.first)) left.push_back(entry.first);
    }
    const std::string nearest = nearest_match(missing, left);
    return nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest);
  }

  // Describes the network in the file, if it differs.
  [[nodiscard]] std::string hint() const {
    const std::string there = text_of(blocks_in_file());
    const std::string here = text_of(blocks_of(graph_));
    if (there.empty() || there == here) return "";
    return fmt::format("; the file is a network with {} blocks in its stages, but {} has {}", there,
                       graph_.name, here.empty() ? "none" : here);
  }

  [[nodiscard]] BlockCounts blocks_in_file() const {
    BlockCounts counts;
    constexpr std::string_view kLayer = "layer";
    for (const auto& entry : tensors_) {
      const std::vector<std::string> parts = split_list(entry.first, '.');
      const bool in_block = parts.size() > 2 && parts[0].starts_with(kLayer) &&
                            is_digits(std::string_view(parts[0]).substr(kLayer.size())) &&
                            is_digits(parts[1]);
      if (!in_block) continue;
      counts[to_number(std::string_view(parts[0]).substr(kLayer.size()))].insert(
          to_number(parts[1]));
    }
    return counts;
  }

  const SafeTensorsFile& file_;
  const Graph& graph_;
  std::map<std::string, const SafeTensor*> tensors_;
  std::set<std::string> used_;
};

}  // namespace

std::string torch_name(const Graph& graph, const Parameter& parameter) {
  const std::string& op = graph.op(parameter.op).name;
  const std::string module = module_of(op);
  if (module.empty())
    fail(ErrorKind::Config, "{}: torchvision has no name for {}; only residual networks have them",
         graph.name, parameter.name);
  return fmt::format("{}.{}", module, field_of(parameter.role));
}

std::vector<ImportedParameter> import_torch(const SafeTensorsFile& file, const Graph& graph) {
  return Import(file, graph).run();
}

}  // namespace millrace::io
