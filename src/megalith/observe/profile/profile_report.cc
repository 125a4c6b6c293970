// Everything is arithmetic on unions of intervals: sorted, disjoint lists, whose lengths add up.
#include "megalith/observe/profile/profile_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace megalith::observe {

namespace {

struct Interval {
  int64_t begin = 0, end = 0;
};
using Intervals = std::vector<Interval>;

// Returns the union, as disjoint intervals in order.
Intervals united(Intervals all) {
  std::ranges::sort(all, {}, &Interval::begin);
  Intervals result;
  for (const Interval& one : all) {
    if (result.empty() || one.begin > result.back().end)
      result.push_back(one);
    else
      result.back().end = std::max(result.back().end, one.end);
  }
  return result;
}

int64_t length(const Intervals& disjoint) {
  int64_t sum = 0;
  for (const Interval& one : disjoint) sum += one.end - one.begin;
  return sum;
}

// Returns how much of `a` lies in `b`; both are unions.
int64_t common(const Intervals& a, const Intervals& b) {
  int64_t sum = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    sum += std::max<int64_t>(0, std::min(a[i].end, b[j].end) - std::max(a[i].begin, b[j].begin));
    if (a[i].end < b[j].end)
      ++i;
    else
      ++j;
  }
  return sum;
}

std::vector<KernelCost> costs_of(const std::vector<DeviceWork>& work) {
  std::map<std::string, KernelCost> by_name;
  for (const DeviceWork& one : work) {
    KernelCost& cost = by_name[one.name];
    ++cost.calls;
    cost.total_ns += one.end_ns - one.begin_ns;
  }
  std::vector<KernelCost> costs;
  for (auto& [name, cost] : by_name) {
    cost.name = name;
    costs.push_back(cost);
  }
  std::ranges::stable_sort(costs, std::greater<>(), &KernelCost::total_ns);
  return costs;
}

double percent(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

double milliseconds(int64_t ns, int64_t steps) { return static_cast<double>(ns) / 1e6 / static_cast<double>(steps); }

// "1.5": calls per step are not whole numbers when steps differ.
std::string calls_text(int64_t calls, int64_t steps) {
  if (calls % steps == 0) return fmt::format("{}", calls / steps);
  return fmt::format("{:.1f}", static_cast<double>(calls) / static_cast<double>(steps));
}

// Assigns each operator's time to itself, except for the part in which operators that it calls run.
class SelfTimes {
 public:
  // In order of begin, outer ones first.
  void add(const HostWork& work) {
    while (!open_.empty() && open_.back()->end_ns <= work.begin_ns) open_.pop_back();
    const int64_t took = work.end_ns - work.begin_ns;
    if (!open_.empty()) costs_[open_.back()->name].self_ns -= took;
    OperatorCost& cost = costs_[work.name];
    ++cost.calls;
    cost.self_ns += took;
    // An operator inside one of the same name is part of its time already.
    const bool nested = std::ranges::any_of(open_, [&](const HostWork* outer) { return outer->name == work.name; });
    if (!nested) cost.total_ns += took;
    open_.push_back(&work);
  }
  void end_thread() { open_.clear(); }
  std::map<std::string, OperatorCost> take() { return std::move(costs_); }

 private:
  std::vector<const HostWork*> open_;
  std::map<std::string, OperatorCost> costs_;
};

// The sizes of a product: rows, columns, the size that is summed over, and how many there are.
struct ProductSizes {
  int64_t m = 0, n = 0, k = 0, batch = 1;
};

// Operators that multiply matrices, and which of their arguments the first factor is; the second one comes after it.
constexpr auto kProductOperators = std::to_array<std::pair<std::string_view, size_t>>({{"aten::mm", 0},
                                                                                       {"aten::addmm", 1},
                                                                                       {"aten::addmm_", 1},
                                                                                       {"aten::bmm", 0},
                                                                                       {"aten::baddbmm", 1},
                                                                                       {"aten::_scaled_mm", 0},
                                                                                       {"aten::_grouped_mm", 0},
                                                                                       {"megalith::product", 0}});

// Returns the sizes of the product of two factors with 2 or 3 dimensions; all zeros if these do not multiply. Rows that
// are distributed over groups multiply one matrix each, so that their number counts once.
ProductSizes product_sizes(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  if (a.size() < 2 || a.size() > 3 || b.size() < 2 || b.size() > 3) return {};
  ProductSizes sizes{.m = a[a.size() - 2], .n = b.back(), .k = a.back()};
  if (a.size() == 3) sizes.batch = a[0];
  return b[b.size() - 2] == sizes.k ? sizes : ProductSizes{};
}

ProductSizes product_sizes(const HostWork& work) {
  for (const auto& [name, first] : kProductOperators)
    if (work.name == name && work.shapes.size() > first + 1)
      return product_sizes(work.shapes[first], work.shapes[first + 1]);
  return {};
}

std::string product_text(const HostWork& work, const ProductSizes& sizes) {
  std::string text =
      fmt::format("{} {} x {} x {}", work.name.substr(work.name.rfind(':') + 1), sizes.m, sizes.n, sizes.k);
  if (sizes.batch > 1) text += fmt::format(", {} times", sizes.batch);
  return text;
}

}  // namespace

