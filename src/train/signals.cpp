// SPDX-License-Identifier: Apache-2.0
#include "train/signals.hpp"

#include <ctime>

#include <array>
#include <csignal>
#include <cstdint>

namespace millrace::train {
namespace {

constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

// A handler can reach nothing but static objects.
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
volatile std::sig_atomic_t g_received = 0;
volatile std::sig_atomic_t g_received_at = 0;  ///< in seconds of the system's clock
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

std::sig_atomic_t seconds_now() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);  // one of the few calls that handlers may make
  return static_cast<std::sig_atomic_t>(now.tv_sec);
}

/// Whether a second signal means "now": a person at the keyboard does; schedulers and launchers
/// pass one request on by several ways, and repeat SIGUSR1.
bool is_urgent(int signal) {
  constexpr std::sig_atomic_t kEcho = 2;
  if (g_received == 0 || signal == SIGUSR1 || signal == SIGUSR2) return false;
  if (signal == SIGINT && g_received == SIGINT) return true;
  return seconds_now() - g_received_at >= kEcho;
}

extern "C" void millrace_note_signal(int signal) {
  if (is_urgent(signal)) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);  // delivered when this returns
    return;
  }
  if (g_received != 0) return;
  g_received_at = seconds_now();
  g_received = signal;
}

/// Whether an object lives: as the handlers, of the process and not of one of them.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
bool g_listening = false;

void handle(int signal, void (*handler)(int)) {
  if (signal == SIGHUP && hangups_are_ignored()) return;
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

}  // namespace

bool hangups_are_ignored() {
  struct sigaction action = {};
  return sigaction(SIGHUP, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

StopSignals::StopSignals() : outermost_(!g_listening) {
  if (!outermost_) return;
  g_listening = true;
  g_received = 0;
  for (const int signal : kSignals) handle(signal, millrace_note_signal);
  handle(SIGPIPE, SIG_IGN);
}

StopSignals::~StopSignals() {
  if (!outermost_) return;
  g_listening = false;
  const bool asked = g_received != 0;
  for (const int signal : kSignals) handle(signal, asked && signal != SIGINT ? SIG_IGN : SIG_DFL);
  handle(SIGPIPE, SIG_DFL);
}

int StopSignals::received() const { return g_received; }

}  // namespace millrace::train
