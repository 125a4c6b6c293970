// One pass over stored state gives the bits of three: widen, update, round.
#include "megalith/ops/update/flat_buffer_internal.h"
#include "megalith/ops/update/stored_adam_internal.h"
#include "megalith/ops/update/stored_values.h"
#include "megalith/ops/update/stored_values_internal.h"
#include "tests/cuda_emulation/kernel_case.h"

namespace megalith::ops {
namespace {

struct FormatCase {
  StoredForm main, first, second;
  at::ScalarType grad;
  at::ScalarType param = at::kDouble;  // fp64: there is none
};
const std::vector<FormatCase> kFormatCases{
    {StoredForm::kHalves, StoredForm::kBf16, StoredForm::kBf16, at::kBFloat16},
    {StoredForm::kHalves, StoredForm::kScaledFp8, StoredForm::kScaledFp16, at::kFloat},
    {StoredForm::kHalves, StoredForm::kFp32, StoredForm::kFp32, at::kFloat},
    {StoredForm::kScaledFp16, StoredForm::kScaledFp8, StoredForm::kScaledFp8, at::kBFloat16, at::kBFloat16},
    {StoredForm::kScaledFp16, StoredForm::kBf16, StoredForm::kFp32, at::kHalf, at::kHalf},
    {StoredForm::kFp32, StoredForm::kScaledFp16, StoredForm::kScaledFp8, at::kFloat, at::kBFloat16},
    {StoredForm::kFp32, StoredForm::kFp32, StoredForm::kBf16, at::kFloat}};

bool is_scaled(StoredForm form) { return form == StoredForm::kScaledFp16 || form == StoredForm::kScaledFp8; }

at::ScalarType type_of(StoredForm form) {
  if (form == StoredForm::kFp32) return at::kFloat;
  if (form == StoredForm::kBf16) return at::kBFloat16;
  if (form == StoredForm::kHalves) return at::kShort;
  return form == StoredForm::kScaledFp8 ? at::kFloat8_e4m3fn : at::kHalf;
}

// An array in its format, written and read by the kernels of stored_values_internal.h.
struct Stored {
  Stored(StoredForm stored_form, const Tensor& numbers, void* stream) : form(stored_form) {
    const int64_t n = numbers.numel();
    values = block_of({n}, type_of(form), false);
    if (is_scaled(form)) scales = at::zeros({n / kScaleBlock});
    if (form == StoredForm::kHalves) high = block_of({n}, at::kBFloat16, false);
    write(numbers, stream);
  }
  void write(const Tensor& numbers, void* stream) {
    const int64_t n = numbers.numel();
    if (is_scaled(form))
      write_scaled_cuda(type_of(form), floats(numbers), n, out(values), floats(scales), stream);
    else if (form == StoredForm::kHalves)
      split_halves_cuda(floats(numbers), n, static_cast<uint16_t*>(out(high)), values.mutable_data_ptr<int16_t>(),
                        stream);
    else
      values.copy_(numbers);
  }
  Tensor read(void* stream) const {
    const int64_t n = values.numel();
    const Tensor numbers = block_of({n}, at::kFloat, false);
    if (is_scaled(form))
      read_scaled_cuda(type_of(form), in(values), floats(scales), n, floats(numbers), stream);
    else if (form == StoredForm::kHalves)
      join_halves_cuda(static_cast<const uint16_t*>(in(high)), values.const_data_ptr<int16_t>(), n, floats(numbers),
                       stream);
    else
      numbers.copy_(values);
    return numbers;
  }
  StoredArray array() const {
    return {form, out(values), scales.defined() ? floats(scales) : nullptr,
            high.defined() ? static_cast<uint16_t*>(out(high)) : nullptr};
  }

