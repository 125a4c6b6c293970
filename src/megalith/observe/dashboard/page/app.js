// The page: asks the server for changes and draws them. A report carries its data and asks nobody.
//
// Every two seconds poll() reads /api/runs, the names and versions of all runs, and then only the runs whose version
// has changed. Data lives in `page`; each draw… function shows a part of it and may be called at any time.

// Title, names of the series, format of a value, and the text shown while there are no points.
const CHARTS = [
  ['Loss', ['loss', 'eval_loss'], plainNumber, 'No training line yet'],
  ['Gradient norm', ['grad_norm'], plainNumber, 'No gradient norm yet'],
  ['Learning rate', ['learning_rate'], plainNumber, 'No learning rate yet'],
  ['Tokens per second', ['tokens_per_second'], rateNumber, 'No throughput yet'],
  ['Memory', ['memory'], bytesText, 'No memory figures yet: they come with the first training line'],
  ['Evaluation loss', ['eval_loss'], plainNumber, 'No evaluation yet. Set eval_strategy and eval_dataset to run some.'],
];
// Series that are exact by nature: smoothing would only falsify them.
const NO_NOISE = new Set(['learning_rate', 'memory', 'epoch']);
// Axes of the charts, not curves.
const NO_CURVES = ['epoch', ...Object.values(AXES).flatMap((axis) => axis.series)];
const POLL_MILLISECONDS = 2000;

const page = {
  report: null,          // data of a report, or null
  now: 0,
  runs: [],              // answers of /api/runs/N; null until read
  names: [],
  versions: [],
  compared: new Set(),   // indices of the runs in the charts
  focus: 0,              // index of the run in everything else
  baseline: null,        // index of the run that the others are measured against, or null
  traceShown: '',        // run, version and step of the timeline
};
const mainCharts = CHARTS.map(([title, , format, nothing]) => new Chart(title, format, nothing));
const moreCharts = new Map();
const rankGrid = new RankGrid();
const optionsTable = new OptionsTable();
const runsTable = new RunsTable(page, () => drawAll());
const notesEditor = new NotesEditor(saveNotes);
// A part of the run in focus, from the server or from a report; null where the report lacks it.
const partOfRun = (path, inReport) => async () => page.report ? inReport(page.report) ?? null : fetched(`/api/runs/${page.focus}/${path}`);
const samplesPanel = new SamplesPanel((number) => partOfRun(`samples/${number}`, (report) => report.samples[page.focus][number])());
const histogramsPanel = new HistogramsPanel(
  partOfRun('histograms', (report) => report.histograms[page.focus].summary),
  (row) => partOfRun(`histograms/${row}`, (report) => report.histograms[page.focus].rows[row])());
const timeline = new Timeline((step) => showTrace(step), (activities, time) => rankGrid.at(activities, time));

// Reads a setting from the browser, after storing `value` if one is given; null where storage is not allowed. A zoom is
// kept for this tab only.
function stored(storage, key, value) {
  try {
    if (value !== undefined) storage().setItem(`megalith.${key}`, value);
    return storage().getItem(`megalith.${key}`);
  } catch {
    return null;
  }
}
const remembered = (key, value) => stored(() => localStorage, key, value);
const rememberedHere = (key, value) => stored(() => sessionStorage, key, value);

// Indices of the runs in the charts: chosen, and found by the search.
function shownRuns() {
  return runsTable.listed().filter((index) => page.runs[index] && page.compared.has(index));
}

