// The adapters of a run: those merged into the weights, the one that is trained, and the shape of a fresh one.
#include "megalith/run/resolve/adapter_source.h"

#include <algorithm>

#include "megalith/model/families/scores.h"
#include "megalith/peft/adapter_folder.h"

namespace megalith::run {

model::AdapterSource adapter_source(const config::TrainingArguments& args,
                                    const std::optional<std::filesystem::path>& checkpoint) {
  model::AdapterSource source;
  for (const std::string& path : args.lora.adapter_name_or_path)
    source.merged.push_back(peft::find_adapter(path, args.lora.adapter_folder.value_or("")));
  // The last adapter is trained further unless a new one is wanted; all before it are merged into the weights.
  if (!source.merged.empty() && !args.lora.create_new_adapter) {
    source.trained = source.merged.back();
    source.merged.pop_back();
  }
  // A resumed run continues with its own adapter, whatever it started from.
  if (checkpoint) source.trained = *checkpoint;
  source.fresh = new_adapter(args);
  source.base_name = args.source.model_name_or_path.value_or("");
  source.fresh_base = args.source.train_from_scratch;
  return source;
}

peft::AdapterConfig new_adapter(const config::TrainingArguments& args) {
  const config::LoraConfig& lora = args.lora;
  peft::AdapterConfig adapter;
  adapter.rank = lora.rank;
  adapter.alpha = lora.alpha.value_or(0) == 0 ? 2 * lora.rank : *lora.alpha;
  adapter.dropout = lora.dropout;
  adapter.use_rslora = lora.use_rslora;
  adapter.use_dora = lora.use_dora;
  if (lora.pissa_init) adapter.pissa = peft::PrincipalStart{lora.pissa_iter};
  adapter.target_modules = lora.target;
  for (const std::string& module : lora.additional_target)
    if (module == "bias")
      adapter.biases = peft::TrainedBiases::kAll;
    else
      adapter.modules_to_save.push_back(module);
  // peft does the same for its task type SEQ_CLS: a new head has to be trained and written as a whole.
  adapter.scores_sequences = config::scores_sequences(args.run.stage);
  auto& saved = adapter.modules_to_save;
  if (adapter.scores_sequences && std::ranges::find(saved, model::kScoreModule) == saved.end())
    saved.emplace_back(model::kScoreModule);
  return adapter;
}

}  // namespace megalith::run
