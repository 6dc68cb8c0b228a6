// SPDX-License-Identifier: Apache-2.0
#include "tools/data/convert.hpp"

#include "core/error.hpp"
#include "io/data/dataset_kinds.hpp"
#include "io/data/tar_reader.hpp"
#include "tests/io/records/shards.hpp"
#include "tests/io/records/tar_writer.hpp"
#include "tests/support/leftover.hpp"
#include "tools/data/check.hpp"

namespace millrace::io {
namespace {

/// A fake: converts a "PNG" to a "JPEG", and rejects files that contain "broken".
PreparedImage prepare(std::span<const std::byte> bytes) {
  const std::string text = text_of(bytes);
  if (text.find("broken") != std::string::npos) fail(ErrorKind::Data, "a broken image");
  PreparedImage prepared{.height = 3, .width = 4, .replacement = {}};
  if (text.starts_with("\x89PNG")) prepared.replacement = bytes_of("\xff\xd8\xff from " + text);
  return prepared;
}

ConvertOptions options_for(std::int64_t shards, unsigned threads = 2) {
  ConvertOptions options;
  options.shards = shards;
  options.threads = threads;
  options.prepare = prepare;
  return options;
}

constexpr std::size_t kClasses = 3;
constexpr std::size_t kPerClass = 7;

std::string synset(std::size_t c) { return fmt::format("n{:08}", 5 - c); }
std::string file_name(std::size_t c, std::size_t i) {
  return fmt::format("{}_{}.JPEG", synset(c), i);
}

void write_class_folders(const fs::path& root) {
  for (std::size_t c = 0; c < kClasses; ++c)
    for (std::size_t i = 0; i < kPerClass; ++i)
      store(root / "train" / synset(c) / file_name(c, i), fake_image(c * kPerClass + i));
  store(root / "train" / synset(0) / "LICENSE", std::string_view("no image"));
}

Tar class_tar(std::size_t c) {
  Tar tar;
  for (std::size_t i = 0; i < kPerClass; ++i)
    tar.add(file_name(c, i), fake_image(c * kPerClass + i));
  return tar;
}

/// Image and label of every record in a set of shards.
std::multiset<std::pair<std::string, std::int32_t>> images_of(const fs::path& root, Split split) {
  OpenOptions options;
  options.classes = kClasses;
  const auto source = open_image_dataset(root, split, options);
  std::multiset<std::pair<std::string, std::int32_t>> images;
  ReadBuffer buffer;
  for (std::int64_t i = 0; i < source->size(); ++i)
    images.emplace(text_of(source->stored(i, buffer).bytes), source->label(i));
  return images;
}

std::multiset<std::pair<std::string, std::int32_t>> expected_images() {
  std::multiset<std::pair<std::string, std::int32_t>> images;
  for (std::size_t c = 0; c < kClasses; ++c)
    for (std::size_t i = 0; i < kPerClass; ++i)
      // Class names descend while c ascends, so name order differs from the order here.
      images.emplace(text_of(fake_image(c * kPerClass + i)),
                     static_cast<std::int32_t>(kClasses - 1 - c));
  return images;
}

struct ConvertTest : testing::Test {
  [[nodiscard]] RawImages raw_images() const { return find_raw_images(raw.path(), Split::Train); }
  ConvertReport convert(const ConvertOptions& options) const {
    return convert_to_records(raw_images(), Split::Train, out.path(), options);
  }

