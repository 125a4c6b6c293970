// Timeline: one traced step, a row per rank; the moment at the cursor also colors the grid of ranks.

const ROW = 38;         // pixels per rank
const BAR = 20;         // pixels of its compute bar; communication lies below
const KINDS = {
  'forward-compute': ['forward', 'F'],
  'backward-compute': ['backward', 'B'],
  'weight-gradient-compute': ['weight', 'W'],
  'forward-backward-compute': ['backward', 'FB'],
  optimizer: ['optimizer', ''],
};
const KIND_NAMES = {
  forward: 'forward', backward: 'backward', weight: 'weight gradient', optimizer: 'optimizer',
  communication: 'communication', other: 'other work', idle: 'idle',
};

// Spans of a step as objects. `forward-backward`, which encloses the others, is left out.
function spansOf(rank, names) {
  return rank.spans.filter((span) => names[span[2]] !== 'forward-backward').map((span) => {
    const [begin, length, name, microbatch, chunk, communication, purpose] = span;
    const known = KINDS[names[name]];
    const kind = communication ? 'communication' : known ? known[0] : 'other';
    const label = known && microbatch >= 0 ? `${known[1]}${microbatch}${chunk > 0 ? '·' + chunk : ''}` : '';
    return { begin, end: begin + length, name: names[name], kind, label, microbatch, chunk, communication: communication === 1, purpose: names[purpose] };
  });
}

class Timeline {
  // `select(step)` is called when another step is chosen, `moment(activities)` as the cursor moves.
  constructor(select, moment) {
    Object.assign(this, { select, moment, zoom: 1, cursor: null });
    this.node = byId('timeline');
    new ResizeObserver(() => { if (this.trace && this.node.clientWidth !== this.width) this.layOut(); }).observe(this.node);
  }

  clear(text) {
    this.trace = null;
    this.node.replaceChildren(empty(text));
  }

  set(trace) {
    this.trace = trace;
    this.ranks = trace.ranks.map((rank) => spansOf(rank, trace.names));
    this.cursor = null;
    this.layOut();
  }

  // Builds the elements again, after another step or another width; paint() only draws on the canvas.
  layOut() {
    const trace = this.trace;
    this.width = this.node.clientWidth;
    this.canvas = h('canvas', {
      tabindex: '0', role: 'img', 'aria-label': `Timeline of ${trace.ranks.length} ranks. Arrow keys move the cursor.`,
      onpointermove: (event) => this.point(event), onpointerleave: () => { this.tip.hidden = true; },
      onkeydown: (event) => this.keyPressed(event),
    });
    this.tip = h('div', { class: 'tip', hidden: true });
    this.view = h('div', { class: 'view' }, this.canvas);
    const labels = h('div', { class: 'labels' }, trace.ranks.map((rank) => {
      const [head, tail] = rank.label.split(': ');
      return h('div', { title: rank.label }, h('b', {}, tail ? `${head} · ${tail}` : head), h('span', {}, `busy ${percent(rank.busy)}`));
    }));
    this.lanes = h('div', { class: 'lanes' }, labels, this.view, this.tip);
    this.node.replaceChildren(this.toolbar(), this.lanes, this.legend(), ...this.leftOut());
    this.paint();
  }

  toolbar() {
    const trace = this.trace;
    const steps = h('select', { 'aria-label': 'Traced step', onchange: (event) => this.select(Number(event.target.value)) },
      Array.from({ length: trace.of }, (_, i) => h('option', { value: i, selected: i === trace.step }, `step ${i + 1} of ${trace.of}`)));
    const zoom = (factor) => () => {
      this.zoom = Math.min(Math.max(this.zoom * factor, 1), 32);
      this.paint();
    };
    return h('div', { class: 'toolbar' }, steps,
      h('span', { class: 'facts', id: 'bubble' }, h('b', {}, `${percent(trace.bubble, 1)} bubble`),
        ` of forward and backward, ${secondsText((trace.work[1] - trace.work[0]) / 1e6)}; the whole step takes ${secondsText(trace.microseconds / 1e6)}`),
      h('span', { class: 'grow' }),
      h('button', { type: 'button', 'aria-label': 'Zoom out', onclick: zoom(0.5) }, '−'),
      h('button', { type: 'button', 'aria-label': 'Zoom in', onclick: zoom(2) }, '+'));
  }

  legend() {
    const used = new Set(this.ranks.flat().map((span) => span.kind));
    return h('div', { class: 'legend' },
      Object.keys(KIND_NAMES).filter((kind) => used.has(kind) || kind === 'idle').map((kind) => legendBox(`var(--${kind})`, KIND_NAMES[kind])));
  }

