// SPDX-License-Identifier: Apache-2.0
//
// How threads of this program wait for each other, and what else keeps the machine busy.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace millrace::cli {

/// A line that other programs use the cores of this machine, which begins with kLoadNotice; "" if
/// they do not. `load`: the load average of a minute.
[[nodiscard]] std::string load_notice();
[[nodiscard]] std::string load_notice(double load, int cores);
/// Prints it before something is measured.
void warn_of_load();
inline constexpr std::string_view kLoadNotice = "The load average of this machine is";

/// Whether this command line may compute on several threads of this process.
[[nodiscard]] bool may_use_threads(std::span<const std::string> words);

/// Lets the threads of a kernel spin for some 100 us before they sleep, by starting this program
/// once more, because libgomp reads its variables before main(). By default its threads spin for
/// milliseconds. Where another program has one of the cores, the thread that shares it waits for
/// its turn, and the others keep theirs busy meanwhile, so that nobody is moved there. On an idle
/// machine nothing is lost. Returns if the user has chosen how they wait, or the program cannot be
/// started: threads then wait as they would have.
void wait_briefly(char** argv);

}  // namespace millrace::cli
