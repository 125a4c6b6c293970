// DownsampledSeries: any number of points in bounded memory, without losing visible peaks.
//
// With capacity 4, the points 1 to 4 are exact; the fifth merges them in pairs:
//
//   [1] [2] [3] [4]   ->   [1 2] [3 4] [5 _]              each bucket keeps min, max, mean and the range of x
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megalith::observe {

// Collects points, in the order in which they come, in buckets of equal counts. When there are too many buckets,
// neighbors are merged: between capacity/2 and capacity of them stay, each with its smallest, largest and mean value.
class DownsampledSeries {
 public:
  // Some consecutive points.
  struct Bucket {
    double first_x = 0, last_x = 0;
    double sum = 0, min = 0, max = 0;  // over the finite values only
    int64_t finite = 0;
    int64_t points = 0;
    double mean() const;  // NaN without a finite value
  };
  // 2048 buckets are more than a chart has pixels, so nothing visible is lost. Throws InternalError for an odd number.
  explicit DownsampledSeries(size_t capacity = 2048);  // even

  // Amortized O(1). `y` may be infinite or NaN; such values are only counted.
  void add(double x, double y);

  // Returns the buckets, oldest first; all but the last hold the same number of points.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  // All points ever added, and those among them that were infinite or NaN.
  int64_t points() const { return points_; }
  int64_t not_finite() const { return not_finite_; }
  // The newest point; 0 and 0 before the first.
  double last_x() const { return last_x_; }
  double last_y() const { return last_y_; }
  // Returns whether each bucket is a single point.
  bool exact() const { return per_bucket_ == 1; }

  // Appends {"points":3,"not_finite":0,"x":[1,2,3],"mean":[…],"min":[…],"max":[…],"last":[3,2.5]}. Values have 7 digits
  // or, from a million on, three decimals (times are large); those that are not finite are null. min and max are left
  // out when exact.
  void append_json(std::string& to) const;

 private:
  // Merges buckets 2i and 2i + 1, which doubles the points per bucket.
  void join_neighbours();

  size_t capacity_;
  int64_t per_bucket_ = 1;
  int64_t points_ = 0, not_finite_ = 0;
  double last_x_ = 0, last_y_ = 0;
  std::vector<Bucket> buckets_;
};

}  // namespace megalith::observe
