// Gradient accumulation and its overlap with backward.
//
// Every parameter has a post hook on its autograd accumulation node. The hook adds what autograd computed to main_grad,
// a view of the flat buffer (layers that write main_grad themselves leave nothing to add), and then counts the report:
//
//   hook -> on_gradient -> report -> start_ready_buckets -> ParamBuffer::start_reduce
//
// Buckets are started strictly in the order of a Sequence, even if a later one is complete first: collectives must be
// issued in the same order on all ranks, and the order of hooks is up to autograd. Since it is the reverse of the
// forward pass, little is lost. Buffers of several dtypes that one group reduces share a Sequence.
//
// Everything runs on the rank's own thread, or on autograd's device thread while that one waits in backward, so nothing
// here is locked.
#include "megalith/optim/distributed_data_parallel.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>
#include <map>

#include "megalith/base/error.h"
#include "megalith/nn/parameter/matrix.h"
#include "megalith/nn/parameter/weight_grad_queue.h"
#include "megalith/optim/buffer_rules.h"

namespace megalith::optim {

using layout::GroupKind;

namespace {

// Large enough to use the links well, small enough that reductions begin early. On a CPU reductions compete with the
// computation for cores, and buckets that fit into the caches cost least.
int64_t fitting_bucket_elements(const BufferPlace& place) {
  if (!place.cuda) return 1'500'000;
  return std::max<int64_t>(40'000'000, int64_t{1'000'000} * place.replicas);
}

}  // namespace

void DdpSettings::validate() const {
  const bool named = bucket_size.rule != BucketSize::Rule::kFitting;
  check<ConfigError>(!named || bucket_size.value > 0, "{} is {}; it must be positive",
                     bucket_size.rule == BucketSize::Rule::kCount ? "ddp_num_buckets" : "ddp_bucket_size",
                     bucket_size.value);
  check<ConfigError>(
      !(average_in_collective && per_token_loss),
      "ddp_average_in_collective cannot be used with calculate_per_token_loss, which divides by the number"
      " of tokens; switch one of them off");
  check<ConfigError>(!fp8_params || use_distributed_optimizer,
                     "fp8_param needs use_distributed_optimizer, whose fp32 parameters are the source of those in fp8");
  check<ConfigError>(grad_dtype == at::kFloat || grad_dtype == at::kBFloat16,
                     "gradients are kept in float32 or bfloat16, not in {}", c10::toString(grad_dtype));
}

// On every stage: unless reductions are aligned over the stages, a later one reduces during its last backward as well;
// and its first forward waits for the parameters of one bucket after another, aligned or not.
DdpSettings settings_of_chunk(DdpSettings settings, int chunk) {
  settings.bucketing = settings.overlap_grad_reduce && chunk == 0;
  return settings;
}

BufferRules buffer_rules(const DdpSettings& settings, const BufferPlace& place) {
  BufferRules rules{.shards = place.shards, .pad_for_bandwidth = settings.pad_buckets_for_bandwidth};
  if (!settings.bucketing) return rules;
  switch (const BucketSize& size = settings.bucket_size; size.rule) {
    case BucketSize::Rule::kFitting:
      rules.bucket_elements = fitting_bucket_elements(place);
      break;
    case BucketSize::Rule::kElements:
      rules.bucket_elements = size.value;
      break;
    case BucketSize::Rule::kCount:
      rules.bucket_elements = std::max<int64_t>(1, place.elements / size.value);  // 0 would mean one bucket
      break;
  }
  return rules;
}

DistributedDataParallel::DistributedDataParallel(const std::vector<nn::Parameter*>& parameters,
                                                 const DdpSettings& settings, const parallel::ParallelContext& context)
    : settings_(settings), checks_later_(settings.checks_later.value_or(context.device().is_cuda())) {
  settings_.validate();
  // An ordered map: all ranks must create their buffers, and later their collectives, in the same order.
  std::map<Kind, std::vector<nn::Parameter*>> kinds;
  for (nn::Parameter* p : parameters) {
    if (!p->value.requires_grad()) continue;
    check<ConfigError>(
        !p->attached.bytes,
        "{} is in fp8 since an earlier run with fp8_param, and the exact weights went with its optimizer;"
        " load the model again",
        p->spec.name);
    const bool to_fp8 = settings_.fp8_params && p->attached.in_fp8;
    kinds[{.expert = p->spec.expert,
           .dtype = to_fp8 ? at::kFloat8_e4m3fn : p->value.scalar_type(),
           .matrix = settings_.matrices_apart && nn::is_matrix(p->spec)}]
        .push_back(p);
  }
  for (auto& [kind, of_kind] : kinds) add_buffer(std::move(of_kind), kind, context);
  for (size_t i = 0; i < buffers_.size(); ++i)
    add_to_sequence(i, buffers_[i]->parameters()[0]->spec.expert, parameters);
  zero_grad();
}

DistributedDataParallel::~DistributedDataParallel() {
  for (auto& [parameter, place] : places_) place.accumulator->del_post_hook(place.hook);
}

// Makes the buffer of one kind of parameters and hooks all of them.
void DistributedDataParallel::add_buffer(std::vector<nn::Parameter*> parameters, const Kind& kind,
                                         const parallel::ParallelContext& context) {
  const bool expert = kind.expert;
  ReduceGroups groups;
  groups.all = context.group(expert ? GroupKind::kEdp : GroupKind::kDpCp);
  groups.sharded = settings_.use_distributed_optimizer;
  if (groups.sharded) {
    groups.shards = context.group(expert ? GroupKind::kIntraEdp : GroupKind::kIntraDpCp);
    groups.instances = context.group(GroupKind::kInterEdp);
  }
  // Gradients are averaged over all data-parallel replicas, those of experts as well: although fewer ranks hold an
  // expert, it saw tokens of all replicas.
  const int replicas = context.group(GroupKind::kDpCp).size();
  ReduceRules reduce;
  if (settings_.check_for_nan) reduce.measure = checks_later_ ? FiniteMeasure::kLater : FiniteMeasure::kBeforeReduction;
  reduce.alone = context.world().world().size() == 1;
  reduce.grad_dtype = parameters[0]->value.scalar_type() == at::kFloat ? at::kFloat : settings_.grad_dtype;
  // Both branches divide by `replicas` in total; the collective itself divides by the size of its group.
  if (settings_.average_in_collective) {
    reduce.op = comm::ReduceOp::kAvg;
    reduce.factor = static_cast<double>(groups.all.size()) / replicas;
  } else if (!settings_.per_token_loss) {
    reduce.factor = 1.0 / replicas;
  }
  int64_t elements = 0;
  for (const nn::Parameter* p : parameters) elements += p->value.numel();
  const BufferRules rules = buffer_rules(
      settings_, {elements, replicas, groups.sharded ? groups.shards.size() : 1, parameters[0]->value.is_cuda()});
  const size_t number = buffers_.size();
  buffers_.push_back(
      std::make_unique<ParamBuffer>(std::move(parameters), rules, reduce, std::move(groups), number,
                                    kind.dtype == at::kFloat8_e4m3fn ? settings_.fp8_params : std::nullopt));
  const ParamBuffer& buffer = *buffers_.back();
  for (size_t i = 0; i < buffer.parameters().size(); ++i) {
    places_[buffer.parameters()[i]] = {.buffer = number, .bucket = buffer.layout().items[i].bucket};
    watch(*buffer.parameters()[i]);
  }
  progress_.emplace_back();
}

// The bucket whose last gradient comes first is started first. Within a buffer these are the buckets in their order.
void DistributedDataParallel::add_to_sequence(size_t buffer, bool expert,
                                              const std::vector<nn::Parameter*>& forward_order) {
  std::unordered_map<const nn::Parameter*, size_t> positions;
  for (size_t i = 0; i < forward_order.size(); ++i) positions[forward_order[i]] = i;
  std::vector<Sequence::Entry>& buckets = sequences_[expert ? 1 : 0].buckets;
  const BufferLayout& layout = buffers_[buffer]->layout();
  for (size_t bucket = 0; bucket < layout.buckets.size(); ++bucket) {
    size_t first = forward_order.size();
    for (const int item : layout.buckets[bucket].items)
      first = std::min(first, positions.at(buffers_[buffer]->parameters()[static_cast<size_t>(item)]));
    buckets.push_back({buffer, static_cast<int>(bucket), first});
  }
  std::ranges::stable_sort(buckets, std::greater<>(), &Sequence::Entry::first);
}

void DistributedDataParallel::set_gradient_check(const GradientCheck& check) {
  for (const auto& buffer : buffers_) buffer->set_gradient_check(check);
}

// The hook runs after autograd has added to value.grad. It captures `this`, which is why the class cannot be copied or
// moved and removes its hooks in the destructor.
void DistributedDataParallel::watch(nn::Parameter& parameter) {
  using torch::autograd::variable_list;
  Place& place = places_.at(&parameter);
  place.accumulator = torch::autograd::impl::grad_accumulator(parameter.value);
  place.hook = place.accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
      [this, &parameter](const variable_list& outputs, const variable_list& /*inputs*/) {
        on_gradient(parameter);
        return outputs;
      }));
}

