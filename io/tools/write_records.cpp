// SPDX-License-Identifier: Apache-2.0
#include "io/tools/write_records.hpp"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include "core/error.hpp"
#include "example.pb.h"
#include "io/data/record_frame.hpp"

namespace millrace::io {
namespace {

constexpr std::size_t kWritePiece = std::size_t{1} << 20;

class Features {
 public:
  void set(const std::string& name, std::int64_t value) {
    (*map_)[name].mutable_int64_list()->add_value(value);
  }
  void set(const std::string& name, std::string value) {
    (*map_)[name].mutable_bytes_list()->add_value(std::move(value));
  }
  void add(const std::string& name, float value) {
    (*map_)[name].mutable_float_list()->add_value(value);
  }
  void write(std::vector<std::byte>& payload) const {
    payload.resize(example_.ByteSizeLong());
    google::protobuf::io::ArrayOutputStream array(payload.data(), static_cast<int>(payload.size()));
    google::protobuf::io::CodedOutputStream out(&array);
    out.SetSerializationDeterministic(true);  // sorts the map by name
    MILLRACE_ASSERT(example_.SerializeToCodedStream(&out));
  }

 private:
  wire::Example example_;
  google::protobuf::Map<std::string, wire::Feature>* map_ =
      example_.mutable_features()->mutable_feature();
};

}  // namespace

void write_example(const ExampleContent& content, std::vector<std::byte>& payload) {
  Features features;
  features.set("image/height", content.height);
  features.set("image/width", content.width);
  features.set("image/colorspace", "RGB");
  features.set("image/channels", std::int64_t{3});
  features.set("image/class/label", content.label);
  features.set("image/class/synset", content.synset);
  features.set("image/format", "JPEG");
  features.set("image/filename", content.filename);
  features.set("image/encoded", std::string(reinterpret_cast<const char*>(content.encoded.data()),
                                            content.encoded.size()));
  for (const ObjectBox& box : content.boxes) {
    features.add("image/object/bbox/ymin", box.top);
    features.add("image/object/bbox/xmin", box.left);
    features.add("image/object/bbox/ymax", box.bottom);
    features.add("image/object/bbox/xmax", box.right);
  }
  features.write(payload);
}

RecordWriter::RecordWriter(const std::filesystem::path& path) : path_(path), file_(path) {
  pending_.reserve(kWritePiece);
}

void RecordWriter::append(std::span<const std::byte> payload) {
  if (payload.size() > kMaxRecordBytes)
    fail(ErrorKind::Data, "{}: a record of {} bytes cannot be written; the limit is {}",
         path_.string(), payload.size(), kMaxRecordBytes);
  append_frame(payload, pending_);
  if (pending_.size() >= kWritePiece) flush();
}

void RecordWriter::flush() {
  file_.write(pending_, written_);
  written_ += pending_.size();
  pending_.clear();
}

void RecordWriter::commit() {
  flush();
  file_.commit();
}

}  // namespace millrace::io
