// SPDX-License-Identifier: Apache-2.0
//
// io/records: collections of encoded images on disk.
//
// A *source* is an indexable, immutable collection of JPEG and PNG files with labels. It finds its
// files, knows the location of every image, and returns its bytes; it never decodes.
//
//   files --record_files--> shards --record_index--> (file, offset, length, label) --read--> bytes
//
// A *record* is a frame of a TFRecord file (record_frame.hpp) around a tf.Example (example.hpp)
// that holds one image. The *index* of a set of shards has the location and label of every good
// record and a list of the bad ones. It is built on first use, by threads that skip the images, and
// stored in a sealed file beside the data or in the user's cache (sealed_file.hpp). Labels come
// from the index, so a rank that needs only labels reads no image.
//
//   TFRecordSource      shards with any of the supported names (record_files.hpp)
//   ImageFolderSource   one folder per class, files recognized by content
//   CachedSource        either of them, with images kept in memory
//   PackedPictures      decoded images in one file
//
// Frames, Examples and labels are checked when the index is built, and data checksums when an image
// is read. check.hpp checks everything and decodes every image completely. convert.hpp writes
// shards from class folders, class tars or flat files with a list of labels.
//
// Bytes from files are untrusted. Sizes are checked against limits and the rest of the file before
// memory is allocated. Errors are Error(Data) and name file, record and offset.
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

/// A stored image: a JPEG or PNG file, and the boxes of its objects if known.
struct EncodedImage {
  std::span<const std::byte> bytes;
  std::span<const ObjectBox> boxes;
};

/// Buffers of one reader, reused from image to image so that reading seldom allocates.
struct ReadBuffer {
  std::vector<std::byte> bytes;
  std::array<std::vector<float>, 4> sides;  ///< of boxes, while a record is parsed
  std::vector<float> floats;                ///< of one list, likewise
  std::vector<ObjectBox> boxes;
};

/// Progress of a long task, in its own unit (bytes of files, images).
struct Progress {
  std::uint64_t done = 0;
  std::uint64_t total = 0;
};
/// Called now and then, from one thread at a time. May be empty.
using ProgressCallback = std::function<void(const Progress&)>;
/// Called with messages for the user that cannot wait until the task ends, e.g. that it waits for
/// another process. May be empty.
using TellCallback = std::function<void(const std::string&)>;

/// Labeled encoded images. All functions are thread-safe.
class EncodedSource {
 public:
  virtual ~EncodedSource() = default;
  /// "imagenet records", "image folder"
  [[nodiscard]] virtual std::string name() const = 0;
  /// Number of images, without those that the index lists as bad.
  [[nodiscard]] virtual std::int64_t size() const = 0;
  /// Labels are 0 .. classes-1.
  [[nodiscard]] virtual std::int64_t classes() const = 0;
  [[nodiscard]] virtual std::int32_t label(std::int64_t index) const = 0;
  /// Bytes of image `index` in storage, with its record's overhead.
  [[nodiscard]] virtual std::uint64_t stored_bytes(std::int64_t index) const = 0;
  /// A checksum over labels and lengths that distinguishes sets of equal name and size.
  [[nodiscard]] virtual std::uint32_t fingerprint() const = 0;
  /// Reads image `index`; the result refers to `buffer` and is valid until its next use. Errors:
  /// Data if the bytes differ from the index or fail their checksum; Io.
  virtual EncodedImage read(std::int64_t index, ReadBuffer& buffer) const = 0;
  /// "train-00000-of-01024, record 12 at offset 345", for messages.
  [[nodiscard]] virtual std::string where(std::int64_t index) const = 0;
  /// Memory that the source will use to keep images once they were read.
  [[nodiscard]] virtual std::int64_t kept_bytes() const { return 0; }
  /// Messages to show to the user once: bad records left out, a cache that cannot be written.
  [[nodiscard]] virtual std::span<const std::string> notices() const = 0;
};

}  // namespace millrace::io
