// libmegalith_video.so: frames of video files (video_stream_internal.h is its interface).
//
// A file is untrusted: only containers of one file are opened, never playlists, and nothing but the file is read. One
// thread decodes; the frames of a micro-batch keep the others busy. Colors are converted by swscale as PyAV does it, at
// the frame's own size.
extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/imgutils.h>
#include <libswscale/swscale.h>
}

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "megalith/media/video_stream_internal.h"

namespace megalith::media {
namespace {

constexpr const char* kContainers = "mov,mp4,matroska,webm,avi,mpegts,mpeg,flv,ogg,asf,gif,m4v,h264,hevc,wtv,rm";

std::string words_of(int error) {
  char text[AV_ERROR_MAX_STRING_SIZE] = {};
  av_strerror(error, text, sizeof(text));
  return text;
}

int require(int result, const char* what) {
  if (result < 0) throw std::runtime_error(std::string(what) + ": " + words_of(result));
  return result;
}

struct Closer {
  void operator()(AVFormatContext* x) const { avformat_close_input(&x); }
  void operator()(AVCodecContext* x) const { avcodec_free_context(&x); }
  void operator()(AVPacket* x) const { av_packet_free(&x); }
  void operator()(AVFrame* x) const { av_frame_free(&x); }
  void operator()(SwsContext* x) const { sws_freeContext(x); }
};
template <typename T>
using Owned = std::unique_ptr<T, Closer>;

Owned<AVFormatContext> open_container(const char* path) {
  AVDictionary* options = nullptr;
  av_dict_set(&options, "protocol_whitelist", "file", 0);
  av_dict_set(&options, "format_whitelist", kContainers, 0);
  AVFormatContext* context = nullptr;
  // "file:" keeps a name with a colon from being taken for a protocol.
  const int result = avformat_open_input(&context, (std::string("file:") + path).c_str(), nullptr, &options);
  av_dict_free(&options);
  require(result, "not a video that can be read");
  return Owned<AVFormatContext>(context);
}

double number_of(AVRational value) { return value.den == 0 ? 0 : av_q2d(value); }

class FileStream final : public VideoStream {
 public:
  explicit FileStream(const char* path) : container_(open_container(path)) {
    require(avformat_find_stream_info(container_.get(), nullptr), "the streams cannot be found");
    const AVCodec* codec = nullptr;
    index_ =
        require(av_find_best_stream(container_.get(), AVMEDIA_TYPE_VIDEO, -1, -1, nullptr, 0), "the file has no video");
    for (unsigned i = 0; i < container_->nb_streams; ++i)  // PyAV's users take the first, not the best
      if (container_->streams[i]->codecpar->codec_type == AVMEDIA_TYPE_VIDEO) {
        index_ = static_cast<int>(i);
        break;
      }
    const AVStream& stream = *container_->streams[index_];
    codec = avcodec_find_decoder(stream.codecpar->codec_id);
    if (codec == nullptr)
      throw std::runtime_error(std::string("this build of FFmpeg cannot decode ") +
                               avcodec_get_name(stream.codecpar->codec_id));
    decoder_.reset(avcodec_alloc_context3(codec));
    require(avcodec_parameters_to_context(decoder_.get(), stream.codecpar), "the stream's settings");
    decoder_->thread_count = 1;
    require(avcodec_open2(decoder_.get(), codec, nullptr), "the decoder cannot be opened");
    packet_.reset(av_packet_alloc());
    frame_.reset(av_frame_alloc());
    read_header(stream);
  }

  const VideoHeader& header() const override { return header_; }
  int64_t width() const override { return frame_->width; }
  int64_t height() const override { return frame_->height; }

  // The last frame stays where it is at the end, so that it can be copied again.
  bool next() override {
    Owned<AVFrame> fresh(av_frame_alloc());
    while (true) {
      const int result = avcodec_receive_frame(decoder_.get(), fresh.get());
      if (result == AVERROR_EOF) return false;
      if (result != AVERROR(EAGAIN)) {
        require(result, "cannot be decoded");
        frame_ = std::move(fresh);
        return true;
      }
      send_packet();
    }
  }

