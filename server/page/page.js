// Asks the daemon every second while the page is in view, and draws what it answers. Where it does
// not answer the page says so, keeps what it showed, and asks again, less and less often.

const pollMilliseconds = 1000;
const answerMilliseconds = 5000;
const longestPause = 10000;

class AnswerError extends Error {
  constructor(status) {
    super('HTTP status ' + status);
    this.status = status;
  }
}

async function ask(path) {
  const answer = await fetch(path, {signal: AbortSignal.timeout(answerMilliseconds)});
  if (!answer.ok) throw new AnswerError(answer.status);
  return answer.json();
}

function announce(text) {
  setText(byId('announcement'), text);
}

const charts = [
  {title: 'Tokens generated', format: (v) => formatRate(v) + '/s',
    lines: [{key: 'generated_tokens_per_second'}]},
  {title: 'Prompt tokens', format: (v) => formatRate(v) + '/s',
    lines: [{key: 'prompt_tokens_per_second'}]},
  {title: 'Time to first token', format: formatSeconds,
    lines: [{key: 'first_token_p50_seconds', name: 'p50'},
      {key: 'first_token_p95_seconds', name: 'p95'}]},
  {title: 'Between two tokens', format: formatSeconds,
    lines: [{key: 'inter_token_p50_seconds', name: 'p50'},
      {key: 'inter_token_p95_seconds', name: 'p95'}]},
  {title: 'Requests', format: (v) => formatNumber(v),
    lines: [{key: 'running', name: 'running'}, {key: 'waiting', name: 'waiting'}]},
  {title: 'Pool', format: (v) => formatPercent(v, 1), ceiling: 1,
    lines: [{key: 'used_share', name: 'used'}, {key: 'taken_share', name: 'with reserved'}]},
];

class Page {
  constructor() {
    this.history = null;
    this.startedAt = null;  // tells one daemon from the next
    this.state = null;
    this.failures = 0;
    this.timer = null;
    this.isAsking = false;
    this.floors = new Floors(byId('floors'), byId('readout'));
    this.pool = new Pool(byId('pool'));
    this.charts = charts.map((chart) => new Sparkline(byId('charts'), chart));
    this.detail = new Detail((id) => {
      this.requests.setOpened(null);
      this.requests.focus(id);
    });
    this.requests = new Requests((request) => {
      this.requests.setOpened(request.id);
      this.detail.open(request);
    });
    byId('tables').addEventListener('click', () => this.toggleTables());
    document.addEventListener('visibilitychange', () => {
      if (document.visibilityState === 'visible') this.poll();
    });
    this.poll();
  }

  toggleTables() {
    const isOn = document.body.classList.toggle('show-tables');
    byId('tables').setAttribute('aria-pressed', String(isOn));
    if (this.state !== null) this.draw(this.state);
  }

  async poll() {
    clearTimeout(this.timer);
    if (this.isAsking || document.visibilityState !== 'visible') return;
    this.isAsking = true;
    const begin = performance.now();
    try {
      const state = await ask('/api/state');
      await this.follow(state);
      this.recover();
      this.state = state;
      requestAnimationFrame(() => this.draw(state));
      await this.detail.fetch();
    } catch (error) {
      this.fail(error);
    }
    this.isAsking = false;
    const pause = this.failures === 0 ? pollMilliseconds - (performance.now() - begin) :
        Math.min(pollMilliseconds * 2 ** (this.failures - 1), longestPause);
    this.timer = setTimeout(() => this.poll(), Math.max(pause, 50));
  }

  // Keeps the history complete: the answer brings the latest points, and where that leaves a gap,
  // all are asked for.
  async follow(state) {
    if (this.startedAt !== null && this.startedAt !== state.started_at_ms) {
      this.history = null;
      this.state = null;
      this.clearCache();
      if (this.detail.id !== null) this.detail.end();
    }
    this.startedAt = state.started_at_ms;
    const latest = state.latest;
    const missing = this.history === null ? Infinity : latest.newest - this.history.newest;
    if (missing > latest.time_ms.length) {
      this.history = await ask('/api/history');
    } else if (missing > 0) {
      for (const [key, list] of Object.entries(latest)) {
        if (Array.isArray(list)) {
          this.history[key] = this.history[key].concat(list.slice(-missing)).slice(-pointsShown);
        }
      }
      this.history.newest = latest.newest;
    }
    const total = state.cache ? state.cache.total_blocks : 1;
    const {used_blocks: used, reserved_blocks: reserved} = this.history;
    this.history.used_share = used.map((blocks) => blocks / total);
    this.history.taken_share = used.map((blocks, i) => (blocks + reserved[i]) / total);
  }

  recover() {
    if (this.failures > 1) announce('The daemon answers again');
    this.failures = 0;
    document.body.classList.remove('lost');
    setHidden(byId('banner'), true);
  }

  // One answer that does not come may be the network's; nothing is said before the second.
  fail(error) {
    this.failures += 1;
    if (this.failures < 2) return;
    const why = error instanceof AnswerError ? 'answers with ' + error.message : 'does not answer';
    setText(byId('banner'),
        'The daemon ' + why + '. What you see is what it said last; asking again.');
    setHidden(byId('banner'), false);
    document.body.classList.add('lost');
    this.drawPill('lost', 'unreachable');
    if (this.failures === 2) announce('The daemon ' + why);
  }

