// SPDX-License-Identifier: Apache-2.0
//
// The lines of kernel_times.cpp for four records, with a stand-in for CUPTI. Its test compares what
// this program prints.
#include <cupti.h>

#include <array>
#include <cstddef>
#include <cstdint>

extern "C" int InitializeInjection();

namespace {

CUpti_BuffersCallbackRequestFunc request = nullptr;
CUpti_BuffersCallbackCompleteFunc complete = nullptr;

CUpti_ActivityKernel10 kernel(const char* name, std::uint64_t start, std::uint64_t end) {
  CUpti_ActivityKernel10 record = {};
  record.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  record.name = name;
  record.start = start;
  record.end = end;
  return record;
}

}  // namespace

extern "C" {
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc on_request,
                                           CUpti_BuffersCallbackCompleteFunc on_complete) {
  request = on_request;
  complete = on_complete;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnable(CUpti_ActivityKind) { return CUPTI_SUCCESS; }
/// The records do not lie in the buffer.
CUptiResult cuptiActivityGetNextRecord(std::uint8_t*, std::size_t, CUpti_Activity** record) {
  static std::array kernels = {kernel("_ZN8millrace4normEv", 10, 30),
                               kernel("_ZN8millrace4normEv", 40, 45), kernel(nullptr, 1, 2)};
  static CUpti_ActivityMemset4 memset = {};
  memset.kind = CUPTI_ACTIVITY_KIND_MEMSET;
  memset.start = 100;
  memset.end = 107;
  static std::size_t next = 0;
  if (next > kernels.size()) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = next < kernels.size() ? reinterpret_cast<CUpti_Activity*>(&kernels[next])
                                  : reinterpret_cast<CUpti_Activity*>(&memset);
  ++next;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityFlushAll(std::uint32_t) {
  std::uint8_t* buffer = nullptr;
  std::size_t bytes = 0;
  std::size_t records = 0;
  request(&buffer, &bytes, &records);
  complete(nullptr, 0, buffer, bytes, bytes);
  return CUPTI_SUCCESS;
}
}

int main() { return InitializeInjection() == 1 ? 0 : 1; }
