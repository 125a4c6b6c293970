// Tiles, events, checkpoints, options.

// The newest [step, value] of a series; null when the run has none, or when it is not finite.
function lastOf(run, name) {
  const series = Object.hasOwn(run.series, name) ? run.series[name] : null;
  return series && isNumber(series.last[1]) ? series.last : null;
}

// live: metrics.jsonl grew within two minutes; silent: it did not; ended: there is an end event; waiting: no line yet.
function stateOf(run, now) {
  if (run.ended) return 'ended';
  if (run.lines === 0) return 'waiting';
  return now - run.changed > 120 ? 'silent' : 'live';
}

function tile(name, value, note, extra) {
  return h('div', { class: 'tile', 'data-tile': name }, h('div', { class: 'name' }, name), h('div', { class: 'value' }, value),
    note ? h('div', { class: 'note' }, note) : null, extra || null);
}

function drawOverview(run, now) {
  const last = (name) => lastOf(run, name);
  const value = (name, format) => last(name) ? format(last(name)[1]) : '–';
  const loss = last('loss');
  const step = Math.max(0, ...Object.values(run.series).map((series) => isNumber(series.last[0]) ? series.last[0] : 0));
  const most = run.start && isNumber(run.start.max_steps) ? run.start.max_steps : 0;
  const bar = h('i', {});
  bar.style.width = `${most > 0 ? Math.min(100, 100 * step / most) : 0}%`;
  const states = { ended: 'ended', silent: `silent for ${secondsText(now - run.changed)}`, live: 'running', waiting: 'not begun' };
  const evaluation = last('eval_loss');
  show('overview',
    tile('Step', grouped(step), most > 0 ? `of ${grouped(most)}, ${states[stateOf(run, now)]}` : states[stateOf(run, now)], h('div', { class: 'bar' }, bar)),
    tile('Loss', loss ? plainNumber(loss[1]) : run.series.loss ? 'NaN' : '–', run.series.loss && run.series.loss.not_finite > 0 ? `${run.series.loss.not_finite} not finite` : 'training'),
    tile('Evaluation loss', evaluation ? plainNumber(evaluation[1]) : '–', evaluation ? `at step ${grouped(evaluation[0])}` : 'no evaluation yet'),
    tile('Tokens per second', value('tokens_per_second', plainNumber), 'all ranks'),
    tile('TFLOP/s', value('tflops_per_device', plainNumber), 'per device'),
    tile('Memory', value('memory', bytesText), 'peak, fullest rank'),
    tile('Learning rate', value('learning_rate', plainNumber), 'last step'),
    tile('Gradient norm', value('grad_norm', plainNumber), 'before clipping'));
}

// One event in words. Numbers come from a file that may be damaged, so each is checked.
function eventText(event) {
  const number = (value, format) => isNumber(value) ? format(value) : '?';
  switch (event.event) {
    case 'start': {
      const layout = event.layout && isNumber(event.layout.world_size) ? ` on ${grouped(event.layout.world_size)} ranks` : '';
      return event.step > 0 ? `continues from step ${number(event.step, grouped)}${layout}` : `begins${layout}`;
    }
    case 'restart': return isNumber(event.detect_seconds) ? `started again; the failure was detected after ${secondsText(event.detect_seconds)}` : 'started again';
    case 'skip': {
      const scale = isNumber(event.loss_scale) && event.loss_scale !== 1 ? ` at loss scale ${plainNumber(event.loss_scale)}` : '';
      if (event.why === 'requested') return 'left out as requested: only its data was consumed';
      return `update skipped: the ${event.why === 'loss' ? 'loss is' : 'gradients are'} not finite${scale}`;
    }
    case 'straggler': return `rank ${number(event.rank, grouped)} computes ${number(event.compute_seconds, secondsText)} per step, the others ${number(event.median_seconds, secondsText)}`;
    case 'evaluation': return isNumber(event.loss) ? `loss ${plainNumber(event.loss)}` : 'done';
    case 'save': return String(event.checkpoint || '');
    case 'end': return event.finished === false ? 'ended before its last step' : 'done';
    default: return '';
  }
}

function drawEvents(run) {
  if (run.events.length === 0) {
    show('events', empty('No events yet: starts, saves, evaluations, skipped updates, restarts and slow ranks appear here.'));
    return;
  }
  const newest = run.events.slice(-400).reverse();
  const rows = newest.map((event) => [timeText(event.time), grouped(event.step),
    h('span', {}, h('span', { class: 'kind', 'data-kind': event.event }, String(event.event)), ` ${eventText(event)}`)]);
  const more = run.events.length - newest.length + run.events_left_out;
  show('events', table([{ name: 'Time' }, { name: 'Step', class: 'number' }, { name: 'Event', class: 'breaks' }], rows),
    more > 0 ? h('p', { class: 'facts' }, `${grouped(more)} older ones are not shown`) : []);
}

function drawCheckpoints(run) {
  if (run.checkpoints.length === 0) {
    show('checkpoints', empty('No checkpoint has been saved yet.'));
    return;
  }
  const rows = [...run.checkpoints].reverse().map((each) =>
    [each.latest ? `${each.name} (newest)` : each.name, grouped(each.step), bytesText(each.bytes), timeText(each.time)]);
  show('checkpoints', table([{ name: 'Folder', class: 'breaks' }, { name: 'Step', class: 'number' }, { name: 'Size', class: 'number' }, { name: 'Time' }], rows));
}

// args.yaml has one option per line.
function optionsOf(run) {
  const options = new Map();
  for (const line of run.args.split('\n')) {
    const colon = line.indexOf(': ');
    if (colon > 0 && !line.startsWith('#') && !line.startsWith(' ')) options.set(line.slice(0, colon), line.slice(colon + 2));
  }
  return options;
}

// The options of the compared runs, one column per run; with several runs it shows only those that differ, at first.
class OptionsTable {
  constructor() {
    this.search = h('input', { type: 'search', placeholder: 'Filter by name or value', 'aria-label': 'Filter options', oninput: () => this.fillRows() });
    this.differing = h('input', { type: 'checkbox', onchange: () => this.fillRows() });
    this.body = h('div', { class: 'scroll' });
    this.before = '';
  }

  set(runs) {
    const text = runs.map((run) => run.name + '\n' + run.args).join('\n\n');
    if (text === this.before) return;
    this.before = text;
    this.runs = runs.filter((run) => run.args);
    if (this.runs.length === 0) {
      show('options', empty('args.yaml does not exist yet.'));
      return;
    }
    this.options = this.runs.map(optionsOf);
    this.names = [...new Set(this.options.flatMap((each) => [...each.keys()]))].sort();
    this.differing.checked = this.runs.length > 1;
    const only = this.runs.length > 1 ? h('label', {}, this.differing, ' only options that differ') : null;
    show('options', h('div', { class: 'toolbar' }, this.search, only), this.body);
    this.fillRows();
  }

  fillRows() {
    const wanted = this.search.value.toLowerCase();
    const rows = [];
    for (const name of this.names) {
      const values = this.options.map((each) => each.get(name) ?? '');
      if (this.differing.checked && this.runs.length > 1 && values.every((value) => value === values[0])) continue;
      if (![name, ...values].some((text) => text.toLowerCase().includes(wanted))) continue;
      rows.push([name, ...values]);
    }
    const heads = [{ name: 'Option' }, ...this.runs.map((run) => ({ name: this.runs.length > 1 ? run.name : 'Value', class: 'breaks' }))];
    this.body.replaceChildren(rows.length > 0 ? table(heads, rows) : empty('No option matches.'));
  }
}
