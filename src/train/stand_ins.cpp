// SPDX-License-Identifier: Apache-2.0
#include "train/stand_ins.hpp"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "core/counted.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "io/data/image_dataset.hpp"

namespace millrace::training {

StandInLimit::StandInLimit(const comm::World& world, const io::Dataset& dataset,
                           double max_bad_fraction, std::string use)
    : world_(world), dataset_(dataset), max_bad_fraction_(max_bad_fraction), use_(std::move(use)) {}

void StandInLimit::resume(std::int64_t epoch, std::int64_t stand_ins) {
  epoch_ = epoch;
  carried_ = stand_ins;
}

void StandInLimit::check(std::int64_t stand_ins, std::int64_t epoch) {
  if (epoch != epoch_) {
    epoch_ = epoch;
    carried_ = 0;
    before_ = seen_;
  }
  seen_ = stand_ins;
  if (in_epoch() > io::most_bad(dataset_.size(), max_bad_fraction_)) refuse();
}

void StandInLimit::refuse() const {
  const std::vector<std::string> replaced = dataset_.replaced();
  std::string such;
  for (const std::string& one : world_.gather(replaced.empty() ? "" : replaced.front()))
    if (such.empty() && !one.empty()) such = fmt::format("; for example {}", one);
  world_.fail_together();
  fail(ErrorKind::Data, "{} of the {} images for {} {} bad so far in this epoch; {}{}",
       with_commas(in_epoch()), with_commas(dataset_.size()), use_, is_or_are(in_epoch()),
       io::describe_limit(dataset_.size(), max_bad_fraction_), such);
}

}  // namespace millrace::training
