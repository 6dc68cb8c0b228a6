// SPDX-License-Identifier: Apache-2.0
#include "io/data/first_images.hpp"

#include <utility>

#include "core/error.hpp"

namespace millrace::io {
namespace {

class FirstImages final : public Dataset {
 public:
  FirstImages(std::shared_ptr<const Dataset> set, std::int64_t size)
      : set_(std::move(set)), size_(size) {
    MILLRACE_ASSERT(size > 0 && size <= set_->size());
  }
  [[nodiscard]] std::string name() const override { return set_->name(); }
  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] Shape image_shape() const override { return set_->image_shape(); }
  [[nodiscard]] std::int64_t classes() const override { return set_->classes(); }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override { return set_->label(index); }
  [[nodiscard]] std::vector<std::string> class_names() const override {
    return set_->class_names();
  }
  [[nodiscard]] std::optional<Preparation> preparation() const override {
    return set_->preparation();
  }
  [[nodiscard]] std::uint32_t sampled_content() const override { return set_->sampled_content(); }
  [[nodiscard]] std::int64_t reading_bytes(int threads) const override {
    return set_->reading_bytes(threads);
  }
  [[nodiscard]] std::int64_t kept_bytes() const override { return set_->kept_bytes(); }
  Sample read(std::int64_t index, const ReadKey& key, std::span<std::uint8_t> image,
              PixelScaling& scaling) const override {
    return set_->read(index, key, image, scaling);
  }
  [[nodiscard]] std::vector<std::string> replaced() const override { return set_->replaced(); }

 private:
  std::shared_ptr<const Dataset> set_;
  std::int64_t size_;
};

}  // namespace

std::shared_ptr<const Dataset> first_images(std::shared_ptr<const Dataset> set, std::int64_t size) {
  return std::make_shared<FirstImages>(std::move(set), size);
}

}  // namespace millrace::io
