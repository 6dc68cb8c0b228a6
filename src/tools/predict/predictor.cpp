// SPDX-License-Identifier: Apache-2.0
#include "tools/predict/predictor.hpp"

namespace millrace::training {

void predict(const run::Run& config, const comm::World& world,
             const std::shared_ptr<const io::Dataset>& images,
             const io::CheckpointReader& checkpoint, const TakeLogits& take) {
  Session session(config, Session::Use::Evaluation, world);
  session.allocate();
  session.load(checkpoint);
  const Feeds feeds = session.feeder().validation(images);
  (void)session.evaluate(
      feeds, images->size(), [](std::int64_t) { return false; }, take);
}

}  // namespace millrace::training
