// SPDX-License-Identifier: Apache-2.0
#include "cli/recipes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <system_error>

#include "cli/options.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

/// In the order in which they are searched.
std::vector<fs::path> recipe_folders() {
  std::error_code unknown;
  const fs::path program = fs::read_symlink("/proc/self/exe", unknown).parent_path();
  std::vector<fs::path> folders;
  for (const fs::path& folder : {fs::path("configs"), program / MILLRACE_RECIPES,
                                 program / "../configs", program / "../../configs"})
    if (fs::is_directory(folder, unknown)) folders.push_back(folder.lexically_normal());
  return folders;
}

std::vector<std::string> names_of(const std::vector<fs::path>& files) {
  std::vector<std::string> names;
  names.reserve(files.size());
  for (const fs::path& file : files) names.push_back(file.stem().string());
  return names;
}

/// Whether `name` has all words of `wanted`: resnet50-nvidia is nvidia-resnet50-90epochs, among
/// others.
bool has_words(const std::string& name, const std::vector<std::string>& wanted) {
  const std::vector<std::string> words = split_list(name, '-');
  return std::ranges::all_of(wanted, [&](const std::string& word) {
    return std::ranges::find(words, word) != words.end();
  });
}

[[noreturn]] void refuse_unknown(const std::string& given) {
  std::vector<std::string> known = names_of(recipe_files());
  std::vector<std::string> meant = known;
  std::erase_if(meant, [&](const std::string& name) {
    return !has_words(name, split_list(to_lower(given), '-'));
  });
  if (const std::string nearest = nearest_match(given, known); meant.empty() && !nearest.empty())
    meant = {nearest};
  fail(ErrorKind::Usage, "--config: there is no file and no recipe '{}'; {}{}", given,
       meant.empty() ? "" : fmt::format("did you mean {}? ", join(meant, " or ")),
       known.empty() ? "give the path of a TOML file"
                     : fmt::format("The recipes are {}", join(known, ", ")));
}

/// The first line of a recipe, without the comment sign: what it trains.
std::string title_of(const fs::path& file) {
  std::string text = io::read_text(file, kMaxConfigBytes);
  text.resize(std::min(text.size(), text.find('\n')));
  return text.substr(std::min(text.size(), text.find_first_not_of("# ")));
}

}  // namespace

std::vector<fs::path> recipe_files() {
  std::map<std::string, fs::path> files;
  std::error_code unreadable;
  for (const fs::path& folder : recipe_folders())
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, unreadable))
      if (entry.path().extension() == ".toml")
        files.try_emplace(entry.path().stem().string(), entry.path());
  std::vector<fs::path> sorted;
  sorted.reserve(files.size());
  for (const auto& [name, file] : files) sorted.push_back(file);
  return sorted;
}

fs::path find_config(const fs::path& given) {
  std::error_code unknown;
  if (fs::exists(given, unknown) || given.has_parent_path()) return given;
  const std::string name = given.extension() == ".toml" ? given.stem().string() : given.string();
  for (const fs::path& file : recipe_files())
    if (file.stem() == name) return file;
  refuse_unknown(given.string());
}

bool only_validates(const fs::path& given) {
  const fs::path file = find_config(given);
  if (!file.stem().string().ends_with("-eval")) return false;
  return std::ranges::any_of(recipe_files(), [&](const fs::path& recipe) {
    std::error_code unknown;
    return fs::equivalent(recipe, file, unknown);
  });
}

std::string recipe_list() {
  const std::vector<fs::path> files = recipe_files();
  std::size_t width = 0;
  for (const std::string& name : names_of(files)) width = std::max(width, name.size());
  std::string text;
  for (const fs::path& file : files)
    text += fmt::format("{:<{}}  {}\n", file.stem().string(), width, title_of(file));
  return text;
}

}  // namespace millrace::cli
