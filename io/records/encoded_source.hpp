// SPDX-License-Identifier: Apache-2.0
//
// io/records: collections of encoded pictures, as they lie on disk.
//
// A *source* is an indexable, immutable collection of JPEG and PNG files with labels. It finds its
// files, knows where every picture lies, and hands out its bytes; it never decodes one.
//
//   files --record_files--> shards --record_index--> (file, offset, length, label) --read--> bytes
//
// A *record* is a frame of a TFRecord file (record_frame.hpp) around a tf.Example (example.hpp)
// that holds one picture. The *index* of a set of shards has the place and the label of every good
// record and a list of the bad ones; it is made on first use, by threads that skip the pictures,
// and kept in a sealed file beside the data or in the user's cache (sealed_file.hpp). Labels come
// from the index: a rank that needs no more reads no picture.
//
//   TFRecordSource      shards in every naming of the trainings taken over
//   ImageFolderSource   one folder a class, files told by content
//   CachedSource        either of them, with pictures kept in memory
//   PackedPictures      decoded pictures in one file, to be cropped anew each epoch
//
// What is known from a record's frame, Example and label is checked when the index is made;
// checksums over the data whenever a picture is read; all of it, with every
// picture decoded whole, by check.hpp. convert.hpp writes shards from class folders, class tars or
// flat files with a list of labels.
//
// Bytes from files are treated as hostile. Sizes are checked against caps and against what is left
// of the file before memory is taken. Errors are Error(Data) and name file, record and offset.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/object_box.hpp"

namespace millrace::io {

enum class Split : std::uint8_t { Train, Validation };

/// "training" or "validation"
[[nodiscard]] constexpr const char* split_name(Split split) {
  return split == Split::Train ? "training" : "validation";
}

/// A picture as it is stored: a JPEG or PNG file, and the boxes of its objects where some are
/// known.
struct EncodedImage {
  std::span<const std::byte> bytes;
  std::span<const ObjectBox> boxes;
};

/// Memory of one reader, kept from one picture to the next so that reading seldom allocates.
struct ReadBuffer {
  std::vector<std::byte> bytes;
  std::array<std::vector<float>, 4> sides;  ///< of boxes, while a record is parsed
  std::vector<float> floats;                ///< of one list, likewise
  std::vector<ObjectBox> boxes;
};

/// How far a long task is, in its own units (bytes of files, pictures).
struct Progress {
  std::uint64_t done = 0;
  std::uint64_t total = 0;
};
/// Told now and then, from one thread at a time. Empty: nobody is told.
using ProgressCallback = std::function<void(const Progress&)>;
/// Told what a user should know at once and not when all is done: who is waited for. Empty: nobody
/// is told.
using TellCallback = std::function<void(const std::string&)>;

/// Labelled encoded pictures. All functions may be called from many threads at once.
class EncodedSource {
 public:
  virtual ~EncodedSource() = default;
  /// "imagenet records", "image folder"
  [[nodiscard]] virtual std::string name() const = 0;
  /// Pictures that can be read: what the index knows to be bad does not count.
  [[nodiscard]] virtual std::int64_t size() const = 0;
  /// Labels are 0 .. classes-1.
  [[nodiscard]] virtual std::int64_t classes() const = 0;
  [[nodiscard]] virtual std::int32_t label(std::int64_t index) const = 0;
  /// Bytes that picture `index` takes where it is stored, what is around it included.
  [[nodiscard]] virtual std::uint64_t stored_bytes(std::int64_t index) const = 0;
  /// A checksum over labels and lengths, by which sets of the same name and size are told apart.
  [[nodiscard]] virtual std::uint32_t fingerprint() const = 0;
  /// Picture `index`; the result refers to `buffer` and is valid until its next use. Errors: Data
  /// for bytes that are not what the index says or fail their checksum; Io.
  virtual EncodedImage read(std::int64_t index, ReadBuffer& buffer) const = 0;
  /// "train-00000-of-01024, record 12 at offset 345", for messages.
  [[nodiscard]] virtual std::string where(std::int64_t index) const = 0;
  /// Memory that pictures will take which stay there once they were read.
  [[nodiscard]] virtual std::int64_t kept_bytes() const { return 0; }
  /// What its user should be told once: bad records left out, a cache that cannot be written.
  [[nodiscard]] virtual std::span<const std::string> notices() const = 0;
};

}  // namespace millrace::io
