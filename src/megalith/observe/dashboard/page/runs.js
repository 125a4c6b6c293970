// The runs: one table that is also the legend of all charts, with search, groups, a baseline, tags and notes.

// args.yaml has one option per line.
function optionsOf(run) {
  if (run.optionsOf === run.args) return run.options;
  const options = new Map();
  for (const line of run.args.split('\n')) {
    const colon = line.indexOf(': ');
    if (colon > 0 && !line.startsWith('#') && !line.startsWith(' ')) options.set(line.slice(0, colon), line.slice(colon + 2));
  }
  Object.assign(run, { options, optionsOf: run.args });
  return options;
}

// Whether a run fits all words of a search: "tag:x", "option=value" (a part of the value is enough), or any part of
// its name, tags and notes. A word that begins with "-" must not fit.
function matches(run, search) {
  return search.toLowerCase().split(/\s+/).filter((word) => word).every((word) => {
    const wanted = !word.startsWith('-') || word.length === 1;
    const text = wanted ? word : word.slice(1);
    const equals = text.indexOf('=');
    const fits = () => {
      if (text.startsWith('tag:')) return run.tags.some((tag) => tag.toLowerCase() === text.slice(4));
      if (equals > 0) return (optionsOf(run).get(text.slice(0, equals)) ?? '').toLowerCase().includes(text.slice(equals + 1));
      return [run.name, run.notes, ...run.tags].some((each) => each.toLowerCase().includes(text));
    };
    return fits() === wanted;
  });
}

// Names of the options in which runs differ, but for those that always do.
function differingOptions(runs) {
  const ours = ['output_dir', 'run_name', 'logging_dir'];
  const names = new Set(runs.flatMap((run) => [...optionsOf(run).keys()]));
  return [...names].filter((name) => !ours.includes(name) && new Set(runs.map((run) => optionsOf(run).get(name) ?? '')).size > 1).sort();
}

// The key of the group of a run: "name" is the part before the last -, _, / or number.
function groupOf(run, by) {
  if (by === '') return '';
  if (by === 'name') return run.name.replace(/[-_/.]?[^-_/.]*$/, '') || run.name;
  if (by === 'tag') return run.tags.length > 0 ? [...run.tags].sort().join(', ') : 'no tag';
  return `${by} = ${optionsOf(run).get(by) ?? 'not set'}`;
}

// The value of the baseline for a comparison with a run that stands at `step`: at the same step, if it was there.
function baselineValue(base, name, step) {
  if (!base || !Object.hasOwn(base.series, name)) return null;
  const { x, mean } = base.series[name];
  const value = valueAt(x, mean, step);
  return isNumber(value) ? value : null;
}

class RunsTable {
  // `changed` is called when the choice, the focus or the baseline changed.
  constructor(page, changed) {
    Object.assign(this, { page, changed, drawn: '', search: '', group: '' });
    this.input = h('input', {
      type: 'search', id: 'run-search', placeholder: 'Search: name, tag:…, option=value', 'aria-label': 'Search runs',
      oninput: () => { this.search = this.input.value; changed(); },
    });
    this.groups = h('select', { id: 'group-by', 'aria-label': 'Group runs', onchange: () => { this.group = this.groups.value; this.draw(true); } });
    this.count = h('span', { class: 'facts', role: 'status' });
    this.body = h('div', { class: 'scroll runs-table' });
    const all = (yes) => () => { for (const index of this.listed()) if (yes) page.compared.add(index); else page.compared.delete(index); changed(); };
    this.node = h('div', { class: 'panel' }, h('div', { class: 'toolbar' }, this.input, h('label', {}, 'Group by ', this.groups),
      h('button', { type: 'button', onclick: all(true) }, 'All'), h('button', { type: 'button', onclick: all(false) }, 'None'), h('span', { class: 'grow' }), this.count), this.body);
  }

