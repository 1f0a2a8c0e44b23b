// The document, touched only where something has changed: a write of the same value costs the
// browser as much as one of another. Text from the daemon is only ever set as text.

function byId(id) {
  return document.getElementById(id);
}

function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

function makeSvg(tag, attributes, ...children) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

function setClass(element, className) {
  if (element.className !== className) element.className = className;
}

function setWidth(element, percent) {
  const width = percent.toFixed(2) + '%';
  if (element.drawnWidth === width) return;
  element.drawnWidth = width;
  element.style.width = width;
}

function setHidden(element, hidden) {
  if (element.hidden !== hidden) element.hidden = hidden;
}

// Gives `parent` exactly `count` children, made by `makeChild`, and returns them.
function fitChildren(parent, count, makeChild) {
  while (parent.children.length < count) parent.append(makeChild());
  while (parent.children.length > count) parent.lastElementChild.remove();
  return parent.children;
}

// Where what goes has the focus, a neighbour gets it: the button in there, or the neighbour itself.
function removeWithFocus(element, lastResort) {
  const next = element.nextElementSibling || element.previousElementSibling;
  const hadFocus = element.contains(document.activeElement);
  element.remove();
  if (!hadFocus) return;
  const target = next === null ? lastResort : next.querySelector('button') || next;
  target.focus({preventScroll: true});
}

// A table with a caption for those who hear it. `columns`: {title, isText, isButton}; `rows`: lists
// of texts, of which the first heads its row. Returns the rows drawn.
function fillTable(container, caption, columns, rows) {
  const titles = columns.map(({title}) => title).join();
  let table = container.firstElementChild;
  if (table === null || table.titles !== titles) {
    const head = make('tr');
    for (const {title, isText} of columns) {
      const cell = make('th', isText ? 'text' : '', title);
      cell.scope = 'col';
      head.append(cell);
    }
    table = make('table', '', make('caption', 'hidden-text', caption), make('thead', '', head),
        make('tbody'));
    table.titles = titles;
    container.replaceChildren(table);
  }
  const makeRow = () => {
    const row = make('tr');
    columns.forEach(({isText, isButton}, i) => {
      const cell = make(i === 0 ? 'th' : 'td', isText ? 'text' : '');
      if (isButton) {
        cell.append(make('button'));
        cell.firstElementChild.type = 'button';
      }
      if (i === 0) cell.scope = 'row';
      row.append(cell);
    });
    return row;
  };
  const drawn = fitChildren(table.tBodies[0], rows.length, makeRow);
  rows.forEach((texts, r) => texts.forEach((text, c) => {
    const cell = drawn[r].cells[c];
    setText(cell.firstElementChild || cell, text);
  }));
  return drawn;
}
