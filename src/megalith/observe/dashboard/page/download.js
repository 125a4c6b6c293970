// Data and pictures of a chart as files. Everything happens in the browser, so that it works in a report as well.

const PICTURE_STYLES = ['fill', 'stroke', 'stroke-width', 'stroke-dasharray', 'opacity', 'font-size', 'font-family', 'stroke-linejoin'];

function saveFile(name, type, content) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = h('a', { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// "Tokens per second" -> "tokens-per-second.csv".
const fileName = (title, ending) => `${title.toLowerCase().replace(/[^a-z0-9]+/g, '-').replace(/^-|-$/g, '') || 'chart'}.${ending}`;

// One row per point: the run, the step, the place on the chosen axis, and the value; merged points have a spread.
function rowsOf(chart) {
  return chart.series.flatMap((each) => each.x.map((x, i) => ({
    run: each.name, step: each.steps[i], [view.axis === 'step' ? 'x' : view.axis]: x, value: each.mean[i],
    min: each.min ? each.min[i] : each.mean[i], max: each.max ? each.max[i] : each.mean[i],
  })));
}

// Fields with a comma, a quote or a line break are quoted. One that a spreadsheet would take for a formula gets an
// apostrophe, since names of runs may come from anywhere.
function csvField(value) {
  if (value === null || value === undefined) return '';
  if (typeof value === 'number') return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function csvText(rows) {
  if (rows.length === 0) return '';
  const names = Object.keys(rows[0]);
  return [names, ...rows.map((row) => names.map((name) => row[name]))].map((row) => row.map(csvField).join(',')).join('\r\n') + '\r\n';
}

// The picture with its title and a legend; styles of the page become attributes, since the file has no style sheet.
function svgText(chart) {
  const { inner } = chart.area;
  const copy = chart.svg.cloneNode(true);
  const styled = (from, to) => {
    const style = getComputedStyle(from);
    for (const name of PICTURE_STYLES) to.setAttribute(name, style.getPropertyValue(name));
    for (const name of ['class', 'tabindex']) to.removeAttribute(name);
    [...from.children].forEach((child, i) => styled(child, to.children[i]));
  };
  styled(chart.svg, copy);
  const names = chart.series.map((each) => each.name);
  const columns = Math.max(1, Math.floor(inner / 200));
  const top = 30;
  const tall = top + CHART_HEIGHT + 8 + 18 * Math.ceil(names.length / columns);
  copy.setAttribute('y', top);
  copy.setAttribute('width', inner);
  copy.removeAttribute('fill');
  copy.removeAttribute('stroke');
  const label = (x, y, text, size, color) => s('text', { x, y, fill: color, 'font-size': size, 'font-family': 'sans-serif' }, text);
  const legend = chart.series.map((each, i) => {
    const x = 10 + (i % columns) * 200;
    const y = top + CHART_HEIGHT + 18 + 18 * Math.floor(i / columns);
    const line = chart.svg.querySelectorAll('g.curves > g')[i].querySelector('.line');
    const color = getComputedStyle(line).stroke;
    return s('g', {}, s('line', { x1: x, x2: x + 22, y1: y - 4, y2: y - 4, stroke: color, 'stroke-width': 3, 'stroke-dasharray': each.dash || null }),
      label(x + 28, y, each.name.length > 26 ? `${each.name.slice(0, 25)}…` : each.name, 11, css('--soft')));
  });
  const whole = s('svg', { viewBox: `0 0 ${inner} ${tall}`, width: inner, height: tall },
    s('rect', { width: inner, height: tall, fill: css('--panel') }), label(10, 20, `${chart.title} over ${AXES[view.axis].title.toLowerCase()}`, 14, css('--ink')), copy, legend);
  return { text: new XMLSerializer().serializeToString(whole), width: inner, height: tall };
}

// Twice as many pixels as on the screen, for slides.
async function pngBlob(chart) {
  const { text, width, height } = svgText(chart);
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = h('canvas', { width: width * 2, height: height * 2 });
  canvas.getContext('2d').drawImage(image, 0, 0, width * 2, height * 2);
  return new Promise((done) => { canvas.toBlob(done, 'image/png'); });
}

const DOWNLOADS = {
  CSV: (chart) => saveFile(fileName(chart.title, 'csv'), 'text/csv', csvText(rowsOf(chart))),
  JSON: (chart) => saveFile(fileName(chart.title, 'json'), 'application/json', JSON.stringify({ chart: chart.title, axis: view.axis, rows: rowsOf(chart) }, null, 1)),
  SVG: (chart) => saveFile(fileName(chart.title, 'svg'), 'image/svg+xml', svgText(chart).text),
  PNG: async (chart) => saveFile(fileName(chart.title, 'png'), 'image/png', await pngBlob(chart)),
};

function downloadMenu(chart) {
  const menu = h('details', { class: 'menu' }, h('summary', { title: 'Download', 'aria-label': `Download ${chart.title}` }, '⤓'));
  menu.append(h('div', { class: 'choices' }, Object.keys(DOWNLOADS).map((kind) =>
    h('button', { type: 'button', onclick: () => { menu.open = false; DOWNLOADS[kind](chart); } }, kind))));
  return menu;
}
