// Verification is divided among ranks by chunk: chunk number c, counted over all files, belongs to rank c modulo the
// number of ranks, so even a single large file is read by all of them. Ranks exchange their findings as JSON lists of
// sentences, never by exceptions, which would leave the other ranks waiting.
#include "megalith/checkpoint/verify.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megalith/base/crc32c.h"
#include "megalith/base/error.h"
#include "megalith/base/task_progress.h"
#include "megalith/base/text.h"
#include "megalith/checkpoint/run_folder.h"
#include "megalith/io/json_text.h"
#include "megalith/io/mapped_file.h"

namespace megalith::checkpoint {

namespace {

namespace fs = std::filesystem;

// Lists of strings as JSON text, for exchange between ranks.
std::string to_text(const std::vector<std::string>& lines) { return io::Json(lines).dump(); }
std::vector<std::string> from_text(const std::string& text) {
  return io::Json::parse(text).get<std::vector<std::string>>();
}

// Returns a sentence if the file is missing or has the wrong size.
std::optional<std::string> size_problem(const fs::path& folder, const FileRecord& file) {
  std::error_code error;
  const fs::path path = folder / file.name;
  if (!fs::is_regular_file(path, error)) return fmt::format("{} is missing", path.string());
  const uint64_t bytes = fs::file_size(path, error);
  if (error) return fmt::format("{}: {}", path.string(), error.message());
  if (bytes == file.bytes) return std::nullopt;
  return fmt::format("{} has {} bytes; it was written with {}", path.string(), bytes, file.bytes);
}

// Checks chunks first, first + shares, first + 2 shares, … of a file.
void check_chunks(const fs::path& path, const FileRecord& file, uint64_t first, uint64_t shares,
                  std::vector<std::string>& problems, TaskProgress& progress) {
  if (first >= file.crc32c.size()) return;
  const io::MappedFile mapped(path);
  for (uint64_t chunk = first; chunk < file.crc32c.size(); chunk += shares) {
    const uint64_t begin = chunk * kChunkBytes, end = std::min(file.bytes, begin + kChunkBytes);
    const uint32_t computed = crc32c(mapped.text(begin, end - begin));
    progress.add(static_cast<int64_t>(end - begin));
    if (computed != file.crc32c[chunk])
      problems.push_back(fmt::format("{}: bytes {} to {} were changed: their checksum is {:08x}, it was {:08x}",
                                     path.string(), begin, end - 1, computed, file.crc32c[chunk]));
  }
}

// Returns the problems that this rank finds. Does not throw, since the other ranks wait for the result.
std::vector<std::string> problems_here(const fs::path& folder, uint64_t share, uint64_t shares) {
  try {
    return problems_of_content(folder, read_manifest(folder), share, shares);
  } catch (const std::exception& error) {
    return {error.what()};
  }
}

// YAML users write true, True or TRUE.
bool is_word(const std::string& wanted, const char* word) { return to_lower(wanted) == word; }

// Returns the checkpoints of a run, newest first.
std::vector<fs::path> candidates(const fs::path& run) {
  std::vector<fs::path> folders;
  for (const StepFolder& saved : list_checkpoints(run)) folders.insert(folders.begin(), saved.folder);
  return folders;
}

// The first eight: a lost disk would otherwise fill the screen.
std::string first_problems(const std::vector<std::string>& problems) { return list_in_words(problems, 8); }

}  // namespace

std::vector<std::string> problems_of_sizes(const fs::path& folder, const Manifest& manifest) {
  std::vector<std::string> problems;
  for (const FileRecord& file : manifest.files)
    if (auto problem = size_problem(folder, file)) problems.push_back(std::move(*problem));
  return problems;
}

std::vector<std::string> problems_of_content(const fs::path& folder, const Manifest& manifest, uint64_t share,
                                             uint64_t shares) {
  std::vector<std::string> problems;
  TaskProgress progress("checking " + folder.filename().string(), TaskProgress::Unit::kBytes,
                        static_cast<int64_t>(manifest.total_bytes() / shares), "", share == 0);
  uint64_t before = 0;  // chunks of all previous files
  for (const FileRecord& file : manifest.files) {
    const uint64_t first = (share + shares - before % shares) % shares;  // (before + first) % shares == share
    before += file.crc32c.size();
    if (auto problem = size_problem(folder, file))
      problems.push_back(std::move(*problem));
    else
      check_chunks(folder / file.name, file, first, shares, problems, progress);
  }
  return problems;
}

// Every rank finds the problems of sizes and manifest, so duplicates are removed.
std::vector<std::string> verify(const fs::path& folder, const parallel::ParallelContext& context) {
  const comm::Group everyone = context.world().world();
  const auto own_problems =
      problems_here(folder, static_cast<uint64_t>(everyone.rank()), static_cast<uint64_t>(everyone.size()));
  std::vector<std::string> all;
  for (const std::string& text : everyone.all_gather_bytes(to_text(own_problems), "checkpoint: verify"))
    for (std::string& problem : from_text(text))
      if (std::ranges::find(all, problem) == all.end()) all.push_back(std::move(problem));
  return all;
}

// "auto" ignores the tracker: it may name a folder that is gone, and choose_checkpoint verifies candidates anyway.
std::optional<fs::path> find_checkpoint(const std::string& wanted, const fs::path& run) {
  if (is_word(wanted, "false") || wanted.empty()) return std::nullopt;
  if (is_word(wanted, "auto")) {
    const std::vector<fs::path> all = candidates(run);
    return all.empty() ? std::nullopt : std::optional(all.front());
  }
  if (is_word(wanted, "true") || is_word(wanted, "latest")) {
    const auto newest = latest_checkpoint(run);
    check<ConfigError>(newest.has_value(),
                       "resume_from_checkpoint is {}, and {} holds no checkpoint. Give a checkpoint's folder, or auto"
                       " to start from the beginning if there is none",
                       wanted, run.string());
    return newest;
  }
  const fs::path folder = wanted;
  check<ConfigError>(fs::is_directory(folder),
                     "resume_from_checkpoint is {}, which is not a folder; give a checkpoint's folder, true, latest or"
                     " auto",
                     wanted);
  if (has_manifest(folder)) return folder;
  if (const auto inside = latest_checkpoint(folder)) return inside;
  read_manifest(folder);  // throws with the reason
  return folder;
}

// Rank 0 makes the list of candidates, newest first; all ranks verify each in turn until one is whole.
ResumeChoice choose_checkpoint(const std::string& wanted, const fs::path& run,
                               const parallel::ParallelContext& context) {
  // One rank lists the folders, so that all see the same ones even while files come and go.
  std::string chosen;
  const comm::Group everyone = context.world().world();
  const bool automatic = is_word(wanted, "auto");
  if (everyone.rank() == 0) {
    std::vector<std::string> folders;
    try {
      if (automatic)
        for (const fs::path& folder : candidates(run)) folders.push_back(folder.string());
      else if (const auto folder = find_checkpoint(wanted, run))
        folders.push_back(folder->string());
      chosen = to_text(folders);
    } catch (const std::exception& error) {
      chosen = error.what();  // told apart from a list, which begins with '['
    }
  }
  chosen = everyone.broadcast_bytes(chosen, 0, "checkpoint: choose");
  check<DataError>(chosen.starts_with('['), "{}", chosen);
  ResumeChoice choice;
  for (const std::string& folder : from_text(chosen)) {
    const std::vector<std::string> problems = verify(folder, context);
    if (problems.empty()) {
      choice.folder = folder;
      return choice;
    }
    const std::string sentence = fmt::format("{} is broken: {}", folder, first_problems(problems));
    check<DataError>(automatic, "{}. Set resume_from_checkpoint to auto to use the newest checkpoint that is whole",
                     sentence);
    choice.skipped.push_back(sentence);
  }
  return choice;
}

}  // namespace megalith::checkpoint