// Marks instead of writing zeros: the first gradient of a step overwrites, which saves a pass over the buffer.
void DistributedDataParallel::zero_grad() {
  for (size_t i = 0; i < buffers_.size(); ++i) {
    buffers_[i]->mark_stale();
    progress_[i].started = 0;
    progress_[i].missing.clear();
    for (const auto& bucket : buffers_[i]->layout().buckets)
      progress_[i].missing.push_back(static_cast<int>(bucket.items.size()));
  }
  for (Sequence& sequence : sequences_) sequence.started = 0;
  for (auto& [parameter, place] : places_) place.reports = 0;
}

void DistributedDataParallel::on_gradient(nn::Parameter& parameter) {
  at::Tensor& small = parameter.value.mutable_grad();  // autograd's own gradient, in the parameter's dtype
  Place& place = places_.at(&parameter);
  const bool late = progress_[place.buffer].started > place.bucket;
  check(!late, "{} got a gradient after its bucket had been reduced: it reported more often than in the first step",
        parameter.spec.name);
  if (small.defined()) {  // the layer left accumulation to autograd instead of writing main_grad itself
    if (parameter.grad.stale)
      parameter.grad.main_grad.copy_(small);
    else
      parameter.grad.main_grad.add_(small);
    parameter.grad.stale = false;
    small.reset();
  }
  // A deferred weight gradient is not computed yet: its queue reports when it is.
  if (parameter.grad.incomplete())
    parameter.grad.queue->add_report([this, &parameter] { report(parameter); });
  else
    report(parameter);
}

