// Updates of parameters and what is known of flat buffers.
#include <cmath>

#include "megalith/ops/update/flat_buffer_internal.h"
#include "megalith/ops/update/stored_values.h"
#include "megalith/ops/update/stored_values_internal.h"
#include "tests/cuda_emulation/kernel_case.h"

namespace megalith::ops {
namespace {

struct UpdateCase {
  at::ScalarType grad, param;  // param fp64: there is none beside main
  int64_t n;
  bool misaligned = false;
};
const std::vector<UpdateCase> kUpdateCases{{at::kFloat, at::kDouble, 1003},       {at::kFloat, at::kBFloat16, 64},
                                           {at::kBFloat16, at::kBFloat16, 1030},  {at::kHalf, at::kHalf, 12},
                                           {at::kFloat, at::kBFloat16, 40, true}, {at::kFloat, at::kDouble, 0}};

struct Arrays {
  Arrays(const UpdateCase& c, Random& random)
      : main(random({c.n}, at::kFloat, c.misaligned)),
        grad(random({c.n}, c.grad, c.misaligned)),
        first(random({c.n}, at::kFloat, c.misaligned)),
        second(random({c.n}, at::kFloat, c.misaligned).abs_()) {
    if (c.param != at::kDouble) param = unset({c.n}, c.param, c.misaligned);
  }
  // A copy at places of the same alignment.
  Arrays copy() const {
    Arrays result = *this;
    for (Tensor* t : {&result.main, &result.first, &result.second, &result.param})
      if (t->defined()) *t = block_of(t->sizes(), t->scalar_type(), t->storage_offset() != 0).copy_(*t);
    return result;
  }
  UpdateArrays pointers() const {
    return {main.numel(),  floats(main),   in(grad),   grad.scalar_type(),
            floats(first), floats(second), out(param), param.defined() ? param.scalar_type() : at::kFloat};
  }
  Tensors results() const { return {main, first, second, param}; }

