// SPDX-License-Identifier: Apache-2.0
#include "device/fake_device.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "core/error.hpp"
#include "device/fake_queue.hpp"
#include "device/parallel.hpp"

namespace millrace::device::fake {
namespace {

std::size_t in_pages(std::int64_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return (static_cast<std::size_t>(bytes) + page - 1) / page * page;
}

/// How many objects of Access this thread has.
int& depth() {
  static thread_local int value = 0;
  return value;
}

/// The memory of the device and its lock.
class Memory {
 public:
  static Memory& of_process() {
    static Memory memory;
    return memory;
  }

  std::byte* add(std::size_t bytes) {
    void* const base =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return nullptr;
    (void)madvise(base, bytes, MADV_HUGEPAGE);  // mprotect takes time for each page
    blocks_.push_back({base, bytes});
    if constexpr (kHostReadable) return static_cast<std::byte*>(base);
    if (key_ >= 0)
      MILLRACE_ASSERT(pkey_mprotect(base, bytes, PROT_READ | PROT_WRITE, key_) == 0);
    else if (depth() == 0)
      protect(blocks_.back(), PROT_NONE);
    return static_cast<std::byte*>(base);
  }
  void remove(const std::byte* base) {
    const auto found = std::find_if(blocks_.begin(), blocks_.end(),
                                    [&](const Block& b) { return b.base == base; });
    MILLRACE_ASSERT(found != blocks_.end());
    munmap(found->base, found->bytes);
    blocks_.erase(found);
  }

  void open() { set(true); }
  /// Without a key, whoever launches a kernel opens it to all threads.
  void open_to_thread() {
    if (key_ >= 0) open();
  }
  void close() { set(false); }

 private:
  struct Block {
    void* base;
    std::size_t bytes;
  };

  Memory() : key_(pkey_alloc(0, PKEY_DISABLE_ACCESS)) {}

  static void protect(const Block& block, int rights) {
    MILLRACE_ASSERT(mprotect(block.base, block.bytes, rights) == 0);
  }
  void set(bool open) {
    if constexpr (kHostReadable) return;
    if (key_ >= 0) {
      MILLRACE_ASSERT(pkey_set(key_, open ? 0U : PKEY_DISABLE_ACCESS) == 0);
      return;
    }
    for (const Block& block : blocks_) protect(block, open ? PROT_READ | PROT_WRITE : PROT_NONE);
  }

  int key_;  ///< -1: the processor or the kernel has no protection keys
  std::vector<Block> blocks_;
};

}  // namespace

std::shared_ptr<std::byte> allocate(std::int64_t bytes) {
  std::byte* const base = Memory::of_process().add(in_pages(std::max<std::int64_t>(bytes, 1)));
  if (base == nullptr) return nullptr;
  return {base, [](std::byte* memory) {
            Queue::of_kernels().run();
            Memory::of_process().remove(memory);
          }};
}

Access::Access() {
  if (depth()++ == 0) Memory::of_process().open();
}
Access::~Access() {
  if (--depth() == 0) Memory::of_process().close();
}

void belong_to_device() {
  if (depth()++ == 0) Memory::of_process().open_to_thread();
}

}  // namespace millrace::device::fake
