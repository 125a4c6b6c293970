// Generation: the first pass of a text takes its whole prompt, each later pass one token; the caches supply the rest.
// With sequence parallelism every pass takes the whole text so far, padded to a multiple of tp, since a single token
// cannot be split: its caches live for one pass only.
//
// Texts are written in rounds of one text per replica and pipeline stage. A text that has ended leaves its round. Where
// replicas share experts, all of them must run the same number of passes: those with fewer texts left fill up with
// passes over a single token, whose results are dropped.
#include "megalith/inference/generate.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/inference/stage_passes.h"
#include "megalith/nn/attention/kv_cache.h"
#include "megalith/nn/tensor_parallel/mappings.h"

namespace megalith::inference {

namespace {

MediaBatch media_of(const TextRequest& request, const model::ModelConfig& config) {
  return place_media(at::tensor(request.prompt, at::kLong).unsqueeze(0), {}, request.media, config);
}

// A text being written, and what this rank's chunks remember of it.
struct Text {
  Text(std::vector<int64_t> prompt, MediaBatch images, std::mt19937_64 numbers, const model::VirtualModels& models)
      : next(std::move(prompt)), media(std::move(images)), random(numbers) {
    if (media.coordinates.defined()) after_prompt = media.coordinates.max() + 1;
    for (const auto& chunk : models) caches.emplace_back(chunk->place().num_layers);
  }

  std::vector<int64_t> next;  // input of the coming pass: the prompt at first, then the newest token alone, or the
                              // whole text (see above)
  MediaBatch media;           // images and positions of the prompt
  at::Tensor after_prompt;    // position of the first new token; undefined without coordinates
  std::vector<nn::KvCache> caches;  // by chunk
  std::mt19937_64 random;
  std::vector<int64_t> ids;  // the new tokens
  bool ended = false;

  // Returns the coordinates of tokens [first, first + count), [3, count]. Requires coordinates of the prompt.
  at::Tensor coordinates(int64_t first, int64_t count) const {
    const at::Tensor prompt = media.coordinates.select(1, 0);
    const int64_t length = prompt.size(1), begin = std::max(first, length) - length,
                  end = std::max(first + count, length) - length;
    const at::Tensor written = after_prompt + at::arange(begin, end, prompt.options());
    return at::cat({prompt.slice(1, std::min(first, length), first + count), written.expand({3, -1})}, 1);
  }
};

// Everything here gives the same answer on all ranks, so either all of them throw or none does.
void check_requests(const model::VirtualModels& models, std::span<const TextRequest> requests,
                    const SamplingOptions& options) {
  options.validate();
  const model::ModelConfig& config = models.config();
  for (const TextRequest& request : requests) {
    check<ConfigError>(!request.prompt.empty(), "the prompt is empty; give at least one token (bos)");
    check_token_ids(at::tensor(request.prompt, at::kLong), config);
    media_of(request, config);
    const auto length = static_cast<int64_t>(request.prompt.size()) + options.max_new_tokens;
    check<ConfigError>(!config.learned_positions || length <= config.max_positions,
                       "{} prompt tokens and max_new_tokens {} exceed the {} positions of the model; use fewer",
                       request.prompt.size(), options.max_new_tokens, config.max_positions);
  }
  check_predicts(config);
  check<ConfigError>(predicts_tokens(models),
                     "the head of {} models does not predict tokens, so they cannot generate text", config.family);
}

// The texts of one replica that are written at the same time.
class Round {
 public:
  Round(const model::VirtualModels& models, const SamplingOptions& options)
      : models_(models),
        options_(options),
        passes_(models),
        pieces_(models[0].tensor_parallel().splits_tokens() ? models[0].tensor_parallel().size() : 1) {}

  void add(const TextRequest& request) {
    texts_.emplace_back(request.prompt, media_of(request, models_.config()), random_numbers(options_, request.draw),
                        models_);
  }
  // Texts in the order of add().
  std::vector<Text>& texts() { return texts_; }

  // Adds a token to every text that has not ended. Returns false, without doing anything, once all texts of all
  // replicas that share experts have ended.
  bool step() {
    std::vector<Text*> batch;
    for (Text& text : texts_)
      if (!text.ended) batch.push_back(&text);
    const size_t active = batch.size();
    const int needed = most_passes(static_cast<int>(active));
    if (needed == 0) return false;
    std::vector<Text> fillers(static_cast<size_t>(passes_.group(needed)) - active, Text({0}, {}, {}, models_));
    for (Text& filler : fillers) batch.push_back(&filler);
    const std::vector<int64_t> drawn = run(batch, active);
    for (size_t i = 0; i < active; ++i) extend(*batch[i], drawn[i]);
    return true;
  }

