// SPDX-License-Identifier: Apache-2.0
//
// The rule by which every search for a layout takes one of its candidates. What differs between
// searches is the list of candidates, how one is sized, and what counts as its cost:
//
//   candidates                       sized by             cost       who searches
//   schedules_for()                  a plan               seconds    choose_schedule (layout.cpp)
//   schedules_for(), fastest first   a measured run       seconds    a run within memory (fit.cpp)
//   changes of a run                 a measured run       a penalty  nearest_fit (nearest.cpp)
//
// Cuts and repeated passes are chosen for each candidate by itself (layout.hpp). Below is what only
// those files share that choose (choose.cpp, fit.cpp, nearest.cpp).
#pragma once

#include <optional>
#include <utility>

#include "core/error.hpp"
#include "partition/choose.hpp"

namespace millrace::partition {

/// What is not the first choice must cost this much less.
inline constexpr double kWorthIt = 0.999;

/// What was found for a candidate.
template <class Layout>
struct Sized {
  Layout layout;
  double cost = 0.0;  ///< seconds of a step, or a penalty
  DeviceUse use = {};
  bool fits = true;
};

/// What fits is better than what does not; then what costs less, or what needs less. Among equals
/// the first stays.
template <class Layout>
void keep_better(std::optional<Sized<Layout>>& best, Sized<Layout> other) {
  const auto better = [](const Sized<Layout>& a, const Sized<Layout>& b) {
    if (a.fits != b.fits) return a.fits;
    return a.fits ? a.cost < kWorthIt * b.cost : a.use.need < b.use.need;
  };
  if (!best || better(other, *best)) best = std::move(other);
}

/// The best of what `find` finds for candidates; none if it finds nothing. A candidate's `least` is
/// a cost that it cannot go below: the search ends where that is too much, which holds for all
/// behind it. A candidate that cannot be made is passed over. Errors: the first of those, Config,
/// if no candidate can.
template <class Layout, class Candidates, class Find>
std::optional<Sized<Layout>> best_of(const Candidates& candidates, const Find& find) {
  std::optional<Sized<Layout>> best;
  std::optional<Error> refusal;
  for (const auto& candidate : candidates) {
    if (best && best->fits && candidate.least >= kWorthIt * best->cost) break;
    try {
      if (std::optional<Sized<Layout>> found = find(candidate))
        keep_better(best, *std::move(found));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::Config) throw;
      if (!refusal) refusal = error;
    }
  }
  if (!best && refusal) throw Error(*refusal);
  return best;
}

/// The best of all schedules: of what `find` finds for candidates, and of the actions that `list`
/// orders for the cuts of the best that has a stage on each device.
template <class Layout, class Candidates, class Find, class List>
std::optional<Sized<Layout>> best_schedule(const Candidates& candidates, const Find& find,
                                           const List& list) {
  std::optional<Sized<Layout>> one_a_device;
  std::optional<Sized<Layout>> best = best_of<Layout>(candidates, [&](const auto& candidate) {
    std::optional<Sized<Layout>> found = find(candidate);
    if (found && candidate.schedule.chunks == 1) keep_better(one_a_device, *found);
    return found;
  });
  if (one_a_device) keep_better(best, list(*one_a_device));
  return best;
}

/// The layout for what `sizer` assumes, without measuring.
[[nodiscard]] Choice choose_once(const Graph& graph, Run run, const LayoutFacts& facts,
                                 const Sizer& sizer);
/// The same for a run that keeps its devices, ranks and threads.
[[nodiscard]] Choice rearrange(const Graph& graph, Run run, const LayoutFacts& facts,
                               const Sizer& sizer);
/// Whether schedule and cuts are open, so that they are chosen together. `devices` of a replica.
[[nodiscard]] bool opens_both(const run::LayoutRequest& asked, std::int32_t devices);

}  // namespace millrace::partition
