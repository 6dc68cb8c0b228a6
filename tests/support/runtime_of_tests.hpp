// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "tests/support/test.hpp"
#include "train/runtime.hpp"

namespace millrace::training {

/// The Runtime of a test's process, with those that mpirun started: Kokkos and MPI start once.
class RuntimeOfTests final : public ::testing::Environment {
 public:
  void SetUp() override {
    held() = std::make_unique<Runtime>(RuntimeOptions{.processes = Processes::Launched});
  }
  void TearDown() override { held().reset(); }
  static const Runtime& runtime() { return *held(); }

 private:
  static std::unique_ptr<Runtime>& held() {
    static std::unique_ptr<Runtime> runtime;
    return runtime;
  }
};
[[maybe_unused]] inline const auto* const kRuntimeOfTests =
    ::testing::AddGlobalTestEnvironment(new RuntimeOfTests);

}  // namespace millrace::training
