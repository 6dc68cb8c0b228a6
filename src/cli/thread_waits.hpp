// SPDX-License-Identifier: Apache-2.0
//
// How the threads of a kernel wait for each other. By default libgomp's threads spin for
// milliseconds before they sleep. Where another program has one of the cores, the thread that
// shares it waits for its turn, and the others keep theirs busy meanwhile, so that nobody is moved
// there. Threads that spin for some 100 us and then sleep lose nothing on an idle machine.
#pragma once

#include <span>
#include <string>

namespace millrace::cli {

/// Whether this command line may compute on several threads of this process.
[[nodiscard]] bool may_use_threads(std::span<const std::string> words);

/// Starts this program once more with such waits, because libgomp reads its variables before
/// main(). Returns if the user has set one of them, or the program cannot be started: threads then
/// wait as they would have.
void wait_briefly(char** argv);

}  // namespace millrace::cli
