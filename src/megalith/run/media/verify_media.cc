// The same conversion and expansion as for training, with everything decoded. The limits of pixels are those of
// Qwen2-VL and the bands of sounds those of Qwen3-Omni: they decide how many tokens a medium becomes, not whether it
// can be read.
#include "megalith/run/media/verify_media.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/task_progress.h"
#include "megalith/data/sft/convert_record.h"
#include "megalith/data/sft/media_text.h"
#include "megalith/io/parallel_for.h"
#include "megalith/media/image_processor.h"
#include "megalith/media/sound_processor.h"
#include "megalith/media/video_processor.h"

namespace megalith::run {

namespace {

// The media of one record; `fault` is empty if all of them can be used.
struct Look {
  int64_t images = 0, videos = 0, sounds = 0;
  std::string fault;
};

Look look_at(const data::RecordSet& records, const data::RecordRef& ref, const data::MediaSettings& settings) {
  const data::DatasetDescription& dataset = records.datasets()[static_cast<size_t>(ref.dataset)];
  const std::string place = records.place(ref);
  const data::SampleKind kind = dataset.ranking ? data::SampleKind::kPreference : data::SampleKind::kConversation;
  data::ConvertedRecord converted;
  try {  // both name the place
    converted = data::convert_record(records.record(ref), dataset, kind, place);
  } catch (const DataError& error) {
    return {.fault = error.what()};
  }
  if (!converted.conversation) return {};
  const data::Conversation& conversation = *converted.conversation;
  Look look{std::ssize(conversation.images), std::ssize(conversation.videos), std::ssize(conversation.sounds), ""};
  try {
    data::expand_media(*converted.conversation, settings);
  } catch (const DataError& error) {
    look.fault = fmt::format("{}: {}", place, error.what());
  }
  return look;
}

}  // namespace

MediaFindings verify_media(const data::RecordSet& records, size_t dataset, const std::filesystem::path& media_dir,
                           int threads) {
  const data::Columns& columns = records.datasets().at(dataset).columns;
  check<ConfigError>(!columns.images.empty() || !columns.videos.empty() || !columns.audios.empty(),
                     "dataset {} has no column of images, videos or sounds (\"images\", \"videos\", \"audios\" in the"
                     " columns of dataset_info.json), so there is nothing to verify",
                     records.datasets()[dataset].name);
  const data::MediaSettings settings{
      .images = std::make_shared<const media::ImageProcessor>(media::ImageProcessorSettings{}),
      .videos = std::make_shared<const media::VideoProcessor>(media::VideoProcessorSettings{}),
      .sounds = std::make_shared<const media::SoundProcessor>(media::SoundProcessorSettings{}),
      .media_dir = media_dir,
      .decode_all = true};
  std::vector<Look> looks(static_cast<size_t>(records.size(dataset)));
  TaskProgress progress("verifying media", TaskProgress::Unit::kCount, records.size(dataset), "records");
  io::parallel_for(records.size(dataset), threads, [&](int64_t i) {
    looks[static_cast<size_t>(i)] = look_at(records, {static_cast<int32_t>(dataset), i}, settings);
    progress.add(1);
  });
  MediaFindings found{.records = records.size(dataset)};
  for (Look& look : looks) {
    found.images += look.images;
    found.videos += look.videos;
    found.sounds += look.sounds;
    if (!look.fault.empty()) found.faults.push_back(std::move(look.fault));
  }
  return found;
}

}  // namespace megalith::run
