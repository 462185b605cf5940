// The map: points below, marks of what is pointed at or chosen above, so that those cost nothing.

const MOST_NAMES = 30; // more of them hide the points

function makeMap(choose) {
  const canvas = byId("map-points");
  if (!canvas) return {choose() {}};
  const over = byId("map-marks"), whole = byId("map-whole"), all = byId("map-all");
  const hidden = new Set();
  const members = clusters.map(() => []);
  docs.of.forEach((cluster, row) => { if (docs.x[row] !== null) members[cluster].push(row); });
  const placed = members.flat().length;
  const everything = extent();
  let view = everything, plane, cells, chosen = -1, pointed = -1, lit = -1, box = null;

  function extent() {
    let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
    docs.x.forEach((x, row) => {
      if (x === null) return;
      left = Math.min(left, x); right = Math.max(right, x);
      top = Math.min(top, docs.y[row]); bottom = Math.max(bottom, docs.y[row]);
    });
    const edge = Math.max(right - left, bottom - top, 1) * 0.04;
    return {left: left - edge, right: right + edge, top: top - edge, bottom: bottom + edge};
  }

  // both directions have the same scale, and y points up
  function place() {
    const width = Math.max(canvas.parentElement.clientWidth, 240);
    const height = Math.round(Math.min(Math.max(width * 0.66, 320), 620));
    const scale = Math.min(width / (view.right - view.left), height / (view.bottom - view.top));
    const shiftX = width / 2 - scale * (view.left + view.right) / 2;
    const shiftY = height / 2 + scale * (view.top + view.bottom) / 2;
    plane = {
      width, height, scale, x: (row) => shiftX + scale * docs.x[row], y: (row) => shiftY - scale * docs.y[row],
      backX: (x) => (x - shiftX) / scale, backY: (y) => (shiftY - y) / scale,
    };
  }

  const inside = (x, y) => x > -4 && y > -4 && x < plane.width + 4 && y < plane.height + 4;

  // points by cells of 16 pixels, so that the nearest one is found at once
  function sortIntoCells() {
    cells = new Map();
    members.forEach((rows, cluster) => {
      if (hidden.has(cluster)) return;
      for (const row of rows) {
        const x = plane.x(row), y = plane.y(row);
        if (!inside(x, y)) continue;
        const key = (x >> 4) * 4096 + (y >> 4), cell = cells.get(key);
        if (cell) cell.push(row);
        else cells.set(key, [row]);
      }
    });
  }

  function nearest(x, y) {
    let found = -1, least = 14 * 14;
    for (let i = (x >> 4) - 1; i <= (x >> 4) + 1; i++) {
      for (let j = (y >> 4) - 1; j <= (y >> 4) + 1; j++) {
        for (const row of cells.get(i * 4096 + j) || []) {
          const far = (plane.x(row) - x) ** 2 + (plane.y(row) - y) ** 2;
          if (far < least) { least = far; found = row; }
        }
      }
    }
    return found;
  }

  function pointSize() {
    const closer = Math.sqrt((everything.right - everything.left) / (view.right - view.left));
    const size = placed < 500 ? 4.5 : placed < 2500 ? 3.5 : placed < 20000 ? 2.2 : 1.1;
    return Math.min(size * closer, 5);
  }

  function shape(context, cluster, x, y, r) {
    const kind = Math.floor(cluster / 20) % 4;
    if (kind === 0) { context.moveTo(x + r, y); context.arc(x, y, r, 0, 7); }
    else if (kind === 1) context.rect(x - r * 0.9, y - r * 0.9, r * 1.8, r * 1.8);
    else if (kind === 2) {
      context.moveTo(x, y - r * 1.2); context.lineTo(x + r * 1.15, y + r * 0.85);
      context.lineTo(x - r * 1.15, y + r * 0.85); context.closePath();
    } else {
      context.moveTo(x, y - r * 1.3); context.lineTo(x + r * 1.3, y);
      context.lineTo(x, y + r * 1.3); context.lineTo(x - r * 1.3, y); context.closePath();
    }
  }

  // the largest cluster first, so that it covers no smaller one
  function drawPoints() {
    const context = sized(canvas, plane.width, plane.height), colours = clusterColours();
    const r = pointSize(), tiny = r < 1.6;
    members.forEach((rows, cluster) => {
      if (hidden.has(cluster)) return;
      context.fillStyle = colours[cluster];
      context.globalAlpha = lit >= 0 && lit !== cluster ? 0.1 : tiny ? 0.55 : 0.82;
      if (tiny) {
        for (const row of rows) context.fillRect(plane.x(row) - r, plane.y(row) - r, 2 * r, 2 * r);
        return;
      }
      rows.forEach((row) => {
        const x = plane.x(row), y = plane.y(row);
        if (!inside(x, y)) return;
        context.beginPath();
        shape(context, cluster, x, y, r);
        context.fill();
      });
    });
    context.globalAlpha = 1;
    drawNames(context);
  }

  const middleOf = (values) => values.sort((a, b) => a - b)[values.length >> 1];

  const isFree = (taken, x, y, half) => y > 10 && y < plane.height - 10 && !taken.some((other) =>
    Math.abs(other.x - x) < other.half + half && Math.abs(other.y - y) < 19);

  // names of the largest clusters first; one that finds no room is left to the pointer
  function drawNames(context) {
    context.font = font(12, 600);
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.lineJoin = "round";
    const taken = [], ink = colour("ink"), paper = colour("card");
    const order = clusters.map((_, i) => i).sort((a, b) => (b === lit) - (a === lit) || a - b);
    for (const cluster of order) {
      if (hidden.has(cluster) || taken.length >= MOST_NAMES) continue;
      const seen = members[cluster].filter((row) => inside(plane.x(row), plane.y(row)));
      if (!seen.length) continue;
      const name = short(clusters[cluster].name, 26), half = context.measureText(name).width / 2 + 5;
      const x = Math.min(Math.max(middleOf(seen.map(plane.x)), half), plane.width - half);
      const middle = Math.min(Math.max(middleOf(seen.map(plane.y)), 12), plane.height - 12);
      const y = [0, -19, 19, -38, 38].map((shift) => middle + shift).find((place) => isFree(taken, x, place, half));
      if (y === undefined) continue;
      taken.push({x, y, half});
      context.globalAlpha = lit >= 0 && lit !== cluster ? 0.25 : 1;
      context.strokeStyle = paper;
      context.lineWidth = 4;
      context.strokeText(name, x, y);
      context.fillStyle = ink;
      context.fillText(name, x, y);
    }
    context.globalAlpha = 1;
  }

  function drawMarks() {
    const context = sized(over, plane.width, plane.height);
    context.strokeStyle = colour("ink");
    for (const [row, r, line] of [[pointed, 7, 1.5], [chosen, 10, 2.5]]) {
      if (row < 0 || docs.x[row] === null || hidden.has(docs.of[row])) continue;
      context.lineWidth = line;
      context.beginPath();
      context.arc(plane.x(row), plane.y(row), r, 0, 7);
      context.stroke();
    }
    if (box) {
      context.lineWidth = 1;
      context.setLineDash([4, 3]);
      context.strokeRect(box.x, box.y, box.toX - box.x, box.toY - box.y);
    }
  }

  function redraw() {
    place();
    sortIntoCells();
    drawPoints();
    drawMarks();
  }

  function show(part) {
    view = part;
    whole.hidden = part === everything;
    redraw();
  }

  function where(event) {
    const frame = canvas.getBoundingClientRect(), scale = frame.width / plane.width || 1;
    return [(event.clientX - frame.left) / scale, (event.clientY - frame.top) / scale];
  }

  canvas.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse" || event.button !== 0) return;
    const [x, y] = where(event);
    box = {x, y, toX: x, toY: y};
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = where(event);
    if (box) {
      Object.assign(box, {toX: x, toY: y});
      hideTip();
      return drawMarks();
    }
    pointAt(nearest(x, y), event);
  });

  const told = (one) => numberOf(one) ? `cluster ${numberOf(one)}: ${one.name}` : one.name;
  function pointAt(row, spot) {
    if (row !== pointed) { pointed = row; drawMarks(); }
    if (row < 0) return hideTip();
    const title = titleOf(row), id = docs.ids[row];
    showTip(spot, title, id === title ? "" : id, told(clusters[docs.of[row]]));
  }

  // by arrow keys: the nearest point that lies more that way than aside; at first the middle one
  const ways = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};
  function next([right, down]) {
    const seen = (row) => row >= 0 && docs.x[row] !== null && !hidden.has(docs.of[row])
      && inside(plane.x(row), plane.y(row));
    const start = [pointed, chosen].find(seen) ?? -1;
    const [fromX, fromY] = start < 0 ? [plane.width / 2, plane.height / 2] : [plane.x(start), plane.y(start)];
    let found = start, least = Infinity;
    for (const row of [...cells.values()].flat()) {
      const x = plane.x(row) - fromX, y = plane.y(row) - fromY;
      const along = x * right + y * down, aside = Math.abs(x * down) + Math.abs(y * right);
      const far = Math.abs(along) + 2 * aside;
      if ((start < 0 || along > aside) && far < least) { least = far; found = row; }
    }
    return found;
  }
  function spotOf(row) {
    const frame = canvas.getBoundingClientRect(), scale = frame.width / plane.width || 1;
    return {clientX: frame.left + scale * plane.x(row), clientY: frame.top + scale * plane.y(row)};
  }
  function walkTo(row) {
    const spot = spotOf(row);
    if (spot.clientY >= 20 && spot.clientY <= innerHeight - 20) return pointAt(row, spot);
    scrollBy({top: spot.clientY - innerHeight / 2, behavior: "instant"});
    requestAnimationFrame(() => pointAt(row, spotOf(row))); // scrolling hides what was told before
  }
  canvas.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (ways[event.key]) {
      event.preventDefault();
      const row = next(ways[event.key]);
      if (row >= 0) walkTo(row);
    } else if (event.key === "Enter" && pointed >= 0) choose(pointed);
    else if (event.key === "Escape") pointAt(-1);
  });
  canvas.addEventListener("blur", () => pointAt(-1));
  canvas.addEventListener("pointerup", () => {
    const drawn = box;
    box = null;
    if (!drawn || Math.abs(drawn.toX - drawn.x) < 12 || Math.abs(drawn.toY - drawn.y) < 12) return drawMarks();
    drawn.used = true;
    const [left, right] = [drawn.x, drawn.toX].map(plane.backX).sort((a, b) => a - b);
    const [top, bottom] = [drawn.y, drawn.toY].map(plane.backY).sort((a, b) => a - b);
    pointed = -1;
    justDrawn = true;
    show({left, right, top, bottom});
  });
  let justDrawn = false;
  canvas.addEventListener("click", (event) => {
    if (justDrawn) { justDrawn = false; return; }
    const found = nearest(...where(event));
    if (found >= 0) choose(found);
  });
  canvas.addEventListener("pointercancel", () => { box = null; drawMarks(); });
  canvas.addEventListener("pointerleave", () => { pointAt(-1); });
  whole.addEventListener("click", () => show(everything));

  const buttons = clusters.map((one, cluster) => {
    const button = make("button");
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    button.append(markOf(cluster), ...numberMark(one), make("bdi", "", one.name), make("span", "count", count(one.size)));
    button.addEventListener("click", () => {
      if (!hidden.delete(cluster)) hidden.add(cluster);
      showHidden();
    });
    const light = (value) => () => { if (lit !== value) { lit = value; drawPoints(); } };
    for (const name of ["pointerenter", "focus"]) button.addEventListener(name, light(cluster));
    for (const name of ["pointerleave", "blur"]) button.addEventListener(name, light(-1));
    const item = make("li");
    item.append(button);
    byId("map-legend").append(item);
    return button;
  });

  function showHidden() {
    buttons.forEach((button, cluster) => button.setAttribute("aria-pressed", String(!hidden.has(cluster))));
    all.hidden = hidden.size === 0;
    redraw();
  }
  all.addEventListener("click", () => { hidden.clear(); showHidden(); });

  picture(redraw);
  return {choose(row) { chosen = row; drawMarks(); }};
}
