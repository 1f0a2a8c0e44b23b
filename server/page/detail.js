// One request, layer by layer, for as long as it is open.

const tokenColumns = [
  ['Tokens', 'tokens'], ['Of the prompt', 'budget_tokens'], ['Evicted', 'evicted_tokens'],
  ['In codes', 'quantized_tokens'], ['Merged', 'merged_tokens'], ['Without keys', 'distant_tokens'],
];

function layerNotes(layer) {
  const notes = [];
  if (layer.lazy) notes.push('lazy');
  if (layer.merged_with !== undefined) notes.push('merged with ' + layer.merged_with);
  if (layer.keys_of.length > 0) notes.push('keys of ' + layer.keys_of.join(', '));
  return notes.join('; ');
}

function formatsOf(layer) {
  return Object.fromEntries(layer.formats.map(({format, blocks}) => [format, blocks]));
}

class Detail {
  constructor(onClose) {
    this.panel = byId('detail');
    this.floors = new Floors(byId('detail-floors'), null);
    this.id = null;
    this.onClose = onClose;
    byId('detail-close').addEventListener('click', () => this.close());
    document.addEventListener('keydown', (event) => {
      if (event.key === 'Escape' && this.id !== null) this.close();
    });
  }

  open(request) {
    this.id = request.id;
    setText(byId('detail-title'), request.request_id);
    setText(byId('detail-policy'), request.compression);
    setHidden(byId('detail-note'), true);
    for (const id of ['detail-facts', 'detail-floors', 'detail-legend', 'detail-table']) {
      byId(id).replaceChildren();
    }
    this.panel.classList.remove('gone');
    setHidden(this.panel, false);
    byId('detail-title').focus();
    this.fetch();
  }

  close() {
    const id = this.id;
    this.id = null;
    setHidden(this.panel, true);
    this.onClose(id);
  }

  async fetch() {
    const id = this.id;
    if (id === null || this.panel.classList.contains('gone')) return;
    let answer;
    try {
      answer = await ask('/api/requests/' + id);
    } catch {
      return;  // a daemon that does not answer is the page's to notice
    }
    if (this.id !== id) return;
    if (answer.request === null) {
      this.end();
    } else {
      this.draw(answer.request, answer.block_bytes);
    }
  }

  // What it held last stays in view.
  end() {
    this.panel.classList.add('gone');
    this.note(byId('detail-facts').children.length > 0 ?
        'This request has ended. Below is what it held when it was last seen.' :
        'This request has ended.');
    announce(byId('detail-title').textContent + ' has ended');
  }

  note(text) {
    setText(byId('detail-note'), text);
    setHidden(byId('detail-note'), text === '');
  }

  draw(request, blockBytes) {
    const facts = [
      ['state', request.state], ['tokens', describeTokens(request)],
      ['blocks', formatNumber(request.blocks)], ['held', formatBytes(request.blocks * blockBytes)],
      ['reserved', formatNumber(request.reserved_blocks)],
    ];
    const drawn = fitChildren(byId('detail-facts'), facts.length,
        () => make('div', '', make('dt'), make('dd')));
    facts.forEach(([name, value], i) => {
      setText(drawn[i].children[0], name);
      setText(drawn[i].children[1], value);
    });
    this.note(request.layers.length > 0 ? '' : request.state === 'waiting' ?
        'It waits and holds no block yet.' :
        'Its prompt is being computed; what each layer keeps is known afterwards.');
    // While the prompt is computed the blocks of each layer are known, but not yet of what format.
    const rows = request.layers.length > 0 ?
        request.layers.map((layer) => ({formats: formatsOf(layer), reserved: 0})) :
        request.layer_blocks.map((blocks) => ({formats: {unknown: blocks}, reserved: 0}));
    this.floors.draw(rows);
    drawLegend(byId('detail-legend'), sumFormats(rows.map((row) => row.formats)), null);
    this.drawTable(request.layers);
  }

  // Only the columns in which there is something: no policy does everything.
  drawTable(layers) {
    const tokens = tokenColumns.filter(([, key]) => layers.some((layer) => layer[key] > 0));
    const hasNotes = layers.some((layer) => layerNotes(layer) !== '');
    fillTable(byId('detail-table'), 'Layers of the request', [
      {title: 'Layer'}, {title: 'Blocks'}, ...tokens.map(([title]) => ({title})),
      {title: 'Formats', isText: true}, ...(hasNotes ? [{title: 'Notes', isText: true}] : []),
    ], layers.map((layer) => [
      String(layer.layer), formatNumber(layer.blocks),
      ...tokens.map(([, key]) => formatNumber(layer[key])), describeFormats(formatsOf(layer)),
      ...(hasNotes ? [layerNotes(layer)] : []),
    ]));
  }
}
