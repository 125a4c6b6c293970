// All expected values are integers that every type here represents exactly, whatever the order of a sum: numbers to be
// moved are below 251; of the numbers to be summed, at most 256 are nonzero, each -1 or 1. So every comparison is exact
// (bfloat16 has 8 significant bits), except for means, and no reference run is needed. The numbers depend on sender,
// receiver, element and round, so data from the wrong rank or an earlier round does not pass.
#include "megalith/parallel/group_check.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "megalith/base/error.h"
#include "megalith/base/text.h"

namespace megalith::parallel {

using comm::OpKind;
using comm::ReduceOp;

namespace {

constexpr const char* kCheckLabel = "self-check";
constexpr int64_t kCheckedElements = 509;  // odd, so that no transport gets sizes that are multiples of its blocks

// Returns a number below 251 that `from` sends to `to`.
int64_t moved_number(int64_t from, int64_t to, int64_t i, int64_t round) {
  return (from * 31 + to * 17 + i * 7 + round * 13 + 1) % 251;
}

// Returns what rank r of n contributes at element i: -1, 0 or 1, nonzero on at most 256 ranks.
int64_t summed_number(int64_t r, int64_t n, int64_t i, int64_t round) {
  const int64_t step = (n + 255) / 256;
  if ((r + i) % step != 0) return 0;
  auto mixed = static_cast<uint64_t>(r * 1000003 + i * 7919 + round * 104729 + 1) * 0x9e3779b97f4a7c15U;
  return static_cast<int64_t>((mixed >> 33) % 3) - 1;
}

// Built on the host in double, which represents every value exactly.
at::Tensor number_tensor(int64_t count, const std::function<double(int64_t)>& number) {
  const at::Tensor all = at::empty({count}, at::kDouble);
  auto* data = all.mutable_data_ptr<double>();
  for (int64_t i = 0; i < count; ++i) data[i] = number(i);
  return all;
}

// Returns the type as messages name it.
std::string checked_type_name(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "float32";
    case at::kBFloat16:
      return "bfloat16";
    case at::kLong:
      return "int64";
    default:
      return "bytes";
  }
}

// Runs every operation of a group once. Wrong answers are collected and not thrown: all ranks must go through the same
// operations, or the next one would hang.
class GroupChecker {
 public:
  GroupChecker(const comm::Group& group, at::Device device, int round)
      : group_(group), device_(device), round_(round), n_(group.size()), me_(group.rank()) {}

  GroupCheck run() {
    // Each operation is checked with types of 4, 2, 8 and 1 bytes.
    reductions();
    for (const auto type : {at::kFloat, at::kBFloat16, at::kLong, at::kByte}) {
      all_gather(type);
      all_to_all(type);
      all_to_all_unequal(type);
      broadcast(type);
      chain(type);
      ring(type);
    }
    bytes();
    group_.barrier(kCheckLabel);
    ++result_.operations;
    return std::move(result_);
  }

 private:
  at::Tensor on_device(const at::Tensor& host, at::ScalarType type) const { return host.to(type).to(device_); }
  // Returns a buffer for a result, filled so that an operation that writes nothing is noticed.
  at::Tensor room(int64_t count, at::ScalarType type) const {
    return at::full({count}, 3, at::TensorOptions(device_).dtype(type));
  }
  // Returns the numbers that `from` sends to `to`.
  at::Tensor moved(int from, int to, int64_t count = kCheckedElements) const {
    return number_tensor(count, [&](int64_t i) { return static_cast<double>(moved_number(from, to, i, round_)); });
  }

  // Records a wrong answer and continues.
  void fail(const std::string& operation, std::string detail) {
    result_.wrong.push_back(
        {group_.name(), group_.ranks(), operation, group_.ranks()[static_cast<size_t>(me_)], std::move(detail)});
  }

