// SPDX-License-Identifier: Apache-2.0
//
// The network of a checkpoint for use: what it says of images.
//
//   const training::Runtime runtime(2);  // two threads
//   const training::Classifier classifier(runtime, "logs/RN50");
//   const std::vector<fs::path> files = {"cat.jpg", "dog.png"};
//   const std::vector<float> logits = classifier.logits(files);  // a row for each image
//   const std::span first = std::span(logits).first(classifier.classes());
//   for (const training::Prediction& p : training::top(first, 5))
//     fmt::print("{} {:.1f} %\n", classifier.class_names()[p.label], 100 * p.probability);
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/shape.hpp"
#include "io/data/dataset.hpp"
#include "run/run.hpp"
#include "train/training.hpp"

namespace millrace::training {

struct Prediction {
  std::int64_t label = 0;  ///< number of the class
  double logit = 0.0;
  double probability = 0.0;  ///< softmax
};

/// The `count` likeliest classes of an image, or all if there are fewer. Of equal logits the lower
/// class comes first, as in a validation.
[[nodiscard]] std::vector<Prediction> top(std::span<const float> logits, std::int64_t count);

/// An image of any size in memory: the bytes of a JPEG or PNG file, or, if it has a width, rows of
/// pixels from the top without gaps, each of 1 byte (gray), 3 (red, green, blue) or 4 (the fourth
/// is left out).
struct Image {
  std::span<const std::uint8_t> bytes = {};
  std::int32_t width = 0;
  std::int32_t height = 0;
  std::int32_t channels = 3;
};

struct ClassifierOptions {
  /// Numbers of images that go through the network together. A call takes the largest that it fills
  /// to three quarters at least, again and again, and for few images the smallest. What is missing
  /// is computed for nothing. Each number has a copy of the weights.
  std::vector<std::int64_t> batch_sizes = {1, 16};
  int threads = 1;             ///< that read images and prepare them, beside those of the Runtime
  std::string precision = {};  ///< "32.32", "16.32" or "16.16"; "": as the network was trained
  /// First layer or op of each stage but the first. Without any, the network is cut into as many
  /// stages as the Runtime has processes.
  std::vector<std::string> splits = {};
};

/// Several may live in a process. Functions may be called by several threads at a time: they
/// prepare up to a batch of images side by side, and take turns for the network. In several
/// processes, each makes the same calls in the same order, in one thread, and gets all logits.
/// Images that one of them cannot read are an error in all, after which they may go on.
///
/// The logits of an image do not depend on the images beside it, nor on the number of processes.
/// Where all calls have one batch size, their bits are those of a validation with that size; those
/// of different sizes agree to rounding.
class Classifier {
 public:
  /// A checkpoint, or a run, of which it takes the newest checkpoint that is sound. `runtime` must
  /// outlive this. Errors: Checkpoint; Config for options that do not go together.
  Classifier(const Runtime& runtime, const std::filesystem::path& checkpoint_or_run,
             const ClassifierOptions& options = {});
  ~Classifier();
  Classifier(const Classifier&) = delete;
  Classifier& operator=(const Classifier&) = delete;

  [[nodiscard]] Shape image_shape() const;
  /// Logits of an image. Some networks have more than classes: SqueezeNet for CIFAR, two for each,
  /// as in the IPU trainer, of which the second half stays unlikely.
  [[nodiscard]] std::int64_t classes() const;
  /// By number; none if the checkpoint does not know them.
  [[nodiscard]] const std::vector<std::string>& class_names() const;
  /// A line for each damaged checkpoint that was passed over.
  [[nodiscard]] const std::vector<std::string>& notices() const;

  /// The logits of any number of images, a row of classes() for each. These are what the network
  /// sees: images x height x width x channels floats, prepared already. Errors: Data if they are no
  /// whole images.
  [[nodiscard]] std::vector<float> logits(std::span<const float> images) const;
  /// Of images that are prepared as the validation of the checkpoint prepares its images. Errors:
  /// Data, with the number or the name of the first image that cannot be read; Config for a network
  /// that reads no such images; Checkpoint if it does not say how they are prepared.
  [[nodiscard]] std::vector<float> logits(std::span<const Image> images) const;
  [[nodiscard]] std::vector<float> logits(std::span<const std::filesystem::path> files) const;
  /// Passes the logits of all images of a set to `take`, a row for each from number `first` on,
  /// while the next ones are read. They are in the order of the set and go through the network in
  /// the largest number. In several processes, only those that have its end do so. `take` must not
  /// call this Classifier. Errors: Config without a set; Config or Data for images of another shape
  /// or of more classes.
  void logits(
      const std::shared_ptr<const io::Dataset>& images,
      const std::function<void(std::int64_t first, std::span<const float> logits)>& take) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace millrace::training
