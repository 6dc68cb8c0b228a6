// SPDX-License-Identifier: Apache-2.0
//
// The time of every kernel of a program by the clock of the GPU, without a change to the program.
// CUDA's driver loads this library where CUDA_INJECTION64_PATH names it, and CUPTI, which
// LD_PRELOAD brings along, hands over the times, those of kernels in kept launches as well. At the
// end of the program every kernel is a line in the file that MILLRACE_KERNEL_TIMES names:
//
//   NANOSECONDS LAUNCHES NAME        both in sum over all launches
//
// The host takes longer for each launch then; the kernels themselves are not slowed down.
#include <cupti.h>
#include <cxxabi.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

namespace {

struct Row {
  std::uint64_t nanoseconds = 0;
  std::uint64_t launches = 0;
};

/// Never destroyed: CUPTI may hand over times until the process is gone.
struct Times {
  std::mutex mutex;  // CUPTI hands over in a thread of its own
  std::map<std::string, Row> rows;
};
Times& times() {
  static auto* const all = new Times;
  return *all;
}

void add(const char* name, std::uint64_t start, std::uint64_t end) {
  Row& row = times().rows[name == nullptr ? "unnamed" : name];
  row.nanoseconds += end - start;
  ++row.launches;
}

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* bytes, std::size_t* records) {
  *bytes = std::size_t{8} << 20;
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(ACTIVITY_RECORD_ALIGNMENT, *bytes));
  *records = 0;  // as many as fit
}

void CUPTIAPI take_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t,
                          std::size_t bytes) {
  const std::scoped_lock lock(times().mutex);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, bytes, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto* const kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
      add(kernel->name, kernel->start, kernel->end);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      const auto* const memset = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      add("memset", memset->start, memset->end);
    }
  }
  std::free(buffer);
}

std::string readable(const std::string& name) {
  int status = 0;
  char* const text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  const std::string result = status == 0 ? text : name;
  std::free(text);
  return result;
}

void write_times() {
  cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  const std::scoped_lock lock(times().mutex);
  std::FILE* const file = std::fopen(std::getenv("MILLRACE_KERNEL_TIMES"), "w");
  if (file == nullptr) return std::perror("MILLRACE_KERNEL_TIMES");
  for (const auto& [name, row] : times().rows)
    std::fprintf(file, "%llu %llu %s\n", static_cast<unsigned long long>(row.nanoseconds),
                 static_cast<unsigned long long>(row.launches), readable(name).c_str());
  std::fclose(file);
}

}  // namespace

/// Called by the driver. Returns 1 if all is well.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  if (std::getenv("MILLRACE_KERNEL_TIMES") == nullptr) return 1;
  for (const CUptiResult result : {cuptiActivityRegisterCallbacks(give_buffer, take_buffer),
                                   cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL),
                                   cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET)}) {
    if (result == CUPTI_SUCCESS) continue;
    std::fprintf(stderr, "kernels are not timed: CUPTI returned %d\n", static_cast<int>(result));
    return 0;
  }
  return std::atexit(write_times) == 0 ? 1 : 0;
}
