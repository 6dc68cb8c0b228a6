// SPDX-License-Identifier: Apache-2.0
//
// Files as torch.save writes them, made by hand.
#pragma once

#include <zip.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace millrace::test {

/// The data.pkl of {"w": a tensor of shape [rows, columns] in storage 0 of `elements` floats}. A
/// row lies `step` behind the one before.
inline std::string pickled_tensor(std::int32_t rows, std::int32_t columns, std::int32_t step,
                                  std::int32_t elements) {
  using namespace std::string_literals;
  const auto text = [](const std::string& word) {
    return "X"s + static_cast<char>(word.size()) + "\0\0\0"s + word;
  };
  const auto number = [](std::int32_t value) {
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    return "J" + bytes;
  };
  return "\x80\x02}q\0("s + text("w") + "ctorch._utils\n_rebuild_tensor_v2\n(("s + text("storage") +
         "ctorch\nFloatStorage\n" + text("0") + text("cpu") + number(elements) + "tQ" + number(0) +
         number(rows) + number(columns) + "\x86" + number(step) + number(1) + "\x86\x89" +
         "ccollections\nOrderedDict\n)RtRu.";
}

/// A file as before PyTorch 1.6 with this pickle, and storage 0 of so many floats, all 0.
inline std::string legacy_torch(const std::string& pickle, std::int64_t elements) {
  using namespace std::string_literals;
  std::string count(sizeof elements, '\0');
  std::memcpy(count.data(), &elements, sizeof elements);
  return "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."s + "\x80\x02M\xe9\x03."s +
         "\x80\x02}X\x0d\0\0\0little_endian\x88s."s + pickle + "\x80\x02]X\x01\0\0\0"s + "0a." +
         count + std::string(static_cast<std::size_t>(elements) * sizeof(float), '\0');
}

/// Writes an archive with this data.pkl and a file for storage 0, compressed or not.
inline void write_torch_archive(const std::filesystem::path& path, std::string_view pickle,
                                std::span<const std::byte> storage, bool compressed = false) {
  const auto expect = [](bool holds) {
    if (!holds) throw std::runtime_error("the archive cannot be written");
  };
  int code = 0;
  zip_t* const archive = zip_open(path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, &code);
  expect(archive != nullptr);
  const auto add = [&](const char* name, const void* bytes, std::size_t size) {
    zip_source_t* const source = zip_source_buffer(archive, bytes, size, 0);
    const zip_int64_t at = zip_file_add(archive, name, source, ZIP_FL_OVERWRITE);
    expect(at >= 0);
    zip_set_file_compression(archive, static_cast<zip_uint64_t>(at),
                             compressed ? ZIP_CM_DEFLATE : ZIP_CM_STORE, 0);
  };
  add("net/data.pkl", pickle.data(), pickle.size());
  add("net/data/0", storage.data(), storage.size());
  expect(zip_close(archive) == 0);
}

}  // namespace millrace::test
