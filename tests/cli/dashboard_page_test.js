// Checks of the dashboard's page, run in a browser after its own scripts, on the report of two runs that
// dashboard_command_test.cc has written. The result stands in an attribute of the document: "passed", or what failed.
(async () => {
  const failures = [];
  const expect = (name, got, wanted) => {
    if (JSON.stringify(got) !== JSON.stringify(wanted)) failures.push(`${name}: ${JSON.stringify(got)} instead of ${JSON.stringify(wanted)}`);
  };
  const choose = (id, value) => { byId(id).value = value; byId(id).dispatchEvent(new Event('change')); };
  const tick = (id, yes) => { byId(id).checked = yes; byId(id).dispatchEvent(new Event('change')); };
  const [loss] = mainCharts;
  const evaluation = mainCharts[5];

  // Numbers for people.
  expect('small', plainNumber(0.0093934), '0.00939');
  expect('rate', rateNumber(381.234), '381');
  expect('loss', plainNumber(2.345678), '2.3457');
  expect('times', [secondsText(0.0123), secondsText(200), secondsText(240), secondsText(7200)], ['12.3 ms', '3 min 20 s', '4 min', '2 h']);
  expect('sign', [signed(-0.5, plainNumber), signed(2, plainNumber), signed(0, plainNumber)], ['−0.5', '+2', '±0']);

  // No two of 64 runs look alike.
  expect('looks', new Set(Array.from({ length: 64 }, (_, i) => runColor(i) + runDash(i))).size, 64);
  expect('legend once', document.querySelectorAll('.chart .legend').length, 0);

  // Axes: step k has 8 k samples, 1000 k tokens, and is logged 2 k seconds after the start.
  const xs = () => loss.series[0].x.slice(0, 3);
  expect('by step', xs(), [1, 2, 3]);
  choose('axis', 'samples');
  expect('by samples', xs(), [8, 16, 24]);
  choose('axis', 'tokens');
  expect('by tokens', xs(), [1000, 2000, 3000]);
  choose('axis', 'relative');
  expect('since the start', xs(), [2, 4, 6]);
  choose('axis', 'absolute');
  expect('by the clock', xs(), [1700000002, 1700000004, 1700000006]);
  expect('ticks of the clock', timeTicks(1700000002, 1700000100, 5, true).every((tick) => tick % 30 === 0), true);
  choose('axis', 'step');
  expect('an axis that was not recorded', axisOf({ series: {}, start: null }, 'tokens'), null);

  // One evaluation stands at its step, on the axis of all charts.
  expect('one evaluation', [evaluation.series[0].x.length, evaluation.area.x0, evaluation.area.x1], [1, 1, 50]);

  // Logarithms and smoothing.
  tick('log-scale', true);
  expect('log y', loss.area.y0 > 0, true);
  tick('log-x', true);
  const { across } = loss.area;
  expect('log x', Math.abs(across(10) - across(1) - (across(50) - across(5))) < 0.01, true);
  tick('log-scale', false);
  tick('log-x', false);
  expect('smoothing', smoothed([1, 3], 0.5), [1, 1.75 / 0.75]);
  byId('smoothing').value = '0.9';
  byId('smoothing').dispatchEvent(new Event('input'));
  expect('smoothed curve', loss.svg.querySelectorAll('.raw').length > 0, true);
  byId('smoothing').value = '0';
  byId('smoothing').dispatchEvent(new Event('input'));

  // A drag zooms all charts, and new data keeps the zoom.
  const box = loss.svg.getBoundingClientRect();
  const pointer = (type, x) => loss.svg.dispatchEvent(new PointerEvent(type, { clientX: box.left + x, clientY: box.top + 50, button: 0, pointerId: 1, bubbles: true }));
  pointer('pointerdown', 150);
  pointer('pointermove', 250);
  pointer('pointerup', 250);
  const zoom = JSON.stringify(view.zoom);
  expect('zoomed', view.zoom !== null && view.zoom[0] > 1 && view.zoom[1] < 50, true);
  page.runs[0] = { ...page.runs[0], version: 99 };
  drawAll();
  expect('zoom kept', [JSON.stringify(view.zoom), loss.area.x0, byId('reset-zoom').hidden], [zoom, view.zoom[0], false]);
  byId('reset-zoom').click();
  expect('zoom reset', [view.zoom, loss.area.x1], [null, 50]);

  // Files.
  const rows = rowsOf(loss);
  expect('first row', rows[0], { run: 'base', step: 1, x: 1, value: 5, min: 5, max: 5 });
  expect('csv', csvText([{ run: '=1+1', value: null, text: 'a,"b"' }]), 'run,value,text\r\n\'=1+1,,"a,""b"""\r\n');
  const picture = svgText(loss).text;
  expect('picture stands alone', [picture.startsWith('<svg'), picture.includes('var('), picture.includes('Loss over step')], [true, false, true]);
  const png = await pngBlob(loss);
  expect('png', [png.type, png.size > 2000], ['image/png', true]);

  // Texts: the newest first, then what the slider says; what is in the loss is marked.
  const settled = () => new Promise((resolve) => { setTimeout(resolve, 50); });
  await settled();
  const written = () => document.querySelector('#samples .written').textContent;
  expect('newest text', [written(), byId('samples').querySelector('output').textContent], [' <i>Because</i> 30', 'step 30 · 3 of 3']);
  expect('loss mask', [...document.querySelectorAll('#samples mark')].map((each) => each.textContent), ['A']);
  samplesPanel.slider.moved(0);
  await settled();
  expect('oldest text', [written(), samplesPanel.slider.follows], [' <i>Because</i> 10', false]);
  samplesPanel.set({ ...page.runs[0], samples: [10, 20, 30, 40] }, 0);
  expect('the slider stays', samplesPanel.slider.index, 0);
  samplesPanel.set(page.runs[0], 0);
  expect('text is no markup', document.querySelectorAll('#samples i:not(.box)').length, 0);

  // Histograms: rows by kind and part, the chosen row as lines over the steps.
  expect('bins', [binEdge(0), binEdge(3), binEdge(4), binEdge(-1)], [1, 1.75, 2, 0.875]);
  expect('rows', histogramsPanel.rows().map((row) => row.part), ['embedding', 'layers.0.attention', 'layers.0.mlp', 'layers.1.attention', 'head']);
  histogramsPanel.part = 'attention';
  histogramsPanel.kind = 'weights';
  await histogramsPanel.choose(1);
  expect('row', [histogramsPanel.ridgeTitle.textContent, document.querySelectorAll('#histograms .ridge-line').length], ['Weights of layer 1 attention', 3]);
  histogramsPanel.canvas.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowUp' }));
  await settled();
  expect('arrow keys', histogramsPanel.ridgeTitle.textContent, 'Weights of layer 0 attention');

  // Search, groups, baseline, options.
  const found = (text) => { runsTable.find(text); return shownRuns().map((index) => page.names[index]); };
  expect('by tag', found('tag:good'), ['base']);
  expect('by option', found('learning_rate=0.002'), ['other']);
  expect('by note', found('warmer'), ['other']);
  expect('without', found('-tag:good'), ['other']);
  expect('by name', found('OTH'), ['other']);
  expect('all', found(''), ['base', 'other']);
  choose('group-by', 'learning_rate');
  expect('groups', [...document.querySelectorAll('tr.group b')].map((each) => each.textContent), ['learning_rate = 0.001', 'learning_rate = 0.002']);
  choose('group-by', '');
  page.baseline = 0;
  runsTable.focusOn(1);
  expect('delta', document.querySelector('[data-tile="Loss"] .note').textContent, '+0.1 to base');
  expect('options', [...document.querySelectorAll('#options tbody tr')].map((row) => [...row.children].map((cell) => cell.textContent)), [['learning_rate', '0.002', '0.001']]);
  expect('notes', document.querySelector('#notes .prose').textContent, 'warmer');
  expect('baseline is drawn strong', loss.svg.querySelectorAll('.line.strong').length > 0, true);
  expect('alert', [...document.querySelectorAll('[data-alert]')].map((each) => each.dataset.alert), ['nan']);

  // Tags of the editor.
  document.documentElement.dataset.writeToken = 'x';
  const editor = new NotesEditor(async () => '');
  editor.set(page.runs[0]);
  editor.tags.value = ' a, b ,,a';
  expect('tags', editor.content(), { notes: '', tags: ['a', 'b'] });
  editor.dirty = true;
  editor.set({ ...page.runs[0], tags: ['from', 'elsewhere'] });
  expect('what is being written stays', editor.tags.value, ' a, b ,,a');

  // A thousand ranks.
  const places = Array.from({ length: 1000 }, (_, rank) => ({ rank, tp: 0, cp: 0, pp: 0, dp: rank, ep: 0 }));
  const map = new ClusterMap();
  map.set(places, places.map(({ rank }) => ({ compute_seconds: rank === 77 ? 3 : 1, wait_seconds: rank === 77 ? 0 : 2, peak_bytes: 1 })), 600);
  expect('cluster', [map.values.length, map.facts.textContent], [1000, 'least 0 % · median 67 % · most 67 %']);
  expect('the slow rank', map.worst.querySelector('tbody td').textContent.startsWith('rank 77:'), true);

  document.documentElement.dataset.pageTest = failures.length === 0 ? 'passed' : failures.join(' | ');
})().catch((error) => { document.documentElement.dataset.pageTest = `threw ${error.stack}`; });
