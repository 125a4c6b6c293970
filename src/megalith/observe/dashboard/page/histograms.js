// Weights and gradients by layer over the steps of a run: a heat map of how large they are, and for one row of it how
// its values are distributed.

// The smallest magnitude in bin i, and its logarithm to base 2: each power of two has four bins.
const binEdge = (i) => 2 ** Math.floor(i / 4) * (1 + (i - 4 * Math.floor(i / 4)) / 4);
const binLog = (i) => Math.log2(binEdge(i));
const KIND_TITLES = { gradients: 'Gradients', weights: 'Weights' };
const ALL_PARTS = 'all parts';
const OTHER_PARTS = 'outside the layers';

// "layers.3.attention" -> "attention".
const partKind = (part) => (/^layers\.\d+\.(.+)$/.exec(part) || [null, OTHER_PARTS])[1];
const partLabel = (part) => part.replace(/^layers\./, 'layer ').replace(/^(layer \d+)\./, '$1 ');

class HistogramsPanel {
  // `readSummary` and `readRow(n)` return promises of the answers of the server, or of null.
  constructor(readSummary, readRow) {
    this.node = byId('histograms');
    Object.assign(this, { readSummary, readRow, shown: '', summary: null, kind: 'gradients', part: ALL_PARTS, selected: 0 });
    const select = (label, key) => h('select', { 'aria-label': label, onchange: (event) => { this[key] = event.target.value; this.choose(0); } });
    this.kindSelect = select('Weights or gradients', 'kind');
    this.partSelect = select('Part of the layers', 'part');
    this.canvas = h('canvas', { role: 'img', tabindex: '0' });
    this.canvas.addEventListener('pointermove', (event) => this.point(event));
    this.canvas.addEventListener('click', (event) => this.choose(this.at(event).row));
    this.canvas.addEventListener('keydown', (event) => this.key(event));
    this.tip = h('p', { class: 'facts', role: 'status' });
    this.legend = h('div', { class: 'legend' });
    this.ridgeTitle = h('h3', {});
    this.ridge = h('div', { class: 'ridge' });
    this.content = h('div', {},
      h('div', { class: 'toolbar' }, h('label', {}, 'Show ', this.kindSelect), h('label', {}, 'of ', this.partSelect)),
      h('div', { class: 'heat tall' }, this.canvas), this.tip, this.legend, this.ridgeTitle, this.ridge);
    new ResizeObserver(() => this.resized()).observe(this.node);
  }

  async set(run, focus) {
    const news = JSON.stringify([focus, run.histograms]);
    if (news === this.shown) return;
    this.shown = news;
    if (!Array.isArray(run.histograms) || run.histograms.length === 0) {
      this.summary = null;
      this.node.replaceChildren(empty('No histograms yet. Start the run with log_histograms_interval: 100 to count weights and gradients every 100 steps.'));
      return;
    }
    const summary = await this.readSummary().catch(() => null);
    if (this.shown !== news) return;
    this.summary = summary;
    if (!summary) { this.node.replaceChildren(empty('The histograms are not part of the report.')); return; }
    summary.rows.forEach((row, number) => { row.number = number; });
    const parts = [ALL_PARTS, ...new Set(summary.rows.map((row) => partKind(row.part)))];
    if (!parts.includes(this.part)) this.part = ALL_PARTS;
    this.kindSelect.replaceChildren(...Object.entries(KIND_TITLES).map(([value, title]) => h('option', { value, selected: value === this.kind }, title)));
    this.partSelect.replaceChildren(...parts.map((value) => h('option', { value, selected: value === this.part }, value)));
    this.node.replaceChildren(this.content);
    this.choose(this.selected);
  }

  rows() { return this.summary.rows.filter((row) => row.kind === this.kind && (this.part === ALL_PARTS || partKind(row.part) === this.part)); }

  resized() {
    if (!this.summary || this.node.clientWidth === this.width) return;
    this.draw();
    this.drawRidge();
  }

  repaint() {
    if (this.summary) this.draw();
  }

  // Selects a row of those that are listed, and asks for its histograms.
  async choose(row) {
    const rows = this.rows();
    this.selected = Math.min(Math.max(row, 0), rows.length - 1);
    this.draw();
    const chosen = rows[this.selected];
    if (!chosen) { this.ridge.replaceChildren(); this.ridgeTitle.textContent = ''; return; }
    const asked = `${this.shown}/${chosen.number}`;
    this.asked = asked;
    const answer = await this.readRow(chosen.number).catch(() => null);
    if (this.asked !== asked) return;
    this.row = answer;
    this.ridgeTitle.textContent = `${KIND_TITLES[this.kind]} of ${partLabel(chosen.part)}`;
    this.drawRidge();
  }

