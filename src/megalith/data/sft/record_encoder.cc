// One encoder serves the stages pt, sft, dpo, kto, rm and cls, from text or from ids:
//
//   record -> convert_record -> Conversation -> encode_* -> Sample -> rows (packing, per batch)
//          -> pretokenized_sample -------------------------^        (and mismatched answers)
//
// Scored rows (scored_rows.h) are encoded like others first.
//
// Encoding works record by record and on many threads; packing needs the whole batch and runs on one. Lengths: the
// collator drops one token of a row (the last is only a label), so an unpacked sample may have cutoff_len + 1 tokens; a
// packed row has cutoff_len + 1 by construction, and the samples in it have at most cutoff_len.
#include "megalith/data/sft/record_encoder.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <numeric>
#include <ranges>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/data/sft/packing.h"
#include "megalith/data/sft/template.h"
#include "megalith/media/image_processor.h"
#include "megalith/media/sound_processor.h"
#include "megalith/media/video_processor.h"

namespace megalith::data {

namespace {

// A pair always counts: if it lacks an answer, that is an error and not a reason to skip it.
bool has_tokens(const Sample& sample) { return !sample.row.ids.empty() || sample.rejected; }

// For messages, in the order of Conversation::responses.
constexpr std::array kAnswers{"chosen", "rejected"};

// Checks the texts before tokenization: what a template adds to an empty text is not an answer.
void check_answers(const Conversation& conversation) {
  check<DataError>(!conversation.desirable || !conversation.responses.front().content.empty(),
                   "the answer is empty; give a text, or leave the record out");
  if (conversation.responses.size() < kAnswers.size()) return;
  for (size_t i = 0; i < kAnswers.size(); ++i)
    check<DataError>(!conversation.responses[i].content.empty(),
                     "the {} answer is empty; give a text, or leave the pair out", kAnswers[i]);
}

// Checks that an answer with a verdict still has trained tokens. The first token of a row does not count: it is never
// predicted.
void check_answer(const Sequence& row, bool cut, int64_t cutoff_len, const std::string& place) {
  const bool trained =
      std::ranges::any_of(row.labels | std::views::drop(1), [](int32_t label) { return label != kIgnoredLabel; });
  check<DataError>(trained || !cut,
                   "{}: the answer does not fit: cutoff_len {} leaves no room for it after the prompt. Raise "
                   "cutoff_len, or leave the record out",
                   place, cutoff_len);
  check<DataError>(trained, "{}: the answer is empty: none of its {} tokens has a label. Leave the record out", place,
                   row.labels.size());
}

// Returns the number of tokens before the answer: those without labels at the start.
std::ptrdiff_t prompt_length(const Sequence& row) {
  const auto answer = std::ranges::find_if(row.labels, [](int32_t label) { return label != kIgnoredLabel; });
  return answer - row.labels.begin();
}

// Returns the prompt of one row with the answer of another, cut at the end to fit.
Sequence mismatched_row(const Sequence& own, const Sequence& other, int64_t cutoff) {
  const std::ptrdiff_t prompt = prompt_length(own), from = prompt_length(other);
  const auto count = std::min<std::ptrdiff_t>(std::ssize(other.ids) - from, cutoff - prompt);
  Sequence row;
  row.ids.assign(own.ids.begin(), own.ids.begin() + prompt);
  row.labels.assign(own.labels.begin(), own.labels.begin() + prompt);
  row.ids.insert(row.ids.end(), other.ids.begin() + from, other.ids.begin() + from + count);
  row.labels.insert(row.labels.end(), other.labels.begin() + from, other.labels.begin() + from + count);
  row.media = own.media;  // media stand in prompts
  return row;
}

// KTO: the answer of the sample before, and for the first sample that of the last.
void add_mismatched(std::vector<Sample>& samples, int64_t cutoff) {
  for (size_t i = 0; i < samples.size(); ++i)
    samples[i].feedback->mismatched =
        mismatched_row(samples[i].row, samples[i == 0 ? samples.size() - 1 : i - 1].row, cutoff);
}

// Checks that both answers still have trained tokens.
void check_answers(const Sample& pair, bool cut, int64_t cutoff_len, const std::string& place) {
  const std::array rows{&pair.row, &*pair.rejected};
  for (size_t i = 0; i < kAnswers.size(); ++i) {
    const auto& labels = rows[i]->labels;
    const bool trained = !labels.empty() && std::ranges::any_of(labels.begin() + 1, labels.end(),
                                                                [](int32_t label) { return label != kIgnoredLabel; });
    check<DataError>(trained || !cut,
                     "{}: the {} answer does not fit: cutoff_len {} leaves no room for it after the prompt. Raise "
                     "cutoff_len, or leave the pair out",
                     place, kAnswers[i], cutoff_len);
    check<DataError>(trained, "{}: the {} answer is empty: none of its {} tokens has a label. Leave the pair out",
                     place, kAnswers[i], labels.size());
  }
}

// Everything about media that decides tokens.
std::string media_words(const MediaSettings& media) {
  const auto model = [](const media::ImageProcessorSettings& part) {
    return fmt::format("{} {} {} {} to {}", part.patch_size, part.temporal_patch_size, part.merge_size, part.min_pixels,
                       part.max_pixels);
  };
  std::string words;
  if (media.images) {
    const auto& images = media.images->settings();
    words = fmt::format(" images {}, before {} to {}, in {}, skip {}{}", model(images), images.image_min_pixels,
                        images.image_max_pixels, media.media_dir.string(), media.skip_broken,
                        media.decode_all ? ", all decoded" : "");
  }
  if (media.sounds) {
    const auto& sounds = media.sounds->settings();
    words += fmt::format(" sounds {} {}, in {}, skip {}{}", sounds.bins, sounds.chunk, media.media_dir.string(),
                         media.skip_broken, media.decode_all ? ", all decoded" : "");
  }
  if (media.audio_in_video)
    words += fmt::format(", in videos, {} per second, merged {}", media.positions.positions_per_second,
                         media.positions.merge);
  if (!media.videos) return words;
  const auto& videos = media.videos->settings();
  return words + fmt::format(" videos {} {}, before {} to {}, {} fps, {} frames, blocks {}", model(videos.model),
                             videos.limits_all_frames, videos.video_min_pixels, videos.video_max_pixels,
                             media.video_fps, media.video_maxlen, media.video_blocks);
}

// Returns the number that counts records left out for this reason.
int64_t& count_of(LeftOutBecause because, BuildReport& report) {
  switch (because) {
    case LeftOutBecause::kCutMedium:
      return report.cut_media;
    case LeftOutBecause::kBrokenMedium:
      return report.broken_media;
    case LeftOutBecause::kInvalid:
      break;
  }
  return report.left_out;
}

}  // namespace

RowPlan row_plan(const SftSettings& settings) {
  const bool packing = settings.packing != Packing::kNone;
  switch (settings.kind) {
    case SampleKind::kDocument:
      check<ConfigError>(!settings.mask_history && !settings.train_on_prompt,
                         "mask_history and train_on_prompt are for stage sft; documents have no turns");
      return {.kind = settings.kind, .cutoff = settings.cutoff_len + 1, .packing = packing, .neat = false};
    case SampleKind::kConversation:
      // pack_samples makes rows one token longer than the cutoff; a sample may have as many tokens as the shifted row.
      return {.kind = settings.kind,
              .cutoff = settings.cutoff_len + (packing ? 0 : 1),
              .packing = packing,
              .neat = settings.packing == Packing::kNeat};
    case SampleKind::kPreference:
    case SampleKind::kScoredPair:
      check<ConfigError>(!packing,
                         "packing is not for preference pairs: leave packing, neat_packing and sequence_packing "
                         "out with stage {}",
                         settings.kind == SampleKind::kPreference ? "dpo" : "rm");
      return {.kind = settings.kind, .cutoff = settings.cutoff_len + 1};
    case SampleKind::kLabelled:
      check<ConfigError>(settings.packing != Packing::kPlain,
                         "packing would make texts of a row one text, and stage cls scores each: use neat_packing");
      return {
          .kind = settings.kind, .cutoff = settings.cutoff_len + (packing ? 0 : 1), .packing = packing, .neat = true};
    case SampleKind::kFeedback:
      check<ConfigError>(!packing,
                         "packing is not for answers with verdicts: leave packing, neat_packing and sequence_packing "
                         "out with stage kto");
      check<ConfigError>(settings.preprocessing_batch_size > 1,
                         "preprocessing_batch_size is {}; stage kto compares the answers of a batch of records with "
                         "one another, so it must be at least 2",
                         settings.preprocessing_batch_size);
      return {.kind = settings.kind, .cutoff = settings.cutoff_len + 1};
  }
  throw InternalError("unknown kind of samples");
}

void BuildReport::add(const BuildReport& other) {
  records += other.records;
  left_out += other.left_out;
  cut_media += other.cut_media;
  broken_media += other.broken_media;
  cut += other.cut;
  too_long += other.too_long;
  samples += other.samples;
  tokens += other.tokens;
  room += other.room;
  loss_tokens += other.loss_tokens;
  longest = std::max(longest, other.longest);
}

double BuildReport::packing_efficiency() const {
  return room == 0 ? 1.0 : static_cast<double>(tokens) / static_cast<double>(room);
}

// "950 samples of 1000 records, 81234 tokens (40211 trained), longest 2048; 12 were longer than cutoff_len and were
// cut".
std::string BuildReport::text() const {
  std::string text = fmt::format("{} samples of {} records, {} tokens ({} trained), longest {}", samples, records,
                                 tokens, loss_tokens, longest);
  if (room > tokens) text += fmt::format(", rows {:.1f}% full", 100 * packing_efficiency());
  if (cut > 0) text += fmt::format("; {} were longer than cutoff_len and were cut", cut);
  if (too_long > 0) text += fmt::format("; {} did not fit into a row and were left out", too_long);
  if (left_out > 0) text += fmt::format("; {} records are invalid and were left out", left_out);
  if (cut_media > 0)
    text +=
        fmt::format("; {} records were left out because cutoff_len would cut an image, a video or a sound", cut_media);
  if (broken_media > 0)
    text += fmt::format("; {} records were left out because an image, a video or a sound cannot be read", broken_media);
  return text;
}

RecordEncoder::RecordEncoder(RecordEncoderOptions options, std::shared_ptr<const TurnEncoder> turns,
                             std::optional<tokenizer::Tokenizer> tokenizer)
    : options_(std::move(options)), turns_(std::move(turns)), tokenizer_(std::move(tokenizer)) {
  // Documents need no template; without one, the tokenizer's own special tokens are used.
  if (turns_)
    tokens_ = turns_->tokens();
  else if (tokenizer_ && options_.plan.kind == SampleKind::kDocument)
    tokens_ = template_tokens(find_template("empty"), *tokenizer_);
  else if (tokenizer_)
    tokens_ = own_tokens(*tokenizer_);
  tokens_.documents_get_bos = options_.documents_get_bos && tokens_.bos.has_value();
  tokens_.documents_are_plain = options_.documents_are_plain;
  if (tokenizer_ && options_.vocab_size) check_vocabulary();
  if (!options_.media || !tokenizer_) return;
  check_media();
  if (options_.media->images) pads_.image = *tokenizer_->id_of(options_.media->image_pad);
  if (options_.media->videos) pads_.video = *tokenizer_->id_of(options_.media->video_pad);
  if (options_.media->sounds) pads_.sound = *tokenizer_->id_of(options_.media->sound_pad);
}

void RecordEncoder::check_media() const {
  const MediaSettings& media = *options_.media;
  check<ConfigError>(media.video_fps > 0 && media.video_maxlen > 0,
                     "video_fps is {} and video_maxlen {}; both must be positive", media.video_fps, media.video_maxlen);
  std::vector<std::string> tokens;
  if (media.images) tokens = {media.start, media.image_pad, media.end};
  if (media.videos) tokens.push_back(media.video_pad);
  const size_t visual = tokens.size();
  if (media.sounds) tokens.insert(tokens.end(), {media.sound_start, media.sound_pad, media.sound_end});
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::optional<int32_t> id = tokenizer_->id_of(tokens[i]);
    check<ConfigError>(id && tokenizer_->encode(tokens[i]) == std::vector<int32_t>{*id},
                       "the tokenizer has no token {}, which stands for {}; it belongs to another model", tokens[i],
                       i < visual ? "images or videos" : "sounds");
  }
}