std::vector<ProductCost> profile_products(const ProfileRecord& record) {
  std::map<uint64_t, int64_t> ns_of;  // operators and the time of their kernels
  for (const DeviceWork& work : record.device)
    if (work.launcher != 0) ns_of[work.launcher] += work.end_ns - work.begin_ns;
  std::map<std::string, ProductCost> by_shape;
  for (const HostWork& work : record.host) {
    const auto ns = ns_of.find(work.id);
    const ProductSizes sizes = product_sizes(work);
    if (work.id == 0 || ns == ns_of.end() || sizes.m == 0) continue;
    ProductCost& cost = by_shape[product_text(work, sizes)];
    cost.flops = 2 * sizes.batch * sizes.m * sizes.n * sizes.k;
    ++cost.calls;
    cost.total_ns += ns->second;
  }
  std::vector<ProductCost> costs;
  for (auto& [what, cost] : by_shape) {
    cost.what = what;
    costs.push_back(cost);
  }
  std::ranges::stable_sort(costs, std::greater<>(), &ProductCost::total_ns);
  return costs;
}

DeviceProfile profile_device(const std::vector<DeviceWork>& work) {
  DeviceProfile profile;
  if (work.empty()) return profile;
  std::array<Intervals, kWorkKinds> by_kind;
  Intervals all, computing;
  for (const DeviceWork& one : work) {
    const WorkKind kind = work_kind(one.name);
    const Interval interval{one.begin_ns, one.end_ns};
    by_kind[static_cast<size_t>(kind)].push_back(interval);
    all.push_back(interval);
    if (kind != WorkKind::kCommunication && kind != WorkKind::kCopies) computing.push_back(interval);
  }
  all = united(std::move(all));
  computing = united(std::move(computing));
  profile.window_ns = all.back().end - all.front().begin;
  profile.idle_ns = profile.window_ns - length(all);
  for (size_t kind = 0; kind < kWorkKinds; ++kind) {
    by_kind[kind] = united(std::move(by_kind[kind]));
    profile.busy_ns[kind] = length(by_kind[kind]);
  }
  const Intervals& communication = by_kind[static_cast<size_t>(WorkKind::kCommunication)];
  profile.exposed_ns = length(communication) - common(communication, computing);
  profile.kernels = costs_of(work);
  return profile;
}

std::vector<OperatorCost> profile_host(std::vector<HostWork> work) {
  std::ranges::stable_sort(work, {},
                           [](const HostWork& one) { return std::tuple(one.thread, one.begin_ns, -one.end_ns); });
  SelfTimes times;
  for (size_t i = 0; i < work.size(); ++i) {
    if (i > 0 && work[i].thread != work[i - 1].thread) times.end_thread();
    times.add(work[i]);
  }
  std::vector<OperatorCost> costs;
  for (auto& [name, cost] : times.take()) {
    cost.name = name;
    costs.push_back(cost);
  }
  std::ranges::stable_sort(costs, std::greater<>(), &OperatorCost::self_ns);
  return costs;
}

