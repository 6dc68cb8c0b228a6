// SPDX-License-Identifier: Apache-2.0
#include "train/warm_start.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "io/onnx/onnx_file.hpp"
#include "train/agreement.hpp"

namespace millrace::train {

void require_weights(const std::filesystem::path& path) {
  if (path.empty()) return;
  if (io::is_onnx(path)) return (void)io::open_file(path, O_RDONLY);
  std::vector<std::string> complaints;  // the trainer repeats them
  (void)io::open_newest(path, complaints);
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
    constexpr std::size_t kShown = 5;
    fail(ErrorKind::Config,
         "--init-fresh: no parameter name of {} contains '{}'; the nearest are {}", graph.name,
         text, join(nearest_containing(text, names, kShown), ", "));
  }
}

[[noreturn]] void refuse(const models::Graph& graph, const std::vector<std::string>& misfits,
                         const std::string& path) {
  constexpr std::size_t kShown = 8;
  const std::span<const std::string> shown(misfits.data(), std::min(kShown, misfits.size()));
  fail(ErrorKind::Checkpoint,
       "--init-path {}: does not fit {}: {}{}; name the parameters to initialize with --init-fresh",
       path, graph.name, join(shown, ", "),
       misfits.size() > kShown ? fmt::format(" and {} more", misfits.size() - kShown) : "");
}

}  // namespace

std::set<std::string> tensors_to_take(const models::Graph& graph,
                                      std::span<const io::TensorInfo> tensors,
                                      std::span<const std::string> fresh, const std::string& path) {
  require_matches(graph, fresh);
  std::map<std::string, const io::TensorInfo*> left;
  for (const io::TensorInfo& tensor : tensors)
    if (tensor.role != io::TensorRole::Slot && !contains_any(tensor.name, fresh))
      left.emplace(tensor.name, &tensor);
  std::set<std::string> taken;
  std::vector<std::string> misfits;
  for (const models::Parameter& parameter : graph.parameters) {
    if (contains_any(parameter.name, fresh)) continue;
    const auto found = left.find(parameter.name);
    if (found == left.end()) {
      misfits.push_back(fmt::format("{} is missing in the checkpoint", parameter.name));
      continue;
    }
    if (found->second->shape != parameter.shape)
      misfits.push_back(fmt::format("{} has shape {} in the checkpoint but needs {}",
                                    parameter.name, join(found->second->shape, "x"),
                                    join(parameter.shape, "x")));
    taken.insert(parameter.name);
    left.erase(found);
  }
  for (const auto& entry : left)
    misfits.push_back(fmt::format("{} is only in the checkpoint", entry.first));
  if (!misfits.empty()) refuse(graph, misfits, path);
  return taken;
}

void warm_start(const TrainConfig& config, const comm::World& world, const Session& session,
                Reporter& reporter) {
  const Together together(world);
  std::filesystem::path from = config.init_path;
  if (io::is_onnx(from)) {
    together.run(
        [&] { session.tensors().begin_with(io::OnnxFile(from), from, config.init_fresh); });
  } else {
    std::vector<std::string> complaints;
    const io::CheckpointReader checkpoint = agreed_newest(world, from, complaints);
    together.run([&] { session.tensors().begin_with(checkpoint, config.init_fresh); });
    for (const std::string& complaint : complaints) reporter.important(complaint);
    from = checkpoint.path();
  }
  reporter.line(fmt::format("Starting from the weights of {}", from.string()));
}

}  // namespace millrace::train
