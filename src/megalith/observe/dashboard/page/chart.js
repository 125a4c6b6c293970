// Chart: curves of one quantity over the steps, in SVG, with a cursor that all charts share.

const CHART_HEIGHT = 190;
const MARGIN = { left: 62, right: 12, top: 8, bottom: 22 };
const allCharts = [];
let cursorStep = null;

// Exponential moving average; `weight` is that of the past, 0 for no smoothing. Dividing by the sum of the weights
// corrects the start, as Adam does. Gaps stay gaps.
function smoothed(values, weight) {
  if (weight <= 0) return values;
  let sum = 0;
  let norm = 0;
  return values.map((value) => {
    if (!isNumber(value)) return null;
    sum = weight * sum + (1 - weight) * value;
    norm = weight * norm + (1 - weight);
    return sum / norm;
  });
}

// Binary search in ascending numbers.
function nearestIndex(xs, x) {
  let low = 0;
  let high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle; else high = middle;
  }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
}

class Chart {
  // `format` turns a value into text; `nothing` is the text shown while no run has points.
  constructor(title, format, nothing) {
    Object.assign(this, { title, format, nothing, series: [], options: { smoothing: 0, log: false } });
    this.latest = h('span', { class: 'latest' });
    this.plot = h('div', { class: 'plot' });
    this.legend = h('div', { class: 'legend' });
    this.tip = h('div', { class: 'tip', hidden: true });
    this.node = h('figure', { class: 'chart', 'data-chart': title },
      h('figcaption', {}, h('span', { class: 'title', title }, title), this.latest), this.plot, this.legend, this.tip);
    allCharts.push(this);
    new ResizeObserver(() => { if (this.node.clientWidth !== this.width) this.draw(); }).observe(this.node);
  }

  // A series is {name, color, dash, x, mean, min?, max?, last}, with pointsOnly for few values drawn as dots, and exact
  // for values that are never smoothed.
  set(series, options) {
    this.series = series.filter((each) => each.x.length > 0);
    this.options = options;
    this.draw();
  }

