// The Qwen families that see and hear. Each is the text model of another family, whose keys stand in a part of
// config.json and whose tensors have another prefix, beside towers for pictures and sound:
//
//   model_type      text model of      keys in                       prefix                  experts in files
//   qwen2_vl        qwen2              text_config, or at the top    model. or …             -
//   qwen2_5_vl      qwen2              as qwen2_vl                   model.language_model.   -
//   qwen3_vl        qwen3              text_config                   model.language_model.   -
//   qwen3_vl_moe    qwen3_moe          text_config                   model.language_model.   stacked, transposed or not
//   qwen3_5         qwen3_5_text       text_config                   model.language_model.   -
//   qwen3_5_moe     qwen3_5_moe_text   text_config                   model.language_model.   stacked, or one by one
//   qwen3_omni_moe  qwen3_moe          thinker_config.text_config    thinker.model.          one by one
//
// tie_word_embeddings is a key of the whole model. Tokens have three positions, which divide the rotating channels
// among them (mrope_section): in blocks for qwen2, interleaved for the others. Those of text are equal, so that text
// alone gives the numbers of the text model. Towers are part of the model unless without_towers() leaves them
// out; tensors of what is left out are carried through.
#include <algorithm>

#include "megalith/model/families/audio.h"
#include "megalith/model/families/decoder_internal.h"
#include "megalith/model/families/file_form_internal.h"
#include "megalith/model/families/vision.h"

