// SPDX-License-Identifier: Apache-2.0
//
// Networks in files of ONNX follow PyTorch's loss, and do so with the same bits in every layout.
// tests/golden/record_own_networks.py recorded the losses in float64.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "device/compat.hpp"
#include "tests/support/device_floats.hpp"
#include "tests/support/onnx_bytes.hpp"
#include "tests/support/stage_chain.hpp"
#include "tests/support/test.hpp"
#include "tools/onnx/onnx_file.hpp"

namespace millrace {
namespace {

using models::Graph;
using nlohmann::json;

struct Network {
  const char* name;
  test::OnnxBytes (*make)(std::int64_t side);
};
void PrintTo(const Network& network, std::ostream* out) { *out << network.name; }

const json& golden() {
  static const json recorded =
      json::parse(std::ifstream(MILLRACE_SOURCE_DIR "/tests/golden/pytorch/own-networks.json"));
  return recorded;
}

/// What ten steps end with.
struct Outcome {
  std::vector<double> losses;
  std::map<std::string, std::vector<float>> values;
};

class OwnNetworkTest : public testing::TestWithParam<Network> {
 protected:
  const io::NetworkFile file_ =
      io::parse_onnx(GetParam().make(16).bytes(), "net.onnx", GetParam().name);
  const Graph& graph_ = file_.graph;

  void load(test::StageChain& chain, std::size_t stages) {
    for (std::size_t s = 0; s < stages; ++s) {
      pipeline::Parameters& parameters = chain.stage(s).parameters();
      for (const models::ParameterId id : parameters.ids())
        test::write_floats(parameters.value(id), file_.values(id));
    }
  }

  /// Trains with cuts before these ops.
  Outcome train(const std::vector<std::int32_t>& cuts) {
    const std::int64_t batch = golden().at("batch");
    pipeline::StageOptions options;
    options.batch = batch;
    options.parameters.rule = UpdateRule::Momentum;
    const auto backend = ops::make_default_backend();
    test::StageChain chain(graph_, cuts, options, *backend);
    load(chain, cuts.size() + 1);
    std::vector<float> images(static_cast<std::size_t>(batch * graph_.input_shape.elements()));
    const test::NamedUniform u("images@0");
    for (std::size_t i = 0; i < images.size(); ++i) images[i] = static_cast<float>(u(i));
    std::vector<std::int32_t> labels;
    for (std::int64_t n = 0; n < batch; ++n)
      labels.push_back(static_cast<std::int32_t>((3 + 7 * n) % graph_.classes));
    io::Batch loaded;
    loaded.images = std::as_bytes(std::span(images));
    loaded.labels = labels;
    chain.use(loaded);
    ops::Update update;
    update.rate = golden().at("rate");
    update.momentum = golden().at("momentum");
    Outcome outcome;
    const device::ExecutionSpace space;
    for (int i = 0; i < 10; ++i) {
      chain.begin_step();
      outcome.losses.push_back(chain.forward(0, chain.context(0)) / static_cast<double>(batch));
      chain.backward_input(chain.context(0));
      chain.backward_weight(chain.context(0));
      for (std::size_t s = 0; s <= cuts.size(); ++s) {
        chain.stage(s).parameters().begin_step(space, {.update = update});
        chain.stage(s).parameters().update(space, 1);
      }
      device::fence(space);
    }
    outcome.values = chain.values();
    return outcome;
  }
};

TEST_P(OwnNetworkTest, FollowsPyTorchAlikeInEveryLayout) {
  const Outcome whole = train({});
  const std::vector<double> expected = golden().at("losses").at(GetParam().name);
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(whole.losses[i], expected[i], i < 3 ? 1e-6 * expected[i] : 1e-5) << "step " << i;
  const auto ops = static_cast<std::int32_t>(graph_.ops.size());
  std::vector<std::int32_t> everywhere;
  for (std::int32_t op = 1; op < ops; ++op) everywhere.push_back(op);
  for (const std::vector<std::int32_t>& cuts :
       {std::vector{ops / 2}, std::vector{ops / 3, 2 * ops / 3}, everywhere}) {
    const Outcome cut = train(cuts);
    EXPECT_EQ(cut.losses, whole.losses) << cuts.size() << " cuts";
    EXPECT_EQ(cut.values, whole.values) << cuts.size() << " cuts";
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, OwnNetworkTest,
                         testing::Values(Network{"plain", test::plain_network},
                                         Network{"dense", test::dense_network},
                                         Network{"depthwise", test::depthwise_network},
                                         Network{"mobile", test::mobile_network}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace millrace
