// Charts of lines: kernel weights over iterations, and how far restarts were from the best.

// round numbers that cover a range
function ticks(low, high, most) {
  const rough = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high * (1 + 1e-9); at++) found.push(at * step);
  return found;
}

function powers(low, high, most) {
  const step = Math.max(1, Math.ceil((high - low) / most));
  const found = [];
  for (let at = Math.ceil(low); at <= high; at += step) found.push(at);
  return found.length > 1 ? found : [low, high];
}

// 10 to the power of -3 as one writes it
function powerText(power) {
  if (!Number.isInteger(power)) return figure(10 ** power);
  if (power >= -2 && power <= 3) return String(+(10 ** power).toPrecision(1));
  return "10" + Array.from(String(power), (sign) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(sign)]).join("");
}

// series: {points: [[x, y]], name, className, stroke, end: "ring" | "cross" | undefined}
function lineChart(holder, series, how) {
  const width = Math.max(holder.clientWidth, 260), height = Math.round(Math.min(Math.max(width * 0.5, 220), 380));
  const right = how.names ? Math.min(130, width * 0.3) : 16;
  const frame = {left: 56, right: width - right, top: how.yName ? 34 : 12, bottom: height - 42};
  const all = series.flatMap((one) => one.points);
  const lastX = Math.max(1, ...series.map((one) => one.points[one.points.length - 1][0]));
  let low = Infinity, high = -Infinity;
  for (const [, y] of all) { low = Math.min(low, y); high = Math.max(high, y); }
  // lines that lie close together far from zero would be one
  if (how.fromZero && low < high / 2) low = 0;
  if (!(high > low)) { high = low + 1; }
  const x = (value) => frame.left + (frame.right - frame.left) * value / lastX;
  const y = (value) => frame.bottom - (frame.bottom - frame.top) * (value - low) / (high - low);
  const chart = document.createElementNS(drawing, "svg");
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  chart.setAttribute("role", "img");
  chart.setAttribute("aria-label", how.label);
  for (const value of how.log ? powers(low, high, 5) : ticks(low, high, 5)) {
    draw(chart, "path", {class: "grid", d: `M${frame.left} ${y(value)}H${frame.right}`});
    const said = how.log ? powerText(value) : figure(value);
    draw(chart, "text", {x: frame.left - 8, y: y(value) + 4, "text-anchor": "end"}, said);
  }
  for (const value of ticks(0, lastX, Math.max(2, Math.floor(width / 110)))) {
    if (value % 1) continue;
    draw(chart, "text", {x: x(value), y: frame.bottom + 18, "text-anchor": "middle"}, count(value));
  }
  draw(chart, "text", {x: (frame.left + frame.right) / 2, y: height - 4, "text-anchor": "middle"}, how.xName);
  if (how.yName) draw(chart, "text", {x: 0, y: 12}, how.yName);
  for (const one of series) {
    const path = one.points.map(([a, b]) => `${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("L");
    const line = draw(chart, "path", {class: `line ${one.className || ""}`, d: `M${path}`});
    if (one.stroke) line.style.stroke = one.stroke;
    draw(line, "title", {}, one.name);
    const [endX, endY] = one.points[one.points.length - 1];
    const at = {x: x(endX), y: y(endY)};
    if (one.end === "ring") draw(chart, "circle", {class: `end ${one.className}`, cx: at.x, cy: at.y, r: 4});
    if (one.end === "cross") {
      draw(chart, "path", {class: `line ${one.className}`, d: `M${at.x - 4} ${at.y - 4}l8 8m0-8l-8 8`});
    }
  }
  if (how.names) nameLines(chart, series, frame, y);
  holder.replaceChildren(chart);
}

// names at the ends of lines, pushed apart where they would lie on each other
function nameLines(chart, series, frame, y) {
  const step = 14, most = Math.floor((frame.bottom - frame.top) / step);
  const ends = series.map((one) => ({one, at: y(one.points[one.points.length - 1][1])}));
  ends.sort((a, b) => a.at - b.at);
  const named = ends.slice(0, most);
  const places = named.map((end) => end.at);
  for (let i = 1; i < places.length; i++) places[i] = Math.max(places[i], places[i - 1] + step);
  // up again by as much as they were pushed down in the mean, and never out of the chart
  const pushed = places.reduce((sum, place, i) => sum + place - named[i].at, 0) / (places.length || 1);
  for (let i = 0; i < places.length; i++) places[i] -= pushed;
  for (let i = 0; i < places.length; i++) places[i] = Math.max(places[i], frame.top + i * step);
  for (let i = places.length - 1; i >= 0; i--) {
    places[i] = Math.min(places[i], frame.bottom - (places.length - 1 - i) * step);
  }
  named.forEach(({one, at}, i) => {
    const link = draw(chart, "path", {class: "line", d: `M${frame.right} ${at}L${frame.right + 10} ${places[i]}`});
    link.style.stroke = one.stroke;
    draw(chart, "text", {class: "name", x: frame.right + 14, y: places[i] + 4}, short(one.name, 15));
  });
}

function weightLines() {
  const holder = byId("weight-lines");
  if (!holder) return;
  const {names, history} = data.kernels;
  const series = names.map((name, kernel) => ({
    name,
    stroke: `var(--c${kernel % 20})`,
    points: history.map((row, step) => [step, row[kernel]]).filter(([, weight]) => weight !== null),
  })).filter((one) => one.points.length);
  picture(() => lineChart(holder, series, {
    names: true, fromZero: true, xName: "iteration", yName: "weight",
    label: `Weights of ${names.length} kernels over ${history.length - 1} iterations.`,
  }));
}

function convergence() {
  const holder = byId("convergence");
  if (!holder) return;
  let least = Infinity;
  for (const run of data.runs) for (const value of run.history) if (value !== null) least = Math.min(least, value);
  const scale = Math.abs(least) || 1;
  // nearer than this is the best value itself, to rounding
  const nearest = 1e-12;
  const series = data.runs.map((run, number) => ({
    name: `attempt ${number + 1}`,
    className: number === data.best ? "best" : "other",
    end: run.converged ? "ring" : "cross",
    points: run.history
      .map((value, step) => [step, value === null ? 0 : (value - least) / scale])
      .filter(([, far]) => far > nearest)
      .map(([step, far]) => [step, Math.log10(far)]),
  })).filter((one) => one.points.length);
  if (!series.length) return;
  series.sort((a, b) => (a.className === "best") - (b.className === "best"));
  picture(() => lineChart(holder, series, {
    log: true, xName: "iteration", yName: "distance from the best value, as a share of it",
    label: `Distance of ${series.length} starts from the best value by iteration, on a logarithmic scale.`,
  }));
}
