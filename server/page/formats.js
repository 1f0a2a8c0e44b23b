// The formats that blocks hold. A colour for what one number is stored in, a pattern for what else
// is different, so that neither has to be told apart by colour alone.

const encodings = ['f32', 'bf16', 'int8', 'fp8', 'int4', 'int2'];

function compareFormats(a, b) {
  const rank = (name) => encodings.indexOf(name.split('-')[0]);
  return rank(a) - rank(b) || (a < b ? -1 : a > b ? 1 : 0);
}

// "int4-merged" -> "format int4 is-merged"
function formatClass(name) {
  const [encoding, ...marks] = name.split('-');
  return ['format', encodings.includes(encoding) ? encoding : 'other',
    ...marks.map((mark) => 'is-' + mark)].join(' ');
}

// Sums lists of {format -> blocks}.
function sumFormats(lists) {
  const sum = new Map();
  for (const formats of lists) {
    for (const [format, blocks] of Object.entries(formats)) {
      sum.set(format, (sum.get(format) || 0) + blocks);
    }
  }
  return [...sum].sort((a, b) => compareFormats(a[0], b[0]));
}

// "bf16 12, int4 80"
function describeFormats(formats) {
  return Object.entries(formats).sort((a, b) => compareFormats(a[0], b[0]))
      .map(([format, blocks]) => format + ' ' + formatNumber(blocks)).join(', ');
}

function drawLegend(list, formats, reserved) {
  const entries = formats.map(([format, blocks]) => [formatClass(format), format, blocks]);
  if (reserved !== null) entries.push(['reserved', 'reserved', reserved]);
  const items = fitChildren(list, entries.length,
      () => make('li', '', make('i'), make('span'), make('strong')));
  entries.forEach(([className, name, blocks], i) => {
    const [swatch, label, count] = items[i].children;
    setClass(swatch, 'swatch ' + className);
    setText(label, name);
    setText(count, formatNumber(blocks));
  });
}
