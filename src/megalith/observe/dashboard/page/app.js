// The page: asks the server for changes and draws them. A report carries its data and asks nobody.
//
// Every two seconds poll() reads /api/runs, the names and versions of all runs, and then only the runs whose version
// has changed. Data lives in `page`; each draw… function shows a part of it and may be called at any time.

// Title, names of the series, format of a value, and the text shown while there are no points.
const CHARTS = [
  ['Loss', ['loss', 'eval_loss'], plainNumber, 'No training line yet'],
  ['Gradient norm', ['grad_norm'], plainNumber, 'No gradient norm yet'],
  ['Learning rate', ['learning_rate'], plainNumber, 'No learning rate yet'],
  ['Tokens per second', ['tokens_per_second'], plainNumber, 'No throughput yet'],
  ['Memory', ['memory'], bytesText, 'No memory figures yet: they come with the first training line'],
  ['Evaluation loss', ['eval_loss'], plainNumber, 'No evaluation yet. Set eval_strategy and eval_dataset to run some.'],
];
// Series that are exact by nature: smoothing would only falsify them.
const NO_NOISE = new Set(['learning_rate', 'memory', 'epoch']);
const POLL_MILLISECONDS = 2000;

const page = {
  report: null,          // data of a report, or null
  now: 0,
  runs: [],              // answers of /api/runs/N; null until read
  names: [],
  versions: [],
  compared: new Set(),   // indices of the runs in the charts
  focus: 0,              // index of the run in everything else
  runsDrawn: '',         // contents of the list of runs, as text
  traceShown: '',        // run, version and step of the timeline
};
const options = { smoothing: 0, log: false };
const mainCharts = CHARTS.map(([title, , format, nothing]) => new Chart(title, format, nothing));
const moreCharts = new Map();
const rankGrid = new RankGrid();
const optionsTable = new OptionsTable();
const timeline = new Timeline((step) => showTrace(step), (activities, time) => rankGrid.at(activities, time));

// Reads a setting from the browser, after storing `value` if one is given; null where storage is not allowed.
function remembered(key, value) {
  try {
    if (value !== undefined) localStorage.setItem(`megalith.${key}`, value);
    return localStorage.getItem(`megalith.${key}`);
  } catch {
    return null;
  }
}

// The curves of these names over all compared runs. An evaluation beside a training loss is dashed.
function seriesOf(names) {
  const found = [];
  page.runs.forEach((run, index) => {
    if (!run || !page.compared.has(index)) return;
    for (const name of names) {
      if (!Object.hasOwn(run.series, name)) continue;
      const evaluation = name.startsWith('eval_');
      const label = names.length > 1 && evaluation ? `${run.name} (evaluation)` : run.name;
      const own = { ...run.series[name], name: label, color: runColor(index), dash: runDash(index), pointsOnly: evaluation, exact: NO_NOISE.has(name) };
      if (evaluation && names.length > 1) own.dash = '4 3';
      found.push(own);
    }
  });
  return found;
}

function drawCharts() {
  CHARTS.forEach(([, names], i) => mainCharts[i].set(seriesOf(names), options));
  if (!byId('more').open) return;
  const shown = new Set(['epoch', ...CHARTS.flatMap(([, names]) => names)]);
  const names = new Set(page.runs.flatMap((run, index) => run && page.compared.has(index) ? Object.keys(run.series) : []));
  for (const name of [...names].filter((each) => !shown.has(each)).slice(0, 60)) {
    if (!moreCharts.has(name)) {
      moreCharts.set(name, new Chart(name, plainNumber, 'No values yet'));
      byId('more-charts').append(moreCharts.get(name).node);
    }
    moreCharts.get(name).set(seriesOf([name]), options);
  }
}

// Redrawn only when it changed: replacing the buttons would take away the keyboard's focus.
function drawRuns() {
  const news = JSON.stringify([page.names, page.focus, [...page.compared]]);
  if (news === page.runsDrawn) return;
  page.runsDrawn = news;
  show('runs', page.names.map((name, index) => h('div', { class: 'run', 'data-focus': index === page.focus ? 'yes' : 'no' },
    h('i', { class: 'swatch', color: runColor(index) }),
    page.names.length > 1 ? h('input', {
      type: 'checkbox', checked: page.compared.has(index), 'aria-label': `Compare ${name}`,
      onchange: (event) => { if (event.target.checked) page.compared.add(index); else page.compared.delete(index); drawAll(); },
    }) : null,
    h('button', { type: 'button', title: name, 'aria-pressed': String(index === page.focus), onclick: () => focusOn(index) }, name))));
}

function focusOn(index) {
  page.focus = index;
  page.compared.add(index);
  rankGrid.forget();
  drawAll();
}

// Sentences about everything in the run's folder that could not be read.
function problemsOf(run) {
  const texts = [...run.problems];
  const lines = (count) => `${grouped(count)} ${count === 1 ? 'line' : 'lines'}`;
  if (run.malformed > 0) texts.push(`${lines(run.malformed)} of metrics.jsonl could not be read and were skipped; ${lines(run.lines)} were read.`);
  if (run.malformed_events > 0) texts.push(`${lines(run.malformed_events)} of events.jsonl could not be read and were skipped.`);
  if (run.left_out > 0) texts.push(`${grouped(run.left_out)} values are left out: metrics.jsonl has too many names, or too long ones.`);
  return texts;
}