  // One cell per row and step; the color is the logarithm of the size.
  draw() {
    const rows = this.rows();
    const steps = this.summary.steps;
    this.width = this.node.clientWidth;
    const room = Math.max(200, this.content.clientWidth || this.width - 32);
    const left = Math.min(room < 520 ? 104 : 150, 12 + 7 * Math.max(...rows.map((row) => partLabel(row.part).length), 4));
    const height = 15;
    const cell = Math.max(3, Math.min(72, (room - left) / steps.length));
    Object.assign(this, { left, cell, height });
    const [wide, tall] = [left + cell * steps.length, height * rows.length];
    const density = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(wide * density);
    this.canvas.height = Math.round(tall * density);
    this.canvas.style.width = `${wide}px`;
    this.canvas.style.height = `${tall}px`;
    this.canvas.setAttribute('aria-label', `Size of the ${this.kind} of ${rows.length} parts of the model at ${steps.length} steps. Arrow keys choose a part.`);
    const sizes = rows.flatMap((row) => row.size).filter((size) => isNumber(size) && size > 0).map(Math.log2);
    const [low, high] = sizes.length > 0 ? [Math.min(...sizes), Math.max(...sizes)] : [0, 0];
    const share = (size) => high > low ? (Math.log2(size) - low) / (high - low) : 0.5;
    const pen = this.canvas.getContext('2d');
    pen.setTransform(density, 0, 0, density, 0, 0);
    pen.font = '11px system-ui, sans-serif';
    pen.textBaseline = 'middle';
    rows.forEach((row, y) => {
      const chosen = y === this.selected;
      pen.fillStyle = css(chosen ? '--accent' : '--soft');
      pen.fillText(`${chosen ? '▸ ' : ''}${partLabel(row.part)}`, 0, (y + 0.5) * height, left - 6);
      row.size.forEach((size, x) => {
        pen.fillStyle = !isNumber(size) ? css('--idle') : size > 0 ? waitColor(share(size)) : css('--grid');
        pen.fillRect(left + x * cell, y * height, cell > 5 ? cell - 1 : cell, height - 1);
      });
      if (chosen) {
        pen.strokeStyle = css('--accent');
        pen.strokeRect(left + 0.5, y * height + 0.5, cell * steps.length - 1, height - 2);
      }
    });
    this.tip.textContent = 'Point at a cell to read it; click a row, or use the arrow keys, to see its distribution.';
    const middle = (at) => plainNumber(2 ** (low + at * (high - low)));
    this.legend.replaceChildren(...(sizes.length > 0 ? [legendBox(waitColor(0), middle(0)), legendBox(waitColor(0.5), middle(0.5)), legendBox(waitColor(1), middle(1)), 'root mean square'] : ['Everything is zero.']));
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    return { row: Math.floor((event.clientY - box.top) / this.height), step: Math.floor((event.clientX - box.left - this.left) / this.cell) };
  }

  point(event) {
    const { row, step } = this.at(event);
    const found = this.rows()[row];
    if (!found || step < 0 || step >= this.summary.steps.length) return;
    this.tip.textContent = `${partLabel(found.part)} · step ${grouped(this.summary.steps[step])} · root mean square ${plainNumber(found.size[step])}`;
  }

  key(event) {
    const by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    this.choose(this.selected + by);
  }

  // One line per step, the newest in front. The axis is logarithmic on both sides of zero; what is smaller than its
  // beginning counts with the zeros in the middle.
  drawRidge() {
    if (!this.row) { this.ridge.replaceChildren(empty('This distribution is not part of the report.')); return; }
    const known = this.row.histograms.map((histogram, i) => ({ histogram, step: this.row.steps[i] })).filter(({ histogram }) => histogram);
    if (known.length === 0) { this.ridge.replaceChildren(empty('No values.')); return; }
    const width = Math.max(240, this.ridge.clientWidth || this.node.clientWidth - 32);
    const most = width < 520 ? 10 : 16;
    const every = Math.max(1, Math.ceil(known.length / most));
    const lines = known.filter((_, i) => (known.length - 1 - i) % every === 0);
    const [low, high] = this.rangeOf(lines);
    const [left, right, gap, line, peak] = [64, 8, 14, 24, 44];
    const half = (width - left - right - 2 * gap) / 2;
    const centre = left + half + gap;
    const place = (log, sign) => centre + sign * (gap + Math.min(Math.max((log - low) / (high - low), 0), 1) * half);
    const tall = peak + line * lines.length + 26;
    const picture = s('svg', { viewBox: `0 0 ${width} ${tall}`, width, height: tall, role: 'img', 'aria-label': `Distribution at ${lines.length} steps` });
    const ground = (i) => peak + line * (i + 1) - 4;
    this.axis(picture, [low, high], place, centre, ground(lines.length - 1), width < 520);
    lines.forEach(({ histogram, step }, i) => {
      const { curve, top } = this.curve(histogram, low, place, centre, gap);
      const points = curve.map(([x, value]) => `${x.toFixed(1)},${(ground(i) - value / top * peak).toFixed(1)}`).join(' ');
      picture.append(
        s('polygon', { class: 'ridge-area', points: `${curve[0][0].toFixed(1)},${ground(i)} ${points} ${curve[curve.length - 1][0].toFixed(1)},${ground(i)}` }),
        s('polyline', { class: i === lines.length - 1 ? 'ridge-line newest' : 'ridge-line', points }),
        s('text', { x: left - 10, y: ground(i), 'text-anchor': 'end' }, grouped(step)));
    });
    const last = lines[lines.length - 1].histogram;
    const share = this.middleOf(last, low) / Math.max(1, this.countOf(last));
    const notes = [`Lines: steps ${grouped(lines[0].step)} to ${grouped(lines[lines.length - 1].step)}, each up to its own highest point; the middle holds zeros and everything below ${plainNumber(2 ** low)}: ${percent(share)} of the values at the last step.`];
    if (last.non_finite > 0) notes.push(`${grouped(last.non_finite)} values of the last step are NaN or infinite.`);
    this.ridge.replaceChildren(picture, h('p', { class: 'facts' }, notes.join(' ')));
  }

