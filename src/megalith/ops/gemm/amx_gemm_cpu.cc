// bf16 products on AMX. The processor has eight tile registers of 16 rows of 64 bytes; one instruction multiplies a
// tile of a (16 x 32 bf16) with a tile of b (16 x 16 pairs, that is 32 x 16 bf16) into a tile of c (16 x 16 fp32). All
// eight are in use, so that each loaded tile takes part in two products:
//
//                tile 6 | tile 7      b: 32 deep, 2 x 16 columns
//   a: tile 4    tile 0 | tile 1      c: 32 x 32
//      tile 5    tile 2 | tile 3
//
// c is loaded and stored once per 32 x 32 block; a and b come from the cache (operands of attention blocks). A step of
// 32 in depth loads four tiles (4 KiB) for four products of 16 x 16 x 32 each; with one tile of a and one of b it would
// load two tiles per product.
//
//   a tile   row i: a[i][0 ... 31]                     64 bytes
//   b tile   row i: pairs (b[2i][j], b[2i + 1][j])     j = 0 ... 15: 64 bytes, why b comes as Bf16Pair
//   c[i][j] += Σ_p a[i][2p] b[2p][j] + a[i][2p + 1] b[2p + 1][j]
#include "megalith/ops/gemm/amx_gemm.h"

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#define MEGALITH_TARGET_AMX __attribute__((target("amx-tile,amx-bf16")))

namespace megalith::ops {

namespace {

// Whether the processor has the tile registers and their bf16 products (CPUID leaf 7, bits 24 and 22 of EDX).
bool cpu_has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kBf16 = 1U << 22, kTile = 1U << 24;
  return (d & kBf16) != 0 && (d & kTile) != 0;
}

// Asks Linux for the registers, which it grants on request, to the whole process (arch_prctl ARCH_REQ_XCOMP_PERM).
bool request_amx() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// The layout that the processor defines: eight tiles of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
// Not on the stack: GCC does not know that the instruction reads it and would remove the stores as dead.
constexpr TileConfig kTileConfig;

// Computes 32 x 32 of c, k deep.
MEGALITH_TARGET_AMX void run_tile(const AmxGemm& g, const c10::BFloat16* a, const Bf16Pair* b, float* c, int64_t k,
                                  bool accumulate) {
  const int64_t a_bytes = g.a_row * 2, b_bytes = g.b_row * 4, c_bytes = g.c_row * 4;
  float* c_low = c + 16 * g.c_row;
  if (accumulate) {
    _tile_loadd(0, c, c_bytes);
    _tile_loadd(1, c + 16, c_bytes);
    _tile_loadd(2, c_low, c_bytes);
    _tile_loadd(3, c_low + 16, c_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t p = 0; p < k; p += 32) {
    _tile_loadd(4, a, a_bytes);
    _tile_loadd(5, a + 16 * g.a_row, a_bytes);
    _tile_loadd(6, b, b_bytes);
    _tile_loadd(7, b + 16, b_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    a += 32;
    b += 16 * g.b_row;
  }
  _tile_stored(0, c, c_bytes);
  _tile_stored(1, c + 16, c_bytes);
  _tile_stored(2, c_low, c_bytes);
  _tile_stored(3, c_low + 16, c_bytes);
}

MEGALITH_TARGET_AMX void set_up_tiles() { _tile_loadconfig(&kTileConfig); }
MEGALITH_TARGET_AMX void release_tiles() { _tile_release(); }

}  // namespace

bool amx_available() {
  static const bool available = cpu_has_amx() && request_amx();
  return available;
}

AmxSession::AmxSession() { set_up_tiles(); }
AmxSession::~AmxSession() { release_tiles(); }

void amx_gemm(const AmxGemm& g) {
  for (int64_t i = 0; i < g.m; i += kAmxTile) {
    const int64_t last = i + kAmxTile - 1;
    const int64_t j0 = std::clamp<int64_t>(i + g.columns.lo, 0, g.n) / kAmxTile * kAmxTile;
    // The band of 32 rows is that of the first row to that of the last, rounded outwards to whole tiles.
    const int64_t j1 = std::clamp<int64_t>(last + g.columns.hi, j0, g.n);
    const int64_t k0 = std::clamp<int64_t>(i + g.depth.lo, 0, g.k) / kAmxTile * kAmxTile;
    const int64_t k1 = amx_padded(std::clamp<int64_t>(last + g.depth.hi, k0, g.k));
    for (int64_t j = j0; j < j1; j += kAmxTile)
      run_tile(g, g.a + i * g.a_row + k0, g.b + k0 / 2 * g.b_row + j, g.c + i * g.c_row + j, k1 - k0, g.accumulate);
  }
}

}  // namespace megalith::ops

#else

#include "megalith/base/error.h"

namespace megalith::ops {

bool amx_available() { return false; }
AmxSession::AmxSession() = default;
AmxSession::~AmxSession() = default;
void amx_gemm(const AmxGemm& /*gemm*/) { check(false, "this processor has no AMX"); }

}  // namespace megalith::ops

#endif
