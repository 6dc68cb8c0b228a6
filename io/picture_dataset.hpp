// SPDX-License-Identifier: Apache-2.0
//
// Pictures of any size as a data set: each is read, decoded, cropped and resampled whenever it is
// asked for, so that nothing of the set but its index is held in memory.
//
//   encoded source --read--> bytes --decode the window's box--> pixels --resample--> S x S x 3
//   bytes packed file ---------------------------------> pixels --resample--> S x S x 3 bytes
//
// A picture that turns out bad while it is read is replaced by the next good one of its class: its
// label, which other ranks have from the index alone, stays true. It is reported once; readers are
// told each time, and decide what is too many.
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
  ImagePreset preset;  ///< its normalisation included
  std::int32_t side = 224;
  /// Told once of every bad picture: "train-00003-of-01024, record 5 at offset 678: truncated ...".
  ReportBad report;
};

/// What every data set of pictures has in common; the two below say how one is read.
class PictureDataset : public Dataset {
 public:
  ~PictureDataset() override;
  [[nodiscard]] Shape image_shape() const override;
  /// Errors: Data when this picture is bad and no other of its class is good; Io.
  Sample read_bytes(std::int64_t index, const ReadKey& key, std::span<std::uint8_t> image,
                    PixelScaling& scaling) const override;
  Sample read(std::int64_t index, const ReadKey& key, std::span<float> image) const override;
  Sample read_rounded(std::int64_t index, const ReadKey& key, std::span<float> scratch,
                      std::span<bfloat16> image) const override;
  Sample read_rounded(std::int64_t index, const ReadKey& key, std::span<float> scratch,
                      std::span<float16> image) const override;
  [[nodiscard]] std::vector<std::string> replaced() const override;

 protected:
  /// Memory of one reading thread, used again by the next.
  class Worker;
  explicit PictureDataset(PictureOptions options);
  [[nodiscard]] const PictureOptions& options() const { return options_; }
  /// Writes picture `index`, cropped as sample `sample` is drawn. Errors: Data, with the
  /// place or without.
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
  mutable std::mutex large_;  ///< held while a picture larger than usual is decoded
  mutable std::mutex mutex_;  ///< guards what follows
  mutable std::vector<std::unique_ptr<Worker>> idle_;
  mutable std::map<std::int64_t, std::string> bad_;  ///< what is wrong with which picture
  mutable std::vector<std::int32_t> by_class_;  ///< indices by class; made when the first is bad
};

/// Pictures that are decoded anew whenever they are read.
[[nodiscard]] std::shared_ptr<PictureDataset> make_picture_dataset(
    std::shared_ptr<const EncodedSource> source, PictureOptions options);

/// Pictures that lie decoded in a file. `name` is that of the set.
[[nodiscard]] std::shared_ptr<PictureDataset> make_packed_dataset(
    std::shared_ptr<const PackedPictures> pictures, std::string name, PictureOptions options);

}  // namespace millrace::io
