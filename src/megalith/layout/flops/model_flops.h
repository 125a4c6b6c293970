// Floating-point operations of a training step, counted as Megatron-LM counts them: matrix products only, forward once
// and backward twice, causal attention half. Recomputation does not count, so that throughputs of different settings
// can be compared.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace megalith::layout {

// The sizes that determine the number of operations.
struct ModelFlopsShape {
  int64_t hidden_size = 0;
  int64_t ffn_hidden_size = 0;  // width of the MLP in dense layers
  bool gated_mlp = false;       // three matrices instead of two
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  bool output_gate = false;  // one more projection of the queries' size
  int64_t padded_vocab_size = 0;
  int64_t mtp_layers = 0;            // multi-token prediction; each like the last layer
  std::vector<bool> layer_is_moe{};  // one entry per layer

  // Layers with experts.
  int64_t expert_ffn_hidden_size = 0;
  int64_t experts_per_token = 0;
  int64_t shared_expert_ffn_hidden_size = 0;  // all shared experts together

  // Multi-latent attention; replaces the head sizes above.
  struct Mla {
    std::optional<int64_t> q_rank;  // std::nullopt means a full query projection
    int64_t kv_rank = 0;
    int64_t qk_head_dim = 0;
    int64_t rotary_head_dim = 0;
    int64_t v_head_dim = 0;
  };
  std::optional<Mla> mla{};

  // Layers with a state of fixed size in place of attention: multiplications for each token, one entry per layer.
  std::vector<double> recurrent_layers{};
  // Layers whose feed-forward is not an MLP of ffn_hidden_size, although layer_is_moe says false: multiplications for
  // each token, one entry per layer.
  std::vector<double> other_feed_forwards{};
};

// Returns the operations of one step over `tokens` tokens. `squared_lengths` is the sum of the squared sequence
// lengths, so that packed sequences count for what they cost.
double model_flops(const ModelFlopsShape& shape, double tokens, double squared_lengths);
// Returns the operations of one step over `sequences` sequences of the same length.
double model_flops(const ModelFlopsShape& shape, int64_t sequences, int64_t length);

// The sizes of a tower that determine the number of operations.
struct VisionFlopsShape {
  int64_t depth = 0;
  int64_t width = 0;
  int64_t mlp_width = 0;
  bool gated_mlp = false;     // three matrices instead of two
  int64_t patch_numbers = 0;  // numbers in the pixels of a patch
  int64_t merge = 2;          // patches along the side of an output row
  int64_t out_width = 0;      // numbers in an output row
  int64_t deepstack = 0;      // mergers besides the one at the end
  int64_t window_side = 0;    // output rows along the side of a window; 0 without windows
  int64_t full_blocks = 0;    // with windows: blocks that see a whole frame
};

// The images that a tower runs on, as far as its work depends on them.
struct VisionWork {
  double patches = 0;
  double frame_pairs = 0;   // pairs of patches of one frame, summed over frames
  double window_pairs = 0;  // pairs of patches of one window; 0 without windows

  // Adds an image or a video of so many patches in time, height and width.
  void add(const VisionFlopsShape& shape, int64_t time, int64_t height, int64_t width);
};

// Returns the operations of a vision tower, forward and backward. Attention is not causal, and so it counts in full. A
// part that is frozen counts once, since nothing flows back through it, and otherwise three times.
double vision_flops(const VisionFlopsShape& shape, const VisionWork& work, bool frozen_tower, bool frozen_merger);

// The sizes of an audio tower that determine the number of operations.
struct AudioFlopsShape {
  int64_t depth = 0;
  int64_t width = 0;
  int64_t mlp_width = 0;
  int64_t mel_bins = 0;     // numbers in a frame
  int64_t chunk = 0;        // frames that are convolved together
  int64_t channels = 0;     // each of three convolutions has so many, stride 2 and kernels of 3 x 3
  int64_t window_rows = 0;  // rows that attention covers at once
  int64_t out_width = 0;    // numbers in an output row
};

// The sounds that a tower runs on, as far as its work depends on them.
struct AudioWork {
  double chunks = 0;  // a chunk that is not full counts as one: the convolutions run over all of it
  double rows = 0;
  double window_pairs = 0;  // pairs of rows of one window

  // Adds a sound of so many frames.
  void add(const AudioFlopsShape& shape, int64_t frames);
};

// Returns the operations of an audio tower, counted as those of a vision tower. The projector is the part at its end.
double audio_flops(const AudioFlopsShape& shape, const AudioWork& work, bool frozen_tower, bool frozen_projector);

}  // namespace megalith::layout
