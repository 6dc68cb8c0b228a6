// SPDX-License-Identifier: Apache-2.0
//
// Python's pickle format, as far as PyTorch's files need it, read without running anything.
//
// A pickle is a program for a small stack machine that may call any function of Python. This reader
// knows the few calls that make dictionaries and tensors; the result of every other call is an
// opaque value that nobody looks at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace millrace::io {

/// Index of a value. A value may contain itself.
using PickleId = std::size_t;

/// A part of a file of its own in the archive. `type` is a name such as "FloatStorage".
struct PickledStorage {
  std::string type;
  std::string key;
  std::int64_t elements = 0;
};
/// A view of a storage.
struct PickledTensor {
  PickledStorage storage;
  std::int64_t offset = 0;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
};
/// A tuple or a list.
struct PickledSequence {
  std::vector<PickleId> items;
};
struct PickledDictionary {
  std::vector<std::pair<PickleId, PickleId>> items;
};
/// A function or class: "torch._utils._rebuild_tensor_v2".
struct PickledName {
  std::string name;
};
/// None, or anything that is not needed.
struct PickledOther {};

using PickleValue = std::variant<PickledOther, std::int64_t, double, std::string, PickledSequence,
                                 PickledDictionary, PickledName, PickledStorage, PickledTensor>;

struct Pickle {
  std::vector<PickleValue> values;
  PickleId root = 0;
  std::size_t size = 0;  ///< bytes that it takes; others may follow

  /// The value, if it is a T.
  template <class T>
  [[nodiscard]] const T* as(PickleId id) const {
    return std::get_if<T>(&values.at(id));
  }
};

/// The object that the bytes describe. The bytes are untrusted. Errors: Data, if they are no
/// pickle; messages begin with `label`.
[[nodiscard]] Pickle parse_pickle(std::span<const std::byte> bytes, std::string_view label);

}  // namespace millrace::io
