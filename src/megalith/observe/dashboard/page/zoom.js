// A zoom in full. The curves of a long run come in at most 2,048 buckets, of which a narrow zoom would show a few. So
// the steps that are looked at are asked for again, and take the place of their buckets. A report has nobody to ask.

const REFINE_PAUSE_MILLISECONDS = 150; // a key that repeats asks once
const fineParts = [];                  // by run: the newest answer of /api/runs/N/steps/…
let refinings = 0;                     // a later one supersedes those before it

// The steps of a run that the zoom shows, with a little room on each side; null if its curves are exact already.
function stepsOfZoom(run) {
  const curves = Object.values(run.series);
  const along = axisOf(run, view.axis);
  if (!view.zoom || !along || !curves.some((curve) => curve.min)) return null;
  const end = Math.max(...curves.map((curve) => curve.last[0])) + 1;
  // The last step that is not beyond x; the axis ascends with the steps.
  const stepAt = (x) => {
    let low = 0;
    let high = end;
    while (high - low > 1) {
      const middle = Math.floor((low + high) / 2);
      if (along(middle) <= x) low = middle; else high = middle;
    }
    return low;
  };
  const [from, to] = view.zoom.map(stepAt);
  const room = Math.ceil((to - from) / 50) + 1;
  return [Math.max(0, from - room), to + room];
}

// The curve of a run: its buckets, and between them the finer points of the zoom.
function refined(index, name) {
  const whole = page.runs[index].series[name];
  const part = view.zoom ? fineParts[index] : null;
  if (!part || !whole.min || !Object.hasOwn(part.series, name)) return whole;
  const fine = part.series[name];
  const place = (found) => found < 0 ? whole.x.length : found;
  const begin = place(whole.x.findIndex((x) => x >= part.from));
  const end = place(whole.x.findIndex((x) => x > part.to));
  const joined = (key) => [...whole[key].slice(0, begin), ...(fine[key] || fine.mean), ...whole[key].slice(end)];
  return { ...whole, x: joined('x'), mean: joined('mean'), min: joined('min'), max: joined('max') };
}

// Asks for what the zoom shows of each run, unless it is there already, and draws it.
async function refineZoom() {
  refinings += 1;
  const turn = refinings;
  await new Promise((resolve) => { setTimeout(resolve, REFINE_PAUSE_MILLISECONDS); });
  if (turn !== refinings || page.report || !view.zoom) return;
  let news = false;
  try {
    for (const index of shownRuns()) {
      const steps = stepsOfZoom(page.runs[index]);
      const wanted = steps && `${steps.join('-')}/${page.versions[index]}`;
      if (!steps || fineParts[index]?.wanted === wanted) continue;
      const part = await fetched(`/api/runs/${index}/steps/${steps.join('-')}`);
      if (turn !== refinings) return;
      fineParts[index] = { ...part, wanted };
      news = true;
    }
  } catch { /* the buckets stay; poll() tells that the server does not answer */ }
  if (news) drawCharts();
}

// "#zoom=1000-1100" at the end of the address opens the page with that zoom.
function zoomOfAddress() {
  const found = /^#zoom=([0-9.]+)-([0-9.]+)$/.exec(location.hash);
  return found ? [Number(found[1]), Number(found[2])] : null;
}
