// Options of data: LLaMA-Factory's datasets, Megatron's indexed files, and the tokenizer.
//
// The two dialects read different kinds of data and share no option: `train` tokenizes records (JSON or text)
// at the start, `pretrain` maps files of tokens that were prepared before.
#include "megalith/config/option_list_internal.h"

namespace megalith::config {
namespace {

// The order of samples, and the loader's processes of the references, which Megalith does not have.
void add_sampler(OptionList& list) {
  auto sampler = list.part(&TrainingArguments::sampler);
  sampler.add("train_sampling_strategy", &SamplerConfig::train_sampling_strategy, "order of the samples of an epoch")
      .refuse({"batch_rebalance"}, "use packing or sequence_packing to avoid padding")
      .train_only();
  sampler.add("disable_shuffling", &SamplerConfig::disable_shuffling, "the same as train_sampling_strategy sequential")
      .train_only();
  sampler
      .add("group_by_length", &SamplerConfig::group_by_length,
           "the same as train_sampling_strategy group_by_length: samples of similar length in a micro-batch")
      .train_only();
  sampler.add("ignore_data_skip", &SamplerConfig::ignore_data_skip, "resume from the start of the epoch's data")
      .train_only();
  sampler.add("dataloader_type", &SamplerConfig::dataloader_type, "single: in order; cyclic: a permutation per epoch")
      .refuse({"external"}, "a program's own loader cannot be given to the binary")
      .pretrain_only();
  sampler.add("dataloader_num_workers", &SamplerConfig::dataloader_num_workers, "loader processes of the reference")
      .alias({"num_workers"})
      .at_least(0)
      .pretrain_default(2)
      .no_effect("batches are prepared by threads of the rank");
  sampler
      .add("dataloader_prefetch_factor", &SamplerConfig::dataloader_prefetch_factor, "batches a loader process holds")
      .at_least(1)
      .no_effect("batches are prepared by threads of the rank")
      .train_only();
}

}  // namespace

void add_data_options(OptionList& list) {
  list.topic("Data");
  auto data = list.part(&TrainingArguments::data);
  // Sources: names that dataset_info.json describes, or paths of files.
  data.add("dataset", &DataConfig::dataset, "names in dataset_info.json, or paths").commas().train_only();
  data.add("eval_dataset", &DataConfig::eval_dataset, "evaluation data, named like dataset").commas().train_only();
  data.add("dataset_dir", &DataConfig::dataset_dir, "folder of dataset_info.json").train_only();
  // From a record to a row of tokens: the template writes the conversation, the cutoff shortens it, and masks decide
  // which tokens count in the loss.
  data.add("template", &DataConfig::template_name, "chat template by name (none, or tokenizer: the tokenizer's own)")
      .train_only();
  data.add("cutoff_len", &DataConfig::cutoff_len, "tokens of a sample").at_least(1).train_only();
  data.add("train_on_prompt", &DataConfig::train_on_prompt, "loss on prompts too; sft only").train_only();
  data.add("mask_history", &DataConfig::mask_history, "loss on the last turn only; sft only").train_only();
  // Mixing and splitting. A stream has no known length, so validate() demands max_steps with it.
  data.add("streaming", &DataConfig::streaming, "read the data as training goes; needs max_steps").train_only();
  data.add("buffer_size", &DataConfig::buffer_size, "records shuffled at a time when streaming")
      .at_least(1)
      .train_only();
  data.add("mix_strategy", &DataConfig::mix_strategy, "how several datasets are joined").train_only();
  data.add("interleave_probs", &DataConfig::interleave_probs, "probability of each dataset when interleaving")
      .commas()
      .train_only();
  data.add("val_size", &DataConfig::val_size, "records (1 or more) or fraction held out for evaluation")
      .at_least(0)
      .train_only();
  data.add("eval_on_each_dataset", &DataConfig::eval_on_each_dataset, "one set of metrics per dataset").train_only();
  data.add("max_samples", &DataConfig::max_samples, "records kept of each dataset").at_least(1).train_only();
  // Three names for rows of several samples, from weak to strict: packing lets samples see each other, neat_packing
  // and sequence_packing do not.
  data.add("packing", &DataConfig::packing, "several samples per row (none: on for pt)").train_only();
  data.add("neat_packing", &DataConfig::neat_packing, "packing without attention between samples; sft only")
      .train_only();
  data.add("sequence_packing", &DataConfig::sequence_packing, "the adapter's name for neat packing").train_only();
  // The work of tokenizing: results depend on the batch size (packing looks no further) but never on the threads.
  data.add("tokenized_path", &DataConfig::tokenized_path, "load tokens from here, or save them here").train_only();
  data.add("preprocessing_batch_size", &DataConfig::preprocessing_batch_size,
           "records tokenized at a time; packing horizon")
      .at_least(1)
      .train_only();
  data.add("preprocessing_num_workers", &DataConfig::preprocessing_num_workers, "threads; results do not depend on it")
      .at_least(1)
      .train_only();
  data.add("default_system", &DataConfig::default_system, "system message in place of the template's").train_only();
  data.add("enable_thinking", &DataConfig::enable_thinking, "reasoning templates: train with thoughts").train_only();
  data.add("preserve_thinking", &DataConfig::preserve_thinking, "keep thoughts of earlier turns").train_only();
  add_sampler(list);
  list.no_effect("tool_format", opt_text(), "tools are written as the template does")
      .choices({"qwen"})
      .refuse_others("only the template's own tool format and qwen are known");
  list.no_effect("ignore_pad_token_for_loss", flag(true), "padding never counts in the loss")
      .refuse({"false"}, "padding never counts in the loss");
}

void add_indexed_data_options(OptionList& list) {
  list.topic("Indexed data and tokenizer");
  auto indexed = list.part(&TrainingArguments::indexed);
  // Exactly one of the sources is given (validate_run.cc): mixed or per split, in words or in a file.
  indexed.add("data_path", &IndexedDataConfig::data_path, "prefixes of .bin/.idx files, with or without weights")
      .pretrain_only();
  indexed.add("train_data_path", &IndexedDataConfig::train_data_path, "like data_path, for training only")
      .pretrain_only();
  indexed.add("valid_data_path", &IndexedDataConfig::valid_data_path, "like data_path, for evaluation only")
      .pretrain_only();
  indexed.add("test_data_path", &IndexedDataConfig::test_data_path, "like data_path, for the test only")
      .pretrain_only();
  indexed.add("data_args_path", &IndexedDataConfig::data_args_path, "file with the words of data_path").pretrain_only();
  indexed
      .add("per_split_data_args_path", &IndexedDataConfig::per_split_data_args_path, "JSON file with the three lists")
      .pretrain_only();
  indexed.add("split", &IndexedDataConfig::split, "parts for training, evaluation, test (none: 969, 30, 1)")
      .pretrain_only();
  indexed.add("mock_data", &IndexedDataConfig::mock_data, "random tokens").pretrain_only();
  indexed
      .add("data_cache_path", &IndexedDataConfig::data_cache_path, "folder of sample indices (none: beside the data)")
      .pretrain_only();
  // Documents are joined by end-of-document tokens. By default attention, positions and loss cross them.
  indexed.add("eod_mask_loss", &IndexedDataConfig::eod_mask_loss, "no loss on end-of-document tokens").pretrain_only();
  indexed
      .add("reset_position_ids", &IndexedDataConfig::reset_position_ids,
           "positions restart after end-of-document tokens")
      .pretrain_only();
  indexed
      .add("reset_attention_mask", &IndexedDataConfig::reset_attention_mask,
           "no attention across end-of-document tokens")
      .pretrain_only();

  auto tokenizer = list.part(&TrainingArguments::tokenizer);
  tokenizer.add("tokenizer_type", &TokenizerConfig::type, "Megatron's name of a tokenizer class").pretrain_only();
  tokenizer.add("tokenizer_model", &TokenizerConfig::model, "file or folder of the tokenizer").pretrain_only();
  tokenizer.add("vocab_file", &TokenizerConfig::vocab_file, "GPT-2 vocabulary").pretrain_only();
  tokenizer.add("merge_file", &TokenizerConfig::merge_file, "GPT-2 merges").pretrain_only();
  tokenizer
      .add("tiktoken_pattern", &TokenizerConfig::tiktoken_pattern,
           "how TikTokenizer cuts text into words, as Megatron names the patterns (none: v2)")
      .choices({"v1", "v2"})
      .pretrain_only();
  tokenizer
      .add("tiktoken_num_special_tokens", &TokenizerConfig::tiktoken_num_special_tokens,
           "ids before the vocabulary of TikTokenizer")
      .at_least(7)
      .pretrain_only();
  tokenizer
      .add("tiktoken_special_tokens", &TokenizerConfig::tiktoken_special_tokens,
           "the first of them by name (none: Megatron's seven, <unk> to <sep>)")
      .alias({"tokenizer_special_tokens"})
      .pretrain_only();
  tokenizer
      .add("vocab_extra_ids", &TokenizerConfig::vocab_extra_ids, "ids that the model has beyond those of the tokenizer")
      .at_least(0)
      .pretrain_only();
}

}  // namespace megalith::config
