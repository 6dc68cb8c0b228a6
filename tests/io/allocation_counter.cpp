// SPDX-License-Identifier: Apache-2.0
//
// Replaces the global operators, the only way to count every call. The counter is global because
// they have no object. They are in a separate file because the compiler would report a mismatch if
// it inlined them.
#include "tests/io/allocation_counter.hpp"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::int64_t> allocations{0};
std::atomic<std::int64_t> in_use{0};
std::atomic<std::int64_t> peak{0};

void* noted(void* memory) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (memory == nullptr) return memory;
  const std::int64_t now = in_use += static_cast<std::int64_t>(malloc_usable_size(memory));
  std::int64_t most = peak.load(std::memory_order_relaxed);
  while (now > most && !peak.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
  }
  return memory;
}

void* counted(void* memory) {
  if (noted(memory) == nullptr) throw std::bad_alloc();
  return memory;
}

void released(void* memory) noexcept {
  if (memory != nullptr) in_use -= static_cast<std::int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

namespace millrace::io {

std::int64_t allocation_count() noexcept { return allocations.load(); }

AllocationPeak::AllocationPeak() noexcept : begin_(in_use.load()) { peak = begin_; }
std::int64_t AllocationPeak::bytes() const noexcept { return peak.load() - begin_; }

}  // namespace millrace::io

void* operator new(std::size_t bytes) {
  return counted(std::malloc(std::max<std::size_t>(1, bytes)));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto align = static_cast<std::size_t>(alignment);
  const std::size_t rounded = std::max(align, (bytes + align - 1) / align * align);
  return counted(std::aligned_alloc(align, rounded));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return noted(std::malloc(std::max<std::size_t>(1, bytes)));
}
void operator delete(void* memory, const std::nothrow_t&) noexcept { released(memory); }
void operator delete(void* memory) noexcept { released(memory); }
void operator delete(void* memory, std::size_t) noexcept { released(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { released(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { released(memory); }
