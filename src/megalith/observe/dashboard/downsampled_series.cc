// A series of n points is kept in O(capacity) memory: when the buckets are full, neighbors are merged and each bucket
// covers twice as many points. Minimum and maximum survive every merge, so a spike stays visible.
#include "megalith/observe/dashboard/downsampled_series.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "megalith/base/error.h"

namespace megalith::observe {

namespace {

using Bucket = DownsampledSeries::Bucket;

// Whole numbers without a fraction, everything else with 7 digits: more than a screen shows. A time in seconds since
// 1970 needs more.
void append_number(std::string& to, double value) {
  constexpr double kExact = 1e15;  // whole numbers below are exact
  constexpr double kLarge = 1e6;   // from here on, 7 digits would leave no fraction
  if (!std::isfinite(value))
    to += "null";
  else if (value == std::trunc(value) && std::abs(value) < kExact)
    fmt::format_to(std::back_inserter(to), "{}", static_cast<int64_t>(value));
  else if (std::abs(value) >= kLarge && std::abs(value) < kExact)
    fmt::format_to(std::back_inserter(to), "{:.3f}", value);
  else
    fmt::format_to(std::back_inserter(to), "{:.7g}", value);
}

// Appends ,"name":[value of each bucket]; the caller has written the opening brace and a first member.
template <typename Value>
void append_list(std::string& to, const char* name, const std::vector<Bucket>& buckets, const Value& value) {
  fmt::format_to(std::back_inserter(to), ",\"{}\":[", name);
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (i > 0) to += ',';
    append_number(to, value(buckets[i]));
  }
  to += ']';
}

// Merges a bucket into its left neighbor.
void join(Bucket& to, const Bucket& from) {
  to.last_x = from.last_x;
  to.points += from.points;
  if (from.finite == 0) return;
  to.min = to.finite == 0 ? from.min : std::min(to.min, from.min);
  to.max = to.finite == 0 ? from.max : std::max(to.max, from.max);
  to.sum += from.sum;
  to.finite += from.finite;
}

}  // namespace

double Bucket::mean() const {
  return finite == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(finite);
}

DownsampledSeries::DownsampledSeries(size_t capacity) : capacity_(capacity) {
  check(capacity >= 2 && capacity % 2 == 0, "a series of {} buckets; the number must be even", capacity);
}

// Fills the last bucket, or opens a new one after making room.
void DownsampledSeries::add(double x, double y) {
  ++points_;
  last_x_ = x;
  last_y_ = y;
  Bucket point{.first_x = x, .last_x = x, .points = 1};
  if (std::isfinite(y)) {
    point.sum = point.min = point.max = y;
    point.finite = 1;
  } else {
    ++not_finite_;
  }
  if (!buckets_.empty() && buckets_.back().points < per_bucket_) return join(buckets_.back(), point);
  if (buckets_.size() == capacity_) join_neighbours();
  buckets_.push_back(point);
}

// Halves the number of buckets; the cost is spread over the points added since the last time.
void DownsampledSeries::join_neighbours() {
  for (size_t i = 0; i < capacity_ / 2; ++i) {
    buckets_[i] = buckets_[2 * i];
    join(buckets_[i], buckets_[2 * i + 1]);
  }
  buckets_.resize(capacity_ / 2);
  per_bucket_ *= 2;
}

void DownsampledSeries::append_json(std::string& to) const {
  fmt::format_to(std::back_inserter(to), "{{\"points\":{},\"not_finite\":{}", points_, not_finite_);
  // A bucket is drawn at the middle of its range of steps.
  append_list(to, "x", buckets_, [](const Bucket& b) { return b.first_x + (b.last_x - b.first_x) / 2; });
  append_list(to, "mean", buckets_, [](const Bucket& b) { return b.mean(); });
  const double none = std::numeric_limits<double>::quiet_NaN();
  // With a single point per bucket the extremes equal the mean, so half of the lists are enough.
  if (!exact()) {
    append_list(to, "min", buckets_, [none](const Bucket& b) { return b.finite > 0 ? b.min : none; });
    append_list(to, "max", buckets_, [none](const Bucket& b) { return b.finite > 0 ? b.max : none; });
  }
  // The newest point exactly: a bucket would show its mean instead.
  to += ",\"last\":[";
  append_number(to, last_x_);
  to += ',';
  append_number(to, last_y_);
  to += "]}";
}

}  // namespace megalith::observe
