// SPDX-License-Identifier: Apache-2.0
//
// Where the library runs: the threads, processes and GPU of a program.
//
//   const training::Runtime alone(2);  // two threads in this process
//   const training::Runtime launched({.processes = training::Processes::Launched});  // mpirun
//   const training::Runtime ours({.threads = 4, .communicator = &comm});  // an MPI_Comm of yours
//
// The library prints nothing, catches no signals, ends no process, and leaves the threads of the
// program as they are: their cores, their OpenMP and their arithmetic. Its errors are exceptions.
//
// Threads. There may be many Runtimes, one after another or at the same time, in any threads. They
// share one Kokkos with one number of threads: the program's, if it has initialised it, and else
// the one that the first Runtime initialises. That stays until the process ends, as Kokkos starts
// only once. Trainings in several threads end with the bits of trainings one after the other. On
// cores they run side by side: each thread that calls has OpenMP threads of its own. On a GPU they
// take turns, a call each. An object is for one thread at a time; a Runtime of one process is for
// all threads.
//
// Processes. Each makes the same Runtimes and objects, and the same calls of a Runtime's objects,
// in the same order; threads that train at the same time have a Runtime each. Messages go by a
// duplicate of the communicator. MPI that a Runtime starts stays until the process ends, too; MPI
// that the program started should end after its Runtimes: those that are left can only be
// destroyed.
//
// An error that concerns all processes, such as a checkpoint that one cannot read, is thrown in
// all. After one in a single process, the others throw an error of kind Peer that names it, as soon
// as they wait for a message, and of that Runtime and its objects nothing is left to do but to
// destroy them. A new Runtime may have the same communicator. Only a GPU that waits for another by
// NCCL does not notice: MILLRACE_MESSAGES=mpi avoids that.
#pragma once

#include <memory>

namespace millrace::comm {
class World;
}

namespace millrace::training {

enum class Processes {
  Alone,     ///< this one, whoever started it
  Launched,  ///< all that mpirun, mpiexec or srun started; this one if none of them did
};

struct RuntimeOptions {
  int threads = 1;  ///< of the kernels, in each process
  Processes processes = Processes::Alone;
  /// Address of an MPI_Comm, in place of `processes`. The program has initialised MPI for
  /// MPI_THREAD_FUNNELED if only its main thread calls the library, for MPI_THREAD_SERIALIZED if
  /// no two threads call MPI at a time, and for MPI_THREAD_MULTIPLE otherwise.
  const void* communicator = nullptr;
  int gpu = -1;  ///< number of the GPU; negative: Kokkos chooses. A process uses one
};

/// What a program needs before its first Training and until after its last.
class Runtime {
 public:
  explicit Runtime(int threads = 1);
  /// Collective. Errors: Config if this process cannot have what is asked for: Kokkos has another
  /// number of threads, an environment variable contradicts, MPI was initialised for fewer threads.
  explicit Runtime(const RuntimeOptions& options);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
  [[nodiscard]] int threads() const;
  /// Number of this process and of all: 0 of 1 alone.
  [[nodiscard]] int rank() const;
  [[nodiscard]] int ranks() const;

 private:
  friend const comm::World& world_of(const Runtime& runtime);
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace millrace::training
