#!/usr/bin/env bash
# run_sft_train.sh MODEL OUT [more options]: the options of ROLL's mcore_adapter script of that name, as they stand there. What is
# different: the line that starts the ranks.
set -euo pipefail
model=$1 out=$2
shift 2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

megalith train --nproc "${NPROC:-8}" \
  --do_train \
  --stage=sft \
  --finetuning_type=full \
  --dataset_dir="$here/../tiny/data" \
  --dataset=capitals \
  --preprocessing_num_workers=8 \
  --cutoff_len=8192 \
  --template=qwen3 \
  --model_name_or_path="$model" \
  --output_dir="$out" \
  --per_device_train_batch_size=1 \
  --gradient_accumulation_steps=4 \
  --calculate_per_token_loss=True \
  --max_steps=100 \
  --learning_rate=2e-5 \
  --logging_steps=1 \
  --save_steps=50 \
  --lr_scheduler_type=cosine \
  --bf16 \
  --tensor_model_parallel_size 2 \
  --sequence_parallel \
  --pipeline_model_parallel_size 1 \
  --use_distributed_optimizer \
  --bias_activation_fusion \
  --apply_rope_fusion \
  --overlap_param_gather \
  --overlap_grad_reduce \
  --use_mca "$@"