// Padding is in nearly every batch, so a bad pad id is an error at once; other ids may never occur, so they only get a
// warning here and are checked record by record.
void RecordEncoder::check_vocabulary() const {
  const int64_t size = *options_.vocab_size;
  check<ConfigError>(tokens_.pad < size,
                     "the tokenizer pads with the token {} ({}), which is outside of the model's vocabulary of {}. The "
                     "tokenizer belongs to another model, or the model's vocabulary must grow (resize_vocab)",
                     tokens_.pad, io::in_quotes(tokenizer_->token_of(tokens_.pad).value_or("")), size);
  if (tokenizer_->id_end() > size)
    log_warning(
        "the tokenizer has token ids up to {}, and the model a vocabulary of {}: they may not belong together. "
        "A record with an id beyond the vocabulary ends the run; resize_vocab lets the model grow",
        tokenizer_->id_end() - 1, size);
}

// Called once per dataset, before any record is read.
void RecordEncoder::check_dataset(const DatasetDescription& dataset) const {
  const bool pairs = is_pair(options_.plan.kind);
  check<ConfigError>(
      !pairs || dataset.ranking,
      "stage {} needs preference pairs, and dataset {} has none. Give chosen and rejected answers and set "
      "\"ranking\": true in its entry of dataset_info.json",
      options_.plan.kind == SampleKind::kScoredPair ? "rm" : "dpo", dataset.name);
  check<ConfigError>(pairs || !dataset.ranking,
                     "dataset {} holds preference pairs (\"ranking\": true), which only stages dpo and rm train on",
                     dataset.name);
  const bool verdicts = options_.plan.kind == SampleKind::kFeedback;
  check<ConfigError>(!verdicts || (!dataset.columns.kto_tag.empty() && !dataset.ranking),
                     "stage kto needs answers with verdicts, and dataset {} has none. Give each record one answer and "
                     "a column of true or false, and name it: \"columns\": {{\"kto_tag\": …}} in its entry of "
                     "dataset_info.json",
                     dataset.name);
  check<ConfigError>(verdicts || dataset.columns.kto_tag.empty(),
                     "dataset {} holds answers with verdicts (kto_tag), which only stage kto trains on: other stages "
                     "would learn the undesirable ones, too",
                     dataset.name);
  const bool labelled = options_.plan.kind == SampleKind::kLabelled;
  check<ConfigError>(!labelled || !dataset.columns.label.empty(),
                     "stage cls needs a label for each record, and dataset {} has none. Name its column: \"columns\": "
                     "{{\"label\": …}} in its entry of dataset_info.json",
                     dataset.name);
  if (dataset.formatting == Formatting::kPretokenized) return;
  check<ConfigError>(
      tokenizer_.has_value(),
      "dataset {} holds text, and there is no tokenizer. Set model_name_or_path to a folder with one, or "
      "give data with input_ids",
      dataset.name);
  const bool texts = labelled && dataset.formatting == Formatting::kAlpaca && dataset.columns.response.empty();
  check<ConfigError>(
      turns_ != nullptr || texts || options_.plan.kind == SampleKind::kDocument,
      "dataset {} holds conversations, and no template says how they become text: the tokenizer has no chat "
      "template of its own. Set template to the model's, for example --template qwen",
      dataset.name);
}