 private:
  // Returns the largest number of active texts among the replicas that must run the same passes.
  int most_passes(int active) const {
    const comm::Group replicas = models_.context().dp();
    if (!models_.config().moe || replicas.size() == 1) return active;
    const at::Tensor most = at::full({1}, active, at::TensorOptions(at::kLong).device(replicas.device()));
    replicas.all_reduce(most, comm::ReduceOp::kMax, "generation: texts left");
    return static_cast<int>(most.item<int64_t>());
  }

  // Runs one pass of each text and returns the next token of each of the first `active` ones, on every rank.
  std::vector<int64_t> run(const std::vector<Text*>& batch, size_t active) {
    std::vector<int64_t> tokens, drawn(active, 0);
    for (const Text* text : batch) tokens.push_back(pass_length(*text));
    passes_.run(tokens, [&](const model::GptModel& chunk, const pipeline::StageCall& call) {
      const auto number = static_cast<size_t>(call.microbatch);
      Text& text = *batch[number];
      at::Tensor out = forward(chunk, call, text);
      if (chunk.place().head && number < active) drawn[number] = draw(chunk, out, text);
      return out;
    });
    if (active > 0) share(drawn);
    return drawn;
  }

  // Adds what a text with images has besides its tokens, of which `first` have been seen.
  static void add_media(const Text& text, const model::GptModel& chunk, int64_t first, int64_t padding,
                        model::ModelInput& input) {
    const int64_t tokens = input.layout.tokens();
    input.layout =
        input.layout.with_coordinates(at::constant_pad_nd(text.coordinates(first, tokens - padding), {0, padding}));
    if (first > 0 || !chunk.place().embedding) return;
    const auto padded = [&](const at::Tensor& rows) {  // [1, prompt]
      return at::constant_pad_nd(rows[0], {0, tokens - rows.size(1)}, -1);
    };
    if (text.media.grids.defined()) {
      input.pixels = text.media.pixels;
      input.grids = text.media.grids;
      input.visual_rows = padded(text.media.visual_rows);
    }
    if (text.media.audio_lengths.defined()) {
      input.audio_features = text.media.audio_features;
      input.audio_lengths = text.media.audio_lengths;
      input.audio_rows = padded(text.media.audio_rows);
    }
  }

  // Returns hidden states [tokens, h], or with the head this rank's columns of the last token's logits [1, v/tp].
  at::Tensor forward(const model::GptModel& chunk, const pipeline::StageCall& call, Text& text) const {
    nn::KvCache& cache = text.caches[static_cast<size_t>(call.chunk)];
    if (splits_tokens()) cache = nn::KvCache(chunk.place().num_layers);
    const auto count = static_cast<int64_t>(text.next.size()), padding = pass_length(text) - count;
    // Positions continue after the cached tokens. Padding follows the tokens, which do not see it.
    at::Tensor positions = at::arange(cache.tokens(), cache.tokens() + count, at::kLong);
    if (padding > 0) positions = at::constant_pad_nd(positions, {0, padding});
    model::ModelInput input{.layout = ops::SequenceLayout::dense(1, count + padding).with_positions(positions),
                            .hidden = call.input,
                            .cache = &cache,
                            .training = false,
                            .last_token_only = !splits_tokens()};
    if (chunk.place().reads_ids())
      input.ids = at::constant_pad_nd(at::tensor(text.next, at::kLong), {0, padding}).to(chunk.options().device);
    if (text.media.coordinates.defined()) add_media(text, chunk, cache.tokens(), padding, input);
    const at::Tensor out = chunk.forward(input);
    return chunk.place().head && splits_tokens() ? out.narrow(0, count - 1, 1) : out;
  }

  bool splits_tokens() const { return pieces_ > 1; }
  // Tokens of the coming pass, with padding.
  int64_t pass_length(const Text& text) const {
    return (static_cast<int64_t>(text.next.size()) + pieces_ - 1) / pieces_ * pieces_;
  }

  // All tensor-parallel ranks gather the same logits and have the same random numbers: each draws by itself.
  int64_t draw(const model::GptModel& chunk, const at::Tensor& columns, Text& text) const {
    const at::Tensor gathered = nn::all_gather_columns(columns.to(at::kFloat), chunk.tensor_parallel().group, "logits");
    // Without the padding of the vocabulary, whose logits must not be drawn.
    const at::Tensor logits = gathered.narrow(1, 0, chunk.vocab().size);
    return sample(logits[0].to(at::kCPU), options_, text.random);
  }

  // From the first context-parallel rank of the last stage to all ranks of the replica. Context-parallel ranks compute
  // the same, but on GPUs not always to the bit.
  void share(std::vector<int64_t>& drawn) const {
    const parallel::ParallelContext& context = models_.context();
    const comm::Group cp = context.cp(), pp = context.pp();
    if (cp.size() == 1 && pp.size() == 1) return;
    const at::Tensor ids = at::tensor(drawn, at::kLong).to(context.device());
    if (context.is_last_stage()) cp.broadcast(ids, 0, "generation: next tokens");
    pp.broadcast(ids, pp.size() - 1, "generation: next tokens");
    const at::Tensor host = ids.cpu();
    std::copy_n(host.const_data_ptr<int64_t>(), drawn.size(), drawn.begin());
  }

