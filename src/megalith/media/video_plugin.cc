// libmegalith_video.so: frames and sound of video files (video_stream_internal.h is its interface).
//
// A file is untrusted: only containers of one file are opened, never playlists, and nothing but the file is read. One
// thread decodes; the frames of a micro-batch keep the others busy. Colors are converted by swscale as PyAV does it, at
// the frame's own size.
extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/imgutils.h>
#include <libavutil/samplefmt.h>
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

// The packets of one stream of a file, decoded one frame after the other.
class Decoder {
 public:
  Decoder(const char* path, AVMediaType type) : container_(open_container(path)) {
    require(avformat_find_stream_info(container_.get(), nullptr), "the streams cannot be found");
    for (unsigned i = 0; i < container_->nb_streams && index_ < 0; ++i)  // PyAV's users take the first, not the best
      if (container_->streams[i]->codecpar->codec_type == type) index_ = static_cast<int>(i);
  }

  bool has_stream() const { return index_ >= 0; }
  // All below require a stream.
  const AVStream& stream() const { return *container_->streams[index_]; }
  AVFormatContext& container() { return *container_; }
  AVPacket& packet() { return *packet_; }
  bool is_ours(const AVPacket& packet) const { return packet.stream_index == index_; }

  void open() {
    const AVCodec* codec = avcodec_find_decoder(stream().codecpar->codec_id);
    if (codec == nullptr)
      throw std::runtime_error(std::string("this build of FFmpeg cannot decode ") +
                               avcodec_get_name(stream().codecpar->codec_id));
    context_.reset(avcodec_alloc_context3(codec));
    require(avcodec_parameters_to_context(context_.get(), stream().codecpar), "the stream's settings");
    context_->thread_count = 1;
    require(avcodec_open2(context_.get(), codec, nullptr), "the decoder cannot be opened");
    packet_.reset(av_packet_alloc());
  }

  // Returns the seconds of the stream, or of the file; 0 if neither is said.
  double seconds() const {
    if (stream().duration != AV_NOPTS_VALUE)
      return static_cast<double>(stream().duration) * number_of(stream().time_base);
    return container_->duration == AV_NOPTS_VALUE ? 0 : static_cast<double>(container_->duration) / AV_TIME_BASE;
  }

  // Returns the next frame; nullptr at the end.
  Owned<AVFrame> next() {
    Owned<AVFrame> frame(av_frame_alloc());
    while (true) {
      const int result = avcodec_receive_frame(context_.get(), frame.get());
      if (result == AVERROR_EOF) return nullptr;
      if (result != AVERROR(EAGAIN)) {
        require(result, "cannot be decoded");
        return frame;
      }
      send_packet();
    }
  }

 private:
  // Feeds the decoder the next packet of the stream, or the end.
  void send_packet() {
    while (true) {
      const int result = av_read_frame(container_.get(), packet_.get());
      if (result == AVERROR_EOF) {
        avcodec_send_packet(context_.get(), nullptr);
        return;
      }
      require(result, "the file is damaged");
      const bool ours = is_ours(*packet_);
      const int sent = ours ? avcodec_send_packet(context_.get(), packet_.get()) : 0;
      av_packet_unref(packet_.get());
      require(sent, "cannot be decoded");
      if (ours) return;
    }
  }

  Owned<AVFormatContext> container_;
  Owned<AVCodecContext> context_;
  Owned<AVPacket> packet_;
  int index_ = -1;
};

class FileStream final : public VideoStream {
 public:
  explicit FileStream(const char* path) : decoder_(path, AVMEDIA_TYPE_VIDEO), frame_(av_frame_alloc()) {
    if (!decoder_.has_stream()) throw std::runtime_error("the file has no video");
    decoder_.open();
    read_header(decoder_.stream());
  }

  const VideoHeader& header() const override { return header_; }
  int64_t width() const override { return frame_->width; }
  int64_t height() const override { return frame_->height; }

