#!/usr/bin/env bash
# shape.sh FAMILY [VOCABULARY]: the config.json of a model of some 100,000 parameters: llama, qwen3 or qwen3_moe.
set -euo pipefail
family=${1:?shape.sh FAMILY [VOCABULARY]} vocabulary=${2:-512}
case $family in
  llama) architecture=LlamaForCausalLM own='"attention_bias": false, "mlp_bias": false' ;;
  qwen3) architecture=Qwen3ForCausalLM own='"attention_bias": false' ;;
  qwen3_moe)
    architecture=Qwen3MoeForCausalLM
    own='"attention_bias": false, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": []'
    ;;
  *) echo "shape.sh: family \"$family\"; it must be llama, qwen3 or qwen3_moe" >&2; exit 2 ;;
esac
cat <<JSON
{"architectures": ["$architecture"], "model_type": "$family", "vocab_size": $vocabulary, "hidden_size": 64, "intermediate_size": 128,
 "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 4096,
 "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false, "initializer_range": 0.02,
 "bos_token_id": null, "eos_token_id": 0, "torch_dtype": "float32", $own}
JSON