  const TemporaryDirectory raw;
  const TemporaryDirectory out;
};

TEST_F(ConvertTest, ClassFoldersBecomeShardsThatReadBack) {
  write_class_folders(raw.path());
  const RawImages images = raw_images();
  EXPECT_EQ(images.classes, (std::vector<std::string>{"n00000003", "n00000004", "n00000005"}));
  const ConvertReport report = convert(options_for(4));
  EXPECT_EQ(report.images, 21u);
  EXPECT_EQ(report.shards_written, 4);
  EXPECT_EQ(report.replaced, 0u);
  std::vector<std::size_t> sizes;
  for (int i = 0; i < 4; ++i) {
    ByteWindow file(out / "train" / fmt::format("train-{:05}-of-00004", i));
    sizes.push_back(scan_records(file).entries.size());
  }
  EXPECT_EQ(sizes, (std::vector<std::size_t>{6, 6, 6, 3})) << "as converters: ceil(21 / 4) each";
  EXPECT_EQ(images_of(out.path(), Split::Train), expected_images());
  CheckOptions check;
  check.classes = kClasses;
  check.inspect = {};  // the images are fakes
  for (const Finding& finding : check_images(out.path(), Split::Train, check).findings)
    ADD_FAILURE() << finding.file << ": " << finding.problem;
}

TEST_F(ConvertTest, TrainingIsMixedBySeedAndValidationKeepsItsOrder) {
  const auto mixed = conversion_order(1000, Split::Train, 0);
  EXPECT_EQ(std::set<std::size_t>(mixed.begin(), mixed.end()).size(), 1000u);
  EXPECT_NE(mixed, conversion_order(1000, Split::Train, 1));
  EXPECT_EQ(mixed, conversion_order(1000, Split::Train, 0));
  // Of ten consecutive classes of 100 images each, the first hundred images written contain all
  // classes.
  std::set<std::size_t> classes;
  for (std::size_t i = 0; i < 100; ++i) classes.insert(mixed[i] / 100);
  EXPECT_EQ(classes.size(), 10u);
  const auto kept = conversion_order(5, Split::Validation, 0);
  EXPECT_EQ(kept, (std::vector<std::size_t>{0, 1, 2, 3, 4}));
}

TEST_F(ConvertTest, BytesDependNeitherOnThreadsNorOnWhereTheImagesLie) {
  const TemporaryDirectory folders;
  const TemporaryDirectory tars;
  write_class_folders(folders.path());
  for (std::size_t c = 0; c < kClasses; ++c)
    store(tars / "train" / (synset(c) + ".tar"), class_tar(c).bytes());
  int number = 0;
  std::vector<std::map<std::string, Bytes>> results;
  for (const fs::path& from : {folders.path(), tars.path()})
    for (const unsigned threads : {1u, 3u}) {
      const fs::path place = out / std::to_string(++number);
      (void)convert_to_records(find_raw_images(from, Split::Train), Split::Train, place,
                               options_for(5, threads));
      results.push_back(files_below(place));
    }
  for (const auto& result : results) EXPECT_TRUE(result == results[0]);
  EXPECT_EQ(results[0].size(), 5u);
}

TEST_F(ConvertTest, FlatValidationWithAListOfLabels) {
  write_class_folders(raw.path());
  for (std::size_t i = 0; i < 3; ++i)
    store(raw / "validation" / fmt::format("ILSVRC2012_val_{:08}.JPEG", i + 1),
          fake_image(100 + i));
  store(raw / "synset_labels.txt", "n00000005\nn00000003\nn00000004\n");
  const RawImages images = find_raw_images(raw.path(), Split::Validation);
  (void)convert_to_records(images, Split::Validation, out.path(), options_for(2));
  OpenOptions options;
  options.classes = kClasses;
  const auto source = open_image_dataset(out.path(), Split::Validation, options);
  ASSERT_EQ(source->size(), 3);
  ReadBuffer buffer;
  const std::array<int, 3> labels = {2, 0, 1};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(source->label(i), labels[static_cast<std::size_t>(i)]);
    EXPECT_EQ(text_of(source->stored(i, buffer).bytes),
              text_of(fake_image(static_cast<std::size_t>(100 + i))));
  }
  EXPECT_TRUE(fs::exists(out / "validation" / "validation-00001-of-00002"));

