// SPDX-License-Identifier: Apache-2.0
#include "io/data/part_of_set.hpp"

#include <utility>

#include "core/error.hpp"

namespace millrace::io {
namespace {

/// Whether the images of each class follow those of the class before, as in class folders.
bool is_in_class_order(const Dataset& set) {
  for (std::int64_t i = 1; i < set.size(); ++i)
    if (set.label(i) < set.label(i - 1)) return false;
  return true;
}

class PartOfSet final : public Dataset {
 public:
  PartOfSet(std::shared_ptr<const Dataset> set, std::int64_t size)
      : set_(std::move(set)), size_(size), spread_(is_in_class_order(*set_)) {
    MILLRACE_ASSERT(size > 0 && size <= set_->size());
  }
  [[nodiscard]] std::string name() const override { return set_->name(); }
  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] Shape image_shape() const override { return set_->image_shape(); }
  [[nodiscard]] std::int64_t classes() const override { return set_->classes(); }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override {
    return set_->label(place(index));
  }
  [[nodiscard]] std::vector<std::string> class_names() const override {
    return set_->class_names();
  }
  [[nodiscard]] std::optional<run::Preparation> preparation() const override {
    return set_->preparation();
  }
  [[nodiscard]] std::uint32_t sampled_content() const override { return set_->sampled_content(); }
  [[nodiscard]] std::int64_t reading_bytes(int threads) const override {
    return set_->reading_bytes(threads);
  }
  [[nodiscard]] std::int64_t kept_bytes() const override { return set_->kept_bytes(); }
  Sample read(std::int64_t index, const ReadKey& key, std::span<std::uint8_t> image,
              PixelScaling& scaling) const override {
    return set_->read(place(index), key, image, scaling);
  }
  [[nodiscard]] std::vector<std::string> replaced() const override { return set_->replaced(); }

 private:
  /// Of image `index` in the set.
  [[nodiscard]] std::int64_t place(std::int64_t index) const {
    return spread_ ? index * set_->size() / size_ : index;
  }

  std::shared_ptr<const Dataset> set_;
  std::int64_t size_;
  bool spread_;
};

}  // namespace

std::shared_ptr<const Dataset> part_of_set(std::shared_ptr<const Dataset> set, std::int64_t size) {
  return std::make_shared<PartOfSet>(std::move(set), size);
}

}  // namespace millrace::io
