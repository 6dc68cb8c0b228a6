// SPDX-License-Identifier: Apache-2.0
#include "train/signals.hpp"

#include <array>
#include <csignal>

namespace millrace::train {
namespace {

constexpr std::array kSignals = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

// A handler can reach nothing but a static object.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
volatile std::sig_atomic_t g_received = 0;

extern "C" void millrace_note_signal(int signal) {
  if (signal == SIGINT && g_received == SIGINT) std::signal(SIGINT, SIG_DFL);
  if (g_received == 0) g_received = signal;
}

/// Whether an object lives: as the handlers, of the process and not of one of them.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
bool g_listening = false;

void handle(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

}  // namespace

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
