#include "megalith/train/saving/key_check.h"

#include <fmt/format.h>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/text.h"

namespace megalith::train {

namespace {

constexpr size_t kNamedKeys = 8;

// Returns "2 tensors".
std::string tensors(const std::vector<std::string>& names) {
  return fmt::format("{} tensor{}", names.size(), names.size() == 1 ? "" : "s");
}

}  // namespace

// One error tells both kinds, because together they show what has changed: a renamed tensor is in each.
void apply_key_actions(const model::KeyDifference& keys, const KeyActions& actions, std::string_view part,
                       const std::filesystem::path& folder, bool logs) {
  std::string errors;
  const auto act = [&](const std::vector<std::string>& names, KeyAction action, const std::string& sentence) {
    if (names.empty() || action == KeyAction::kIgnore) return;
    const std::string text =
        fmt::format("the checkpoint {} {}: {}", folder.string(), sentence, list_in_words(names, kNamedKeys));
    if (action == KeyAction::kFail) errors += (errors.empty() ? "" : "; ") + text;
    if (action == KeyAction::kWarn && logs) log_warning("{}", text);
  };
  act(keys.absent, actions.absent, fmt::format("lacks {} of this run's {}", tensors(keys.absent), part));
  act(keys.unread, actions.unread, fmt::format("holds {} beyond this run's {}", tensors(keys.unread), part));
  check<DataError>(errors.empty(),
                   "{}. Describe the model that was saved, or set dist_ckpt_strictness log_all, which loads what both"
                   " have",
                   errors);
}

}  // namespace megalith::train
