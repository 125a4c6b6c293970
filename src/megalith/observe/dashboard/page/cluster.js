// ClusterMap: one cell per rank, for a thousand of them and more, colored by a number of live.json.

// Name, the number of a rank, and how it is written. `high` says whether large values are the bad ones.
const CLUSTER_METRICS = {
  wait: ['Share of waiting', (rank) => rank.wait_seconds / (rank.compute_seconds + rank.wait_seconds), (value) => percent(value)],
  step: ['Time per step', (rank) => rank.compute_seconds + rank.wait_seconds, secondsText],
  compute: ['Compute per step', (rank) => rank.compute_seconds, secondsText],
  memory: ['Peak memory', (rank) => rank.peak_bytes, bytesText],
  utilization: ['GPU utilization', (rank) => rank.gpu && rank.gpu.utilization, (value) => percent(value)],
  gpuMemory: ['GPU memory in use', (rank) => rank.gpu && rank.gpu.memory_used, bytesText],
  temperature: ['GPU temperature', (rank) => rank.gpu && rank.gpu.temperature, (value) => `${Math.round(value)} °C`],
  power: ['GPU power', (rank) => rank.gpu && rank.gpu.watts, (value) => `${Math.round(value)} W`],
};

class ClusterMap {
  constructor() {
    this.metric = 'wait';
    this.select = h('select', { id: 'cluster-metric', 'aria-label': 'Color of the ranks', onchange: () => { this.metric = this.select.value; this.draw(); } });
    this.canvas = h('canvas', { role: 'img', tabindex: '0' });
    this.canvas.addEventListener('pointermove', (event) => this.point(event));
    this.facts = h('p', { class: 'facts' });
    this.tip = h('p', { class: 'facts', role: 'status' });
    this.legend = h('div', { class: 'legend' });
    this.worst = h('div', {});
    this.node = h('div', { class: 'cluster' }, h('div', { class: 'toolbar' }, h('label', {}, 'Color ', this.select), this.facts), h('div', { class: 'heat tall' }, this.canvas), this.tip, this.legend, this.worst);
  }

  // `places` are those of placesOf, `ranks` the list of live.json, `width` the room in pixels.
  set(places, ranks, width) {
    Object.assign(this, { places, ranks, width });
    const known = Object.entries(CLUSTER_METRICS).filter(([, [, value]]) => ranks.some((rank) => rank && isNumber(value(rank))));
    if (known.length > 0 && !known.some(([key]) => key === this.metric)) [[this.metric]] = known;
    this.select.replaceChildren(...known.map(([key, [name]]) => h('option', { value: key, selected: key === this.metric }, name)));
    this.draw();
  }

  // Rows hold a multiple of eight ranks, which is a machine: a slow one is a block of eight.
  draw() {
    const [name, value, format] = CLUSTER_METRICS[this.metric];
    const values = this.places.map(({ rank }) => this.ranks[rank] && isNumber(value(this.ranks[rank])) ? value(this.ranks[rank]) : null);
    const good = values.filter(isNumber).sort((a, b) => a - b);
    const count = this.places.length;
    const room = Math.max(160, this.width);
    const perRow = Math.max(8, Math.min(Math.ceil(Math.sqrt(count * 2.2) / 8) * 8, Math.floor(room / 7 / 8) * 8));
    const size = Math.max(6, Math.min(26, Math.floor(room / perRow)));
    Object.assign(this, { values, perRow, size, format, name });
    const rows = Math.ceil(count / perRow);
    const density = window.devicePixelRatio || 1;
    this.canvas.width = perRow * size * density;
    this.canvas.height = rows * size * density;
    this.canvas.style.width = `${perRow * size}px`;
    this.canvas.style.height = `${rows * size}px`;
    this.canvas.setAttribute('aria-label', `${name} of ${count} ranks`);
    const pen = this.canvas.getContext('2d');
    pen.setTransform(density, 0, 0, density, 0, 0);
    const [low, high] = this.metric === 'wait' || this.metric === 'utilization' ? [0, 1] : [good[0] ?? 0, good[good.length - 1] ?? 1];
    const share = (each) => high > low ? (each - low) / (high - low) : 0.5;
    values.forEach((each, i) => {
      pen.fillStyle = isNumber(each) ? waitColor(share(each)) : css('--idle');
      pen.fillRect(i % perRow * size, Math.floor(i / perRow) * size, size - 1, size - 1);
    });
    const middle = good[good.length >> 1];
    this.facts.textContent = good.length > 0 ? `least ${format(good[0])} · median ${format(middle)} · most ${format(good[good.length - 1])}` : 'No numbers yet: they come with the first training line (live.json).';
    this.tip.textContent = 'Point at a cell to read it.';
    this.legend.replaceChildren(legendBox(waitColor(0), format(low)), legendBox(waitColor(0.5), format((low + high) / 2)), legendBox(waitColor(1), format(high)));
    const far = values.map((each, i) => ({ each, i })).filter(({ each }) => isNumber(each)).sort((a, b) => Math.abs(b.each - middle) - Math.abs(a.each - middle)).slice(0, 5);
    this.worst.replaceChildren(far.length > 0 ? table([{ name: 'Farthest from the median' }, { name, class: 'number' }], far.map(({ each, i }) => [this.where(i), format(each)])) : '');
  }

  where(i) {
    const { rank, tp, cp, pp, dp, ep } = this.places[i];
    return `rank ${rank}: tp ${tp}, cp ${cp}, pp ${pp}, dp ${dp}, ep ${ep}`;
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const i = Math.floor((event.clientY - box.top) / this.size) * this.perRow + Math.floor((event.clientX - box.left) / this.size);
    if (i >= 0 && i < this.places.length) this.tip.textContent = `${this.where(i)} · ${this.name.toLowerCase()} ${isNumber(this.values[i]) ? this.format(this.values[i]) : 'unknown'}`;
  }
}
