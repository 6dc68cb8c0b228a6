// SPDX-License-Identifier: Apache-2.0
//
// Tensors of the kernel tests: values as double on the host and as T on the device, poisoned inside
// and around, and the tolerances of the comparison with the reference.
#pragma once

#include "core/bfloat16.hpp"
#include "core/float16.hpp"
#include "core/random.hpp"
#include "core/sha256.hpp"
#include "device/arena.hpp"
#include "device/compat.hpp"
#include "ops/accumulator.hpp"
#include "tests/support/test.hpp"

namespace millrace::ops {

using Values = std::vector<double>;

template <class T>
[[nodiscard]] T encode(double x) {
  if constexpr (std::is_integral_v<T> || std::is_same_v<T, double>) {
    return static_cast<T>(x);
  } else {
    return store_as<T>(static_cast<float>(x));
  }
}
template <class T>
[[nodiscard]] double decode(T x) {
  if constexpr (std::is_integral_v<T> || std::is_same_v<T, Accumulator>) {
    return static_cast<double>(x);
  } else {
    return static_cast<double>(to_float(x));
  }
}

/// Of all that tests read from the device, if MILLRACE_TEST_DIGEST is set, for thread_count_test.
[[nodiscard]] inline Sha256* digest_of_results() {
  static Sha256 digest;
  static const bool wanted = std::getenv("MILLRACE_TEST_DIGEST") != nullptr;
  return wanted ? &digest : nullptr;
}

/// Records of fixed size on the device; the address is null if there are none.
template <class Record>
class DeviceRecords {
 public:
  explicit DeviceRecords(const std::vector<Record>& records)
      : empty_(records.empty()),
        arena_(static_cast<std::int64_t>(records.size() * sizeof(Record)) + 64) {
    if (empty_) return;
    device::copy_to_device(arena_.at(0), reinterpret_cast<const std::byte*>(records.data()),
                           static_cast<std::int64_t>(records.size() * sizeof(Record)));
  }
  [[nodiscard]] const Record* data() const {
    return empty_ ? nullptr : reinterpret_cast<const Record*>(arena_.at(0));
  }

 private:
  bool empty_;
  device::Arena arena_;
};

/// An array of T on the device. Elements are NaN until written. Reading the array back checks that
/// the bytes after the end are unchanged.
template <class T>
class DeviceValues {
 public:
  explicit DeviceValues(std::int64_t elements) : elements_(elements), arena_(bytes() + kGuard) {
    poison();
  }
  /// A copy of `values`, rounded to T.
  explicit DeviceValues(const Values& values)
      : DeviceValues(static_cast<std::int64_t>(values.size())) {
    assign(values);
  }

  [[nodiscard]] T* data() { return reinterpret_cast<T*>(arena_.at(0)); }
  [[nodiscard]] std::byte* raw() { return arena_.at(0); }
  [[nodiscard]] std::int64_t bytes() const {
    return elements_ * static_cast<std::int64_t>(sizeof(T));
  }

  void assign(const Values& values) {
    std::vector<T> host;
    for (const double value : values) host.push_back(encode<T>(value));
    device::copy_to_device(arena_.at(0), reinterpret_cast<const std::byte*>(host.data()), bytes());
  }
  void poison() {
    const std::vector<std::byte> ones(static_cast<std::size_t>(bytes() + kGuard), kPoison);
    device::copy_to_device(arena_.at(0), ones.data(), bytes() + kGuard);
  }

  [[nodiscard]] std::vector<std::byte> bits() const {
    std::vector<std::byte> host(static_cast<std::size_t>(bytes() + kGuard));
    device::copy_to_host(host.data(), arena_.at(0), bytes() + kGuard);
    for (std::size_t i = static_cast<std::size_t>(bytes()); i < host.size(); ++i) {
      if (host[i] == kPoison) continue;
      ADD_FAILURE() << "a kernel wrote past the end of its output";
      break;
    }
    host.resize(static_cast<std::size_t>(bytes()));
    if (Sha256* const digest = digest_of_results()) digest->update(host);
    return host;
  }
  [[nodiscard]] Values values() const {
    const std::vector<std::byte> host = bits();
    Values result(static_cast<std::size_t>(elements_));
    for (std::size_t i = 0; i < result.size(); ++i) {
      T value;
      std::memcpy(&value, host.data() + i * sizeof(T), sizeof(T));
      result[i] = decode(value);
    }
    return result;
  }

 private:
  static constexpr std::int64_t kGuard = 64;
  static constexpr std::byte kPoison{0xff};  // four or two of these are a NaN