// The curves of these names over all shown runs, on the chosen axis. An evaluation beside a training loss is dashed.
function seriesOf(names) {
  const found = [];
  let missing = 0;
  for (const index of shownRuns()) {
    const run = page.runs[index];
    const along = axisOf(run, view.axis);
    if (!along) { missing += names.some((name) => Object.hasOwn(run.series, name)) ? 1 : 0; continue; }
    for (const name of names) {
      if (!Object.hasOwn(run.series, name)) continue;
      const evaluation = name.startsWith('eval_');
      const label = names.length > 1 && evaluation ? `${run.name} (evaluation)` : run.name;
      const own = refined(index, name);
      found.push({
        ...own, name: label, run: index, steps: own.x, x: own.x.map(along), color: runColor(index),
        dash: evaluation && names.length > 1 ? '4 3' : runDash(index), pointsOnly: evaluation, exact: NO_NOISE.has(name), strong: index === page.baseline,
      });
    }
  }
  return [found, missing];
}

// From the first to the last point of everything that is shown, so that all charts have the same axis.
function rangeOfAll() {
  let [low, high] = [Infinity, -Infinity];
  for (const index of shownRuns()) {
    const along = axisOf(page.runs[index], view.axis);
    if (!along) continue;
    for (const [name, { x }] of Object.entries(page.runs[index].series)) {
      if (x.length === 0 || NO_CURVES.includes(name)) continue;
      low = Math.min(low, along(x[0]));
      high = Math.max(high, along(x[x.length - 1]));
    }
  }
  if (low === high) return view.axis === 'absolute' ? [low - 30, high + 30] : [Math.min(0, low), high > 0 ? high * 1.05 : 1];
  return low < high ? [low, high] : null;
}

function drawCharts() {
  view.range = rangeOfAll();
  CHARTS.forEach(([, names], i) => mainCharts[i].set(...seriesOf(names)));
  if (!byId('more').open) return;
  const shown = new Set([...NO_CURVES, ...CHARTS.flatMap(([, names]) => names)]);
  const names = new Set(shownRuns().flatMap((index) => Object.keys(page.runs[index].series)));
  for (const name of [...names].filter((each) => !shown.has(each)).slice(0, 60)) {
    if (!moreCharts.has(name)) {
      moreCharts.set(name, new Chart(name, plainNumber, 'No values yet'));
      byId('more-charts').append(moreCharts.get(name).node);
    }
    moreCharts.get(name).set(...seriesOf([name]));
  }
}

