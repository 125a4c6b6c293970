// The grid of ranks and the load of the experts.

// More ranks than this are shown as a heat map (ClusterMap).
const MOST_CELLS = 64;

// The places of a run's ranks: replicas of the model, in each a row for every pipeline stage.
function placesOf(run) {
  if (run.layout && run.layout.places) {
    return run.layout.places.map(([tp, cp, dp, pp, ep], rank) => ({ rank, tp, cp, dp, pp, ep }));
  }
  const count = run.live ? (run.live.ranks || []).length : 0;
  return Array.from({ length: count }, (_, rank) => ({ rank, tp: rank, cp: 0, dp: 0, pp: 0, ep: 0 }));
}

// "8 ranks = tp 2 × pp 2 × dp 2, 2 chunks per stage".
function layoutText(layout) {
  const sizes = ['tp', 'cp', 'pp', 'dp', 'ep'].filter((axis) => layout[axis] > 1).map((axis) => `${axis} ${layout[axis]}`);
  const chunks = layout.vpp > 1 ? `, ${layout.vpp} chunks per stage` : '';
  return `${grouped(layout.world_size)} ${layout.world_size === 1 ? 'rank' : 'ranks'}${sizes.length > 0 ? ' = ' + sizes.join(' × ') : ''}${chunks}`;
}

class RankGrid {
  constructor() {
    this.node = byId('layout');
    this.moment = null;  // {activities, time} of the timeline's cursor
    this.atCursor = false;
    this.cluster = new ClusterMap();
    this.asCluster = null;  // true or false once somebody has chosen; by the number of ranks until then
  }

  // Draws only what is new, so that what has the focus keeps it.
  set(run) {
    const news = JSON.stringify([run.name, run.layout, run.live && run.live.time, this.atCursor]);
    this.run = run;
    if (news !== this.drawn) this.draw();
    this.drawn = news;
  }

  // Drops the moment of the cursor, which belongs to another run or step.
  forget() {
    this.moment = null;
    this.atCursor = false;
    this.drawn = '';
  }

  // Called as the timeline's cursor moves: `activities` by rank, `time` in microseconds of the step.
  at(activities, time) {
    this.moment = { activities, time };
    if (!this.atCursor) { this.atCursor = true; this.draw(); return; }
    this.recolour();
  }

  draw() {
    const places = placesOf(this.run);
    if (places.length === 0) {
      this.node.replaceChildren(empty(this.run.layout ? `${layoutText(this.run.layout)}: too many to draw` : 'The layout is not known yet: events.jsonl has no start event.'));
      return;
    }
    this.cells = new Map();
    if (this.showsCluster(places)) {
      this.node.replaceChildren(this.toolbar(), this.cluster.node);
      this.cluster.set(places, this.run.live && Array.isArray(this.run.live.ranks) ? this.run.live.ranks : [], this.node.clientWidth - 34);
      return;
    }
    const replicas = new Map();
    for (const place of places.slice(0, 4096)) {
      const stages = replicas.get(place.dp) || replicas.set(place.dp, new Map()).get(place.dp);
      const stage = stages.get(place.pp) || stages.set(place.pp, []).get(place.pp);
      stage.push(place);
    }
    const several = replicas.size > 1;
    const drawn = [...replicas].map(([dp, stages]) => h('div', { class: 'replica' },
      several ? h('p', {}, `replica ${dp}`) : null,
      [...stages].sort((a, b) => a[0] - b[0]).map(([pp, ranks]) => h('div', { class: 'stage' },
        stages.size > 1 ? h('span', {}, `stage ${pp}`) : null, ranks.map((place) => this.cell(place))))));
    this.node.replaceChildren(this.toolbar(), h('div', { class: 'replicas' }, drawn), this.legend());
    this.recolour();
  }

  showsCluster(places) {
    return !this.atCursor && (this.asCluster === null ? places.length > MOST_CELLS : this.asCluster);
  }

  toolbar() {
    const places = placesOf(this.run);
    const cluster = this.showsCluster(places);
    const shape = (name, yes) => h('button', { type: 'button', 'aria-pressed': String(cluster === yes && !this.atCursor), onclick: () => { this.asCluster = yes; this.atCursor = false; this.draw(); } }, name);
    const choose = (atCursor) => () => { this.atCursor = atCursor; this.draw(); };
    const button = (name, atCursor) => h('button', { type: 'button', 'aria-pressed': String(this.atCursor === atCursor), onclick: choose(atCursor) }, name);
    return h('div', { class: 'toolbar' },
      h('span', { class: 'facts' }, h('b', {}, this.run.layout ? layoutText(this.run.layout) : `${places.length} ranks`)),
      h('span', { class: 'grow' }),
      places.length > 1 ? [shape('Replicas', false), shape('Heat map', true)] : null,
      this.moment ? button('At the cursor', true) : null);
  }

  legend() {
    if (this.atCursor) return h('p', { class: 'facts' }, `At ${secondsText(this.moment.time / 1e6)} of the traced step; move over the timeline.`);
    if (!this.run.live) return h('p', { class: 'facts' }, 'The work of each rank appears with the first training line (live.json).');
    return h('div', {}, h('div', { class: 'legend' }, legendBox(waitColor(0), 'works'), legendBox(waitColor(0.5), 'half'), legendBox(waitColor(1), 'waits for others')),
      h('p', { class: 'facts' }, `Share of each step that a rank spends waiting, up to step ${grouped(this.run.live.step)}.`));
  }

