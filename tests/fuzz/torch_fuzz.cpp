// SPDX-License-Identifier: Apache-2.0
//
// Files of torch.save. The first byte of an input says whether the rest is a pickle alone, the
// data.pkl of an archive with a storage, or a whole file: an archive, or as before PyTorch 1.6.
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>

#include "tests/fuzz/fuzz.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/torch_archive.hpp"
#include "tools/weights/pickle.hpp"
#include "tools/weights/tensor_file.hpp"

namespace millrace::fuzz {
namespace {

const std::filesystem::path& file_of_archives() {
  static const test::TemporaryDirectory directory;
  static const std::filesystem::path file = directory / "input.pth";
  return file;
}

void write_archive(std::span<const std::byte> pickle) {
  static constexpr std::array<std::byte, 24> kNumbers{};
  test::write_torch_archive(
      file_of_archives(), {reinterpret_cast<const char*>(pickle.data()), pickle.size()}, kNumbers);
}

void write_whole(std::span<const std::byte> bytes) {
  std::ofstream file(file_of_archives(), std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

void read_archive() {
  const io::TensorFile file = io::read_torch_file(file_of_archives());
  for (const auto& [name, tensor] : file.tensors())
    require(static_cast<std::int64_t>(tensor.to_floats().size()) == tensor.elements(),
            "a tensor has the elements of its shape");
}

}  // namespace

void run_one(std::span<const std::byte> input) {
  if (input.empty()) return;
  const auto rest = input.subspan(1);
  fails_only_as(ErrorKind::Data, [&] {
    switch (std::to_integer<int>(input[0]) % 3) {
      case 0: {
        const io::Pickle pickle = io::parse_pickle(rest, "input");
        require(pickle.root < pickle.values.size(), "the root is a value");
        return;
      }
      case 1:
        write_archive(rest);
        return read_archive();
      default:
        write_whole(rest);
        return read_archive();
    }
  });
}

std::vector<Bytes> seeds() {
  const Bytes pickle = bytes_of(test::pickled_tensor(2, 3, 3, 6));
  write_archive(pickle);
  require(io::read_torch_file(file_of_archives()).tensors().at("w").elements() == 6,
          "a good file is read");
  const Bytes archive = test::file_bytes(file_of_archives());
  const Bytes legacy = bytes_of(test::legacy_torch(test::pickled_tensor(2, 3, 3, 6), 6));
  write_whole(legacy);
  require(io::read_torch_file(file_of_archives()).tensors().at("w").elements() == 6,
          "so is one from before PyTorch 1.6");
  return {tagged(0, pickle), tagged(1, pickle), tagged(2, archive), tagged(2, legacy)};
}

}  // namespace millrace::fuzz