// Finds bad ids before training begins, while the message can still name the record.
void RecordEncoder::check_ids(const Sequence& row, const std::string& place) const {
  for (size_t i = 0; i < row.ids.size(); ++i) {
    const auto fits = [&](int32_t id) { return id >= 0 && (!options_.vocab_size || id < *options_.vocab_size); };
    const int32_t id = row.ids[i], label = row.labels[i];
    if (fits(id) && (fits(label) || label == kIgnoredLabel)) continue;
    throw DataError(
        fmt::format("{}: {} {} at position {} is {}. The data belongs to another tokenizer, or the model's vocabulary "
                    "must grow (resize_vocab)",
                    place, fits(id) ? "label" : "token id", fits(id) ? label : id, i,
                    options_.vocab_size ? fmt::format("outside of the model's vocabulary of {}", *options_.vocab_size)
                                        : std::string("not a token id")));
  }
}

// As tokenizer(text) of transformers: the tokenizer's bos, but no end.
Sequence RecordEncoder::encode_labelled(const Conversation& conversation, const EncodeSettings& settings,
                                        bool* cut) const {
  if (!conversation.responses.empty()) return encode_conversation(conversation, *turns_, settings, cut);
  Sequence row;
  if (tokens_.documents_get_bos) row.ids.push_back(*tokens_.bos);
  const std::vector<int32_t> text = tokenizer_->encode(conversation.prompt.front().content);
  row.ids.insert(row.ids.end(), text.begin(), text.end());
  *cut |= std::ssize(row.ids) > settings.cutoff;
  row.ids.resize(std::min(row.ids.size(), static_cast<size_t>(settings.cutoff)));
  row.labels = row.ids;
  return row;
}

