// SPDX-License-Identifier: Apache-2.0
//
// What the GPU of this machine can do at most: bytes per second of a copy within its memory, and
// products per second of large matrices. Prints one JSON object with these ceilings, the properties
// of the device, and how cuDNN describes it (for devices.hpp).
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <vector>

#include "ops/cudnn/descriptor.hpp"

namespace {

void check(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}
void check(cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS) throw std::runtime_error(cublasGetStatusString(status));
}

struct Free {
  void operator()(void* memory) const noexcept { cudaFree(memory); }
};
using Memory = std::unique_ptr<void, Free>;

/// `count` numbers between -1 and 1. A processor that multiplies zeros takes less power and runs
/// faster than in a training.
template <class T>
Memory numbers(std::size_t count) {
  std::vector<T> values(std::min<std::size_t>(count, 1 << 16));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = T(static_cast<float>((i * 2'654'435'761 >> 8) % 2001) * 1e-3f - 1.0f);
  const std::size_t bytes = count * sizeof(T);
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes));
  Memory owned(memory);
  std::size_t filled = values.size() * sizeof(T);
  check(cudaMemcpy(memory, values.data(), filled, cudaMemcpyHostToDevice));
  for (std::size_t piece = 0; filled < bytes; filled += piece) {
    piece = std::min(filled, bytes - filled);
    check(cudaMemcpy(static_cast<std::byte*>(memory) + filled, memory, piece,
                     cudaMemcpyDeviceToDevice));
  }
  return owned;
}

class Event {
 public:
  Event() { check(cudaEventCreate(&event_)); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record() const { check(cudaEventRecord(event_)); }
  [[nodiscard]] double seconds_since(const Event& begin) const {
    float milliseconds = 0;
    check(cudaEventSynchronize(event_));
    check(cudaEventElapsedTime(&milliseconds, begin.event_, event_));
    return 1e-3 * static_cast<double>(milliseconds);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Median seconds of `queue`, after a warm-up.
template <class Queue>
double seconds_of(const Queue& queue) {
  constexpr int kRuns = 21;
  std::vector<double> times;
  for (int run = -3; run < kRuns; ++run) {
    const Event begin;
    const Event end;
    begin.record();
    queue();
    end.record();
    const double seconds = end.seconds_since(begin);
    if (run >= 0) times.push_back(seconds);
  }
  std::ranges::nth_element(times, times.begin() + kRuns / 2);
  return times[kRuns / 2];
}

double copied_bytes_per_second() {
  constexpr std::size_t kBytes = std::size_t{2} << 30;
  const Memory from = numbers<float>(kBytes / sizeof(float));
  const Memory to = numbers<float>(kBytes / sizeof(float));
  const double seconds = seconds_of(
      [&] { check(cudaMemcpyAsync(to.get(), from.get(), kBytes, cudaMemcpyDeviceToDevice)); });
  return 2.0 * static_cast<double>(kBytes) / seconds;  // read and written
}

/// Of products of matrices of T, which cuBLAS calls `type`.
template <class T>
double operations_per_second(cublasHandle_t library, cudaDataType_t type, int size) {
  const std::size_t count = static_cast<std::size_t>(size) * static_cast<std::size_t>(size);
  const Memory a = numbers<T>(count);
  const Memory b = numbers<T>(count);
  const Memory c = numbers<T>(count);
  const float one = 1.0f;
  const float zero = 0.0f;
  const double seconds = seconds_of([&] {
    check(cublasGemmEx(library, CUBLAS_OP_T, CUBLAS_OP_N, size, size, size, &one, a.get(), type,
                       size, b.get(), type, size, &zero, c.get(), type, size, CUBLAS_COMPUTE_32F,
                       CUBLAS_GEMM_DEFAULT));
  });
  const auto n = static_cast<double>(size);
  return 2.0 * n * n * n / seconds;
}

void print() {
  cudaDeviceProp device = {};
  check(cudaGetDeviceProperties(&device, 0));
  int driver = 0;
  check(cudaDriverGetVersion(&driver));
  cublasHandle_t library = nullptr;
  check(cublasCreate(&library));
  fmt::print(
      "{{\"device\": \"{}\", \"compute_capability\": \"{}.{}\", \"multiprocessors\": {}, "
      "\"memory_bytes\": {}, \"driver\": {},\n",
      device.name, device.major, device.minor, device.multiProcessorCount, device.totalGlobalMem,
      driver);
  fmt::print(
      " \"copy_gb_per_second\": {:.0f}, \"bfloat16_tflop_per_second\": {:.0f}, "
      "\"float16_tflop_per_second\": {:.0f}, \"float32_tflop_per_second\": {:.1f},\n",
      1e-9 * copied_bytes_per_second(),
      1e-12 * operations_per_second<__nv_bfloat16>(library, CUDA_R_16BF, 8192),
      1e-12 * operations_per_second<__half>(library, CUDA_R_16F, 8192),
      1e-12 * operations_per_second<float>(library, CUDA_R_32F, 4096));
  cublasDestroy(library);
  fmt::print(" \"cudnn\": {}}}\n",
             millrace::ops::cudnn::properties_text(millrace::ops::cudnn::properties_of_device(0)));
}

}  // namespace

int main() try {
  print();
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "ceilings: {}\n", error.what());
  return 1;
}
