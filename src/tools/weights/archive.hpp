// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

struct zip;
struct zip_file;

namespace millrace::io {

/// A zip archive of weights that is read only. Errors: Data, with the path, if it is none.
class Archive {
 public:
  explicit Archive(const std::filesystem::path& path);

  /// The name of the file that ends like this; empty if there is none.
  [[nodiscard]] std::string find(std::string_view end) const;

  /// All bytes of a file. Errors: Data, also if it is larger than `most`, or if the files read so
  /// far are larger than the archive: neither torch.save nor Keras compresses.
  [[nodiscard]] std::vector<std::byte> read(const std::string& name, std::uint64_t most);

 private:
  struct Close {
    void operator()(zip* archive) const;
  };
  void require_end(zip_file& file, const std::string& name) const;

  std::filesystem::path path_;
  std::uint64_t left_;  ///< bytes of the archive that may still be read
  std::unique_ptr<zip, Close> archive_;
};

}  // namespace millrace::io