// The last step: everything before it sees rows like those of other stages.
void RecordEncoder::mark_rows(Sample& sample, const io::Json& record, const Columns& columns,
                              const std::string& place) const {
  if (!sample.rejected)
    return mark_scored(sample.row, label_in(record, columns.label, options_.labels, place), options_.score_pad, place);
  const float margin = margin_in(record, columns.margin, place);
  mark_scored(sample.row, label_of_number(margin), options_.score_pad, place);
  mark_scored(*sample.rejected, label_of_number(0), options_.score_pad, place);
}

Sample RecordEncoder::encode_text(const Conversation& conversation, bool* cut) const {
  const EncodeSettings settings{options_.plan.text_cutoff(), options_.train_on_prompt, options_.mask_history,
                                pads_.all()};
  switch (options_.plan.kind) {
    case SampleKind::kConversation:
      return {encode_conversation(conversation, *turns_, settings, cut), std::nullopt};
    case SampleKind::kPreference:
    case SampleKind::kScoredPair:
      check_answers(conversation);
      return encode_preference(conversation, *turns_, settings, cut);
    case SampleKind::kFeedback:
      check_answers(conversation);
      return {.row = encode_answer(conversation, *turns_, settings, cut),
              .rejected = std::nullopt,
              .feedback = Feedback{*conversation.desirable, {}}};
    case SampleKind::kLabelled:
      return {encode_labelled(conversation, settings, cut), std::nullopt};
    case SampleKind::kDocument:
      break;
  }
  // With packing, a document stays whole: pack_documents cuts the concatenation of the batch.
  const std::string& text = conversation.prompt.front().content;
  if (!options_.plan.packing) return {encode_document(text, *tokenizer_, tokens_, settings.cutoff, cut), std::nullopt};
  return {whole_document(text, *tokenizer_, tokens_), std::nullopt};
}

