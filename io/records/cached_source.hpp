// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "io/records/encoded_source.hpp"

namespace millrace::io {

/// Memory budget shared by several caches. Thread-safe.
class CacheBudget {
 public:
  explicit CacheBudget(std::int64_t bytes) : left_(bytes), unpromised_(bytes) {}
  /// How much of `bytes` remains after all earlier promises. Only a prediction: take() does not
  /// look at promises.
  [[nodiscard]] std::int64_t promise(std::int64_t bytes) noexcept;
  /// Takes `bytes` if so much is left; returns whether it did.
  [[nodiscard]] bool take(std::int64_t bytes) noexcept;
  void give_back(std::int64_t bytes) noexcept { left_.fetch_add(bytes); }
  [[nodiscard]] std::int64_t left() const noexcept { return left_.load(); }

 private:
  std::atomic<std::int64_t> left_;
  std::atomic<std::int64_t> unpromised_;
};

/// A source that keeps encoded images in memory once they were read, until the budget is used up.
/// Nothing is evicted: every image is read once per epoch in a new order, so all images are equally
/// useful. Reading from memory takes no lock and no buffer.
class CachedSource final : public EncodedSource {
 public:
  CachedSource(std::shared_ptr<const EncodedSource> source, std::shared_ptr<CacheBudget> budget);
  ~CachedSource() override;
  CachedSource(const CachedSource&) = delete;
  CachedSource& operator=(const CachedSource&) = delete;

  [[nodiscard]] std::string name() const override { return source_->name(); }
  [[nodiscard]] std::int64_t size() const override { return source_->size(); }
  [[nodiscard]] std::int64_t classes() const override { return source_->classes(); }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override {
    return source_->label(index);
  }
  [[nodiscard]] std::uint64_t stored_bytes(std::int64_t index) const override {
    return source_->stored_bytes(index);
  }
  [[nodiscard]] std::uint32_t fingerprint() const override { return source_->fingerprint(); }
  EncodedImage read(std::int64_t index, ReadBuffer& buffer) const override;
  [[nodiscard]] std::string where(std::int64_t index) const override {
    return source_->where(index);
  }
  [[nodiscard]] std::span<const std::string> notices() const override { return source_->notices(); }

  [[nodiscard]] std::int64_t kept_bytes() const override { return promised_; }

 private:
  struct Picture;
  void keep(std::atomic<const Picture*>& place, const EncodedImage& image) const;

  std::shared_ptr<const EncodedSource> source_;
  std::shared_ptr<CacheBudget> budget_;
  std::int64_t promised_;
  mutable std::vector<std::atomic<const Picture*>> pictures_;  ///< null: not kept
};

}  // namespace millrace::io
