// SPDX-License-Identifier: Apache-2.0
#include "tools/weights/archive.hpp"

#include <zip.h>

#include "core/error.hpp"

namespace millrace::io {
namespace {

struct CloseFile {
  void operator()(zip_file_t* file) const { zip_fclose(file); }
};

/// PyTorch writes 0 for all files if set_crc32_options(False) turned its checksums off.
bool has_checksum(const zip_stat_t& facts) {
  return (facts.valid & ZIP_STAT_CRC) != 0 && facts.crc != 0;
}

}  // namespace

void Archive::Close::operator()(zip* archive) const { zip_discard(archive); }

Archive::Archive(const std::filesystem::path& path)
    : path_(path), left_(std::filesystem::file_size(path)) {
  int code = 0;
  archive_.reset(zip_open(path.c_str(), ZIP_RDONLY, &code));
  if (archive_) return;
  zip_error_t error;
  zip_error_init_with_code(&error, code);
  const std::string text = zip_error_strerror(&error);
  zip_error_fini(&error);
  // What is read here begins as an archive, and only the end says what is in it.
  if (code == ZIP_ER_NOZIP)
    fail(ErrorKind::Data,
         "{}: the end of its zip archive is missing behind {} bytes: fetch it again", path.string(),
         left_);
  fail(ErrorKind::Data, "{}: its zip archive cannot be read: {}: fetch it again", path.string(),
       text);
}

std::string Archive::find(std::string_view end) const {
  const zip_int64_t count = zip_get_num_entries(archive_.get(), 0);
  for (zip_int64_t i = 0; i < count; ++i)
    if (const char* name = zip_get_name(archive_.get(), static_cast<zip_uint64_t>(i), 0))
      if (std::string_view(name).ends_with(end)) return name;
  return {};
}

std::vector<std::byte> Archive::read(const std::string& name, std::uint64_t most) {
  zip_stat_t facts;
  zip_stat_init(&facts);
  if (zip_stat(archive_.get(), name.c_str(), 0, &facts) != 0 || (facts.valid & ZIP_STAT_SIZE) == 0)
    fail(ErrorKind::Data, "{}: it has no {}: the file is damaged: fetch it again", path_.string(),
         name);
  if (facts.size > most)
    fail(ErrorKind::Data, "{}: {} has {} bytes, but at most {} are expected: fetch the file again",
         path_.string(), name, facts.size, most);
  if (facts.size > left_)
    fail(ErrorKind::Data,
         "{}: {} is compressed, or lies where another file does: neither torch.save nor Keras "
         "writes such files",
         path_.string(), name);
  left_ -= facts.size;
  const std::unique_ptr<zip_file_t, CloseFile> file(
      zip_fopen_index(archive_.get(), facts.index, 0));
  std::vector<std::byte> bytes(facts.size);
  if (!file ||
      zip_fread(file.get(), bytes.data(), bytes.size()) != static_cast<zip_int64_t>(bytes.size()))
    fail(ErrorKind::Data, "{}: {} cannot be read: {}: fetch the file again", path_.string(), name,
         file ? zip_file_strerror(file.get()) : zip_strerror(archive_.get()));
  if (has_checksum(facts)) require_end(*file, name);
  return bytes;
}

/// libzip compares the checksum when it is asked for bytes behind the last one, not before.
void Archive::require_end(zip_file& file, const std::string& name) const {
  std::byte behind{};
  if (zip_fread(&file, &behind, 1) == 0) return;
  if (zip_error_code_zip(zip_file_get_error(&file)) == ZIP_ER_CRC)
    fail(ErrorKind::Data,
         "{}: {} is damaged, its bytes do not have the CRC-32 that the file records: fetch the "
         "file again",
         path_.string(), name);
  fail(ErrorKind::Data, "{}: {} does not end where it should: {}: fetch the file again",
       path_.string(), name, zip_file_strerror(&file));
}

}  // namespace millrace::io
