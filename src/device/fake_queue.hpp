// SPDX-License-Identifier: Apache-2.0
//
// Queues of the fake device: of its kernels, and of copies beside them. Nothing in a queue runs
// before somebody waits for it, or asks a second time whether it has run; the first answer is
// always no. So whoever forgets to wait, or reuses memory too early, gets other bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "device/fake_device.hpp"

namespace millrace::device::fake {

/// A kernel over [0, n), or a call of a library if n is kLibraryCall.
struct Work {
  const char* label;
  std::int64_t n;
  RangeFunction run;
  FunctorBytes functor;
};
inline constexpr std::int64_t kLibraryCall = -1;

/// A copy from or to device memory.
struct Copy {
  std::byte* to;
  const std::byte* from;
  std::int64_t bytes;
};

/// Work of a library in another thread or process, as a message is.
class Elsewhere {
 public:
  virtual ~Elsewhere() = default;
  /// Whether it is done; if so, brings its result. Not called again then.
  [[nodiscard]] virtual bool finish() = 0;
};

class Queue;

/// A point in a queue.
struct Point {
  Queue* queue = nullptr;  ///< null once it is reached
  std::int64_t time = 0;   ///< when it was reached, in nanoseconds of the steady clock
};

/// What waits, in order, with the functors of kernels in one array of words.
class Queue {
 public:
  /// That of all kernels.
  static Queue& of_kernels();

  /// Puts work at the end, with a copy of its functor.
  void push(const Work& work);
  void push(const Copy& copy) { add(copy); }
  /// Work that has begun: all that the queue waits for must be done (see settle_waits).
  void push(std::shared_ptr<Elsewhere> work) { add(Message{std::move(work)}); }
  /// Marks the end.
  [[nodiscard]] std::shared_ptr<Point> mark();
  /// What is put behind this runs after the point is reached.
  void wait_for(std::shared_ptr<Point> point) { add(Wait{std::move(point)}); }
  /// Reaches the points that the end of the queue waits for, now.
  void settle_waits();
  /// What was put in since then, which is taken out. It may hold kernels and copies only.
  class Kept;
  [[nodiscard]] std::size_t end() const { return items_.size(); }
  [[nodiscard]] Kept take_from(std::size_t begin);
  /// Puts copies of it at the end.
  void push(const Kept& kept);
  /// Runs everything, in order, or what lies before a point of this queue.
  void run() { run_until(nullptr); }
  void run_until(const Point* point);
  /// The same as far as it goes without waiting for work elsewhere; whether it got to the end.
  bool try_until(const Point* point);

 private:
  struct Kernel {
    Work work;
    std::size_t functor;  ///< place in functors_
  };
  struct Mark {
    std::shared_ptr<Point> point;
  };
  struct Wait {
    std::shared_ptr<Point> point;
  };
  struct Message {
    std::shared_ptr<Elsewhere> work;
  };
  using Item = std::variant<Kernel, Copy, Mark, Wait, Message>;

  void add(Item item);
  /// Whether the item is done.
  bool execute(const Kernel& kernel) const;
  static bool execute(const Copy& copy);
  static bool execute(const Mark& mark);
  static bool execute(const Wait& wait);
  static bool execute(const Message& message);

  bool running_ = false;
  std::vector<Item> items_;
  std::size_t next_ = 0;  ///< of items_
  std::vector<std::max_align_t> functors_;
};

/// Kernels and copies with their functors.
class Queue::Kept {
  friend class Queue;
  std::vector<Item> items_;
  std::vector<std::max_align_t> functors_;
};

}  // namespace millrace::device::fake