  // The ranges of both axes with 4 or 5 % of room; null when no value can be drawn. A linear axis of positive
  // values does not go below 0, and a logarithmic one leaves out what is not positive.
  bounds() {
    const usable = (value) => isNumber(value) && (!this.options.log || value > 0);
    let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const each of this.series) {
      x0 = Math.min(x0, each.x[0]);
      x1 = Math.max(x1, each.x[each.x.length - 1]);
      for (const values of [each.min || each.mean, each.max || each.mean]) {
        for (const value of values) if (usable(value)) { y0 = Math.min(y0, value); y1 = Math.max(y1, value); }
      }
    }
    if (!(y0 <= y1)) return null;
    if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
    if (this.options.log) {
      if (y0 === y1) { y0 /= 2; y1 *= 2; }
      const room = (y1 / y0) ** 0.04;
      return { x0, x1, y0: y0 / room, y1: y1 * room };
    }
    const room = y0 === y1 ? Math.abs(y0) * 0.1 || 1 : (y1 - y0) * 0.05;
    return { x0, x1, y0: y0 >= 0 && y0 - room < 0 ? 0 : y0 - room, y1: y1 + room };
  }

  // Builds the picture again and replaces the old one; the cursor and the keyboard's focus survive.
  draw() {
    this.width = this.node.clientWidth;
    this.tip.hidden = true;
    const focused = this.svg && document.activeElement === this.svg;
    const step = cursorStep;
    const area = this.series.length > 0 ? this.bounds() : null;
    this.svg = null;
    this.latest.textContent = this.series.length === 1 && isNumber(this.series[0].last[1]) ? this.format(this.series[0].last[1]) : '';
    this.legend.replaceChildren(...(this.series.length > 1 ? this.series.map((each) => this.key(each)) : []));
    if (!area) {
      this.plot.replaceChildren(h('div', { class: 'empty' }, this.series.length > 0 ? 'No value that can be drawn' : this.nothing));
      return;
    }
    const inner = Math.max(80, (this.width || 420) - 28);
    const across = (x) => MARGIN.left + (x - area.x0) / (area.x1 - area.x0) * (inner - MARGIN.left - MARGIN.right);
    const scale = this.options.log ? Math.log : (value) => value;
    const tall = CHART_HEIGHT - MARGIN.top - MARGIN.bottom;
    const down = (y) => MARGIN.top + tall * (1 - (scale(y) - scale(area.y0)) / (scale(area.y1) - scale(area.y0)));
    this.area = { ...area, inner, across, down };
    this.hair = s('g', { class: 'hair' });
    this.svg = s('svg', {
      viewBox: `0 0 ${inner} ${CHART_HEIGHT}`, height: CHART_HEIGHT, tabindex: '0', role: 'img', 'aria-label': this.inWords(),
      onpointermove: (event) => this.point(event), onpointerleave: () => setCursor(null, null),
      onkeydown: (event) => this.keyPressed(event), onblur: () => setCursor(null, null),
    }, this.axes(), this.series.map((each) => this.curve(each)), this.hair);
    this.plot.replaceChildren(this.svg);
    if (!focused) return;
    this.svg.focus();
    setCursor(step, this);
  }

  key(each) {
    return h('span', { title: each.name }, h('i', { class: each.pointsOnly ? 'swatch dot' : 'swatch', color: each.color }), `${each.name} ${this.format(each.last[1])}`);
  }

  // The chart for a screen reader.
  inWords() {
    return `${this.title}. ` + this.series.map((each) =>
      `${each.name}: ${this.format(each.last[1])} at step ${each.last[0]}`).join('; ') + '. Arrow keys move a cursor.';
  }

  axes() {
    const { x0, x1, y0, y1, inner, across, down } = this.area;
    // Bytes are round in their own unit.
    const unit = this.format === bytesText ? 1024 ** Math.floor(Math.log2(Math.max(y1, 1)) / 10) : 1;
    const linear = () => roundTicks(y0 / unit, y1 / unit, 4).map((tick) => tick * unit);
    const rows = (this.options.log ? logTicks(y0, y1) : linear()).map((tick) => s('g', {},
      s('line', { class: 'gridline', x1: MARGIN.left, x2: inner - MARGIN.right, y1: down(tick), y2: down(tick) }),
      s('text', { x: MARGIN.left - 7, y: down(tick) + 4, 'text-anchor': 'end' }, this.format(tick))));
    const columns = roundTicks(x0, x1, Math.max(2, Math.floor(inner / 95))).map((tick) =>
      s('text', { x: across(tick), y: CHART_HEIGHT - 6, 'text-anchor': across(tick) > inner - 30 ? 'end' : 'middle' }, plainNumber(tick)));
    const base = CHART_HEIGHT - MARGIN.bottom;
    return [...rows, s('line', { class: 'axis', x1: MARGIN.left, x2: inner - MARGIN.right, y1: base, y2: base }), ...columns];
  }

  usable(value) { return isNumber(value) && (!this.options.log || value > 0); }

  path(xs, ys) {
    const { across, down } = this.area;
    let text = '';
    let open = false;
    for (let i = 0; i < xs.length; i += 1) {
      if (!this.usable(ys[i])) { open = false; continue; }
      text += `${open ? 'L' : 'M'}${across(xs[i]).toFixed(1)} ${down(ys[i]).toFixed(1)}`;
      open = true;
    }
    return text;
  }

  // From back to front: the band from minimum to maximum (or, when smoothed, the raw curve), the line, and
  // dots.
  curve(each) {
    const { across, down } = this.area;
    const weight = each.pointsOnly || each.exact ? 0 : this.options.smoothing;
    each.shown = smoothed(each.mean, weight);
    const parts = [];
    if (each.min && weight === 0) {
      const good = each.x.map((_, i) => i).filter((i) => this.usable(each.min[i]) && this.usable(each.max[i]));
      const edge = (values) => (i) => `${across(each.x[i]).toFixed(1)} ${down(values[i]).toFixed(1)}`;
      const outline = [...good.map(edge(each.max)), ...good.reverse().map(edge(each.min))];
      if (outline.length > 0) parts.push(s('path', { class: 'band', d: `M${outline.join('L')}Z`, fill: each.color }));
    }
    if (weight > 0) parts.push(s('path', { class: 'raw', d: this.path(each.x, each.mean), stroke: each.color }));
    parts.push(s('path', { class: 'line', d: this.path(each.x, each.shown), stroke: each.color, 'stroke-dasharray': each.dash || null }));
    if (each.x.length <= 40 || each.pointsOnly) {
      for (let i = 0; i < each.x.length; i += 1) {
        if (!this.usable(each.shown[i])) continue;
        parts.push(s('circle', { cx: across(each.x[i]).toFixed(1), cy: down(each.shown[i]).toFixed(1), r: each.pointsOnly ? 3 : 2, fill: each.color }));
      }
    }
    return s('g', { 'data-series': each.name }, parts);
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    const { x0, x1, inner } = this.area;
    const at = (event.clientX - box.left) / box.width * inner;
    setCursor(x0 + (at - MARGIN.left) / (inner - MARGIN.left - MARGIN.right) * (x1 - x0), this);
  }

  keyPressed(event) {
    const xs = this.series[0].x;
    const at = cursorStep === null ? xs.length : nearestIndex(xs, cursorStep);
    const next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: xs.length - 1 }[event.key];
    if (event.key === 'Escape') setCursor(null, null);
    if (next === undefined) return;
    event.preventDefault();
    setCursor(xs[Math.min(Math.max(next, 0), xs.length - 1)], this);
  }

  // Shows the cursor at a step; the chart under the pointer leads and also shows the values.
  mark(step, leads) {
    if (!this.svg) return;
    this.hair.replaceChildren();
    this.tip.hidden = true;
    if (step === null) return;
    const { x0, x1, inner, across, down } = this.area;
    const x = across(Math.min(Math.max(step, x0), x1));
    this.hair.append(s('line', { class: 'crosshair', x1: x, x2: x, y1: MARGIN.top, y2: CHART_HEIGHT - MARGIN.bottom }));
    const rows = [];
    let shownStep = step;
    for (const each of this.series) {
      const i = nearestIndex(each.x, step);
      if (each === this.series[0]) shownStep = each.x[i];
      if (!this.usable(each.shown[i])) continue;
      this.hair.append(s('circle', { cx: across(each.x[i]), cy: down(each.shown[i]), r: 3.5, fill: each.color }));
      const spread = each.min && each.max ? ` (${this.format(each.min[i])} to ${this.format(each.max[i])})` : '';
      rows.push(h('div', { class: 'row' }, h('i', { class: 'swatch', color: each.color }),
        h('span', { class: 'name' }, each.name), h('span', {}, this.format(each.shown[i]) + spread)));
    }
    if (!leads) return;
    this.tip.replaceChildren(h('b', {}, `step ${grouped(shownStep)}`), ...rows);
    this.tip.hidden = false;
    const room = this.node.clientWidth;
    this.tip.style.top = '40px';
    this.tip.style.left = x > inner / 2 ? 'auto' : `${x + 26}px`;
    this.tip.style.right = x > inner / 2 ? `${room - x - 2}px` : 'auto';
  }
}

// All charts share one cursor, so that a spike in one can be compared with the others.
function setCursor(step, leader) {
  cursorStep = step;
  for (const chart of allCharts) chart.mark(step, chart === leader);
}
