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

void handle(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

}  // namespace

StopSignals::StopSignals() {
  for (const int signal : kSignals) handle(signal, millrace_note_signal);
  handle(SIGPIPE, SIG_IGN);
}

StopSignals::~StopSignals() {
  for (const int signal : kSignals) handle(signal, SIG_DFL);
  handle(SIGPIPE, SIG_DFL);
  g_received = 0;
}

int StopSignals::received() const { return g_received; }

}  // namespace millrace::train