// The badge beside the title: live, ended, silent or waiting; for a report, its date.
function drawStatus(run) {
  const status = byId('status');
  const state = run ? stateOf(run, page.now) : 'waiting';
  const texts = { live: 'live', ended: 'ended', silent: `silent for ${run ? secondsText(page.now - run.changed) : ''}`, waiting: 'waiting for the first line' };
  status.dataset.state = page.report ? 'report' : state;
  status.textContent = page.report ? `report of ${timeText(page.now)}` : texts[state];
}

function drawAll() {
  drawRuns();
  drawCharts();
  const run = page.runs[page.focus];
  drawStatus(run);
  if (!run) return;
  const problems = problemsOf(run);
  byId('problems').hidden = problems.length === 0;
  show('problems', problems.map((text) => h('p', { class: 'warning' }, text)));
  drawOverview(run, page.now);
  rankGrid.set(run);
  drawExperts(run);
  drawEvents(run);
  drawCheckpoints(run);
  optionsTable.set(page.runs.filter((each, index) => each && (index === page.focus || page.compared.has(index))));
  byId('footer').textContent = `${run.folder} · ${grouped(run.lines)} lines`;
  document.title = `${run.name} · Megalith`;
  refreshTrace(run);
}

// Asks for a step of the timeline only if another run, or another version of its trace, is in focus.
function refreshTrace(run) {
  if (!run.trace || run.trace.steps === 0) {
    page.traceShown = '';
    timeline.clear(run.trace ? 'trace.json has no complete step.' : 'No timeline yet. Start the run with --trace 10-12 to record steps 10 to 12.');
    return;
  }
  const wanted = `${page.focus}/${JSON.stringify(run.trace)}`;
  if (!page.traceShown.startsWith(wanted)) showTrace(Math.min(1, run.trace.steps - 1));
}

// The first traced step may pay for connections; the second is the better picture.
async function showTrace(step) {
  const run = page.runs[page.focus];
  page.traceShown = `${page.focus}/${JSON.stringify(run.trace)}/${step}`;
  rankGrid.forget();
  const trace = page.report ? page.report.traces[page.focus][step] : await fetched(`/api/runs/${page.focus}/trace/${step}`);
  if (trace) timeline.set(trace); else timeline.clear('This step of the timeline is not part of the report.');
  rankGrid.set(run);
}

// Throws when the server does not answer or refuses; poll() shows that in the badge.
async function fetched(path) {
  const answer = await fetch(path, { cache: 'no-store' });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

async function poll() {
  try {
    const list = await fetched('/api/runs');
    page.now = list.now;
    page.names = list.runs.map((run) => run.name);
    if (page.runs.length === 0) page.compared = new Set(page.names.keys());
    // A version grows with each change of a run's folder.
    const stale = list.runs.map((run, index) => index).filter((index) => page.versions[index] !== list.runs[index].version);
    for (const index of stale) {
      page.runs[index] = await fetched(`/api/runs/${index}`);
      page.versions[index] = list.runs[index].version;
    }
    if (stale.length > 0) drawAll(); else drawStatus(page.runs[page.focus]);
    document.documentElement.dataset.ready = 'yes';
  } catch {
    byId('status').dataset.state = 'lost';
    byId('status').textContent = 'the server does not answer';
  }
  setTimeout(poll, POLL_MILLISECONDS);
}

// The timeline is a canvas with colors of its own, so it is painted again; everything else follows the style
// sheet.
function applyTheme(choice) {
  const dark = choice === 'dark' || (choice !== 'light' && matchMedia('(prefers-color-scheme: dark)').matches);
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  if (timeline.trace) timeline.paint();
}

function begin() {
  const theme = byId('theme');
  theme.value = remembered('theme') || 'auto';
  applyTheme(theme.value);
  theme.addEventListener('change', () => { remembered('theme', theme.value); applyTheme(theme.value); });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => applyTheme(theme.value));
  byId('smoothing').addEventListener('input', (event) => {
    options.smoothing = Number(event.target.value);
    byId('smoothing-value').textContent = options.smoothing > 0 ? options.smoothing.toFixed(2) : 'off';
    drawCharts();
  });
  byId('log-scale').addEventListener('change', (event) => { options.log = event.target.checked; drawCharts(); });
  byId('more').addEventListener('toggle', drawCharts);
  show('charts', mainCharts.map((chart) => chart.node));
  page.report = JSON.parse(byId('data').textContent);
  if (!page.report) { poll(); return; }
  page.now = page.report.now;
  page.runs = page.report.runs;
  page.names = page.runs.map((run) => run.name);
  page.compared = new Set(page.names.keys());
  drawAll();
  document.documentElement.dataset.ready = 'yes';
}
begin();