  std::int64_t elements_;
  device::Arena arena_;
};

/// Uniform in [low, high), the same on every machine.
[[nodiscard]] inline Values random_values(std::int64_t elements, std::uint64_t seed,
                                          double low = -1.0, double high = 1.0) {
  const RandomStream stream(seed, RandomPurpose::SyntheticData);
  Values values;
  for (std::int64_t i = 0; i < elements; ++i) {
    const RandomBlock words = stream.block(0, static_cast<std::uint64_t>(i));
    values.push_back(low + (high - low) * uniform01_double(words[0], words[1]));
  }
  return values;
}

/// Like the function above, with values that T represents exactly.
template <class T>
[[nodiscard]] Values random_as(std::int64_t elements, std::uint64_t seed, double low = -1.0,
                               double high = 1.0) {
  Values values = random_values(elements, seed, low, high);
  for (double& value : values) value = decode(encode<T>(value));
  return values;
}

/// Whatever is tested with each storage type.
template <class T>
class OfStorageType : public testing::Test {
 protected:
  device::ExecutionSpace space_;
};
using StorageTypes = testing::Types<float, bfloat16, float16>;

/// a + b in float32, rounded to T.
template <class T>
[[nodiscard]] Values stored_sum(const Values& a, const Values& b) {
  Values sum;
  for (std::size_t i = 0; i < a.size(); ++i)
    sum.push_back(decode(encode<T>(static_cast<double>(static_cast<float>(a[i] + b[i])))));
  return sum;
}

/// Name of T in test names.
[[nodiscard]] inline const char* spelled(DType type) {
  return type == DType::F32 ? "Float32" : type == DType::BF16 ? "Bfloat16" : "Float16";
}

/// A test of one case with each storage type.
template <class Case>
class OfEveryType : public testing::TestWithParam<std::tuple<Case, DType>> {
 public:
  /// Calls test.operator()<T>(case) for the type at hand.
  template <class Test>
  void run(const Test& test) {
    device::dispatch(std::get<1>(this->GetParam()), [&]<class T>() {
      test.template operator()<T>(std::get<0>(this->GetParam()));
    });
  }
  static auto all(const std::vector<Case>& cases) {
    return testing::Combine(testing::ValuesIn(cases),
                            testing::Values(DType::F32, DType::BF16, DType::F16));
  }
  static std::string name_of(const testing::TestParamInfo<std::tuple<Case, DType>>& info) {
    return std::get<0>(info.param).name + spelled(std::get<1>(info.param));
  }
};

/// Relative error of rounding to T once: half a unit in the last place.
template <class T>
inline constexpr double kUnit = std::is_same_v<T, bfloat16>  ? 0x1p-8
                                : std::is_same_v<T, float16> ? 0x1p-11
                                                             : 0x1p-24;
/// Half of the smallest positive number: the rounding error of subnormals. It is negligible for
/// normal numbers.
template <class T>
inline constexpr double kLeast = std::is_same_v<T, float16> ? 0x1p-25 : 0.0;
inline constexpr double kFloatUnit = kUnit<float>;

/// Checks |actual - expected| <= tolerance(i) for every i and reports the worst element. A NaN
/// always fails.
template <class Tolerance>
[[nodiscard]] testing::AssertionResult close(const Values& actual, const Values& expected,
                                             Tolerance&& tolerance) {
  if (actual.size() != expected.size()) {
    return testing::AssertionFailure() << actual.size() << " elements, not " << expected.size();
  }
  std::size_t worst = 0;
  double excess = 0.0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double allowed = tolerance(i) + 1e-30;
    double ratio = std::abs(actual[i] - expected[i]) / allowed;
    if (std::isnan(ratio)) ratio = std::numeric_limits<double>::infinity();
    if (ratio <= excess) continue;
    excess = ratio;
    worst = i;
  }
  if (excess <= 1.0) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << "element " << worst << " of " << actual.size() << " is " << actual[worst] << ", not "
         << expected[worst] << ": off by " << excess << " times the tolerance";
}

[[nodiscard]] inline testing::AssertionResult close_to(const Values& actual, const Values& expected,
                                                       double tolerance) {
  return close(actual, expected, [&](std::size_t) { return tolerance; });
}

/// Checks results that float32 computes with an error of `relative` units of the result and
/// `absolute` units of one, and that are rounded to T once.
template <class T>
[[nodiscard]] testing::AssertionResult stored(const Values& actual, const Values& expected,
                                              double relative = 1.0, double absolute = 0.0) {
  return close(actual, expected, [&](std::size_t i) {
    const double size = std::abs(expected[i]);
    return kUnit<T> * size + kLeast<T> + kFloatUnit * (relative * size + absolute);
  });
}

template <class T>
[[nodiscard]] testing::AssertionResult same_bits(const DeviceValues<T>& a,
                                                 const DeviceValues<T>& b) {
  if (a.bits() == b.bits()) return testing::AssertionSuccess();
  const Values left = a.values();
  const Values right = b.values();
  for (std::size_t i = 0; i < left.size() && i < right.size(); ++i) {
    if (left[i] == right[i]) continue;
    return testing::AssertionFailure() << "element " << i << ": " << left[i] << " and " << right[i];
  }
  return testing::AssertionFailure() << "they differ in size or in the sign of a zero";
}

/// The result of kernel(y, inputs), which has as many elements as the first input. Checks that y
/// may take the place of the inputs with the numbers in `places`.
template <class T, class Kernel>
[[nodiscard]] Values result_of(const Kernel& kernel, const std::vector<Values>& inputs,
                               const std::vector<std::size_t>& places = {}) {
  const auto call = [&](std::vector<DeviceValues<T>>& operands, DeviceValues<T>& y) {
    std::vector<const T*> addresses;
    for (DeviceValues<T>& operand : operands) addresses.push_back(operand.data());
    kernel(y.data(), addresses);
  };
  std::vector<DeviceValues<T>> operands(inputs.begin(), inputs.end());
  DeviceValues<T> apart(std::ssize(inputs.front()));
  call(operands, apart);
  for (const std::size_t place : places) {
    std::vector<DeviceValues<T>> others(inputs.begin(), inputs.end());
    call(others, others[place]);
    EXPECT_TRUE(same_bits(others[place], apart)) << "in place of input " << place;
  }
  return apart.values();
}

}  // namespace millrace::ops