  void extend(Text& text, int64_t id) const {
    text.ids.push_back(id);
    if (!splits_tokens()) text.next.clear();
    text.next.push_back(id);
    text.ended = static_cast<int64_t>(text.ids.size()) == options_.max_new_tokens ||
                 std::ranges::find(options_.stop_ids, id) != options_.stop_ids.end();
  }

  const model::VirtualModels& models_;
  const SamplingOptions& options_;
  const StagePasses passes_;
  const int64_t pieces_;  // ranks over which the tokens of a pass are split
  std::vector<Text> texts_;
};

// Returns the texts of all replicas in the order of the requests: text i of replica r is number i · replicas + r. Every
// replica has at most `rows` texts.
std::vector<std::vector<int64_t>> gather(const std::vector<Text>& texts, size_t rows, int64_t longest,
                                         const comm::Group& replicas) {
  // [rows, 1 + longest]: the number of ids, the ids.
  const auto count = static_cast<int64_t>(rows);
  at::Tensor own = at::zeros({count, 1 + longest}, at::kLong);
  for (size_t i = 0; i < texts.size(); ++i) {
    auto* row = own[static_cast<int64_t>(i)].mutable_data_ptr<int64_t>();
    row[0] = static_cast<int64_t>(texts[i].ids.size());
    std::ranges::copy(texts[i].ids, row + 1);
  }
  own = own.to(replicas.device());
  at::Tensor all = at::empty({replicas.size() * count, 1 + longest}, own.options());
  replicas.all_gather(all, own, "generation: texts");
  all = all.view({replicas.size(), count, 1 + longest}).transpose(0, 1).cpu().contiguous();
  std::vector<std::vector<int64_t>> gathered;
  const auto* row = all.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < replicas.size() * count; ++i, row += 1 + longest)
    gathered.emplace_back(row + 1, row + 1 + *row);
  return gathered;
}

}  // namespace

void check_predicts(const model::ModelConfig& config) {
  check<ConfigError>(
      config.num_labels == 0,
      "the model scores sequences (num_labels {}) and predicts no tokens, so it cannot generate text; use"
      " `megalith score`, or the language model",
      config.num_labels);
}

std::vector<std::vector<int64_t>> generate_texts(const model::VirtualModels& models,
                                                 std::span<const TextRequest> requests, const SamplingOptions& options,
                                                 const TextReader& reader) {
  const at::NoGradGuard no_grad;
  check_requests(models, requests, options);
  const parallel::ParallelContext& context = models.context();
  const comm::Group dp = context.dp();
  const auto replicas = static_cast<size_t>(dp.size()), replica = static_cast<size_t>(dp.rank());
  const auto stages = static_cast<size_t>(context.pp().size());
  const bool reads = context.rank() == 0;
  const int64_t most_tokens = std::ssize(requests) * options.max_new_tokens;
  std::vector<std::vector<int64_t>> texts;
  while (texts.size() < requests.size()) {
    const size_t first = texts.size(), left = requests.size() - first;
    // One text per stage keeps all stages busy.
    const size_t rows = std::min(stages, (left + replicas - 1) / replicas);
    const size_t count = std::min(rows * replicas, left);
    Round round(models, options);
    for (size_t i = replica; i < count; i += replicas) round.add(requests[first + i]);
    // Rank 0 is in the first replica, which writes the text that is next in order.
    size_t told = 0;
    int64_t done = static_cast<int64_t>(first) * options.max_new_tokens;
    while (round.step()) {
      for (const auto& ids = round.texts().front().ids; reads && reader.on_token && told < ids.size();)
        reader.on_token(first, ids[told++]);
      done += static_cast<int64_t>(count);
      if (reads && reader.on_progress) reader.on_progress(done, most_tokens);
    }
    for (auto& ids : gather(round.texts(), rows, options.max_new_tokens, dp)) {
      if (texts.size() == requests.size()) break;  // the rest of the last round
      const size_t number = texts.size();
      for (size_t i = number == first ? told : 0; reads && reader.on_token && i < ids.size(); ++i)
        reader.on_token(number, ids[i]);
      if (reads && reader.on_end) reader.on_end(number);
      texts.push_back(std::move(ids));
    }
  }
  return texts;
}

std::vector<int64_t> generate(const model::VirtualModels& models, const std::vector<int64_t>& prompt,
                              const SamplingOptions& options, const OnToken& on_token) {
  const at::NoGradGuard no_grad;
  const TextRequest request{.prompt = prompt};
  check_requests(models, {&request, 1}, options);
  Round round(models, options);
  round.add(request);
  Text& text = round.texts().front();
  // Replicas write the same text, so they leave the loop together.
  while (round.step())
    if (on_token && !on_token(text.ids.back())) break;
  return text.ids;
}

}  // namespace megalith::inference