  // Logarithms of the smallest and the largest magnitude on the axis: all but the smallest hundredth of the values.
  rangeOf(lines) {
    const counts = new Map();
    for (const { histogram } of lines) {
      for (const side of [histogram.negative, histogram.positive]) {
        for (let k = 1; k < side.length; k += 1) counts.set(side[0] + k - 1, (counts.get(side[0] + k - 1) || 0) + side[k]);
      }
    }
    const bins = [...counts.keys()].sort((a, b) => a - b);
    if (bins.length === 0) return [-1, 1];
    const total = bins.reduce((sum, bin) => sum + counts.get(bin), 0);
    let [first, below] = [0, 0];
    while (first < bins.length - 1 && below + counts.get(bins[first]) < total / 100) { below += counts.get(bins[first]); first += 1; }
    const [low, high] = [Math.floor(binLog(bins[first])), Math.ceil(binLog(bins[bins.length - 1] + 1))];
    return high > low ? [low, high] : [low - 1, low + 1];
  }

  // The number of values, and of those that are zero or below the beginning of the axis.
  countOf(histogram) { return this.middleOf(histogram, Infinity); }

  middleOf(histogram, low) {
    const below = (side) => side.slice(1).reduce((sum, count, k) => sum + (binLog(side[0] + k + 1) > low ? 0 : count), 0);
    return histogram.zeros + below(histogram.negative) + below(histogram.positive);
  }

  // Points [x, height] from left to right, and the height of the highest. Bins of one power of two differ in width on
  // this axis, so heights are counts per width. The middle is no higher than the rest: rows of an embedding that a step
  // does not touch are zeros, which would flatten everything else.
  curve(histogram, low, place, centre, gap) {
    const ofSide = (side, sign) => {
      const points = [];
      for (let k = 1; k < side.length; k += 1) {
        const bin = side[0] + k - 1;
        const [from, to] = [binLog(bin), binLog(bin + 1)];
        if (to > low) points.push([place((from + to) / 2, sign), side[k] / (to - from)]);
      }
      return points;
    };
    const negative = ofSide(histogram.negative, -1).reverse();
    const positive = ofSide(histogram.positive, 1);
    const sides = Math.max(0, ...negative.map(([, height]) => height), ...positive.map(([, height]) => height));
    const middle = this.middleOf(histogram, low) / 2;
    const top = sides > 0 ? sides : Math.max(middle, 1);
    const inner = Math.min(middle, top);
    return { top, curve: [[place(Infinity, -1), 0], ...negative, [centre - gap / 2, inner], [centre + gap / 2, inner], ...positive, [place(Infinity, 1), 0]] };
  }

  axis(picture, [low, high], place, centre, bottom, narrow) {
    const decades = [];
    for (let power = Math.ceil(low * Math.log10(2)); power <= Math.floor(high * Math.log10(2)); power += 1) decades.push(power);
    const every = Math.max(1, Math.ceil(decades.length / (narrow ? 2 : 4)));
    const mark = (x, text) => picture.append(s('line', { class: 'gridline', x1: x, x2: x, y1: 8, y2: bottom + 4 }), s('text', { x, y: bottom + 20, 'text-anchor': 'middle' }, text));
    mark(centre, '0');
    for (const power of decades.filter((_, i) => (decades.length - 1 - i) % every === 0)) {
      if (place(power / Math.log10(2), 1) - centre < 48) continue;  // its label would lie on that of 0
      for (const sign of [-1, 1]) mark(place(power / Math.log10(2), sign), `${sign < 0 ? '−' : ''}${plainNumber(10 ** power)}`);
    }
  }
}