namespace megalith::model {

namespace {

using ReadText = ModelConfig (*)(const io::JsonFields& config);

// Reads mrope_section from either spelling of the rotation's keys.
void read_sections(const io::JsonFields& text, bool interleaved, ops::RopeSettings& rope) {
  for (const char* key : {"rope_parameters", "rope_scaling"})
    if (const auto keys = text.optional_object(key); keys && keys->has("mrope_section"))
      rope.sections = keys->required<std::vector<int64_t>>("mrope_section");
  if (rope.sections.empty())
    text.refuse(text.has("rope_parameters") ? "rope_parameters" : "rope_scaling",
                "have an mrope_section: the numbers of rotating channels for time, height and width");
  rope.interleaved_sections = interleaved;
}

// Reads the text model from `text`, which is a part of `whole`. The top of the file and `whole` speak for the towers as
// well.
ModelConfig read_text_part(const io::JsonFields& top, const io::JsonFields& whole, const io::JsonFields& text,
                           ReadText read) {
  ModelConfig c = read(text);
  if (const auto block = read_scale_block(top)) c.scale_block = block;
  c.tied_embeddings = whole.optional<bool>("tie_word_embeddings").value_or(false);
  const auto has_dtype = [](const io::JsonFields& fields) { return fields.has("dtype") || fields.has("torch_dtype"); };
  c.dtype = read_dtype(has_dtype(top) ? top : has_dtype(whole) ? whole : text);
  return c;
}

// Reads the tower for pictures, and the placeholders of media with their positions. `whole` is the part of the file
// that has vision_config.
void read_media(const io::JsonFields& whole, VisionFiles files, layout::TimeRule time, ModelConfig& c) {
  const io::JsonFields vision = whole.object("vision_config");
  c.vision = read_vision(vision, files);
  c.media.emplace();
  const auto id = [&](const char* key) { return whole.optional<int64_t>(key).value_or(-1); };
  c.media->image = id("image_token_id");
  c.media->video = id("video_token_id");
  c.media->audio = id("audio_token_id");
  c.media->positions.time = time;
  c.media->positions.merge = c.vision->merge;
}

ModelConfig read_nested(const io::JsonFields& config, ReadText read) {
  const io::JsonFields text = config.object("text_config");
  ModelConfig c = read_text_part(config, config, text, read);
  c.text_keys = {"text_config"};
  c.form.model_prefix = "model.language_model.";
  c.form.vision_prefix = "model.visual.";
  read_sections(text, /*interleaved=*/true, *c.rope);
  read_media(config, VisionFiles::kQwen3, layout::TimeRule::kBlocks, c);
  return c;
}

// Files of transformers 4 have the keys of the text at the top, those of transformers 5 in text_config. Published files
// have the old names either way.
ModelConfig read_qwen2_vision(const io::JsonFields& config) {
  const bool nested = config.has("text_config");
  const io::JsonFields text = nested ? config.object("text_config") : config;
  ModelConfig c = read_text_part(config, config, text, qwen2_family().read);
  if (nested) c.text_keys = {"text_config"};
  c.form.vision_prefix = "visual.";
  read_sections(text, /*interleaved=*/false, *c.rope);
  return c;
}

ModelConfig read_qwen2_vl(const io::JsonFields& config) {
  ModelConfig c = read_qwen2_vision(config);
  read_media(config, VisionFiles::kQwen2, layout::TimeRule::kFrames, c);
  return c;
}

// The default is that of transformers' class; published files have the key.
ModelConfig read_qwen2_5_vl(const io::JsonFields& config) {
  ModelConfig c = read_qwen2_vision(config);
  read_media(config, VisionFiles::kQwen2_5, layout::TimeRule::kWholeSeconds, c);
  c.media->positions.positions_per_second =
      config.object("vision_config").optional_positive<double>("tokens_per_second").value_or(4);
  return c;
}

// In these families the weights of the chosen experts add up to 1 unless config.json says otherwise.
ModelConfig read_normalized_moe(const io::JsonFields& text) {
  ModelConfig c = qwen3_moe_family().read(text);
  c.moe->router.pre_softmax = !text.optional<bool>("norm_topk_prob").value_or(true);
  return c;
}

void read_prefix(const hf::WeightFiles& files, ModelConfig& config) {
  const auto any = [&](const char* prefix) {
    return std::ranges::any_of(files.names(), [&](const std::string& name) { return name.starts_with(prefix); });
  };
  config.form.model_prefix = any("model.language_model.") ? "model.language_model." : "model.";
  config.form.vision_prefix = any("model.visual.") ? "model.visual." : "visual.";
}

// Makes a family that shares the text model of `text`.
Family vision_family(const char* model_type, const char* architecture, ReadText read, const Family& text,
                     std::vector<std::string> carried) {
  Family family{.model_type = model_type, .architecture = architecture, .read = read, .names = text.names};
  family.add_mtp_names = text.add_mtp_names;
  family.mtp_key = text.mtp_key;
  family.names.carried = std::move(carried);
  return family;
}

}  // namespace

Family qwen2_vl_family() {
  Family family = vision_family("qwen2_vl", "Qwen2VLForConditionalGeneration", read_qwen2_vl, qwen2_family(),
                                {"visual.*", "model.visual.*"});
  family.vision_files = VisionFiles::kQwen2;
  family.read_form = read_prefix;
  return family;
}

Family qwen2_5_vl_family() {
  Family family = vision_family("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", read_qwen2_5_vl, qwen2_family(),
                                {"visual.*", "model.visual.*"});
  family.vision_files = VisionFiles::kQwen2_5;
  family.read_form = read_prefix;
  return family;
}

Family qwen3_vl_family() {
  const auto read = [](const io::JsonFields& config) { return read_nested(config, qwen3_family().read); };
  return vision_family("qwen3_vl", "Qwen3VLForConditionalGeneration", read, qwen3_family(), {"model.visual.*"});
}

Family qwen3_vl_moe_family() {
  const auto read = [](const io::JsonFields& config) {
    ModelConfig c = read_nested(config, read_normalized_moe);
    c.form.experts = ExpertStorage::kStackedTransposed;
    return c;
  };
  Family family =
      vision_family("qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", read, qwen3_moe_family(), {"model.visual.*"});
  family.read_form = read_expert_form;
  return family;
}

Family qwen3_5_family() {
  const auto read = [](const io::JsonFields& config) { return read_nested(config, qwen3_5_text_family().read); };
  return vision_family("qwen3_5", "Qwen3_5ForConditionalGeneration", read, qwen3_5_text_family(), {"model.visual.*"});
}

Family qwen3_5_moe_family() {
  const auto read = [](const io::JsonFields& config) {
    ModelConfig c = read_nested(config, qwen3_5_moe_text_family().read);
    c.form.experts = c.form.mtp_experts = ExpertStorage::kStacked;
    return c;
  };
  Family family = vision_family("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", read, qwen3_5_moe_text_family(),
                                {"model.visual.*"});
  family.read_form = read_expert_form;
  return family;
}

// The thinker is a complete model inside this one: its tower for sound stands beside that for pictures, and what
// turns its thoughts into speech (talker, code2wav) is not trained.
Family qwen3_omni_moe_family() {
  const auto read = [](const io::JsonFields& config) {
    const io::JsonFields thinker = config.object("thinker_config"), text = thinker.object("text_config");
    ModelConfig c = read_text_part(config, thinker, text, read_normalized_moe);
    c.text_keys = {"thinker_config", "text_config"};
    c.form.model_prefix = "thinker.model.";
    c.form.head_prefix = "thinker.";
    c.form.vision_prefix = "thinker.visual.";
    c.form.audio_prefix = "thinker.audio_tower.";
    read_sections(text, /*interleaved=*/true, *c.rope);
    read_media(thinker, VisionFiles::kOmni, layout::TimeRule::kSeconds, c);
    c.audio = read_audio(thinker.object("audio_config"));
    // The default is that of transformers' class; published files have the key.
    c.media->positions.positions_per_second = thinker.optional_positive<double>("position_id_per_seconds").value_or(25);
    return c;
  };
  Family family = vision_family("qwen3_omni_moe", "Qwen3OmniMoeForConditionalGeneration", read, qwen3_moe_family(),
                                {"thinker.visual.*", "thinker.audio_tower.*", "talker.*", "code2wav.*"});
  family.vision_files = VisionFiles::kOmni;
  return family;
}

}  // namespace megalith::model
