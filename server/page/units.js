// Numbers as people read them.

const numbers = new Intl.NumberFormat('en');

function formatNumber(value) {
  return numbers.format(value);
}

function formatRate(value) {
  if (value === 0) return '0';
  if (value >= 10000) return (value / 1000).toFixed(0) + 'k';
  if (value >= 1000) return (value / 1000).toFixed(1) + 'k';
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

function formatBytes(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  // From 1023.5 on it would be rounded to 1024.
  while (bytes >= 1023.5 && unit < units.length - 1) {
    bytes /= 1024;
    ++unit;
  }
  return (bytes >= 100 || Number.isInteger(bytes) ? bytes.toFixed(0) : bytes.toFixed(1)) + ' ' +
      units[unit];
}

function formatSeconds(seconds) {
  if (seconds < 0.001) return (seconds * 1e6).toFixed(0) + ' µs';
  if (seconds < 0.01) return (seconds * 1e3).toFixed(1) + ' ms';
  if (seconds < 1) return (seconds * 1e3).toFixed(0) + ' ms';
  return (seconds < 10 ? seconds.toFixed(1) : seconds.toFixed(0)) + ' s';
}

function formatPercent(part, whole) {
  const percent = whole > 0 ? 100 * part / whole : 0;
  if (percent > 0 && percent < 0.1) return '< 0.1 %';
  return (percent > 0 && percent < 10 ? percent.toFixed(1) : percent.toFixed(0)) + ' %';
}

function formatUptime(seconds) {
  const parts = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];
  const first = Math.max(0, parts.findIndex(([length]) => seconds >= length));
  const [length, unit] = seconds < 1 ? [1, 's'] : parts[first];
  const whole = Math.floor(seconds / length);
  if (length === 1 || length === 60) return whole + ' ' + unit;
  const [nextLength, nextUnit] = parts[first + 1];
  return whole + ' ' + unit + ' ' + Math.floor(seconds % length / nextLength) + ' ' + nextUnit;
}
