// SPDX-License-Identifier: Apache-2.0
//
// Launches of teams: threads that share fast memory and wait for each other. On accelerators a team
// is a block of threads. On cores it is one thread, whose shared memory lies in its cache. On the
// fake device it has as many threads as on accelerators (device/fake_teams.hpp).
#pragma once

#include "device/parallel.hpp"
#if defined(MILLRACE_FAKE_DEVICE)
#include "device/fake_teams.hpp"
#endif

namespace millrace::device {

/// How many threads a team has whose accelerators have `on_accelerators`: one on cores.
[[nodiscard]] constexpr int threads_of_team(int on_accelerators) {
  return kOnCores ? 1 : on_accelerators;
}

#if MILLRACE_ON_HOST
#if !defined(MILLRACE_FAKE_DEVICE)
/// What a kernel knows of its team.
class Team {
 public:
  explicit Team(std::byte* shared) : shared_(shared) {}
  [[nodiscard]] int rank() const { return 0; }
  [[nodiscard]] int size() const { return 1; }
  void wait() const {}
  [[nodiscard]] std::byte* shared() const { return shared_; }

 private:
  std::byte* shared_;
};
#endif

/// A kernel that runs team after team.
template <class Functor>
struct OnHost {
  Functor functor;
  void operator()(std::int64_t i) const {
#if defined(MILLRACE_FAKE_DEVICE)
    const auto run = [](const void* body, const Team& team, std::int64_t at) {
      at_level([&] { (*static_cast<const Functor*>(body))(team, at); });
    };
    fake::run_team({run, &functor, Functor::kThreads, Functor::kSharedBytes}, i);
#else
    alignas(64) std::byte shared[Functor::kSharedBytes];
    functor(Team(shared), i);
#endif
  }
};

/// Runs functor(team, i) once for each i in [0, n), in any order, with Functor::kThreads threads
/// and Functor::kSharedBytes of shared memory each.
template <std::size_t kLabelSize, class Functor>
void parallel_teams(const char (&label)[kLabelSize], const ExecutionSpace& space, std::int64_t n,
                    const Functor& functor) {
  static_assert(!kOnCores || Functor::kThreads == 1, "on cores a team is one thread");
  parallel(label, space, n, OnHost<Functor>{functor});
}
#else
class Team {
 public:
  using Member = Kokkos::TeamPolicy<ExecutionSpace>::member_type;
  KOKKOS_INLINE_FUNCTION Team(const Member& member, std::byte* shared)
      : member_(member), shared_(shared) {}
  [[nodiscard]] KOKKOS_INLINE_FUNCTION int rank() const { return member_.team_rank(); }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION int size() const { return member_.team_size(); }
  KOKKOS_INLINE_FUNCTION void wait() const { member_.team_barrier(); }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::byte* shared() const { return shared_; }

 private:
  const Member& member_;
  std::byte* shared_;
};

/// AMD's compiler leaves registers for teams of 1,024 threads, and spills the rest, unless it knows
/// better; NVIDIA's would use more registers if it did, which leaves room for fewer teams.
#if defined(KOKKOS_ENABLE_HIP)
template <int kThreads>
using TeamBounds = Kokkos::LaunchBounds<kThreads, 1>;
#else
template <int>
using TeamBounds = Kokkos::LaunchBounds<>;
#endif

template <class Functor>
struct OnTeam {
  Functor functor;
  KOKKOS_FUNCTION void operator()(const Team::Member& member) const {
    constexpr std::ptrdiff_t kBytes =
        Functor::kSharedBytes;  // a reference to it is not for devices
    auto* const shared =
        static_cast<std::byte*>(member.team_scratch(0).get_shmem_aligned(kBytes, 16));
    functor(Team(member, shared), static_cast<std::int64_t>(member.league_rank()));
  }
};

template <std::size_t kLabelSize, class Functor>
void parallel_teams(const char (&label)[kLabelSize], const ExecutionSpace& space, std::int64_t n,
                    const Functor& functor) {
  static_assert(kLabelSize <= 16, "a longer label allocates on every launch");
  static_assert(std::is_trivially_copyable_v<Functor>, "devices get a copy of the functor's bytes");
  if (n <= 0) return;
  constexpr int kAlignment = 16;
  using Bounds =
      decltype(launch_bounds<Functor, Functor::kThreads, TeamBounds<Functor::kThreads>>());
  using Policy = Kokkos::TeamPolicy<ExecutionSpace, Bounds>;
  Policy policy(space, static_cast<int>(n), Functor::kThreads);
  policy.set_scratch_size(0, Kokkos::PerTeam(Functor::kSharedBytes + kAlignment));
  Kokkos::parallel_for(label, light_weight<Functor>(policy), OnTeam<Functor>{functor});
}
#endif

}  // namespace millrace::device