  StoredForm form;
  Tensor values, scales, high;
};

// Runs with padding between them; the third is longer than a block of threads has elements.
std::vector<UpdateRun> runs_of(int64_t count) {
  std::vector<UpdateRun> runs;
  for (int64_t i = 0, at = 0; i < count; ++i) {
    const int64_t length = i == 2 ? 2000 : 33 + i % 20;
    const UpdateScalars scalars{.lr = 1e-2 * static_cast<double>(1 + i % 3),
                                .weight_decay = i % 2 == 0 ? 0.1 : 0.0,
                                .grad_scale = 0.5,
                                .step = 3};
    runs.push_back({at, at + length, scalars});
    at = (at + length + 63) / 64 * 64;
  }
  return runs;
}

// The state before a step: zero outside the runs.
struct Start {
  Start(const FormatCase& c, std::span<const UpdateRun> runs) : n((runs.back().end + 63) / 64 * 64) {
    Random random;
    main = random({n}), first = random({n}), second = random({n}).abs_(), grad = random({n}, c.grad);
    Tensor inside = at::zeros({n});
    for (const UpdateRun& run : runs) inside.narrow(0, run.begin, run.end - run.begin).fill_(1);
    for (const Tensor& t : {main, first, second, grad}) t.mul_(inside);
  }
  int64_t n;
  Tensor main, first, second, grad;
};

Tensors update(const FormatCase& c, std::span<const UpdateRun> runs, const Tensor& gate, bool one_pass, void* stream,
               int multiprocessors = 0) {
  const Start start(c, runs);
  Stored main(c.main, start.main, stream), first(c.first, start.first, stream), second(c.second, start.second, stream);
  const Tensor param = c.param == at::kDouble ? Tensor() : at::zeros({start.n}, c.param);
  const AdamSettings settings;
  if (one_pass) {
    StoredAdamArrays arrays{.n = start.n, .main = main.array(), .first = first.array(), .second = second.array()};
    const auto plain = [](at::ScalarType type) {
      return type == at::kFloat ? StoredForm::kFp32 : type == at::kHalf ? StoredForm::kFp16 : StoredForm::kBf16;
    };
    arrays.grad = {plain(c.grad), out(start.grad)};
    if (param.defined()) arrays.param = {plain(c.param), out(param)};
    if (gate.defined()) arrays.gate = floats(gate);
    arrays.multiprocessors = multiprocessors;
    stored_adam_cuda(arrays, settings, runs, stream);
  } else {
    const Tensor value = main.read(stream), m = first.read(stream), v = second.read(stream);
    adam_runs_cuda({.n = start.n,
                    .main = floats(value),
                    .grad = in(start.grad),
                    .grad_dtype = c.grad,
                    .first = floats(m),
                    .second = floats(v),
                    .gate = gate.defined() ? floats(gate) : nullptr},
                   settings, runs, stream);
    main.write(value, stream), first.write(m, stream), second.write(v, stream);
    if (param.defined()) param.copy_(main.read(stream));
  }
  return {main.values, main.scales, main.high, first.values, first.scales, second.values, second.scales, param};
}

TEST(CudaStoredAdam, OnePassHasTheBitsOfThree) {
  for (const FormatCase& c : kFormatCases)
    for (const int64_t count : {1, 5, 150}) {  // 150 need two launches
      const std::vector<UpdateRun> runs = runs_of(count);
      const auto run = [&](bool one_pass) {
        return in_every_order([&](void* stream) { return update(c, runs, {}, one_pass, stream); }, "stored Adam");
      };
      const Tensors actual = run(true), expected = run(false);
      for (size_t i = 0; i < actual.size(); ++i)
        if (expected[i].defined()) {
          EXPECT_TRUE(same_bits(actual[i], expected[i])) << static_cast<int>(c.main) << " " << count << " " << i;
        }
    }
}

// With more elements than the threads of the multiprocessors have at a time, and fewer.
TEST(CudaStoredAdam, OnFewMultiprocessorsItHasTheSameBits) {
  for (const FormatCase& c : kFormatCases)
    for (const int64_t count : {1, 150}) {
      const std::vector<UpdateRun> runs = runs_of(count);
      const auto run = [&](int multiprocessors) {
        return in_every_order([&](void* stream) { return update(c, runs, {}, true, stream, multiprocessors); }, "few");
      };
      const Tensors expected = run(0);
      for (const int multiprocessors : {1, 2}) {
        const Tensors actual = run(multiprocessors);
        for (size_t i = 0; i < expected.size(); ++i)
          if (expected[i].defined()) {
            EXPECT_TRUE(same_bits(actual[i], expected[i])) << static_cast<int>(c.main) << " " << count << " " << i;
          }
      }
    }
}

TEST(CudaStoredAdam, AGateDecides) {
  const std::vector<UpdateRun> runs = runs_of(3);
  const FormatCase& c = kFormatCases[1];
  for (const bool open : {true, false}) {
    const Tensor gate = at::tensor({0.25F, open ? 1.0F : 0.0F});
    const auto run = [&](bool one_pass) {
      return in_every_order([&](void* stream) { return update(c, runs, gate, one_pass, stream); }, "gate");
    };
    const Tensors actual = run(true), expected = run(false);
    for (size_t i = 0; i < actual.size(); ++i)
      if (expected[i].defined()) {
        EXPECT_TRUE(same_bits(actual[i], expected[i])) << open << " " << i;
      }
  }
}

}  // namespace
}  // namespace megalith::ops
