// Chart: curves of one quantity over an axis, in SVG, with a cursor and a zoom that all charts share.

const CHART_HEIGHT = 190;
const MARGIN = { left: 62, right: 12, top: 8, bottom: 22 };
const MOST_POINTS = 500;    // per curve: more than pixels would only make the page slow
const MOST_BANDS = 8;       // runs whose spread is drawn; more would cover each other
const MOST_TIP_ROWS = 12;
const allCharts = [];
let cursorX = null;

// State that all charts share. `zoom` is [from, to] on the axis, or null; `range` the axis of everything that is shown.
const view = { axis: 'step', logX: false, log: false, smoothing: 0, zoom: null, range: null };

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

// The part of a curve from x0 to x1, with one point more at each side, in at most `most` points. Points are merged in
// groups of equal size; minimum and maximum survive.
function thinned(curve, x0, x1, most) {
  let from = 0;
  let to = curve.x.length;
  while (from + 1 < to && curve.x[from + 1] < x0) from += 1;
  while (to - 1 > from && curve.x[to - 2] > x1) to -= 1;
  const every = Math.max(1, Math.ceil((to - from) / most));
  const spread = curve.min || every > 1;
  const result = { x: [], mean: [], shown: [], min: spread ? [] : null, max: spread ? [] : null };
  for (let at = from; at < to; at += every) {
    const end = Math.min(at + every, to);
    const mean = (values) => {
      let sum = 0;
      let count = 0;
      for (let i = at; i < end; i += 1) if (isNumber(values[i])) { sum += values[i]; count += 1; }
      return count > 0 ? sum / count : null;
    };
    const edge = (values, pick) => {
      let found = null;
      for (let i = at; i < end; i += 1) if (isNumber(values[i])) found = found === null ? values[i] : pick(found, values[i]);
      return found;
    };
    result.x.push(mean(curve.x));
    result.mean.push(mean(curve.mean));
    result.shown.push(mean(curve.shown));
    if (!spread) continue;
    result.min.push(edge(curve.min || curve.mean, Math.min));
    result.max.push(edge(curve.max || curve.mean, Math.max));
  }
  return result;
}

class Chart {
  // `format` turns a value into text; `nothing` is the text shown while no run has points.
  constructor(title, format, nothing) {
    Object.assign(this, { title, format, nothing, series: [] });
    this.latest = h('span', { class: 'latest' });
    this.plot = h('div', { class: 'plot' });
    this.note = h('p', { class: 'facts' });
    this.tip = h('div', { class: 'tip', hidden: true });
    this.menu = downloadMenu(this);
    this.node = h('figure', { class: 'chart', 'data-chart': title },
      h('figcaption', {}, h('span', { class: 'title', title }, title), h('span', { class: 'grow' }), this.latest, this.menu), this.plot, this.note, this.tip);
    allCharts.push(this);
    new ResizeObserver(() => { if (this.node.clientWidth !== this.width) this.draw(); }).observe(this.node);
  }

  // A series is {name, run, color, dash, steps, x, mean, min?, max?, last}, with pointsOnly for few values drawn as
  // dots, exact for values that are never smoothed, and strong for the baseline. `missing` counts the runs that did not
  // record the axis.
  set(series, missing) {
    this.series = series.filter((each) => each.x.length > 0);
    this.missing = missing;
    for (const each of this.series) each.shown = smoothed(each.mean, each.pointsOnly || each.exact ? 0 : view.smoothing);
    this.draw();
  }

  usable(value) { return isNumber(value) && (!view.log || value > 0); }