  // Indices of the runs that fit the search.
  listed() {
    return [...this.page.names.keys()].filter((index) => !this.page.runs[index] || matches(this.page.runs[index], this.search));
  }

  // Drawn only when it changed: replacing the buttons would take away the keyboard's focus.
  draw(always) {
    const { page } = this;
    byId('runs').hidden = page.names.length < 2;
    if (page.names.length < 2) return;
    const listed = this.listed();
    const news = JSON.stringify([page.versions, page.names, page.focus, page.baseline, [...page.compared], this.search]);
    if (news === this.drawn && !always) return;
    this.drawn = news;
    const runs = page.runs.filter((run) => run);
    const choices = [['', 'nothing'], ['name', 'name'], ['tag', 'tag'], ...differingOptions(runs).map((name) => [name, name])];
    const text = JSON.stringify(choices);
    if (text !== this.choices) {
      this.choices = text;
      this.groups.replaceChildren(...choices.map(([value, name]) => h('option', { value, selected: value === this.group }, name)));
    }
    this.count.textContent = `${listed.length === page.names.length ? '' : `${listed.length} of `}${page.names.length} runs`;
    const grouped = new Map();
    for (const index of listed) {
      const key = page.runs[index] ? groupOf(page.runs[index], this.group) : '';
      (grouped.get(key) || grouped.set(key, []).get(key)).push(index);
    }
    const heads = ['', 'Run', 'Tags', 'Step', 'Loss', 'Δ', 'Tokens/s', 'Δ', ''];
    const numbers = new Set([3, 4, 5, 6, 7]);
    this.body.replaceChildren(h('table', {}, h('thead', {}, h('tr', {}, heads.map((head, i) => h('th', { class: numbers.has(i) ? 'number' : null }, head)))),
      h('tbody', {}, [...grouped].sort((a, b) => a[0].localeCompare(b[0], 'en', { numeric: true })).flatMap(([key, indices]) =>
        [this.group === '' ? null : this.heading(key, indices), ...indices.map((index) => this.row(index))]))));
  }

  heading(key, indices) {
    const { page } = this;
    const losses = indices.map((index) => page.runs[index] && lastOf(page.runs[index], 'loss')).filter((last) => last).map((last) => last[1]);
    const box = h('input', {
      type: 'checkbox', checked: indices.every((index) => page.compared.has(index)), 'aria-label': `Compare the group ${key}`,
      onchange: (event) => { for (const index of indices) if (event.target.checked) page.compared.add(index); else page.compared.delete(index); this.changed(); },
    });
    return h('tr', { class: 'group' }, h('td', { class: 'keys' }, box), h('td', { colspan: 8 }, h('b', {}, key), ` · ${indices.length} ${indices.length === 1 ? 'run' : 'runs'}`,
      losses.length > 0 ? ` · best loss ${plainNumber(Math.min(...losses))}` : ''));
  }

