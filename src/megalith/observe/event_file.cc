// TensorBoard's file format without TensorFlow. A file is a sequence of TFRecords, each holding one Event message in
// the wire format of protocol buffers:
//
//   8 bytes length │ 4 bytes masked CRC-32C of the length │ the message │ 4 bytes masked CRC-32C of the message
//
// Only the few fields that curves, histograms and text need are written; the numbers of the fields are those of
// TensorBoard's .proto files. A reader may follow the file while it grows, because each record is appended by one
// write.
#include "megalith/observe/event_file.h"

#include <unistd.h>

#include <array>
#include <bit>

#include "megalith/base/crc32c.h"
#include "megalith/base/error.h"

namespace megalith::observe {
namespace {

// The checksum as TFRecord stores it: rotated and offset, so that checksums of data that itself contains checksums stay
// meaningful.
uint32_t masked_crc32c(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8U; }

// Returns the lowest `bytes` bytes of a value, lowest first.
std::string little_endian(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
  return text;
}

// Builds a message in wire format: each field is a key (field number and wire type), followed by its value.
class Message {
 public:
  Message& add_varint(int field, uint64_t value) {
    key(field, 0);
    varint(value);
    return *this;
  }
  Message& add_double(int field, double value) {
    key(field, 1);
    text_ += little_endian(std::bit_cast<uint64_t>(value), 8);
    return *this;
  }
  Message& add_float(int field, float value) {
    key(field, 5);
    text_ += little_endian(std::bit_cast<uint32_t>(value), 4);
    return *this;
  }
  Message& add_bytes(int field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    text_ += value;
    return *this;
  }
  Message& add_doubles(int field, const std::vector<double>& values) {
    std::string packed;
    for (const double value : values) packed += little_endian(std::bit_cast<uint64_t>(value), 8);
    return add_bytes(field, packed);
  }
  Message& add(int field, const Message& message) { return add_bytes(field, message.text_); }
  const std::string& text() const { return text_; }

 private:
  // Wire types: 0 varint, 1 fixed64, 2 length-delimited, 5 fixed32.
  void key(int field, unsigned kind) { varint(static_cast<uint64_t>(field) << 3 | kind); }
  // 7 bits per byte, lowest first; the top bit says that more follow.
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_ += static_cast<char>((value & 0x7f) | 0x80);
    text_ += static_cast<char>(value);
  }
  std::string text_;
};

// Field numbers of event.proto, summary.proto, tensor.proto and tensor_shape.proto; they must not change.
enum EventField { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7 };
enum SummaryField { kValue = 1 };
enum ValueField { kTag = 1, kSimpleValue = 2, kHistogram = 5, kTensor = 8, kMetadata = 9 };
enum HistogramField { kMin = 1, kMax = 2, kNum = 3, kSum = 4, kSumSquares = 5, kBucketLimit = 6, kBucket = 7 };
enum TensorField { kDtype = 1, kShape = 2, kStringValue = 8 };
constexpr int kStringType = 7;         // DT_STRING
constexpr int kShapeDim = 2;           // TensorShapeProto.dim
constexpr int kDimSize = 1;            // TensorShapeProto.Dim.size
constexpr int kPluginData = 1;         // SummaryMetadata.plugin_data
constexpr int kPluginName = 1;         // SummaryMetadata.PluginData.plugin_name
constexpr int kSessionStatus = 1;      // SessionLog.status
constexpr uint64_t kSessionStart = 1;  // SessionLog.START

// The frame of every event. As protobuf does, a step of 0 is left out: it is the default.
Message event(double wall_time, int64_t step) {
  Message message;
  message.add_double(kWallTime, wall_time);
  if (step != 0) message.add_varint(kStep, static_cast<uint64_t>(step));
  return message;
}

Message with_value(Message event, const Message& value) { return event.add(kSummary, Message().add(kValue, value)); }

// The name is only part of a file name, so a machine without one does not matter.
std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "host";
  return name.data();
}

// TensorBoard orders the files of a folder by name, so the time comes first, with a fixed number of digits.
std::filesystem::path free_name(const std::filesystem::path& folder, const EventFileOptions& options) {
  const std::string host = options.host.empty() ? host_name() : options.host;
  for (int number = 0;; ++number) {
    const auto path = folder / fmt::format("events.out.tfevents.{:010d}.{}.{}.{}",
                                           static_cast<int64_t>(options.wall_time), host, ::getpid(), number);
    if (!std::filesystem::exists(path)) return path;
  }
}

}  // namespace

EventFile::EventFile(const std::filesystem::path& folder, const EventFileOptions& options) {
  io::make_folders(folder);
  file_ = io::FileHandle::create(free_name(folder, options));
  add_record(event(options.wall_time, 0).add_bytes(kFileVersion, "brain.Event:2").text());
  // A session start makes TensorBoard drop points of earlier files from this step on.
  if (options.purge_step >= 0)
    add_record(event(options.wall_time, options.purge_step)
                   .add(kSessionLog, Message().add_varint(kSessionStatus, kSessionStart))
                   .text());
}

void EventFile::add_scalar(std::string_view tag, double value, int64_t step, double wall_time) {
  const Message point = Message().add_bytes(kTag, tag).add_float(kSimpleValue, static_cast<float>(value));
  add_record(with_value(event(wall_time, step), point).text());
}

void EventFile::add_histogram(std::string_view tag, const Buckets& buckets, int64_t step, double wall_time) {
  double number = 0;
  for (const double count : buckets.counts) number += count;
  const Message histogram = Message()
                                .add_double(kMin, buckets.least)
                                .add_double(kMax, buckets.most)
                                .add_double(kNum, number)
                                .add_double(kSum, buckets.sum)
                                .add_double(kSumSquares, buckets.sum_squares)
                                .add_doubles(kBucketLimit, buckets.limits)
                                .add_doubles(kBucket, buckets.counts);
  add_record(with_value(event(wall_time, step), Message().add_bytes(kTag, tag).add(kHistogram, histogram)).text());
}

void EventFile::add_text(std::string_view tag, std::string_view markdown, int64_t step, double wall_time) {
  // The text plugin reads a string tensor of one element.
  const Message shape = Message().add(kShapeDim, Message().add_varint(kDimSize, 1));
  const Message tensor = Message().add_varint(kDtype, kStringType).add(kShape, shape).add_bytes(kStringValue, markdown);
  const Message metadata = Message().add(kPluginData, Message().add_bytes(kPluginName, "text"));
  const Message value = Message().add_bytes(kTag, tag).add(kTensor, tensor).add(kMetadata, metadata);
  add_record(with_value(event(wall_time, step), value).text());
}

// Appends a TFRecord: length, checksum of the length, bytes, checksum of the bytes.
void EventFile::add_record(const std::string& event) {
  const std::string length = little_endian(event.size(), 8);
  const std::string record =
      length + little_endian(masked_crc32c(length), 4) + event + little_endian(masked_crc32c(event), 4);
  file_.write_at(bytes_, record.data(), record.size());
  bytes_ += record.size();
}

}  // namespace megalith::observe
