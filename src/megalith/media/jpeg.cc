// JPEG by libjpeg-turbo. Errors leave the library by longjmp, so the functions that it jumps over hold nothing that
// needs a destructor: everything with one lives in JpegTask, whose owner calls run_jpeg.
#include <csetjmp>
#include <cstdio>
// The library's header needs size_t and FILE.
#include <jpeglib.h>

#include <fmt/format.h>

#include "megalith/base/error.h"
#include "megalith/media/decode_internal.h"

namespace megalith::media {

namespace {

// A progressive file of a few bytes can ask for thousands of passes over a large image.
constexpr int kMaxScans = 500;

struct JpegTask {
  jpeg_error_mgr errors{};  // the library knows this address; the rest is found from it
  jpeg_progress_mgr progress{};
  jpeg_decompress_struct info{};
  std::jmp_buf escape;
  char message[JMSG_LENGTH_MAX] = {};
  Image image;
  ~JpegTask() { jpeg_destroy_decompress(&info); }
};

JpegTask& task_of(j_common_ptr info) { return *static_cast<JpegTask*>(info->client_data); }

[[noreturn]] void leave_jpeg(j_common_ptr info, const char* message) {
  JpegTask& task = task_of(info);
  std::snprintf(task.message, sizeof task.message, "%s", message);
  std::longjmp(task.escape, 1);
}

void jpeg_error(j_common_ptr info) {
  char text[JMSG_LENGTH_MAX];
  info->err->format_message(info, text);
  leave_jpeg(info, text);
}

void check_scans(j_common_ptr info) {
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number > kMaxScans)
    leave_jpeg(info, "more than 500 progressive scans");
}

// The whole file is in memory; asking for more means that it was cut off.
boolean no_more_input(j_decompress_ptr info) {
  leave_jpeg(reinterpret_cast<j_common_ptr>(info), "it ends early; the file was cut off");
}

void skip_input(j_decompress_ptr info, long bytes) {
  if (bytes <= 0) return;
  if (static_cast<size_t>(bytes) > info->src->bytes_in_buffer) no_more_input(info);
  info->src->next_input_byte += bytes;
  info->src->bytes_in_buffer -= static_cast<size_t>(bytes);
}

void nothing_to_do(j_decompress_ptr /*info*/) {}
void no_message(j_common_ptr /*info*/) {}
void no_warning(j_common_ptr /*info*/, int /*level*/) {}

// The modes that Pillow gives to one, three and four components.
bool choose_mode(jpeg_decompress_struct& info, ImageMode& mode) {
  switch (info.num_components) {
    case 1:
      mode = ImageMode::kGrey;
      info.out_color_space = JCS_GRAYSCALE;
      return true;
    case 3:
      mode = ImageMode::kRgb;
      info.out_color_space = JCS_RGB;
      return true;
    case 4:
      mode = ImageMode::kCmyk;
      info.out_color_space = JCS_CMYK;
      return true;
    default:
      return false;
  }
}

void invert(Image& image) {
  uint8_t* byte = image.data.get();
  for (size_t i = 0; i < image.bytes().size(); ++i) byte[i] = static_cast<uint8_t>(255 - byte[i]);
}

// Returns whether the image was decoded; otherwise task.message says why not.
bool run_jpeg(JpegTask& task, jpeg_source_mgr& source, const ImageHeader& header) {
  jpeg_decompress_struct& info = task.info;
  info.err = jpeg_std_error(&task.errors);
  task.errors.error_exit = jpeg_error;
  task.errors.output_message = no_message;
  task.errors.emit_message = no_warning;
  info.client_data = &task;
  if (setjmp(task.escape) != 0) return false;
  jpeg_create_decompress(&info);
  task.progress.progress_monitor = check_scans;
  info.progress = &task.progress;
  info.src = &source;
  jpeg_read_header(&info, TRUE);
  ImageMode mode = ImageMode::kRgb;
  const auto common = reinterpret_cast<j_common_ptr>(&info);
  if (!choose_mode(info, mode)) leave_jpeg(common, "it has neither one, three nor four color components");
  info.dct_method = JDCT_ISLOW;
  info.do_fancy_upsampling = TRUE;
  jpeg_start_decompress(&info);
  if (info.output_width != header.width || info.output_height != header.height)
    leave_jpeg(common, "it holds two frame headers of different sizes");
  task.image = Image(mode, header.width, header.height);
  while (info.output_scanline < info.output_height) {
    JSAMPROW rows[8];
    int count = 0;
    for (; count < 8 && info.output_scanline + static_cast<JDIMENSION>(count) < info.output_height; ++count)
      rows[count] = task.image.row(info.output_scanline + static_cast<JDIMENSION>(count));
    jpeg_read_scanlines(&info, rows, static_cast<JDIMENSION>(count));
  }
  return true;
}

}  // namespace

bool has_jpeg() { return true; }

Image decode_jpeg(std::string_view bytes, const ImageHeader& header, const std::string& name) {
  jpeg_source_mgr source{};
  source.next_input_byte = reinterpret_cast<const JOCTET*>(bytes.data());
  source.bytes_in_buffer = bytes.size();
  source.init_source = nothing_to_do;
  source.fill_input_buffer = no_more_input;
  source.skip_input_data = skip_input;
  source.resync_to_restart = jpeg_resync_to_restart;
  source.term_source = nothing_to_do;

  JpegTask task;
  if (!run_jpeg(task, source, header)) refuse_damaged(name, ImageFormat::kJpeg, task.message);
  if (task.image.mode == ImageMode::kCmyk) invert(task.image);
  return std::move(task.image);
}

}  // namespace megalith::media