  cell(place) {
    const node = h('div', { class: 'rank', tabindex: '0' });
    this.cells.set(place.rank, { node, place });
    return node;
  }

  // Colors and labels only: the cells stay, so that moving along the timeline is cheap.
  recolour() {
    const live = this.run.live && Array.isArray(this.run.live.ranks) ? this.run.live.ranks : [];
    for (const [rank, { node, place }] of this.cells) {
      const where = `rank ${rank}: tp ${place.tp}, cp ${place.cp}, pp ${place.pp}, dp ${place.dp}, ep ${place.ep}`;
      const [line, about] = this.atCursor ? this.paintActivity(node, this.moment.activities[rank]) : this.paintWait(node, live[rank]);
      node.replaceChildren(h('b', {}, String(rank)), line);
      node.setAttribute('title', about ? `${where}\n${about}` : where);
      node.setAttribute('aria-label', about ? `${where}; ${about}` : where);
    }
  }

  paintActivity(node, activity) {
    const what = activity || { kind: 'idle', text: '', purpose: '' };
    node.dataset.kind = what.kind;
    node.style.background = '';
    node.style.color = '';
    return [what.text, what.purpose ? `${KIND_NAMES[what.kind]}: ${what.purpose}` : KIND_NAMES[what.kind]];
  }

  paintWait(node, times) {
    delete node.dataset.kind;
    node.style.background = '';
    node.style.color = '';
    if (!times || !isNumber(times.compute_seconds) || !isNumber(times.wait_seconds)) return ['', ''];
    const share = times.wait_seconds / Math.max(times.compute_seconds + times.wait_seconds, 1e-12);
    node.style.background = waitColor(share);
    node.style.color = share > 0.18 ? '#1c1a14' : '#ffffff';
    const gpu = times.gpu && isNumber(times.gpu.utilization) ? `, GPU ${percent(times.gpu.utilization)}${isNumber(times.gpu.temperature) ? ` at ${times.gpu.temperature} °C` : ''}` : '';
    const memory = (isNumber(times.peak_bytes) ? `, peak memory ${bytesText(times.peak_bytes)}` : '') + gpu;
    return [percent(share), `works ${secondsText(times.compute_seconds)} and waits ${secondsText(times.wait_seconds)} per step${memory}`];
  }
}

// From blue (works) over a pale middle to orange (waits): linear in each half.
function waitColor(share) {
  const ends = [[47, 116, 181], [226, 221, 210], [224, 138, 46]];
  const at = Math.min(Math.max(share, 0), 1) * 2;
  const [from, to] = at <= 1 ? [ends[0], ends[1]] : [ends[1], ends[2]];
  const part = at <= 1 ? at : at - 1;
  return `rgb(${from.map((value, i) => Math.round(value + (to[i] - value) * part)).join(', ')})`;
}

// Rows are layers, columns experts; a cell is the expert's tokens divided by the mean of its layer.
function drawExperts(run) {
  const layers = run.live && Array.isArray(run.live.experts) ? run.live.experts.filter((each) => Array.isArray(each.load) && each.load.length > 0) : [];
  const isMoe = Object.hasOwn(run.series, 'expert_load_max');
  if (layers.length === 0) {
    show('experts', empty(isMoe ? 'The load of each expert appears with the first training line (live.json).' : 'This model has no experts.'));
    return;
  }
  const experts = Math.max(...layers.map((layer) => layer.load.length));
  const rows = layers.map((layer) => {
    const mean = layer.load.reduce((sum, value) => sum + value, 0) / layer.load.length;
    return { layer: layer.layer, share: layer.load.map((value) => mean > 0 ? value / mean : 0) };
  });
  const size = Math.max(4, Math.min(26, Math.floor(560 / experts)));
  const canvas = h('canvas', { role: 'img', 'aria-label': `Load of ${experts} experts in ${rows.length} layers` });
  canvas.width = experts * size;
  canvas.height = rows.length * size;
  const pen = canvas.getContext('2d');
  rows.forEach((row, y) => row.share.forEach((share, x) => {
    pen.fillStyle = waitColor(share / 2);
    pen.fillRect(x * size, y * size, size - (size > 8 ? 1 : 0), size - (size > 8 ? 1 : 0));
  }));
  const tip = h('p', { class: 'facts', role: 'status' }, 'Point at a cell to read it.');
  canvas.addEventListener('pointermove', (event) => {
    const box = canvas.getBoundingClientRect();
    const row = rows[Math.floor((event.clientY - box.top) / size)];
    const expert = Math.floor((event.clientX - box.left) / size);
    if (row && isNumber(row.share[expert])) tip.textContent = `layer ${row.layer}, expert ${expert}: ${row.share[expert].toFixed(2)} times the mean`;
  });
  const worst = rows.map((row) => ({ layer: row.layer, share: Math.max(...row.share), expert: row.share.indexOf(Math.max(...row.share)) }))
    .sort((a, b) => b.share - a.share).slice(0, 4);
  show('experts',
    h('p', { class: 'facts' }, h('b', {}, `${rows.length} layers × ${experts} experts`), `, tokens of step ${grouped(run.live.step)}`),
    h('div', { class: 'heat' }, canvas), tip,
    h('div', { class: 'legend' }, legendBox(waitColor(0), 'no tokens'), legendBox(waitColor(0.5), 'the mean'), legendBox(waitColor(1), 'twice the mean or more')),
    table([{ name: 'Layer' }, { name: 'Busiest expert' }, { name: 'Times the mean', class: 'number' }],
      worst.map((each) => [String(each.layer), String(each.expert), each.share.toFixed(2)])));
}
