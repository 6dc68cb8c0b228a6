// SPDX-License-Identifier: Apache-2.0
//
// Queues of the fake device: of its kernels, and of copies beside them. Nothing in a queue runs
// before somebody waits for it, or asks a second time whether it has run, unless the queue is full;
// the first answer is always no. So whoever forgets to wait, or reuses memory too early, gets other
// bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
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

/// What waits, in order, with the functors of kernels in one array of words. Like the queue of a
/// driver, it has room for so much work, and runs what it can where there is more.
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
  /// From begin_keeping() to keep() nothing runs. What was put in between is taken out; it may hold
  /// kernels and copies only.
  class Kept;
  void begin_keeping();
  [[nodiscard]] Kept keep();
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
  static constexpr std::size_t kItems = 1024;
  static constexpr std::size_t kWords = 8 * 1024;

  void add(Item item);
  /// Before work is put in: forgets what has run, and runs the rest if there is still no room.
  void make_room(std::size_t items, std::size_t words);
  void forget_past();
  /// Whether the item is done.
  bool execute(const Kernel& kernel) const;
  static bool execute(const Copy& copy);
  static bool execute(const Mark& mark);
  static bool execute(const Wait& wait);
  static bool execute(const Message& message);

  bool running_ = false;
  std::optional<std::size_t> kept_from_;  ///< of items_, between begin_keeping() and keep()
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
