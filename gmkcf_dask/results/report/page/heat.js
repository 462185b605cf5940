// Heat maps: a matrix as colours, with names along its sides and a bar that says what they mean.

function numbers(text) { return text.match(/[\d.]+/g).slice(0, 3).map(Number); }

// from cold over warm to hot, as the theme has them
function heatColours() {
  const stops = ["cold", "warm", "hot"].map((name) => numbers(colour(name)));
  return (share) => {
    const at = Math.min(Math.max(share, 0), 1) * 2, left = Math.min(Math.floor(at), 1), part = at - left;
    const mixed = stops[left].map((value, i) => Math.round(value + (stops[left + 1][i] - value) * part));
    return `rgb(${mixed.join(",")})`;
  };
}

// edges of cells whose sizes are given, between 0 and 1
function edges(sizes) {
  const found = [0];
  let sum = 0;
  for (const size of sizes) found.push(sum += size);
  return found.map((value) => value / (sum || 1));
}

// how: {values, rowSizes, columnSizes, bands: [{name, from, to}] per side, high, least, say(row, column)}
function heatMap(canvas, how) {
  const across = edges(how.columnSizes), down = edges(how.rowSizes);
  let frame;
  const redraw = () => {
    const room = Math.max(canvas.parentElement.clientWidth, 240);
    const measure = canvas.getContext("2d");
    measure.font = font(12);
    const longest = Math.max(...how.rowNames.map((band) => measure.measureText(band.name).width));
    const left = Math.min(longest + 16, 190, room * 0.3), bar = 80;
    const side = Math.max(Math.min(room - left - bar, how.most || 560), 120);
    const foot = how.columnNames ? 84 : 8;
    frame = {left, top: 8, side, height: side * (how.aspect || 1)};
    const width = left + side + bar, height = frame.top + frame.height + foot;
    const context = sized(canvas, width, height);
    const heat = heatColours();
    const [low, high] = how.range, share = (value) => (value - low) / (high - low || 1);
    how.values.forEach((row, i) => {
      const y = frame.top + down[i] * frame.height, tall = (down[i + 1] - down[i]) * frame.height;
      row.forEach((value, j) => {
        if (value === null) return;
        context.fillStyle = heat(share(value));
        // a little wider, so that no gaps shine through
        context.fillRect(left + across[j] * side, y, (across[j + 1] - across[j]) * side + 0.6, tall + 0.6);
      });
    });
    context.clearRect(left + side, 0, bar, height);
    context.clearRect(0, frame.top + frame.height, width, height);
    context.strokeStyle = colour("line");
    context.strokeRect(left, frame.top, side, frame.height);
    context.font = font(12);
    context.textBaseline = "middle";
    sideNames(context, how, frame, down, across);
    heatBar(context, heat, {x: left + side + 16, y: frame.top, height: Math.min(frame.height, 180)}, how);
  };
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect(), scale = box.width / parseFloat(canvas.style.width);
    const x = ((event.clientX - box.left) / scale - frame.left) / frame.side;
    const y = ((event.clientY - box.top) / scale - frame.top) / frame.height;
    if (x < 0 || y < 0 || x >= 1 || y >= 1) return hideTip();
    const column = across.findLastIndex((edge) => edge <= x), row = down.findLastIndex((edge) => edge <= y);
    showTip(event, ...how.say(row, column));
  });
  canvas.addEventListener("pointerleave", hideTip);
  picture(redraw);
}

