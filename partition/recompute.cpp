// SPDX-License-Identifier: Apache-2.0
#include "partition/recompute.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "pipeline/memory_plan.hpp"

namespace millrace::partition {
namespace {

using models::OpId;
using pipeline::ChosenSegments;

/// Tries sets of segments and keeps the best one: what fits is better than what does not, then the
/// less time, then the fewer bytes.
class RangeSearch {
 public:
  RangeSearch(const Graph& graph, std::span<const OpCost> costs, OpRange range,
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
    too_large_.clear();
    for (const Set& kept : sets_in_order()) attempt(kept);
  }

 private:
  using Set = std::vector<bool>;  ///< by segment: whether it is kept

  [[nodiscard]] static std::ptrdiff_t count(const Set& set) {
    return std::count(set.begin(), set.end(), true);
  }

  /// All segments, then small sets, which tell about the sets that contain them, then the others,
  /// the fastest first.
  [[nodiscard]] std::vector<Set> sets_in_order() const {
    constexpr std::ptrdiff_t kSmall = 3;
    std::vector<Set> sets;
    for (std::size_t bits = 0; bits < (std::size_t{1} << begins_.size()); ++bits) {
      Set& set = sets.emplace_back(begins_.size());
      for (std::size_t i = 0; i < set.size(); ++i) set[i] = ((bits >> i) & 1) != 0;
    }
    std::stable_sort(sets.begin(), sets.end(), [&](const Set& a, const Set& b) {
      if (count(a) > kSmall && count(b) > kSmall) return seconds_of(a) < seconds_of(b);
      return count(a) < count(b);
    });
    std::rotate(sets.begin(), std::find(sets.begin(), sets.end(), Set(begins_.size(), true)),
                sets.end());
    return sets;
  }

  /// Whether a set must need more than a smaller one that is too large. The last segment is no
  /// reason, because its backward may follow its forward at once.
  [[nodiscard]] bool surely_too_large(const Set& kept) const {
    return std::any_of(too_large_.begin(), too_large_.end(), [&](const Set& part) {
      for (std::size_t i = 0; i < kept.size(); ++i)
        if (part[i] && !kept[i]) return false;
      return kept.back() == part.back();
    });
  }

  [[nodiscard]] double seconds_of(const Set& kept) const {
    double sum = 0.0;
    for (std::size_t i = 0; i < begins_.size(); ++i)
      if (!kept[i]) sum += seconds_of(i);
    return sum;
  }

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
  void attempt(const Set& kept) {
    Recomputation tried{.chosen = chosen_of(kept), .seconds = seconds_of(kept)};
    if (fits() && tried.seconds >= best_.seconds) return;
    if (surely_too_large(kept)) return;
    tried.bytes = bytes_of(tried.chosen);
    if (tried.bytes > most_) too_large_.push_back(kept);
    if (tried.bytes <= most_ || tried.bytes < best_.bytes) best_ = std::move(tried);
  }

  /// From all repeated, if that fits: keeps the most expensive segments first, as long as the rest
  /// fits.
  void descend() {
    std::vector<std::size_t> order(begins_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return seconds_of(a) > seconds_of(b); });
    Set kept(begins_.size());
    kept.back() = bytes_of(chosen_of(kept)) > most_;  // its backward may follow at once
    if (bytes_of(chosen_of(kept)) > most_) return attempt(kept);
    double repeated = 0.0;
    for (const std::size_t segment : order) {
      kept[segment] = true;
      if (bytes_of(chosen_of(kept)) <= most_) continue;
      kept[segment] = false;
      repeated += seconds_of(segment);
      if (fits() && repeated >= best_.seconds) return;
    }
    attempt(kept);
  }

  [[nodiscard]] ChosenSegments chosen_of(const Set& kept) const {
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
  std::vector<OpId> begins_;    ///< of all segments
  std::vector<Set> too_large_;  ///< with these cuts
  Recomputation best_;
};

}  // namespace

Recomputation choose_recomputation(const Graph& graph, std::span<const OpCost> costs, OpRange range,
                                   const pipeline::ProgramOptions& options, pipeline::Slots slots,
                                   std::int64_t most) {
  RangeSearch search(graph, costs, range, options, slots, most);
  for (const std::vector<OpId>& cuts : pipeline::segment_cuts(graph, range)) search.run(cuts);
  return search.best();
}

std::vector<Recomputation> choose_recomputation(const Graph& graph, std::span<const OpCost> costs,
                                                const pipeline::PipelinePlan& plan,
                                                const pipeline::ProgramOptions& options,
                                                const StageSizer& sizer, std::int64_t limit) {
  const std::vector<pipeline::Slots> slots = pipeline::slots_of(graph, plan);
  pipeline::ProgramOptions segments = options;
  segments.recompute = Recompute::Stage;
  std::vector<std::int64_t> fixed;
  std::vector<std::int64_t> bytes;  // of activations: the least, then as chosen
  for (std::size_t s = 0; s < plan.ranges.size(); ++s) {
    const OpRange range = plan.ranges[s];
    // What a stage needs besides its activations does not depend on what it repeats.
    fixed.push_back(sizer(range, options, slots[s]) -
                    program_bytes(graph, range, options, slots[s]));
    bytes.push_back(
        program_bytes(graph, range, with_segments(graph, range, segments, slots[s]), slots[s]));
  }
  const auto device = [&](std::size_t s) {
    return plan.schedule.device(static_cast<std::int32_t>(s));
  };
  std::vector<Recomputation> chosen;
  for (std::size_t s = 0; s < plan.ranges.size(); ++s) {
    std::int64_t left = limit;
    for (std::size_t other = 0; other < plan.ranges.size(); ++other)
      if (device(other) == device(s)) left -= fixed[other] + (other == s ? 0 : bytes[other]);
    chosen.push_back(choose_recomputation(graph, costs, plan.ranges[s], options, slots[s], left));
    bytes[s] = chosen.back().bytes;
  }
  return chosen;
}

}  // namespace millrace::partition
