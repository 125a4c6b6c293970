# Generated from the option table in src/megalith/config; do not edit. `make docs` writes it again.
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal

class TrainingArguments:
    """The options of a run, by the names of docs/options.md. An option that is not given has its default."""

    def __init__(
        self,
        *,
        stage: Literal["pt", "sft", "dpo", "kto", "rm", "cls"] = ...,
        finetuning_type: Literal["lora", "freeze", "full"] = ...,
        do_train: bool = ...,
        do_eval: bool = ...,
        skip_train: bool = ...,
        num_train_epochs: float = ...,
        max_steps: int = ...,
        train_iters: int = ...,
        train_samples: int | None = ...,
        iterations_to_skip: Sequence[int] = ...,
        exit_interval: int | None = ...,
        exit_duration_in_mins: int | None = ...,
        exit_signal_handler: bool = ...,
        early_stopping_steps: int | None = ...,
        use_mca: bool = ...,
        do_predict: bool = ...,
        predict_with_generate: bool = ...,
        generation_max_length: int | None = ...,
        generation_num_beams: int | None = ...,
        generation_config: str | None = ...,
        sortish_sampler: bool = ...,
        eval_num_beams: int | None = ...,
        do_sample: bool = ...,
        temperature: float = ...,
        top_p: float = ...,
        top_k: int = ...,
        num_beams: int = ...,
        max_length: int = ...,
        max_new_tokens: int = ...,
        repetition_penalty: float = ...,
        length_penalty: float = ...,
        skip_special_tokens: bool = ...,
        auto_find_batch_size: bool = ...,
        torch_compile: bool = ...,
        torch_compile_backend: str | None = ...,
        torch_compile_mode: str | None = ...,
        enable_jit_checkpoint: bool = ...,
        tensor_model_parallel_size: int | None = ...,
        tp: int | None = ...,
        model_parallel_size: int | None = ...,
        pipeline_model_parallel_size: int | None = ...,
        pp: int | None = ...,
        context_parallel_size: int | None = ...,
        cp: int | None = ...,
        expert_model_parallel_size: int | None = ...,
        ep: int | None = ...,
        expert_tensor_parallel_size: int | None = ...,
        etp: int | None = ...,
        sequence_parallel: bool = ...,
        num_distributed_optimizer_instances: int = ...,
        use_tp_pp_dp_mapping: bool = ...,
        hierarchical_context_parallel_sizes: Sequence[int] = ...,
        cp_comm_type: Sequence[Literal["p2p", "a2a", "all_gather", "allgather", "a2a+p2p"]] = ...,
        tp_comm_overlap: bool = ...,
        tp_comm_overlap_slices: int | None = ...,
        virtual_pipeline_model_parallel_size: int | None = ...,
        vpp: int | None = ...,
        num_virtual_stages_per_pipeline_rank: int | None = ...,
        num_layers_per_virtual_pipeline_stage: int | None = ...,
        pipeline_model_parallel_layout: str | None = ...,
        decoder_first_pipeline_num_layers: int | None = ...,
        decoder_last_pipeline_num_layers: int | None = ...,
        account_for_embedding_in_pipeline_split: bool | None = ...,
        account_for_loss_in_pipeline_split: bool | None = ...,
        pipeline_schedule: Literal["1f1b", "interleaved", "zero_bubble"] | None = ...,
        microbatch_group_size_per_virtual_pipeline_stage: int | None = ...,
        microbatch_group_size_per_vp_stage: int | None = ...,
        overlap_p2p_comm: bool = ...,
        overlap_p2p_communication: bool = ...,
        overlap_p2p_communication_warmup_flush: bool = ...,
        variable_seq_lengths: bool = ...,
        defer_embedding_wgrad_compute: bool = ...,
        wgrad_deferral_limit: int = ...,
        ddp_backend: Literal["nccl", "gloo"] | None = ...,
        distributed_backend: Literal["nccl", "gloo"] | None = ...,
        ddp_timeout: int = ...,
        distributed_timeout_minutes: int | None = ...,
        distributed_timeout_seconds_after_init: int | None = ...,
        store_connect_timeout: int | None = ...,
        use_cpu: bool = ...,
        no_cuda: bool = ...,
        use_gloo_process_groups: bool = ...,
        enable_gloo_process_groups: bool = ...,
        ddp_find_unused_parameters: bool | None = ...,
        ddp_bucket_cap_mb: int | None = ...,
        ddp_broadcast_buffers: bool | None = ...,
        ddp_static_graph: bool | None = ...,
        local_rank: int = ...,
        nccl_communicator_config_path: str | None = ...,
        high_priority_stream_groups: Sequence[str] | None = ...,
        use_sharp: bool = ...,
        use_nccl_ub: bool = ...,
        scatter_gather_tensors_in_pipeline: bool = ...,
        async_tensor_model_parallel_allreduce: bool = ...,
        tp_comm_overlap_cfg: str | None = ...,
        disable_tp_comm_overlap_ag: bool = ...,
        disable_tp_comm_overlap_rs: bool = ...,
        tp_comm_overlap_rs_dgrad: bool = ...,
        disable_tp_comm_bulk_dgrad: bool = ...,
        disable_tp_comm_bulk_wgrad: bool = ...,
        tp_comm_bootstrap_backend: str = ...,
        per_device_train_batch_size: int | None = ...,
        micro_batch_size: int | None = ...,
        per_gpu_train_batch_size: int | None = ...,
        gradient_accumulation_steps: int = ...,
        global_batch_size: int | None = ...,
        rampup_batch_size: Sequence[int] = ...,
        step_batch_size_schedule: str | None = ...,
        decrease_batch_size_if_needed: bool = ...,
        per_device_eval_batch_size: int | None = ...,
        eval_micro_batch_size: int | None = ...,
        per_gpu_eval_batch_size: int | None = ...,
        eval_global_batch_size: int | None = ...,
        seed: int = ...,
        data_seed: int | None = ...,
        data_parallel_random_init: bool = ...,
        full_determinism: bool = ...,
        deterministic_mode: bool = ...,
        model_name_or_path: str | None = ...,
        train_from_scratch: bool = ...,
        additional_configs: Mapping[str, Any] | str = ...,
        split_special_tokens: bool = ...,
        resize_vocab: bool = ...,
        add_tokens: str | Sequence[str] = ...,
        add_special_tokens: str | Sequence[str] = ...,
        transformer_impl: Literal["local", "transformer_engine"] | None = ...,
        cache_dir: str | None = ...,
        model_revision: str = ...,
        hf_hub_token: str | None = ...,
        ms_hub_token: str | None = ...,
        om_hub_token: str | None = ...,
        use_fast_tokenizer: bool = ...,
        trust_remote_code: bool = ...,
        print_param_status: bool = ...,
        use_v1_kernels: bool | None = ...,
        use_kv_cache: bool = ...,
        use_cache: bool = ...,
        infer_backend: str = ...,
        infer_dtype: str = ...,
        vllm_maxlen: int = ...,
        vllm_gpu_util: float = ...,
        vllm_enforce_eager: bool = ...,
        vllm_max_lora_rank: int = ...,
        vllm_config: Mapping[str, Any] | str | None = ...,
        sglang_maxlen: int = ...,
        sglang_mem_fraction: float = ...,
        sglang_tp_size: int = ...,
        sglang_config: Mapping[str, Any] | str | None = ...,
        sglang_lora_backend: str = ...,
        export_dir: str | None = ...,
        export_size: int = ...,
        export_device: str = ...,
        export_quantization_bit: int | None = ...,
        export_quantization_dataset: str | None = ...,
        export_quantization_nsamples: int = ...,
        export_quantization_maxlen: int = ...,
        export_legacy_format: bool = ...,
        export_hub_model_id: str | None = ...,
        image_do_pan_and_scan: bool = ...,
        crop_to_patches: bool = ...,
        audio_sampling_rate: int = ...,
        new_special_tokens_config: str | None = ...,
        init_special_tokens: str = ...,
        quantization_method: str = ...,
        quantization_device_map: str | None = ...,
        ref_model_quantization_bit: int | None = ...,
        reward_model_quantization_bit: int | None = ...,
        rope_scaling: str | None = ...,
        use_unsloth: bool = ...,
        shift_attn: bool = ...,
        mixture_of_depths: str | None = ...,
        use_kt: bool = ...,
        use_kt_optimize_rule: bool = ...,
        kt_optimize_rule: str | None = ...,
        kt_cpu_activation: str | None = ...,
        kt_weight_path: str | None = ...,
        kt_non_expert_weight_path: str | None = ...,
        kt_expert_checkpoint_path: str | None = ...,
        kt_use_lora_experts: bool | None = ...,
        kt_lora_expert_num: int | None = ...,
        kt_lora_expert_intermediate_size: int | None = ...,
        num_layers: int | None = ...,
        hidden_size: int | None = ...,
        ffn_hidden_size: int | None = ...,
        num_attention_heads: int | None = ...,
        group_query_attention: bool = ...,
        num_query_groups: int | None = ...,
        kv_channels: int | None = ...,
        seq_length: int | None = ...,
        encoder_seq_length: int | None = ...,
        max_position_embeddings: int | None = ...,
        vocab_size: int | None = ...,
        padded_vocab_size: int | None = ...,
        make_vocab_size_divisible_by: int = ...,
        untie_embeddings_and_output_weights: bool | None = ...,
        mtp_num_layers: int | None = ...,
        mtp_loss_scaling_factor: float = ...,
        normalization: Literal["LayerNorm", "RMSNorm"] | None = ...,
        layernorm_epsilon: float | None = ...,
        norm_epsilon: float | None = ...,
        swiglu: bool | None = ...,
        squared_relu: bool | None = ...,
        quick_geglu: bool | None = ...,
        add_bias_linear: bool | None = ...,
        add_qkv_bias: bool | None = ...,
        qk_layernorm: bool | None = ...,
        apply_layernorm_1p: bool | None = ...,
        apply_query_key_layer_scaling: bool | None = ...,
        attention_softmax_in_fp32: bool | None = ...,
        hidden_dropout: float | None = ...,
        attention_dropout: float | None = ...,
        init_method_std: float | None = ...,
        attention_output_gate: bool | None = ...,
        window_size: str | None = ...,
        window_attn_skip_freq: str | None = ...,
        position_embedding_type: Literal["learned_absolute", "rope", "yarn", "none"] | bool | None = ...,
        use_rotary_position_embeddings: Literal["learned_absolute", "rope", "yarn", "none"] | bool | None = ...,
        rotary_base: float | None = ...,
        rotary_percent: float | None = ...,
        rotary_interleaved: bool | None = ...,
        rotary_seq_len_interpolation_factor: int | None = ...,
        use_rope_scaling: bool | None = ...,
        rope_scaling_factor: float | None = ...,
        rope_type: Literal["rope", "yarn"] | None = ...,
        rotary_scaling_factor: float | None = ...,
        original_max_position_embeddings: int | None = ...,
        beta_fast: float | None = ...,
        beta_slow: float | None = ...,
        mscale: float | None = ...,
        mscale_all_dim: float | None = ...,
        add_position_embedding: bool = ...,
        multi_latent_attention: bool = ...,
        q_lora_rank: int | None = ...,
        kv_lora_rank: int | None = ...,
        qk_head_dim: int | None = ...,
        qk_pos_emb_head_dim: int | None = ...,
        v_head_dim: int | None = ...,
        num_experts: int | None = ...,
        moe_layer_freq: str | None = ...,
        moe_ffn_hidden_size: int | None = ...,
        moe_shared_expert_intermediate_size: int | None = ...,
        moe_shared_expert_gate: bool | None = ...,
        moe_shared_expert_overlap: bool = ...,
        overlap_moe_expert_parallel_comm: bool = ...,
        moe_token_dispatcher_type: Literal["allgather", "alltoall"] = ...,
        moe_grouped_gemm: bool | None = ...,
        moe_expert_capacity_factor: float | None = ...,
        moe_pad_expert_input_to_capacity: bool | None = ...,
        moe_token_drop_policy: Literal["probs", "position"] | None = ...,
        moe_enable_routing_replay: bool = ...,
        moe_per_layer_logging: bool = ...,
        moe_router_topk: int | None = ...,
        moe_router_load_balancing_type: Sequence[Literal["aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none"]] = ...,
        moe_aux_loss_coeff: Sequence[float] = ...,
        moe_aux_loss_coef: Sequence[float] = ...,
        moe_z_loss_coeff: float | None = ...,
        moe_router_score_function: Literal["softmax", "sigmoid"] | None = ...,
        moe_router_dtype: Literal["fp32", "fp64"] | None = ...,
        moe_router_pre_softmax: bool | None = ...,
        moe_router_num_groups: int | None = ...,
        moe_router_group_topk: int | None = ...,
        moe_router_topk_scaling_factor: float | None = ...,
        moe_router_enable_expert_bias: bool | None = ...,
        moe_router_bias_update_rate: float | None = ...,
        moe_input_jitter_eps: float | None = ...,
        moe_permute_fusion: bool = ...,
        moe_router_fusion: bool = ...,
        moe_use_legacy_grouped_gemm: bool = ...,
        moe_router_padding_for_fp8: bool = ...,
        moe_enable_deepep: bool = ...,
        moe_flex_dispatcher_backend: str | None = ...,
        moe_use_upcycling: bool = ...,
        moe_upcycling_granularity: int = ...,
        recompute_granularity: Literal["full", "selective"] | None = ...,
        recompute_method: Literal["uniform", "block"] | None = ...,
        recompute_num_layers: int | None = ...,
        recompute_modules: str | Sequence[Literal["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "mlp_act", "moe", "shared_experts"]] = ...,
        moe_layer_recompute: bool = ...,
        gradient_checkpointing: bool = ...,
        recompute_activations: bool = ...,
        distribute_saved_activations: bool = ...,
        cpu_offloading: bool = ...,
        cpu_offloading_num_layers: int = ...,
        bias_activation_fusion: bool = ...,
        apply_rope_fusion: bool = ...,
        cross_entropy_loss_fusion: bool = ...,
        gradient_accumulation_fusion: bool = ...,
        cuda_graph_impl: Literal["none", "local", "transformer_engine"] | bool | None = ...,
        enable_cuda_graph: Literal["none", "local", "transformer_engine"] | bool | None = ...,
        cuda_graph_scope: str | Sequence[str] = ...,
        cuda_graph_warmup_steps: int = ...,
        flash_attn: str = ...,
        attention_backend: str = ...,
        use_flash_attn: bool = ...,
        masked_softmax_fusion: bool = ...,
        bias_dropout_fusion: bool = ...,
        persist_layer_norm: bool = ...,
        disable_jit_fuser: bool = ...,
        use_flashinfer_fused_rope: bool = ...,
        cross_entropy_fusion_impl: str = ...,
        use_cpu_initialization: bool | None = ...,
        perform_initialization: bool = ...,
        compile_warmup: bool = ...,
        manual_gc: bool = ...,
        manual_gc_interval: int = ...,
        manual_gc_eval: bool = ...,
        empty_unused_memory_level: int = ...,
        torch_empty_cache_steps: int | None = ...,
        upcast_layernorm: bool = ...,
        upcast_lmhead_output: bool = ...,
        low_cpu_mem_usage: bool = ...,
        enable_liger_kernel: bool = ...,
        use_liger_kernel: bool = ...,
        liger_kernel_config: Mapping[str, Any] | str | None = ...,
        use_unsloth_gc: bool = ...,
        offload_folder: str = ...,
        disable_gradient_checkpointing: bool = ...,
        use_reentrant_gc: bool = ...,
        gradient_checkpointing_kwargs: Mapping[str, Any] | str | None = ...,
        use_mcore_models: bool = ...,
        te_rng_tracker: bool = ...,
        fsdp: str | None = ...,
        fsdp_config: Mapping[str, Any] | str | None = ...,
        fsdp_min_num_params: int = ...,
        fsdp_transformer_layer_cls_to_wrap: str | None = ...,
        accelerator_config: Mapping[str, Any] | str | None = ...,
        parallelism_config: Mapping[str, Any] | str | None = ...,
        use_torch_fsdp2: bool = ...,
        use_megatron_fsdp: bool = ...,
        use_custom_fsdp: bool = ...,
        data_parallel_sharding_strategy: str = ...,
        bf16: bool = ...,
        fp16: bool = ...,
        tf32: bool | None = ...,
        fp32_residual_connection: bool = ...,
        fp8: Literal["e4m3", "hybrid"] | None = ...,
        fp8_format: Literal["e4m3", "hybrid"] | None = ...,
        fp8_recipe: Literal["tensorwise", "delayed", "blockwise"] | None = ...,
        fp8_wgrad: bool = ...,
        fp8_param: bool = ...,
        fp8_param_gather: bool = ...,
        fp8_head: bool = ...,
        fp8_experts: bool = ...,
        fp8_amax_history_len: int = ...,
        fp8_amax_compute_algo: Literal["most_recent", "max"] = ...,
        fp8_margin: int = ...,
        first_last_layers_bf16: bool = ...,
        loss_scale: float | None = ...,
        initial_loss_scale: float = ...,
        min_loss_scale: float = ...,
        loss_scale_window: float = ...,
        hysteresis: int = ...,
        accumulate_allreduce_grads_in_fp32: bool = ...,
        grad_reduce_in_fp32: bool = ...,
        grad_reduce_in_bf16: bool = ...,
        pure_bf16: bool = ...,
        fp4: str | None = ...,
        fp4_format: str | None = ...,
        fp8_backend: str = ...,
        fp8_enable_fsdp_float8_all_gather: bool = ...,
        bf16_full_eval: bool = ...,
        fp16_full_eval: bool = ...,
        fp16_opt_level: str = ...,
        half_precision_backend: str = ...,
        fp16_backend: str = ...,
        fp16_lm_cross_entropy: bool = ...,
        fp8_interval: int = ...,
        optimizer: Literal["adam", "sgd", "muon", "lion"] = ...,
        optim: Literal["adamw_torch_fused", "adamw_torch", "adamw_hf", "sgd"] = ...,
        learning_rate: float | None = ...,
        lr: float | None = ...,
        weight_decay: float = ...,
        weight_decay_incr_style: Literal["constant", "linear", "cosine"] = ...,
        start_weight_decay: float | None = ...,
        end_weight_decay: float | None = ...,
        apply_wd_to_qk_layernorm: bool = ...,
        adam_beta1: float = ...,
        adam_beta2: float = ...,
        adam_epsilon: float = ...,
        adam_eps: float = ...,
        sgd_momentum: float = ...,
        lion_beta1: float = ...,
        lion_beta2: float = ...,
        max_grad_norm: float = ...,
        clip_grad: float = ...,
        label_smoothing_factor: float = ...,
        neftune_noise_alpha: float | None = ...,
        decoupled_lr: float | None = ...,
        decoupled_min_lr: float | None = ...,
        muon_momentum: float = ...,
        muon_nesterov: bool = ...,
        muon_use_nesterov: bool = ...,
        muon_scale_mode: Literal["spectral", "unit_rms_norm", "shape_scaling"] = ...,
        muon_extra_scale_factor: float = ...,
        muon_coefficient_type: Literal["simple", "quintic", "polar_express", "aol"] = ...,
        muon_num_ns_steps: int = ...,
        muon_fp32_matmul_prec: Literal["medium", "high"] = ...,
        muon_tp_mode: Literal["blockwise", "duplicated", "distributed"] = ...,
        muon_split_qkv: bool = ...,
        muon_scalar_optimizer: Literal["adam", "lion"] = ...,
        use_distributed_optimizer: bool = ...,
        deepspeed: Mapping[str, Any] | str = ...,
        optimizer_cpu_offload: bool = ...,
        optimizer_offload_fraction: float = ...,
        use_precision_aware_optimizer: bool = ...,
        main_grads_dtype: Literal["fp32", "bf16"] = ...,
        main_params_dtype: Literal["fp32", "fp16"] = ...,
        exp_avg_dtype: Literal["fp32", "fp16", "bf16", "fp8"] = ...,
        exp_avg_sq_dtype: Literal["fp32", "fp16", "bf16", "fp8"] = ...,
        overlap_param_gather_with_optimizer_step: bool = ...,
        overlap_optimizer_with_forward: bool = ...,
        use_torch_optimizer_for_cpu_offload: bool = ...,
        overlap_cpu_optimizer_d2h_h2d: bool = ...,
        pin_cpu_grads: bool = ...,
        pin_cpu_params: bool = ...,
        optim_args: str | None = ...,
        optim_target_modules: Sequence[str] | None = ...,
        adafactor: bool = ...,
        use_adam_mini: bool = ...,
        use_muon: bool = ...,
        use_galore: bool = ...,
        use_apollo: bool = ...,
        use_badam: bool = ...,
        galore_target: str = ...,
        galore_rank: int = ...,
        galore_update_interval: int = ...,
        galore_scale: float = ...,
        galore_proj_type: str = ...,
        galore_layerwise: bool = ...,
        apollo_target: str = ...,
        apollo_rank: int = ...,
        apollo_update_interval: int = ...,
        apollo_scale: float = ...,
        apollo_proj: str = ...,
        apollo_proj_type: str = ...,
        apollo_scale_type: str = ...,
        apollo_layerwise: bool = ...,
        apollo_scale_front: bool = ...,
        badam_mode: str = ...,
        badam_start_block: int | None = ...,
        badam_switch_mode: str = ...,
        badam_switch_interval: int = ...,
        badam_update_ratio: float = ...,
        badam_mask_mode: str = ...,
        badam_verbose: int = ...,
        use_dft_loss: bool = ...,
        use_asft_loss: bool = ...,
        asft_alpha: float = ...,
        use_eaft_loss: bool = ...,
        eaft_alpha: float = ...,
        average_tokens_across_devices: bool = ...,
        overlap_grad_reduce: bool = ...,
        delay_grad_reduce: bool = ...,
        align_grad_reduce: bool = ...,
        overlap_param_gather: bool = ...,
        align_param_gather: bool = ...,
        ddp_average_in_collective: bool = ...,
        ddp_bucket_size: int | None = ...,
        ddp_num_buckets: int | None = ...,
        ddp_pad_buckets_for_high_nccl_busbw: bool = ...,
        check_for_nan_in_loss_and_grad: bool = ...,
        calculate_per_token_loss: bool = ...,
        lr_scheduler_type: Literal["linear", "cosine", "constant", "constant_with_warmup", "inverse_sqrt", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay"] = ...,
        lr_scheduler_kwargs: Mapping[str, Any] | str = ...,
        warmup_steps: float = ...,
        warmup_ratio: float = ...,
        lr_decay_style: Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"] | None = ...,
        min_lr: float = ...,
        lr_decay_iters: int | None = ...,
        lr_decay_samples: int | None = ...,
        lr_warmup_fraction: float | None = ...,
        lr_warmup_iters: int = ...,
        lr_warmup_samples: int = ...,
        lr_warmup_init: float = ...,
        lr_wsd_decay_style: Literal["exponential", "linear", "cosine", "minus_sqrt"] = ...,
        lr_wsd_decay_iters: int | None = ...,
        lr_wsd_decay_samples: int | None = ...,
        override_opt_param_scheduler: bool = ...,
        use_checkpoint_opt_param_scheduler: bool = ...,
        dataset: str | Sequence[str] = ...,
        eval_dataset: str | Sequence[str] = ...,
        dataset_dir: str = ...,
        template: str | None = ...,
        cutoff_len: int = ...,
        train_on_prompt: bool = ...,
        mask_history: bool = ...,
        streaming: bool = ...,
        buffer_size: int = ...,
        mix_strategy: Literal["concat", "interleave_under", "interleave_over", "interleave_once"] = ...,
        interleave_probs: str | Sequence[str] = ...,
        val_size: float = ...,
        eval_on_each_dataset: bool = ...,
        max_samples: int | None = ...,
        packing: bool | None = ...,
        neat_packing: bool = ...,
        sequence_packing: bool = ...,
        tokenized_path: str | None = ...,
        preprocessing_batch_size: int = ...,
        preprocessing_num_workers: int | None = ...,
        default_system: str | None = ...,
        enable_thinking: bool | None = ...,
        preserve_thinking: bool = ...,
        train_sampling_strategy: Literal["random", "sequential", "group_by_length"] = ...,
        disable_shuffling: bool = ...,
        group_by_length: bool = ...,
        ignore_data_skip: bool = ...,
        dataloader_type: Literal["single", "cyclic"] = ...,
        dataloader_num_workers: int = ...,
        num_workers: int = ...,
        dataloader_prefetch_factor: int | None = ...,
        dataloader_pin_memory: bool = ...,
        dataloader_persistent_workers: bool = ...,
        dataloader_drop_last: bool = ...,
        remove_unused_columns: bool = ...,
        label_names: Sequence[str] | None = ...,
        length_column_name: str = ...,
        past_index: int = ...,
        tool_format: Literal["qwen"] | None = ...,
        overwrite_cache: bool = ...,
        data_shared_file_system: bool = ...,
        ignore_pad_token_for_loss: bool = ...,
        data_path: Sequence[str] = ...,
        train_data_path: Sequence[str] = ...,
        valid_data_path: Sequence[str] = ...,
        test_data_path: Sequence[str] = ...,
        data_args_path: str | None = ...,
        per_split_data_args_path: str | None = ...,
        split: str | None = ...,
        mock_data: bool = ...,
        data_cache_path: str | None = ...,
        eod_mask_loss: bool = ...,
        reset_position_ids: bool = ...,
        reset_attention_mask: bool = ...,
        create_attention_mask_in_dataloader: bool = ...,
        mmap_bin_files: bool = ...,
        num_dataset_builder_threads: int = ...,
        dataloader_fast_cache_load: bool = ...,
        dataloader_defer_npy_index_mmap: bool = ...,
        fim_data: bool = ...,
        fim_rate: float = ...,
        fim_spm_rate: float = ...,
        sft: bool = ...,
        sft_tokenizer_prompt_format: str = ...,
        tokenizer_type: str | None = ...,
        tokenizer_model: str | None = ...,
        vocab_file: str | None = ...,
        merge_file: str | None = ...,
        tiktoken_pattern: Literal["v1", "v2"] | None = ...,
        tiktoken_num_special_tokens: int = ...,
        tiktoken_special_tokens: Sequence[str] = ...,
        tokenizer_special_tokens: Sequence[str] = ...,
        vocab_extra_ids: int = ...,
        legacy_tokenizer: bool = ...,
        use_tokenizer_model_from_checkpoint_args: bool = ...,
        allow_ambiguous_pad_tokens: bool = ...,
        media_dir: str | None = ...,
        skip_broken_media: bool = ...,
        verify_media: bool = ...,
        image_max_pixels: int = ...,
        image_min_pixels: int = ...,
        video_max_pixels: int = ...,
        video_min_pixels: int = ...,
        video_fps: float = ...,
        video_maxlen: int = ...,
        use_audio_in_video: bool = ...,
        freeze_vision_tower: bool = ...,
        freeze_multi_modal_projector: bool = ...,
        freeze_language_model: bool = ...,
        vit_lr: float | None = ...,
        aligner_lr: float | None = ...,
        lora_rank: int = ...,
        lora_alpha: int | None = ...,
        lora_dropout: float = ...,
        lora_target: str | Sequence[str] = ...,
        additional_target: str | Sequence[str] = ...,
        modules_to_save: str | Sequence[str] = ...,
        use_rslora: bool = ...,
        use_dora: bool = ...,
        pissa_init: bool = ...,
        pissa_iter: int = ...,
        pissa_convert: bool = ...,
        create_new_adapter: bool = ...,
        adapter_name_or_path: str | Sequence[str] = ...,
        adapter_folder: str | None = ...,
        quantization_bit: int | None = ...,
        quantization_type: Literal["nf4", "fp4"] = ...,
        double_quantization: bool = ...,
        loraplus_lr_ratio: float | None = ...,
        loraplus_lr_embedding: float = ...,
        oft_rank: int = ...,
        oft_block_size: int = ...,
        oft_target: str = ...,
        module_dropout: float = ...,
        freeze_trainable_layers: int = ...,
        freeze_trainable_modules: str | Sequence[str] = ...,
        freeze_extra_modules: str | Sequence[str] = ...,
        use_llama_pro: bool = ...,
        pref_loss: Literal["sigmoid", "robust", "hinge", "ipo", "orpo", "simpo", "sigmoid_norm", "exo_pair", "nca_pair", "bco_pair", "sppo_hard", "aot", "aot_unpaired", "apo_zero", "apo_down", "discopop"] = ...,
        pref_beta: float = ...,
        beta: float = ...,
        dpo_beta: float = ...,
        pref_ftx: float = ...,
        dpo_ftx: float = ...,
        dpo_label_smoothing: float = ...,
        label_smoothing: float = ...,
        simpo_gamma: float = ...,
        discopop_tau: float = ...,
        ld_alpha: float | None = ...,
        kto_chosen_weight: float = ...,
        desirable_weight: float = ...,
        kto_rejected_weight: float = ...,
        undesirable_weight: float = ...,
        ref_model: str | None = ...,
        precompute_ref_log_probs: bool = ...,
        ref_model_adapters: str | Sequence[str] = ...,
        pref_bco_weight: float = ...,
        ppo_buffer_size: int = ...,
        ppo_epochs: int = ...,
        ppo_score_norm: bool = ...,
        ppo_target: float = ...,
        ppo_whiten_rewards: bool = ...,
        reward_model: str | None = ...,
        reward_model_adapters: str | None = ...,
        reward_model_type: str = ...,
        num_labels: int | None = ...,
        problem_type: Literal["regression", "single_label_classification", "multi_label_classification"] | None = ...,
        center_rewards_coefficient: float = ...,
        teacher_model_name_or_path: str | None = ...,
        kd_loss: Literal["forward_kl", "reverse_kl", "jsd"] = ...,
        kd_beta: float = ...,
        kd_temperature: float = ...,
        kd_ratio: float = ...,
        teacher_logits_path: str | None = ...,
        kd_top_k: int | None = ...,
        kd_tail: bool = ...,
        logging_strategy: Literal["no", "steps", "epoch"] = ...,
        logging_steps: float = ...,
        log_interval: float = ...,
        logging_first_step: bool = ...,
        logging_nan_inf_filter: bool = ...,
        log_level: Literal["debug", "info", "warning", "error", "critical", "passive"] = ...,
        report_to: Sequence[str] = ...,
        run_name: str | None = ...,
        logging_dir: str | None = ...,
        tensorboard_dir: str | None = ...,
        include_num_input_tokens_seen: Literal["no", "all", "non_padding"] | bool = ...,
        include_effective_tokens_per_second: bool = ...,
        timing_log_level: int = ...,
        timing_log_option: Literal["minmax", "max", "all"] = ...,
        tensorboard_log_interval: int = ...,
        log_throughput: bool = ...,
        log_progress: bool = ...,
        log_energy: bool = ...,
        log_params_norm: bool = ...,
        log_num_zeros_in_grad: bool = ...,
        profile: bool = ...,
        profile_step_start: int = ...,
        profile_step_end: int = ...,
        profile_ranks: Sequence[int] = ...,
        generate_samples_every: int | None = ...,
        generate_samples_prompts: str | None = ...,
        generate_samples_max_new_tokens: int = ...,
        log_histograms_interval: int | None = ...,
        log_level_replica: Literal["debug", "info", "warning", "error", "critical", "passive"] = ...,
        disable_tqdm: bool | None = ...,
        log_on_each_node: bool = ...,
        plot_loss: bool = ...,
        skip_memory_metrics: bool = ...,
        debug: str = ...,
        enable_torch_profiler: bool = ...,
        profiler_output_dir: str | None = ...,
        profiler_wait_steps: int = ...,
        profiler_warmup_steps: int = ...,
        profiler_active_steps: int = ...,
        profiler_repeat: int = ...,
        profiler_record_shapes: bool = ...,
        profiler_profile_memory: bool = ...,
        profiler_with_stack: bool = ...,
        profile_modules: str | None = ...,
        use_pytorch_profiler: bool = ...,
        log_timers_to_tensorboard: bool = ...,
        log_memory_to_tensorboard: bool = ...,
        log_validation_ppl_to_tensorboard: bool = ...,
        log_world_size_to_tensorboard: bool = ...,
        log_batch_size_to_tensorboard: bool = ...,
        log_loss_scale_to_tensorboard: bool = ...,
        log_learning_rate_to_tensorboard: bool = ...,
        tensorboard_queue_size: int = ...,
        logging_level: int | None = ...,
        include_tokens_per_second: bool = ...,
        push_to_hub: bool = ...,
        use_swanlab: bool = ...,
        hub_model_id: str | None = ...,
        hub_strategy: str = ...,
        hub_token: str | None = ...,
        hub_private_repo: bool | None = ...,
        hub_always_push: bool = ...,
        hub_revision: str | None = ...,
        push_to_hub_model_id: str | None = ...,
        push_to_hub_organization: str | None = ...,
        push_to_hub_token: str | None = ...,
        swanlab_project: str = ...,
        swanlab_workspace: str | None = ...,
        swanlab_run_name: str | None = ...,
        swanlab_mode: str = ...,
        swanlab_api_key: str | None = ...,
        swanlab_logdir: str | None = ...,
        swanlab_lark_webhook_url: str | None = ...,
        swanlab_lark_secret: str | None = ...,
        project: str = ...,
        trackio_space_id: str = ...,
        trackio_bucket_id: str | None = ...,
        trackio_static_space_id: str | None = ...,
        wandb_project: str | None = ...,
        wandb_exp_name: str | None = ...,
        wandb_entity: str | None = ...,
        wandb_save_dir: str | None = ...,
        one_logger: bool = ...,
        eval_strategy: Literal["no", "steps", "epoch"] = ...,
        evaluation_strategy: Literal["no", "steps", "epoch"] = ...,
        eval_steps: float | None = ...,
        eval_interval: float | None = ...,
        eval_delay: float = ...,
        eval_on_start: bool = ...,
        eval_iters: int = ...,
        prediction_loss_only: bool = ...,
        compute_accuracy: bool = ...,
        load_best_model_at_end: bool = ...,
        metric_for_best_model: str | None = ...,
        greater_is_better: bool | None = ...,
        eval_accumulation_steps: int | None = ...,
        batch_eval_metrics: bool = ...,
        include_for_metrics: Sequence[str] | None = ...,
        include_inputs_for_metrics: bool = ...,
        eval_do_concat_batches: bool = ...,
        eval_use_gather_object: bool = ...,
        jit_mode_eval: bool = ...,
        output_dir: str | None = ...,
        save: str | None = ...,
        overwrite_output_dir: bool = ...,
        resume_from_checkpoint: str | None = ...,
        load: str | None = ...,
        save_strategy: Literal["no", "steps", "epoch", "best"] = ...,
        save_steps: float | None = ...,
        save_interval: float | None = ...,
        save_total_limit: int | None = ...,
        save_retain_interval: int | None = ...,
        save_only_model: bool = ...,
        save_hf_model: bool = ...,
        save_merged_model: bool = ...,
        save_on_each_node: bool = ...,
        save_safetensors: bool = ...,
        restore_callback_states_from_checkpoint: bool = ...,
        ckpt_format: Literal["legacy", "torch", "torch_dist", "torch_dcp", "zarr", "fsdp_dtensor"] = ...,
        dist_ckpt_format: Literal["legacy", "torch", "torch_dist", "torch_dcp", "zarr", "fsdp_dtensor"] = ...,
        async_save: bool = ...,
        use_persistent_ckpt_worker: bool = ...,
        checkpoint_files: Literal["shared", "per_writer"] = ...,
        dist_ckpt_strictness: Literal["assume_ok_unexpected", "log_unexpected", "log_all", "raise_unexpected", "raise_all", "return_unexpected", "return_all", "ignore_all"] = ...,
        ckpt_fully_parallel_save: bool = ...,
        ckpt_fully_parallel_load: bool = ...,
        ckpt_d2h_non_blocking: bool = ...,
        distrib_optim_fully_reshardable: bool = ...,
        dist_ckpt_optim_fully_reshardable: bool = ...,
        distrib_optim_fully_reshardable_mem_efficient: bool = ...,
        distrib_optim_fully_reshardable_mem_efficient_save: bool = ...,
        no_save_optim: bool = ...,
        no_save_rng: bool = ...,
        non_persistent_save_interval: int | None = ...,
        non_persistent_ckpt_type: Literal["global", "local"] | None = ...,
        non_persistent_global_ckpt_dir: str | None = ...,
        non_persistent_local_ckpt_dir: str | None = ...,
        non_persistent_local_ckpt_algo: Literal["atomic"] = ...,
        replication: bool = ...,
        replication_jump: int | None = ...,
        replication_factor: int = ...,
        no_load_optim: bool = ...,
        no_load_rng: bool = ...,
        finetune: bool = ...,
        exit_on_missing_checkpoint: bool = ...,
        ckpt_step: int | None = ...,
        override_ckpt_iteration: int | None = ...,
        use_checkpoint_args: bool = ...,
        load_main_params_from_ckpt: bool = ...,
        pretrained_checkpoint: str | None = ...,
        auto_detect_ckpt_format: bool = ...,
        use_dist_ckpt: bool = ...,
        ckpt_assume_constant_structure: bool = ...,
        ckpt_convert_format: str | None = ...,
        ckpt_convert_save: str | None = ...,
        rerun_mode: Literal["disabled", "validate_results", "report_determinism_stats", "report_stats"] = ...,
        error_injection_rate: float = ...,
        error_injection_type: Literal["correct_result", "transient_error", "persistent_error"] = ...,
        check_for_spiky_loss: bool = ...,
        check_for_large_grads: bool = ...,
        ft_num_warmup_iters: int = ...,
        calc_ft_timeouts: bool = ...,
        inprocess_restart: bool = ...,
        log_straggler: bool = ...,
        straggler_minmax_count: int = ...,
        straggler_ctrlr_port: int = ...,
        check_weight_hash_across_dp_replicas_interval: int | None = ...,
        enable_ft_package: bool = ...,
        disable_straggler_on_startup: bool = ...,
        adlr_autoresume: bool = ...,
        adlr_autoresume_interval: int = ...,
        inprocess_max_iterations: int | None = ...,
        inprocess_active_world_size: int | None = ...,
        inprocess_granularity: str = ...,
        inprocess_empty_cuda_cache: bool = ...,
        inprocess_monitor_thread_interval: float = ...,
        inprocess_monitor_process_interval: float = ...,
        inprocess_progress_watchdog_interval: float = ...,
        inprocess_heartbeat_interval: float = ...,
        inprocess_heartbeat_timeout: float = ...,
        inprocess_soft_timeout: float = ...,
        inprocess_hard_timeout: float = ...,
        inprocess_barrier_timeout: float = ...,
        inprocess_completion_timeout: float = ...,
        inprocess_last_call_wait: float = ...,
        inprocess_termination_grace_time: float = ...,
        ray_num_workers: int = ...,
        ray_init_kwargs: Mapping[str, Any] | str | None = ...,
        ray_scope: str = ...,
        tpu_num_cores: int | None = ...,
        tpu_metrics_debug: bool = ...,
        use_mps_device: bool = ...,
        use_ipex: bool = ...,
        mp_parameters: str = ...,
        dispatch_batches: bool | None = ...,
        split_batches: bool = ...,
        torchdynamo: str | None = ...,
        yaml_cfg: str | None = ...,
        enable_experimental: bool = ...,
        use_ray: bool = ...,
        use_megatron_bridge: bool = ...,
        use_hyper_parallel: bool = ...,
        hyper_parallel_args: str | None = ...,
        hyper_parallel_cp_size: int = ...,
        experimental_attention_variant: str | None = ...,
        linear_attention_freq: str | None = ...,
        linear_conv_kernel_dim: int | None = ...,
        linear_key_head_dim: int | None = ...,
        linear_value_head_dim: int | None = ...,
        linear_num_key_heads: int | None = ...,
        linear_num_value_heads: int | None = ...,
        spec: Sequence[str] | None = ...,
        use_legacy_models: bool = ...,
        hybrid_override_pattern: str | None = ...,
        hybrid_attention_ratio: float = ...,
        hybrid_mlp_ratio: float = ...,
        heterogeneous_layers_config_path: str | None = ...,
        openai_gelu: bool = ...,
        encoder_num_layers: int | None = ...,
        decoder_num_layers: int | None = ...,
        decoder_seq_length: int | None = ...,
        no_rope_freq: str | None = ...,
        qk_l2_norm: bool = ...,
        moe_apply_probs_on_input: bool = ...,
        fine_grained_activation_offloading: bool = ...,
        offload_modules: Sequence[str] | None = ...,
        init_method_xavier_uniform: bool = ...,
    ) -> None: ...
    @classmethod
    def from_file(cls, path: str | PathLike[str], **options: Any) -> TrainingArguments:
        """Reads a file of options, as `megalith train FILE` does; options that are given win over it."""
    def given(self) -> dict[str, Any]:
        """Returns the options that were given, under the names that were used."""
    def to_dict(self) -> dict[str, Any]:
        """Returns every option with a value, defaults included."""
    def to_json_string(self) -> str:
        """Returns to_dict() as JSON."""
    def to_yaml(self) -> str:
        """Returns every option as the text of a file that from_file() and `megalith train` read."""

    stage: Literal["pt", "sft", "dpo", "kto", "rm", "cls"]
    """what is trained: pt (text), sft (conversations), dpo (preferences), kto (answers with verdicts), rm (reward models), cls (labels of texts)"""
    finetuning_type: Literal["lora", "freeze", "full"]
    """lora: train adapters; freeze: train some layers; full: train every weight"""
    do_train: bool
    """train; also when neither do_train nor do_eval is given"""
    do_eval: bool
    """evaluate; alone: evaluate once and end"""
    skip_train: bool
    """do not train, only evaluate"""
    num_train_epochs: float
    """passes over the data, unless max_steps is set"""
    max_steps: int
    """optimizer steps; a positive value wins over num_train_epochs"""
    train_samples: int | None
    """length of the run in samples, in place of train_iters"""
    iterations_to_skip: Sequence[int]
    """1-based iterations whose data is consumed unused"""
    exit_interval: int | None
    """leave when the iteration is a multiple of this"""
    exit_duration_in_mins: int | None
    """save and leave after this many minutes"""
    exit_signal_handler: bool
    """SIGTERM: save and leave; accepted without effect: SIGTERM always lets a run finish its step, save and leave"""
    early_stopping_steps: int | None
    """stop after this many evaluations without a better metric; needs metric_for_best_model and evaluation"""
    use_mca: bool
    """accepted without effect: Megalith has one path, the one that use_mca selects"""
    do_predict: bool
    """refused: generation is not part of training; use `megalith generate`"""
    predict_with_generate: bool
    """refused: generation is not part of training; use `megalith generate`"""
    generation_max_length: int | None
    """refused: generation is not part of training; use `megalith generate`"""
    generation_num_beams: int | None
    """refused: generation is not part of training; use `megalith generate`"""
    generation_config: str | None
    """refused: generation is not part of training; use `megalith generate`"""
    sortish_sampler: bool
    """refused: generation is not part of training; use `megalith generate`"""
    eval_num_beams: int | None
    """refused: generation is not part of training; use `megalith generate`"""
    do_sample: bool
    """accepted without effect: generation settings; training does not generate"""
    temperature: float
    """accepted without effect: generation settings; training does not generate"""
    top_p: float
    """accepted without effect: generation settings; training does not generate"""
    top_k: int
    """accepted without effect: generation settings; training does not generate"""
    num_beams: int
    """accepted without effect: generation settings; training does not generate"""
    max_length: int
    """accepted without effect: generation settings; training does not generate"""
    max_new_tokens: int
    """accepted without effect: generation settings; training does not generate"""
    repetition_penalty: float
    """accepted without effect: generation settings; training does not generate"""
    length_penalty: float
    """accepted without effect: generation settings; training does not generate"""
    skip_special_tokens: bool
    """accepted without effect: generation settings; training does not generate"""
    auto_find_batch_size: bool
    """refused: choose per_device_train_batch_size yourself; `megalith preview memory` helps"""
    torch_compile: bool
    """refused: Megalith's kernels are compiled ahead of time; there is no torch.compile"""
    torch_compile_backend: str | None
    """refused: Megalith's kernels are compiled ahead of time; there is no torch.compile"""
    torch_compile_mode: str | None
    """refused: Megalith's kernels are compiled ahead of time; there is no torch.compile"""
    enable_jit_checkpoint: bool
    """refused: leave it out: on SIGTERM a run always saves and leaves"""
    tensor_model_parallel_size: int | None
    """ranks that split each weight matrix (none: 1)"""
    pipeline_model_parallel_size: int | None
    """pipeline stages (none: 1)"""
    context_parallel_size: int | None
    """ranks that split each sequence (none: 1)"""
    expert_model_parallel_size: int | None
    """ranks that split the experts (none: 1)"""
    expert_tensor_parallel_size: int | None
    """ranks that split an expert's matrices (none: tp)"""
    sequence_parallel: bool
    """split norms and dropout over tp along the tokens; off without tp > 1, on with tp > 1 and experts"""
    num_distributed_optimizer_instances: int
    """replicas of the sharded optimizer state over the data-parallel ranks"""
    use_tp_pp_dp_mapping: bool
    """number ranks in the order tp-cp-ep-pp-dp in place of tp-cp-ep-dp-pp"""
    hierarchical_context_parallel_sizes: Sequence[int]
    """sizes of the levels of hierarchical context parallelism; their product is cp"""
    cp_comm_type: Sequence[Literal["p2p", "a2a", "all_gather", "allgather", "a2a+p2p"]]
    """how context-parallel attention exchanges keys and values (none: p2p); one for all layers or one per layer"""
    tp_comm_overlap: bool
    """hide the traffic of sequence_parallel: in slices beside the products, in backward beside weight gradients"""
    tp_comm_overlap_slices: int | None
    """slices of each product with tp_comm_overlap (none: by its size, at most 4)"""
    virtual_pipeline_model_parallel_size: int | None
    """model chunks per pipeline rank (interleaved schedule); 1 means none; follows from a layout"""
    num_layers_per_virtual_pipeline_stage: int | None
    """layers of a chunk: another way to set the number of chunks"""
    pipeline_model_parallel_layout: str | None
    """stages split by |: E embedding, t layer, m MTP, L loss; x*n and (...)*n repeat: E,t*3|t*4,L"""
    decoder_first_pipeline_num_layers: int | None
    """layers of the first rank"""
    decoder_last_pipeline_num_layers: int | None
    """layers of the last rank"""
    account_for_embedding_in_pipeline_split: bool | None
    """count the embedding as one layer when splitting"""
    account_for_loss_in_pipeline_split: bool | None
    """count the head and the loss as one layer when splitting"""
    pipeline_schedule: Literal["1f1b", "interleaved", "zero_bubble"] | None
    """order of work on the stages (none: 1f1b, or interleaved with virtual stages); zero_bubble computes weight gradients while a stage would wait"""
    microbatch_group_size_per_virtual_pipeline_stage: int | None
    """micro-batches that a chunk runs in a row (none: pp)"""
    overlap_p2p_comm: bool
    """interleaved schedule: receive one step ahead; off without virtual stages"""
    overlap_p2p_communication_warmup_flush: bool
    """overlap in warm-up and flush too; accepted without effect: overlap_p2p_comm overlaps warm-up and flush, too"""
    variable_seq_lengths: bool
    """micro-batches of one step may differ in length; accepted without effect: every stage knows the length of each micro-batch: they may always differ"""
    defer_embedding_wgrad_compute: bool
    """compute the head's weight gradients in the pipeline's flush; keeps the logits of every deferred micro-batch; needs pp > 1 and gradient accumulation fusion"""
    wgrad_deferral_limit: int
    """micro-batches of a step that defer_embedding_wgrad_compute defers at most; 0: all"""
    ddp_backend: Literal["nccl", "gloo"] | None
    """collective library (none: nccl with CUDA, else gloo)"""
    ddp_timeout: int
    """time limit of a collective in seconds"""
    distributed_timeout_minutes: int | None
    """time limit of a collective in minutes; wins over ddp_timeout when set"""
    distributed_timeout_seconds_after_init: int | None
    """time limit once the first iteration has finished"""
    store_connect_timeout: int | None
    """seconds that a rank tries to reach the store (MASTER_ADDR:MASTER_PORT) at the start; none: 60 on one machine, 600 on several"""
    use_cpu: bool
    """train on the CPU even if there is a GPU"""
    use_gloo_process_groups: bool
    """host-side twins of the data-parallel groups for checkpoints; accepted without effect: groups are made when they are first used, so switching them off saves nothing"""
    ddp_find_unused_parameters: bool | None
    """accepted without effect: torch DDP is not used; see overlap_grad_reduce and ddp_bucket_size"""
    ddp_bucket_cap_mb: int | None
    """accepted without effect: torch DDP is not used; see overlap_grad_reduce and ddp_bucket_size"""
    ddp_broadcast_buffers: bool | None
    """accepted without effect: torch DDP is not used; see overlap_grad_reduce and ddp_bucket_size"""
    ddp_static_graph: bool | None
    """accepted without effect: torch DDP is not used; see overlap_grad_reduce and ddp_bucket_size"""
    local_rank: int
    """accepted without effect: the rank is read from the launcher's environment"""
    nccl_communicator_config_path: str | None
    """a YAML file that tunes NCCL's communicators by group: cga_cluster_size, min_ctas, max_ctas, net_name, is_high_priority_stream"""
    high_priority_stream_groups: Sequence[str] | None
    """groups whose NCCL kernels are scheduled before compute (none: tp, cp, ep and pp)"""
    use_sharp: bool
    """NCCL reduces gradients in the network's switches (SHARP)"""
    use_nccl_ub: bool
    """refused: NCCL's user buffers have to be allocated by NCCL; Megalith's gradient buffers come from libtorch's allocator"""
    scatter_gather_tensors_in_pipeline: bool
    """accepted without effect: stages exchange the token shards that sequence parallelism leaves"""
    async_tensor_model_parallel_allreduce: bool
    """accepted without effect: input gradients are always reduced asynchronously"""
    tp_comm_overlap_cfg: str | None
    """refused: names userbuffer kernels of Transformer Engine; see tp_comm_overlap_slices and nccl_communicator_config_path"""
    disable_tp_comm_overlap_ag: bool
    """accepted without effect: tp_comm_overlap slices gathers and scatters alike; tp_comm_overlap_slices 1 leaves them whole"""
    disable_tp_comm_overlap_rs: bool
    """accepted without effect: tp_comm_overlap slices gathers and scatters alike; tp_comm_overlap_slices 1 leaves them whole"""
    tp_comm_overlap_rs_dgrad: bool
    """accepted without effect: the scatter of an input gradient overlaps with weight gradients, or in slices with its own product where none follow"""
    disable_tp_comm_bulk_dgrad: bool
    """accepted without effect: backward always gathers its input beside the product of the input gradient"""
    disable_tp_comm_bulk_wgrad: bool
    """accepted without effect: backward always scatters the input gradient beside the weight gradient"""
    tp_comm_bootstrap_backend: str
    """accepted without effect: slices travel through the communicator of the tensor-parallel group; there is no other to start"""
    per_device_train_batch_size: int | None
    """micro-batch: sequences in one pass of one data-parallel rank (required by pretrain)"""
    gradient_accumulation_steps: int
    """micro-batches per step, unless global_batch_size is set"""
    global_batch_size: int | None
    """sequences per step over all ranks (none: micro-batch * dp * gradient_accumulation_steps)"""
    rampup_batch_size: Sequence[int]
    """start, increment and samples of a growing batch; global_batch_size is its end"""
    step_batch_size_schedule: str | None
    """batch sizes by consumed tokens: '0:768 250B:1536' (K, M, B, T); the last size is the global batch"""
    decrease_batch_size_if_needed: bool
    """round the batch down to a multiple of micro-batch * dp"""
    per_device_eval_batch_size: int | None
    """sequences in one evaluation pass (none: as training)"""
    eval_global_batch_size: int | None
    """sequences per evaluation iteration (none: as training)"""
    seed: int
    """positive; every random number follows from it"""
    data_seed: int | None
    """order of the samples (none: seed)"""
    data_parallel_random_init: bool
    """data-parallel ranks draw different numbers: seed + 10 * dp rank"""
    full_determinism: bool
    """on GPUs, libraries choose no kernel by trying which is fastest, and deterministic ones where they have them (on CPUs runs have the same bits anyway, for one layout and thread count)"""
    model_name_or_path: str | None
    """folder with config.json and safetensors (required by train)"""
    train_from_scratch: bool
    """take the model's shape, draw its weights"""
    additional_configs: Mapping[str, Any] | str
    """further options as JSON or a JSON file; those that are given by themselves win, unknown ones are ignored"""
    split_special_tokens: bool
    """special tokens in texts of the data are tokenized as text; those of the template remain tokens"""
    resize_vocab: bool
    """grow embedding and head to the tokenizer, if it has more tokens than they have rows"""
    add_tokens: str | Sequence[str]
    """tokens to add to the tokenizer; implies resize_vocab"""
    add_special_tokens: str | Sequence[str]
    """special tokens to add to the tokenizer, after add_tokens; implies resize_vocab"""
    transformer_impl: Literal["local", "transformer_engine"] | None
    """layer library of the reference; accepted without effect: Megalith has one implementation of its layers"""
    cache_dir: str | None
    """refused: HF_HUB_CACHE says where downloaded models are; or give the folder of the model"""
    model_revision: str
    """refused: write the revision after the name: model_name_or_path org/name@revision"""
    hf_hub_token: str | None
    """accepted without effect: nothing is fetched from the network; give a folder"""
    ms_hub_token: str | None
    """accepted without effect: nothing is fetched from the network; give a folder"""
    om_hub_token: str | None
    """accepted without effect: nothing is fetched from the network; give a folder"""
    use_fast_tokenizer: bool
    """accepted without effect: there is one tokenizer implementation, and it reads the fast tokenizer's files"""
    trust_remote_code: bool
    """accepted without effect: no Python from a model folder is ever run"""
    print_param_status: bool
    """accepted without effect: `megalith preview memory` shows what the parameters of each rank take"""
    use_v1_kernels: bool | None
    """accepted without effect: Megalith has kernels of its own"""
    use_kv_cache: bool
    """accepted without effect: an inference setting; training does not use it"""
    use_cache: bool
    """accepted without effect: an inference setting; training does not use it"""
    infer_backend: str
    """accepted without effect: an inference setting; training does not use it"""
    infer_dtype: str
    """accepted without effect: an inference setting; training does not use it"""
    vllm_maxlen: int
    """accepted without effect: an inference setting; training does not use it"""
    vllm_gpu_util: float
    """accepted without effect: an inference setting; training does not use it"""
    vllm_enforce_eager: bool
    """accepted without effect: an inference setting; training does not use it"""
    vllm_max_lora_rank: int
    """accepted without effect: an inference setting; training does not use it"""
    vllm_config: Mapping[str, Any] | str | None
    """accepted without effect: an inference setting; training does not use it"""
    sglang_maxlen: int
    """accepted without effect: an inference setting; training does not use it"""
    sglang_mem_fraction: float
    """accepted without effect: an inference setting; training does not use it"""
    sglang_tp_size: int
    """accepted without effect: an inference setting; training does not use it"""
    sglang_config: Mapping[str, Any] | str | None
    """accepted without effect: an inference setting; training does not use it"""
    sglang_lora_backend: str
    """accepted without effect: an inference setting; training does not use it"""
    export_dir: str | None
    """accepted without effect: the run exports its model at the end; `megalith convert` does the rest"""
    export_size: int
    """accepted without effect: the run exports its model at the end; `megalith convert` does the rest"""
    export_device: str
    """accepted without effect: the run exports its model at the end; `megalith convert` does the rest"""
    export_quantization_bit: int | None
    """accepted without effect: the run exports its model at the end; `megalith convert` does the rest"""
    export_quantization_dataset: str | None
    """accepted without effect: the run exports its model at the end; `megalith convert` does the rest"""
    export_quantization_nsamples: int
    """accepted without effect: the run exports its model at the end; `megalith convert` does the rest"""
    export_quantization_maxlen: int
    """accepted without effect: the run exports its model at the end; `megalith convert` does the rest"""
    export_legacy_format: bool
    """accepted without effect: the run exports its model at the end; `megalith convert` does the rest"""
    export_hub_model_id: str | None
    """accepted without effect: the run exports its model at the end; `megalith convert` does the rest"""
    image_do_pan_and_scan: bool
    """accepted without effect: for Gemma 3, whose images Megalith does not read"""
    crop_to_patches: bool
    """accepted without effect: for InternVL, which is not supported"""
    audio_sampling_rate: int
    """refused: the audio towers of all models take 16000 samples per second, to which sounds of every rate are resampled; leave it out"""
    new_special_tokens_config: str | None
    """refused: the rows of new tokens start from the mean of the others plus noise; use add_special_tokens"""
    init_special_tokens: str
    """refused: the rows of new tokens start from the mean of the others plus noise; use add_special_tokens"""
    quantization_method: str
    """refused: weights in 4 and 8 bits are those of bitsandbytes; use quantization_bit without it"""
    quantization_device_map: str | None
    """refused: the layout says where weights lie; leave it out"""
    ref_model_quantization_bit: int | None
    """refused: a reference of its own is kept in the dtype of the run; without ref_model it is the base below the adapter, with as many bits as quantization_bit says"""
    reward_model_quantization_bit: int | None
    """refused: PPO, which takes a reward model, is not part of Megalith"""
    rope_scaling: str | None
    """refused: write rope_scaling into the model folder's config.json"""
    use_unsloth: bool
    """refused: it changes the model; Megalith trains the model as its config.json describes it"""
    shift_attn: bool
    """refused: it changes the model; Megalith trains the model as its config.json describes it"""
    mixture_of_depths: str | None
    """refused: it changes the model; Megalith trains the model as its config.json describes it"""
    use_kt: bool
    """refused: it changes the model; Megalith trains the model as its config.json describes it"""
    use_kt_optimize_rule: bool
    """refused: it changes the model; Megalith trains the model as its config.json describes it"""
    kt_optimize_rule: str | None
    """refused: it changes the model; Megalith trains the model as its config.json describes it"""
    kt_cpu_activation: str | None
    """refused: it changes the model; Megalith trains the model as its config.json describes it"""
    kt_weight_path: str | None
    """refused: it changes the model; Megalith trains the model as its config.json describes it"""
    kt_non_expert_weight_path: str | None
    """refused: it changes the model; Megalith trains the model as its config.json describes it"""
    kt_expert_checkpoint_path: str | None
    """refused: it changes the model; Megalith trains the model as its config.json describes it"""
    kt_use_lora_experts: bool | None
    """refused: it changes the model; Megalith trains the model as its config.json describes it"""
    kt_lora_expert_num: int | None
    """refused: it changes the model; Megalith trains the model as its config.json describes it"""
    kt_lora_expert_intermediate_size: int | None
    """refused: it changes the model; Megalith trains the model as its config.json describes it"""
    num_layers: int | None
    """decoder layers"""
    hidden_size: int | None
    """width of the residual stream"""
    ffn_hidden_size: int | None
    """MLP width (none: 4h; with swiglu 4h*2/3 rounded down to a multiple of 64)"""
    num_attention_heads: int | None
    """query heads"""
    group_query_attention: bool
    """fewer key/value heads than query heads"""
    num_query_groups: int | None
    """key/value heads with group_query_attention"""
    kv_channels: int | None
    """size of a head (none: hidden / heads)"""
    seq_length: int | None
    """tokens of a training sample"""
    max_position_embeddings: int | None
    """longest sequence the model takes"""
    vocab_size: int | None
    """tokens before padding"""
    padded_vocab_size: int | None
    """tokens after padding (none: computed)"""
    make_vocab_size_divisible_by: int
    """the padded vocabulary is a multiple of this times tp"""
    untie_embeddings_and_output_weights: bool | None
    """a separate output matrix"""
    mtp_num_layers: int | None
    """multi-token-prediction depths"""
    mtp_loss_scaling_factor: float
    """weight of the loss of multi-token prediction"""
    normalization: Literal["LayerNorm", "RMSNorm"] | None
    """kind of norm"""
    layernorm_epsilon: float | None
    """added to the variance"""
    swiglu: bool | None
    """gated SiLU MLP"""
    squared_relu: bool | None
    """squared ReLU MLP"""
    quick_geglu: bool | None
    """gated quick-GELU MLP"""
    add_bias_linear: bool | None
    """biases in linear layers"""
    add_qkv_bias: bool | None
    """bias in the query/key/value projection"""
    qk_layernorm: bool | None
    """norm on queries and keys"""
    apply_layernorm_1p: bool | None
    """norm weights stored as w - 1; accepted without effect: norm weights are stored as they are; they do not decay, so training is the same"""
    apply_query_key_layer_scaling: bool | None
    """scale attention scores by the layer number; accepted without effect: scores and their softmax are computed in fp32 and need no scaling"""
    attention_softmax_in_fp32: bool | None
    """attention softmax in fp32; accepted without effect: always so"""
    hidden_dropout: float | None
    """dropout after attention and MLP"""
    attention_dropout: float | None
    """dropout on attention probabilities"""
    init_method_std: float | None
    """standard deviation of fresh weights"""
    attention_output_gate: bool | None
    """sigmoid gate on the attention output"""
    window_size: str | None
    """left,right: tokens before itself that a query sees (-1: all), and 0 (none: no window)"""
    window_attn_skip_freq: str | None
    """every n-th layer has no window, or a list such as ([1]*3+[0]) whose zeros have none"""
    position_embedding_type: Literal["learned_absolute", "rope", "yarn", "none"] | bool | None
    """how positions enter the model"""
    rotary_base: float | None
    """base of the rotation frequencies"""
    rotary_percent: float | None
    """part of a head that rotates"""
    rotary_interleaved: bool | None
    """rotate neighbors instead of halves"""
    rotary_seq_len_interpolation_factor: int | None
    """linear stretch of positions"""
    use_rope_scaling: bool | None
    """llama 3 scaling"""
    rope_scaling_factor: float | None
    """factor of llama 3 scaling"""
    rope_type: Literal["rope", "yarn"] | None
    """latent attention: rope or yarn (none: yarn)"""
    rotary_scaling_factor: float | None
    """latent attention: yarn factor"""
    original_max_position_embeddings: int | None
    """yarn: length the model was first trained for"""
    beta_fast: float | None
    """yarn: where scaling starts"""
    beta_slow: float | None
    """yarn: where scaling is full"""
    mscale: float | None
    """yarn: attention temperature"""
    mscale_all_dim: float | None
    """yarn: attention temperature, all dimensions"""
    add_position_embedding: bool
    """whether learned positions are added; accepted without effect: positions are chosen by position_embedding_type; false is refused unless that is rope, as in Megatron"""
    multi_latent_attention: bool
    """DeepSeek's low-rank attention"""
    q_lora_rank: int | None
    """query compression (none: no compression)"""
    kv_lora_rank: int | None
    """key/value compression"""
    qk_head_dim: int | None
    """unrotated part of a query/key head"""
    qk_pos_emb_head_dim: int | None
    """rotated part of a query/key head"""
    v_head_dim: int | None
    """size of a value head"""
    num_experts: int | None
    """experts per MoE layer (none: dense)"""
    moe_layer_freq: str | None
    """every n-th layer is MoE, or a list such as ([1]*3+[0]*2)"""
    moe_ffn_hidden_size: int | None
    """width of an expert (none: ffn_hidden_size)"""
    moe_shared_expert_intermediate_size: int | None
    """width of all shared experts together (none: no shared expert)"""
    moe_shared_expert_gate: bool | None
    """sigmoid gate on the shared expert"""
    moe_shared_expert_overlap: bool
    """run the shared expert beside the token exchange; alltoall only"""
    overlap_moe_expert_parallel_comm: bool
    """run the forward of a micro-batch together with the backward of another, each beside the other's token exchange; alltoall only, with pp > 1 virtual stages only"""
    moe_token_dispatcher_type: Literal["allgather", "alltoall"]
    """how tokens reach their experts"""
    moe_grouped_gemm: bool | None
    """one kernel for all local experts; accepted without effect: the experts of a rank are always computed together"""
    moe_expert_capacity_factor: float | None
    """rows of an expert over the fair share; negative or none: nothing is dropped"""
    moe_pad_expert_input_to_capacity: bool | None
    """pad every expert to its capacity; needs moe_expert_capacity_factor"""
    moe_token_drop_policy: Literal["probs", "position"] | None
    """drop the smallest weights or the last positions"""
    moe_enable_routing_replay: bool
    """record routing decisions and replay them"""
    moe_per_layer_logging: bool
    """log the losses of each layer's router"""
    moe_router_topk: int | None
    """experts per token"""
    moe_router_load_balancing_type: Sequence[Literal["aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none"]]
    """how experts are kept equally busy; several with one coefficient each"""
    moe_aux_loss_coeff: Sequence[float]
    """weight of the balancing loss, one per type"""
    moe_z_loss_coeff: float | None
    """weight of the router-logit penalty"""
    moe_router_score_function: Literal["softmax", "sigmoid"] | None
    """softmax or sigmoid"""
    moe_router_dtype: Literal["fp32", "fp64"] | None
    """number format of the router (none: fp32 with sigmoid scores and from 32 experts on)"""
    moe_router_pre_softmax: bool | None
    """softmax over all experts before choosing"""
    moe_router_num_groups: int | None
    """group-limited routing: groups"""
    moe_router_group_topk: int | None
    """group-limited routing: groups a token may use"""
    moe_router_topk_scaling_factor: float | None
    """multiplies the chosen weights"""
    moe_router_enable_expert_bias: bool | None
    """balance by a bias on the choice in place of a loss"""
    moe_router_bias_update_rate: float | None
    """step of the balancing bias"""
    moe_input_jitter_eps: float | None
    """noise on the router's input"""
    moe_permute_fusion: bool
    """accepted without effect: permutation and routing are always fused"""
    moe_router_fusion: bool
    """accepted without effect: permutation and routing are always fused"""
    moe_use_legacy_grouped_gemm: bool
    """accepted without effect: experts have one grouped product"""
    moe_router_padding_for_fp8: bool
    """accepted without effect: the products of experts need no padding"""
    moe_enable_deepep: bool
    """refused: it needs communication kernels that Megalith does not have (DeepEP)"""
    moe_flex_dispatcher_backend: str | None
    """refused: it needs communication kernels that Megalith does not have (DeepEP)"""
    moe_use_upcycling: bool
    """refused: dense checkpoints are not turned into experts"""
    moe_upcycling_granularity: int
    """refused: dense checkpoints are not turned into experts"""
    recompute_granularity: Literal["full", "selective"] | None
    """full layers or selected modules"""
    recompute_method: Literal["uniform", "block"] | None
    """with full: groups of n layers, or the first n"""
    recompute_num_layers: int | None
    """the n of recompute_method"""
    recompute_modules: str | Sequence[Literal["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "mlp_act", "moe", "shared_experts"]]
    """with selective: what is computed twice (none: core_attn)"""
    moe_layer_recompute: bool
    """compute MoE layers twice"""
    gradient_checkpointing: bool
    """without recompute_granularity the same as full, uniform, 1"""
    recompute_activations: bool
    """the same as recompute_granularity selective"""
    distribute_saved_activations: bool
    """split stored layer inputs over tp; full recompute without sequence_parallel"""
    cpu_offloading: bool
    """keep the activations of all layers but the last, or of the first cpu_offloading_num_layers, in host memory"""
    cpu_offloading_num_layers: int
    """the same for so many layers, from the first; above 0 it implies cpu_offloading"""
    bias_activation_fusion: bool
    """always one kernel; gpt2 from scratch: GELU by its tanh approximation, as the reference's kernel"""
    apply_rope_fusion: bool
    """rotary embedding in one kernel; accepted without effect: rotary embedding is always one kernel"""
    cross_entropy_loss_fusion: bool
    """softmax, loss and gradient in one kernel; effective with tp 1"""
    gradient_accumulation_fusion: bool
    """weight gradients straight into the fp32 buffer; accepted without effect: weight gradients always go straight into the gradient buffer"""
    cuda_graph_impl: Literal["none", "local", "transformer_engine"] | bool | None
    """local: forward and backward of micro-batches of equal shape as CUDA graphs, where the device can run them alone"""
    cuda_graph_scope: str | Sequence[str]
    """what a graph holds: full, a micro-batch's forward and backward; parts of layers are refused"""
    cuda_graph_warmup_steps: int
    """steps that run without graphs before the first is recorded"""
    flash_attn: str
    """accepted without effect: speed or memory only; Megalith chooses by itself"""
    attention_backend: str
    """accepted without effect: speed or memory only; Megalith chooses by itself"""
    use_flash_attn: bool
    """accepted without effect: speed or memory only; Megalith chooses by itself"""
    masked_softmax_fusion: bool
    """accepted without effect: speed or memory only; Megalith chooses by itself"""
    bias_dropout_fusion: bool
    """accepted without effect: speed or memory only; Megalith chooses by itself"""
    persist_layer_norm: bool
    """accepted without effect: speed or memory only; Megalith chooses by itself"""
    disable_jit_fuser: bool
    """accepted without effect: speed or memory only; Megalith chooses by itself"""
    use_flashinfer_fused_rope: bool
    """accepted without effect: speed or memory only; Megalith chooses by itself"""
    cross_entropy_fusion_impl: str
    """accepted without effect: speed or memory only; Megalith chooses by itself"""
    use_cpu_initialization: bool | None
    """accepted without effect: the same weights are drawn on every device"""
    perform_initialization: bool
    """accepted without effect: weights that a checkpoint replaces are not drawn"""
    compile_warmup: bool
    """accepted without effect: kernels are compiled ahead of time"""
    manual_gc: bool
    """accepted without effect: there is no garbage collector"""
    manual_gc_interval: int
    """accepted without effect: there is no garbage collector"""
    manual_gc_eval: bool
    """accepted without effect: there is no garbage collector"""
    empty_unused_memory_level: int
    """accepted without effect: the allocator returns cached memory by itself when an allocation needs it"""
    torch_empty_cache_steps: int | None
    """accepted without effect: the allocator returns cached memory by itself when an allocation needs it"""
    upcast_layernorm: bool
    """refused: norms compute in fp32 and their weights have the precision of the model; leave it out"""
    upcast_lmhead_output: bool
    """accepted without effect: the loss is always computed from logits in fp32"""
    low_cpu_mem_usage: bool
    """accepted without effect: weights are read straight into the ranks' shards and never held whole"""
    enable_liger_kernel: bool
    """accepted without effect: speed or memory only; Megalith chooses by itself"""
    use_liger_kernel: bool
    """accepted without effect: speed or memory only; Megalith chooses by itself"""
    liger_kernel_config: Mapping[str, Any] | str | None
    """accepted without effect: speed or memory only; Megalith chooses by itself"""
    use_unsloth_gc: bool
    """refused: activations are not moved to the host by this option; set recompute_granularity full"""
    offload_folder: str
    """accepted without effect: weights are read straight into the ranks' shards and never held whole"""
    disable_gradient_checkpointing: bool
    """accepted without effect: activations are recomputed only where recompute_granularity or gradient_checkpointing asks for it"""
    use_reentrant_gc: bool
    """accepted without effect: recomputation has one implementation; see recompute_granularity"""
    gradient_checkpointing_kwargs: Mapping[str, Any] | str | None
    """accepted without effect: recomputation has one implementation; see recompute_granularity"""
    use_mcore_models: bool
    """accepted without effect: there is one implementation of each model"""
    te_rng_tracker: bool
    """accepted without effect: there is one tracker of random states, and CUDA graphs can use it"""
    fsdp: str | None
    """refused: Megalith shards by tp, pp, cp, ep and use_distributed_optimizer"""
    fsdp_config: Mapping[str, Any] | str | None
    """refused: Megalith shards by tp, pp, cp, ep and use_distributed_optimizer"""
    fsdp_min_num_params: int
    """refused: Megalith shards by tp, pp, cp, ep and use_distributed_optimizer"""
    fsdp_transformer_layer_cls_to_wrap: str | None
    """refused: Megalith shards by tp, pp, cp, ep and use_distributed_optimizer"""
    accelerator_config: Mapping[str, Any] | str | None
    """refused: Megalith shards by tp, pp, cp, ep and use_distributed_optimizer"""
    parallelism_config: Mapping[str, Any] | str | None
    """refused: Megalith shards by tp, pp, cp, ep and use_distributed_optimizer"""
    use_torch_fsdp2: bool
    """refused: Megalith shards by tp, pp, cp, ep and use_distributed_optimizer"""
    use_megatron_fsdp: bool
    """refused: Megalith shards by tp, pp, cp, ep and use_distributed_optimizer"""
    use_custom_fsdp: bool
    """refused: Megalith shards by tp, pp, cp, ep and use_distributed_optimizer"""
    data_parallel_sharding_strategy: str
    """refused: Megalith shards by tp, pp, cp, ep and use_distributed_optimizer"""
    bf16: bool
    """weights and activations in bfloat16"""
    fp16: bool
    """weights and activations in half precision, with loss scaling"""
    tf32: bool | None
    """fp32 products on GPUs in TF32 (none: in fp32)"""
    fp32_residual_connection: bool
    """residual stream, and its messages between stages, in fp32; needs bf16 or fp16"""
    fp8: Literal["e4m3", "hybrid"] | None
    """fp8 products in this format (none: off)"""
    fp8_recipe: Literal["tensorwise", "delayed", "blockwise"] | None
    """how fp8 scales are found (none: tensorwise; in pretrain delayed, as Megatron)"""
    fp8_wgrad: bool
    """weight gradients of fp8 layers in fp8; off: in bf16, from activations kept in bf16"""
    fp8_param: bool
    """keep and gather weights of fp8 products in fp8; needs fp8 and use_distributed_optimizer"""
    fp8_head: bool
    """the head's products in fp8 too; needs fp8 and cross_entropy_loss_fusion"""
    fp8_experts: bool
    """experts' products in fp8 too, but for their weight gradients; needs fp8"""
    fp8_amax_history_len: int
    """steps the delayed recipe looks back"""
    fp8_amax_compute_algo: Literal["most_recent", "max"]
    """which of those steps the delayed recipe uses"""
    fp8_margin: int
    """the delayed recipe's scales are divided by 2 to this power"""
    first_last_layers_bf16: bool
    """fp8 for inner layers only"""
    loss_scale: float | None
    """fp16: constant scale (none: dynamic)"""
    initial_loss_scale: float
    """dynamic scale: start"""
    min_loss_scale: float
    """dynamic scale: floor"""
    loss_scale_window: float
    """dynamic scale: clean steps before it doubles"""
    hysteresis: int
    """dynamic scale: overflows before it halves"""
    accumulate_allreduce_grads_in_fp32: bool
    """gradient buffer in fp32; always so with bf16; accepted without effect: gradients are always summed up in fp32, unless grad_reduce_in_bf16 is set"""
    grad_reduce_in_bf16: bool
    """sum gradients in bf16 instead"""
    pure_bf16: bool
    """refused: training without fp32 master weights loses small updates; use bf16"""
    fp4: str | None
    """refused: fp4 products are not part of Megalith; use fp8"""
    fp8_backend: str
    """refused: set fp8 to e4m3 or hybrid"""
    fp8_enable_fsdp_float8_all_gather: bool
    """refused: use fp8_param"""
    bf16_full_eval: bool
    """refused: evaluation runs in the precision of training; set bf16 or fp16"""
    fp16_full_eval: bool
    """refused: evaluation runs in the precision of training; set bf16 or fp16"""
    fp16_opt_level: str
    """accepted without effect: fp16 and bf16 have one implementation; these choose between backends of older transformers versions"""
    half_precision_backend: str
    """accepted without effect: fp16 and bf16 have one implementation; these choose between backends of older transformers versions"""
    fp16_backend: str
    """accepted without effect: fp16 and bf16 have one implementation; these choose between backends of older transformers versions"""
    fp16_lm_cross_entropy: bool
    """refused: the loss is computed in fp32 and costs no more memory for it; leave it out"""
    fp8_interval: int
    """accepted without effect: a setting of Transformer Engine that it no longer reads"""
    optimizer: Literal["adam", "sgd", "muon", "lion"]
    """adam (AdamW), sgd, lion, or muon for weight matrices with muon_scalar_optimizer for the rest"""
    optim: Literal["adamw_torch_fused", "adamw_torch", "adamw_hf", "sgd"]
    """HF's name of the optimizer; sgd selects sgd"""
    learning_rate: float | None
    """peak learning rate (required by pretrain)"""
    weight_decay: float
    """decoupled; not on biases and norms"""
    weight_decay_incr_style: Literal["constant", "linear", "cosine"]
    """how weight decay changes over the run; linear and cosine need start and end"""
    start_weight_decay: float | None
    """weight decay at the start of the run"""
    end_weight_decay: float | None
    """weight decay at the end of the run"""
    apply_wd_to_qk_layernorm: bool
    """decay q/k norm weights too"""
    adam_beta1: float
    """first-moment decay"""
    adam_beta2: float
    """second-moment decay"""
    adam_epsilon: float
    """added to the root of the second moment"""
    sgd_momentum: float
    """momentum of sgd"""
    lion_beta1: float
    """lion: share of the momentum in the direction"""
    lion_beta2: float
    """lion: decay of the momentum"""
    max_grad_norm: float
    """clip gradients to this norm; 0: off"""
    label_smoothing_factor: float
    """share of each target's probability that is spread over the vocabulary; in eval_loss, too"""
    neftune_noise_alpha: float | None
    """noise on embeddings in training: uniform, within alpha / sqrt(tokens * hidden size)"""
    decoupled_lr: float | None
    """peak rate of embedding and head"""
    decoupled_min_lr: float | None
    """smallest rate of embedding and head"""
    muon_momentum: float
    """muon: decay of the momentum"""
    muon_nesterov: bool
    """muon: look one step ahead with the momentum"""
    muon_scale_mode: Literal["spectral", "unit_rms_norm", "shape_scaling"]
    """muon: an update's size for a weight of out x in is the root of max(out, in), out/in or max(1, out/in)"""
    muon_extra_scale_factor: float
    """muon: factor of the update; 0.2 with spectral takes steps as large as AdamW's"""
    muon_coefficient_type: Literal["simple", "quintic", "polar_express", "aol"]
    """muon: coefficients of the Newton-Schulz iteration; simple is torch.optim.Muon's"""
    muon_num_ns_steps: int
    """muon: steps of the iteration; for quintic a multiple of 5, for aol of 4, for polar_express at least 8"""
    muon_fp32_matmul_prec: Literal["medium", "high"]
    """muon: products of the iteration in bf16 (medium) or fp32 (high)"""
    muon_tp_mode: Literal["blockwise", "duplicated", "distributed"]
    """muon: with tp, orthogonalize each rank's block (blockwise), the gathered weight (duplicated), or the whole weight with products shared by the ranks (distributed)"""
    muon_split_qkv: bool
    """muon: query, key and value are matrices of their own"""
    muon_scalar_optimizer: Literal["adam", "lion"]
    """muon: the rule for embeddings, heads, norms and biases"""
    use_distributed_optimizer: bool
    """shard optimizer state over data-parallel ranks"""
    deepspeed: Mapping[str, Any] | str
    """DeepSpeed file: ZeRO stages 1 and 2 shard the optimizer, offload_optimizer moves it to the CPU"""
    optimizer_cpu_offload: bool
    """optimizer state and step on the host"""
    optimizer_offload_fraction: float
    """fraction of the parameters that is offloaded"""
    use_precision_aware_optimizer: bool
    """keep optimizer state in the formats below, and of fp32 master weights of a bf16 model only the bits that its parameters lack"""
    main_grads_dtype: Literal["fp32", "bf16"]
    """format in which gradients are summed up and reduced; bf16 needs bf16"""
    main_params_dtype: Literal["fp32", "fp16"]
    """format of master weights; fp16 (with scales) needs bf16 or fp16"""
    exp_avg_dtype: Literal["fp32", "fp16", "bf16", "fp8"]
    """format of the first moment, or of the momentum of sgd; fp16 and fp8 (e4m3) with scales"""
    exp_avg_sq_dtype: Literal["fp32", "fp16", "bf16", "fp8"]
    """format of the second moment; fp16 and fp8 (e4m3) with scales"""
    overlap_param_gather_with_optimizer_step: bool
    """gather the parameters of a chunk while the next chunk is updated; needs vpp and overlap_param_gather"""
    overlap_optimizer_with_forward: bool
    """update later layers beside the next forward pass, where that is faster: large models on one GPU or in plain data parallelism"""
    use_torch_optimizer_for_cpu_offload: bool
    """accepted without effect: the host optimizer overlaps its copies by itself"""
    overlap_cpu_optimizer_d2h_h2d: bool
    """accepted without effect: the host optimizer overlaps its copies by itself"""
    pin_cpu_grads: bool
    """accepted without effect: the host optimizer overlaps its copies by itself"""
    pin_cpu_params: bool
    """accepted without effect: the host optimizer overlaps its copies by itself"""
    optim_args: str | None
    """refused: Megalith has adam (AdamW), sgd, muon and lion; set optimizer to one of them"""
    optim_target_modules: Sequence[str] | None
    """refused: Megalith has adam (AdamW), sgd, muon and lion; set optimizer to one of them"""
    adafactor: bool
    """refused: Megalith has adam (AdamW), sgd, muon and lion; set optimizer to one of them"""
    use_adam_mini: bool
    """refused: Megalith has adam (AdamW), sgd, muon and lion; set optimizer to one of them"""
    use_muon: bool
    """refused: set optimizer muon instead"""
    use_galore: bool
    """refused: Megalith has adam (AdamW), sgd, muon and lion; set optimizer to one of them"""
    use_apollo: bool
    """refused: Megalith has adam (AdamW), sgd, muon and lion; set optimizer to one of them"""
    use_badam: bool
    """refused: Megalith has adam (AdamW), sgd, muon and lion; set optimizer to one of them"""
    galore_target: str
    """accepted without effect: belongs to an optimizer that Megalith does not have"""
    galore_rank: int
    """accepted without effect: belongs to an optimizer that Megalith does not have"""
    galore_update_interval: int
    """accepted without effect: belongs to an optimizer that Megalith does not have"""
    galore_scale: float
    """accepted without effect: belongs to an optimizer that Megalith does not have"""
    galore_proj_type: str
    """accepted without effect: belongs to an optimizer that Megalith does not have"""
    galore_layerwise: bool
    """accepted without effect: belongs to an optimizer that Megalith does not have"""
    apollo_target: str
    """accepted without effect: belongs to an optimizer that Megalith does not have"""
    apollo_rank: int
    """accepted without effect: belongs to an optimizer that Megalith does not have"""
    apollo_update_interval: int
    """accepted without effect: belongs to an optimizer that Megalith does not have"""
    apollo_scale: float
    """accepted without effect: belongs to an optimizer that Megalith does not have"""
    apollo_proj: str
    """accepted without effect: belongs to an optimizer that Megalith does not have"""
    apollo_proj_type: str
    """accepted without effect: belongs to an optimizer that Megalith does not have"""
    apollo_scale_type: str
    """accepted without effect: belongs to an optimizer that Megalith does not have"""
    apollo_layerwise: bool
    """accepted without effect: belongs to an optimizer that Megalith does not have"""
    apollo_scale_front: bool
    """accepted without effect: belongs to an optimizer that Megalith does not have"""
    badam_mode: str
    """accepted without effect: belongs to an optimizer that Megalith does not have"""
    badam_start_block: int | None
    """accepted without effect: belongs to an optimizer that Megalith does not have"""
    badam_switch_mode: str
    """accepted without effect: belongs to an optimizer that Megalith does not have"""
    badam_switch_interval: int
    """accepted without effect: belongs to an optimizer that Megalith does not have"""
    badam_update_ratio: float
    """accepted without effect: belongs to an optimizer that Megalith does not have"""
    badam_mask_mode: str
    """accepted without effect: belongs to an optimizer that Megalith does not have"""
    badam_verbose: int
    """accepted without effect: belongs to an optimizer that Megalith does not have"""
    use_dft_loss: bool
    """refused: the loss is cross-entropy; see label_smoothing_factor, and pref_loss for preferences"""
    use_asft_loss: bool
    """refused: the loss is cross-entropy; see label_smoothing_factor, and pref_loss for preferences"""
    asft_alpha: float
    """refused: the loss is cross-entropy; see label_smoothing_factor, and pref_loss for preferences"""
    use_eaft_loss: bool
    """refused: the loss is cross-entropy; see label_smoothing_factor, and pref_loss for preferences"""
    eaft_alpha: float
    """refused: the loss is cross-entropy; see label_smoothing_factor, and pref_loss for preferences"""
    average_tokens_across_devices: bool
    """refused: set calculate_per_token_loss: true averages over all tokens of the batch, false over micro-batches"""
    overlap_grad_reduce: bool
    """reduce a bucket as soon as it is full"""
    delay_grad_reduce: bool
    """later stages reduce after their last backward, not during it"""
    align_grad_reduce: bool
    """all stages start their reduction together"""
    overlap_param_gather: bool
    """gather a bucket just before its forward; needs use_distributed_optimizer and overlap_grad_reduce"""
    align_param_gather: bool
    """all stages start their gather together; accepted without effect: every stage starts to gather right after its update"""
    ddp_average_in_collective: bool
    """divide inside the collective; not with calculate_per_token_loss"""
    ddp_bucket_size: int | None
    """elements per bucket (none: max(40 000 000, 1 000 000 * dp); on CPU 1 500 000)"""
    ddp_num_buckets: int | None
    """number of buckets in place of ddp_bucket_size"""
    ddp_pad_buckets_for_high_nccl_busbw: bool
    """bucket ends at multiples of 65536"""
    check_for_nan_in_loss_and_grad: bool
    """stop at the first NaN or Inf"""
    calculate_per_token_loss: bool
    """divide gradients by the tokens of the whole step"""
    lr_scheduler_type: Literal["linear", "cosine", "constant", "constant_with_warmup", "inverse_sqrt", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay"]
    """shape of the schedule; lr_decay_style wins when set"""
    lr_scheduler_kwargs: Mapping[str, Any] | str
    """max_lr, min_lr, min_lr_rate, init_lr, lr_decay_steps, wsd_decay_steps (num_decay_steps), lr_wsd_decay_style"""
    warmup_steps: float
    """linear warm-up: steps, or below 1 a fraction of all"""
    warmup_ratio: float
    """warm-up as a fraction of all steps, only if warmup_steps is 0"""
    lr_decay_style: Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"] | None
    """shape of the schedule"""
    min_lr: float
    """smallest learning rate"""
    lr_decay_iters: int | None
    """steps to the floor (none: all)"""
    lr_decay_samples: int | None
    """samples to the floor"""
    lr_warmup_fraction: float | None
    """warm-up as a part of the decay length"""
    lr_warmup_iters: int
    """warm-up steps"""
    lr_warmup_samples: int
    """warm-up samples"""
    lr_warmup_init: float
    """rate at step 0"""
    lr_wsd_decay_style: Literal["exponential", "linear", "cosine", "minus_sqrt"]
    """last phase of WSD"""
    lr_wsd_decay_iters: int | None
    """steps of the last phase of WSD"""
    lr_wsd_decay_samples: int | None
    """samples of the last phase of WSD"""
    override_opt_param_scheduler: bool
    """on resume keep the values given here"""
    use_checkpoint_opt_param_scheduler: bool
    """on resume take the checkpoint's values"""
    dataset: str | Sequence[str]
    """names in dataset_info.json, or paths"""
    eval_dataset: str | Sequence[str]
    """evaluation data, named like dataset"""
    dataset_dir: str
    """folder of dataset_info.json"""
    template: str | None
    """chat template by name (none, or tokenizer: the tokenizer's own)"""
    cutoff_len: int
    """tokens of a sample"""
    train_on_prompt: bool
    """loss on prompts too; sft only"""
    mask_history: bool
    """loss on the last turn only; sft only"""
    streaming: bool
    """read the data as training goes; needs max_steps"""
    buffer_size: int
    """records shuffled at a time when streaming"""
    mix_strategy: Literal["concat", "interleave_under", "interleave_over", "interleave_once"]
    """how several datasets are joined"""
    interleave_probs: str | Sequence[str]
    """probability of each dataset when interleaving"""
    val_size: float
    """records (1 or more) or fraction held out for evaluation"""
    eval_on_each_dataset: bool
    """one set of metrics per dataset"""
    max_samples: int | None
    """records kept of each dataset"""
    packing: bool | None
    """several samples per row (none: on for pt)"""
    neat_packing: bool
    """packing without attention between samples; sft only"""
    sequence_packing: bool
    """the adapter's name for neat packing"""
    tokenized_path: str | None
    """load tokens from here, or save them here"""
    preprocessing_batch_size: int
    """records tokenized at a time; packing horizon"""
    preprocessing_num_workers: int | None
    """threads; results do not depend on it"""
    default_system: str | None
    """system message in place of the template's"""
    enable_thinking: bool | None
    """reasoning templates: train with thoughts"""
    preserve_thinking: bool
    """keep thoughts of earlier turns"""
    train_sampling_strategy: Literal["random", "sequential", "group_by_length"]
    """order of the samples of an epoch"""
    disable_shuffling: bool
    """the same as train_sampling_strategy sequential"""
    group_by_length: bool
    """the same as train_sampling_strategy group_by_length: samples of similar length in a micro-batch"""
    ignore_data_skip: bool
    """resume from the start of the epoch's data"""
    dataloader_type: Literal["single", "cyclic"]
    """single: in order; cyclic: a permutation per epoch"""
    dataloader_num_workers: int
    """loader processes of the reference; accepted without effect: batches are prepared by threads of the rank"""
    dataloader_prefetch_factor: int | None
    """batches a loader process holds; accepted without effect: batches are prepared by threads of the rank"""
    dataloader_pin_memory: bool
    """accepted without effect: batches are prepared by threads of the rank"""
    dataloader_persistent_workers: bool
    """accepted without effect: batches are prepared by threads of the rank"""
    dataloader_drop_last: bool
    """accepted without effect: incomplete batches are always dropped"""
    remove_unused_columns: bool
    """accepted without effect: columns are chosen by dataset_info.json"""
    label_names: Sequence[str] | None
    """accepted without effect: columns are chosen by dataset_info.json"""
    length_column_name: str
    """accepted without effect: columns are chosen by dataset_info.json"""
    past_index: int
    """refused: models that carry hidden states from batch to batch are not part of Megalith"""
    tool_format: Literal["qwen"] | None
    """accepted without effect: tools are written as the template does"""
    overwrite_cache: bool
    """accepted without effect: cached tokens are named by all they depend on: none is outdated"""
    data_shared_file_system: bool
    """accepted without effect: ranks that see the same folder share its tokens, others make their own"""
    ignore_pad_token_for_loss: bool
    """accepted without effect: padding never counts in the loss"""
    data_path: Sequence[str]
    """prefixes of .bin/.idx files, with or without weights"""
    train_data_path: Sequence[str]
    """like data_path, for training only"""
    valid_data_path: Sequence[str]
    """like data_path, for evaluation only"""
    test_data_path: Sequence[str]
    """like data_path, for the test only"""
    data_args_path: str | None
    """file with the words of data_path"""
    per_split_data_args_path: str | None
    """JSON file with the three lists"""
    split: str | None
    """parts for training, evaluation, test (none: 969, 30, 1)"""
    mock_data: bool
    """random tokens"""
    data_cache_path: str | None
    """folder of sample indices (none: beside the data)"""
    eod_mask_loss: bool
    """no loss on end-of-document tokens"""
    reset_position_ids: bool
    """positions restart after end-of-document tokens"""
    reset_attention_mask: bool
    """no attention across end-of-document tokens"""
    create_attention_mask_in_dataloader: bool
    """accepted without effect: masks are computed by the attention kernels"""
    mmap_bin_files: bool
    """accepted without effect: .bin files are always mapped"""
    num_dataset_builder_threads: int
    """accepted without effect: indices are built once, by one rank, and mapped by the others"""
    dataloader_fast_cache_load: bool
    """accepted without effect: indices are built once, by one rank, and mapped by the others"""
    dataloader_defer_npy_index_mmap: bool
    """accepted without effect: indices are built once, by one rank, and mapped by the others"""
    fim_data: bool
    """refused: fill-in-the-middle data is not part of Megalith"""
    fim_rate: float
    """refused: fill-in-the-middle data is not part of Megalith"""
    fim_spm_rate: float
    """refused: fill-in-the-middle data is not part of Megalith"""
    sft: bool
    """refused: Megatron's own SFT path; use `megalith train`"""
    sft_tokenizer_prompt_format: str
    """refused: Megatron's own SFT path; use `megalith train`"""
    tokenizer_type: str | None
    """Megatron's name of a tokenizer class"""
    tokenizer_model: str | None
    """file or folder of the tokenizer"""
    vocab_file: str | None
    """GPT-2 vocabulary"""
    merge_file: str | None
    """GPT-2 merges"""
    tiktoken_pattern: Literal["v1", "v2"] | None
    """how TikTokenizer cuts text into words, as Megatron names the patterns (none: v2)"""
    tiktoken_num_special_tokens: int
    """ids before the vocabulary of TikTokenizer"""
    tiktoken_special_tokens: Sequence[str]
    """the first of them by name (none: Megatron's seven, <unk> to <sep>)"""
    vocab_extra_ids: int
    """ids that the model has beyond those of the tokenizer"""
    legacy_tokenizer: bool
    """accepted without effect: the tokenizer's own files say it"""
    use_tokenizer_model_from_checkpoint_args: bool
    """accepted without effect: the tokenizer's own files say it"""
    allow_ambiguous_pad_tokens: bool
    """accepted without effect: the tokenizer's own files say it"""
    media_dir: str | None
    """folder of media with relative paths (none: dataset_dir)"""
    skip_broken_media: bool
    """leave out records whose media are missing or damaged, and count them, instead of ending the run"""
    verify_media: bool
    """decode all media while tokenizing: damage is named before training; skip_broken_media does so, too"""
    image_max_pixels: int
    """larger images are scaled down"""
    image_min_pixels: int
    """smaller images are scaled up"""
    video_max_pixels: int
    """larger frames of videos are scaled down"""
    video_min_pixels: int
    """smaller frames of videos are scaled up"""
    video_fps: float
    """frames taken of a second of a video file; frames per second of a video that is a list of images"""
    video_maxlen: int
    """the most frames taken of a video file"""
    use_audio_in_video: bool
    """read videos with sound: that of the <audio> after each <video>, or of the video's file"""
    freeze_vision_tower: bool
    """do not train vision and audio tower: patches, positions, convolutions, blocks, deepstack mergers"""
    freeze_multi_modal_projector: bool
    """do not train the merger between vision tower and language model, and the audio tower's projector"""
    freeze_language_model: bool
    """do not train embedding, layers, final norm and head"""
    vit_lr: float | None
    """peak learning rate of the vision tower (none: learning_rate)"""
    aligner_lr: float | None
    """peak learning rate of the merger (none: learning_rate)"""
    lora_rank: int
    """rank of the update"""
    lora_alpha: int | None
    """scale = alpha / rank (none or 0: 2 * rank)"""
    lora_dropout: float
    """dropout before A"""
    lora_target: str | Sequence[str]
    """module names, or all (all-linear): every linear layer but head and router"""
    additional_target: str | Sequence[str]
    """modules trained in full: embed_tokens, lm_head, norms, gate, visual.merger; bias: all biases"""
    use_rslora: bool
    """scale = alpha / sqrt(rank)"""
    use_dora: bool
    """also train the norms of the rows of W + scale * B A (DoRA)"""
    pissa_init: bool
    """start A and B as the principal singular parts of each weight, which keeps the rest (PiSSA)"""
    pissa_iter: int
    """iterations of the randomized SVD that pissa_init uses; -1: the exact SVD"""
    pissa_convert: bool
    """write such an adapter into output_dir as one of twice the rank for the base model as it was"""
    create_new_adapter: bool
    """merge the given adapters, start a fresh one"""
    adapter_name_or_path: str | Sequence[str]
    """adapters: all but the last are merged, the last is trained on"""
    adapter_folder: str | None
    """folder that holds the adapters"""
    quantization_bit: int | None
    """4 or 8: keep the frozen linear weights below an adapter in so many bits (none: in the dtype of the run)"""
    quantization_type: Literal["nf4", "fp4"]
    """values of weights in 4 bits"""
    double_quantization: bool
    """keep the scales of weights in 4 bits in 8 bits: 4.13 bits per number instead of 4.5"""
    loraplus_lr_ratio: float | None
    """learning rate of B over that of A"""
    loraplus_lr_embedding: float
    """learning rate of embedding adapters"""
    oft_rank: int
    """refused: Megalith's adapters are LoRA, rank-stabilised or with magnitudes (use_dora)"""
    oft_block_size: int
    """refused: Megalith's adapters are LoRA, rank-stabilised or with magnitudes (use_dora)"""
    oft_target: str
    """refused: Megalith's adapters are LoRA, rank-stabilised or with magnitudes (use_dora)"""
    module_dropout: float
    """refused: Megalith's adapters are LoRA, rank-stabilised or with magnitudes (use_dora)"""
    freeze_trainable_layers: int
    """layers that finetuning_type freeze trains: above 0 the last so many, below 0 the first"""
    freeze_trainable_modules: str | Sequence[str]
    """modules of these layers that are trained (self_attn, mlp, …), or all"""
    freeze_extra_modules: str | Sequence[str]
    """modules outside of layers that are trained as well: embed_tokens, norm, lm_head"""
    use_llama_pro: bool
    """train freeze_trainable_layers layers at equal distances, the last of each block of layers"""
    pref_loss: Literal["sigmoid", "robust", "hinge", "ipo", "orpo", "simpo", "sigmoid_norm", "exo_pair", "nca_pair", "bco_pair", "sppo_hard", "aot", "aot_unpaired", "apo_zero", "apo_down", "discopop"]
    """what a pair of answers costs; orpo and simpo need no reference model, the others do"""
    pref_beta: float
    """strength of the preference term"""
    pref_ftx: float
    """weight of the chosen answers' sft loss"""
    dpo_label_smoothing: float
    """share of pairs assumed wrong; sigmoid, robust, exo_pair, aot and aot_unpaired only"""
    simpo_gamma: float
    """margin that simpo asks for"""
    discopop_tau: float
    """temperature at which discopop changes its form"""
    ld_alpha: float | None
    """weight of an answer's tokens beyond the length of the shorter one (none: all tokens count alike)"""
    kto_chosen_weight: float
    """weight of desirable answers in stage kto"""
    kto_rejected_weight: float
    """weight of undesirable answers in stage kto"""
    ref_model: str | None
    """reference model (none: the policy at the start)"""
    precompute_ref_log_probs: bool
    """run the reference once over the data, before training; its answers are kept between runs"""
    ref_model_adapters: str | Sequence[str]
    """adapters merged into the reference model"""
    pref_bco_weight: float
    """refused: PPO is not part of Megalith; use stage dpo with one of the choices of pref_loss, or kto"""
    ppo_buffer_size: int
    """refused: PPO is not part of Megalith; use stage dpo with one of the choices of pref_loss, or kto"""
    ppo_epochs: int
    """refused: PPO is not part of Megalith; use stage dpo with one of the choices of pref_loss, or kto"""
    ppo_score_norm: bool
    """refused: PPO is not part of Megalith; use stage dpo with one of the choices of pref_loss, or kto"""
    ppo_target: float
    """refused: PPO is not part of Megalith; use stage dpo with one of the choices of pref_loss, or kto"""
    ppo_whiten_rewards: bool
    """refused: PPO is not part of Megalith; use stage dpo with one of the choices of pref_loss, or kto"""
    reward_model: str | None
    """refused: PPO is not part of Megalith; use stage dpo with one of the choices of pref_loss, or kto"""
    reward_model_adapters: str | None
    """refused: PPO is not part of Megalith; use stage dpo with one of the choices of pref_loss, or kto"""
    reward_model_type: str
    """refused: PPO is not part of Megalith; use stage dpo with one of the choices of pref_loss, or kto"""
    num_labels: int | None
    """stage cls: scores of a text (none: as many as the head in the model folder has)"""
    problem_type: Literal["regression", "single_label_classification", "multi_label_classification"] | None
    """stage cls: what the scores are for (none: that of the model folder, else regression for one label, single_label_classification for more)"""
    center_rewards_coefficient: float
    """stage rm: weight of (r_chosen + r_rejected)^2, which draws rewards towards 0"""
    teacher_model_name_or_path: str | None
    """model with the same vocabulary whose distributions stages pt and sft train towards"""
    kd_loss: Literal["forward_kl", "reverse_kl", "jsd"]
    """divergence: KL(teacher, model), KL(model, teacher), or jsd, which lies between them"""
    kd_beta: float
    """jsd: the share of the teacher in the mixture of both distributions"""
    kd_temperature: float
    """divides the logits of both models, for the kd loss"""
    kd_ratio: float
    """share of the kd loss; the rest is cross-entropy with the labels"""
    teacher_logits_path: str | None
    """folder with a teacher's likeliest tokens (`megalith distill`), which take the teacher's place"""
    kd_top_k: int | None
    """with teacher_logits_path: likeliest tokens to compare (none: all that the files keep)"""
    kd_tail: bool
    """with teacher_logits_path: all other tokens are one more class; without, both distributions are those of the kept tokens alone"""
    logging_strategy: Literal["no", "steps", "epoch"]
    """when a line is logged"""
    logging_steps: float
    """every n steps; below 1 a fraction of all"""
    logging_first_step: bool
    """log the first step too"""
    logging_nan_inf_filter: bool
    """log the running mean in place of NaN"""
    log_level: Literal["debug", "info", "warning", "error", "critical", "passive"]
    """how much is logged; passive: MEGALITH_LOG_LEVEL, or info"""
    report_to: Sequence[str]
    """none, tensorboard or all; wandb: TensorBoard files, and the command that uploads them; others are noted and skipped"""
    run_name: str | None
    """title of the loss plot, name in the dashboard"""
    logging_dir: str | None
    """TensorBoard files (none: output_dir/tensorboard)"""
    include_num_input_tokens_seen: Literal["no", "all", "non_padding"] | bool
    """count all tokens or those that are not padding; true means all"""
    include_effective_tokens_per_second: bool
    """log tokens that count in the loss, per second"""
    timing_log_level: int
    """0 to 2: how many timers"""
    timing_log_option: Literal["minmax", "max", "all"]
    """over ranks: minmax, max or all"""
    tensorboard_log_interval: int
    """steps between TensorBoard points"""
    log_throughput: bool
    """TFLOP/s per device"""
    log_progress: bool
    """jobs and checkpoints, with throughputs, in progress.txt of the save folder"""
    log_energy: bool
    """joules per step and watts per GPU; needs NVML"""
    log_params_norm: bool
    """norm of the parameters"""
    log_num_zeros_in_grad: bool
    """zeros in the gradients"""
    profile: bool
    """record the kernels of some steps: trace and tables in profile/ of the output folder"""
    profile_step_start: int
    """steps before the first profiled one"""
    profile_step_end: int
    """last profiled step"""
    profile_ranks: Sequence[int]
    """ranks that are profiled"""
    generate_samples_every: int | None
    """every n steps, continue a few prompts with the current weights and keep the texts, with samples of the training data, in samples.jsonl (none: never)"""
    generate_samples_prompts: str | None
    """file with a prompt per line: text, a JSON string or a JSON list of messages (none: beginnings of samples)"""
    generate_samples_max_new_tokens: int
    """most tokens of a generated sample"""
    log_histograms_interval: int | None
    """steps between histograms of weights and gradients by layer (none: never)"""
    log_level_replica: Literal["debug", "info", "warning", "error", "critical", "passive"]
    """accepted without effect: every rank writes its own log file"""
    disable_tqdm: bool | None
    """accepted without effect: the progress line appears on terminals only"""
    log_on_each_node: bool
    """accepted without effect: every rank writes its own log file"""
    plot_loss: bool
    """accepted without effect: loss.svg is always written"""
    skip_memory_metrics: bool
    """accepted without effect: memory is always part of the metrics of a GPU run"""
    debug: str
    """refused: leave it out: check_for_nan_in_loss_and_grad, on by default, names the rank and the parameter"""
    enable_torch_profiler: bool
    """refused: use `--profile --profile_step_start 9 --profile_step_end 12`, which records steps 10 to 12"""
    profiler_output_dir: str | None
    """accepted without effect: belongs to enable_torch_profiler, which is refused; see --profile"""
    profiler_wait_steps: int
    """accepted without effect: belongs to enable_torch_profiler, which is refused; see --profile"""
    profiler_warmup_steps: int
    """accepted without effect: belongs to enable_torch_profiler, which is refused; see --profile"""
    profiler_active_steps: int
    """accepted without effect: belongs to enable_torch_profiler, which is refused; see --profile"""
    profiler_repeat: int
    """accepted without effect: belongs to enable_torch_profiler, which is refused; see --profile"""
    profiler_record_shapes: bool
    """accepted without effect: belongs to enable_torch_profiler, which is refused; see --profile"""
    profiler_profile_memory: bool
    """accepted without effect: belongs to enable_torch_profiler, which is refused; see --profile"""
    profiler_with_stack: bool
    """accepted without effect: belongs to enable_torch_profiler, which is refused; see --profile"""
    profile_modules: str | None
    """refused: use `--profile`, which names the phases of each step, or `--trace 10-12` for the phases alone"""
    use_pytorch_profiler: bool
    """accepted without effect: profile has one implementation"""
    log_timers_to_tensorboard: bool
    """accepted without effect: always logged, or part of the dashboard"""
    log_memory_to_tensorboard: bool
    """accepted without effect: always logged, or part of the dashboard"""
    log_validation_ppl_to_tensorboard: bool
    """accepted without effect: always logged, or part of the dashboard"""
    log_world_size_to_tensorboard: bool
    """accepted without effect: always logged, or part of the dashboard"""
    log_batch_size_to_tensorboard: bool
    """accepted without effect: always logged, or part of the dashboard"""
    log_loss_scale_to_tensorboard: bool
    """accepted without effect: always logged, or part of the dashboard"""
    log_learning_rate_to_tensorboard: bool
    """accepted without effect: always logged, or part of the dashboard"""
    tensorboard_queue_size: int
    """accepted without effect: points are written as they come"""
    logging_level: int | None
    """accepted without effect: set log_level"""
    include_tokens_per_second: bool
    """accepted without effect: always part of the metrics"""
    push_to_hub: bool
    """refused: nothing is sent over the network; see metrics.jsonl, tensorboard/ and `megalith dashboard`"""
    use_swanlab: bool
    """refused: nothing is sent over the network; see metrics.jsonl, tensorboard/ and `megalith dashboard`"""
    hub_model_id: str | None
    """accepted without effect: nothing is sent over the network; see metrics.jsonl, tensorboard/ and `megalith dashboard`"""
    hub_strategy: str
    """accepted without effect: nothing is sent over the network; see metrics.jsonl, tensorboard/ and `megalith dashboard`"""
    hub_token: str | None
    """accepted without effect: nothing is sent over the network; see metrics.jsonl, tensorboard/ and `megalith dashboard`"""
    hub_private_repo: bool | None
    """accepted without effect: nothing is sent over the network; see metrics.jsonl, tensorboard/ and `megalith dashboard`"""
    hub_always_push: bool
    """accepted without effect: nothing is sent over the network; see metrics.jsonl, tensorboard/ and `megalith dashboard`"""
    hub_revision: str | None
    """accepted without effect: nothing is sent over the network; see metrics.jsonl, tensorboard/ and `megalith dashboard`"""
    push_to_hub_model_id: str | None
    """accepted without effect: nothing is sent over the network; see metrics.jsonl, tensorboard/ and `megalith dashboard`"""
    push_to_hub_organization: str | None
    """accepted without effect: nothing is sent over the network; see metrics.jsonl, tensorboard/ and `megalith dashboard`"""
    push_to_hub_token: str | None
    """accepted without effect: nothing is sent over the network; see metrics.jsonl, tensorboard/ and `megalith dashboard`"""
    swanlab_project: str
    """accepted without effect: nothing is sent over the network; see metrics.jsonl, tensorboard/ and `megalith dashboard`"""
    swanlab_workspace: str | None
    """accepted without effect: nothing is sent over the network; see metrics.jsonl, tensorboard/ and `megalith dashboard`"""
    swanlab_run_name: str | None
    """accepted without effect: nothing is sent over the network; see metrics.jsonl, tensorboard/ and `megalith dashboard`"""
    swanlab_mode: str
    """accepted without effect: nothing is sent over the network; see metrics.jsonl, tensorboard/ and `megalith dashboard`"""
    swanlab_api_key: str | None
    """accepted without effect: nothing is sent over the network; see metrics.jsonl, tensorboard/ and `megalith dashboard`"""
    swanlab_logdir: str | None
    """accepted without effect: nothing is sent over the network; see metrics.jsonl, tensorboard/ and `megalith dashboard`"""
    swanlab_lark_webhook_url: str | None
    """accepted without effect: nothing is sent over the network; see metrics.jsonl, tensorboard/ and `megalith dashboard`"""
    swanlab_lark_secret: str | None
    """accepted without effect: nothing is sent over the network; see metrics.jsonl, tensorboard/ and `megalith dashboard`"""
    project: str
    """accepted without effect: nothing is sent over the network; see metrics.jsonl, tensorboard/ and `megalith dashboard`"""
    trackio_space_id: str
    """accepted without effect: nothing is sent over the network; see metrics.jsonl, tensorboard/ and `megalith dashboard`"""
    trackio_bucket_id: str | None
    """accepted without effect: nothing is sent over the network; see metrics.jsonl, tensorboard/ and `megalith dashboard`"""
    trackio_static_space_id: str | None
    """accepted without effect: nothing is sent over the network; see metrics.jsonl, tensorboard/ and `megalith dashboard`"""
    wandb_project: str | None
    """accepted without effect: nothing is sent over the network; see metrics.jsonl, tensorboard/ and `megalith dashboard`"""
    wandb_exp_name: str | None
    """accepted without effect: nothing is sent over the network; see metrics.jsonl, tensorboard/ and `megalith dashboard`"""
    wandb_entity: str | None
    """accepted without effect: nothing is sent over the network; see metrics.jsonl, tensorboard/ and `megalith dashboard`"""
    wandb_save_dir: str | None
    """accepted without effect: nothing is sent over the network; see metrics.jsonl, tensorboard/ and `megalith dashboard`"""
    one_logger: bool
    """accepted without effect: nothing is sent over the network; see metrics.jsonl, tensorboard/ and `megalith dashboard`"""
    eval_strategy: Literal["no", "steps", "epoch"]
    """when to evaluate; pretrain evaluates when eval_interval is set"""
    eval_steps: float | None
    """every n steps; below 1 a fraction of all (none: logging_steps)"""
    eval_delay: float
    """steps or epochs before the first"""
    eval_on_start: bool
    """evaluate once before training"""
    eval_iters: int
    """iterations of one evaluation"""
    prediction_loss_only: bool
    """the reference's evaluation requires it; accepted without effect: evaluation computes losses only"""
    compute_accuracy: bool
    """evaluation reports the accuracy of tokens; accepted without effect: evaluation always reports eval_token_accuracy; refused with cross_entropy_loss_fusion, without logits"""
    load_best_model_at_end: bool
    """end with the best checkpoint's weights"""
    metric_for_best_model: str | None
    """which metric (none: loss)"""
    greater_is_better: bool | None
    """none: unless the metric's name ends in loss"""
    eval_accumulation_steps: int | None
    """accepted without effect: evaluation computes losses only"""
    batch_eval_metrics: bool
    """accepted without effect: evaluation computes losses only"""
    include_for_metrics: Sequence[str] | None
    """accepted without effect: evaluation computes losses only"""
    include_inputs_for_metrics: bool
    """accepted without effect: evaluation computes losses only"""
    eval_do_concat_batches: bool
    """accepted without effect: evaluation computes losses only"""
    eval_use_gather_object: bool
    """accepted without effect: evaluation computes losses only"""
    jit_mode_eval: bool
    """accepted without effect: kernels are compiled ahead of time"""
    output_dir: str | None
    """everything that the run writes; pretrain without it writes nothing"""
    overwrite_output_dir: bool
    """start over in an output_dir that is not empty; without it, a run with checkpoints there continues"""
    resume_from_checkpoint: str | None
    """checkpoint folder; true or latest: the last in output_dir; auto: the newest there that is whole, if any"""
    load: str | None
    """folder whose last checkpoint is continued; without any, the run starts from scratch"""
    save_strategy: Literal["no", "steps", "epoch", "best"]
    """when to save; best needs an evaluation metric"""
    save_steps: float | None
    """every n steps; below 1 a fraction of all"""
    save_total_limit: int | None
    """checkpoints kept; the best is always one of them"""
    save_retain_interval: int | None
    """keep these for good; a multiple of save_interval"""
    save_only_model: bool
    """weights only; such a run cannot resume"""
    save_hf_model: bool
    """every checkpoint also as a Hugging Face folder; accepted without effect: every checkpoint is a Hugging Face folder"""
    save_merged_model: bool
    """LoRA: export with the adapter merged"""
    save_on_each_node: bool
    """accepted without effect: ranks write their shares of one checkpoint"""
    save_safetensors: bool
    """accepted without effect: weights are always safetensors"""
    restore_callback_states_from_checkpoint: bool
    """accepted without effect: callbacks are restored by the trainer's state"""
    ckpt_format: Literal["legacy", "torch", "torch_dist", "torch_dcp", "zarr", "fsdp_dtensor"]
    """file kind of the reference; accepted without effect: Megalith writes one sharded safetensors format that every layout can read"""
    async_save: bool
    """write while training continues"""
    use_persistent_ckpt_worker: bool
    """accepted without effect: one writer always serves the whole run"""
    checkpoint_files: Literal["shared", "per_writer"]
    """optimizer state in files that all ranks write into, or one for each rank, for network file systems"""
    dist_ckpt_strictness: Literal["assume_ok_unexpected", "log_unexpected", "log_all", "raise_unexpected", "raise_all", "return_unexpected", "return_all", "ignore_all"]
    """what tensors do that the checkpoint lacks (unexpected) or that the run has no use for (missing)"""
    ckpt_fully_parallel_save: bool
    """every rank writes its share; accepted without effect: ranks always write their shares of a checkpoint"""
    ckpt_fully_parallel_load: bool
    """every rank reads its share; accepted without effect: ranks always read what they need and no more"""
    ckpt_d2h_non_blocking: bool
    """copy to the host asynchronously; accepted without effect: with async_save the state is always copied to pinned memory while the next step computes"""
    distrib_optim_fully_reshardable: bool
    """optimizer state independent of the data-parallel layout; accepted without effect: every layout reads what any other wrote"""
    distrib_optim_fully_reshardable_mem_efficient: bool
    """the same with less memory; accepted without effect: nothing is gathered for a checkpoint"""
    no_save_optim: bool
    """leave out the optimizer"""
    no_save_rng: bool
    """leave out random states"""
    non_persistent_save_interval: int | None
    """steps between checkpoints of which only the newest is kept"""
    non_persistent_ckpt_type: Literal["global", "local"] | None
    """global: such checkpoints are written in full; local: each rank writes what it holds to a disk of its machine; load takes the newest one if it is not older"""
    non_persistent_global_ckpt_dir: str | None
    """their folder (none: non_persistent in the folders of save and load)"""
    non_persistent_local_ckpt_dir: str | None
    """local: the folder on each machine; needed"""
    non_persistent_local_ckpt_algo: Literal["atomic"]
    """local: what a rank writes; atomic: all that it holds; accepted without effect: each rank writes all that it holds"""
    replication: bool
    """local: ranks also keep copies of each other's state"""
    replication_jump: int | None
    """replication: distance between ranks that keep copies for each other; usually the ranks of a machine"""
    replication_factor: int
    """replication: ranks that hold each state, its own rank included"""
    no_load_optim: bool
    """start with a fresh optimizer"""
    no_load_rng: bool
    """seed again"""
    finetune: bool
    """load weights only and start at iteration 0"""
    exit_on_missing_checkpoint: bool
    """stop when load finds nothing"""
    ckpt_step: int | None
    """this checkpoint in place of the last"""
    override_ckpt_iteration: int | None
    """count from here; not with finetune"""
    use_checkpoint_args: bool
    """take the model's shape and tokenizer from the checkpoint, but for options that are given"""
    load_main_params_from_ckpt: bool
    """fp32 master weights from the checkpoint; needs no_load_optim"""
    pretrained_checkpoint: str | None
    """weights to start from where load holds none"""
    auto_detect_ckpt_format: bool
    """accepted without effect: the format of a checkpoint is always recognized"""
    use_dist_ckpt: bool
    """accepted without effect: the format of a checkpoint is always recognized"""
    ckpt_assume_constant_structure: bool
    """accepted without effect: the structure of a checkpoint is checked at every save and load"""
    ckpt_convert_format: str | None
    """refused: a run writes one format; `megalith convert` writes others"""
    ckpt_convert_save: str | None
    """refused: a run writes one format; `megalith convert` writes others"""
    rerun_mode: Literal["disabled", "validate_results", "report_determinism_stats", "report_stats"]
    """NaN, Inf or a spike: compute the step again, here and then elsewhere (validate_results); end at once (disabled); or run every step twice and report (report_determinism_stats)"""
    error_injection_rate: float
    """for tests: about one in this many results is rejected although it is good"""
    error_injection_type: Literal["correct_result", "transient_error", "persistent_error"]
    """for tests: what the reruns seem to show"""
    check_for_spiky_loss: bool
    """a loss 10 times the largest of the first 100 is suspicious"""
    check_for_large_grads: bool
    """the same check for gradients"""
    ft_num_warmup_iters: int
    """steps after a start that have the time limit of the set-up"""
    calc_ft_timeouts: bool
    """learn the time limits of hung ranks from the run and keep them in output_dir/ft_state.json; limits given with --rank_section_timeouts stay"""
    inprocess_restart: bool
    """with --max_restarts: ranks that only another's failure has ended keep their processes, and only lost ones are started again"""
    log_straggler: bool
    """compute and wait times of all ranks; name slow ones"""
    straggler_minmax_count: int
    """how many ranks the report names"""
    straggler_ctrlr_port: int
    """port that switches the report at run time; accepted without effect: log_straggler alone switches the report"""
    check_weight_hash_across_dp_replicas_interval: int | None
    """compare the parameters of data-parallel replicas every n steps; end the run where they differ"""
    enable_ft_package: bool
    """accepted without effect: heartbeats and the search for hung ranks are always on; `--max_restarts N` restarts after a fault"""
    disable_straggler_on_startup: bool
    """accepted without effect: log_straggler says whether slow ranks are reported"""
    adlr_autoresume: bool
    """refused: the cluster service it asks is NVIDIA's own; on SIGTERM a run always saves and leaves"""
    adlr_autoresume_interval: int
    """refused: the cluster service it asks is NVIDIA's own; on SIGTERM a run always saves and leaves"""
    inprocess_max_iterations: int | None
    """accepted without effect: `--max_restarts N` says how often ranks are restarted"""
    inprocess_active_world_size: int | None
    """refused: there are no spare ranks: lost ones are started again in their places"""
    inprocess_granularity: str
    """accepted without effect: lost ranks are started again one by one"""
    inprocess_empty_cuda_cache: bool
    """accepted without effect: the next start uses the memory that the last one has freed"""
    inprocess_monitor_thread_interval: float
    """accepted without effect: see --rank_section_timeouts for the limits of hung ranks"""
    inprocess_monitor_process_interval: float
    """accepted without effect: see --rank_section_timeouts for the limits of hung ranks"""
    inprocess_progress_watchdog_interval: float
    """accepted without effect: see --rank_section_timeouts for the limits of hung ranks"""
    inprocess_heartbeat_interval: float
    """accepted without effect: see --rank_section_timeouts for the limits of hung ranks"""
    inprocess_heartbeat_timeout: float
    """accepted without effect: see --rank_section_timeouts for the limits of hung ranks"""
    inprocess_soft_timeout: float
    """accepted without effect: see --rank_section_timeouts for the limits of hung ranks"""
    inprocess_hard_timeout: float
    """accepted without effect: see --rank_section_timeouts for the limits of hung ranks"""
    inprocess_barrier_timeout: float
    """accepted without effect: store_connect_timeout limits how long ranks wait for one another at a start"""
    inprocess_completion_timeout: float
    """accepted without effect: ddp_timeout limits how long ranks wait for one another at the end"""
    inprocess_last_call_wait: float
    """accepted without effect: the launcher knows every rank that has ended"""
    inprocess_termination_grace_time: float
    """accepted without effect: a rank that is stuck is killed at once"""
    ray_num_workers: int
    """accepted without effect: settings of other launchers; see `megalith train --help` for --nproc"""
    ray_init_kwargs: Mapping[str, Any] | str | None
    """accepted without effect: settings of other launchers; see `megalith train --help` for --nproc"""
    ray_scope: str
    """accepted without effect: settings of other launchers; see `megalith train --help` for --nproc"""
    tpu_num_cores: int | None
    """accepted without effect: settings of other launchers; see `megalith train --help` for --nproc"""
    tpu_metrics_debug: bool
    """accepted without effect: settings of other launchers; see `megalith train --help` for --nproc"""
    use_mps_device: bool
    """refused: Megalith trains on CPUs and NVIDIA GPUs"""
    use_ipex: bool
    """accepted without effect: CPU kernels are chosen by what the processor has"""
    mp_parameters: str
    """refused: it belongs to SageMaker; set tensor_model_parallel_size and the other sizes"""
    dispatch_batches: bool | None
    """accepted without effect: each rank reads its own samples"""
    split_batches: bool
    """refused: per_device_train_batch_size counts the samples of one rank; set global_batch_size for all of them"""
    torchdynamo: str | None
    """refused: Megalith's kernels are compiled ahead of time; there is no torch.compile"""
    yaml_cfg: str | None
    """refused: give the file as the first argument: `megalith pretrain FILE.yaml`"""
    enable_experimental: bool
    """accepted without effect: no part of Megalith needs it"""
    use_ray: bool
    """refused: another training back end; Megalith is its own"""
    use_megatron_bridge: bool
    """refused: another training back end; Megalith is its own"""
    use_hyper_parallel: bool
    """refused: another training back end; Megalith is its own"""
    hyper_parallel_args: str | None
    """refused: another training back end; Megalith is its own"""
    hyper_parallel_cp_size: int
    """refused: another training back end; Megalith is its own"""
    experimental_attention_variant: str | None
    """refused: linear attention comes with a Hugging Face folder (qwen3_next), not from options"""
    linear_attention_freq: str | None
    """refused: linear attention comes with a Hugging Face folder (qwen3_next), not from options"""
    linear_conv_kernel_dim: int | None
    """refused: linear attention comes with a Hugging Face folder (qwen3_next), not from options"""
    linear_key_head_dim: int | None
    """refused: linear attention comes with a Hugging Face folder (qwen3_next), not from options"""
    linear_value_head_dim: int | None
    """refused: linear attention comes with a Hugging Face folder (qwen3_next), not from options"""
    linear_num_key_heads: int | None
    """refused: linear attention comes with a Hugging Face folder (qwen3_next), not from options"""
    linear_num_value_heads: int | None
    """refused: linear attention comes with a Hugging Face folder (qwen3_next), not from options"""
    spec: Sequence[str] | None
    """refused: models of this kind are not part of Megalith"""
    use_legacy_models: bool
    """refused: models of this kind are not part of Megalith"""
    hybrid_override_pattern: str | None
    """refused: models of this kind are not part of Megalith"""
    hybrid_attention_ratio: float
    """refused: models of this kind are not part of Megalith"""
    hybrid_mlp_ratio: float
    """refused: models of this kind are not part of Megalith"""
    heterogeneous_layers_config_path: str | None
    """refused: models of this kind are not part of Megalith"""
    openai_gelu: bool
    """refused: models of this kind are not part of Megalith"""
    encoder_num_layers: int | None
    """refused: models of this kind are not part of Megalith"""
    decoder_num_layers: int | None
    """refused: models of this kind are not part of Megalith"""
    decoder_seq_length: int | None
    """refused: models of this kind are not part of Megalith"""
    no_rope_freq: str | None
    """refused: models of this kind are not part of Megalith"""
    qk_l2_norm: bool
    """refused: models of this kind are not part of Megalith"""
    moe_apply_probs_on_input: bool
    """refused: models of this kind are not part of Megalith"""
    fine_grained_activation_offloading: bool
    """refused: models of this kind are not part of Megalith"""
    offload_modules: Sequence[str] | None
    """refused: models of this kind are not part of Megalith"""
    init_method_xavier_uniform: bool
    """refused: models of this kind are not part of Megalith"""

Seq2SeqTrainingArguments = TrainingArguments
