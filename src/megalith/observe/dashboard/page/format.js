'use strict';
// Elements and numbers. Texts of runs reach the page only through textContent and setAttribute, never as HTML.

const SVG = 'http://www.w3.org/2000/svg';

// Sets attributes (on… adds a listener, color fills the background, false and null are left out) and appends
// children.
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (name === 'color') node.style.background = value;
    else node.setAttribute(name, value === true ? '' : String(value));
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) node.append(child);
  }
  return node;
}
const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const byId = (id) => document.getElementById(id);
const show = (id, ...children) => byId(id).replaceChildren(...children.flat());
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const isNumber = (value) => typeof value === 'number' && Number.isFinite(value);

// "1.500" -> "1.5", "2.0" -> "2"; exponents are left alone.
function trimmed(text) {
  return text.includes('.') && !text.includes('e') ? text.replace(/\.?0+$/, '') : text;
}

// For people: 0.00001 -> "1e−5", 0.0093934 -> "0.00939", 3.14159 -> "3.1416", 12345 -> "12.3 k", 5e6 -> "5 M"; "–" for
// values that are not finite.
function plainNumber(value) {
  if (!isNumber(value)) return '–';
  const size = Math.abs(value);
  if (size === 0) return '0';
  if (size >= 1e12) return value.toExponential(2);
  if (size >= 1e9) return trimmed((value / 1e9).toFixed(2)) + ' G';
  if (size >= 1e6) return trimmed((value / 1e6).toFixed(2)) + ' M';
  if (size >= 1e4) return trimmed((value / 1e3).toFixed(1)) + ' k';
  if (size < 1e-3) return value.toExponential(2).replace('e-', 'e−').replace(/\.?0+e/, 'e');
  return trimmed(value.toPrecision(size < 1 ? 3 : 5));
}

// Three digits, for rates: 381.234 -> "381", 0.0093934 -> "0.00939".
function rateNumber(value) {
  if (!isNumber(value) || Math.abs(value) >= 1000 || Math.abs(value) < 1e-3) return plainNumber(value);
  return trimmed(value.toPrecision(3));
}

// A difference with its sign: "+0.12", "−3.4 %"; "±0" for none.
function signed(value, format) {
  if (!isNumber(value)) return '–';
  return value === 0 ? '±0' : `${value > 0 ? '+' : '−'}${format(Math.abs(value))}`;
}

// Powers of 1024, as the program itself prints them.
function bytesText(value) {
  if (!isNumber(value)) return '–';
  const units = ['B', 'KB', 'MB', 'GB', 'TB', 'PB'];
  let unit = 0;
  let size = value;
  while (Math.abs(size) >= 1024 && unit < units.length - 1) { size /= 1024; unit += 1; }
  return `${trimmed(size.toFixed(size < 10 && unit > 0 ? 2 : 1))} ${units[unit]}`;
}

const percent = (value, digits = 0) => isNumber(value) ? `${(100 * value).toFixed(digits)} %` : '–';
const grouped = (value) => isNumber(value) ? Math.round(value).toLocaleString('en-US') : '–';

// "12 µs", "3.5 ms", "45 s", "3 min 20 s", "5 h 20 min", "2 d 4 h".
function secondsText(value) {
  if (!isNumber(value)) return '–';
  if (value < 1e-3) return `${trimmed((value * 1e6).toFixed(1))} µs`;
  if (value < 1) return `${trimmed((value * 1e3).toPrecision(3))} ms`;
  if (value < 120) return `${trimmed(value.toPrecision(3))} s`;
  const [hours, minutes, seconds] = [Math.floor(value / 3600), Math.floor(value / 60) % 60, Math.floor(value) % 60];
  if (hours >= 48) return `${Math.floor(hours / 24)} d ${hours % 24} h`;
  if (hours > 0) return `${hours} h${minutes > 0 ? ` ${minutes} min` : ''}`;
  return `${minutes} min${seconds > 0 ? ` ${seconds} s` : ''}`;
}

// Local time, "2026-01-31 12:00:00".
function timeText(seconds) {
  if (!isNumber(seconds) || seconds <= 0 || seconds > 8.6e12) return '–';
  const date = new Date(seconds * 1000);
  const pad = (number) => String(number).padStart(2, '0');
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

const empty = (text) => h('p', { class: 'empty' }, text);

// The first six runs have colors that stay apart for color-blind readers. The others take sixteen hues, a golden angle
// apart, in four lightnesses, each with its dash: no two of 64 runs look alike.
const runColor = (index) => {
  if (index < 6) return `var(--run-${index})`;
  const hue = (index * 137.508) % 360;
  return `oklch(var(--run-light-${index % 4}) 0.14 ${hue.toFixed(1)})`;
};
const runDash = (index) => index < 6 ? '' : ['', '7 3', '2 3', '9 3 2 3'][Math.floor(index / 16) % 4];

// A short line as the curve of a run is drawn.
function runSwatch(index) {
  return s('svg', { class: 'swatch-line', viewBox: '0 0 24 8', 'aria-hidden': 'true' },
    s('line', { x1: 1, x2: 23, y1: 4, y2: 4, stroke: runColor(index), 'stroke-width': 3, 'stroke-dasharray': runDash(index) || null }));
}

function legendBox(color, text) {
  return h('span', {}, h('i', { class: 'box', color }), text);
}

// `heads` are {name, class}; the class applies to the whole column.
function table(heads, rows, className) {
  const cell = (tag) => (value, column) => h(tag, { class: heads[column].class }, value);
  return h('table', { class: className },
    h('thead', {}, h('tr', {}, heads.map((head, column) => cell('th')(head.name, column)))),
    h('tbody', {}, rows.map((row) => h('tr', {}, row.map(cell('td'))))));
}

// Round numbers, 1, 2 or 5 times a power of ten apart.
function roundTicks(low, high, most) {
  if (!(high > low)) return [low];
  const raw = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= raw * 0.999);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9 && ticks.length < 50; k += 1) ticks.push(k * step);
  return ticks;
}

// Powers of ten, at most six of them; within a single decade round numbers instead.
function logTicks(low, high) {
  const ticks = [];
  const first = Math.ceil(Math.log10(low) - 1e-9);
  const last = Math.floor(Math.log10(high) + 1e-9);
  const every = Math.max(1, Math.ceil((last - first + 1) / 6));
  for (let power = first; power <= last; power += every) ticks.push(10 ** power);
  return ticks.length >= 2 ? ticks : roundTicks(low, high, 4).filter((tick) => tick > 0);
}
