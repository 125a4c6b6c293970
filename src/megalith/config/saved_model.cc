// A checkpoint of `pretrain` records the options of its run. With use_checkpoint_args the shape of the model and its
// tokenizer come from there, so that a resumed run need not repeat them; options that are given win.
#include "megalith/config/saved_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace megalith::config {

namespace {

constexpr std::array<std::string_view, 3> kTopics{"Model shape", "Positions and latent attention",
                                                  "Mixture of experts"};
// The tokenizer belongs to the model: its embeddings mean nothing with another one.
constexpr std::array<std::string_view, 8> kTokenizer{"tokenizer_type",
                                                     "tokenizer_model",
                                                     "vocab_file",
                                                     "merge_file",
                                                     "tiktoken_pattern",
                                                     "tiktoken_num_special_tokens",
                                                     "tiktoken_special_tokens",
                                                     "vocab_extra_ids"};

// By topic, so that a new option of the model's shape is included without being listed here.
bool describes_model(const Option& option) {
  return option.read &&
         (std::ranges::count(kTopics, option.topic) > 0 || std::ranges::count(kTokenizer, option.name) > 0);
}

}  // namespace

std::vector<std::string> take_model_of(const TrainingArguments& saved, const OptionReport& given,
                                       TrainingArguments& args) {
  std::vector<std::string> taken;
  for (const Option& option : OptionTable::instance().options()) {
    if (!describes_model(option) || std::ranges::find(given.uses, option.name, &OptionUse::name) != given.uses.end())
      continue;
    const Value value = option.read(saved);
    if (value == option.read(args)) continue;
    option.write(args, value);
    taken.push_back(fmt::format("{} {}", option.name, to_display(value)));
  }
  return taken;
}

}  // namespace megalith::config
