// Rules for the rank grid, the pipeline and the batch. The grid, the split of layers and the batch plan are checked by
// module `layout`, which knows the nearest possible values; here are the rules that involve several of them, or that
// apply when the model is not known yet.
#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/config/derive.h"
#include "megalith/config/validate_internal.h"

namespace megalith::config {
namespace {

// Three options set the number of virtual stages; only a layout and the matching number may be given together.
void check_virtual_stages(const TrainingArguments& args, Problems& problems) {
  const PipelineConfig& pipeline = args.pipeline;
  // A layout of s stages over pp ranks implies vpp = s / pp, so naming that number as well is harmless.
  const int ways = (pipeline.layers_per_virtual_stage ? 1 : 0) + (pipeline.vpp ? 1 : 0) + (pipeline.layout ? 1 : 0);
  const bool same_twice = ways == 2 && pipeline.vpp && pipeline.layout;
  problems.require(ways <= 1 || same_twice,
                   "virtual_pipeline_model_parallel_size, num_layers_per_virtual_pipeline_stage and "
                   "pipeline_model_parallel_layout all set the virtual size; keep one of them");
  problems.require(!pipeline.layout || (!pipeline.first_stage_layers && !pipeline.last_stage_layers),
                   "pipeline_model_parallel_layout already places every layer; leave out "
                   "decoder_first_pipeline_num_layers and decoder_last_pipeline_num_layers");
  problems.require(!pipeline.layout ||
                       (!pipeline.account_for_embedding.value_or(false) && !pipeline.account_for_loss.value_or(false)),
                   "pipeline_model_parallel_layout already places every layer; leave out "
                   "account_for_embedding_in_pipeline_split and account_for_loss_in_pipeline_split");
  // The schedule usually follows from vpp; when it is named, the two must agree.
  const bool interleaved = pipeline.schedule == layout::ScheduleKind::kInterleaved;
  const bool virtual_stages = pipeline.vpp || pipeline.layers_per_virtual_stage || pipeline.layout;
  problems.require(!interleaved || virtual_stages,
                   "pipeline_schedule interleaved needs virtual stages; set virtual_pipeline_model_parallel_size");
  problems.require(!pipeline.schedule || interleaved || !pipeline.vpp,
                   "virtual_pipeline_model_parallel_size {} runs on the interleaved schedule only; leave out "
                   "pipeline_schedule, or the virtual size",
                   pipeline.vpp.value_or(1));
  if (args.shape.num_layers || !pipeline.vpp) return;  // with num_layers, layout::problems reports the rest
  const int pp = args.parallel.pp.value_or(1);
  problems.require(pp > 1, "virtual_pipeline_model_parallel_size {} needs pipeline_model_parallel_size > 1 (it is {})",
                   *pipeline.vpp, pp);
  // The reference's rule: two ranks would exchange several messages in one batch, which cannot be told apart.
  problems.require(pipeline.overlap_p2p_comm || pp > 2,
                   "virtual stages without overlap_p2p_comm need pipeline_model_parallel_size > 2 (it is {}); "
                   "leave overlap_p2p_comm on",
                   pp);
}

// Checks the split of layers over stages, as far as the arguments determine it.
void check_layers(const TrainingArguments& args, Problems& problems) {
  const PipelineConfig& pipeline = args.pipeline;
  const int pp = args.parallel.pp.value_or(1);
  try {
    if (pipeline.layout) {
      const int stages = layout::PipelineLayout::parse(*pipeline.layout).num_stages();
      problems.require(stages % pp == 0,
                       "pipeline_model_parallel_layout has {} stages, which is not a multiple of "
                       "pipeline_model_parallel_size {}; every rank needs the same number of stages",
                       stages, pp);
      problems.require(!pipeline.vpp || stages == *pipeline.vpp * pp,
                       "pipeline_model_parallel_layout has {} stages, but "
                       "virtual_pipeline_model_parallel_size {} * pipeline_model_parallel_size {} is {}; leave out the "
                       "virtual size",
                       stages, pipeline.vpp.value_or(1), pp, pipeline.vpp.value_or(1) * pp);
    }
    if (!args.shape.num_layers) {
      problems.require(!pipeline.layers_per_virtual_stage,
                       "num_layers_per_virtual_pipeline_stage needs num_layers; give num_layers, or "
                       "virtual_pipeline_model_parallel_size instead");
      return;
    }
    // The split needs the number of chunks, so its problems are looked for only if the launcher's rules are satisfied.
    const std::vector<std::string> vpp_problems = layout::problems(vpp_request(args));
    for (const std::string& problem : vpp_problems) problems.add(problem);
    if (!vpp_problems.empty()) return;
    layout::SplitRequest request = split_request(args);
    request.vpp = layout::resolve_launcher_vpp(vpp_request(args)).vpp;
    for (const std::string& problem : layout::problems(request)) problems.add(problem);
  } catch (const ConfigError& error) {
    problems.add(error.what());
  }
}

// Zigzag context parallelism cuts a sequence into 2·cp chunks, and sequence parallelism cuts each rank's part over tp.
void check_sequence(const TrainingArguments& args, Problems& problems) {
  if (!args.shape.seq_length) return;
  const int length = *args.shape.seq_length;
  const int tp = args.parallel.tp.value_or(1);
  const int cp = args.parallel.cp.value_or(1);
  if (cp > 1)
    problems.require(length % (2 * cp) == 0,
                     "seq_length {} is not a multiple of 2 * context_parallel_size = {}; use {} or {}", length, 2 * cp,
                     length / (2 * cp) * (2 * cp), (length / (2 * cp) + 1) * (2 * cp));
  if (args.parallel.sequence_parallel && tp > 1)
    problems.require(length / cp % tp == 0,
                     "seq_length {} (per context-parallel rank {}) is not a multiple of tensor_model_parallel_size {}, "
                     "which sequence_parallel needs; use {}",
                     length, length / cp, tp, (length / cp / tp + 1) * tp * cp);
  if (args.shape.max_position_embeddings)
    problems.require(*args.shape.max_position_embeddings >= length,
                     "max_position_embeddings {} is less than seq_length {}; raise it to {}",
                     *args.shape.max_position_embeddings, length, length);
}

// Checks how context-parallel attention communicates; the model's layers check what only its files tell.
void check_context(const TrainingArguments& args, Problems& problems) {
  const ParallelConfig& parallel = args.parallel;
  const int cp = parallel.cp.value_or(1), tp = parallel.tp.value_or(1);
  const std::vector<std::string>& ways = parallel.cp_comm_type;
  const auto named = [&ways](const char* way) { return std::find(ways.begin(), ways.end(), way) != ways.end(); };
  const auto layers = static_cast<size_t>(args.shape.num_layers.value_or(0));
  problems.require(ways.size() <= 1 || layers == 0 || ways.size() == layers,
                   "cp_comm_type names {} ways for {} layers; give one for all layers, or {}", ways.size(), layers,
                   layers);
  if (cp == 1) return;
  problems.require(!named("a2a+p2p") || parallel.hierarchical_cp_sizes.size() == 2,
                   "cp_comm_type a2a+p2p needs two hierarchical_context_parallel_sizes, those of a2a and of p2p, whose "
                   "product is context_parallel_size {}; {} are given",
                   cp, parallel.hierarchical_cp_sizes.size());
  // Ranks over which heads are dealt: all of cp for a2a, the inner level for a2a+p2p, none for the other ways.
  const int dealt = named("a2a") ? cp
                    : named("a2a+p2p") && !parallel.hierarchical_cp_sizes.empty()
                        ? parallel.hierarchical_cp_sizes.front()
                        : 1;
  if (args.shape.num_attention_heads)
    problems.require(
        *args.shape.num_attention_heads % (tp * dealt) == 0,
        "num_attention_heads {} cannot be dealt over tensor_model_parallel_size {} and, by cp_comm_type a2a, "
        "{} context-parallel ranks; use cp_comm_type p2p or all_gather, or sizes whose product divides it",
        *args.shape.num_attention_heads, tp, dealt);
  problems.require(args.layer.attention_dropout.value_or(0) == 0,
                   "attention_dropout {} needs context_parallel_size 1 (it is {}): attention over several ranks has no "
                   "dropout; set attention_dropout to 0",
                   args.layer.attention_dropout.value_or(0), cp);
}

// Checks the head's deferred weight gradients.
void check_deferral(const TrainingArguments& args, Problems& problems) {
  const PipelineConfig& pipeline = args.pipeline;
  const bool defers = pipeline.defer_embedding_wgrad_compute;
  problems.require(!defers || (args.parallel.pp.value_or(1) > 1 && args.fusion.gradient_accumulation),
                   "defer_embedding_wgrad_compute needs pipeline_model_parallel_size > 1 and "
                   "gradient_accumulation_fusion");
  problems.require(!defers || pipeline.schedule != layout::ScheduleKind::kZeroBubble,
                   "pipeline_schedule zero_bubble defers weight gradients by itself; leave "
                   "defer_embedding_wgrad_compute out");
  problems.require(defers || pipeline.wgrad_deferral_limit == 0,
                   "wgrad_deferral_limit {} acts only with defer_embedding_wgrad_compute; set that option, too",
                   pipeline.wgrad_deferral_limit);
}

// Returns the dense data-parallel size if the grid exists.
std::optional<int> data_parallel_size(const TrainingArguments& args, const ValidationContext& context) {
  if (!context.world_size) return std::nullopt;
  const layout::GridShape shape = grid_shape(args, *context.world_size);
  if (!layout::is_possible(shape)) return std::nullopt;
  return shape.dp();
}

}  // namespace

// The grid comes first: layout's messages name the nearest layouts that fit, which often solves the rest.
void check_parallel(const TrainingArguments& args, const ValidationContext& context, Problems& problems) {
  if (context.world_size)
    for (const layout::GridProblem& problem : layout::problems(grid_shape(args, *context.world_size)))
      problems.add(problem.message);
  if (const CheckpointConfig& saved = args.checkpoint;
      saved.replication && saved.replication_jump && context.world_size)
    problems.require(*context.world_size % (*saved.replication_jump * saved.replication_factor) == 0,
                     "{} ranks are not a multiple of replication_jump {} x replication_factor {}, so some would have"
                     " nobody to keep copies for them",
                     *context.world_size, *saved.replication_jump, saved.replication_factor);
  check_virtual_stages(args, problems);
  check_layers(args, problems);
  check_sequence(args, problems);
  check_context(args, problems);
  problems.require(!args.parallel.tp_comm_overlap || args.parallel.sequence_parallel,
                   "tp_comm_overlap needs sequence_parallel; set sequence_parallel=true or leave tp_comm_overlap out");
  problems.require(!args.parallel.tp_comm_overlap_slices || args.parallel.tp_comm_overlap,
                   "tp_comm_overlap_slices acts only with tp_comm_overlap; set tp_comm_overlap=true or leave it out");
  check_deferral(args, problems);
}

// The batch can be checked only once dp is known, that is, with a world size and a possible grid.
void check_batch(const TrainingArguments& args, const ValidationContext& context, Problems& problems) {
  const BatchConfig& batch = args.batch;
  problems.require(batch.micro_batch_size.has_value() || !context.needs_inputs,
                   "micro_batch_size is not given; set micro_batch_size (per_device_train_batch_size) to 1 or more");
  const std::optional<int> dp = data_parallel_size(args, context);
  if (dp) {
    layout::BatchPlan plan = batch_plan(args, *dp);
    try {
      if (batch.step_batch_schedule && batch.global_batch_size) {
        const int64_t end = layout::MicrobatchCalculator(plan).final_global_batch_size();
        problems.require(end == *batch.global_batch_size,
                         "global_batch_size {} differs from the size at which step_batch_size_schedule ends, {}; leave "
                         "global_batch_size out",
                         *batch.global_batch_size, end);
      }
    } catch (const ConfigError&) {
      // The plan's own problems are reported below.
    }
    for (const std::string& problem : layout::problems(plan)) problems.add(problem);
  }
  // An accumulation of 1 is the default and says nothing.
  if (batch.global_batch_size && batch.gradient_accumulation_steps > 1 && batch.micro_batch_size && dp) {
    const int64_t product = int64_t{*batch.micro_batch_size} * *dp * batch.gradient_accumulation_steps;
    problems.require(
        product == *batch.global_batch_size,
        "global_batch_size {} and gradient_accumulation_steps {} disagree: {} * dp {} * {} is {}; keep one "
        "of the two",
        *batch.global_batch_size, batch.gradient_accumulation_steps, *batch.micro_batch_size, *dp,
        batch.gradient_accumulation_steps, product);
  }
  if (batch.eval_global_batch_size && dp) {
    const int64_t unit = int64_t{batch.eval_micro_batch_size.value_or(batch.micro_batch_size.value_or(1))} * *dp;
    problems.require(*batch.eval_global_batch_size % unit == 0,
                     "eval_global_batch_size {} is not a multiple of eval_micro_batch_size * dp = {}",
                     *batch.eval_global_batch_size, unit);
  }
}

}  // namespace megalith::config