  drawPill(kind, text) {
    setClass(byId('state'), 'pill ' + kind);
    setText(byId('state'), text);
  }

  draw(state) {
    this.drawPill(state.state, state.state);
    setText(byId('version'), 'ziggurat ' + state.version);
    setText(byId('uptime'), formatUptime((state.time_ms - state.started_at_ms) / 1000));
    const {finished} = state;
    setText(byId('finished'), formatNumber(finished.stop + finished.length));
    setText(byId('refused'), formatNumber(state.refused));
    this.charts.forEach((chart) => chart.draw(this.history));
    this.drawSeriesTable();
    if (state.model === null) {
      setText(byId('model'), state.state === 'loading' ? 'loading the model' : '…');
      this.clearCache();
      return;
    }
    const {name, num_layers: layers, dtype, backend, default_compression: policy} = state.model;
    setText(byId('model'), [name, layers + ' layers', dtype, backend, policy].join(' · '));
    this.drawCache(state);
  }

  // While a daemon loads there is none, and what the one before held is no more.
  clearCache() {
    setText(byId('cache-summary'), '');
    byId('legend').replaceChildren();
    byId('layer-table').replaceChildren();
    this.floors.draw([]);
    setAttribute(byId('floors'), 'aria-label', 'Blocks of each layer');
    this.pool.clear();
    this.requests.clear();
    for (const id of ['block-bytes', 'workspace', 'as-of']) setText(byId(id), '–');
    document.title = 'Ziggurat';
  }

  drawCache({cache, cache_at_ms: at, model}) {
    const formats = sumFormats(cache.layers.map((layer) => layer.blocks_by_format));
    const waste = cache.layers.reduce((sum, layer) => sum + layer.tail_waste_bytes, 0);
    const usedBytes = cache.used_blocks * cache.block_bytes;
    setText(byId('cache-summary'), formatBytes(usedBytes) + ' of ' +
        formatBytes(cache.total_blocks * cache.block_bytes) + ' used, ' +
        formatPercent(waste, usedBytes) + ' of it unfilled');
    drawLegend(byId('legend'), formats, cache.reserved_blocks);
    this.floors.draw(cache.layers.map((layer) => ({
      formats: layer.blocks_by_format, reserved: layer.reserved_blocks,
      more: formatBytes(layer.live_bytes) + ' live',
    })));
    setAttribute(byId('floors'), 'aria-label', this.describeFloors(cache.layers));
    this.pool.draw(cache, formats);
    this.drawLayerTable(cache, formats);
    this.requests.draw(cache);
    setText(byId('block-bytes'), formatBytes(cache.block_bytes));
    setText(byId('workspace'), formatBytes(cache.workspace_high_water_bytes));
    setText(byId('as-of'), new Date(at).toLocaleTimeString());
    document.title = formatPercent(cache.used_blocks + cache.reserved_blocks, cache.total_blocks) +
        ' · ' + model.name + ' · Ziggurat';
  }

  describeFloors(layers) {
    const blocks = layers.map((layer) => layer.used_blocks);
    return 'Blocks of ' + layers.length + ' layers: ' + formatNumber(blocks[0]) +
        ' in the lowest, ' + formatNumber(blocks[blocks.length - 1]) + ' in the highest, at most ' +
        formatNumber(Math.max(...blocks)) + ', at least ' + formatNumber(Math.min(...blocks)) +
        '. The arrow keys walk them; the button Tables shows all as a table.';
  }

  drawSeriesTable() {
    if (!document.body.classList.contains('show-tables')) return;
    const rows = charts.flatMap(({title, lines, format}) => lines.map(({key, name}) => {
      const list = this.history[key];
      const known = list.filter((value) => value !== null);
      const text = (value) => value === undefined || value === null ? '–' : format(value);
      return [name ? title + ', ' + name : title, text(list[list.length - 1]),
        ...[Math.min, Math.max].map((pick) => text(known.length > 0 ? pick(...known) : null))];
    }));
    fillTable(byId('series-table'), 'The last five minutes', [
      {title: '', isText: true}, {title: 'Now'}, {title: 'Lowest'}, {title: 'Highest'}], rows);
  }

  drawLayerTable(cache, formats) {
    if (!document.body.classList.contains('show-tables')) return;
    const names = formats.map(([format]) => format);
    fillTable(byId('layer-table'), 'Blocks of each layer', [
      {title: 'Layer'}, {title: 'Used'}, {title: 'Reserved'},
      ...names.map((title) => ({title})), {title: 'Live'}, {title: 'Unfilled'},
    ], cache.layers.map((layer) => [
      String(layer.layer), formatNumber(layer.used_blocks), formatNumber(layer.reserved_blocks),
      ...names.map((name) => formatNumber(layer.blocks_by_format[name] || 0)),
      formatBytes(layer.live_bytes), formatBytes(layer.tail_waste_bytes),
    ]));
  }
}

new Page();
