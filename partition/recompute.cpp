// SPDX-License-Identifier: Apache-2.0
#include "partition/recompute.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "pipeline/segments.hpp"

namespace millrace::partition {
namespace {

using models::OpId;
using pipeline::ChosenSegments;

/// Tries sets of segments and keeps the best one: what fits is better than what does not, then the
/// less time, then the fewer bytes.
class Search {
 public:
  Search(const Graph& graph, std::span<const OpCost> costs, OpRange range,
         const pipeline::ProgramOptions& options, pipeline::Slots slots, std::int64_t most)
      : graph_(graph), costs_(costs), range_(range), options_(options), slots_(slots), most_(most) {
    best_.bytes = std::numeric_limits<std::int64_t>::max();
  }

  [[nodiscard]] bool fits() const { return best_.bytes <= most_; }
  [[nodiscard]] const Recomputation& best() const { return best_; }

  /// All sets of these segments, or a descent if they are too many.
  void run(const std::vector<OpId>& cuts) {
    constexpr std::size_t kFew = 8;
    cuts_ = cuts;
    begins_ = {OpId{range_.first}};
    begins_.insert(begins_.end(), cuts.begin(), cuts.end());
    if (begins_.size() > kFew) return descend();
    for (std::size_t set = 0; set < (std::size_t{1} << begins_.size()); ++set) {
      std::vector<bool> kept(begins_.size());
      for (std::size_t i = 0; i < kept.size(); ++i) kept[i] = ((set >> i) & 1) != 0;
      attempt(kept);
    }
  }

 private:
  [[nodiscard]] double seconds_of(std::size_t segment) const {
    const std::size_t last = segment + 1 < begins_.size() ? begins_[segment + 1].at()
                                                          : static_cast<std::size_t>(range_.last);
    double sum = 0.0;
    for (std::size_t op = begins_[segment].at(); op < last; ++op) sum += costs_[op].forward;
    return sum;
  }

  [[nodiscard]] std::int64_t bytes_of(const ChosenSegments& chosen) const {
    return program_bytes(graph_, range_, with_chosen(options_, chosen), slots_);
  }

  /// A set that takes longer than one that fits is not looked at.
  void attempt(const std::vector<bool>& kept) {
    Recomputation tried{.chosen = chosen_of(kept)};
    for (std::size_t i = 0; i < kept.size(); ++i)
      if (!kept[i]) tried.seconds += seconds_of(i);
    if (fits() && tried.seconds >= best_.seconds) return;
    tried.bytes = bytes_of(tried.chosen);
    if (tried.bytes <= most_ || tried.bytes < best_.bytes) best_ = std::move(tried);
  }

  /// From all repeated, if that fits: keeps the most expensive segments first, as long as the rest
  /// fits.
  void descend() {
    std::vector<std::size_t> order(begins_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return seconds_of(a) > seconds_of(b); });
    std::vector<bool> kept(begins_.size(), false);
    kept.back() = bytes_of(chosen_of(kept)) > most_;  // its backward may follow at once
    if (bytes_of(chosen_of(kept)) > most_) return attempt(kept);
    for (const std::size_t segment : order) {
      kept[segment] = true;
      if (bytes_of(chosen_of(kept)) > most_) kept[segment] = false;
    }
    attempt(kept);
  }

  [[nodiscard]] ChosenSegments chosen_of(const std::vector<bool>& kept) const {
    ChosenSegments chosen{cuts_, {}};
    for (std::size_t i = 0; i < kept.size(); ++i)
      if (kept[i]) chosen.kept.push_back(begins_[i]);
    return chosen;
  }

  const Graph& graph_;
  std::span<const OpCost> costs_;
  OpRange range_;
  const pipeline::ProgramOptions& options_;
  pipeline::Slots slots_;
  std::int64_t most_;
  std::vector<OpId> cuts_;
  std::vector<OpId> begins_;  ///< of all segments
  Recomputation best_;
};

}  // namespace

Recomputation choose_recomputation(const Graph& graph, std::span<const OpCost> costs, OpRange range,
                                   const pipeline::ProgramOptions& options, pipeline::Slots slots,
                                   std::int64_t most) {
  Search search(graph, costs, range, options, slots, most);
  for (const std::vector<OpId>& cuts : pipeline::segment_cuts(graph, range)) search.run(cuts);
  return search.best();
}

}  // namespace millrace::partition
