// Texts that the model wrote on its way, and samples of its training data.

// A slider over the records of a run, which stays at the newest one until somebody moves it.
class StepSlider {
  constructor(label, onchange) {
    this.steps = [];
    this.follows = true;
    this.onchange = onchange;
    this.input = h('input', { type: 'range', min: 0, max: 0, step: 1, value: 0, 'aria-label': label, oninput: () => this.moved(Number(this.input.value)) });
    this.output = h('output', {});
    const button = (text, name, by) => h('button', { type: 'button', 'aria-label': name, onclick: () => this.moved(this.index + by) }, text);
    this.node = h('div', { class: 'toolbar slider' }, button('‹', 'Earlier', -1), this.input, button('›', 'Later', 1), this.output);
  }

  get index() { return Number(this.input.value); }

  set(steps) {
    const step = this.steps[this.index];
    this.steps = steps;
    this.input.max = Math.max(0, steps.length - 1);
    // The list may have been thinned out: the step keeps its place as far as it is still there.
    const at = this.follows ? steps.length - 1 : Math.max(0, steps.findLastIndex((each) => each <= step));
    this.input.value = at;
    this.label();
  }

  moved(to) {
    this.input.value = Math.min(Math.max(to, 0), this.steps.length - 1);
    this.follows = this.index === this.steps.length - 1;
    this.label();
    this.onchange(this.index);
  }

  label() {
    this.output.textContent = this.steps.length > 0 ? `step ${grouped(this.steps[this.index])} · ${this.index + 1} of ${this.steps.length}` : '';
    this.input.setAttribute('aria-valuetext', this.output.textContent);
  }
}

const textOf = (value) => typeof value === 'string' ? value : '';

class SamplesPanel {
  // `read` returns a promise of record number n of the run in focus, or of null.
  constructor(read) {
    this.node = byId('samples');
    this.read = read;
    this.shown = '';
    this.slider = new StepSlider('Step of the samples', (index) => this.showRecord(index));
    this.content = h('div', { class: 'samples' });
  }

  set(run, focus) {
    const news = JSON.stringify([focus, run.samples]);
    if (news === this.shown) return;
    if (!this.shown.startsWith(`[${focus},`)) this.slider.follows = true;
    this.shown = news;
    if (!Array.isArray(run.samples) || run.samples.length === 0) {
      this.node.replaceChildren(empty('No texts yet. Start the run with generate_samples_every: 100 to have the model write some every 100 steps.'));
      return;
    }
    this.slider.set(run.samples);
    this.node.replaceChildren(this.slider.node, this.content);
    this.showRecord(this.slider.index);
  }

  async showRecord(index) {
    const asked = `${this.shown}/${index}`;
    this.asked = asked;
    const record = await this.read(index).catch(() => null);
    if (this.asked !== asked) return;  // somebody has moved on
    if (!record) { this.content.replaceChildren(empty('These texts are not part of the report.')); return; }
    this.content.replaceChildren(
      h('div', {}, h('h3', {}, 'Written by the model'), record.generated.map((each) => this.generated(each))),
      h('div', {}, h('h3', {}, 'Training data of this step'), record.trained.map((each) => this.trained(each)),
        h('div', { class: 'legend' }, h('span', {}, h('i', { class: 'box in-loss' }), 'in the loss'), h('span', {}, h('i', { class: 'box' }), 'only read'))));
  }

  generated(text) {
    return h('figure', { class: 'text-sample' },
      h('p', { class: 'prose' }, h('span', { class: 'prompt' }, textOf(text.prompt)), h('span', { class: 'written' }, textOf(text.text))),
      h('figcaption', { class: 'facts' }, text.ended ? 'ended by the model' : 'cut off at its greatest length'));
  }

  trained(sample) {
    const spans = Array.isArray(sample.spans) ? sample.spans : [];
    const facts = [`${grouped(sample.tokens)} tokens`, `${grouped(sample.loss_tokens)} in the loss`];
    if (sample.padding > 0) facts.push(`${grouped(sample.padding)} of padding`);
    if (sample.left_out > 0) facts.push(`${grouped(sample.left_out)} not shown`);
    return h('figure', { class: 'text-sample' },
      h('p', { class: 'prose' }, spans.map(([text, inLoss]) => h(inLoss ? 'mark' : 'span', {}, textOf(text)))),
      h('figcaption', { class: 'facts' }, facts.join(' · ')));
  }
}
