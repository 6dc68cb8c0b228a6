// SPDX-License-Identifier: Apache-2.0
//
// Replaces the global operators, the only way to see every call. They have no object to keep the
// number in. A file of its own: inlined into their callers they would look mismatched to the
// compiler.
#include "tests/io/allocation_counter.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::int64_t> allocations{0};

void* counted(void* memory) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

namespace millrace::io {

std::int64_t allocation_count() noexcept { return allocations.load(); }

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
  allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(std::max<std::size_t>(1, bytes));
}
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
