// The pool beside the ziggurat: what is used by format, what is reserved, what is free, and how
// high it has ever stood.

class Pool {
  constructor(container) {
    this.container = container;
    this.well = make('div', 'well');
    this.mark = make('div', 'mark-line');
    this.free = make('p', 'free');
    this.peak = make('p', 'peak');
    container.append(make('div', 'well-frame', this.well, this.mark), this.free, this.peak);
  }

  clear() {
    this.well.replaceChildren();
    this.mark.style.bottom = '';
    setText(this.free, '');
    setText(this.peak, '');
    setAttribute(this.container, 'aria-label', 'The pool');
  }

  draw(cache, formats) {
    const total = Math.max(1, cache.total_blocks);
    const parts = [['free-part', cache.free_blocks], ['reserved', cache.reserved_blocks],
      ...formats.map(([format, blocks]) => [formatClass(format), blocks]).reverse()];
    const cells = fitChildren(this.well, parts.length, () => make('i'));
    parts.forEach(([className, blocks], i) => {
      setClass(cells[i], className);
      const height = (100 * blocks / total).toFixed(2) + '%';
      if (cells[i].style.height !== height) cells[i].style.height = height;
    });
    const peak = (100 * cache.high_water_blocks / total).toFixed(2) + '%';
    if (this.mark.style.bottom !== peak) this.mark.style.bottom = peak;
    setText(this.free, formatPercent(cache.free_blocks, total) + ' free');
    setText(this.peak, 'peak ' + formatPercent(cache.high_water_blocks, total));
    setAttribute(this.container, 'aria-label', 'The pool: ' + formatNumber(cache.used_blocks) +
        ' blocks used, ' + formatNumber(cache.reserved_blocks) + ' reserved, ' +
        formatNumber(cache.free_blocks) + ' free of ' + formatNumber(cache.total_blocks) +
        ', most ever used ' + formatNumber(cache.high_water_blocks));
  }
}