// Sentences about everything in the run's folder that could not be read.
function problemsOf(run) {
  const texts = [...run.problems];
  const lines = (count) => `${grouped(count)} ${count === 1 ? 'line' : 'lines'}`;
  if (run.malformed > 0) texts.push(`${lines(run.malformed)} of metrics.jsonl could not be read and were skipped; ${lines(run.lines)} were read.`);
  if (run.malformed_events > 0) texts.push(`${lines(run.malformed_events)} of events.jsonl could not be read and were skipped.`);
  if (run.malformed_records > 0) texts.push(`${lines(run.malformed_records)} of samples.jsonl or histograms.jsonl could not be read and were skipped.`);
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
  runsTable.draw();
  drawCharts();
  const run = page.runs[page.focus];
  drawStatus(run);
  if (!run) return;
  drawProblems(page.runs, page.focus, problemsOf(run), (index) => runsTable.focusOn(index));
  drawOverview(run, page.now, page.baseline === page.focus ? null : page.runs[page.baseline]);
  rankGrid.set(run);
  drawExperts(run);
  samplesPanel.set(run, page.focus);
  histogramsPanel.set(run, page.focus);
  drawEvents(run);
  drawCheckpoints(run);
  notesEditor.set(run);
  optionsTable.set(page.runs, page.focus, page.baseline);
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

// Returns "" or what went wrong.
async function saveNotes(content) {
  try {
    const answer = await fetch(`/api/runs/${page.focus}/notes`, {
      method: 'POST', body: JSON.stringify(content),
      headers: { 'Content-Type': 'application/json', 'X-Megalith-Write': document.documentElement.dataset.writeToken },
    });
    return answer.ok ? '' : (await answer.json()).error;
  } catch {
    return 'the server does not answer';
  }
}

// The names are known: chooses the runs to show and finds the baseline again.
function namesKnown(names) {
  page.compared = new Set(names.keys());
  const pinned = names.indexOf(remembered('baseline') || '\n');
  page.baseline = pinned >= 0 && names.length > 1 ? pinned : null;
}

async function poll() {
  const began = performance.now();
  try {
    const list = await fetched('/api/runs');
    page.now = list.now;
    page.names = list.runs.map((run) => run.name);
    if (page.runs.length === 0) namesKnown(page.names);
    // A version grows with each change of a run's folder.
    const stale = list.runs.map((run, index) => index).filter((index) => page.versions[index] !== list.runs[index].version);
    for (const index of stale) {
      page.runs[index] = await fetched(`/api/runs/${index}`);
      page.versions[index] = list.runs[index].version;
    }
    if (stale.length > 0) { drawAll(); refineZoom(); } else drawStatus(page.runs[page.focus]);
    document.documentElement.dataset.ready = 'yes';
  } catch {
    byId('status').dataset.state = 'lost';
    byId('status').textContent = 'the server does not answer';
  }
  // Many live runs take longer to read; the page then asks less often, and stays usable.
  setTimeout(poll, Math.max(POLL_MILLISECONDS, 4 * (performance.now() - began)));
}

// The timeline and the heat map of histograms are canvases with colors of their own, so they are painted again;
// everything else follows the style sheet.
function applyTheme(choice) {
  const dark = choice === 'dark' || (choice !== 'light' && matchMedia('(prefers-color-scheme: dark)').matches);
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  if (timeline.trace) timeline.paint();
  histogramsPanel.repaint();
}

// The controls of the charts, as they were left.
function beginControls() {
  const axis = byId('axis');
  axis.append(...Object.entries(AXES).map(([value, { title }]) => h('option', { value }, title)));
  view.axis = axis.value = Object.hasOwn(AXES, remembered('axis') || '') ? remembered('axis') : 'step';
  axis.addEventListener('change', () => { view.axis = remembered('axis', axis.value) || axis.value; setZoom(null); drawCharts(); });
  for (const [id, name] of [['log-x', 'logX'], ['log-scale', 'log']]) {
    byId(id).checked = view[name] = remembered(name) === 'yes';
    byId(id).addEventListener('change', (event) => { view[name] = event.target.checked; remembered(name, view[name] ? 'yes' : 'no'); drawCharts(); });
  }
  const smoothing = byId('smoothing');
  const apply = () => {
    view.smoothing = Number(smoothing.value);
    byId('smoothing-value').textContent = view.smoothing > 0 ? view.smoothing.toFixed(2) : 'off';
  };
  smoothing.value = remembered('smoothing') || '0';
  apply();
  smoothing.addEventListener('input', () => { apply(); remembered('smoothing', smoothing.value); drawCharts(); });
  byId('reset-zoom').addEventListener('click', () => setZoom(null));
  const zoom = zoomOfAddress() || JSON.parse(rememberedHere('zoom') || 'null');
  if (Array.isArray(zoom) && zoom.length === 2 && zoom.every(isNumber)) setZoom(zoom);
}

function begin() {
  const theme = byId('theme');
  theme.value = remembered('theme') || 'auto';
  applyTheme(theme.value);
  theme.addEventListener('change', () => { remembered('theme', theme.value); applyTheme(theme.value); });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => applyTheme(theme.value));
  beginControls();
  byId('more').addEventListener('toggle', drawCharts);
  show('charts', mainCharts.map((chart) => chart.node));
  show('runs', h('h2', {}, 'Runs'), runsTable.node);
  page.report = JSON.parse(byId('data').textContent);
  if (!page.report) { poll(); return; }
  page.now = page.report.now;
  page.runs = page.report.runs;
  page.names = page.runs.map((run) => run.name);
  namesKnown(page.names);
  drawAll();
  document.documentElement.dataset.ready = 'yes';
}
begin();
