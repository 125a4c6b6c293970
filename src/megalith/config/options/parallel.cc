// Options of the layout over ranks: sizes, pipeline, communication, batch and seeds.
//
// The sizes are optional members, so that "not given" stays distinct from 1: `train` takes a missing size from the
// checkpoint's config, and derive() makes it 1 if that has none. Ranges here concern one value; rules between options
// (tp * pp * cp divides the world size, and so on) are in validate_parallel.cc and in module `layout`.
#include "megalith/config/option_list_internal.h"

namespace megalith::config {
namespace {

void add_sizes(OptionList& list) {
  list.topic("Parallel layout");
  auto parallel = list.part(&TrainingArguments::parallel);
  // The five axes. The short aliases are those that run scripts and papers use.
  parallel.add("tensor_model_parallel_size", &ParallelConfig::tp, "ranks that split each weight matrix (none: 1)")
      .alias({"tp", "model_parallel_size"})
      .at_least(1);
  parallel.add("pipeline_model_parallel_size", &ParallelConfig::pp, "pipeline stages (none: 1)")
      .alias({"pp"})
      .at_least(1);
  parallel.add("context_parallel_size", &ParallelConfig::cp, "ranks that split each sequence (none: 1)")
      .alias({"cp"})
      .at_least(1);
  parallel.add("expert_model_parallel_size", &ParallelConfig::ep, "ranks that split the experts (none: 1)")
      .alias({"ep"})
      .at_least(1);
  parallel.add("expert_tensor_parallel_size", &ParallelConfig::etp, "ranks that split an expert's matrices (none: tp)")
      .alias({"etp"})
      .at_least(1);
  // A request, not a decision: derive() switches it off without tp > 1, and on where experts meet tp > 1.
  parallel.add("sequence_parallel", &ParallelConfig::sequence_parallel,
               "split norms and dropout over tp along the tokens; off without tp > 1, on with tp > 1 and experts");
  parallel
      .add("num_distributed_optimizer_instances", &ParallelConfig::num_distributed_optimizer_instances,
           "replicas of the sharded optimizer state over the data-parallel ranks")
      .at_least(1);
  // The default order keeps tp and cp on neighboring ranks (one machine) and puts pipeline stages farthest apart,
  // since they exchange the least.
  parallel.add("use_tp_pp_dp_mapping", &ParallelConfig::use_tp_pp_dp_mapping,
               "number ranks in the order tp-cp-ep-pp-dp in place of tp-cp-ep-dp-pp");
  parallel
      .add("hierarchical_context_parallel_sizes", &ParallelConfig::hierarchical_cp_sizes,
           "sizes of the levels of hierarchical context parallelism; their product is cp")
      .at_least(1);
  // all_gather and allgather are two spellings of one way.
  parallel
      .add("cp_comm_type", &ParallelConfig::cp_comm_type,
           "how context-parallel attention exchanges keys and values (none: p2p); one for all layers or one per layer")
      .choices({"p2p", "a2a", "all_gather", "allgather", "a2a+p2p"});
  parallel.add(
      "tp_comm_overlap", &ParallelConfig::tp_comm_overlap,
      "hide the traffic of sequence_parallel: in slices beside the products, in backward beside weight gradients");
  parallel
      .add("tp_comm_overlap_slices", &ParallelConfig::tp_comm_overlap_slices,
           "slices of each product with tp_comm_overlap (none: by its size, at most 4)")
      .at_least(1);
}

void add_pipeline(OptionList& list) {
  list.topic("Pipeline");
  auto pipeline = list.part(&TrainingArguments::pipeline);
  // Three ways of asking for virtual stages: their number, the layers of each, or a drawn layout. validate()
  // rejects contradictions, and derive() turns all of them into the first.
  pipeline
      .add("virtual_pipeline_model_parallel_size", &PipelineConfig::vpp,
           "model chunks per pipeline rank (interleaved schedule); 1 means none; follows from a layout")
      .alias({"vpp", "num_virtual_stages_per_pipeline_rank"})
      .at_least(1);
  pipeline
      .add("num_layers_per_virtual_pipeline_stage", &PipelineConfig::layers_per_virtual_stage,
           "layers of a chunk: another way to set the number of chunks")
      .at_least(1);
  pipeline.add("pipeline_model_parallel_layout", &PipelineConfig::layout,
               "stages split by |: E embedding, t layer, m MTP, L loss; x*n and (...)*n repeat: E,t*3|t*4,L");
  // Uneven splits: the first and last rank also hold the embedding and the head, so they may take fewer layers.
  pipeline.add("decoder_first_pipeline_num_layers", &PipelineConfig::first_stage_layers, "layers of the first rank")
      .at_least(1);
  pipeline.add("decoder_last_pipeline_num_layers", &PipelineConfig::last_stage_layers, "layers of the last rank")
      .at_least(1);
  pipeline.add("account_for_embedding_in_pipeline_split", &PipelineConfig::account_for_embedding,
               "count the embedding as one layer when splitting");
  pipeline.add("account_for_loss_in_pipeline_split", &PipelineConfig::account_for_loss,
               "count the head and the loss as one layer when splitting");
  pipeline.add(
      "pipeline_schedule", &PipelineConfig::schedule,
      "order of work on the stages (none: 1f1b, or interleaved with virtual stages); zero_bubble computes weight"
      " gradients while a stage would wait");
  // Communication of the interleaved schedule. The reference has separate switches for phases that Megalith always
  // overlaps.
  pipeline
      .add("microbatch_group_size_per_virtual_pipeline_stage", &PipelineConfig::microbatch_group_size,
           "micro-batches that a chunk runs in a row (none: pp)")
      .alias({"microbatch_group_size_per_vp_stage"})
      .at_least(1);
  pipeline
      .add("overlap_p2p_comm", &PipelineConfig::overlap_p2p_comm,
           "interleaved schedule: receive one step ahead; off without virtual stages")
      .alias({"overlap_p2p_communication"})
      .negated_by({"no_overlap_p2p_communication"});
  pipeline
      .add("overlap_p2p_communication_warmup_flush", &PipelineConfig::overlap_p2p_warmup_flush,
           "overlap in warm-up and flush too")
      .pretrain_only()
      .no_effect("overlap_p2p_comm overlaps warm-up and flush, too");
  pipeline
      .add("variable_seq_lengths", &PipelineConfig::variable_seq_lengths,
           "micro-batches of one step may differ in length")
      .no_effect("every stage knows the length of each micro-batch: they may always differ");
  // Deferred weight gradients of the head alone; zero_bubble defers those of all layers.
  pipeline.add(
      "defer_embedding_wgrad_compute", &PipelineConfig::defer_embedding_wgrad_compute,
      "compute the head's weight gradients in the pipeline's flush; keeps the logits of every deferred micro-batch;"
      " needs pp > 1 and gradient accumulation fusion");
  pipeline
      .add("wgrad_deferral_limit", &PipelineConfig::wgrad_deferral_limit,
           "micro-batches of a step that defer_embedding_wgrad_compute defers at most; 0: all")
      .at_least(0);
}

void add_communication(OptionList& list) {
  list.topic("Communication and device");
  auto comm = list.part(&TrainingArguments::comm);
  comm.add("ddp_backend", &CommConfig::backend, "collective library (none: nccl with CUDA, else gloo)")
      .alias({"distributed_backend"})
      .refuse({"mpi", "xccl", "hccl", "cncl", "mccl", "rccl"},
              "Megalith communicates through nccl (CUDA) or gloo (CPU)");
  // Time limits, from general to specific: Hugging Face gives seconds, Megatron minutes, and both may be tightened
  // after the first iteration, when nothing is compiled or loaded any more.
  comm.add("ddp_timeout", &CommConfig::ddp_timeout_s, "time limit of a collective in seconds").at_least(1);
  comm.add("distributed_timeout_minutes", &CommConfig::distributed_timeout_minutes,
           "time limit of a collective in minutes; wins over ddp_timeout when set")
      .at_least(1)
      .pretrain_default(10);
  comm.add("distributed_timeout_seconds_after_init", &CommConfig::timeout_after_first_iteration_s,
           "time limit once the first iteration has finished")
      .at_least(1);
  comm.add("store_connect_timeout", &CommConfig::store_connect_timeout_s,
           "seconds that a rank tries to reach the store (MASTER_ADDR:MASTER_PORT) at the start; none: 60 on one "
           "machine, 600 on several")
      .at_least(1);
  comm.add("use_cpu", &CommConfig::use_cpu, "train on the CPU even if there is a GPU").alias({"no_cuda"});
  comm.add("use_gloo_process_groups", &CommConfig::use_gloo_process_groups,
           "host-side twins of the data-parallel groups for checkpoints")
      .alias({"enable_gloo_process_groups"})
      .negated_by({"disable_gloo_process_groups"})
      .no_effect("groups are made when they are first used, so switching them off saves nothing")
      .pretrain_only();
  // Settings of NCCL by group (parallel/nccl_options.h reads the file).
  comm.add("nccl_communicator_config_path", &CommConfig::nccl_communicator_config_path,
           "a YAML file that tunes NCCL's communicators by group: cga_cluster_size, min_ctas, max_ctas, net_name, "
           "is_high_priority_stream");
  comm.add("high_priority_stream_groups", &CommConfig::high_priority_stream_groups,
           "groups whose NCCL kernels are scheduled before compute (none: tp, cp, ep and pp)");
  comm.add("use_sharp", &CommConfig::use_sharp, "NCCL reduces gradients in the network's switches (SHARP)");
}

}  // namespace

void add_parallel_options(OptionList& list) {
  add_sizes(list);
  add_pipeline(list);
  add_communication(list);
}

void add_batch_options(OptionList& list) {
  list.topic("Batch and seed");
  auto batch = list.part(&TrainingArguments::batch);
  // global = micro * dp * accumulation: two of the three numbers determine the step. pretrain has no default, so
  // that a forgotten micro-batch is an error there, as in Megatron.
  batch
      .add("per_device_train_batch_size", &BatchConfig::micro_batch_size,
           "micro-batch: sequences in one pass of one data-parallel rank (required by pretrain)")
      .alias({"micro_batch_size", "per_gpu_train_batch_size"})
      .at_least(1)
      .no_pretrain_default();
  batch
      .add("gradient_accumulation_steps", &BatchConfig::gradient_accumulation_steps,
           "micro-batches per step, unless global_batch_size is set")
      .at_least(1);
  batch
      .add("global_batch_size", &BatchConfig::global_batch_size,
           "sequences per step over all ranks (none: micro-batch * dp * gradient_accumulation_steps)")
      .at_least(1);
  // The two ways in which a batch grows over a run; both end at the global batch (layout/microbatches.h).
  batch
      .add("rampup_batch_size", &BatchConfig::rampup_batch_size,
           "start, increment and samples of a growing batch; global_batch_size is its end")
      .at_least(0);
  batch.add("step_batch_size_schedule", &BatchConfig::step_batch_schedule,
            "batch sizes by consumed tokens: \"0:768 250B:1536\" (K, M, B, T); the last size is the global batch");
  batch.add("decrease_batch_size_if_needed", &BatchConfig::decrease_batch_size_if_needed,
            "round the batch down to a multiple of micro-batch * dp");
  batch
      .add("per_device_eval_batch_size", &BatchConfig::eval_micro_batch_size,
           "sequences in one evaluation pass (none: as training)")
      .alias({"eval_micro_batch_size", "per_gpu_eval_batch_size"})
      .at_least(1)
      .no_pretrain_default();
  batch
      .add("eval_global_batch_size", &BatchConfig::eval_global_batch_size,
           "sequences per evaluation iteration (none: as training)")
      .at_least(1)
      .pretrain_only();

  auto seeds = list.part(&TrainingArguments::seeds);
  // The dialects start from different seeds, like their references; the same data in the same order needs the same
  // seed.
  seeds.add("seed", &SeedConfig::seed, "positive; every random number follows from it")
      .at_least(1)
      .pretrain_default(1234);
  seeds.add("data_seed", &SeedConfig::data_seed, "order of the samples (none: seed)").train_only();
  seeds
      .add("data_parallel_random_init", &SeedConfig::data_parallel_random_init,
           "data-parallel ranks draw different numbers: seed + 10 * dp rank")
      .pretrain_only();
  seeds
      .add(
          "full_determinism", &SeedConfig::full_determinism,
          "on GPUs, libraries choose no kernel by trying which is fastest, and deterministic ones where they have them "
          "(on CPUs runs have the same bits anyway, for one layout and thread count)")
      .alias({"deterministic_mode"});
}

}  // namespace megalith::config
