// What all parts of the page share. Text of documents only ever becomes text nodes.
const root = document.documentElement;
const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const docs = data.documents, clusters = data.clusters;
const count = (value) => value.toLocaleString("en");
const percent = (thousandths) => thousandths === null ? "–" : `${Math.round(thousandths / 10)} %`;
const titleOf = (row) => (docs.titles && docs.titles[row].trim()) || docs.ids[row];

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

// the page has drawings of its own, which know what kind of element theirs are
const drawing = document.querySelector("svg").namespaceURI;
function draw(parent, tag, attributes, text) {
  const element = document.createElementNS(drawing, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

// a cluster's small mark, as its card has it; the last of the clusters may be "no cluster"
const marks = clusters.map((one) => byId(`cluster-${one.label}`).querySelector(".mark"));
const markOf = (cluster) => marks[cluster].cloneNode(true);

// the number labels.csv has, unless a cluster without words has it for a name
const numberOf = (one) => one.name === `cluster ${one.label}` ? "" : String(one.label);
const numberMark = (one) => numberOf(one) ? [make("span", "number", numberOf(one))] : [];

// colours are said in the style sheet, once for light and dark
const probe = make("span");
probe.hidden = true;
document.body.append(probe);
function colour(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}
const clusterColours = () => clusters.map((one, i) => colour(one.label < 0 ? "soft" : `c${i % 20}`));
const font = (size, weight = 400) => `${weight} ${size}px ${getComputedStyle(document.body).fontFamily}`;

// a canvas as sharp as the screen; its height follows from its width wherever it is shown
function sized(canvas, width, height) {
  const ratio = Math.max(window.devicePixelRatio || 1, root.dataset.printing === undefined ? 1 : 2);
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

// a text in the room there is for it
function fitted(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  const letters = Array.from(text.slice(0, 200));
  let low = 0, high = letters.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(letters.slice(0, middle).join("") + "…").width <= room) low = middle;
    else high = middle - 1;
  }
  return low ? letters.slice(0, low).join("").trimEnd() + "…" : "";
}

const short = (text, most) => {
  const letters = Array.from(text.slice(0, 2 * most + 2));
  return letters.length <= most ? text : letters.slice(0, most - 1).join("").trimEnd() + "…";
};

function figure(value) {
  if (value === null) return "unknown";
  const size = Math.abs(value);
  return size !== 0 && (size < 0.001 || size >= 1e5) ? value.toExponential(1) : String(+value.toPrecision(3));
}

const tip = byId("tip");
function showTip(event, head, ...lines) {
  tip.replaceChildren(make("b", "", head), ...lines.filter(Boolean).map((line) => make("div", "", line)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const x = event.clientX + 14, y = event.clientY + 14;
  tip.style.left = `${Math.max(4, x + box.width > innerWidth - 4 ? event.clientX - box.width - 10 : x)}px`;
  tip.style.top = `${Math.max(4, y + box.height > innerHeight - 4 ? event.clientY - box.height - 10 : y)}px`;
}
const hideTip = () => { tip.hidden = true; };

// pictures are drawn again when the theme, the width or the medium changes
const pictures = [];
function picture(redraw) {
  pictures.push(redraw);
  redraw();
}
const redrawAll = () => { for (const redraw of pictures) redraw(); };