  // The last frame stays where it is at the end, so that it can be copied again.
  bool next() override {
    Owned<AVFrame> fresh = decoder_.next();
    if (!fresh) return false;
    frame_ = std::move(fresh);
    return true;
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
  void read_header(const AVStream& stream) {
    header_.width = stream.codecpar->width;
    header_.height = stream.codecpar->height;
    header_.per_second = number_of(stream.avg_frame_rate);
    header_.seconds = decoder_.seconds();
    header_.frames = stream.nb_frames;
    if (header_.frames == 0) count_packets();
  }

  // Matroska and its like do not say how many frames there are: reads the file once, and starts again.
  void count_packets() {
    AVPacket& packet = decoder_.packet();
    while (av_read_frame(&decoder_.container(), &packet) >= 0) {
      if (decoder_.is_ours(packet)) ++header_.frames;
      av_packet_unref(&packet);
    }
    require(avformat_seek_file(&decoder_.container(), -1, INT64_MIN, INT64_MIN, INT64_MAX, AVSEEK_FLAG_BACKWARD),
            "cannot be read twice");
  }

  Decoder decoder_;
  Owned<AVFrame> frame_;
  Owned<SwsContext> sws_;
  std::vector<uint8_t> rows_;
  VideoHeader header_;
};

// FFmpeg 5.1 gave channels a type of their own.
int channels_of(const AVFrame& frame) {
#if LIBAVUTIL_VERSION_INT >= AV_VERSION_INT(57, 28, 100)
  return frame.ch_layout.nb_channels;
#else
  return frame.channels;
#endif
}
int channels_of(const AVCodecParameters& settings) {
#if LIBAVUTIL_VERSION_INT >= AV_VERSION_INT(57, 28, 100)
  return settings.ch_layout.nb_channels;
#else
  return settings.channels;
#endif
}

// One sample as a number in [-1, 1].
double sample_of(const uint8_t* at, AVSampleFormat packed) {
  const auto read = [at](auto value) {
    std::memcpy(&value, at, sizeof(value));
    return static_cast<double>(value);
  };
  switch (packed) {
    case AV_SAMPLE_FMT_U8:
      return (read(uint8_t{}) - 128) / 128;
    case AV_SAMPLE_FMT_S16:
      return read(int16_t{}) / 32768;
    case AV_SAMPLE_FMT_S32:
      return read(int32_t{}) / 2147483648.0;
    case AV_SAMPLE_FMT_FLT:
      return read(float{});
    case AV_SAMPLE_FMT_DBL:
      return read(double{});
    default:
      throw std::runtime_error("its samples have an unknown format");
  }
}

class FileSound final : public SoundStream {
 public:
  explicit FileSound(Decoder decoder) : decoder_(std::move(decoder)) { decoder_.open(); }

  int64_t rate() const override { return decoder_.stream().codecpar->sample_rate; }
  int64_t channels() const override { return channels_of(*decoder_.stream().codecpar); }
  double seconds() const override { return decoder_.seconds(); }
  const float* samples() const override { return samples_.data(); }
  int64_t count() const override { return static_cast<int64_t>(samples_.size()); }

  bool next() override {
    const Owned<AVFrame> frame = decoder_.next();
    if (!frame) return false;
    if (frame->sample_rate != rate()) throw std::runtime_error("its rate changes in the middle");
    const auto format = static_cast<AVSampleFormat>(frame->format);
    const auto size = static_cast<size_t>(av_get_bytes_per_sample(format));
    const auto channels = static_cast<size_t>(channels_of(*frame));
    const bool planar = av_sample_fmt_is_planar(format) != 0;
    samples_.resize(static_cast<size_t>(frame->nb_samples));
    for (size_t i = 0; i < samples_.size(); ++i) {
      double sum = 0;
      for (size_t channel = 0; channel < channels; ++channel) {
        const uint8_t* const at = planar ? frame->extended_data[channel] + i * size
                                         : frame->extended_data[0] + (i * channels + channel) * size;
        sum += sample_of(at, av_get_packed_sample_fmt(format));
      }
      samples_[i] = static_cast<float>(sum / static_cast<double>(channels));
    }
    return true;
  }

 private:
  Decoder decoder_;
  std::vector<float> samples_;
};

// Messages come from the caller, with the name of the file.
void keep_quiet() {
  static const bool quiet = [] {
    av_log_set_level(AV_LOG_QUIET);
    return true;
  }();
  static_cast<void>(quiet);
}

}  // namespace
}  // namespace megalith::media

extern "C" __attribute__((visibility("default"))) megalith::media::VideoStream* megalith_open_video_stream_2(
    const char* path) {
  megalith::media::keep_quiet();
  return new megalith::media::FileStream(path);
}

extern "C" __attribute__((visibility("default"))) megalith::media::SoundStream* megalith_open_sound_stream_2(
    const char* path) {
  megalith::media::keep_quiet();
  megalith::media::Decoder decoder(path, AVMEDIA_TYPE_AUDIO);
  return decoder.has_stream() ? new megalith::media::FileSound(std::move(decoder)) : nullptr;
}
