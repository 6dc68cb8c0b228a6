// SPDX-License-Identifier: Apache-2.0
#include "ops/cudnn/descriptor.hpp"

#include <array>

#include "core/error.hpp"
#include "core/json.hpp"

namespace millrace::ops::cudnn {
namespace {

cudnnBackendDescriptor_t create(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t handle = nullptr;
  check(cudnnBackendCreateDescriptor(type, &handle), "an object");
  return handle;
}

/// Text for messages; attributes have numbers only.
std::string attribute(cudnnBackendAttributeName_t name) {
  return fmt::format("attribute {}", static_cast<int>(name));
}

}  // namespace

void check(cudnnStatus_t status, std::string_view what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 512> words = {};
  cudnnGetLastErrorString(words.data(), words.size());
  fail(ErrorKind::Internal, "cuDNN refuses {}: {}: {}", what, cudnnGetErrorString(status),
       words.data());
}

Descriptor::Descriptor(cudnnBackendDescriptorType_t type) : handle_(create(type)) {}

Descriptor& Descriptor::set_values(cudnnBackendAttributeName_t name,
                                   cudnnBackendAttributeType_t type, std::size_t count,
                                   const void* values) {
  const cudnnStatus_t status =
      cudnnBackendSetAttribute(handle_.get(), name, type, static_cast<std::int64_t>(count), values);
  if (status != CUDNN_STATUS_SUCCESS) check(status, attribute(name));
  return *this;
}

Descriptor& Descriptor::set_all(cudnnBackendAttributeName_t name,
                                std::span<const Descriptor> values) {
  std::vector<cudnnBackendDescriptor_t> handles;
  handles.reserve(values.size());
  for (const Descriptor& value : values) handles.push_back(value.get());
  return set_values(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, handles.size(), handles.data());
}

Descriptor& Descriptor::finish() {
  check(cudnnBackendFinalize(handle_.get()), "the attributes of an object");
  return *this;
}

bool Descriptor::try_finish() {
  return cudnnBackendFinalize(handle_.get()) == CUDNN_STATUS_SUCCESS;
}

std::size_t Descriptor::read(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                             std::size_t most, void* values) const {
  std::int64_t count = 0;
  const cudnnStatus_t status = cudnnBackendGetAttribute(
      handle_.get(), name, type, static_cast<std::int64_t>(most), &count, values);
  if (status != CUDNN_STATUS_SUCCESS) check(status, attribute(name));
  return static_cast<std::size_t>(count);
}

/// The library fills objects that the caller has created.
std::vector<Descriptor> Descriptor::parts(cudnnBackendAttributeName_t name,
                                          cudnnBackendDescriptorType_t type) const {
  const std::size_t most = read(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, nullptr);
  std::vector<Descriptor> parts;
  std::vector<cudnnBackendDescriptor_t> handles;
  for (std::size_t i = 0; i < most; ++i) handles.push_back(parts.emplace_back(type).get());
  const std::size_t filled = read(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, most, handles.data());
  while (parts.size() > filled) parts.pop_back();
  return parts;
}

Descriptor properties_of_device(std::int32_t device) {
  Descriptor properties(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  properties.set(CUDNN_ATTR_DEVICEPROP_DEVICE_ID, device).finish();
  return properties;
}

Descriptor properties_from_text(std::string_view json) {
  const std::string text(json);
  Descriptor properties(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  properties
      .set_all(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
               std::span(text.c_str(), text.size() + 1))  // with the terminating zero
      .finish();
  return properties;
}

std::string properties_text(const Descriptor& properties) {
  constexpr std::size_t kMost = 1 << 16;
  const std::vector<char> text =
      properties.values<char>(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, kMost);
  return std::string(text.data());
}

std::string device_name(const Descriptor& properties) {
  try {
    const Json json = Json::parse(properties_text(properties));
    return fmt::format("{}, {} multiprocessors", json.at("deviceName").text(),
                       json.at("multiProcessorCount").as_int64());
  } catch (const JsonError& error) {
    fail(ErrorKind::Internal, "cuDNN describes the device in another form: {}", error.what());
  }
}

std::string library_name() {
  const std::size_t version = cudnnGetVersion();
  return fmt::format("cuDNN {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace millrace::ops::cudnn