  leftOut() {
    return this.trace.left_out > 0 ? [h('p', { class: 'facts' }, `${grouped(this.trace.left_out)} shorter spans are not shown`)] : [];
  }

  // One canvas of at most 16000 pixels each way, the limit of browsers; beyond it the density drops.
  paint() {
    const across = Math.max(200, this.view.clientWidth) * this.zoom;
    const wide = Math.min(across, 16000);
    const tall = this.ranks.length * ROW;
    const density = Math.min(window.devicePixelRatio || 1, 16000 / wide, 16000 / Math.max(tall, 1));
    this.canvas.width = Math.floor(wide * density);
    this.canvas.height = Math.floor(tall * density);
    this.canvas.style.width = `${wide}px`;
    this.canvas.style.height = `${tall}px`;
    this.scale = wide / Math.max(this.trace.microseconds, 1e-9);
    const pen = this.canvas.getContext('2d');
    pen.setTransform(density, 0, 0, density, 0, 0);
    const colors = Object.fromEntries(Object.keys(KIND_NAMES).map((kind) => [kind, css(`--${kind}`)]));
    pen.font = '11px system-ui, sans-serif';
    pen.textBaseline = 'middle';
    this.ranks.forEach((spans, row) => this.paintRow(pen, colors, spans, row, wide));
    if (this.cursor === null) return;
    pen.fillStyle = css('--ink');
    pen.fillRect(this.cursor * this.scale, 0, 1, tall);
  }

  // Idle time of forward and backward first, as the background of the bar; spans are drawn over it.
  paintRow(pen, colors, spans, row, wide) {
    const top = row * ROW + 2;
    pen.fillStyle = colors.idle;
    const [begin, end] = this.trace.work.map((time) => time * this.scale);
    pen.fillRect(begin, top, Math.min(end, wide) - begin, BAR);
    for (const span of spans) {
      const x = span.begin * this.scale;
      const width = Math.max((span.end - span.begin) * this.scale, 0.6);
      pen.fillStyle = colors[span.kind];
      pen.fillRect(x, span.communication ? top + BAR + 2 : top, Math.max(width - 0.5, 0.5), span.communication ? 9 : BAR);
      if (!span.label || width < 8 + 6 * span.label.length) continue;
      pen.fillStyle = span.kind === 'backward' ? '#1c1303' : '#ffffff';
      pen.fillText(span.label, x + 4, top + BAR / 2 + 0.5);
    }
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const time = (event.clientX - box.left) / this.scale;
    const y = event.clientY - box.top;
    const row = Math.floor(y / ROW);
    this.moveTo(time);
    const low = y - row * ROW > BAR + 3;
    const found = (this.ranks[row] || []).filter((span) => span.begin <= time && span.end >= time && span.communication === low).pop();
    this.tip.hidden = !found;
    if (!found) return;
    this.tip.replaceChildren(h('b', {}, found.microbatch >= 0 ? `${found.name}, micro-batch ${found.microbatch}` : found.name),
      ...[found.microbatch >= 0 && found.chunk > 0 ? `chunk ${found.chunk}` : '', found.purpose, secondsText((found.end - found.begin) / 1e6)]
        .filter((text) => text).map((text) => h('div', {}, text)));
    const frame = this.lanes.getBoundingClientRect();
    const x = event.clientX - frame.left;
    this.tip.style.top = `${y + 18}px`;
    this.tip.style.left = x > frame.width / 2 ? 'auto' : `${x + 14}px`;
    this.tip.style.right = x > frame.width / 2 ? `${frame.width - x + 14}px` : 'auto';
  }

  keyPressed(event) {
    const step = this.trace.microseconds / 200;
    const now = this.cursor === null ? this.trace.work[0] : this.cursor;
    const next = { ArrowLeft: now - step, ArrowRight: now + step, Home: 0, End: this.trace.microseconds }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    this.moveTo(next);
  }

  moveTo(time) {
    this.cursor = Math.min(Math.max(time, 0), this.trace.microseconds);
    this.paint();
    this.moment(this.ranks.map((spans) => this.activity(spans, this.cursor)), this.cursor);
  }

  // Returns what a rank does at a moment: its action with the communication inside it, or else the communication alone.
  activity(spans, time) {
    let work = null;
    let waits = null;
    for (const span of spans) {
      if (span.begin > time) break;
      if (span.end < time) continue;
      if (span.communication) waits = span; else work = span;
    }
    const purpose = waits ? waits.purpose || waits.name : '';
    if (work) return { kind: work.kind, text: work.label || KIND_NAMES[work.kind], purpose };
    return waits ? { kind: 'communication', text: 'waits', purpose } : { kind: 'idle', text: 'idle', purpose };
  }
}
