// TraceView: trace.json of a run, step by step, with what each rank was doing and how long it waited.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::observe {

// Reads Chrome's trace format as observe/trace_export.h writes it. Times are in microseconds since the first span.
// Immutable after parse(), and then safe to read from several threads.
class TraceView {
 public:
  // Something that a rank did. Names are indices into a table: a timeline repeats a few dozen names in millions of
  // spans.
  struct Span {
    double begin = 0, duration = 0;
    uint32_t name = 0;     // index into names()
    uint32_t purpose = 0;  // index into names(): reason of a communication and its group
    int microbatch = -1, chunk = -1;
    bool communication = false;
    double end() const { return begin + duration; }
  };
  // The timeline of one rank.
  struct Rank {
    std::string label;
    std::vector<Span> spans;  // ordered by begin
  };
  // A step is one `forward-backward` of each rank, plus everything until the next one. Steps of the timeline, counted
  // from 0; trace.json does not say which steps of the run they were.
  struct Step {
    double begin = 0, end = 0;            // from its first span to the next step
    double work_begin = 0, work_end = 0;  // forward and backward: from the first rank's start to the last rank's end
    double bubble = 0;                    // share of ranks · (work_end - work_begin) without a pipeline action
    std::vector<double> busy;             // by rank: share of that time in pipeline actions
  };

  // Throws DataError when it is not such a file. Spans beyond kMostSpans are only counted.
  static TraceView parse(std::string_view json);

  // Contents of the file; spans() counts those that were kept, left_out() those that were not.
  const std::vector<Rank>& ranks() const { return ranks_; }
  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<std::string>& names() const { return names_; }
  int64_t spans() const { return spans_; }
  int64_t left_out() const { return left_out_; }

  // {"steps":3,"ranks":4,"spans":1200,"left_out":0,"bubbles":[0.21,…]}
  std::string summary_json() const;
  // Returns one step with its spans, or the kMostShown longest of them. Requires step < steps().size().
  //   {"step":0,"of":3,"bubble":0.21,"microseconds":5120.5,"work":[12,4800],"left_out":0,
  //    "names":["forward-compute",…],
  //    "ranks":[{"label":"rank 0: …","busy":0.83,
  //              "spans":[[begin,duration,name,micro-batch,chunk,communication,purpose],…]}]}
  // Costs a pass over all spans, which is why the page asks for one step at a time.
  std::string step_json(size_t step) const;

  // Bounds for files that come from elsewhere: memory (some 40 bytes per span), the page, and ranks.
  static constexpr int64_t kMostSpans = 2'000'000;
  static constexpr size_t kMostShown = 30'000;
  static constexpr int kMostRanks = 4096;

 private:
  friend class TraceParser;
  // find_steps() cuts the timeline at the forward-backward spans; measure() computes bubble and busy shares of a step.
  void find_steps();
  void measure(Step& step) const;

  std::vector<Rank> ranks_;
  std::vector<Step> steps_;
  std::vector<std::string> names_;
  int64_t spans_ = 0, left_out_ = 0;
};

}  // namespace megalith::observe
