// A line of the last minutes with its latest value in large letters.

const chartWidth = 300;
const chartHeight = 64;
const pointsShown = 300;
const fewestPoints = 60;  // a daemon that has just started need not fill five minutes

// Runs of neighbouring points that have a value, as SVG path data. `bottom`: closed down to there.
function linePath(values, scale, bottom) {
  const places = Math.max(values.length, fewestPoints);
  const step = chartWidth / (places - 1);
  const x = (i) => ((places - values.length + i) * step).toFixed(1);
  let path = '';
  let first = -1;
  values.forEach((value, i) => {
    if (value === null) return;
    const isStart = i === 0 || values[i - 1] === null;
    if (isStart) first = i;
    path += (isStart ? 'M' : 'L') + x(i) + ' ' + (chartHeight - 2 - value * scale).toFixed(1);
    const isEnd = i === values.length - 1 || values[i + 1] === null;
    if (bottom && isEnd) path += 'V' + chartHeight + 'H' + x(first) + 'Z';
  });
  return path;
}

class Sparkline {
  // `lines`: {key, name}, the first one filled; `format` makes a value text.
  constructor(parent, {title, lines, format, ceiling}) {
    Object.assign(this, {title, lines, format, ceiling});
    this.area = makeSvg('path', {class: 'area'});
    this.paths = lines.map((_, i) => makeSvg('path', {class: 'line line-' + i}));
    this.svg = makeSvg('svg', {
      viewBox: '0 0 ' + chartWidth + ' ' + chartHeight, preserveAspectRatio: 'none', role: 'img',
    }, this.area, ...this.paths);
    this.value = make('strong', 'value');
    this.more = make('p', 'more');
    parent.append(make('article', 'panel chart',
        make('div', 'chart-head', make('h3', '', title), this.value, this.more),
        make('div', 'chart-body', this.svg)));
  }

  // `history`: a list of values for each key, null where there is none.
  draw(history) {
    const series = this.lines.map(({key}) => history[key].slice(-pointsShown));
    const known = series.flat().filter((value) => value !== null);
    const highest = Math.max(...known, 0);
    const scale = (chartHeight - 6) / (this.ceiling || highest || 1);
    setAttribute(this.area, 'd', linePath(series[0], scale, true));
    series.forEach((values, i) => setAttribute(this.paths[i], 'd', linePath(values, scale, false)));
    const latest = series.map((values) => values.length > 0 ? values[values.length - 1] : null);
    const text = (value) => value === null ? '–' : this.format(value);
    setText(this.value, text(latest[0]));
    const more = this.lines.map(({name}, i) => i === 0 ? name : name + ' ' + text(latest[i]));
    if (known.length > 0) more.push('highest ' + this.format(highest));
    setText(this.more, more.filter((part) => part).join(' · '));
    const said = this.lines.map(({name}, i) => (name || 'now') + ' ' + text(latest[i]));
    setAttribute(this.svg, 'aria-label', this.title + ', last five minutes: ' +
        [...said, 'highest ' + this.format(highest)].join(', '));
  }
}