// The window counts as 100 %.
std::string text_of(const DeviceProfile& profile, int64_t steps, size_t rows) {
  const auto line = [&](std::string_view what, int64_t ns) {
    return fmt::format("  {:<24}{:>12.3f}{:>9.1f} %\n", what, milliseconds(ns, steps), percent(ns, profile.window_ns));
  };
  std::string text = fmt::format("{:<26}{:>12}{:>11}\n", "time of a step", "ms", "share");
  text += line("on the device", profile.window_ns);
  for (size_t kind = 0; kind < kWorkKinds; ++kind)
    if (profile.busy_ns[kind] > 0) text += line(name(static_cast<WorkKind>(kind)), profile.busy_ns[kind]);
  text += line("idle", profile.idle_ns);
  text += line("exposed communication", profile.exposed_ns);
  text += fmt::format("\n{:<60}  {:<18}{:>8}{:>12}{:>11}\n", "costliest kernels", "kind", "calls", "ms", "share");
  for (size_t i = 0; i < std::min(rows, profile.kernels.size()); ++i) {
    const KernelCost& cost = profile.kernels[i];
    text += fmt::format("{:<60}  {:<18}{:>8}{:>12.3f}{:>9.1f} %\n", short_kernel_name(cost.name),
                        name(work_kind(cost.name)), calls_text(cost.calls, steps), milliseconds(cost.total_ns, steps),
                        percent(cost.total_ns, profile.window_ns));
  }
  return text;
}

// Shares are of the time of all operators.
std::string text_of(const std::vector<OperatorCost>& operators, int64_t steps, size_t rows) {
  int64_t all = 0;
  for (const OperatorCost& cost : operators) all += cost.self_ns;
  std::string text =
      fmt::format("{:<50}{:>8}{:>12}{:>12}{:>11}\n", "costliest operators of a step", "calls", "own ms", "ms", "share");
  for (size_t i = 0; i < std::min(rows, operators.size()); ++i) {
    const OperatorCost& cost = operators[i];
    text += fmt::format("{:<50}{:>8}{:>12.3f}{:>12.3f}{:>9.1f} %\n", short_operator_name(cost.name),
                        calls_text(cost.calls, steps), milliseconds(cost.self_ns, steps),
                        milliseconds(cost.total_ns, steps), percent(cost.self_ns, all));
  }
  return text;
}

std::string text_of(const std::vector<ProductCost>& products, int64_t steps, size_t rows) {
  std::string text = fmt::format("{:<60}{:>8}{:>12}{:>11}\n", "costliest products of a step", "calls", "ms", "TFLOP/s");
  for (size_t i = 0; i < std::min(rows, products.size()); ++i) {
    const ProductCost& cost = products[i];
    const double flops = static_cast<double>(cost.flops) * static_cast<double>(cost.calls);
    text += fmt::format("{:<60}{:>8}{:>12.3f}{:>11.1f}\n", cost.what, calls_text(cost.calls, steps),
                        milliseconds(cost.total_ns, steps), flops / static_cast<double>(cost.total_ns) / 1e3);
  }
  return text;
}

// A profile without kernels must not look like a device without work.
std::string text_of(const ProfileRecord& record, int64_t steps, bool on_gpu, size_t rows) {
  std::string text;
  if (!record.device.empty()) {
    text += text_of(profile_device(record.device), steps, rows) + "\n";
    const std::vector<ProductCost> products = profile_products(record);
    if (!products.empty()) text += text_of(products, steps, rows) + "\n";
  }
  if (on_gpu && record.device.empty())
    text +=
        "no kernels were recorded: CUPTI does not work here. Another profiler may be in use, or the driver allows "
        "only\n"
        "administrators to profile (NVreg_RestrictProfilingToAdminUsers=0)\n\n";
  if (record.host.empty()) return text + "no operators were recorded: this libtorch was built without Kineto\n";
  return text + text_of(profile_host(record.host), steps, rows);
}

}  // namespace megalith::observe