  // Compares on the host, which also waits for the device.
  void expect(const std::string& operation, const at::Tensor& got, const at::Tensor& wanted, double tolerance = 0) {
    ++result_.operations;
    const at::Tensor values = got.cpu().to(at::kDouble).view(-1);
    const at::Tensor wrong = (values - wanted).abs().le(tolerance).logical_not();  // true for NaN as well
    if (!wrong.any().item<bool>()) return;
    const int64_t at = wrong.to(at::kLong).argmax().item<int64_t>();
    fail(operation, fmt::format("element {} of {} is {} and should be {}; {} are wrong", at, values.numel(),
                                values[at].item<double>(), wanted[at].item<double>(), wrong.sum().item<int64_t>()));
  }

  // Returns the expected result of a reduction at element i.
  double reduced(ReduceOp op, int64_t i) const {
    double sum = 0, most = -2, least = 2;
    for (int r = 0; r < n_; ++r) {
      const auto number = static_cast<double>(summed_number(r, n_, i, round_));
      sum += number;
      most = std::max(most, number);
      least = std::min(least, number);
    }
    if (op == ReduceOp::kMax) return most;
    if (op == ReduceOp::kMin) return least;
    return op == ReduceOp::kAvg ? sum / n_ : sum;
  }

  void reductions() {
    const at::Tensor own = number_tensor(
        kCheckedElements, [&](int64_t i) { return static_cast<double>(summed_number(me_, n_, i, round_)); });
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kAvg}) {
      const at::Tensor wanted = number_tensor(kCheckedElements, [&](int64_t i) { return reduced(op, i); });
      for (const auto type : {at::kFloat, at::kBFloat16, at::kLong}) {
        if (op == ReduceOp::kAvg && type == at::kLong) continue;
        // A mean may be rounded at every step, or only at the end.
        const double tolerance = op != ReduceOp::kAvg ? 0 : type == at::kFloat ? 1e-5 : 0.05;
        const at::Tensor all = on_device(own, type);
        group_.all_reduce(all, op, kCheckLabel);
        expect(fmt::format("all_reduce({}) of {}", to_string(op), checked_type_name(type)), all, wanted, tolerance);
      }
    }
    for (const auto type : {at::kFloat, at::kBFloat16, at::kLong}) reduce_scatter(type);
  }

  // Block b of every rank holds its numbers from element b on.
  void reduce_scatter(at::ScalarType type) {
    constexpr int64_t kBlock = 67;
    const at::Tensor own = number_tensor(kBlock * n_, [&](int64_t i) {
      return static_cast<double>(summed_number(me_, n_, i / kBlock + i % kBlock, round_));
    });
    const at::Tensor block = room(kBlock, type);
    group_.reduce_scatter(block, on_device(own, type), ReduceOp::kSum, kCheckLabel);
    expect(fmt::format("reduce_scatter(sum) of {}", checked_type_name(type)), block,
           number_tensor(kBlock, [&](int64_t i) { return reduced(ReduceOp::kSum, me_ + i); }));
  }

  // Receivers do not matter here, so the data of rank r is what it would send to rank 0.
  void all_gather(at::ScalarType type) {
    const at::Tensor all = room(kCheckedElements * n_, type);
    group_.all_gather(all, on_device(moved(me_, 0), type), kCheckLabel);
    std::vector<at::Tensor> wanted;
    for (int r = 0; r < n_; ++r) wanted.push_back(moved(r, 0));
    expect("all_gather of " + checked_type_name(type), all, at::cat(wanted));
  }

  // Blocks of equal size, the form that head exchange uses.
  void all_to_all(at::ScalarType type) {
    constexpr int64_t kBlock = 5;
    std::vector<at::Tensor> own, wanted;
    for (int r = 0; r < n_; ++r) {
      own.push_back(moved(me_, r, kBlock));
      wanted.push_back(moved(r, me_, kBlock));
    }
    const at::Tensor all = room(kBlock * n_, type);
    group_.all_to_all(all, on_device(at::cat(own), type), {}, {}, kCheckLabel);
    expect("all_to_all of " + checked_type_name(type), all, at::cat(wanted));
  }

  // Rows of two columns; 0 to 3 rows for each pair, so that some blocks are empty.
  void all_to_all_unequal(at::ScalarType type) {
    constexpr int64_t kColumns = 2;
    const auto rows = [&](int64_t from, int64_t to) { return (from + 2 * to) % 4; };
    std::vector<at::Tensor> own, wanted;
    std::vector<int64_t> sent, received;
    for (int r = 0; r < n_; ++r) {
      sent.push_back(rows(me_, r));
      received.push_back(rows(r, me_));
      own.push_back(moved(me_, r, sent.back() * kColumns));
      wanted.push_back(moved(r, me_, received.back() * kColumns));
    }
    const at::Tensor expected = at::cat(wanted);
    const at::Tensor all = room(expected.numel(), type).view({-1, kColumns});
    group_.all_to_all(all, on_device(at::cat(own), type).view({-1, kColumns}), received, sent, kCheckLabel);
    expect("all_to_all with unequal blocks of " + checked_type_name(type), all, expected);
  }

  // From both ends of the group.
  void broadcast(at::ScalarType type) {
    for (const int root : {0, n_ - 1}) {
      const at::Tensor data = on_device(moved(me_, 1), type);
      group_.broadcast(data, root, kCheckLabel);
      expect(fmt::format("broadcast of {} from group rank {}", checked_type_name(type), root), data, moved(root, 1));
    }
  }

  // Sends from the first rank to the last, and back, like activations and gradients of a pipeline.
  void chain(at::ScalarType type) {
    for (const int step : {1, -1}) {
      const int from = me_ - step, to = me_ + step;
      if (from >= 0 && from < n_) {
        const at::Tensor received = room(kCheckedElements, type);
        group_.recv(received, from, kCheckLabel);
        expect(fmt::format("send and recv of {} from group rank {}", checked_type_name(type), from), received,
               moved(from, me_));
      }
      if (to >= 0 && to < n_) group_.send(on_device(moved(me_, to), type), to, kCheckLabel);
    }
  }

  // Sends to both neighbors and receives from both at once, like pipelines in their steady state and
  // context-parallel rings.
  void ring(at::ScalarType type) {
    const int next = (me_ + 1) % n_, previous = (me_ + n_ - 1) % n_;
    const at::Tensor forward = room(kCheckedElements, type), backward = room(kCheckedElements, type);
    group_.batch({{OpKind::kSend, on_device(moved(me_, next), type), next},
                  {OpKind::kRecv, forward, previous},
                  {OpKind::kSend, on_device(moved(me_, previous) + 1, type), previous},
                  {OpKind::kRecv, backward, next}},
                 kCheckLabel);
    expect(fmt::format("batch of transfers of {} from group rank {}", checked_type_name(type), previous), forward,
           moved(previous, me_));
    expect(fmt::format("batch of transfers of {} from group rank {}", checked_type_name(type), next), backward,
           moved(next, me_) + 1);
  }

  // A different length on each rank, empty on the first.
  std::string text_of(int rank) const { return std::string(static_cast<size_t>(rank * 3), 'a' + (rank + round_) % 26); }

  void bytes() {
    result_.operations += 2;
    const std::vector<std::string> all = group_.all_gather_bytes(text_of(me_), kCheckLabel);
    for (int r = 0; r < n_; ++r)
      if (all[static_cast<size_t>(r)] != text_of(r))
        fail("all_gather_bytes", fmt::format("the text of group rank {} is \"{}\" and should be \"{}\"", r,
                                             all[static_cast<size_t>(r)], text_of(r)));
    const std::string last = group_.broadcast_bytes(text_of(me_), n_ - 1, kCheckLabel);
    if (last != text_of(n_ - 1))
      fail("broadcast_bytes", fmt::format("the text is \"{}\" and should be \"{}\"", last, text_of(n_ - 1)));
  }

  const comm::Group& group_;
  const at::Device device_;
  const int round_, n_, me_;
  GroupCheck result_;
};

}  // namespace

std::string WrongAnswer::in_words() const {
  return fmt::format("{} in group {} (ranks {}), on rank {}: {}", operation, group, list_in_words(ranks), rank, detail);
}

GroupCheck check_group(const comm::Group& group, at::Device device, int round) {
  check(group.size() > 1, "group {} has one rank: there is nothing to check", group.name());
  return GroupChecker(group, device, round).run();
}

}  // namespace megalith::parallel
