// SPDX-License-Identifier: Apache-2.0
//
// Data sets of images of any size. Each image is read, decoded, cropped and resampled whenever it
// is requested; only the index is held in memory.
//
//   encoded source --read--> bytes --decode the window's box--> pixels --resample--> S x S x 3
//   bytes packed file ---------------------------------> pixels --resample--> S x S x 3 bytes
//
// A bad image is replaced by the next good image of its class, because other ranks take its label
// from the index. It is reported once; read() returns Sample::StandIn each time, and callers decide
// how many are too many.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "io/dataset.hpp"
#include "io/images/presets.hpp"
#include "io/records/bad_pictures.hpp"
#include "io/records/encoded_source.hpp"
#include "io/records/packed_pictures.hpp"

namespace millrace::io {

struct PictureOptions {
  ImagePreset preset;  ///< includes the normalization
  std::int32_t side = 224;
  /// Called once per bad image: "train-00003-of-01024, record 5 at offset 678: truncated ...".
  ReportBad report;
};

/// Common part of the data sets below.
class PictureDataset : public Dataset {
 public:
  ~PictureDataset() override;
  [[nodiscard]] Shape image_shape() const override;
  /// Errors: Data if this image is bad and its class has no good one; Io.
  Sample read_bytes(std::int64_t index, const ReadKey& key, std::span<std::uint8_t> image,
                    PixelScaling& scaling) const override;
  Sample read(std::int64_t index, const ReadKey& key, std::span<float> image) const override;
  Sample read_rounded(std::int64_t index, const ReadKey& key, std::span<float> scratch,
                      std::span<bfloat16> image) const override;
  Sample read_rounded(std::int64_t index, const ReadKey& key, std::span<float> scratch,
                      std::span<float16> image) const override;
  [[nodiscard]] std::vector<std::string> replaced() const override;

 protected:
  /// Buffers of one reading thread, reused by the next.
  class Worker;
  explicit PictureDataset(PictureOptions options);
  [[nodiscard]] const PictureOptions& options() const { return options_; }
  /// Writes image `index` with the crop of sample `sample`. Errors: Data, with or without the
  /// location.
  virtual void read_picture(std::int64_t index, std::int64_t sample, const ReadKey& key,
                            Worker& worker, std::span<std::uint8_t> image) const = 0;
  [[nodiscard]] virtual std::string where(std::int64_t index) const = 0;

 private:
  class Borrowed;
  template <class T>
  Sample read_normalised(std::int64_t index, const ReadKey& key, std::span<T> image) const;
  Sample read_or_replace(std::int64_t index, const ReadKey& key, Worker& worker,
                         std::span<std::uint8_t> image) const;
  void note_bad(std::int64_t index, const std::string& problem) const;
  [[nodiscard]] std::int64_t next_of_class(std::int64_t index) const;

  PictureOptions options_;
  PixelScaling scaling_;
  mutable std::mutex large_;  ///< held while an unusually large image is decoded
  mutable std::mutex mutex_;  ///< guards what follows
  mutable std::vector<std::unique_ptr<Worker>> idle_;
  mutable std::map<std::int64_t, std::string> bad_;  ///< problem by image
  mutable std::vector<std::int32_t> by_class_;  ///< indices by class; built for the first bad image
};

/// Images that are decoded at every read.
[[nodiscard]] std::shared_ptr<PictureDataset> make_picture_dataset(
    std::shared_ptr<const EncodedSource> source, PictureOptions options);

/// Images from a file of decoded images. `name` is the name of the set.
[[nodiscard]] std::shared_ptr<PictureDataset> make_packed_dataset(
    std::shared_ptr<const PackedPictures> pictures, std::string name, PictureOptions options);

}  // namespace millrace::io
