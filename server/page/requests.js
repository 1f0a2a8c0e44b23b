// What runs and what waits. Each running request is a small ziggurat: its shape fills its card, and
// the bar below says how large it is beside the others.

const shapeWidth = 100;
const shapeHeight = 48;
const cardsInAFrame = 24;

// The outline of `layerBlocks`, the lowest layer at the bottom, as SVG path data.
function shapePath(layerBlocks) {
  const widest = Math.max(1, ...layerBlocks);
  const floor = shapeHeight / layerBlocks.length;
  let left = '';
  let right = '';
  layerBlocks.forEach((blocks, layer) => {
    const half = Math.max(blocks > 0 ? 0.7 : 0, blocks / widest * shapeWidth / 2);
    const y = (shapeHeight - (layer + 1) * floor).toFixed(1);
    right += 'H' + (shapeWidth / 2 + half).toFixed(1) + 'V' + y;
    left = 'H' + (shapeWidth / 2 - half).toFixed(1) + 'V' +
        (shapeHeight - layer * floor).toFixed(1) + left;
  });
  return 'M' + shapeWidth / 2 + ' ' + shapeHeight + right + left + 'Z';
}

// "pyramidkv(budget=256,window=16)+kivi(bits=4)" -> "pyramidkv+kivi"
function policyName(policy) {
  return policy.replace(/\([^)]*\)/g, '');
}

function describeTokens(request) {
  return formatNumber(request.prompt_tokens) + ' + ' + formatNumber(request.generated_tokens);
}

// The daemon lists no more than some, running ones first.
function describeLeftOut(count) {
  return count > 0 ? ', the last ' + formatNumber(count) + ' not listed' : '';
}

class Requests {
  // `onOpen` is called with the id of a request that is clicked.
  constructor(onOpen) {
    this.cards = byId('cards');
    this.byRequest = new Map();  // id -> card
    this.drawings = 0;
    this.nextFrame = 0;
    this.onOpen = onOpen;
    this.opened = null;
    this.cards.addEventListener('click', (event) => {
      const card = event.target.closest('.card');
      if (card !== null) this.onOpen(card.request);
    });
    byId('request-table').addEventListener('click', (event) => {
      if (event.target.closest('button') !== null) this.onOpen(event.target.closest('tr').request);
    });
    this.cards.addEventListener('keydown', (event) => this.walk(event));
    this.cards.addEventListener('focusin', (event) => this.setStop(event.target));
  }

  draw(cache) {
    const running = cache.requests.filter((request) => request.state !== 'waiting');
    this.drawSummary(cache, running);
    this.drawCards(running);
    this.drawTable(running);
    this.drawQueue(cache, cache.requests.filter((request) => request.state === 'waiting'));
  }

  // Ids begin anew in each daemon, so nothing may be left of the one before.
  clear() {
    this.opened = null;
    this.draw({requests: [], running: 0, waiting: 0, used_blocks: 0});
  }

  drawSummary(cache, running) {
    const count = (state) => running.filter((request) => request.state === state).length;
    setText(byId('requests-summary'), formatNumber(cache.running) + ' running: ' +
        count('prefilling') + ' prefilling, ' + count('decoding') + ' decoding' +
        describeLeftOut(cache.running - running.length));
    const policies = new Map();
    for (const request of running) {
      const name = policyName(request.compression);
      const sum = policies.get(name) || {requests: 0, blocks: 0};
      policies.set(name, {requests: sum.requests + 1, blocks: sum.blocks + request.blocks});
    }
    const sorted = [...policies].sort((a, b) => b[1].blocks - a[1].blocks);
    const items = fitChildren(byId('policies'), sorted.length,
        () => make('li', '', make('span'), make('strong'), make('span', 'quiet')));
    sorted.forEach(([name, sum], i) => {
      const [label, requests, share] = items[i].children;
      setText(label, name);
      setText(requests, formatNumber(sum.requests));
      setText(share, formatPercent(sum.blocks, cache.used_blocks) + ' of used blocks');
    });
  }

  drawCards(running) {
    const largest = Math.max(1, ...running.map((request) => request.blocks));
    const listed = new Set(running.map((request) => request.id));
    const known = [];
    this.drawings += 1;
    this.cards.classList.toggle('many', running.length > 48);
    // First, so that no card that stays is moved: a card that is moved loses the focus.
    for (const id of this.byRequest.keys()) {
      if (!listed.has(id)) this.removeCard(id);
    }
    running.forEach((request, i) => {
      let card = this.byRequest.get(request.id);
      if (card === undefined) {
        card = this.makeCard();
        this.byRequest.set(request.id, card);
        this.drawCard(card, request, largest);
      } else {
        known.push([card, request]);
      }
      if (this.cards.children[i] !== card) this.cards.insertBefore(card, this.cards.children[i]);
    });
    this.drawSlice(known.sort(([a], [b]) => a.drawing - b.drawing), largest);
    if (this.cards.querySelector('[tabindex="0"]') === null && this.cards.firstElementChild) {
      this.setStop(this.cards.firstElementChild);
    }
    setHidden(byId('no-requests'), running.length > 0);
  }

