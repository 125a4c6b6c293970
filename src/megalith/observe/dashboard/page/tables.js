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

// `base` is the baseline, or null; its numbers at the same step stand below.
function drawOverview(run, now, base) {
  const last = (name) => lastOf(run, name);
  const value = (name, format) => last(name) ? format(last(name)[1]) : '–';
  const note = (name, format, text, share) => {
    const own = last(name);
    const before = own ? baselineValue(base, name, own[0]) : null;
    if (before === null) return text;
    return `${share ? signed(own[1] / before - 1, (part) => percent(part, 1)) : signed(own[1] - before, format)} to ${base.name}`;
  };
  const loss = last('loss');
  const step = Math.max(0, ...Object.values(run.series).map((series) => isNumber(series.last[0]) ? series.last[0] : 0));
  const most = run.start && isNumber(run.start.max_steps) ? run.start.max_steps : 0;
  const bar = h('i', {});
  bar.style.width = `${most > 0 ? Math.min(100, 100 * step / most) : 0}%`;
  const states = { ended: 'ended', silent: `silent for ${secondsText(now - run.changed)}`, live: 'running', waiting: 'not begun' };
  const evaluation = last('eval_loss');
  const lossNote = run.series.loss && run.series.loss.not_finite > 0 ? `${run.series.loss.not_finite} not finite` : note('loss', plainNumber, 'training');
  show('overview',
    tile('Step', grouped(step), most > 0 ? `of ${grouped(most)}, ${states[stateOf(run, now)]}` : states[stateOf(run, now)], h('div', { class: 'bar' }, bar)),
    tile('Loss', loss ? plainNumber(loss[1]) : run.series.loss ? 'NaN' : '–', lossNote),
    tile('Evaluation loss', evaluation ? plainNumber(evaluation[1]) : '–', evaluation ? note('eval_loss', plainNumber, `at step ${grouped(evaluation[0])}`) : 'no evaluation yet'),
    tile('Tokens per second', value('tokens_per_second', rateNumber), note('tokens_per_second', rateNumber, 'all ranks', true)),
    tile('TFLOP/s', value('tflops_per_device', rateNumber), note('tflops_per_device', rateNumber, 'per device', true)),
    tile('Memory', value('memory', bytesText), note('memory', bytesText, 'peak, fullest rank')),
    tile('Learning rate', value('learning_rate', plainNumber), note('learning_rate', plainNumber, 'last step')),
    tile('Gradient norm', value('grad_norm', rateNumber), note('grad_norm', rateNumber, 'before clipping')),
    last('images_per_second') ? tile('Images per second', value('images_per_second', rateNumber), note('images_per_second', rateNumber, 'all ranks', true)) : [],
    last('media_token_share') ? tile('Media tokens', value('media_token_share', (part) => percent(part, 1)), 'of all tokens') : [],
    last('left_out_samples') ? tile('Left out', value('left_out_samples', grouped), 'samples; the log says why') : []);
}

const ALERT_NAMES = { nan: 'Not finite', loss_spike: 'Loss spike', stall: 'Stalled', straggler: 'Slow rank', low_disk: 'Low disk' };

// Alerts of all runs, those of the run in focus first; then what could not be read of the latter.
function drawProblems(runs, focus, texts, focusOn) {
  const MOST = 6;
  const all = runs.flatMap((run, index) => run ? run.alerts.map((alert) => ({ run, index, alert })) : []);
  all.sort((a, b) => Number(b.index === focus) - Number(a.index === focus));
  const line = ({ run, index, alert }) => h('p', { class: 'warning alert', 'data-alert': alert.kind },
    h('b', {}, ALERT_NAMES[alert.kind] || alert.kind), ' ',
    runs.length > 1 ? h('button', { type: 'button', class: 'plain', onclick: () => focusOn(index) }, run.name) : null, ` ${alert.text}`);
  byId('problems').hidden = all.length === 0 && texts.length === 0;
  show('problems', all.slice(0, MOST).map(line), all.length > MOST ? h('p', { class: 'facts' }, `and ${all.length - MOST} more alerts`) : [],
    texts.map((text) => h('p', { class: 'warning' }, text)));
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

// The options of the run in focus, side by side with those of another run; then it shows only those that differ, at
// first.
class OptionsTable {
  constructor() {
    this.search = h('input', { type: 'search', placeholder: 'Filter by name or value', 'aria-label': 'Filter options', oninput: () => this.fillRows() });
    this.differing = h('input', { type: 'checkbox', checked: true, onchange: () => this.fillRows() });
    this.other = h('select', { id: 'compare-with', 'aria-label': 'Compare with', onchange: () => { this.chosen = this.other.value; this.fillRows(); } });
    this.body = h('div', { class: 'scroll' });
    this.before = '';
    this.chosen = null;  // index as text, "" for none; null until somebody has chosen
  }

  // `runs` are all runs by index; the other run is the baseline unless somebody has chosen one.
  set(runs, focus, baseline) {
    const text = JSON.stringify([focus, baseline, runs.map((run) => run && [run.name, run.args.length])]);
    if (text === this.before) return;
    this.before = text;
    Object.assign(this, { runs, focus });
    if (!runs[focus].args) {
      show('options', empty('args.yaml does not exist yet.'));
      return;
    }
    const others = runs.map((run, index) => ({ run, index })).filter(({ run, index }) => run && run.args && index !== focus);
    const known = (value) => value === '' || others.some(({ index }) => String(index) === value);
    const usual = others.some(({ index }) => index === baseline) ? String(baseline) : others.length > 0 ? String(others[0].index) : '';
    const wanted = this.chosen !== null && known(this.chosen) ? this.chosen : usual;
    this.other.replaceChildren(h('option', { value: '' }, 'nothing'), ...others.map(({ run, index }) => h('option', { value: String(index), selected: String(index) === wanted }, run.name)));
    const compare = others.length > 0 ? [h('label', {}, 'Compare with ', this.other), h('label', {}, this.differing, ' only options that differ')] : [];
    show('options', h('div', { class: 'toolbar' }, this.search, ...compare), this.body);
    this.fillRows();
  }

  fillRows() {
    const shown = [this.runs[this.focus], this.runs[this.other.value]].filter((run) => run);
    const options = shown.map(optionsOf);
    const wanted = this.search.value.toLowerCase();
    const rows = [];
    for (const name of [...new Set(options.flatMap((each) => [...each.keys()]))].sort()) {
      const values = options.map((each) => each.get(name) ?? '');
      const differs = values.some((value) => value !== values[0]);
      if (this.differing.checked && shown.length > 1 && !differs) continue;
      if (![name, ...values].some((text) => text.toLowerCase().includes(wanted))) continue;
      rows.push([name, ...values.map((value) => differs ? h('span', { class: 'differs' }, value) : value)]);
    }
    const heads = [{ name: 'Option' }, ...shown.map((run) => ({ name: shown.length > 1 ? run.name : 'Value', class: 'breaks' }))];
    this.body.replaceChildren(rows.length > 0 ? table(heads, rows) : empty(shown.length > 1 && !wanted ? 'These runs have the same options.' : 'No option matches.'));
  }
}