EncodedRecord RecordEncoder::encode_with_media(Conversation conversation) const {
  EncodedRecord result;
  if (!options_.media) {
    check<DataError>(!conversation.has_media(),
                     "the record has {} image(s), {} video(s) and {} sound(s), and this run's model takes none: it has "
                     "no vision tower and no audio tower. Train a model that has one, or leave the column out",
                     conversation.images.size(), conversation.videos.size(), conversation.sounds.size());
    result.sample = encode_text(conversation, &result.cut);
    return result;
  }
  check<DataError>(!conversation.has_media() || options_.plan.kind != SampleKind::kDocument,
                   "the record has images, videos or sounds, which stage pt does not take; use stage sft");
  std::vector<MediaReference> media;
  try {
    media = expand_media(conversation, *options_.media);
  } catch (const DataError& error) {
    if (!options_.media->skip_broken) throw;
    return {.problem = error.what(), .because = LeftOutBecause::kBrokenMedium};
  }
  Sample sample = encode_text(conversation, &result.cut);
  if (!media.empty() && sample.row.ids.empty())
    return {.problem = fmt::format("cutoff_len {} would cut an image, a video or a sound; the sample needs more room",
                                   options_.plan.cutoff - (options_.plan.packing ? 0 : 1)),
            .because = LeftOutBecause::kCutMedium};
  check<DataError>(
      result.cut || count_runs(sample.row.ids, pads_) >= count_runs(media),
      "the placeholders of media were not recognized as tokens; split_special_tokens and images, videos or sounds do "
      "not go together");
  if (sample.rejected) attach_media(*sample.rejected, media, pads_, options_.mask_history);
  attach_media(sample.row, std::move(media), pads_, options_.mask_history);
  result.sample = std::move(sample);
  return result;
}

EncodedRecord RecordEncoder::encode(const io::Json& record, const DatasetDescription& dataset,
                                    const std::string& place) const {
  EncodedRecord result;
  if (dataset.formatting == Formatting::kPretokenized) {
    for (const std::string* column : {&dataset.columns.images, &dataset.columns.videos, &dataset.columns.audios}) {
      const auto media = record.find(*column);
      check<DataError>(column->empty() || media == record.end() || media->empty(),
                       "{}: a record with ids cannot have images, videos or sounds; give the text", place);
    }
    result.sample = pretokenized_sample(record, options_.plan.kind, place);
    if (!has_tokens(*result.sample)) return {std::nullopt, "no tokens"};
    const auto limit = static_cast<size_t>(options_.plan.text_cutoff());
    const bool blocks = options_.plan.kind == SampleKind::kDocument && options_.plan.packing;  // cut in pack_documents
    for (Sequence* row : {&result.sample->row, result.sample->rejected ? &*result.sample->rejected : nullptr}) {
      if (row == nullptr || blocks || row->ids.size() <= limit) continue;
      row->ids.resize(limit);
      row->labels.resize(limit);
      result.cut = true;
    }
  } else {
    ConvertedRecord converted = convert_record(record, dataset, options_.plan.kind, place);
    result.problem = std::move(converted.problem);
    if (!converted.conversation) return result;
    try {  // the encoder does not know where the record comes from
      result = encode_with_media(std::move(*converted.conversation));
    } catch (const DataError& error) {
      throw DataError(fmt::format("{}: {}", place, error.what()));
    }
  }
  if (!result.sample) return result;
  check_ids(result.sample->row, place);
  if (result.sample->feedback) check_answer(result.sample->row, result.cut, options_.plan.cutoff - 1, place);
  if (result.sample->rejected) {
    check_ids(*result.sample->rejected, place);
    check_answers(*result.sample, result.cut, options_.plan.cutoff - 1, place);
  }
  if (is_scored(options_.plan.kind)) mark_rows(*result.sample, record, dataset.columns, place);
  return result;
}

