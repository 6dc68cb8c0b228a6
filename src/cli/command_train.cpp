// SPDX-License-Identifier: Apache-2.0
#include "cli/commands.hpp"
#include "cli/prepare.hpp"
#include "comm/world.hpp"
#include "core/error.hpp"
#include "train/trainer.hpp"

namespace millrace::cli {
namespace {

train::TrainInputs inputs_of(const PreparedRun& run, const Invocation& invocation) {
  return {.train = run.data.train,
          .validation = run.data.validation,
          .command_line = invocation.command_line,
          .notices = run.notices};
}

/// A training is one process so far; several would each train the same network.
void refuse_several(const comm::World& world) {
  if (world.size() == 1) return;
  fail(ErrorKind::Usage,
       "{} processes were started, but a training runs on one device: start millrace without a "
       "launcher, or with one process; --threads-per-device gives it more cores",
       world.size());
}

int code_of(train::Outcome outcome) {
  switch (outcome) {
    case train::Outcome::Finished:
      return 0;
    case train::Outcome::Preempted:
      return exit_code(ErrorKind::Preempted);
    case train::Outcome::Interrupted:
      return exit_code(ErrorKind::Interrupted);
  }
  return exit_code(ErrorKind::Internal);
}

}  // namespace

int command_train(const Invocation& invocation) {
  const comm::World world;
  refuse_several(world);
  const PreparedRun run = prepare_training(invocation);
  return code_of(train::train(run.config, inputs_of(run, invocation)));
}

int command_restore(const Invocation& invocation) {
  const comm::World world;
  refuse_several(world);
  const PreparedRun run = prepare_restoring(invocation);
  return code_of(train::restore(run.config, inputs_of(run, invocation)));
}

}  // namespace millrace::cli
