// SPDX-License-Identifier: Apache-2.0
#include "train/partial_row.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "core/json.hpp"
#include "core/text.hpp"

namespace millrace::training {

std::string to_json(const PartialRow& partial) {
  return Json::object({{"iterations", partial.iterations},
                       {"loss_sum", partial.loss_sum},
                       {"correct", partial.correct},
                       {"correct_top5", partial.correct_top5},
                       {"left_out", partial.left_out},
                       {"total_seconds", partial.total_seconds}})
      .dump();
}

PartialRow parse_partial_row(std::string_view text, std::int64_t iteration) {
  constexpr std::int64_t kMostImages = std::int64_t{1} << 53;  // far from overflow
  if (text.empty()) return {};
  try {
    const Json json = Json::parse(text);
    const Json* const seconds = json.find("total_seconds");
    const auto later = [&json](std::string_view name) {  // missing in early checkpoints
      const Json* const found = json.find(name);
      return found == nullptr ? 0 : found->as_int64();
    };
    const PartialRow row = {.iterations = json.at("iterations").as_int64(),
                            .loss_sum = json.at("loss_sum").as_double(),
                            .correct = json.at("correct").as_int64(),
                            .correct_top5 = later("correct_top5"),
                            .left_out = later("left_out"),
                            .total_seconds = seconds == nullptr ? 0.0 : seconds->as_double()};
    const bool sound = std::min({row.iterations, row.correct, row.correct_top5, row.left_out}) >= 0;
    if (sound && row.total_seconds >= 0.0 && row.left_out <= row.iterations &&
        row.iterations <= iteration && std::max(row.correct, row.correct_top5) <= kMostImages)
      return row;
  } catch (const JsonError&) {  // reported below
  }
  constexpr std::size_t kShown = 200;
  fail(ErrorKind::Checkpoint,
       "the state of the log in the checkpoint is '{}'; expected an object with iterations, "
       "loss_sum and correct",
       printable(text.substr(0, kShown)));
}

}  // namespace millrace::training
