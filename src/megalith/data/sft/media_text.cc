#include "megalith/data/sft/media_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/media/image_header.h"
#include "megalith/media/image_processor.h"

namespace megalith::data {
namespace {

namespace fs = std::filesystem;

fs::path find_medium(const std::string& name, const fs::path& media_dir) {
  const fs::path inside = media_dir / name;  // `name` itself if it is absolute
  return fs::is_regular_file(inside) ? inside : fs::path(name);
}

int64_t count_markers(const std::string& text) {
  int64_t count = 0;
  for (size_t at = text.find(kImageMarker); at != std::string::npos; at = text.find(kImageMarker, at + 1)) ++count;
  return count;
}

MediaReference image_reference(const std::string& name, const MediaSettings& settings) {
  const fs::path path = find_medium(name, settings.media_dir);
  check<DataError>(fs::is_regular_file(path), "the image {} does not exist (media_dir is {})", name,
                   settings.media_dir.empty() ? "not set" : settings.media_dir.string());
  const media::ImageHeader header = media::read_image_header(path);
  const media::PatchGrid grid = settings.images->grid({header.width, header.height}, path.string());
  return {.file = path.string(), .grid = {grid.t, grid.h, grid.w}, .tokens = settings.images->tokens(grid)};
}

// The runs of a token: where each begins, and how long it is.
struct Run {
  int64_t first = 0;
  int64_t tokens = 0;
};

std::vector<Run> runs_of(const std::vector<int32_t>& ids, int32_t pad) {
  std::vector<Run> runs;
  for (int64_t i = 0; i < std::ssize(ids); ++i) {
    if (ids[static_cast<size_t>(i)] != pad) continue;
    if (runs.empty() || runs.back().first + runs.back().tokens != i) runs.push_back({i, 0});
    ++runs.back().tokens;
  }
  return runs;
}

}  // namespace

std::vector<MediaReference> expand_images(Conversation& conversation, const MediaSettings& settings) {
  std::vector<Message*> messages;
  for (Message& message : conversation.prompt) messages.push_back(&message);
  const bool pair = conversation.responses.size() > 1;
  int64_t markers = 0;
  for (Message& response : conversation.responses) {
    check<DataError>(!pair || count_markers(response.content) == 0,
                     "an answer of a preference pair holds {}; images belong to the prompt, which both answers share",
                     kImageMarker);
    if (!pair) messages.push_back(&response);
  }
  for (const Message* message : messages) markers += count_markers(message->content);
  check<DataError>(markers == std::ssize(conversation.images), "the text has {} {} and the record {} image(s)", markers,
                   markers == 1 ? fmt::format("marker {}", kImageMarker) : fmt::format("markers {}", kImageMarker),
                   conversation.images.size());

  std::vector<MediaReference> media;
  for (Message* message : messages) {
    std::string text;
    size_t from = 0;
    for (size_t at = message->content.find(kImageMarker); at != std::string::npos;
         at = message->content.find(kImageMarker, from)) {
      media.push_back(image_reference(conversation.images[media.size()], settings));
      text.append(message->content, from, at - from).append(settings.start);
      for (int64_t i = 0; i < media.back().tokens; ++i) text += settings.image_pad;
      text += settings.end;
      from = at + kImageMarker.size();
    }
    if (from > 0) message->content = text.append(message->content, from);
  }
  return media;
}

int64_t count_runs(const std::vector<int32_t>& ids, int32_t pad) { return std::ssize(runs_of(ids, pad)); }

void attach_media(Sequence& row, std::vector<MediaReference> media, int32_t pad, bool from_the_end) {
  const std::vector<Run> runs = runs_of(row.ids, pad);
  const auto foreign =
      "a text holds the placeholder token of images itself; only the marker <image> stands for an image";
  check<DataError>(runs.size() <= media.size(), "{}", foreign);
  if (from_the_end) media.erase(media.begin(), media.end() - std::ssize(runs));
  media.resize(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    check<DataError>(runs[i].tokens == media[i].tokens, "{}", foreign);
    media[i].first = runs[i].first;
    std::fill_n(row.labels.begin() + runs[i].first, runs[i].tokens, kIgnoredLabel);
  }
  row.media = std::move(media);
}

}  // namespace megalith::data