// Counts a report; the last one that a bucket waits for starts it.
void DistributedDataParallel::report(const nn::Parameter& parameter) {
  if (!sync_ || !settings_.overlap_grad_reduce) return;
  Place& place = places_.at(&parameter);
  ++place.reports;
  if (!recorded_ || place.reports != place.expected) return;
  if (--progress_[place.buffer].missing[place.bucket] == 0)
    start_ready_buckets(sequences_[parameter.spec.expert ? 1 : 0]);
}

void DistributedDataParallel::start_next(Sequence& sequence) {
  const Sequence::Entry& next = sequence.buckets[sequence.started++];
  progress_[next.buffer].started = next.bucket + 1;
  buffers_[next.buffer]->start_reduce(next.bucket);
}

// Stops at the first bucket that is not complete; its own last report continues from there.
void DistributedDataParallel::start_ready_buckets(Sequence& sequence) {
  const auto complete = [this](const Sequence::Entry& entry) {
    return progress_[entry.buffer].missing[static_cast<size_t>(entry.bucket)] == 0;
  };
  while (sequence.started < sequence.buckets.size() && complete(sequence.buckets[sequence.started]))
    start_next(sequence);
}

void DistributedDataParallel::start_grad_sync() {
  for (Sequence& sequence : sequences_)
    while (sequence.started < sequence.buckets.size()) start_next(sequence);
}

void DistributedDataParallel::finish_grad_sync() {
  start_grad_sync();
  const auto for_each_bucket = [this](void (ParamBuffer::*part)(int bucket)) {
    for (const auto& buffer : buffers_)
      for (size_t bucket = 0; bucket < buffer->layout().buckets.size(); ++bucket)
        ((*buffer).*part)(static_cast<int>(bucket));
  };
  // Two passes, so that the sums over optimizer instances of the first buckets run while later buckets are still in
  // their reduce-scatter.
  for_each_bucket(&ParamBuffer::continue_reduce);
  for_each_bucket(&ParamBuffer::finish_reduce);
  if (recorded_ || !settings_.overlap_grad_reduce) return;
  // A parameter that did not report because nothing used it is expected once; in steps without its report, its bucket
  // and all later ones wait for finish_grad_sync.
  for (auto& [parameter, place] : places_) place.expected = std::max(1, place.reports);
  recorded_ = true;
}

int DistributedDataParallel::buckets_started() const {
  int started = 0;
  for (const Progress& progress : progress_) started += progress.started;
  return started;
}

int DistributedDataParallel::buckets_reduced() const {
  int reduced = 0;
  for (size_t i = 0; i < buffers_.size(); ++i)
    for (int bucket = 0; bucket < progress_[i].started; ++bucket) reduced += buffers_[i]->reduced(bucket) ? 1 : 0;
  return reduced;
}

void DistributedDataParallel::check_gradients() const {
  for (const auto& buffer : buffers_) buffer->check_gradients();
}

void DistributedDataParallel::scale_gradients(double factor) {
  if (factor == 1) return;
  for (const auto& buffer : buffers_) buffer->scale_own(factor);
}

void DistributedDataParallel::scale_gradients(const at::Tensor& factor) {
  for (const auto& buffer : buffers_) buffer->scale_own(factor);
}

void DistributedDataParallel::start_param_gather() {
  // Buffers are laid out in the order of backward, so forward needs the last bucket first.
  for (const auto& buffer : buffers_)
    for (size_t left = buffer->layout().buckets.size(); left > 0; --left)
      buffer->start_gather(static_cast<int>(left - 1));
}

void DistributedDataParallel::finish_param_gather() {
  for (const auto& buffer : buffers_)
    for (size_t left = buffer->layout().buckets.size(); left > 0; --left)
      buffer->finish_gather(static_cast<int>(left - 1));
}

void DistributedDataParallel::wait_for_params(std::span<nn::Parameter* const> parameters) {
  for (const nn::Parameter* p : parameters) {
    const auto place = places_.find(p);
    if (place != places_.end()) buffers_[place->second.buffer]->finish_gather(place->second.bucket);
  }
}

}  // namespace megalith::optim