  // The ranges of both axes, y with 4 or 5 % of room; null when no value can be drawn. A linear axis of positive
  // values does not go below 0, and a logarithmic one leaves out what is not positive. All charts have the same x
  // range, so that a single evaluation stands where it belongs.
  bounds() {
    let [x0, x1] = view.zoom || view.range || [0, 1];
    if (view.logX && !(x0 > 0)) x0 = Math.min(...this.series.flatMap((each) => each.x.find((x) => x > 0) ?? []), x1);
    if (!(x1 > x0)) { x0 -= 0.5; x1 += 0.5; }
    let [y0, y1] = [Infinity, -Infinity];
    for (const each of this.series) {
      const part = each.drawn = thinned(each, x0, x1, MOST_POINTS);
      const raw = view.smoothing > 0 && !each.exact ? [part.shown, part.mean] : [part.min || part.mean, part.max || part.mean];
      for (const values of raw) {
        for (const value of values) if (this.usable(value)) { y0 = Math.min(y0, value); y1 = Math.max(y1, value); }
      }
    }
    if (!(y0 <= y1)) return null;
    if (view.log) {
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
    const x = cursorX;
    const area = this.series.length > 0 ? this.bounds() : null;
    this.svg = null;
    this.menu.hidden = !area;
    this.latest.textContent = this.series.length === 1 && isNumber(this.series[0].last[1]) ? this.format(this.series[0].last[1]) : '';
    this.note.textContent = this.missing > 0 ? `${this.missing} ${this.missing === 1 ? 'run has' : 'runs have'} not recorded this axis` : '';
    if (!area) {
      this.plot.replaceChildren(h('div', { class: 'empty' }, this.series.length > 0 ? 'No value that can be drawn here' : this.nothing));
      return;
    }
    const inner = Math.max(80, (this.width || 420) - 28);
    const along = view.logX && area.x0 > 0 ? Math.log : (value) => value;
    const across = (value) => MARGIN.left + (along(value) - along(area.x0)) / (along(area.x1) - along(area.x0)) * (inner - MARGIN.left - MARGIN.right);
    const scale = view.log ? Math.log : (value) => value;
    const tall = CHART_HEIGHT - MARGIN.top - MARGIN.bottom;
    const down = (y) => MARGIN.top + tall * (1 - (scale(y) - scale(area.y0)) / (scale(area.y1) - scale(area.y0)));
    this.area = { ...area, inner, across, down };
    this.hair = s('g', { class: 'hair' });
    const clip = `clip-${allCharts.indexOf(this)}`;
    this.svg = s('svg', {
      viewBox: `0 0 ${inner} ${CHART_HEIGHT}`, height: CHART_HEIGHT, tabindex: '0', role: 'img', 'aria-label': this.inWords(),
      onpointermove: (event) => this.point(event), onpointerleave: () => { if (!this.drag) setCursor(null, null); },
      onpointerdown: (event) => this.beginDrag(event), onpointerup: (event) => this.endDrag(event), onpointercancel: () => { this.drag = null; },
      ondblclick: () => setZoom(null), onkeydown: (event) => this.keyPressed(event), onblur: () => setCursor(null, null),
    }, s('clipPath', { id: clip }, s('rect', { x: MARGIN.left, y: 0, width: inner - MARGIN.left - MARGIN.right + 4, height: CHART_HEIGHT })),
    this.axes(), s('g', { class: 'curves', 'clip-path': `url(#${clip})` }, this.series.map((each) => this.curve(each))), this.hair);
    this.plot.replaceChildren(this.svg);
    if (!focused) return;
    this.svg.focus();
    setCursor(x, this);
  }

  // The chart for a screen reader.
  inWords() {
    return `${this.title}. ` + this.series.map((each) =>
      `${each.name}: ${this.format(each.last[1])} at step ${each.last[0]}`).join('; ') + '. Arrow keys move a cursor, plus and minus zoom.';
  }

  axes() {
    const { x0, x1, y0, y1, inner, across, down } = this.area;
    // Bytes are round in their own unit.
    const unit = this.format === bytesText ? 1024 ** Math.floor(Math.log2(Math.max(y1, 1)) / 10) : 1;
    const linear = () => roundTicks(y0 / unit, y1 / unit, 5).map((tick) => tick * unit);
    const rows = (view.log ? logTicks(y0, y1) : linear()).map((tick) => s('g', {},
      s('line', { class: 'gridline', x1: MARGIN.left, x2: inner - MARGIN.right, y1: down(tick), y2: down(tick) }),
      s('text', { x: MARGIN.left - 7, y: down(tick) + 4, 'text-anchor': 'end' }, this.format(tick))));
    const wide = x1 - x0 > 86400;
    const ticks = axisTicks(view.axis, x0, x1, Math.max(2, Math.floor(inner / 105)), view.logX && x0 > 0);
    const columns = ticks.map((tick) => s('text', {
      x: across(tick), y: CHART_HEIGHT - 6, 'text-anchor': across(tick) > inner - 30 ? 'end' : 'middle',
    }, AXES[view.axis].tick(tick, wide)));
    const base = CHART_HEIGHT - MARGIN.bottom;
    return [...rows, s('line', { class: 'axis', x1: MARGIN.left, x2: inner - MARGIN.right, y1: base, y2: base }), ...columns];
  }

  path(xs, ys) {
    const { across, down } = this.area;
    let text = '';
    let open = false;
    for (let i = 0; i < xs.length; i += 1) {
      if (!this.usable(ys[i]) || (view.logX && !(xs[i] > 0))) { open = false; continue; }
      text += `${open ? 'L' : 'M'}${across(xs[i]).toFixed(1)} ${down(ys[i]).toFixed(1)}`;
      open = true;
    }
    return text;
  }

  // From back to front: the band from minimum to maximum (or, when smoothed, the raw curve), the line, and dots.
  curve(each) {
    const { across, down } = this.area;
    const { drawn } = each;
    const smooth = view.smoothing > 0 && !each.pointsOnly && !each.exact;
    const few = this.series.length <= MOST_BANDS;
    const parts = [];
    if (drawn.min && !smooth && few) {
      const good = drawn.x.map((_, i) => i).filter((i) => this.usable(drawn.min[i]) && this.usable(drawn.max[i]) && (!view.logX || drawn.x[i] > 0));
      const edge = (values) => (i) => `${across(drawn.x[i]).toFixed(1)} ${down(values[i]).toFixed(1)}`;
      const outline = [...good.map(edge(drawn.max)), ...good.reverse().map(edge(drawn.min))];
      if (outline.length > 0) parts.push(s('path', { class: 'band', d: `M${outline.join('L')}Z`, fill: each.color }));
    }
    if (smooth && few) parts.push(s('path', { class: 'raw', d: this.path(drawn.x, drawn.mean), stroke: each.color }));
    parts.push(s('path', { class: each.strong ? 'line strong' : few ? 'line' : 'line thin', d: this.path(drawn.x, drawn.shown), stroke: each.color, 'stroke-dasharray': each.dash || null }));
    if ((drawn.x.length <= 40 && few) || each.pointsOnly) {
      for (let i = 0; i < drawn.x.length; i += 1) {
        if (!this.usable(drawn.shown[i]) || (view.logX && !(drawn.x[i] > 0))) continue;
        parts.push(s('circle', { cx: across(drawn.x[i]).toFixed(1), cy: down(drawn.shown[i]).toFixed(1), r: each.pointsOnly ? 3 : 2, fill: each.color }));
      }
    }
    return s('g', { 'data-series': each.name, 'data-run': each.run }, parts);
  }

  // The place on the x axis under the pointer.
  placeOf(event) {
    const box = this.svg.getBoundingClientRect();
    const { x0, x1, inner } = this.area;
    const part = ((event.clientX - box.left) / box.width * inner - MARGIN.left) / (inner - MARGIN.left - MARGIN.right);
    const at = Math.min(Math.max(part, 0), 1);
    return view.logX && x0 > 0 ? x0 * (x1 / x0) ** at : x0 + at * (x1 - x0);
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    this.pointerY = event.clientY - box.top;
    setCursor(this.placeOf(event), this);
    if (!this.drag) return;
    const [from, to] = [this.drag.x, this.placeOf(event)].sort((a, b) => a - b).map(this.area.across);
    this.hair.append(s('rect', { class: 'selection', x: from, width: to - from, y: MARGIN.top, height: CHART_HEIGHT - MARGIN.top - MARGIN.bottom }));
  }

  // A drag along the axis zooms in; a click does not.
  beginDrag(event) {
    if (event.button !== 0) return;
    this.drag = { x: this.placeOf(event), at: event.clientX };
    try { this.svg.setPointerCapture(event.pointerId); } catch { /* a pointer that has already left */ }
  }

  endDrag(event) {
    const { drag } = this;
    this.drag = null;
    if (drag && Math.abs(event.clientX - drag.at) > 6) setZoom([drag.x, this.placeOf(event)].sort((a, b) => a - b));
  }

  keyPressed(event) {
    const { x0, x1 } = this.area;
    const xs = this.series[0].x;
    const at = cursorX === null ? xs.length : nearestIndex(xs, cursorX);
    const middle = cursorX === null ? (x0 + x1) / 2 : cursorX;
    const half = (factor) => (x1 - x0) / 2 * factor;
    if (event.key === '+') setZoom([middle - half(0.5), middle + half(0.5)]);
    if (event.key === '-') setZoom([middle - half(2), middle + half(2)]);
    if (event.key === 'Escape') { if (view.zoom) setZoom(null); else setCursor(null, null); }
    const next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: xs.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    setCursor(xs[Math.min(Math.max(next, 0), xs.length - 1)], this);
  }

  // Shows the cursor; the chart under the pointer leads and also shows the values, those next to the pointer first.
  mark(at, leads) {
    if (!this.svg) return;
    this.hair.replaceChildren();
    this.tip.hidden = true;
    if (at === null) return;
    const { x0, x1, inner, across, down } = this.area;
    const x = across(Math.min(Math.max(at, x0), x1));
    this.hair.append(s('line', { class: 'crosshair', x1: x, x2: x, y1: MARGIN.top, y2: CHART_HEIGHT - MARGIN.bottom }));
    const found = [];
    for (const each of this.series) {
      const i = nearestIndex(each.x, at);
      if (this.usable(each.shown[i]) && each.x[i] >= x0 && each.x[i] <= x1) found.push({ each, i, y: down(each.shown[i]) });
    }
    if (found.length <= MOST_TIP_ROWS) for (const { each, i, y } of found) this.hair.append(s('circle', { cx: across(each.x[i]), cy: y, r: 3.5, fill: each.color }));
    if (!leads || found.length === 0) return;
    const shown = found.length <= MOST_TIP_ROWS ? found
      : [...found].sort((a, b) => Math.abs(a.y - this.pointerY) - Math.abs(b.y - this.pointerY)).slice(0, MOST_TIP_ROWS).sort((a, b) => a.y - b.y);
    const rows = shown.map(({ each, i }) => {
      const spread = each.min && each.min[i] < each.max[i] && found.length <= MOST_BANDS ? ` (${this.format(each.min[i])} to ${this.format(each.max[i])})` : '';
      return h('div', { class: 'row' }, h('i', { class: 'swatch', color: each.color }), h('span', { class: 'name' }, each.name), h('span', {}, this.format(each.shown[i]) + spread));
    });
    const step = grouped(found[0].each.steps[found[0].i]);
    const head = view.axis === 'step' ? `step ${step}` : `${AXES[view.axis].text(found[0].each.x[found[0].i])} (step ${step})`;
    this.tip.replaceChildren(h('b', {}, head), ...rows, found.length > shown.length ? h('div', { class: 'facts' }, `and ${found.length - shown.length} more`) : '');
    this.tip.hidden = false;
    const room = this.node.clientWidth;
    this.tip.style.top = '40px';
    this.tip.style.left = x > inner / 2 ? 'auto' : `${x + 26}px`;
    this.tip.style.right = x > inner / 2 ? `${room - x - 2}px` : 'auto';
  }
}

// All charts share one cursor, so that a spike in one can be compared with the others.
function setCursor(x, leader) {
  cursorX = x;
  for (const chart of allCharts) chart.mark(x, chart === leader);
}

// All charts share one zoom, which stays until it is reset or the axis changes. null shows everything.
function setZoom(zoom) {
  view.zoom = zoom && zoom[1] > zoom[0] ? zoom : null;
  byId('reset-zoom').hidden = !view.zoom;
  rememberedHere('zoom', JSON.stringify(view.zoom));
  for (const chart of allCharts) chart.draw();
  refineZoom();
}