function sideNames(context, how, frame, down, across) {
  context.textAlign = "end";
  let last = -Infinity;
  for (const band of how.rowNames) {
    const from = frame.top + down[band.from] * frame.height, to = frame.top + down[band.to] * frame.height;
    if (how.borders && band.from > 0) {
      context.strokeStyle = colour("ink");
      context.globalAlpha = 0.35;
            context.beginPath();
      context.moveTo(frame.left, from);
      context.lineTo(frame.left + frame.side, from);
      const x = frame.left + across[band.from] * frame.side;
      context.moveTo(x, frame.top);
      context.lineTo(x, frame.top + frame.height);
      context.stroke();
      context.globalAlpha = 1;
    }
    const middle = (from + to) / 2;
    if (middle - last < 13) continue;
    last = middle;
    context.fillStyle = colour("ink");
    context.fillText(fitted(context, band.name, frame.left - 14), frame.left - 8, middle);
  }
  if (!how.columnNames) return;
  last = -Infinity;
  for (const band of how.columnNames) {
    const middle = frame.left + (across[band.from] + across[band.to]) / 2 * frame.side;
    if (middle - last < 13) continue;
    last = middle;
    context.save();
    context.translate(middle, frame.top + frame.height + 8);
    context.rotate(-Math.PI / 3);
    context.fillStyle = colour("ink");
    context.fillText(fitted(context, band.name, 84), 0, 0);
    context.restore();
  }
}

function heatBar(context, heat, place, how) {
  for (let i = 0; i < 60; i++) {
    context.fillStyle = heat(1 - i / 59);
    context.fillRect(place.x, place.y + i * place.height / 60, 10, place.height / 60 + 0.6);
  }
  context.fillStyle = colour("soft");
  context.font = font(11);
  context.textAlign = "start";
  context.fillText((how.clipped ? "≥ " : "") + figure(how.range[1]), place.x + 14, place.y + 6);
  context.fillText(figure(how.range[0]), place.x + 14, place.y + place.height - 6);
}

// from the least of all to what is high among those that stand out: one extreme would leave nothing
// but itself to be seen
function usualRange(values, outstanding) {
  const known = (found) => found.filter((value) => value !== null).sort((a, b) => a - b);
  const sorted = known(values), high = known(outstanding);
  if (!sorted.length || !high.length) return {range: [0, 1], clipped: false};
  const most = high[Math.floor((high.length - 1) * 0.95)];
  return {range: [sorted[0], most], clipped: sorted[sorted.length - 1] > most};
}

const oneEach = (names) => names.map((name, i) => ({name, from: i, to: i + 1}));

function fusedKernel() {
  const canvas = byId("fused");
  if (!canvas) return;
  const {groups, of, means} = data.fused;
  const bands = [];
  of.forEach((cluster, i) => {
    const last = bands[bands.length - 1];
    if (last && last.cluster === cluster) last.to = i + 1;
    else bands.push({cluster, name: clusters[cluster].name, from: i, to: i + 1});
  });
  heatMap(canvas, {
    values: means, rowSizes: groups, columnSizes: groups, rowNames: bands, borders: bands.length <= 40,
    ...usualRange(means.flat(), means.flatMap((row, i) => row.filter((_, j) => of[i] === of[j]))),
    say: (row, column) => [
      `similarity ${figure(means[row][column])}`, `${count(groups[row])} of ${clusters[of[row]].name}`,
      `with ${count(groups[column])} of ${clusters[of[column]].name}`,
    ],
  });
}

function kernelLikeness() {
  const canvas = byId("likeness");
  if (!canvas) return;
  const {names, correlation} = data.kernels, ones = names.map(() => 1);
  const values = correlation.flat().filter((value) => value !== null);
  heatMap(canvas, {
    values: correlation, rowSizes: ones, columnSizes: ones, most: Math.min(440, Math.max(160, names.length * 44)),
    rowNames: oneEach(names), columnNames: oneEach(names),
    range: [Math.min(0, ...values), Math.max(1, ...values)], clipped: false,
    say: (row, column) => [`similarity ${figure(correlation[row][column])}`, names[row], `with ${names[column]}`],
  });
}

function largeConfusion() {
  const canvas = byId("confusion");
  if (!canvas || !data.confusion) return;
  const {topics, of, counts} = data.confusion;
  heatMap(canvas, {
    values: counts, rowSizes: topics.map(() => 1), columnSizes: of.map(() => 1),
    rowNames: oneEach(topics), ...usualRange(counts.flat(), counts.map((row) => Math.max(...row))),
    say: (row, column) => [
      count(counts[row][column] || 0), `topic ${topics[row]}`, `in ${clusters[of[column]].name}`,
    ],
  });
}