  void copy_rgb(uint8_t* pixels) override {
    const auto format = static_cast<AVPixelFormat>(frame_->format);
    sws_.reset(sws_getCachedContext(sws_.release(), frame_->width, frame_->height, format, frame_->width,
                                    frame_->height, AV_PIX_FMT_RGB24, SWS_BILINEAR, nullptr, nullptr, nullptr));
    if (!sws_) throw std::runtime_error("its colors cannot be converted to RGB");
    // Rows of their own, wide enough for what vector instructions write.
    const int row_bytes = 3 * frame_->width, stride = (row_bytes + 127) / 64 * 64;
    rows_.resize(static_cast<size_t>(stride) * static_cast<size_t>(frame_->height) + 64);
    uint8_t* planes[] = {rows_.data(), nullptr, nullptr, nullptr};
    const int strides[] = {stride, 0, 0, 0};
    require(sws_scale(sws_.get(), frame_->data, frame_->linesize, 0, frame_->height, planes, strides), "conversion");
    for (int y = 0; y < frame_->height; ++y)
      std::memcpy(pixels + static_cast<size_t>(y) * static_cast<size_t>(row_bytes),
                  rows_.data() + static_cast<size_t>(y) * static_cast<size_t>(stride), static_cast<size_t>(row_bytes));
  }

 private:
  // Feeds the decoder the next packet of the stream, or the end.
  void send_packet() {
    while (true) {
      const int result = av_read_frame(container_.get(), packet_.get());
      if (result == AVERROR_EOF) {
        avcodec_send_packet(decoder_.get(), nullptr);
        return;
      }
      require(result, "the file is damaged");
      const bool ours = packet_->stream_index == index_;
      const int sent = ours ? avcodec_send_packet(decoder_.get(), packet_.get()) : 0;
      av_packet_unref(packet_.get());
      require(sent, "cannot be decoded");
      if (ours) return;
    }
  }

  void read_header(const AVStream& stream) {
    header_.width = stream.codecpar->width;
    header_.height = stream.codecpar->height;
    header_.per_second = number_of(stream.avg_frame_rate);
    if (stream.duration != AV_NOPTS_VALUE)
      header_.seconds = static_cast<double>(stream.duration) * number_of(stream.time_base);
    else if (container_->duration != AV_NOPTS_VALUE)
      header_.seconds = static_cast<double>(container_->duration) / AV_TIME_BASE;
    header_.frames = stream.nb_frames;
    if (header_.frames == 0) count_packets();
  }

  // Matroska and its like do not say how many frames there are: reads the file once, and starts again.
  void count_packets() {
    while (av_read_frame(container_.get(), packet_.get()) >= 0) {
      if (packet_->stream_index == index_) ++header_.frames;
      av_packet_unref(packet_.get());
    }
    require(avformat_seek_file(container_.get(), -1, INT64_MIN, INT64_MIN, INT64_MAX, AVSEEK_FLAG_BACKWARD),
            "cannot be read twice");
  }

  Owned<AVFormatContext> container_;
  Owned<AVCodecContext> decoder_;
  Owned<AVPacket> packet_;
  Owned<AVFrame> frame_;
  Owned<SwsContext> sws_;
  std::vector<uint8_t> rows_;
  int index_ = -1;
  VideoHeader header_;
};

}  // namespace
}  // namespace megalith::media

extern "C" __attribute__((visibility("default"))) megalith::media::VideoStream* megalith_open_video_stream_1(
    const char* path) {
  static const bool quiet = [] {
    av_log_set_level(AV_LOG_QUIET);  // messages come from the caller, with the name of the file
    return true;
  }();
  static_cast<void>(quiet);
  return new megalith::media::FileStream(path);
}
