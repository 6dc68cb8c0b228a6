// SPDX-License-Identifier: Apache-2.0
#include "train/signals.hpp"

#include <ctime>

#include <array>
#include <cstdint>

namespace millrace::training {
namespace {

constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

// Signal handlers can access only static objects.
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
volatile std::sig_atomic_t g_received = 0;
volatile std::sig_atomic_t g_received_at = 0;  ///< by milliseconds_now()
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

extern "C" void millrace_note_signal(int signal) {
  if (is_urgent(signal, g_received, g_received_at)) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);  // delivered when this returns
    return;
  }
  if (g_received != 0) return;
  g_received_at = milliseconds_now();
  g_received = signal;
}

void handle(int signal, void (*handler)(int)) {
  if (signal == SIGHUP && hangups_are_ignored()) return;
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

}  // namespace

std::sig_atomic_t milliseconds_now() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);  // async-signal-safe
  return static_cast<std::sig_atomic_t>(now.tv_sec * 1000 + now.tv_nsec / 1'000'000);
}

bool is_urgent(int signal, int first, std::sig_atomic_t first_at) {
  constexpr std::uint32_t kEcho = 200;
  if (first == 0 || signal == SIGUSR1 || signal == SIGUSR2) return false;
  if (signal == SIGINT && first == SIGINT) return true;
  // Unsigned, because the clock may have wrapped around.
  return static_cast<std::uint32_t>(milliseconds_now()) - static_cast<std::uint32_t>(first_at) >=
         kEcho;
}

bool hangups_are_ignored() {
  struct sigaction action = {};
  return sigaction(SIGHUP, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

StopSignals::StopSignals() {
  g_received = 0;
  for (const int signal : kSignals) handle(signal, millrace_note_signal);
  handle(SIGPIPE, SIG_IGN);
}

StopSignals::~StopSignals() {
  const bool asked = g_received != 0;
  for (const int signal : kSignals) handle(signal, asked && signal != SIGINT ? SIG_IGN : SIG_DFL);
  handle(SIGPIPE, SIG_DFL);
}

int StopSignals::received() { return g_received; }

}  // namespace millrace::training
