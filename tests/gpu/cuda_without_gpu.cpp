// SPDX-License-Identifier: Apache-2.0
//
// What cuDNN asks CUDA before it plans for a device, answered without one. The plans themselves
// follow from the text in devices.hpp.
#include <cuda_runtime_api.h>

#include <cstdio>

extern "C" {

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "NVIDIA H200");
  properties->major = 9;
  properties->multiProcessorCount = 132;
  properties->totalGlobalMem = 150'754'820'096;
  properties->sharedMemPerBlockOptin = 232'448;
  properties->l2CacheSize = 62'914'560;
  return cudaSuccess;
}

}  // extern "C"