  Tensor main, grad, first, second, param;
};

constexpr UpdateScalars kScalars{.lr = 1e-2, .weight_decay = 0.1, .grad_scale = 0.5, .step = 3};

TEST(CudaUpdates, Adam) {
  for (const UpdateCase& c : kUpdateCases)
    for (const bool decoupled : {true, false}) {
      Random random;
      const Arrays start(c, random);
      const AdamSettings settings{.decoupled_decay = decoupled};
      const auto run = [&](bool cuda, void* stream) {
        const Arrays a = start.copy();
        cuda ? adam_cuda(a.pointers(), settings, kScalars, stream) : adam_cpu(a.pointers(), settings, kScalars);
        return a.results();
      };
      expect_twin([&](void* stream) { return run(true, stream); }, [&] { return run(false, nullptr); },
                  fmt::format("{} elements, decoupled {}", c.n, decoupled));
    }
}

TEST(CudaUpdates, Sgd) {
  for (const UpdateCase& c : kUpdateCases) {
    Random random;
    const Arrays start(c, random);
    const auto run = [&](bool cuda, void* stream) {
      const Arrays a = start.copy();
      cuda ? sgd_cuda(a.pointers(), {}, kScalars, stream) : sgd_cpu(a.pointers(), {}, kScalars);
      return a.results();
    };
    expect_twin([&](void* stream) { return run(true, stream); }, [&] { return run(false, nullptr); },
                fmt::format("{} elements", c.n));
  }
}

// More runs than a launch takes, with padding between them that is zero and stays so.
TEST(CudaUpdates, AdamOverRuns) {
  for (const UpdateCase& c :
       {UpdateCase{at::kFloat, at::kDouble, 150 * 32}, UpdateCase{at::kBFloat16, at::kBFloat16, 150 * 32}}) {
    Random random;
    const Arrays start(c, random);
    std::vector<UpdateRun> runs;
    Tensor inside = at::zeros({c.n}, at::kFloat);
    for (int64_t i = 0; i < 150; ++i) {
      UpdateScalars scalars = kScalars;
      scalars.lr *= static_cast<double>(1 + i % 3);
      scalars.weight_decay *= static_cast<double>(i % 2);
      runs.push_back({32 * i, 32 * i + 20 + i % 12, scalars});
      inside.narrow(0, runs.back().begin, runs.back().end - runs.back().begin).fill_(1);
    }
    for (const Tensor& t : {start.main, start.grad, start.first, start.second}) t.mul_(inside);
    if (start.param.defined()) start.param.zero_();
    const auto cuda = [&](void* stream) {
      const Arrays a = start.copy();
      EXPECT_TRUE(adam_runs_fit_cuda(a.pointers()));
      adam_runs_cuda(a.pointers(), {}, runs, stream);
      return a.results();
    };
    const auto cpu = [&] {
      const Arrays a = start.copy();
      for (const UpdateRun& run : runs) {
        Arrays part = a;
        for (Tensor* t : {&part.main, &part.grad, &part.first, &part.second, &part.param})
          if (t->defined()) *t = t->narrow(0, run.begin, run.end - run.begin);
        adam_cpu(part.pointers(), {}, run.scalars);
      }
      return a.results();
    };
    expect_twin(cuda, cpu, "runs");
    // On few multiprocessors, with more elements than their threads have at a time, or fewer.
    for (const int multiprocessors : {1, 2}) {
      const auto confined = [&](void* stream) {
        const Arrays a = start.copy();
        UpdateArrays pointers = a.pointers();
        pointers.multiprocessors = multiprocessors;
        adam_runs_cuda(pointers, {}, runs, stream);
        return a.results();
      };
      const Tensors actual = in_every_order(confined, "confined"), expected = in_every_order(cuda, "runs");
      for (size_t i = 0; i < expected.size(); ++i)
        if (expected[i].defined()) {
          EXPECT_TRUE(same_bits(actual[i], expected[i])) << multiprocessors << " " << i;
        }
    }
  }
}

// The same factor from the device, or no update.
TEST(CudaUpdates, AGateDecides) {
  for (const UpdateCase& c : kUpdateCases)
    for (const bool open : {true, false})
      for (const bool adam : {true, false}) {
        Random random;
        const Arrays start(c, random);
        const Tensor gate = at::tensor({static_cast<float>(kScalars.grad_scale), open ? 1.0F : 0.0F});
        UpdateScalars unknown = kScalars;
        unknown.grad_scale = NAN;
        const auto cuda = [&](void* stream) {
          const Arrays a = start.copy();
          UpdateArrays pointers = a.pointers();
          pointers.gate = floats(gate);
          adam ? adam_cuda(pointers, {}, unknown, stream) : sgd_cuda(pointers, {}, unknown, stream);
          return a.results();
        };
        const auto cpu = [&] {
          const Arrays a = start.copy();
          if (open) adam ? adam_cpu(a.pointers(), {}, kScalars) : sgd_cpu(a.pointers(), {}, kScalars);
          return a.results();
        };
        if (open)
          expect_twin(cuda, cpu, fmt::format("{} elements, adam {}", c.n, adam));
        else
          for (size_t i = 0; i < 3; ++i)
            EXPECT_TRUE(in_every_order(cuda, "closed")[i].equal(cpu()[i])) << c.n << " adam " << adam;
      }
}

TEST(CudaUpdates, ClipGate) {
  for (const std::vector<double>& sums : {std::vector<double>{9}, {1e-12}, {4, 5, 16}, {0}, {INFINITY}, {1, NAN, 2}})
    for (const ClipSettings settings : {ClipSettings{1, 1}, {0.25, 1}, {1, 0}, {0.3, 1e9}}) {
      const Tensor squares = at::tensor(sums, at::kDouble);
      const auto cuda = [&](void* stream) {
        const Tensor gate = unset({2}, at::kFloat);
        clip_gate_cuda(squares.const_data_ptr<double>(), squares.numel(), settings, floats(gate), stream);
        return Tensors{gate};
      };
      std::vector<Tensor> parts;
      for (const double sum : sums) parts.push_back(at::scalar_tensor(sum, at::kDouble));
      const Tensor gate = in_every_order(cuda, "gate")[0];
      EXPECT_TRUE(gate.equal(clip_gate(parts, settings))) << sums.size();
      double sum = 0;
      for (const double each : sums) sum += each;
      EXPECT_EQ(gate[1].item<float>(), std::isfinite(sum) ? 1 : 0);
      if (std::isfinite(sum)) {
        EXPECT_EQ(gate[0].item<float>(), static_cast<float>(clip_factor(std::sqrt(sum), settings)));
      }
    }
}

TEST(CudaUpdates, Squares) {
  for (const auto dtype : kBothDtypes)
    for (const int64_t n : {0, 5, 1003, 4096})
      for (const bool misaligned : {false, true}) {
        Random random;
        const Tensor flat = random({n}, dtype, misaligned);
        const auto cuda = [&](void* stream) {
          const Tensor sum = unset({1}, at::kDouble), workspace = unset({add_squares_workspace_cuda()}, at::kDouble);
          add_squares_cuda(dtype, in(flat), n, sum.mutable_data_ptr<double>(), workspace.mutable_data_ptr<double>(),
                           stream);
          return Tensors{sum};
        };
        ExactSum exact;
        add_squares_cpu(dtype, in(flat), n, exact);
        const double sum = in_every_order(cuda, "squares")[0].item<double>();
        EXPECT_NEAR(sum, exact.value(), 1e-13 * sum) << n;
      }
}

// More elements than the blocks of a device take at once.
TEST(CudaUpdates, ScaleAndCheck) {
  for (const auto dtype : kBothDtypes)
    for (const int64_t n : {0, 5, 1003, 40000})
      for (const double factor : {1.0, 0.25})
        for (const float odd : {1.0F, INFINITY, -INFINITY, NAN}) {
          Random random;
          const Tensor flat = random({n}, dtype, n == 1003);
          if (n > 0) flat[n / 2] = odd;
          const auto run = [&](bool cuda, void* stream) {
            const Tensor x = block_of({n}, dtype, n == 1003).copy_(flat), broken = at::zeros({1}, at::kInt);
            if (cuda)
              scale_and_check_cuda(dtype, out(x), n, factor, broken.mutable_data_ptr<int>(), stream);
            else
              broken.fill_(scale_and_check_cpu(dtype, out(x), n, factor) ? 0 : 1);
            return Tensors{x, broken};
          };
          const Tensors actual = in_every_order([&](void* stream) { return run(true, stream); }, "scale"),
                        expected = run(false, nullptr);
          EXPECT_TRUE(actual[0].equal(expected[0]) || std::isnan(odd)) << n;
          EXPECT_EQ(actual[1].item<int>(), expected[1].item<int>()) << n;
          EXPECT_EQ(actual[1].item<int>(), n > 0 && !std::isfinite(odd) ? 1 : 0) << n;
        }
}

// The bits of the CPU: state moves between devices (offload, checkpoints).
TEST(CudaUpdates, StoredValues) {
  for (const auto format : {at::kHalf, at::kFloat8_e4m3fn})
    for (const int64_t n : {64, 1024, 5 * 64 + 1024})
      for (const double size : {1.0, 1e-12, 1e-38}) {
        Random random;
        const Tensor x = random({n}) * size;
        x[3] = 0;
        const auto values = [&] { return at::full({n}, 1, at::kFloat).to(format); };
        const auto cuda = [&](void* stream) {
          const Tensor v = values(), scales = unset({n / kScaleBlock}, at::kFloat), back = unset({n}, at::kFloat);
          write_scaled_cuda(format, floats(x), n, out(v), floats(scales), stream);
          read_scaled_cuda(format, in(v), floats(scales), n, floats(back), stream);
          return Tensors{v, scales, back};
        };
        const Tensor v = values(), scales = unset({n / kScaleBlock}, at::kFloat), back = unset({n}, at::kFloat);
        write_scaled_cpu(format, floats(x), n, out(v), floats(scales));
        read_scaled_cpu(format, in(v), floats(scales), n, floats(back));
        const Tensors actual = in_every_order(cuda, "stored values"), expected{v, scales, back};
        for (size_t i = 0; i < expected.size(); ++i)
          EXPECT_TRUE(same_bits(actual[i], expected[i]))
              << c10::toString(format) << " " << n << " " << size << " " << i;
      }
}

TEST(CudaUpdates, HalvesOfNumbers) {
  for (const int64_t n : {64, 1024 + 64}) {
    Random random;
    const Tensor x = random({n});
    const auto cuda = [&](void* stream) {
      const Tensor high = at::empty({n}, at::kShort), low = at::empty({n}, at::kShort), back = unset({n}, at::kFloat);
      auto* upper = static_cast<uint16_t*>(out(high));
      split_halves_cuda(floats(x), n, upper, low.mutable_data_ptr<int16_t>(), stream);
      join_halves_cuda(upper, low.const_data_ptr<int16_t>(), n, floats(back), stream);
      return Tensors{high, low, back};
    };
    const Tensors actual = in_every_order(cuda, "halves");
    EXPECT_TRUE(actual[2].equal(x));
    EXPECT_TRUE(actual[0].view(at::kBFloat16).equal(x.to(at::kBFloat16)));
  }
}

}  // namespace
}  // namespace megalith::ops
