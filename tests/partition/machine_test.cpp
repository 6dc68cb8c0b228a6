// SPDX-License-Identifier: Apache-2.0
#include "partition/machine.hpp"

#include "tests/partition/nets.hpp"
#include "tests/support/test.hpp"

namespace millrace::partition {
namespace {

// The rates come back from times that were computed with them.
TEST(MachineTest, TheFitFindsTheRates) {
  const DeviceModel truth{.name = "here",
                          .flops_per_second = 40e9,
                          .bytes_per_second = 9e9,
                          .seconds_per_kernel = 2e-6,
                          .depthwise_flops_per_second = 7e9};
  models::ModelOptions options;
  options.model = "efficientnet";
  options.size = "B0";
  options.task = models::Task::ImageNet;
  options.classes = 1000;
  options.image = {224, 224, 3};
  std::vector<KernelSample> samples;
  for (const Graph& graph : {models::build_model(options), cifar_resnet("20")}) {
    const auto more =
        kernel_samples(graph, 2, DType::F32, analytic_costs(graph, 2, DType::F32, truth));
    samples.insert(samples.end(), more.begin(), more.end());
  }
  const DeviceModel fit = fit_device("here", samples);
  EXPECT_NEAR(fit.flops_per_second / truth.flops_per_second, 1.0, 0.05);
  EXPECT_NEAR(fit.depthwise_flops_per_second / truth.depthwise_flops_per_second, 1.0, 0.05);
  EXPECT_NEAR(fit.bytes_per_second / truth.bytes_per_second, 1.0, 0.05);
  EXPECT_GT(fit.seconds_per_kernel, 0.5 * truth.seconds_per_kernel);
  EXPECT_LT(fit.seconds_per_kernel, 2.0 * truth.seconds_per_kernel);
}

TEST(MachineTest, AnOpWithoutTimeBelongsToTheKernelOfItsNeighbour) {
  const Graph graph = cifar_resnet("8");
  const DeviceModel device{"here", 1e9, 1e9, 0.0};
  std::vector<OpCost> costs = analytic_costs(graph, 1, DType::F32, device);
  const std::size_t before = kernel_samples(graph, 1, DType::F32, costs).size();
  const auto timed = std::find_if(costs.begin() + 1, costs.end(),
                                  [](const OpCost& cost) { return cost.forward > 0.0; });
  timed->forward = 0.0;
  const auto samples = kernel_samples(graph, 1, DType::F32, costs);
  EXPECT_EQ(samples.size(), before - 1);
  double work = 0.0;
  double all = 0.0;
  for (const KernelSample& sample : samples) work += sample.work.bytes;
  for (const auto& phase : op_work(graph, 1, DType::F32))
    for (const OpWork& op : phase) all += op.bytes;
  EXPECT_DOUBLE_EQ(work, all);
}

}  // namespace
}  // namespace millrace::partition