bool RecordEncoder::is_complete(const io::Json& record, const DatasetDescription& dataset,
                                const std::string& place) const {
  if (dataset.formatting == Formatting::kPretokenized)
    return has_tokens(pretokenized_sample(record, options_.plan.kind, place));
  const ConvertedRecord converted = convert_record(record, dataset, options_.plan.kind, place);
  // Whether media are readable, and whether they fit, shows only when the record is encoded.
  if (options_.media && converted.conversation && converted.conversation->has_media())
    return encode(record, dataset, place).sample.has_value();
  return converted.conversation.has_value();
}

// Packing never crosses a batch, so the rows depend on preprocessing_batch_size.
std::vector<Sample> RecordEncoder::rows(std::vector<EncodedRecord> batch, BuildReport& report) const {
  BuildReport added{.records = std::ssize(batch)};
  std::vector<Sample> samples;
  for (EncodedRecord& record : batch) {
    if (!record.sample) ++count_of(record.because, added);
    added.cut += record.cut ? 1 : 0;
    if (record.sample) samples.push_back(std::move(*record.sample));
  }
  if (options_.plan.packing) {
    std::vector<Sequence> parts;
    for (Sample& sample : samples) parts.push_back(std::move(sample.row));
    std::vector<Sequence> packed;
    if (options_.plan.kind == SampleKind::kDocument) {
      packed = pack_documents(parts, tokens_, options_.plan.cutoff);
    } else {
      PackedRows result = pack_samples(std::move(parts), options_.plan.cutoff, options_.plan.neat, tokens_.pad);
      packed = std::move(result.rows);
      added.too_long += result.too_long;
    }
    samples.clear();
    for (Sequence& row : packed) samples.push_back({std::move(row), std::nullopt});
  }
  if (options_.plan.kind == SampleKind::kFeedback) add_mismatched(samples, options_.plan.cutoff);
  // Count what training will see: rows after packing, both rows of a pair.
  added.samples = std::ssize(samples);
  for (const Sample& sample : samples)
    for (const Sequence* row : {&sample.row, sample.second()}) {
      if (row == nullptr) continue;
      const auto room = std::ssize(row->ids);
      added.room += room;
      added.tokens += row->pieces.empty() ? room : std::accumulate(row->pieces.begin(), row->pieces.end(), int64_t{0});
      added.loss_tokens += room - std::ranges::count(row->labels, kIgnoredLabel);
      added.longest = std::max<int64_t>(added.longest, room);
    }
  report.add(added);
  return samples;
}

// Caches are named by this text: a change of a word makes all of them useless.
std::string RecordEncoder::description() const {
  const RowPlan& plan = options_.plan;
  return fmt::format(
      "kind {} cutoff {} packing {} neat {} prompt {} history {} bos {} eos {} pad {} end \"{}\" {} {}{}{}{}",
      static_cast<int>(plan.kind), plan.cutoff, plan.packing, plan.neat, options_.train_on_prompt,
      options_.mask_history, tokens_.bos.value_or(-1), tokens_.eos, tokens_.pad, tokens_.document_end,
      tokens_.documents_get_bos, turns_ ? turns_->description() : "no template",
      tokens_.documents_are_plain ? " plain documents" : "", options_.media ? media_words(*options_.media) : "",
      is_scored(plan.kind) ? fmt::format(" labels {} of {}, padding {}", choice_name(options_.labels.problem),
                                         options_.labels.num_labels, options_.score_pad.value_or(-1))
                           : std::string());
}

}  // namespace megalith::data
