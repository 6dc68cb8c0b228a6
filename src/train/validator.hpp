// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "comm/world.hpp"
#include "io/checkpoint.hpp"
#include "io/data/dataset.hpp"
#include "run/run.hpp"
#include "train/reporter.hpp"
#include "train/session.hpp"
#include "train/trainer.hpp"

namespace millrace::training {

/// Validates the weights of a run: during the training, or its checkpoints at the end. Its
/// functions are collective. They return false if a signal interrupted them. Errors: Numeric if
/// the loss of the newest weights is not finite.
class Validator {
 public:
  /// The references must outlive this. `interrupted` is collective; all ranks return the same.
  Validator(const run::Run& config, const TrainInputs& inputs, const comm::World& world,
            Reporter& reporter, std::function<bool()> interrupted);
  /// From now on validates with this session, which must outlive this.
  void follow(Session& session) { session_ = &session; }

  /// Validates the weights after `done` updates, and their moving average if there is one.
  [[nodiscard]] bool validate(std::int64_t done) {
    return validate(done, "", true) && validate_ema(done, true);
  }
  /// Validates the iteration that a restored run starts from, if the earlier process was stopped
  /// during that validation.
  [[nodiscard]] bool make_up_for(std::int64_t done);
  /// Mode End: validates the checkpoints of the run, except those already validated before an
  /// interruption.
  [[nodiscard]] bool validate_saved();
  /// Validates the average of this name, which rank 0 has saved at `path` after the run's last
  /// update `done`, unless that was done.
  [[nodiscard]] bool validate_average(const std::string& name, const std::string& path,
                                      std::int64_t done);

 private:
  /// Weights older than the `newest` may have no finite loss.
  [[nodiscard]] bool validate(std::int64_t done, const std::string& name, bool newest);
  [[nodiscard]] bool validate_ema(std::int64_t done, bool newest);
  [[nodiscard]] std::string checkpoint_of(std::int64_t done) const;
  [[nodiscard]] std::set<std::int64_t> validated(const std::string& name) const;
  void load(const io::CheckpointReader& checkpoint);

  const run::Run& config_;
  std::shared_ptr<const io::Dataset> dataset_;
  std::int64_t set_images_;
  const comm::World& world_;
  Reporter& reporter_;
  std::function<bool()> interrupted_;
  Session* session_ = nullptr;
};

}  // namespace millrace::training
