// PNG by libpng. Errors leave the library by longjmp; as in jpeg.cc, everything with a destructor lives in PngTask.
#include <png.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/media/decode_internal.h"

namespace megalith::media {

namespace {

struct PngTask {
  explicit PngTask(std::string_view bytes) : input(bytes) {}
  ~PngTask() { png_destroy_read_struct(&png, &info, nullptr); }

  std::string_view input;  // the rest of the file
  png_structp png = nullptr;
  png_infop info = nullptr;
  char message[128] = {};
  Image image;
  std::vector<png_bytep> rows;
};

[[noreturn]] void png_failed(png_structp png, png_const_charp message) {
  auto& task = *static_cast<PngTask*>(png_get_error_ptr(png));
  std::snprintf(task.message, sizeof task.message, "%s", message);
  png_longjmp(png, 1);
}

void png_warned(png_structp /*png*/, png_const_charp /*message*/) {}

void read_png(png_structp png, png_bytep to, size_t bytes) {
  auto& task = *static_cast<PngTask*>(png_get_io_ptr(png));
  if (bytes > task.input.size()) png_failed(png, "it ends early; the file was cut off");
  std::memcpy(to, task.input.data(), bytes);
  task.input.remove_prefix(bytes);
}

// Pillow's modes: bits and palette indices are kept, 16-bit channels keep their upper half.
ImageMode prepare_png(PngTask& task) {
  const int depth = png_get_bit_depth(task.png, task.info);
  const int color = png_get_color_type(task.png, task.info);
  if (depth == 16) png_set_strip_16(task.png);
  switch (color) {
    case PNG_COLOR_TYPE_PALETTE:
      png_set_packing(task.png);
      return ImageMode::kPalette;
    case PNG_COLOR_TYPE_GRAY:
      if (depth < 8) png_set_expand_gray_1_2_4_to_8(task.png);
      return depth == 1 ? ImageMode::kBits : ImageMode::kGrey;
    case PNG_COLOR_TYPE_GRAY_ALPHA:
      return ImageMode::kGreyAlpha;
    case PNG_COLOR_TYPE_RGB:
      return ImageMode::kRgb;
    default:
      return ImageMode::kRgba;
  }
}

void read_palette(PngTask& task) {
  png_colorp colors = nullptr;
  int count = 0;
  if (png_get_PLTE(task.png, task.info, &colors, &count) == 0) png_failed(task.png, "its palette is missing");
  task.image.palette.assign(256, Color{});  // an index past the end of the palette is black
  for (int i = 0; i < count; ++i)
    task.image.palette[static_cast<size_t>(i)] = {colors[i].red, colors[i].green, colors[i].blue};
  png_bytep alpha = nullptr;
  int alphas = 0;
  if (png_get_tRNS(task.png, task.info, &alpha, &alphas, nullptr) == 0 || alpha == nullptr) return;
  task.image.palette_alpha.assign(256, 255);
  std::copy(alpha, alpha + alphas, task.image.palette_alpha.begin());
}

// A single transparent color of an 8-bit image.
void read_transparent(PngTask& task) {
  png_color_16p color = nullptr;
  if (png_get_bit_depth(task.png, task.info) != 8) return;
  if (png_get_tRNS(task.png, task.info, nullptr, nullptr, &color) == 0 || color == nullptr) return;
  const auto low = [](png_uint_16 value) { return static_cast<uint8_t>(value & 0xff); };
  if (task.image.mode == ImageMode::kGrey)
    task.image.transparent = Color{low(color->gray), low(color->gray), low(color->gray)};
  else
    task.image.transparent = Color{low(color->red), low(color->green), low(color->blue)};
}

// Returns whether the image was decoded; otherwise task.message says why not.
bool run_png(PngTask& task, const ImageHeader& header) {
  task.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &task, png_failed, png_warned);
  task.info = task.png == nullptr ? nullptr : png_create_info_struct(task.png);
  if (task.info == nullptr) return false;
  if (setjmp(png_jmpbuf(task.png)) != 0) return false;
  png_set_read_fn(task.png, &task, read_png);
  png_set_crc_action(task.png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
  // Metadata that is packed may unpack to anything; nothing of it is used.
  png_set_keep_unknown_chunks(task.png, PNG_HANDLE_CHUNK_NEVER, nullptr, 0);
  static const png_byte unused[] = "zTXt\0iTXt\0tEXt\0iCCP\0sPLT\0eXIf";
  png_set_keep_unknown_chunks(task.png, PNG_HANDLE_CHUNK_NEVER, unused, 6);
  png_set_user_limits(task.png, 0x7fffffff, 0x7fffffff);
  png_read_info(task.png, task.info);
  if (png_get_image_width(task.png, task.info) != header.width ||
      png_get_image_height(task.png, task.info) != header.height)
    png_failed(task.png, "its header holds two sizes");
  task.image = Image(prepare_png(task), header.width, header.height);
  if (task.image.mode == ImageMode::kPalette) read_palette(task);
  if (task.image.mode == ImageMode::kGrey || task.image.mode == ImageMode::kRgb) read_transparent(task);
  png_set_interlace_handling(task.png);
  png_read_update_info(task.png, task.info);
  if (png_get_rowbytes(task.png, task.info) != task.image.row_bytes())
    png_failed(task.png, "its rows have another length");
  task.rows.resize(static_cast<size_t>(header.height));
  for (int64_t y = 0; y < header.height; ++y) task.rows[static_cast<size_t>(y)] = task.image.row(y);
  png_read_image(task.png, task.rows.data());
  return true;
}

}  // namespace

bool has_png() { return true; }

Image decode_png(std::string_view bytes, const ImageHeader& header, const std::string& name) {
  PngTask task(bytes);
  if (!run_png(task, header)) refuse_damaged(name, ImageFormat::kPng, task.message);
  return std::move(task.image);
}

}  // namespace megalith::media
