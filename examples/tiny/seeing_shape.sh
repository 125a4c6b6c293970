#!/usr/bin/env bash
# seeing_shape.sh FOLDER: the shape of a Qwen3-VL of some 250,000 parameters, as a Hugging Face folder without weights:
# config.json, preprocessor_config.json and a tokenizer that knows the tokens of images. A folder that is there is kept.
set -euo pipefail
folder=${1:?seeing_shape.sh FOLDER}
if [ -e "$folder/preprocessor_config.json" ]; then
  echo "$folder is there already"
  exit
fi
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$here/stories.sh" >"$work/stories.jsonl"
megalith data train-tokenizer "$work/stories.jsonl" --vocab_size 512 --output "$folder" --special_tokens \
  '<|endoftext|>,<|im_start|>,<|im_end|>,<|vision_start|>,<|vision_end|>,<|image_pad|>,<|video_pad|>'
id() { printf '"%s"\n' "$1" | megalith tokenize --tokenizer "$folder" | tr -d '[]'; }
cat >"$folder/config.json" <<JSON
{"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "tie_word_embeddings": false, "dtype": "float32",
 "image_token_id": $(id '<|image_pad|>'), "video_token_id": $(id '<|video_pad|>'),
 "vision_start_token_id": $(id '<|vision_start|>'), "vision_end_token_id": $(id '<|vision_end|>'),
 "text_config": {"model_type": "qwen3_vl_text", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 4096, "rms_norm_eps": 1e-06,
  "hidden_act": "silu", "attention_bias": false, "initializer_range": 0.02,
  "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": true}},
 "vision_config": {"model_type": "qwen3_vl", "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "in_channels": 3,
  "patch_size": 8, "temporal_patch_size": 2, "spatial_merge_size": 2, "out_hidden_size": 64, "num_position_embeddings": 64,
  "deepstack_visual_indexes": [0], "hidden_act": "gelu_pytorch_tanh", "initializer_range": 0.02}}
JSON
cat >"$folder/preprocessor_config.json" <<JSON
{"patch_size": 8, "temporal_patch_size": 2, "merge_size": 2, "size": {"shortest_edge": 256, "longest_edge": 65536},
 "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "image_processor_type": "Qwen2VLImageProcessorFast"}
JSON
