// SPDX-License-Identifier: Apache-2.0
#include "cli/export_notes.hpp"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/expect_error.hpp"

namespace millrace::cli {
namespace {

constexpr const char* kFile = "net.safetensors";

ExportNotes notes(const std::string& config,
                  const std::string& network = R"({"classes":10,"image":[32,32,3]})") {
  return {{"millrace.config", config}, {"millrace.network", network}};
}

/// What a resnet-20 for CIFAR notes, with other options behind.
std::string resnet20(const std::string& more = "") {
  return "[model]\nmodel = \"resnet\"\nmodel-size = \"20\"\n" + more +
         "[data]\ndataset = \"cifar-10\"\n";
}

TEST(ExportNotesTest, MakeTheNetworkThatWasExported) {
  const std::optional<NotedExport> noted = read_notes(notes(resnet20()), kFile);
  ASSERT_TRUE(noted);
  EXPECT_EQ(network_of(*noted, kFile).size, "20");
  EXPECT_FALSE(read_notes({{"format", "pt"}}, kFile)) << "a file of another program";
}

// Nobody typed them: the file is damaged, whatever is wrong.
TEST(ExportNotesTest, DamagedOnesAreAnErrorOfTheFile) {
  for (const auto& [damaged, what] : {
           std::pair(notes("garbage"), "(millrace.config:1: "),
           {notes(resnet20("momentum = ")), "(millrace.config:4: "},
           {notes(resnet20("[train2]\n")), "(millrace.config:4: unknown section"},
           {notes(resnet20("block = \"round\"\n")), "(millrace.config:4: "},
           {notes(resnet20(), "{"), "(the facts about the network"},
           {notes(""), "(no data set"},
           {notes("[model]\nmodel-size = \"21\"\n[data]\ndataset = \"cifar-10\"\n"),
            "(model resnet has no size 21"},
       })
    expect_error(
        ErrorKind::Data,
        {"net.safetensors: what millrace noted in it is damaged, ", what, "): export it again, or"},
        [&, &d = damaged] { (void)network_of(read_notes(d, kFile).value(), kFile); });
}

}  // namespace
}  // namespace millrace::cli
