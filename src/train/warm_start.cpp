// SPDX-License-Identifier: Apache-2.0
#include "train/warm_start.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"
#include "models/registry.hpp"
#include "run/complete.hpp"
#include "train/agreement.hpp"

namespace millrace::training {

namespace {

std::vector<io::TensorInfo> tensors_of(const models::Graph& graph) {
  std::vector<io::TensorInfo> tensors;
  for (const models::Parameter& p : graph.parameters)
    tensors.push_back({p.name, p.trainable() ? io::TensorRole::Parameter : io::TensorRole::State,
                       DType::F32, p.shape});
  return tensors;
}

}  // namespace

void require_weights(const run::Run& config, const io::ForeignFiles& files, WeightCheck check,
                     const std::string& another) {
  const std::filesystem::path& path = config.initial_weights();
  if (path.empty()) return;
  const models::Graph graph = models::build_model(config.model);
  const auto require = [&](std::span<const io::TensorInfo> tensors, const std::string& from) {
    return tensors_to_take(graph, tensors, config.init_fresh, from, another);
  };
  if (io::holds_foreign_weights(path)) {
    const io::NetworkFile file = files.open(path);
    const std::set<std::string> taken = require(tensors_of(file.graph), path.string());
    if (check == WeightCheck::Shapes) return;
    for (std::size_t i = 0; i < file.graph.parameters.size(); ++i)
      if (taken.contains(file.graph.parameters[i].name))
        (void)file.values(models::ParameterId{static_cast<std::int32_t>(i)});
    return;
  }
  std::vector<std::string> complaints;  // the trainer repeats them
  const io::CheckpointReader checkpoint = io::open_newest(path, complaints);
  (void)require(checkpoint.tensors(), checkpoint.path().string());
}

namespace {

void require_matches(const models::Graph& graph, std::span<const std::string> fresh) {
  std::vector<std::string> names;
  for (const models::Parameter& parameter : graph.parameters) names.push_back(parameter.name);
  for (const std::string& text : fresh) {
    const bool known = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return contains_any(name, {&text, 1});
    });
    if (known) continue;
    const std::string& last = names.back();
    fail(ErrorKind::Config,
         "`init-fresh`: no parameter name of {} contains '{}': {} is the last layer, and the log "
         "with `verbose` lists all names",
         graph.name, text, last.substr(0, last.rfind('/')));
  }
}

/// A tensor that does not fit, and why.
struct Misfit {
  std::string name;
  std::string why;
};

std::string remedy_of(const models::Graph& graph, std::span<const Misfit> misfits,
                      const std::string& another) {
  const std::string& last = graph.parameters.back().name;
  const std::string layer = last.substr(0, last.rfind('/'));
  const bool only_last = std::ranges::all_of(
      misfits, [&](const Misfit& misfit) { return misfit.name.starts_with(layer + "/"); });
  if (only_last) return fmt::format("`init-fresh` {} begins with a new last layer", layer);
  constexpr std::string_view kFresh = "name the parameters to initialize with `init-fresh`";
  return another.empty()
             ? std::string(kFresh)
             : fmt::format("leave out what asks for another network ({}), or {}", another, kFresh);
}

[[noreturn]] void refuse(const models::Graph& graph, std::span<const Misfit> misfits,
                         const std::string& path, const std::string& another) {
  constexpr std::size_t kShown = 8;
  std::vector<std::string> shown;
  for (const Misfit& misfit : misfits.first(std::min(kShown, misfits.size())))
    shown.push_back(misfit.name + misfit.why);
  const std::size_t more = misfits.size() - shown.size();
  fail(ErrorKind::Checkpoint, "`init-path` {}: does not fit {}: {}{}; {}", path, graph.name,
       join(shown, ", "), more > 0 ? fmt::format(" and {} more", more) : "",
       remedy_of(graph, misfits, another));
}

}  // namespace

std::set<std::string> tensors_to_take(const models::Graph& graph,
                                      std::span<const io::TensorInfo> tensors,
                                      std::span<const std::string> fresh, const std::string& path,
                                      const std::string& another) {
  require_matches(graph, fresh);
  std::map<std::string, const io::TensorInfo*> left;
  for (const io::TensorInfo& tensor : tensors)
    if (tensor.role != io::TensorRole::Slot && !contains_any(tensor.name, fresh))
      left.emplace(tensor.name, &tensor);
  std::set<std::string> taken;
  std::vector<Misfit> misfits;
  for (const models::Parameter& parameter : graph.parameters) {
    if (contains_any(parameter.name, fresh)) continue;
    const auto found = left.find(parameter.name);
    if (found == left.end()) {
      misfits.push_back({parameter.name, " is missing in the checkpoint"});
      continue;
    }
    if (found->second->shape != parameter.shape)
      misfits.push_back({parameter.name,
                         fmt::format(" has shape {} in the checkpoint but needs {}",
                                     join(found->second->shape, "x"), join(parameter.shape, "x"))});
    taken.insert(parameter.name);
    left.erase(found);
  }
  for (const auto& entry : left) misfits.push_back({entry.first, " is only in the checkpoint"});
  if (!misfits.empty()) refuse(graph, misfits, path, another);
  return taken;
}

namespace {

/// What the network of weights has otherwise than the run's where no shape shows it.
std::string unlike(const run::Run& config, const models::ModelOptions& model) {
  run::Run other = config;
  other.model = model;
  std::vector<std::string> fields;
  for (const char* name :
       {"padding", "norm-epsilon", "groups-order", "shortcut-pad", "resnet-version"}) {
    const run::Field& field = *run::find_field(name);
    const auto theirs = run::has_effect(field, other) ? field.get(field, other) : std::nullopt;
    if (theirs && theirs != field.get(field, config))
      fields.push_back(fmt::format("`{}` {}", name, run::to_string(*theirs)));
  }
  return join(fields, ", ");
}

}  // namespace

void warm_start(const run::Run& config, const io::ForeignFiles& files, const comm::World& world,
                const Session& session, Reporter* reporter) {
  const FailTogether together(world);
  std::filesystem::path from = config.initial_weights();
  std::vector<std::string> complaints;
  if (io::holds_foreign_weights(from)) {
    together.run([&] {
      const io::NetworkFile file = files.open(from);
      session.tensors().begin_with(file, from, config.init_fresh);
      if (const std::string other = file.model ? unlike(config, *file.model) : ""; !other.empty())
        complaints.push_back(fmt::format(
            "{}: these weights are for a network with {}, which this run has not: they are of "
            "more use with it",
            from.string(), other));
    });
  } else {
    const io::CheckpointReader checkpoint = agreed_newest(world, from, complaints);
    together.run([&] { session.tensors().begin_with(checkpoint, config.init_fresh); });
    from = checkpoint.path();
  }
  if (reporter == nullptr) return;
  for (const std::string& complaint : complaints) reporter->important(complaint);
  reporter->line(fmt::format("Starting from the weights of {}", from.string()));
}

}  // namespace millrace::training
