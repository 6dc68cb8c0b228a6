// SPDX-License-Identifier: Apache-2.0
#include "run/recipes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <system_error>
#include <variant>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "millrace_places.hpp"
#include "recipe_texts.hpp"
#include "run/complete.hpp"
#include "run/patch.hpp"

namespace millrace::run {
namespace {

namespace fs = std::filesystem;

/// In the order in which they are searched.
std::vector<fs::path> recipe_folders() {
  std::error_code unknown;
  const fs::path program = fs::read_symlink("/proc/self/exe", unknown).parent_path();
  std::vector<fs::path> folders;
  for (const fs::path& folder : {fs::path("configs"), program / kRecipesFromProgram,
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
  if (known.empty())
    for (const auto& [name, text] : kRecipeTexts) known.emplace_back(name);
  std::vector<std::string> meant = known;
  std::erase_if(meant, [&](const std::string& name) {
    return !has_words(name, split_list(to_lower(given), '-'));
  });
  if (const std::string nearest = nearest_match(given, known); meant.empty() && !nearest.empty())
    meant = {nearest};
  fail(ErrorKind::Usage, "`config`: there is no file and no recipe '{}'; {}{}", given,
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

/// Images of a weight update, if the options tell.
std::optional<double> total_batch(const Patch& options) {
  const std::optional<std::int64_t> images = options.integer("batch-size");
  if (!images) return std::nullopt;
  return static_cast<double>(*images) * static_cast<double>(micro_batches_of(options)) *
         static_cast<double>(options.integer("replicas").value_or(1));
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

Patch read_recipe(const fs::path& given) {
  for (const auto& [name, text] : kRecipeTexts)
    if (given == name) return parse_config(std::string(text), fmt::format("{}.toml", name));
  return read_config_file(find_config(given));
}

bool only_validates(const fs::path& given) {
  const fs::path file = find_config(given);
  if (!file.stem().string().ends_with("-eval")) return false;
  return std::ranges::any_of(recipe_files(), [&](const fs::path& recipe) {
    std::error_code unknown;
    return fs::equivalent(recipe, file, unknown);
  });
}

std::vector<std::string> rates_of_other_batch(const Patch& options) {
  std::vector<std::string> lines;
  const std::optional<std::string> config = options.text("config");
  // The rates of LARS do not follow the batch in proportion.
  if (!config || options.text("optimiser") == "LARS") return lines;
  const Patch file = read_config_file(find_config(*config));
  const std::optional<double> before = total_batch(file);
  const std::optional<double> now = total_batch(options);
  if (!before || !now || *before == *now) return lines;
  for (const char* name : {"abs-learning-rate", "poly-lr-initial-lr"}) {
    const Setting* const rate = options.find(name);
    const Setting* const recorded = file.find(name);
    if (rate == nullptr || recorded == nullptr || rate->where != recorded->where) continue;
    const double value = std::get<double>(rate->value);
    lines.push_back(
        fmt::format("{} {} is for a total batch of {} and stays as it is; in "
                    "proportion to that of {} it would be `{}` {:.6g}",
                    rate->where, value, *before, *now, name, value * *now / *before));
  }
  return lines;
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

}  // namespace millrace::run
