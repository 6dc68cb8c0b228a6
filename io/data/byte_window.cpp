// SPDX-License-Identifier: Apache-2.0
#include "io/data/byte_window.hpp"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "core/error.hpp"

namespace millrace::io {
namespace {

constexpr std::size_t kFirstStep = std::size_t{4} << 10;
constexpr std::size_t kLastStep = std::size_t{1} << 20;

}  // namespace

ByteWindow::ByteWindow(const std::filesystem::path& path)
    : label_(path.string()),
      file_(open_file(path, O_RDONLY)),
      size_(regular_size(file_.get(), path)) {}

ByteWindow::ByteWindow(std::span<const std::byte> bytes, std::string label)
    : label_(std::move(label)), size_(bytes.size()), view_(bytes) {}

bool ByteWindow::covers(std::uint64_t offset, std::uint64_t count) const noexcept {
  return offset >= begin_ && offset - begin_ <= view_.size() &&
         count <= view_.size() - (offset - begin_);
}

std::span<const std::byte> ByteWindow::at(std::uint64_t offset, std::size_t count) {
  MILLRACE_ASSERT(offset <= size_ && count <= size_ - offset);
  if (!covers(offset, count)) fill(offset, count);
  return view_.subspan(static_cast<std::size_t>(offset - begin_), count);
}

std::span<const std::byte> ByteWindow::from(std::uint64_t offset) {
  static_cast<void>(at(offset, 1));
  return view_.subspan(static_cast<std::size_t>(offset - begin_));
}

void ByteWindow::fill(std::uint64_t offset, std::size_t count) {
  const std::uint64_t end = begin_ + view_.size();
  const bool goes_on = step_ > 0 && offset >= begin_ && offset <= end;
  step_ = goes_on ? std::min(2 * step_, kLastStep) : kFirstStep;
  const std::size_t kept = goes_on ? static_cast<std::size_t>(end - offset) : 0;
  const std::size_t wanted = static_cast<std::size_t>(
      std::min<std::uint64_t>(std::max(count, kept + step_), size_ - offset));
  std::copy(view_.end() - static_cast<std::ptrdiff_t>(kept), view_.end(), buffer_.begin());
  view_ = {};
  if (buffer_.size() < wanted) buffer_.resize(wanted);
  read_exactly(file_.get(), offset + kept, std::span(buffer_).first(wanted).subspan(kept), label_);
  view_ = std::span(buffer_).first(wanted);
  begin_ = offset;
}

}  // namespace millrace::io
