#!/usr/bin/env bash
# train_gpt.sh DATA_PREFIX TOKENIZER OUT [more options]: a launch script as Megatron-LM's users write them. What is different: the last lines, where
# `torchrun … pretrain_gpt.py` stood.
set -euo pipefail
data=$1 tokenizer=$2 out=$3
shift 3

GPT_MODEL_ARGS=(
  --num-layers 2
  --hidden-size 64
  --ffn-hidden-size 192
  --num-attention-heads 4
  --group-query-attention
  --num-query-groups 2
  --seq-length 128
  --max-position-embeddings 128
  --position-embedding-type rope
  --normalization RMSNorm
  --swiglu
  --disable-bias-linear
  --untie-embeddings-and-output-weights
  --attention-dropout 0.0
  --hidden-dropout 0.0
)
TRAINING_ARGS=(
  --micro-batch-size 4
  --global-batch-size 8
  --train-iters 40
  --weight-decay 0.1
  --adam-beta1 0.9
  --adam-beta2 0.95
  --init-method-std 0.02
  --clip-grad 1.0
  --lr 5.0e-3
  --lr-decay-style cosine
  --min-lr 5.0e-4
  --lr-warmup-fraction .1
)
MODEL_PARALLEL_ARGS=(
  --tensor-model-parallel-size 2
  --pipeline-model-parallel-size 1
  --sequence-parallel
  --use-distributed-optimizer
)
DATA_ARGS=(
  --data-path "$data"
  --tokenizer-type HuggingFaceTokenizer
  --tokenizer-model "$tokenizer"
  --split 900,60,40
)
EVAL_AND_LOGGING_ARGS=(
  --log-interval 10
  --save-interval 20
  --eval-interval 20
  --eval-iters 2
  --save "$out"
  --load "$out"
  --tensorboard-dir "$out/tensorboard"
)

# torchrun --nproc_per_node 2 pretrain_gpt.py \
megalith pretrain --nproc 2 \
  "${GPT_MODEL_ARGS[@]}" "${TRAINING_ARGS[@]}" "${MODEL_PARALLEL_ARGS[@]}" "${DATA_ARGS[@]}" "${EVAL_AND_LOGGING_ARGS[@]}" "$@"
