// SPDX-License-Identifier: Apache-2.0
//
// Damaged parts of checkpoints, which only a child process reads with the HDF5 library. The first
// byte of an input selects what the rest is: a file, or changes to a good one of three bytes each:
// offset (two bytes) and value.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <numeric>
#include <string>

#include "io/atomic_file.hpp"
#include "io/hdf5.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/support/temporary_directory.hpp"

namespace millrace::fuzz {
namespace {

struct Tensor {
  const char* name;
  DType type;
  std::vector<std::int64_t> shape;
  [[nodiscard]] std::size_t bytes() const {
    return static_cast<std::size_t>(
        std::accumulate(shape.begin(), shape.end(), size_of(type), std::multiplies<>()));
  }
};

const std::vector<Tensor>& tensors() {
  static const std::vector<Tensor> all = {{"/parameters/b1/kernel", DType::F32, {4, 3, 2}},
                                          {"/parameters/b1/gamma", DType::BF16, {8}},
                                          {"/slots/b1/kernel/momentum", DType::F16, {24}},
                                          {"/state/flags", DType::U8, {2, 1}},
                                          {"/state/scale", DType::I32, {}}};
  return all;
}

const Bytes& good_file() {
  static const Bytes file = [] {
    const test::TemporaryDirectory folder;
    const std::filesystem::path path = folder / "part.h5";
    io::Hdf5Writer writer(path);
    for (const Tensor& tensor : tensors())
      writer.write(tensor.name, tensor.type, tensor.shape, Bytes(tensor.bytes(), std::byte{0x3e}));
    writer.close();
    return io::read_file(path, 1 << 20);
  }();
  return file;
}

Bytes changed(std::span<const std::byte> changes) {
  Bytes file = good_file();
  for (; changes.size() >= 3; changes = changes.subspan(3)) {
    const std::size_t at =
        std::to_integer<std::size_t>(changes[0]) | std::to_integer<std::size_t>(changes[1]) << 8;
    file[at % file.size()] = changes[2];
  }
  return file;
}

std::string read_all(const std::filesystem::path& path) {
  const io::Hdf5Reader reader(path);
  std::vector<std::byte> data;
  for (const Tensor& tensor : tensors()) {
    data.resize(tensor.bytes());
    fails_only_as(ErrorKind::Checkpoint,
                  [&] { reader.read(tensor.name, tensor.type, tensor.shape, data); });
  }
  return "read";
}

}  // namespace

void run_one(std::span<const std::byte> input) {
  if (input.empty()) return;
  const Bytes file =
      input[0] == std::byte{0} ? Bytes(input.begin() + 1, input.end()) : changed(input.subspan(1));
  static const int memory = memfd_create("part.h5", MFD_CLOEXEC);
  require(ftruncate(memory, 0) == 0 && io::write_at(memory, file, 0) == 0, "memory can be written");
  const std::filesystem::path path = "/proc/self/fd/" + std::to_string(memory);
  constexpr io::ChildLimits kLimits{.seconds = 1, .bytes = std::uint64_t{1} << 30};
  fails_only_as(ErrorKind::Checkpoint, [&] {
    (void)io::hdf5_in_child(
        path, ErrorKind::Checkpoint, [&] { return read_all(path); }, kLimits);
  });
}

std::vector<Bytes> seeds() {
  const Bytes one = {std::byte{60}, std::byte{0}, std::byte{0xff}};
  return {tagged(0, good_file()), tagged(1, {}), tagged(1, one)};
}

}  // namespace millrace::fuzz