  store(raw / "synset_labels.txt", "n00000005\nn00000003\n");
  expect_error(ErrorKind::Data, {"synset_labels.txt: 2 lines, but 3 images"},
               [&] { (void)find_raw_images(raw.path(), Split::Validation); });
  store(raw / "other.txt", "n00000005\nn00000003\nn99999999\n");
  expect_error(ErrorKind::Data, {"n99999999"},
               [&] { (void)find_raw_images(raw.path(), Split::Validation, raw / "other.txt"); });
}

TEST_F(ConvertTest, ForeignFilesAreReplaced) {
  store(raw / "train/n1/a.JPEG", std::string_view("\x89PNG"));
  store(raw / "train/n1/b.JPEG", fake_image(1));
  EXPECT_EQ(convert(options_for(1)).replaced, 1u);
}

TEST_F(ConvertTest, BadImagesOfKeptShardsStillCount) {
  write_class_folders(raw.path());
  for (const std::size_t i : {1u, 4u})
    store(raw / "train" / synset(1) / file_name(1, i), std::string_view("broken"));
  const RawImages images = raw_images();
  std::vector<std::string> named;
  ConvertOptions options = options_for(4, 3);
  options.max_bad_fraction = 0.1;
  options.report_bad = [&](const std::string& problem) { named.push_back(problem); };
  const ConvertReport report = convert(options);
  EXPECT_EQ(report.bad, 2);
  EXPECT_EQ(report.images, 19u);
  ASSERT_EQ(named.size(), 2u);
  for (const std::string& name : named) EXPECT_TRUE(name.ends_with("a broken image")) << name;
  fs::remove(out / "train/train-00001-of-00004");
  const ConvertReport again = convert(options);
  EXPECT_EQ(again.bad, 2);
  EXPECT_EQ(again.shards_kept, 3);
  options.max_bad_fraction = 0.05;
  expect_error(ErrorKind::Data, {"2 of 21 images", "a broken image"},
               [&] { (void)convert(options); });
}

TEST_F(ConvertTest, NoShardIsEmpty) {
  EXPECT_EQ(shards_filled(1'281'167, 1024), 1024);
  EXPECT_EQ(shards_filled(50'000, 128), 128);
  EXPECT_EQ(shards_filled(12, 1024), 12);
  EXPECT_EQ(shards_filled(21, 20), 11);
  store(raw / "train/n1/a.JPEG", fake_image(1));
  store(raw / "train/n1/b.JPEG", std::string_view("broken"));
  ConvertOptions options = options_for(2, 1);
  options.max_bad_fraction = 0.5;
  expect_error(ErrorKind::Data, {"all of its images (1) are bad"},
               [&] { (void)convert_to_records(raw_images(), Split::Train, out.path(), options); });
}

TEST_F(ConvertTest, ContinuesAfterAnInterruption) {
  const TemporaryDirectory straight;
  write_class_folders(raw.path());
  const RawImages images = raw_images();
  ConvertOptions options = options_for(5, 1);
  std::atomic<int> calls = 0;
  options.prepare = [&](std::span<const std::byte> bytes) {
    if (++calls == 12) fail(ErrorKind::Io, "the disk is full");
    return prepare(bytes);
  };
  expect_error(ErrorKind::Io, {"the disk is full"}, [&] { (void)convert(options); });
  EXPECT_FALSE(fs::exists(out / "train/train-00002-of-00005"));
  const fs::path left = test::leave_temporary(out / "train/train-00002-of-00005");
  const fs::path state = test::leave_temporary(out / "train/.millrace-train.conversion");
  const fs::path notes = out / "train/train-notes.tmp.2024.txt";
  const fs::path foreign = test::leave_temporary(out / "train/train-notes");
  store(notes, std::string_view("of the user"));
  const ConvertReport report = convert(options_for(5));
  EXPECT_EQ(report.shards_kept, 2);
  EXPECT_EQ(report.shards_written, 3);
  EXPECT_FALSE(fs::exists(left));
  EXPECT_FALSE(fs::exists(state));
  EXPECT_TRUE(fs::remove(notes));
  EXPECT_TRUE(fs::remove(foreign));
  (void)convert_to_records(images, Split::Train, straight.path(), options_for(5));
  EXPECT_EQ(files_below(out.path()), files_below(straight.path()));
}

TEST_F(ConvertTest, NeverMixesTwoConversions) {
  write_class_folders(raw.path());
  const RawImages images = raw_images();
  ConvertOptions broken = options_for(5, 1);
  int calls = 0;
  broken.prepare = [&](std::span<const std::byte> bytes) {
    if (++calls == 7) fail(ErrorKind::Io, "stopped");
    return prepare(bytes);
  };
  expect_error(ErrorKind::Io, {"stopped"}, [&] { (void)convert(broken); });
  expect_error(ErrorKind::Usage, {"in 5 shards", "in 4 shards"},
               [&] { (void)convert(options_for(4)); });
  (void)convert(options_for(5));
  EXPECT_EQ(convert(options_for(5)).shards_kept, 5);
  expect_error(ErrorKind::Usage, {"in 5 shards", "in 4 shards"},
               [&] { (void)convert(options_for(4)); });
  store(out / "foreign/train/train-00000-of-00001", std::string_view("of somebody"));
  expect_error(ErrorKind::Usage, {"already exists"}, [&] {
    (void)convert_to_records(images, Split::Train, out / "foreign", options_for(5));
  });
  expect_error(ErrorKind::Config, {"0 shards"}, [&] { (void)convert(options_for(0)); });
}

TEST_F(ConvertTest, FilesAreRecognizedByContentInArchivesAndInFolders) {
  Tar tar;
  const TemporaryDirectory folders;
  for (const auto& [name, bytes] :
       {std::pair{"no-ending", fake_image(1)}, std::pair{"LICENSE", bytes_of("no image")},
        std::pair{"empty", Bytes()}, std::pair{"text.JPEG", bytes_of("no image either")},
        std::pair{"._a.JPEG", bytes_of("what another system keeps")}}) {
    tar.add(name, bytes);
    store(folders / "train/n1" / name, bytes);
  }
  store(raw / "train" / "n1.tar", tar.bytes());
  for (const RawImages& found : {raw_images(), find_raw_images(folders.path(), Split::Train)}) {
    std::vector<std::string> names;
    for (const RawImage& image : found.images) names.push_back(image.name);
    EXPECT_EQ(names, (std::vector<std::string>{"no-ending", "text.JPEG"}));
    EXPECT_EQ(found.others.size(), 2u);
  }
}

// The result of unpacking in place.
TEST_F(ConvertTest, AnArchiveBesideItsFolderIsLeftOut) {
  Tar tar;
  tar.add("a.JPEG", fake_image(1));
  for (const char* name : {"n1", "n2"})
    store(raw / "train" / (std::string(name) + ".tar"), tar.bytes());
  store(raw / "train/n1/a.JPEG", fake_image(1));
  fs::create_directory(raw / "train/n2");  // nothing was unpacked here
  const RawImages found = raw_images();
  EXPECT_EQ(found.images.size(), 2u);
  ASSERT_EQ(found.notices.size(), 1u);
  EXPECT_TRUE(found.notices[0].starts_with((raw / "train/n1.tar").string()));
}

TEST_F(ConvertTest, AnArchiveOfArchivesMustBeUnpacked) {
  Tar images;
  images.add("a.JPEG", fake_image(1));
  Tar classes;
  classes.add("n1.tar", images.bytes());
  store(raw / "train/all.tar", classes.bytes());
  expect_error(ErrorKind::Data, {"n1.tar at offset ", "one archive per class: unpack"},
               [&] { (void)raw_images(); });
}

TEST_F(ConvertTest, NothingFoundListsThePlacesSearched) {
  expect_error(ErrorKind::Data, {"img_train", "class archives", "class folders in"},
               [&] { (void)raw_images(); });
  expect_error(ErrorKind::Data, {"validation", "img_val"},
               [&] { (void)find_raw_images(raw.path(), Split::Validation); });
}

std::vector<TarMember> list(const Bytes& bytes) {
  ByteWindow file(bytes, "a.tar");
  return list_tar(file).members;
}

TEST(TarTest, ListsFilesWithLongNames) {
  Tar tar;
  tar.add("folder/", {}, '5');
  tar.add("folder/a.JPEG", bytes_of("content"));
  tar.add("././@LongLink", bytes_of(std::string(150, 'n') + "/long.JPEG"), 'L');
  tar.add("cut short", bytes_of("two"));
  tar.add("pax", bytes_of("22 path=deep/pax.JPEG\n"), 'x');
  tar.add("cut short", {});
  const Bytes bytes = tar.bytes();
  const auto members = list(bytes);
  ASSERT_EQ(members.size(), 3u);
  EXPECT_EQ(members[0].name, "a.JPEG");
  EXPECT_EQ(text_of(std::span(bytes).subspan(members[0].offset, members[0].bytes)), "content");
  EXPECT_EQ(members[1].name, "long.JPEG");
  EXPECT_EQ(members[2].name, "pax.JPEG");
}

TEST(TarTest, HardLinksAreListedWithTheirTarget) {
  Tar tar;
  tar.add("f/a.JPEG", bytes_of("content"));
  tar.add("g/b.JPEG", {}, '1', "f/a.JPEG");
  tar.add("././@LongLink", bytes_of("g/b.JPEG"), 'K');
  tar.add("././@LongLink", bytes_of(std::string(150, 'n') + "/c.JPEG"), 'L');
  tar.add("cut", {}, '1', "cut");
  tar.add("f/d.JPEG", {}, '2', "a.JPEG");
  const Bytes bytes = tar.bytes();
  ByteWindow file(bytes, "a.tar");
  const TarListing listing = list_tar(file);
  ASSERT_EQ(listing.members.size(), 3u);
  for (const TarMember& member : listing.members)
    EXPECT_EQ(text_of(std::span(bytes).subspan(member.offset, member.bytes)), "content");
  EXPECT_EQ(listing.members[1].name, "b.JPEG");
  EXPECT_EQ(listing.members[2].name, "c.JPEG");
  EXPECT_EQ(listing.links, std::vector<std::string>{"d.JPEG"});
}

// Sizes are untrusted, and memory is allocated for a name's size.
TEST(TarTest, NamesOfMoreThan8KiBAreRefused) {
  constexpr std::size_t kMost = 8 * 1024;
  const auto with_name = [](std::size_t bytes, char type) {
    Tar tar;
    const std::string head = type == 'x' ? fmt::format("{} path=", bytes) : "";
    tar.add("././@LongLink", bytes_of(head + std::string(bytes - head.size(), 'n')), type);
    tar.add("a.JPEG", bytes_of("content"));
    return tar.bytes();
  };
  EXPECT_EQ(list(with_name(kMost, 'L')).at(0).name, std::string(kMost, 'n'));
  // "8192 path=" and a line break are not part of the name.
  EXPECT_EQ(list(with_name(kMost, 'x')).at(0).name, std::string(kMost - 11, 'n'));
  for (const char type : {'L', 'x'})
    expect_error(ErrorKind::Data, {"a.tar: name too long at offset 512"},
                 [&] { (void)list(with_name(kMost + 1, type)); });
}

// Converted, a few links of 512 bytes to a large image would fill a disk.
TEST(TarTest, LinksThatMultiplyAnImageAreRefused) {
  const auto linked = [](int links) {
    Tar tar;
    tar.add("a.JPEG", Bytes(100'000));
    for (int i = 0; i < links; ++i) tar.add(fmt::format("{}.JPEG", i), {}, '1', "a.JPEG");
    return tar.bytes();
  };
  EXPECT_EQ(list(linked(6)).size(), 7u);
  expect_error(ErrorKind::Data, {"a.tar: links that repeat its files too often at offset "},
               [&] { (void)list(linked(20)); });
}

TEST(TarTest, DamageIsNamed) {
  const Bytes bytes = class_tar(0).bytes();
  Bytes flipped = bytes;
  flipped[3] ^= std::byte{1};
  expect_error(ErrorKind::Data, {"a.tar: header checksum mismatch at offset 0"},
               [&] { (void)list(flipped); });
  for (const std::size_t size : {0u, 511u, 600u, 1024u, 1536u})
    expect_error(ErrorKind::Data, {"a.tar: ", "truncated or damaged"},
                 [&] { (void)list(Bytes(bytes.data(), bytes.data() + size)); });
}

}  // namespace
}  // namespace millrace::io
