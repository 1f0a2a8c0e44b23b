// The ziggurat: a floor for each layer, the lowest layer at the bottom, as wide as its blocks. What
// is only reserved stands half to each side.

class Floors {
  // `readout`: an element that says the numbers of the floor that is pointed at, or null.
  constructor(container, readout) {
    this.container = container;
    this.readout = readout;
    this.hint = readout === null ? '' : readout.textContent;
    this.rows = [];
    this.current = -1;  // layer
    if (readout === null) return;
    container.addEventListener('pointerover', (event) => {
      const floor = event.target.closest('.floor');
      if (floor === null) return;
      this.pointAt(this.rows.length - 1 - [...container.children].indexOf(floor));
    });
    container.addEventListener('keydown', (event) => {
      const step = {ArrowUp: 1, ArrowDown: -1}[event.key];
      const end = {Home: this.rows.length - 1, End: 0}[event.key];
      if ((step === undefined && end === undefined) || this.rows.length === 0) return;
      event.preventDefault();
      const next = end !== undefined ? end : this.current < 0 ? 0 : this.current + step;
      this.pointAt(Math.min(Math.max(next, 0), this.rows.length - 1));
      announce(this.readout.textContent);
    });
  }

  // `rows`, by layer: {formats: {format -> blocks}, reserved}.
  draw(rows) {
    this.rows = rows;
    const widest = Math.max(1, ...rows.map((row) => this.blocksOf(row) + row.reserved));
    const labelEvery = Math.ceil(rows.length / 16);
    this.container.classList.toggle('many', rows.length > 24);
    const floors = fitChildren(this.container, rows.length, () => {
      const floor = make('div', 'floor', make('span', 'layer'), make('div', 'bar'),
          make('span', 'count'));
      floor.ariaHidden = 'true';  // numbers alone say nothing; those who hear them walk the floors
      return floor;
    });
    rows.forEach((row, layer) => {
      const [label, bar, count] = floors[rows.length - 1 - layer].children;
      setText(label, layer % labelEvery === 0 ? String(layer) : '');
      setText(count, rows.length <= 24 ? formatNumber(this.blocksOf(row)) : '');
      this.drawBar(bar, row, 100 / widest);
    });
    if (this.current < 0) return;
    if (this.current < rows.length) {
      this.pointAt(this.current);
    } else {
      this.current = -1;
      setText(this.readout, this.hint);
    }
  }

  blocksOf(row) {
    return Object.values(row.formats).reduce((sum, blocks) => sum + blocks, 0);
  }

  drawBar(bar, row, percentOfBlock) {
    const parts = Object.entries(row.formats).sort((a, b) => compareFormats(a[0], b[0]))
        .map(([format, blocks]) => [formatClass(format), blocks]);
    const cells = fitChildren(bar, parts.length + 2, () => make('i'));
    [['reserved', row.reserved / 2], ...parts, ['reserved', row.reserved / 2]]
        .forEach(([className, blocks], i) => {
          setClass(cells[i], className);
          setWidth(cells[i], blocks * percentOfBlock);
        });
  }

  pointAt(layer) {
    this.current = layer;
    [...this.container.children].forEach((floor, i) =>
      floor.classList.toggle('current', i === this.rows.length - 1 - layer));
    const row = this.rows[layer];
    const formats = describeFormats(row.formats);
    setText(this.readout, 'Layer ' + layer + ': ' + formatNumber(this.blocksOf(row)) + ' blocks' +
        (formats ? ' (' + formats + ')' : '') + ', ' + formatNumber(row.reserved) + ' reserved' +
        (row.more ? ', ' + row.more : ''));
  }
}
