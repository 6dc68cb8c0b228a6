// SPDX-License-Identifier: Apache-2.0
//
// src/ops/cudnn: convolutions and dense ops by cuDNN 9, called through its C interface (the backend
// API), so that nothing but the library is needed.
//
// descriptor    the library's objects, and the properties of a device
// plan          one pass as a graph of the library's operations, and the kernels for it:
//               deterministic, exact enough, within a limit of scratch
// linear_op     runs plans
// vendor        what the backend asks; runs of calls that are one pass with sums
//
// The first two need no GPU: for given properties of a device, the library finds the same kernels
// on every machine. The tests look at the plans of all recipes this way.
#pragma once

#include <cudnn.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::ops::cudnn {

/// Errors: Internal, with the library's own words, if `status` is one. `what`: what was asked for.
void check(cudnnStatus_t status, std::string_view what);

/// The library's name of the type of an attribute.
template <class T>
inline constexpr cudnnBackendAttributeType_t kAttributeType = {};
template <>
inline constexpr auto kAttributeType<std::int64_t> = CUDNN_TYPE_INT64;
template <>
inline constexpr auto kAttributeType<std::int32_t> = CUDNN_TYPE_INT32;
template <>
inline constexpr auto kAttributeType<float> = CUDNN_TYPE_FLOAT;
template <>
inline constexpr auto kAttributeType<bool> = CUDNN_TYPE_BOOLEAN;
template <>
inline constexpr auto kAttributeType<char> = CUDNN_TYPE_CHAR;
template <>
inline constexpr auto kAttributeType<void*> = CUDNN_TYPE_VOID_PTR;
template <>
inline constexpr auto kAttributeType<cudnnDataType_t> = CUDNN_TYPE_DATA_TYPE;
template <>
inline constexpr auto kAttributeType<cudnnConvolutionMode_t> = CUDNN_TYPE_CONVOLUTION_MODE;
template <>
inline constexpr auto kAttributeType<cudnnPointwiseMode_t> = CUDNN_TYPE_POINTWISE_MODE;
template <>
inline constexpr auto kAttributeType<cudnnGenStatsMode_t> = CUDNN_TYPE_GENSTATS_MODE;
template <>
inline constexpr auto kAttributeType<cudnnBackendHeurMode_t> = CUDNN_TYPE_HEUR_MODE;
template <>
inline constexpr auto kAttributeType<cudnnBackendNumericalNote_t> = CUDNN_TYPE_NUMERICAL_NOTE;

/// An object of the library: it gets its attributes, is finished, and does not change from then on.
/// Errors: Internal, if the library refuses a call.
class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type);

  [[nodiscard]] cudnnBackendDescriptor_t get() const { return handle_.get(); }

  template <class T>
  Descriptor& set(cudnnBackendAttributeName_t name, const T& value) {
    return set_values(name, kAttributeType<T>, 1, &value);
  }
  template <class T>
  Descriptor& set_all(cudnnBackendAttributeName_t name, std::span<const T> values) {
    return set_values(name, kAttributeType<T>, values.size(), values.data());
  }
  Descriptor& set(cudnnBackendAttributeName_t name, const Descriptor& value) {
    return set_all(name, {&value, 1});
  }
  Descriptor& set_all(cudnnBackendAttributeName_t name, std::span<const Descriptor> values);

  Descriptor& finish();
  /// False, if the library has nothing that does what the attributes ask for.
  [[nodiscard]] bool try_finish();

  /// The values of an attribute, at most `most`.
  template <class T>
  [[nodiscard]] std::vector<T> values(cudnnBackendAttributeName_t name, std::size_t most) const {
    std::vector<T> values(most);
    values.resize(read(name, kAttributeType<T>, most, values.data()));
    return values;
  }
  /// The objects that an attribute holds, which are of this type.
  [[nodiscard]] std::vector<Descriptor> parts(cudnnBackendAttributeName_t name,
                                              cudnnBackendDescriptorType_t type) const;

 private:
  Descriptor& set_values(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                         std::size_t count, const void* values);
  std::size_t read(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                   std::size_t most, void* values) const;

  struct Destroy {
    void operator()(void* handle) const noexcept { cudnnBackendDestroyDescriptor(handle); }
  };
  std::unique_ptr<void, Destroy> handle_;
};

/// What the library needs to know of a device to plan for it.
[[nodiscard]] Descriptor properties_of_device(std::int32_t device);
/// The same from text in the library's own JSON, on a machine with or without that device.
[[nodiscard]] Descriptor properties_from_text(std::string_view json);
[[nodiscard]] std::string properties_text(const Descriptor& properties);
/// "NVIDIA H200, 132 multiprocessors": devices of one name compute with the same kernels.
[[nodiscard]] std::string device_name(const Descriptor& properties);
/// "cuDNN 9.19.0": that which runs, not that of the headers.
[[nodiscard]] std::string library_name();

}  // namespace millrace::ops::cudnn
