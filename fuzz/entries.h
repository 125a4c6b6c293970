// Entry points of the fuzzers. Each takes any bytes and returns: DataError is the answer to bad input, and anything
// else that is thrown, or a broken promise of the code under test (InternalError), is a finding. The tests run them,
// too, over the corpus and over mutations of it (tests/support/fuzz_corpus.h).
#pragma once

#include <string_view>

namespace megalith::fuzz {

// First line: the number of bytes of data, in decimal; the rest: the header.
void safetensors_header(std::string_view input);

// A pickle as torch.save writes it, and a zip archive around one.
void pickle(std::string_view input);

// A config.json.
void json_config(std::string_view input);

// A config.json as the model families read it.
void model_config(std::string_view input);

// A tokenizer.json; encodes and decodes a few texts with it.
void tokenizer_json(std::string_view input);

// First line: the number of bytes of the .bin file, in decimal; the rest: the .idx file.
void idx_file(std::string_view input);

// The learning-rate schedule's state of a checkpoint.
void scheduler_state(std::string_view input);

// The loss scaler's state of a checkpoint.
void grad_scaler_state(std::string_view input);

// A chat template, rendered with fixed messages.
void chat_template(std::string_view input);

// A line of metrics.jsonl as the dashboard reads it.
void metrics_line(std::string_view input);

// Bytes that a connection sends to the dashboard.
void http_request(std::string_view input);

// A trace.json as the dashboard reads it, and what it shows of it.
void trace_view(std::string_view input);

// An image file: its header, and its pixels where they are few.
void image_file(std::string_view input);

// A video file: what its header says, and its first frames where they are small.
void video_file(std::string_view input);

// Decodes a WAV file: as many samples as its header says, and errors name the file.
void sound_file(std::string_view input);

}  // namespace megalith::fuzz