  // Of the cards that are there already a few in each frame, so that none takes long. Those that a
  // slow browser has not come to when there is something new are drawn first then.
  drawSlice(cards, largest) {
    cancelAnimationFrame(this.nextFrame);
    for (const [card, request] of cards.splice(0, cardsInAFrame)) {
      this.drawCard(card, request, largest);
    }
    if (cards.length === 0) return;
    this.nextFrame = requestAnimationFrame(() => this.drawSlice(cards, largest));
  }

  makeCard() {
    const card = make('button', 'card');
    card.type = 'button';
    card.tabIndex = -1;
    card.shape = makeSvg('path', {});
    card.size = make('i');
    card.nameLine = make('span', 'name');
    card.policyLine = make('span', 'policy');
    card.tokenLine = make('span', 'tokens');
    card.append(makeSvg('svg', {
      viewBox: '0 0 ' + shapeWidth + ' ' + shapeHeight, preserveAspectRatio: 'none',
      'aria-hidden': 'true',
    }, card.shape), make('span', 'size', card.size), card.nameLine, card.policyLine,
    card.tokenLine);
    return card;
  }

  drawCard(card, request, largest) {
    card.request = request;
    card.drawing = this.drawings;
    setClass(card, 'card ' + request.state + (request.id === this.opened ? ' opened' : ''));
    const {layer_blocks: blocks} = request;
    if (blocks.length > 0) setAttribute(card.shape, 'd', shapePath(blocks));
    setWidth(card.size, 100 * request.blocks / largest);
    setAttribute(card, 'title', request.request_id + '\n' + request.compression);
    setText(card.nameLine, request.request_id);
    setText(card.policyLine, policyName(request.compression));
    setText(card.tokenLine, request.state === 'prefilling' ?
        'prefilling ' + formatNumber(request.prompt_tokens) : describeTokens(request));
    setAttribute(card, 'aria-label', request.request_id + ', ' + policyName(request.compression) +
        ', ' + request.state + ', ' + request.prompt_tokens + ' prompt and ' +
        request.generated_tokens + ' generated tokens, ' + request.blocks + ' blocks');
  }

  removeCard(id) {
    removeWithFocus(this.byRequest.get(id), byId('requests'));
    this.byRequest.delete(id);
  }

  // One card is a stop of the Tab key; the arrows walk from there.
  setStop(card) {
    for (const other of this.cards.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
    card.tabIndex = 0;
  }

  walk(event) {
    const cards = [...this.cards.children];
    const at = cards.indexOf(document.activeElement);
    if (at < 0) return;
    const columns = cards.filter((card) => card.offsetTop === cards[0].offsetTop).length;
    const step = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns}[event.key];
    const end = {Home: 0, End: cards.length - 1}[event.key];
    if (step === undefined && end === undefined) return;
    event.preventDefault();
    const next = cards[end !== undefined ? end : at + step];
    if (next !== undefined) next.focus();
  }

  setOpened(id) {
    this.opened = id;
    for (const [other, card] of this.byRequest) card.classList.toggle('opened', other === id);
  }

  focus(id) {
    const row = this.tableRows().find(({request}) => request.id === id);
    const card = this.byRequest.get(id) || this.cards.querySelector('[tabindex="0"]');
    const shown = this.showsTables() ? row && row.querySelector('button') : card;
    (shown || byId('requests')).focus();
  }

  showsTables() {
    return document.body.classList.contains('show-tables');
  }

  tableRows() {
    return [...byId('request-table').querySelectorAll('tbody tr')];
  }

  drawTable(running) {
    if (!this.showsTables()) return;
    const listed = new Set(running.map((request) => request.id));
    for (const row of this.tableRows()) {
      if (!listed.has(row.request.id)) removeWithFocus(row, byId('requests'));
    }
    const drawn = fillTable(byId('request-table'), 'Running requests', [
      {title: 'Request', isText: true, isButton: true}, {title: 'Policy', isText: true},
      {title: 'State', isText: true}, {title: 'Prompt tokens'}, {title: 'Generated'},
      {title: 'Blocks'}, {title: 'Reserved'}, {title: 'Lowest layer'}, {title: 'Highest layer'},
    ], running.map((request) => [
      request.request_id, request.compression, request.state, formatNumber(request.prompt_tokens),
      formatNumber(request.generated_tokens), formatNumber(request.blocks),
      formatNumber(request.reserved_blocks), formatNumber(request.layer_blocks[0] || 0),
      formatNumber(request.layer_blocks[request.layer_blocks.length - 1] || 0),
    ]));
    running.forEach((request, i) => drawn[i].request = request);
  }

  drawQueue(cache, waiting) {
    setText(byId('queue-summary'), cache.waiting === 0 ? 'empty' :
        formatNumber(cache.waiting) + ' waiting' + describeLeftOut(cache.waiting - waiting.length));
    const items = fitChildren(byId('waiting'), waiting.length,
        () => make('li', '', make('span', 'name'), make('span', 'policy'), make('span', 'tokens')));
    waiting.forEach((request, i) => {
      const [name, policy, tokens] = items[i].children;
      setText(name, request.request_id);
      setText(policy, policyName(request.compression));
      setText(tokens, formatNumber(request.prompt_tokens) + ' tokens');
    });
  }
}
