// The table: only one page of rows is in the document at any time, however many there are.

const ROWS = 25;

function makeTable(chosenRow) {
  const n = docs.ids.length;
  const body = byId("table").tBodies[0], head = byId("table").tHead.rows[0];
  const query = byId("query"), choice = byId("cluster");
  const excerpts = excerptsByRow();
  const state = {column: null, down: false, page: 0, chosen: -1};
  let rows = [], texts = null;

  const columns = [
    {name: data.what === "documents" ? "Document" : "Sample", className: "name", key: titleOf},
    ...(docs.titles ? [{name: "Id", className: "id", key: (row) => docs.ids[row]}] : []),
    {name: "Cluster", className: "cluster", key: (row) => clusters[docs.of[row]].name},
    ...(docs.topics ? [{name: "Known topic", className: "topic", key: (row) => docs.topics.names[docs.topics.of[row]]}] : []),
    {name: "Sure", className: "sure", key: (row) => docs.sure[row] ?? -1},
  ];

  function excerptsByRow() {
    if (!docs.excerpts) return () => "";
    if (Array.isArray(docs.excerpts)) return (row) => docs.excerpts[row];
    const found = new Map(docs.excerpts.rows.map((row, i) => [row, docs.excerpts.texts[i]]));
    return (row) => found.get(row) || "";
  }

  // what is searched, in small letters, made once
  function searched() {
    if (!texts) {
      texts = docs.ids.map((id, row) =>
        `${id}\n${docs.titles ? docs.titles[row] : ""}\n${excerpts(row)}`.toLowerCase());
    }
    return texts;
  }

  // every row's place in the order of a column, made when it is first asked for
  function orderOf(column) {
    if (!column.order) {
      const keys = docs.ids.map((_, row) => column.key(row));
      const rowsOf = Array.from(keys.keys());
      if (typeof keys[0] === "number") rowsOf.sort((a, b) => keys[a] - keys[b] || a - b);
      else {
        // few names and many rows: each name is compared once
        const compare = new Intl.Collator("en", {numeric: true}).compare;
        const names = [...new Set(keys)].sort(compare);
        const rank = new Map(names.map((name, i) => [name, i]));
        const ranks = keys.map((key) => rank.get(key));
        rowsOf.sort((a, b) => ranks[a] - ranks[b] || a - b);
      }
      column.order = rowsOf;
    }
    return column.order;
  }

  function matching() {
    const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
    const cluster = choice.value === "" ? -1 : Number(choice.value);
    const has = words.length ? searched() : [];
    const tests = words.map((word) => ({
      word,
      clusters: clusters.map((one) => one.name.toLowerCase().includes(word)),
      topics: docs.topics ? docs.topics.names.map((name) => name.toLowerCase().includes(word)) : [],
    }));
    const fits = (row) => (cluster < 0 || docs.of[row] === cluster) && tests.every((test) =>
      test.clusters[docs.of[row]] || (docs.topics && test.topics[docs.topics.of[row]]) || has[row].includes(test.word));
    const order = state.column ? orderOf(state.column) : null;
    const found = [];
    for (let i = 0; i < n; i++) {
      const row = order ? order[state.down ? n - 1 - i : i] : i;
      if (fits(row)) found.push(row);
    }
    return found;
  }

  function refresh(keepPage) {
    rows = matching();
    if (!keepPage) state.page = 0;
    showPage();
  }

  const pages = () => Math.max(1, Math.ceil(rows.length / ROWS));

  function showPage() {
    state.page = Math.min(Math.max(state.page, 0), pages() - 1);
    const from = state.page * ROWS, shown = rows.slice(from, from + ROWS);
    body.replaceChildren(...shown.map(tableRow));
    if (!shown.length) body.append(emptyRow());
    byId("hits").textContent = rows.length === n ? `${count(n)} ${data.what}` : `${count(rows.length)} of ${count(n)} ${data.what}`;
    byId("page").textContent = `page ${count(state.page + 1)} of ${count(pages())}`;
    byId("before").disabled = state.page === 0;
    byId("after").disabled = state.page >= pages() - 1;
    byId("printed").textContent = shown.length && shown.length < n
      ? `Rows ${count(from + 1)} to ${count(from + shown.length)} of ${count(n)} ${data.what}; labels.csv has all of them.` : "";
  }

  function emptyRow() {
    const row = make("tr"), cell = make("td", "none", `No ${data.what} match.`);
    cell.colSpan = columns.length;
    row.append(cell);
    return row;
  }

  function tableRow(row) {
    const line = make("tr");
    line.dataset.row = row;
    line.setAttribute("aria-selected", String(row === state.chosen));
    for (const column of columns) line.append(cellOf(column, row));
    line.addEventListener("click", () => select(row));
    return line;
  }

  function cellOf(column, row) {
    const cell = make("td", column.className);
    if (column.className === "name") {
      const button = make("button"), text = excerpts(row);
      button.type = "button";
      button.append(make("bdi", "", titleOf(row)));
      cell.append(button);
      if (text) {
        const begin = make("p");
        begin.append(make("bdi", "", text));
        cell.append(begin);
      }
    } else if (column.className === "sure") {
      const bar = make("i"), full = make("b");
      full.style.width = `${(docs.sure[row] ?? 0) / 10}%`;
      bar.append(full);
      cell.append(bar, percent(docs.sure[row]));
    } else {
      if (column.className === "cluster") cell.append(markOf(docs.of[row]), ...numberMark(clusters[docs.of[row]]));
      cell.append(make("bdi", "", column.key(row)));
    }
    return cell;
  }

  function select(row) {
    state.chosen = row;
    for (const line of body.rows) line.setAttribute("aria-selected", String(Number(line.dataset.row) === row));
    chosenRow(row);
  }

  // brings a row to sight from elsewhere; filters that hide it are lifted
  function find(row) {
    hideTip();
    if (!rows.includes(row)) {
      query.value = "";
      choice.value = "";
      rows = matching();
    }
    state.page = Math.floor(rows.indexOf(row) / ROWS);
    showPage();
    select(row);
    const line = body.querySelector('[aria-selected="true"]');
    line.scrollIntoView({block: "center"});
    line.querySelector("button").focus({preventScroll: true});
  }

  function sortBy(column) {
    // once more turns it round
    if (state.column !== column) Object.assign(state, {column, down: column.className === "sure"});
    else state.down = !state.down;
    columns.forEach((one, i) => {
      head.cells[i].setAttribute("aria-sort", one !== column ? "none" : state.down ? "descending" : "ascending");
    });
    refresh();
  }

  for (const column of columns) {
    const cell = make("th", column.className), button = make("button", "", column.name);
    cell.scope = "col";
    cell.setAttribute("aria-sort", "none");
    button.type = "button";
    button.addEventListener("click", () => sortBy(column));
    cell.append(button);
    head.append(cell);
  }
  clusters.forEach((one, i) => {
    const option = make("option", "", `${numberOf(one) && `${numberOf(one)} · `}${short(one.name, 60)} (${count(one.size)})`);
    option.value = i;
    choice.append(option);
  });

  let waiting = 0;
  query.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(refresh, n > 5000 ? 120 : 0);
  });
  choice.addEventListener("change", () => refresh());
  byId("before").addEventListener("click", () => { state.page--; showPage(); });
  byId("after").addEventListener("click", () => { state.page++; showPage(); });
  refresh();
  // the first search need not wait for this
  if (window.requestIdleCallback) requestIdleCallback(searched);
  return {
    find,
    only(cluster) { choice.value = String(cluster); query.value = ""; refresh(); },
  };
}
