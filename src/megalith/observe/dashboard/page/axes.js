// The x axis of the charts: steps, samples, tokens, or time since the start or by the clock.
//
// Curves come over steps. metrics.jsonl also has the time, the samples and the tokens of each line, which are curves
// over steps themselves; another axis is the curve looked up at each step.

// Name in the list, series that hold the axis (the first that a run has), and how a value is written.
const AXES = {
  step: { title: 'Step', series: [], text: (value) => `step ${grouped(value)}`, tick: (value) => plainNumber(value) },
  samples: { title: 'Samples', series: ['samples', 'consumed_samples'], text: (value) => `${grouped(value)} samples`, tick: (value) => plainNumber(value) },
  tokens: { title: 'Tokens', series: ['tokens', 'num_input_tokens_seen'], text: (value) => `${plainNumber(value)} tokens`, tick: (value) => plainNumber(value) },
  relative: { title: 'Time since start', series: ['time'], text: (value) => secondsText(value), tick: (value) => value === 0 ? '0' : secondsText(value) },
  absolute: { title: 'Date and time', series: ['time'], text: (value) => timeText(value), tick: (value, wide) => timeText(value).slice(wide ? 5 : 11, wide ? 16 : 19) },
};

// Looks up a curve at x, linearly between its points and constant beyond its ends.
function valueAt(xs, ys, x) {
  let low = 0;
  let high = xs.length - 1;
  if (high < 0) return null;
  if (x <= xs[0]) return ys[0];
  if (x >= xs[high]) return ys[high];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle; else high = middle;
  }
  const part = xs[high] > xs[low] ? (x - xs[low]) / (xs[high] - xs[low]) : 0;
  return ys[low] + (ys[high] - ys[low]) * part;
}

// Returns the function from steps of a run to the axis; null if the run did not record it.
function axisOf(run, axis) {
  if (axis === 'step') return (step) => step;
  const name = AXES[axis].series.find((each) => Object.hasOwn(run.series, each) && run.series[each].x.length > 0);
  if (!name) return null;
  const { x: xs, mean: ys, last } = run.series[name];
  const steps = [...xs, last[0]];
  const values = [...ys, last[1]];
  if (!values.every(isNumber)) return null;
  const zero = axis !== 'relative' ? 0 : run.start && isNumber(run.start.time) && run.start.step === 0 ? Math.min(run.start.time, values[0]) : values[0];
  return (step) => valueAt(steps, values, step) - zero;
}

// A whole number of seconds, minutes, hours or days apart; of clock time, on the hour of the local zone.
function timeTicks(low, high, most, local) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
  const raw = (high - low) / most;
  if (raw < 1) return roundTicks(low, high, most);
  const step = steps.find((each) => each >= raw) || Math.ceil(raw / 86400) * 86400;
  const shift = local ? new Date(low * 1000).getTimezoneOffset() * 60 : 0;
  const ticks = [];
  for (let tick = Math.ceil((low - shift) / step) * step + shift; tick <= high && ticks.length < 50; tick += step) ticks.push(tick);
  return ticks;
}

function axisTicks(axis, low, high, most, log) {
  if (log) return logTicks(low, high);
  if (axis === 'relative' || axis === 'absolute') return timeTicks(low, high, most, axis === 'absolute');
  return roundTicks(low, high, most).filter((tick) => high - low < 2 || Number.isInteger(tick));
}