  row(index) {
    const { page } = this;
    const name = page.names[index];
    const run = page.runs[index];
    const base = page.baseline === index ? null : page.runs[page.baseline];
    const number = (key, format, share) => {
      const last = run && lastOf(run, key);
      if (!last) return ['–', ''];
      const before = baselineValue(base, key, last[0]);
      if (before === null) return [format(last[1]), ''];
      return [format(last[1]), share ? signed(last[1] / before - 1, (value) => percent(value, 1)) : signed(last[1] - before, plainNumber)];
    };
    const [loss, lossDelta] = number('loss', plainNumber, false);
    const [speed, speedDelta] = number('tokens_per_second', plainNumber, true);
    const step = run && lastOf(run, 'loss');
    const state = run ? stateOf(run, page.now) : 'waiting';
    return h('tr', {
      'data-index': index, 'data-focus': index === page.focus ? 'yes' : 'no',
      onpointerenter: () => highlight(index), onpointerleave: () => highlight(null),
    },
    h('td', { class: 'keys' }, h('input', {
      type: 'checkbox', checked: page.compared.has(index), 'aria-label': `Compare ${name}`,
      onchange: (event) => { if (event.target.checked) page.compared.add(index); else page.compared.delete(index); this.changed(); },
    }), runSwatch(index)),
    h('td', { class: 'name' }, h('button', { type: 'button', class: 'plain', title: name, 'aria-pressed': String(index === page.focus), onclick: () => this.focusOn(index) }, name),
      run && run.alerts.length > 0 ? h('span', { class: 'badge warn', title: run.alerts.map((alert) => alert.text).join('\n') }, '!') : null,
      state === 'live' ? h('span', { class: 'badge good' }, 'live') : null),
    h('td', { class: 'tags' }, run ? run.tags.map((tag) => h('button', { type: 'button', class: 'tag', onclick: () => this.find(`tag:${tag}`) }, tag)) : null),
    ...[step ? grouped(step[0]) : '–', loss, lossDelta, speed, speedDelta].map((text) => h('td', { class: 'number' }, text)),
    h('td', {}, h('button', {
      type: 'button', class: 'plain pin', 'aria-pressed': String(index === page.baseline), title: index === page.baseline ? 'This is the baseline; click to release it' : 'Pin as the baseline',
      'aria-label': `Pin ${name} as the baseline`,
      onclick: () => { page.baseline = index === page.baseline ? null : index; remembered('baseline', page.baseline === null ? '' : name); this.changed(); },
    }, index === page.baseline ? '★' : '☆')));
  }

  focusOn(index) {
    this.page.focus = index;
    this.page.compared.add(index);
    rankGrid.forget();
    this.changed();
  }

  find(text) {
    this.input.value = text;
    this.search = text;
    this.changed();
  }
}

// Dims the curves of all other runs; null shows all alike.
function highlight(index) {
  for (const chart of allCharts) {
    if (!chart.svg) continue;
    chart.plot.classList.toggle('lit', index !== null);
    for (const curve of chart.svg.querySelectorAll('[data-run]')) curve.classList.toggle('lit', curve.dataset.run === String(index));
  }
}

// Notes and tags of the run in focus. They are saved beside the run; a report or a read-only server only shows them.
class NotesEditor {
  constructor(save) {
    this.writable = document.documentElement.dataset.writeToken !== '';
    const edited = () => { this.dirty = true; this.status.textContent = 'not saved'; };
    this.tags = h('input', { type: 'text', id: 'tags', placeholder: 'Tags, separated by commas', 'aria-label': 'Tags', oninput: edited });
    this.text = h('textarea', { id: 'notes-text', rows: 3, placeholder: 'What is this run about?', 'aria-label': 'Notes', oninput: edited });
    this.status = h('span', { class: 'facts', role: 'status' });
    this.save = () => save(this.content()).then((problem) => {
      this.dirty = problem !== '';
      this.status.textContent = problem === '' ? 'saved' : problem;
    });
    this.button = h('button', { type: 'button', id: 'save-notes', onclick: this.save }, 'Save');
  }

  content() {
    return { notes: this.text.value, tags: [...new Set(this.tags.value.split(',').map((tag) => tag.trim()).filter((tag) => tag))] };
  }

  // Text that somebody is writing is not replaced by what comes from the server, unless another run comes into focus.
  set(run) {
    const other = run.folder !== this.folder;
    this.folder = run.folder;
    if (!this.writable) {
      show('notes', run.tags.length > 0 ? h('p', {}, run.tags.map((tag) => h('span', { class: 'tag' }, tag))) : [],
        run.notes || run.tags.length > 0 ? h('p', { class: 'prose' }, run.notes) : empty('No notes.'));
      return;
    }
    if (other) {
      this.dirty = false;
      this.status.textContent = '';
      show('notes', this.tags, this.text, h('div', { class: 'toolbar' }, this.button, this.status));
    }
    if (this.dirty) return;
    this.tags.value = run.tags.join(', ');
    this.text.value = run.notes;
  }
}
